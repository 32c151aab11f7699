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

/// Frames of a port that the switch has given to the kernel, by place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingFrames {
    /// In the fill ring, for packets that arrive.
    pub fill: u32,
    /// In the receive ring, with packets that have arrived.
    pub receive: u32,
    /// In the transmit ring.
    pub transmit: u32,
    /// In the completion ring, sent.
    pub completion: u32,
    /// In none of the rings: with the kernel, between two of them.
    pub kernel: u32,
}

impl RingFrames {
    /// The places, by name.
    pub fn places(&self) -> [(&'static str, u32); 5] {
        [
            ("fill", self.fill),
            ("receive", self.receive),
            ("transmit", self.transmit),
            ("completion", self.completion),
            ("kernel", self.kernel),
        ]
    }
}

impl std::ops::Add for RingFrames {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            fill: self.fill + other.fill,
            receive: self.receive + other.receive,
            transmit: self.transmit + other.transmit,
            completion: self.completion + other.completion,
            kernel: self.kernel + other.kernel,
        }
    }
}

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

    /// Looks at the port, once a second: where its frames are.
    ///
    /// # Errors
    /// If the kernel returns none of them any more: the port has to be opened anew.
    fn look(&mut self) -> Result<RingFrames, PortGone> {
        Ok(RingFrames::default())
    }

    /// Closes the port and frees all frames that it holds.
    fn close(self: Box<Self>, buffers: &mut Buffers<'_>);
}
