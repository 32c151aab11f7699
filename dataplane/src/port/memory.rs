//! Ports over memory: for tests, probes, captures and benchmarks.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use super::{Buffers, Port, PortGone};
use crate::Frame;

/// The outer end of a [`MemoryPort`].
#[derive(Clone, Debug, Default)]
pub struct Wire {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    ends: Mutex<Ends>,
    /// Readable while frames wait for the switch, so that its worker may sleep.
    waiting: Option<OwnedFd>,
}

impl Default for Inner {
    fn default() -> Self {
        let waiting = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).ok();
        Self { ends: Mutex::default(), waiting }
    }
}

#[derive(Debug, Default)]
struct Ends {
    towards_switch: VecDeque<Vec<u8>>,
    from_switch: VecDeque<Vec<u8>>,
}

impl Wire {
    /// Sends a frame into the switch.
    pub fn send(&self, frame: impl Into<Vec<u8>>) {
        let mut ends = self.ends();
        ends.towards_switch.push_back(frame.into());
        if let Some(waiting) = &self.inner.waiting {
            // Full means readable already.
            let _ = rustix::io::write(waiting, &1_u64.to_ne_bytes());
        }
    }

    /// The next frame that left the switch here.
    pub fn receive(&self) -> Option<Vec<u8>> {
        self.ends().from_switch.pop_front()
    }

    /// The port to give to a switch.
    pub fn port(&self) -> Box<dyn Port> {
        Box::new(MemoryPort { wire: self.clone() })
    }

    fn ends(&self) -> MutexGuard<'_, Ends> {
        self.inner.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct MemoryPort {
    wire: Wire,
}

impl Port for MemoryPort {
    fn receive(
        &mut self,
        buffers: &mut Buffers<'_>,
        most: usize,
        frames: &mut Vec<Frame>,
    ) -> Result<(), PortGone> {
        let mut ends = self.wire.ends();
        if ends.towards_switch.is_empty() {
            return Ok(());
        }
        for _ in 0..most {
            if ends.towards_switch.is_empty() {
                break;
            }
            let needed = ends.towards_switch[0].len().div_ceil(buffers.memory.capacity());
            if needed > buffers.memory.count() as usize {
                // A port that is opened again does not receive it again.
                let length = ends.towards_switch.pop_front().map_or(0, |frame| frame.len());
                return Err(PortGone(format!(
                    "a frame of {length} bytes does not fit into {} times {}",
                    buffers.memory.count(),
                    buffers.memory.capacity()
                )));
            }
            let Some(frame) = buffers.filled(&ends.towards_switch[0]) else { break };
            ends.towards_switch.pop_front();
            frames.push(frame);
        }
        if ends.towards_switch.is_empty()
            && let Some(waiting) = &self.wire.inner.waiting
        {
            let _ = rustix::io::read(waiting, &mut [0_u8; 8]);
        }
        Ok(())
    }

    fn send(&mut self, buffers: &mut Buffers<'_>, frames: &mut Vec<Frame>) -> Result<(), PortGone> {
        let mut ends = self.wire.ends();
        for frame in frames.drain(..) {
            let mut bytes = Vec::with_capacity(frame.len());
            buffers.memory.append_to(&frame, &mut bytes, usize::MAX);
            ends.from_switch.push_back(bytes);
            buffers.free.put(frame);
        }
        Ok(())
    }

    fn readable(&self) -> Option<BorrowedFd<'_>> {
        self.wire.inner.waiting.as_ref().map(AsFd::as_fd)
    }

    fn close(self: Box<Self>, _buffers: &mut Buffers<'_>) {}
}
