//! Progress of workers on the punt link: frames taken of each port, and whether a queue was empty. A
//! port may have only so many frames on the link (`has_room` in `bpf/forward.h`), so that one that
//! floods leaves room for the others. The same of connections that templates open (`share_to_open`).

#![allow(unsafe_code, reason = "maps a map of the kernel into memory")]

use std::io;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use dataplane::PortId;

use crate::Error;
use crate::layout::{PORTS, QUEUES};

/// Bytes that a value takes in an array of the kernel.
const STRIDE: usize = 8;
/// Behind queues and frames: connections.
const OPENED: usize = QUEUES + PORTS as usize;
/// Behind these: frames taken of each queue.
const OF_QUEUES: usize = QUEUES + 2 * PORTS as usize;
const PLACES: usize = OF_QUEUES + QUEUES;
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

    /// The number of these.
    pub(crate) fn noted(&self, port: PortId) -> u32 {
        self.value(OPENED + usize::from(port.0)).map_or(0, |value| value.load(Ordering::Relaxed))
    }

    /// Counts a frame of a port that was taken from a queue.
    #[inline]
    pub(crate) fn note_taken(&self, queue: usize, port: PortId) {
        self.advance(QUEUES + usize::from(port.0));
        self.advance(OF_QUEUES + queue.min(QUEUES - 1));
    }

    /// Notes that a queue was empty.
    #[inline]
    pub(crate) fn note_empty(&self, queue: usize) {
        if let Some(empty) = self.empty.get(queue) {
            empty.store(true, Ordering::Relaxed);
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
