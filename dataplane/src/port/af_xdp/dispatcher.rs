//! The XDP program of all ports, and the XSKMAP slots of their queues.
//!
//! The kernel patches its XDP dispatcher for each new program and waits for all processors, which
//! takes ten to fifty milliseconds with the lock of every interface change held. So one program is
//! loaded once, and attached to each interface.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex, PoisonError};

use super::AfXdpError;
use super::program::{Attached, Fallback, Program, everything, not_loaded};
use super::socket::Socket;
use crate::bpf::{Map, Plain};

/// A queue of an interface: the key of the program's map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
struct Queue {
    interface: u32,
    number: u32,
}

// SAFETY: two numbers of equal size.
unsafe impl Plain for Queue {}

/// Number of slots in the program's maps.
const SLOTS: u32 = 16_384;

/// The program of interfaces with one fallback.
pub(super) struct Dispatcher {
    program: Program,
    slots: Map<Queue, u32>,
    /// Freed slot numbers, and the first unused one.
    free: Mutex<(Vec<u32>, u32)>,
}

impl Dispatcher {
    pub(super) fn open(fallback: Fallback) -> Result<Arc<Self>, AfXdpError> {
        let program = Program::load(&everything(fallback))?;
        let slots = program.object().map(c"slots").map_err(not_loaded)?;
        Ok(Arc::new(Self { program, slots, free: Mutex::default() }))
    }

    /// Attaches the program to an interface.
    pub(super) fn attach(&self, interface: &str, index: u32) -> Result<Attached, AfXdpError> {
        self.program.attach(interface, index)
    }

    /// Redirects the frames of a queue to a socket until the slot is dropped.
    pub(super) fn slot(
        self: &Arc<Self>,
        interface: u32,
        number: u32,
        socket: &Socket,
    ) -> Result<XskMapSlot, AfXdpError> {
        let slot = self.take().ok_or_else(|| {
            let full = std::io::Error::other("all of them are taken");
            AfXdpError::new("give a socket a place in its map", full)
        })?;
        let queue = Queue { interface, number };
        let slot = XskMapSlot { dispatcher: Arc::clone(self), queue, number: slot };
        self.program.serve(slot.number, socket.as_fd().as_raw_fd())?;
        self.slots
            .put(&slot.queue, &slot.number)
            .map_err(|cause| AfXdpError::new("enter a queue in its map", cause))?;
        Ok(slot)
    }

    fn take(&self) -> Option<u32> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let (returned, next) = &mut *free;
        returned.pop().or_else(|| {
            let fresh = *next;
            *next = (fresh + 1).min(SLOTS);
            (fresh < SLOTS).then_some(fresh)
        })
    }
}

/// A queue's slot; freed when dropped. Frames that arrive later take the fallback.
pub(super) struct XskMapSlot {
    dispatcher: Arc<Dispatcher>,
    queue: Queue,
    number: u32,
}

impl Drop for XskMapSlot {
    fn drop(&mut self) {
        // The queue may have another slot by now.
        let is_ours = self.dispatcher.slots.get(&self.queue) == Some(self.number);
        if is_ours {
            // An entry that cannot be removed names a slot without a socket.
            let _ = self.dispatcher.slots.remove(&self.queue);
        }
        let mut free = self.dispatcher.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.0.push(self.number);
    }
}
