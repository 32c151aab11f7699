//! Frames: packet memory, and exclusive handles on its parts.
//!
//! All frames of a switch are in one contiguous region (on a node the UMEM that every
//! AF_XDP socket shares). A [`Frame`] is a handle on one of them. Handles are neither cloned nor
//! forged: [`Memory`] creates one for each frame, and from then on a frame is in exactly one place:
//! a free list, a packet in the graph, a hand-off ring, or a ring shared with the kernel. The
//! handle gives exclusive access to the bytes.
//!
//! A packet longer than a frame spans several. The handle is that of the first, with all headers;
//! the others are linked to it:
//!
//! ```text
//! Frame ──▶ headers, data ──▶ data ──▶ data          (links: a word a frame, beside the region)
//! ```

#![allow(unsafe_code, reason = "frames are tuples into one region shared by all workers")]

mod chain;
mod checksum;
mod free_list;

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU16, AtomicU64};

pub use chain::Chain;
pub use checksum::ONE_PIECE;
pub use free_list::FreeList;

use crate::wire::partial_checksum::PartialChecksum;

/// Room in front of a packet that AF_XDP keeps for XDP programs, in bytes.
pub const XDP_HEADROOM: usize = 256;

/// Bytes at the start of every frame that no packet uses. They hold the TX metadata that a port
/// passes to the kernel.
pub const RESERVED: usize = 24;

/// A handle on one frame and the packet in it.
#[derive(Debug, PartialEq, Eq)]
pub struct Frame {
    index: u32,
    /// Offset of the packet in the frame, in bytes.
    start: u32,
    /// Bytes of the packet in this frame.
    length: u32,
    /// Bytes of the packet.
    total: u32,
    memory: u16,
    /// Further frames of this packet. Those behind the packet's end are empty.
    others: u8,
    /// The packet's partial checksum, if it has one.
    partial_checksum: Option<PartialChecksum>,
    /// 1 if the packet is a copy of one that was forwarded. As a `bool` it would give the handle a niche, which every
    /// iterator over handles would compare.
    is_copy: u8,
}

impl Frame {
    /// A handle on nothing, which no memory opens.
    pub(crate) const NONE: Self = Self {
        index: u32::MAX,
        start: 0,
        length: 0,
        total: 0,
        memory: 0,
        others: 0,
        partial_checksum: None,
        is_copy: 0,
    };

    /// Takes the handle out of its place.
    #[inline]
    pub(crate) fn take(&mut self) -> Self {
        std::mem::replace(self, Self::NONE)
    }

    /// The number of the frame within its memory.
    #[inline]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Offset of the packet in the frame, in bytes.
    #[inline]
    pub fn start(&self) -> usize {
        self.start as usize
    }

    /// The packet's length in bytes, over all its frames.
    #[inline]
    pub fn len(&self) -> usize {
        self.total as usize
    }

    /// Whether the frame holds no packet.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// Whether the packet spans several frames.
    #[inline]
    pub fn is_chain(&self) -> bool {
        self.total > self.length
    }

    /// Marks the packet as a copy of one that was forwarded beside the workers. The graph treats it as any
    /// other, and it does not leave.
    #[must_use]
    pub fn copied(self) -> Self {
        Self { is_copy: 1, ..self }
    }

    /// Whether the packet is such a copy.
    #[inline]
    pub fn is_copy(&self) -> bool {
        self.is_copy != 0
    }

    /// Number of frames in the chain, itself included; at least those that the packet spans.
    #[inline]
    pub fn frames(&self) -> usize {
        1 + usize::from(self.others)
    }
}

/// The memory region of all frames of a switch.
pub struct Memory {
    base: NonNull<u8>,
    frame_size: usize,
    count: u32,
    id: u16,
    /// For each linked frame: the next one, the offset of its bytes, and their number. For the
    /// first of a chain only the next one. Written by the holder of the first frame's handle.
    links: Box<[AtomicU64]>,
    /// Keeps the region mapped.
    _owner: Box<dyn Any + Send + Sync>,
}

// SAFETY: the region is only reached through frame handles, and each handle, of which
// there is one a frame, gives access to a part of the region that no other reaches.
unsafe impl Send for Memory {}
// SAFETY: as above; `Memory` itself has no mutable state.
unsafe impl Sync for Memory {}

static NEXT_MEMORY: AtomicU16 = AtomicU16::new(1);

impl Memory {
    /// A region on the heap: `count` frames of `frame_size` bytes, [`XDP_HEADROOM`] included.
    pub fn heap(frame_size: usize, count: u32) -> (Arc<Self>, Vec<Frame>) {
        assert!(
            frame_size > XDP_HEADROOM,
            "a frame of {frame_size} bytes has no room for a packet"
        );
        let region = Box::into_raw(vec![0_u8; frame_size * count as usize].into_boxed_slice());
        let base = NonNull::new(region.cast()).expect("a box is never null");
        // SAFETY: the boxed slice has exactly this size, does not move and lives as long as
        // `Memory` does; nothing else refers to it.
        unsafe { Self::from_raw(base, frame_size, count, Box::new(SendBox(region))) }
    }

