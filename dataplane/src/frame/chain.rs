//! Packets that stretch over several frames.

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use super::{Frame, Memory};

/// Builds a packet over several frames.
pub struct Chain {
    first: Frame,
    /// The last frame so far.
    last: u32,
}

impl Chain {
    /// Starts with the frame that has all headers.
    ///
    /// # Panics If it is a chain already.
    pub fn new(first: Frame) -> Self {
        assert_eq!(first.others, 0, "a chain is made of single frames");
        Self { last: first.index, first }
    }

    /// Appends `next` to the packet.
    ///
    /// # Panics If it is a chain, or belongs to another memory.
    pub fn push(&mut self, memory: &Memory, next: Frame) {
        memory.check(&self.first);
        memory.check(&next);
        let Frame { index, start, length, others, .. } = next;
        let is_small = start <= u32::from(u16::MAX) && length <= u32::from(u16::MAX);
        assert!(others == 0 && is_small, "a chain is made of single frames");
        let link = &memory.links[self.last as usize];
        let own = link.load(Relaxed) & u64::from(u32::MAX);
        link.store(own | u64::from(index) << 32, Relaxed);
        memory.links[index as usize].store(u64::from(start << 16 | length), Relaxed);
        self.first.others = self.first.others.checked_add(1).expect("too many frames");
        self.first.total += length;
        self.last = index;
    }

    /// The packet.
    pub fn finish(self) -> Frame {
        self.first
    }
}

impl Memory {
    /// All of the packet's bytes, a slice for each of its frames.
    pub fn chunks<'a>(&'a self, frame: &'a Frame) -> impl Iterator<Item = &'a [u8]> {
        let rest = self.walk(frame).map(|(index, start, length)| {
            // SAFETY: the frame belongs to a chain whose handle is borrowed for as long as the
            // slice lives, and `push` checked that the range is inside the frame.
            unsafe {
                let at = self.base.as_ptr().add(index as usize * self.frame_size + start);
                std::slice::from_raw_parts(at, length)
            }
        });
        std::iter::once(self.bytes(frame)).chain(rest.take_while(|chunk| !chunk.is_empty()))
    }

    /// The packet's bytes in a range, a slice for each of its frames.
    pub(crate) fn chunks_in<'a>(
        &'a self,
        frame: &'a Frame,
        range: Range<usize>,
    ) -> impl Iterator<Item = &'a [u8]> {
        let mut start = 0;
        self.chunks(frame).map(move |chunk| {
            let [from, to] =
                [range.start, range.end].map(|at| at.saturating_sub(start).min(chunk.len()));
            start += chunk.len();
            &chunk[from..to.max(from)]
        })
    }

    /// Appends the packet, or its first `most` bytes, to `bytes`.
    pub fn append_to(&self, frame: &Frame, bytes: &mut Vec<u8>, most: usize) {
        let mut left = most;
        for chunk in self.chunks(frame) {
            let count = chunk.len().min(left);
            bytes.extend_from_slice(&chunk[..count]);
            left -= count;
        }
    }

    /// Detaches all further frames of the packet, empty ones included, and passes each to `each`.
    /// The first frame keeps its own bytes.
    pub fn detach(&self, first: &mut Frame, mut each: impl FnMut(Frame)) {
        let mut next = self.links[first.index as usize].load(Relaxed) >> 32;
        let mut left = (first.total - first.length) as usize;
        for _ in 0..first.others {
            let word = self.links[next as usize].load(Relaxed);
            let (start, length) = (word >> 16 & 0xffff, word & 0xffff);
            let length = (length as usize).min(left);
            left -= length;
            // SAFETY: `push` consumed the frame's handle; `others` becomes 0, so it is not
            // recreated twice.
            each(unsafe { self.reclaim(next as u32, start as usize, length) });
            next = word >> 32;
        }
        first.others = 0;
        first.total = first.length;
    }

    /// Number, start and length of each further frame of the packet.
    fn walk(&self, first: &Frame) -> impl Iterator<Item = (u32, usize, usize)> {
        let mut at = first.index;
        let mut left = (first.total - first.length) as usize;
        (0..first.others).map(move |_| {
            at = (self.links[at as usize].load(Relaxed) >> 32) as u32;
            let word = self.links[at as usize].load(Relaxed);
            let length = ((word & 0xffff) as usize).min(left);
            left -= length;
            (at, (word >> 16 & 0xffff) as usize, length)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FreeList;

    /// A packet over frames of 256 bytes each.
    fn chain(memory: &Memory, free: &mut FreeList, packet: &[u8]) -> Frame {
        let mut parts = packet.chunks(memory.capacity());
        let mut first = free.take().unwrap();
        memory.fill(&mut first, parts.next().unwrap());
        let mut chain = Chain::new(first);
        for part in parts {
            let mut next = free.take().unwrap();
            memory.fill(&mut next, part);
            chain.push(memory, next);
        }
        chain.finish()
    }

    fn content(memory: &Memory, frame: &Frame) -> Vec<u8> {
        let mut bytes = Vec::new();
        memory.append_to(frame, &mut bytes, usize::MAX);
        assert_eq!(bytes.len(), frame.len());
        bytes
    }

    #[test]
    fn a_long_packet_stretches_over_frames() {
        let (memory, frames) = Memory::heap(512, 16);
        let mut free = FreeList::new(&memory, frames);
        let packet: Vec<u8> = (0..1000_u32).map(|n| n as u8).collect();
        let mut frame = chain(&memory, &mut free, &packet);
        assert_eq!((frame.len(), frame.frames(), frame.is_chain()), (1000, 4, true));
        assert_eq!(content(&memory, &frame), packet);
        assert_eq!(memory.bytes(&frame), &packet[..256]);
        memory.advance(&mut frame, 100);
        assert_eq!(content(&memory, &frame), packet[100..]);
        assert!(memory.prepend(&mut frame, 50));
        assert_eq!(content(&memory, &frame), packet[50..]);
        memory.remove(&mut frame, 10, 5);
        assert_eq!(content(&memory, &frame), [&packet[50..60], &packet[65..]].concat());
        let mut first_bytes = Vec::new();
        memory.append_to(&frame, &mut first_bytes, 300);
        assert_eq!(first_bytes.len(), 300);
        free.put(frame);
        assert_eq!(free.len(), 16);
    }

    #[test]
    fn a_short_answer_in_a_long_packets_frame_loses_none() {
        let (memory, frames) = Memory::heap(512, 16);
        let mut free = FreeList::new(&memory, frames);
        let mut frame = chain(&memory, &mut free, &[1; 1000]);
        memory.fill(&mut frame, b"answer");
        assert_eq!((frame.is_chain(), frame.frames()), (false, 4));
        assert_eq!(content(&memory, &frame), b"answer");
        let mut others = Vec::new();
        memory.detach(&mut frame, |other| others.push(other));
        assert!(others.len() == 3 && others.iter().all(Frame::is_empty));
        assert_eq!(content(&memory, &frame), b"answer");
        others.into_iter().for_each(|other| free.put(other));
        free.put(frame);
        assert_eq!(free.len(), 16);
        // Their next life knows nothing of this one.
        let all: Vec<Frame> = std::iter::from_fn(|| free.take()).collect();
        assert!(all.iter().all(|frame| frame.frames() == 1));
    }
}
