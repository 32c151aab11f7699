//! One ring shared with the kernel: a page of counters, then entries.
//!
//! Each ring has one producer and one consumer, one of which is the kernel. Each owns its counter
//! and only reads the other's; counters run through all 32 bits and wrap.
//!
//! ```text
//! fill, tx:        we produce,  the kernel consumes
//! rx, completion:  the kernel produces,  we consume
//! ```
//!
//! Both types here keep a copy of the other side's counter and look at the shared one only when
//! the copy says that there is nothing left.

use std::io;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::net::xdp::{XdpRingFlags, XdpRingOffset};

/// The producer end of a ring.
pub(super) struct Producer<T> {
    ring: Ring<T>,
    /// Our counter, ahead of the shared one until [`Producer::submit`].
    next: u32,
    /// The kernel's consumer index as of the last look.
    consumed: u32,
}

impl<T: Copy> Producer<T> {
    pub(super) fn new(ring: Ring<T>) -> Self {
        let (next, consumed) = (ring.producer().load(Ordering::Relaxed), ring.consumed());
        Self { ring, next, consumed }
    }

    /// Appends an entry; returns `false` if there is no room. The kernel sees it from the next
    /// [`Producer::submit`] on.
    #[inline]
    pub(super) fn push(&mut self, entry: T) -> bool {
        if self.next.wrapping_sub(self.consumed) > self.ring.mask {
            self.consumed = self.ring.consumed();
            if self.next.wrapping_sub(self.consumed) > self.ring.mask {
                return false;
            }
        }
        // SAFETY: the place is inside the ring; the kernel has consumed its old entry and does not
        // read it before `submit`.
        unsafe { self.ring.place(self.next).write(entry) };
        self.next = self.next.wrapping_add(1);
        true
    }

    /// Publishes all appended entries to the kernel.
    #[inline]
    pub(super) fn submit(&mut self) {
        self.ring.producer().store(self.next, Ordering::Release);
    }

    /// Published entries that the kernel has not consumed.
    #[inline]
    pub(super) fn pending(&mut self) -> u32 {
        self.consumed = self.ring.consumed();
        self.next.wrapping_sub(self.consumed)
    }

    /// Whether the kernel needs a wake-up call for new entries.
    #[inline]
    pub(super) fn needs_wakeup(&self) -> bool {
        let flags = self.ring.flags().load(Ordering::Relaxed);
        XdpRingFlags::from_bits_retain(flags).contains(XdpRingFlags::XDP_RING_NEED_WAKEUP)
    }
}

/// The consumer end of a ring.
pub(super) struct Consumer<T> {
    ring: Ring<T>,
    /// Our counter, ahead of the shared one until [`Consumer::release`].
    next: u32,
    /// The kernel's producer index as of the last look.
    produced: u32,
}

impl<T: Copy> Consumer<T> {
    pub(super) fn new(ring: Ring<T>) -> Self {
        let next = ring.consumer().load(Ordering::Relaxed);
        Self { ring, next, produced: next }
    }

    /// Takes the next entry. The kernel may use its place again from the next
    /// [`Consumer::release`] on.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<T> {
        if self.next == self.produced {
            self.produced = self.ring.producer().load(Ordering::Acquire);
            if self.next == self.produced {
                return None;
            }
        }
        // SAFETY: the place is inside the ring; the kernel has written the entry before it
        // moved its counter on, and leaves it alone until `release`.
        let entry = unsafe { self.ring.place(self.next).read() };
        self.next = self.next.wrapping_add(1);
        Some(entry)
    }

    /// Entries that the kernel has produced and that are not taken.
    pub(super) fn available(&self) -> u32 {
        self.ring.producer().load(Ordering::Relaxed).wrapping_sub(self.next)
    }

    /// Gives the places of all entries taken back to the kernel.
    #[inline]
    pub(super) fn release(&mut self) {
        self.ring.consumer().store(self.next, Ordering::Release);
    }
}

/// A mapped ring.
pub(super) struct Ring<T> {
    map: NonNull<u8>,
    length: usize,
    offsets: XdpRingOffset,
    /// Entries less one; their number is a power of two.
    mask: u32,
    entries: PhantomData<T>,
}

// SAFETY: the mapping belongs to this value alone on our side.
unsafe impl<T: Send> Send for Ring<T> {}
// SAFETY: entries are only touched through `&mut` of a producer or consumer; what a shared
// reference reaches are atomic words.
unsafe impl<T: Send> Sync for Ring<T> {}

