//! Progress of workers on the punt link: frames taken of each port, and whether a queue was empty. A
//! port may have only so many frames on the link (`has_room` in `bpf/flow.bpf.c`), so that one that
//! floods leaves room for the others. The same of connections that templates open (`share_to_open`).

#![allow(unsafe_code, reason = "maps a map of the kernel into memory")]

use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use dataplane::port::{Buffers, Port, PortGone, Tag};
use dataplane::{Frame, PortId};

use crate::Error;
use crate::handshake::Handshakes;
use crate::layout::{PORTS, QUEUES};
use crate::openings::Openings;
use crate::reports::Reports;

/// Bytes that a value takes in an array of the kernel.
const STRIDE: usize = 8;
/// Behind queues and frames: connections.
const OPENED: usize = QUEUES + PORTS as usize;
const PLACES: usize = QUEUES + 2 * PORTS as usize;
const LENGTH: usize = PLACES * STRIDE;

/// The map of rounds and frames, in memory.
pub(crate) struct Progress {
    base: NonNull<u8>,
    /// Queues that were empty since the last round.
    empty: [AtomicBool; QUEUES],
}

// SAFETY: the memory is reached through atomics alone.
unsafe impl Send for Progress {}
// SAFETY: as above.
unsafe impl Sync for Progress {}

impl Progress {
    pub(crate) fn of(map: RawFd) -> Result<Arc<Self>, Error> {
        // SAFETY: a new mapping at an address that the kernel chooses; the map declares as many
        // values.
        let base = unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), LENGTH, access, libc::MAP_SHARED, map, 0)
        };
        let mapped = if base == libc::MAP_FAILED { None } else { NonNull::new(base.cast()) };
        let failed = || Error::new("map the counters of the punt link", io::Error::last_os_error());
        let empty = [const { AtomicBool::new(false) }; QUEUES];
        mapped.map(|base| Arc::new(Self { base, empty })).ok_or_else(failed)
    }

    #[inline]
    fn value(&self, place: usize) -> Option<&AtomicU32> {
        // SAFETY: inside the mapping, which lives as long as `self`, and in line.
        let value = || unsafe { self.base.add(place * STRIDE).cast::<AtomicU32>().as_ref() };
        (place < PLACES).then(value)
    }

    /// Adds one to a value.
    #[inline]
    fn advance(&self, place: usize) {
        if let Some(value) = self.value(place) {
            value.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a connection of a port that a template opened and the switch has taken note of.
    pub(crate) fn note_opened(&self, port: PortId) {
        self.advance(OPENED + usize::from(port.0));
    }

    /// How many that were.
    pub(crate) fn noted(&self, port: PortId) -> u32 {
        self.value(OPENED + usize::from(port.0)).map_or(0, |value| value.load(Ordering::Relaxed))
    }

    /// Begins a new round of the queues that were empty since the last one: frames that were counted
    /// and not taken are lost. Called a few times a second, since a queue may be empty while there
    /// are frames in front of it.
    pub(crate) fn begin_rounds(&self) {
        for (queue, empty) in self.empty.iter().enumerate() {
            if empty.swap(false, Ordering::Relaxed) {
                self.advance(queue);
            }
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        // SAFETY: mapped in `of`, unmapped once.
        unsafe { libc::munmap(self.base.as_ptr().cast(), LENGTH) };
    }
}

/// A queue of the punt link. Counts the frames of each port, notes when it is empty, sees
/// connections that are accepted, and reads what programs report.
pub(crate) struct PuntQueue {
    pub(crate) port: Box<dyn Port>,
    pub(crate) queue: usize,
    pub(crate) progress: Arc<Progress>,
    pub(crate) handshakes: Arc<Handshakes>,
    pub(crate) reports: Arc<Reports>,
    pub(crate) openings: Openings,
    /// Frames that were received while there were reports.
    pub(crate) held: Vec<Frame>,
}

impl PuntQueue {
    /// Reads what was reported; whether the graph has to see that first, in a vector of its own. Packets of one
    /// vector look for their sessions before any of them opens one.
    #[inline]
    fn reads_reports(
        &mut self,
        buffers: &mut Buffers<'_>,
        most: usize,
        frames: &mut Vec<Frame>,
    ) -> bool {
        if self.reports.is_empty() {
            return false;
        }
        let Some(engine) = self.handshakes.engine() else { return false };
        let before = frames.len();
        let _reader = engine.reader.lock();
        self.openings.begin(&engine, &self.reports);
        self.openings.read(&engine, &self.reports, buffers, most, frames);
        frames.len() > before || self.openings.is_behind() || self.reports.has_more()
    }
}

impl Port for PuntQueue {
    #[inline]
    fn receive(
        &mut self,
        buffers: &mut Buffers<'_>,
        most: usize,
        frames: &mut Vec<Frame>,
    ) -> Result<(), PortGone> {
        if self.reads_reports(buffers, most, frames) {
            return Ok(());
        }
        if self.held.is_empty() {
            let received = self.port.receive(buffers, most, &mut self.held);
            for frame in &self.held {
                if let Some(port) = Tag::of(buffers.memory, frame).map(Tag::port) {
                    self.progress.advance(QUEUES + usize::from(port.0));
                }
            }
            if self.held.len() < most
                && let Some(empty) = self.progress.empty.get(self.queue)
            {
                empty.store(true, Ordering::Relaxed);
            }
            received?;
            // What was reported meanwhile was so before some of these.
            if !self.held.is_empty() && self.reads_reports(buffers, most, frames) {
                return Ok(());
            }
        }
        let count = most.min(self.held.len());
        self.handshakes.see_taken(buffers.memory, &self.held[..count]);
        frames.extend(self.held.drain(..count));
        Ok(())
    }

    fn send(&mut self, buffers: &mut Buffers<'_>, frames: &mut Vec<Frame>) -> Result<(), PortGone> {
        self.handshakes.see(buffers.memory, frames);
        self.port.send(buffers, frames)
    }

    fn accepts_partial_checksums(&self) -> bool {
        self.port.accepts_partial_checksums()
    }

    fn readable(&self) -> Option<BorrowedFd<'_>> {
        self.port.readable()
    }

    fn is_sending(&self) -> bool {
        self.port.is_sending()
    }

    fn missed(&self) -> u64 {
        self.port.missed()
    }

    fn close(mut self: Box<Self>, buffers: &mut Buffers<'_>) {
        buffers.free.put_all(&mut self.held);
        self.port.close(buffers);
    }
}
