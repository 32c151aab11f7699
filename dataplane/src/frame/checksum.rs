//! Checksums of packets in frames: partial ones, and those of packets of several frames.
//!
//! A pod's kernel leaves the TCP or UDP checksum to hardware; the field then holds the sum of the
//! pseudo header alone. A long packet to another kernel of this machine keeps it: the kernel is
//! informed by TX metadata, and no byte is summed. Its frame carries a [`PartialChecksum`];
//! [`Memory::complete_checksum`] completes it for all other ports.

use super::{Frame, Memory};
use crate::wire::checksum::Sum;
use crate::wire::partial_checksum::{self, PartialChecksum};
use crate::wire::{Headers, crc32c, nested};

/// Largest MTU, in bytes, whose packets a kernel sends as one buffer. It linearizes longer ones
/// before it completes their checksums, so pods with a larger MTU send partial checksums.
pub const ONE_PIECE: u16 = 3500;

impl Frame {
    /// The packet's partial checksum, if it has one.
    #[inline]
    pub fn partial_checksum(&self) -> Option<PartialChecksum> {
        self.partial_checksum
    }
}

impl Memory {
    /// Marks a packet's checksum as partial.
    ///
    /// # Panics
    /// If the field is not in the packet's first frame.
    #[inline]
    pub fn set_partial_checksum(&self, frame: &mut Frame, partial: PartialChecksum) {
        let end = partial.start() + partial.field() + 2;
        assert!(end <= frame.length as usize, "no checksum there");
        frame.partial_checksum = Some(partial);
    }

    /// Completes the packet's checksum if it is partial.
    #[inline]
    pub fn complete_checksum(&self, frame: &mut Frame) {
        if let Some(partial) = frame.partial_checksum.take() {
            self.complete_up_to(frame, partial, frame.len());
        }
    }

    /// Marks the packet's checksum as partial if it is, so that the egress port completes it, where
    /// it `may_stay` so; completes it otherwise.
    #[inline]
    pub(crate) fn defer_or_complete(&self, frame: &mut Frame, headers: &Headers, may_stay: bool) {
        let Some(partial) = partial_checksum::find(self.bytes(frame), headers) else { return };
        // A deferred checksum covers all bytes up to the frame's end, padding included.
        if may_stay && usize::from(headers.end) == frame.len() {
            self.set_partial_checksum(frame, partial);
        } else {
            self.complete_up_to(frame, partial, usize::from(headers.end));
        }
    }

    /// Completes a partial checksum inside a tunnel of the packet's sender.
    #[inline]
    pub(crate) fn complete_nested(&self, frame: &mut Frame, headers: &Headers) {
        // Only one of the two checksums can be partial.
        if nested::may_have(headers)
            && frame.partial_checksum.is_none()
            && let Some(partial) = nested::find(self.bytes(frame), frame.len(), headers)
        {
            self.complete_up_to(frame, partial, frame.len());
        }
    }

    /// Writes the checksum of an SCTP packet that spans several frames.
    pub(crate) fn finish_sctp(&self, frame: &mut Frame, headers: &Headers) {
        let l4 = usize::from(headers.l4);
        let field = l4 + crc32c::FIELD.start..l4 + crc32c::FIELD.end;
        let Some(zero) = self.bytes_mut(frame).get_mut(field.clone()) else { return };
        zero.fill(0);
        let mut crc = !0;
        let covered = self.chunks_in(frame, l4..usize::from(headers.end));
        covered.for_each(|chunk| crc = crc32c::more(crc, chunk));
        self.bytes_mut(frame)[field].copy_from_slice(&(!crc).to_le_bytes());
    }

    /// Completes a partial checksum that covers the packet's first `end` bytes from its start on.
    fn complete_up_to(&self, frame: &mut Frame, partial: PartialChecksum, end: usize) {
        if !frame.is_chain() {
            return partial.complete(&mut self.bytes_mut(frame)[..end]);
        }
        let mut sum = Sum::default();
        self.chunks_in(frame, partial.start()..end).for_each(|chunk| sum.add(chunk));
        partial.write(self.bytes_mut(frame), sum.total());
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
    fn moving_a_packet_completes_its_checksum() {
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
