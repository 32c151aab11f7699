//! Ports: where frames enter and leave.

#[cfg(feature = "af-xdp")]
pub mod af_xdp;
pub mod memory;
mod queues;
mod tag;

use std::fmt;
use std::os::fd::BorrowedFd;
use std::time::Duration;

pub use queues::Queues;
pub use tag::Tag;

use crate::frame::Chain;
use crate::{Frame, FreeList, Memory};

/// The buffers of a port: frame memory and the worker's free list.
pub struct Buffers<'a> {
    /// The memory all frames of the switch stand in.
    pub memory: &'a Memory,
    /// Free frames.
    pub free: &'a mut FreeList,
}

impl Buffers<'_> {
    /// Copies a packet into free frames; `None` if there are too few.
    pub fn filled(&mut self, packet: &[u8]) -> Option<Frame> {
        if packet.len().div_ceil(self.memory.capacity()) > self.free.len() {
            return None;
        }
        let mut parts = packet.chunks(self.memory.capacity());
        let mut chain = Chain::new(self.part(parts.next().unwrap_or_default())?);
        for part in parts {
            match self.part(part) {
                Some(next) => chain.push(self.memory, next),
                None => {
                    // Another worker took the last frames.
                    self.free.put(chain.finish());
                    return None;
                }
            }
        }
        Some(chain.finish())
    }

    fn part(&mut self, bytes: &[u8]) -> Option<Frame> {
        let mut frame = self.free.take()?;
        self.memory.fill(&mut frame, bytes);
        Some(frame)
    }
}

/// Frames of the longest packet that every port sends. The kernel makes the first the head of its
/// own buffer and the others its fragments (`MAX_SKB_FRAGS`).
pub const MOST_FRAMES: usize = 18;
/// Time after which a sleeping worker collects frames whose sending may have completed.
const COMPLETION: Duration = Duration::from_millis(1);

/// A permanent error of a port: its interface is gone.
#[derive(Debug)]
pub struct PortGone(pub String);

impl fmt::Display for PortGone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for PortGone {}

/// A way for frames into the switch and out of it. One worker owns a port and calls it; nothing here blocks.
pub trait Port: Send {
    /// Appends up to `most` received frames.
    fn receive(
        &mut self,
        buffers: &mut Buffers<'_>,
        most: usize,
        frames: &mut Vec<Frame>,
    ) -> Result<(), PortGone>;

    /// Sends frames from the front of `frames`; those that do not fit remain, and so do packets of
    /// more than [`MOST_FRAMES`] frames, behind the others, where the port sends none.
    fn send(&mut self, buffers: &mut Buffers<'_>, frames: &mut Vec<Frame>) -> Result<(), PortGone>;

    /// Whether the port completes partial checksums itself ([`Frame::partial_checksum`]); others
    /// get complete packets only.
    fn accepts_partial_checksums(&self) -> bool {
        false
    }

    /// A descriptor that is readable when frames have arrived; `None` if there is none.
    fn readable(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Time until the port has to be served, even if it is not readable; `None` if nothing waits.
    fn due(&self) -> Option<Duration> {
        self.is_sending().then_some(COMPLETION)
    }

    /// Whether frames wait for their completion; the worker collects them before it sleeps long.
    fn is_sending(&self) -> bool {
        false
    }

    /// Frames dropped in front of the port since it was opened.
    fn missed(&self) -> u64 {
        0
    }

    /// Closes the port and frees all frames that it holds.
    fn close(self: Box<Self>, buffers: &mut Buffers<'_>);
}