impl<T> Ring<T> {
    /// Maps the ring that `socket` has at `page_offset` (`XDP_PGOFF_…`), of `size` entries.
    pub(super) fn map(
        socket: BorrowedFd<'_>,
        page_offset: u64,
        size: u32,
        offsets: XdpRingOffset,
    ) -> io::Result<Self> {
        assert!(size.is_power_of_two(), "a ring of {size} entries");
        let length = offsets.desc as usize + size as usize * size_of::<T>();
        let (access, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: a new mapping at an address that the kernel chooses.
        let map =
            unsafe { mmap(std::ptr::null_mut(), length, access, flags, socket, page_offset) }?;
        let map = NonNull::new(map.cast()).expect("nothing is mapped at 0");
        Ok(Self { map, length, offsets, mask: size - 1, entries: PhantomData })
    }

    fn producer(&self) -> &AtomicU32 {
        self.word(self.offsets.producer)
    }

    fn consumer(&self) -> &AtomicU32 {
        self.word(self.offsets.consumer)
    }

    fn consumed(&self) -> u32 {
        self.consumer().load(Ordering::Acquire)
    }

    /// Kernels before 5.4 have no such word; on them this reads the producer's counter, whose
    /// lowest bit means at worst a call too many or too few.
    fn flags(&self) -> &AtomicU32 {
        self.word(self.offsets.flags.unwrap_or(self.offsets.producer))
    }

    #[inline]
    fn word(&self, offset: u64) -> &AtomicU32 {
        // SAFETY: the kernel gave the offset for this mapping, aligned for a 32-bit word, which
        // both sides only touch atomically.
        unsafe { self.map.add(offset as usize).cast().as_ref() }
    }

    #[inline]
    fn place(&self, counter: u32) -> NonNull<T> {
        let entry = (counter & self.mask) as usize;
        // SAFETY: the mask keeps the entry inside the mapping (`map`).
        unsafe { self.map.add(self.offsets.desc as usize).cast::<T>().add(entry) }
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        // SAFETY: mapped in `map`, unmapped once, and nothing refers to it any more.
        let _ = unsafe { munmap(self.map.as_ptr().cast(), self.length) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};

    use super::*;

    /// A ring's two ends over the same memory, as we and the kernel have them.
    fn both_ends(start: u32) -> (Producer<u64>, Consumer<u64>) {
        let name = c"ring";
        // SAFETY: a C string that outlives the call; the descriptor is new and ours.
        let file: OwnedFd = unsafe {
            use std::os::fd::FromRawFd;
            OwnedFd::from_raw_fd(libc::memfd_create(name.as_ptr(), 0))
        };
        std::fs::File::from(file.try_clone().unwrap()).set_len(4096).unwrap();
        let offsets = XdpRingOffset { producer: 0, consumer: 64, desc: 192, flags: Some(128) };
        let ring = || Ring::<u64>::map(file.as_fd(), 0, 4, offsets).unwrap();
        let one = ring();
        one.producer().store(start, Ordering::Relaxed);
        one.consumer().store(start, Ordering::Relaxed);
        (Producer::new(one), Consumer::new(ring()))
    }

    fn drain(consumer: &mut Consumer<u64>) -> Vec<u64> {
        std::iter::from_fn(|| consumer.pop()).collect()
    }

    #[test]
    fn entries_come_out_in_order_once_submitted() {
        let (mut producer, mut consumer) = both_ends(0);
        assert!(producer.push(1) && producer.push(2));
        assert_eq!(consumer.pop(), None);
        producer.submit();
        assert_eq!(drain(&mut consumer), [1, 2]);
    }

    #[test]
    fn a_place_is_used_again_once_released() {
        let (mut producer, mut consumer) = both_ends(0);
        assert_eq!((0..6).filter(|n| producer.push(*n)).count(), 4);
        producer.submit();
        assert_eq!(drain(&mut consumer), [0, 1, 2, 3]);
        assert!(!producer.push(9));
        assert_eq!(producer.pending(), 4);
        consumer.release();
        assert_eq!(producer.pending(), 0);
        assert!(producer.push(9));
        producer.submit();
        assert_eq!(drain(&mut consumer), [9]);
    }

    #[test]
    fn counters_wrap() {
        let (mut producer, mut consumer) = both_ends(u32::MAX - 1);
        for round in 0..5 {
            assert_eq!((0..5).filter(|n| producer.push(round * 10 + n)).count(), 4);
            producer.submit();
            let expected: Vec<u64> = (0..4).map(|n| round * 10 + n).collect();
            assert_eq!(drain(&mut consumer), expected);
            consumer.release();
        }
    }

    #[test]
    fn the_kernel_asks_to_be_woken() {
        let (producer, consumer) = both_ends(0);
        assert!(!producer.needs_wakeup());
        consumer.ring.flags().store(1, Ordering::Relaxed);
        assert!(producer.needs_wakeup());
    }
}