    /// Wraps a region that something else (a UMEM) has mapped.
    ///
    /// # Safety
    ///
    /// `base` points to `frame_size * count` bytes that are valid for reads and writes for as
    /// long as `owner` lives, and that nothing accesses but the kernel, and the kernel only
    /// frames that were handed to it through a ring.
    pub unsafe fn from_raw(
        base: NonNull<u8>,
        frame_size: usize,
        count: u32,
        owner: Box<dyn Any + Send + Sync>,
    ) -> (Arc<Self>, Vec<Frame>) {
        let id = NEXT_MEMORY.fetch_add(1, Relaxed);
        assert_ne!(id, 0, "too many frame memories in one process");
        let links = (0..count).map(|_| AtomicU64::new(0)).collect();
        let memory = Self { base, frame_size, count, id, links, _owner: owner };
        let frames = (0..count).map(|index| memory.handle(index, XDP_HEADROOM, 0)).collect();
        (Arc::new(memory), frames)
    }

    /// Frames in the region.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Bytes a packet may have.
    pub fn capacity(&self) -> usize {
        self.frame_size - XDP_HEADROOM
    }

    /// The packet's bytes in its first frame.
    #[inline(always)]
    pub fn bytes<'a>(&'a self, frame: &'a Frame) -> &'a [u8] {
        self.check(frame);
        // SAFETY: `check` ensures that the range is inside the frame, and the only handle is
        // borrowed for as long as the slice lives.
        unsafe { std::slice::from_raw_parts(self.pointer(frame), frame.length as usize) }
    }

    /// Prefetches the packet's first bytes.
    #[inline]
    pub fn prefetch(&self, frame: &Frame) {
        let offset = frame.index as usize * self.frame_size + frame.start as usize;
        crate::cpu::prefetch(self.base.as_ptr().wrapping_add(offset));
    }

    /// As [`bytes`](Self::bytes), mutable.
    #[inline(always)]
    pub fn bytes_mut<'a>(&'a self, frame: &'a mut Frame) -> &'a mut [u8] {
        self.check(frame);
        // SAFETY: as in `bytes`; the handle is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.pointer(frame), frame.length as usize) }
    }

    /// Sets the packet's length to `length` bytes, in this frame alone and starting behind the
    /// headroom; the bytes keep their old values. Returns `false` if the frame is too small.
    #[inline]
    pub fn set_length(&self, frame: &mut Frame, length: usize) -> bool {
        let fits = length <= self.capacity();
        if fits {
            frame.start = XDP_HEADROOM as u32;
            frame.length = length as u32;
            frame.total = length as u32;
            frame.partial_checksum = None;
            frame.is_copy = 0;
        }
        fits
    }

    /// Copies `packet` into the frame. Returns `false` if the frame is too small.
    pub fn fill(&self, frame: &mut Frame, packet: &[u8]) -> bool {
        let fits = self.set_length(frame, packet.len());
        if fits {
            self.bytes_mut(frame).copy_from_slice(packet);
        }
        fits
    }

    /// Extends the packet by `count` bytes in front; the bytes keep their old values. Returns
    /// `false` if there is no such room ([`RESERVED`] bytes remain).
    #[inline]
    pub fn prepend(&self, frame: &mut Frame, count: usize) -> bool {
        self.complete_checksum(frame);
        let fits = count + RESERVED <= frame.start();
        if fits {
            frame.start -= count as u32;
            frame.length += count as u32;
            frame.total += count as u32;
        }
        fits
    }

    /// Writes the [`RESERVED`] bytes in front of the packet.
    ///
    /// # Panics
    /// If the packet starts inside of them.
    #[inline]
    pub fn write_in_front(&self, frame: &mut Frame, bytes: &[u8; RESERVED]) {
        self.check(frame);
        assert!(frame.start() >= RESERVED, "a packet starts in the reserved part of its frame");
        // SAFETY: the bytes in front of the packet are inside the frame, and the handle is
        // borrowed exclusively.
        unsafe { self.pointer(frame).sub(RESERVED).cast::<[u8; RESERVED]>().write(*bytes) };
    }

    /// Removes up to `count` bytes from the packet's front, at most those in its first frame.
    #[inline]
    pub fn advance(&self, frame: &mut Frame, count: usize) {
        self.complete_checksum(frame);
        let count = (count as u32).min(frame.length);
        frame.start += count;
        frame.length -= count;
        frame.total -= count;
    }

    /// Removes `count` bytes from the packet, `from` bytes behind its start; the bytes before them
    /// move up.
    pub fn remove(&self, frame: &mut Frame, from: usize, count: usize) {
        self.complete_checksum(frame);
        self.bytes_mut(frame).copy_within(..from, count);
        self.advance(frame, count);
    }

