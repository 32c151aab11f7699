//! Checksums that are left open, for whoever sends the packet to complete, or for a receiver to
//! whom that is all the same.
//!
//! A pod's kernel leaves the TCP or UDP checksum to hardware; the field then holds the sum of the
//! pseudo header alone. If a long packet goes to another kernel of this machine, that one does not
//! have to be told more than this one was: nobody passes over the bytes at all. A frame of which
//! that is known carries an [`PartialChecksum`]; [`Memory::complete_checksum`] completes it for everybody else.

use std::num::NonZero;

use super::{Frame, Memory};
use crate::wire::checksum::{Sum, finished};

/// Largest MTU, in bytes, whose packets a kernel hands over in one piece. Longer ones it would copy
/// together first if it had to finish their checksums; so only those who send such ones may leave
/// checksums to the switch.
pub const ONE_PIECE: u16 = 3500;

/// What a checksum that is to be completed covers, and where it stands.
///
/// The field holds the folded sum of the pseudo header; all bytes from `start` to the packet's end
/// are still to be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartialChecksum {
    start: NonZero<u16>,
    field: u16,
}

impl PartialChecksum {
    /// A sum over everything from `start` on, whose field stands `field` bytes further. `None` at
    /// the start of the packet, where no checksum begins.
    pub fn new(start: u16, field: u16) -> Option<Self> {
        NonZero::new(start).map(|start| Self { start, field })
    }

    /// Where the bytes begin that are to be added, counted from the packet's start.
    pub fn start(self) -> usize {
        usize::from(self.start.get())
    }

    /// Where the checksum stands, counted from [`PartialChecksum::start`].
    pub fn field(self) -> usize {
        usize::from(self.field)
    }
}

impl Frame {
    /// The packet's checksum, if it is still to be completed.
    #[inline]
    pub fn partial_checksum(&self) -> Option<PartialChecksum> {
        self.partial_checksum
    }
}

impl Memory {
    /// Notes that a packet's checksum is still to be completed.
    ///
    /// # Panics
    /// If the field is not in the packet's first frame.
    #[inline]
    pub fn set_partial_checksum(&self, frame: &mut Frame, open: PartialChecksum) {
        assert!(open.start() + open.field() + 2 <= frame.length as usize, "no checksum there");
        frame.partial_checksum = Some(open);
    }

    /// Completes the packet's checksum, if that is still to be done.
    #[inline]
    pub fn complete_checksum(&self, frame: &mut Frame) {
        if let Some(open) = frame.partial_checksum.take() {
            self.close(frame, open);
        }
    }

    fn close(&self, frame: &mut Frame, open: PartialChecksum) {
        let (mut sum, mut skip) = (Sum::default(), open.start());
        for chunk in self.chunks(frame) {
            let here = skip.min(chunk.len());
            sum.add(&chunk[here..]);
            skip -= here;
        }
        let whole = finished(sum.total(), open.field());
        let at = open.start() + open.field();
        self.bytes_mut(frame)[at..at + 2].copy_from_slice(&whole.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Chain;

    #[test]
    fn a_partial_checksum_is_completed_once_over_all_frames() {
        let (memory, mut frames) = Memory::heap(512, 2);
        let (mut next, mut first) = (frames.pop().unwrap(), frames.pop().unwrap());
        // 3 bytes that are not summed; a field that holds 0x0102; a sum over both frames.
        memory.fill(&mut first, &[9, 9, 9, 0, 5, 1, 2, 7]);
        memory.fill(&mut next, &[3, 4]);
        let mut chain = Chain::new(first);
        chain.push(&memory, next);
        let mut packet = chain.finish();
        memory.set_partial_checksum(&mut packet, PartialChecksum::new(3, 2).unwrap());
        for _ in 0..2 {
            memory.complete_checksum(&mut packet);
            let mut bytes = Vec::new();
            memory.append_to(&packet, &mut bytes, usize::MAX);
            // 0x0005 + 0x0102 + 0x0703 + 0x0400 = 0x0c0a
            assert_eq!(bytes, [9, 9, 9, 0, 5, 0xf3, 0xf5, 7, 3, 4]);
            assert_eq!(packet.partial_checksum(), None);
        }
    }

    #[test]
    fn whoever_moves_a_packet_closes_its_sum() {
        let (memory, mut frames) = Memory::heap(512, 1);
        let frame = &mut frames[0];
        let packet = [0, 0, 0, 0, 0x12, 0x34];
        let changes: [fn(&Memory, &mut Frame); 3] = [
            |memory, frame| assert!(memory.prepend(frame, 4)),
            |memory, frame| memory.advance(frame, 1),
            |memory, frame| memory.remove(frame, 0, 1),
        ];
        for change in changes {
            memory.fill(frame, &packet);
            memory.set_partial_checksum(frame, PartialChecksum::new(2, 2).unwrap());
            change(&memory, frame);
            assert_eq!(frame.partial_checksum(), None);
            assert!(memory.bytes(frame).ends_with(&[0xed, 0xcb]));
        }
        memory.fill(frame, &packet);
        memory.set_partial_checksum(frame, PartialChecksum::new(2, 2).unwrap());
        memory.fill(frame, &packet);
        assert_eq!(frame.partial_checksum(), None, "another packet's");
    }
}
