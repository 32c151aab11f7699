//! Progress of workers on the punt link: frames taken of each port, and whether a queue was empty. A
//! port may have only so many frames on the link (`has_room` in `bpf/flow.bpf.c`), so that one that
//! floods leaves room for the others.

#![allow(unsafe_code, reason = "maps a map of the kernel into memory")]

use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use dataplane::Frame;
use dataplane::port::{Buffers, Port, PortGone, Tag};

use crate::Error;
use crate::handshake::Handshakes;
use crate::layout::{PORTS, QUEUES};

/// Bytes that a value takes in an array of the kernel.
const STRIDE: usize = 8;
const PLACES: usize = QUEUES + PORTS as usize;
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

    /// Adds one to a value.
    #[inline]
    fn advance(&self, place: usize) {
        if place < PLACES {
            // SAFETY: inside the mapping, which lives as long as `self`, and in line.
            let value = unsafe { self.base.add(place * STRIDE).cast::<AtomicU32>().as_ref() };
            value.fetch_add(1, Ordering::Relaxed);
        }
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

/// A queue of the punt link. Counts the frames of each port, notes when it is empty, and sees
/// connections that are accepted.
pub(crate) struct PuntQueue {
    pub(crate) port: Box<dyn Port>,
    pub(crate) queue: usize,
    pub(crate) progress: Arc<Progress>,
    pub(crate) handshakes: Arc<Handshakes>,
}

impl Port for PuntQueue {
    #[inline]
    fn receive(
        &mut self,
        buffers: &mut Buffers<'_>,
        most: usize,
        frames: &mut Vec<Frame>,
    ) -> Result<(), PortGone> {
        let before = frames.len();
        let received = self.port.receive(buffers, most, frames);
        let taken = &frames[before..];
        for frame in taken {
            if let Some(port) = Tag::of(buffers.memory, frame).map(Tag::port) {
                self.progress.advance(QUEUES + usize::from(port.0));
            }
        }
        self.handshakes.see_taken(buffers.memory, taken);
        if taken.len() < most
            && let Some(empty) = self.progress.empty.get(self.queue)
        {
            empty.store(true, Ordering::Relaxed);
        }
        received
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

    fn close(self: Box<Self>, buffers: &mut Buffers<'_>) {
        self.port.close(buffers);
    }
}
