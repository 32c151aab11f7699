//! Memory for large tables: zero until written, in huge pages where there are any, and, where it
//! is a file, still there when the process is not.

#![allow(unsafe_code, reason = "tables are views of mapped memory")]

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

/// A flag of linux/mman.h, since Linux 6.1; not every C library has it.
const MADV_COLLAPSE: libc::c_int = 25;

/// Types that consist of atomic integers and nothing else.
///
/// # Safety
/// Every pattern of bits is a value of the type, and its size leaves no padding.
pub(super) unsafe trait Cells: Sync {}

// SAFETY: an atomic integer.
unsafe impl Cells for AtomicU64 {}

/// Bytes of a huge page, of the kind that the kernel forms by itself.
const HUGE_PAGE: usize = 2 << 20;

/// A mapping of memory.
pub(super) struct Region {
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: the memory is reached through `Array`s only, which give shared references to atomics.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Zeroed memory.
    pub(super) fn anonymous(length: usize) -> io::Result<Arc<Self>> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let length = length.max(1);
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base =
            unsafe { mmap_anonymous(std::ptr::null_mut(), length, access, MapFlags::PRIVATE)? };
        Ok(Self::new(base.cast(), length))
    }

    /// The first `length` bytes of a file, shared with later mappings of it; in line with huge
    /// pages, so that [`Self::collapse`] can form them.
    pub(super) fn of_file(file: &File, length: usize) -> io::Result<Arc<Self>> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let room = length + HUGE_PAGE;
        // SAFETY: a new mapping at an address that the kernel chooses, and nothing uses it.
        let room_base = unsafe {
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            mmap_anonymous(std::ptr::null_mut(), room, ProtFlags::empty(), flags)?
        };
        let skipped = room_base.cast::<u8>().align_offset(HUGE_PAGE);
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: inside of the mapping just made, which is ours to replace; what is left around is
        // unmapped once. The file is extended before, and its folder is locked, so that no process
        // truncates it.
        let base = unsafe {
            let base = room_base.cast::<u8>().add(skipped);
            let mapped = mmap(base.cast(), length, access, flags, file, 0);
            let end = length.next_multiple_of(rustix::param::page_size());
            let (front, back) =
                if mapped.is_ok() { (skipped, skipped + end) } else { (room, room) };
            if front > 0 {
                let _ = munmap(room_base, front);
            }
            if back < room {
                let _ = munmap(room_base.cast::<u8>().add(back).cast(), room - back);
            }
            mapped?
        };
        Ok(Self::new(base.cast(), length))
    }

    /// Makes the kernel collapse the pages of a file in memory (tmpfs) into huge ones, whatever the
    /// system's settings for such files are (Linux 6.1). Where it cannot, nothing changes.
    pub(super) fn collapse(&self) {
        // SAFETY: our own mapping, whose content stays.
        let _ = unsafe { libc::madvise(self.base.as_ptr().cast(), self.length, MADV_COLLAPSE) };
    }

    fn new(base: *mut u8, length: usize) -> Arc<Self> {
        let base = NonNull::new(base).expect("nothing is mapped at 0");
        // SAFETY: advice about our own mapping; without huge pages nothing changes.
        let _ = unsafe { madvise(base.as_ptr().cast(), length, Advice::LinuxHugepage) };
        Arc::new(Self { base, length })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: mapped in a constructor, unmapped once; every `Array` keeps it alive.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.length) };
    }
}

/// An array of cells in a region.
pub(super) struct Array<T> {
    region: Arc<Region>,
    /// At `offset` in the region.
    first: NonNull<T>,
    offset: usize,
    count: usize,
}

// SAFETY: the pointer refers to cells, which may be shared.
unsafe impl<T: Cells> Send for Array<T> {}
// SAFETY: as above.
unsafe impl<T: Cells> Sync for Array<T> {}

impl<T: Cells> Array<T> {
    /// `count` cells from `offset` bytes on.
    ///
    /// # Panics
    /// If they are not all inside the region, or out of line.
    pub(super) fn new(region: &Arc<Region>, offset: usize, count: usize) -> Self {
        let end = count.checked_mul(size_of::<T>()).and_then(|size| size.checked_add(offset));
        assert!(end.is_some_and(|end| end <= region.length), "the cells are inside the region");
        // SAFETY: `offset` is inside the region.
        let first = unsafe { region.base.add(offset) }.cast::<T>();
        assert!(first.is_aligned());
        Self { region: Arc::clone(region), first, offset, count }
    }

    /// So many cells in zeroed memory of their own.
    pub(super) fn zeroed(count: usize) -> io::Result<Self> {
        let region = Region::anonymous(count * size_of::<T>())?;
        Ok(Self::new(&region, 0, count))
    }

    /// Pre-faults the pages: a page fault costs the time of thousands of packets.
    pub(super) fn populate(self) -> Self {
        let length = self.count * size_of::<T>();
        // A multiple of every page size that Linux has.
        let page = 1 << 16;
        let start = self.offset.next_multiple_of(page);
        if start < self.offset + length {
            let length = self.offset + length - start;
            // SAFETY: our own mapping, of which nothing is changed. A kernel that does not know
            // the advice, or has no memory, leaves things as they are.
            let _ = unsafe {
                let first = self.region.base.as_ptr().add(start);
                madvise(first.cast(), length, Advice::LinuxPopulateWrite)
            };
        }
        self
    }
}

impl<T: Cells> Deref for Array<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: inside the region and in line (`new`); the type is sound with any bits, is
        // only changed atomically, and the region lives as long as the array.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.count) }
    }
}