    /// Recreates the handle of a frame that a ring shared with the kernel returned.
    ///
    /// # Safety
    ///
    /// The handle of frame `index` was consumed by [`Frame::into_index`] and has not been recreated
    /// since.
    #[inline]
    pub(crate) unsafe fn reclaim(&self, index: u32, start: usize, length: usize) -> Frame {
        let inside = index < self.count && start + length <= self.frame_size;
        assert!(inside, "frame {index} ({start}+{length}) is outside the frame memory");
        self.handle(index, start, length)
    }

    fn handle(&self, index: u32, start: usize, length: usize) -> Frame {
        let (start, length) = (start as u32, length as u32);
        let (memory, others, partial_checksum) = (self.id, 0, None);
        let (total, is_copy) = (length, 0);
        Frame { index, start, length, total, memory, others, partial_checksum, is_copy }
    }

    #[inline]
    fn check(&self, frame: &Frame) {
        assert_eq!(frame.memory, self.id, "the frame belongs to another memory");
        debug_assert!(frame.start as usize + frame.length as usize <= self.frame_size);
    }

    #[inline]
    fn pointer(&self, frame: &Frame) -> *mut u8 {
        let offset = frame.index as usize * self.frame_size + frame.start as usize;
        // SAFETY: handles are only made for frames inside the region, with start and length
        // inside the frame (`from_raw`, `set_length`, `reclaim`).
        unsafe { self.base.as_ptr().add(offset) }
    }
}

impl Frame {
    /// Consumes the handle of a single frame that is posted to a ring.
    #[inline]
    #[cfg(feature = "af-xdp")]
    pub(crate) fn into_index(self) -> u32 {
        debug_assert_eq!(self.others, 0);
        self.index
    }
}

/// Owns a boxed slice by its raw pointer, so that no reference to it exists beside the frames'.
struct SendBox(*mut [u8]);

// SAFETY: the pointer owns its allocation.
unsafe impl Send for SendBox {}
// SAFETY: it is not used before it is dropped.
unsafe impl Sync for SendBox {}

impl Drop for SendBox {
    fn drop(&mut self) {
        // SAFETY: made by `Box::into_raw` in `Memory::heap`, dropped once.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_hold_what_was_put_in() {
        let (memory, mut frames) = Memory::heap(2048, 3);
        for (n, frame) in frames.iter_mut().enumerate() {
            assert!(memory.fill(frame, &[n as u8; 1500]));
        }
        for (n, frame) in frames.iter().enumerate() {
            assert_eq!(memory.bytes(frame), [n as u8; 1500]);
        }
        assert!(!memory.fill(&mut frames[0], &[0; 1793]));
    }

    #[test]
    fn bytes_are_removed_from_the_middle() {
        let (memory, mut frames) = Memory::heap(2048, 1);
        memory.fill(&mut frames[0], b"abcdXYefgh");
        memory.remove(&mut frames[0], 4, 2);
        assert_eq!(memory.bytes(&frames[0]), b"abcdefgh");
        memory.remove(&mut frames[0], 0, 3);
        assert_eq!(memory.bytes(&frames[0]), b"defgh");
    }

    #[test]
    fn packets_grow_and_shrink_at_their_front() {
        let (memory, mut frames) = Memory::heap(2048, 2);
        let frame = &mut frames[0];
        memory.fill(frame, b"inner");
        assert!(memory.prepend(frame, 6));
        memory.bytes_mut(frame)[..6].copy_from_slice(b"outer ");
        assert_eq!(memory.bytes(frame), b"outer inner");
        memory.advance(frame, 6);
        assert_eq!(memory.bytes(frame), b"inner");
        assert_eq!(frame.start(), XDP_HEADROOM);
        memory.advance(frame, 6);
        assert!(frame.is_empty());
    }

    #[test]
    fn no_packet_begins_before_its_frame() {
        let (memory, mut frames) = Memory::heap(2048, 2);
        memory.fill(&mut frames[0], b"untouched");
        let frame = &mut frames[1];
        memory.fill(frame, b"packet");
        let room = XDP_HEADROOM - RESERVED;
        assert!(!memory.prepend(frame, room + 1));
        assert_eq!(memory.bytes(frame), b"packet");
        assert!(memory.prepend(frame, room));
        memory.bytes_mut(frame)[..room].fill(0xff);
        assert!(!memory.prepend(frame, 1));
        assert_eq!(memory.bytes(&frames[0]), b"untouched");
    }

    #[test]
    #[should_panic(expected = "another memory")]
    fn a_frame_opens_only_its_own_memory() {
        let (_mine, frames) = Memory::heap(512, 1);
        let (other, _) = Memory::heap(512, 1);
        other.bytes(&frames[0]);
    }
}
