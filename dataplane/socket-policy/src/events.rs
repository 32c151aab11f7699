//! Reports of the programs: a ring that libbpf reads.

#![allow(unsafe_code, reason = "calls of libbpf, which calls back")]

use std::ffi::c_void;
use std::io;
use std::os::fd::RawFd;
use std::ptr::NonNull;

use libbpf_sys as sys;

use crate::layout::Event;

/// The ring of reports.
#[derive(Debug)]
pub(crate) struct Events {
    ring: NonNull<sys::ring_buffer>,
    /// Where a call of libbpf leaves reports; of a box, as libbpf holds its address.
    read: NonNull<Vec<Event>>,
}

// SAFETY: the ring and the reports are reached through `&mut self` only.
unsafe impl Send for Events {}

impl Events {
    pub(crate) fn of(map: RawFd) -> io::Result<Self> {
        let read = NonNull::from(Box::leak(Box::<Vec<Event>>::default()));
        // SAFETY: the map is open. libbpf hands `read` to the callback, which `take` alone causes.
        let ring = unsafe {
            sys::ring_buffer__new(map, Some(take_one), read.as_ptr().cast(), std::ptr::null())
        };
        match NonNull::new(ring) {
            Some(ring) => Ok(Self { ring, read }),
            None => {
                let error = io::Error::last_os_error();
                // SAFETY: leaked above, and nobody else has it.
                drop(unsafe { Box::from_raw(read.as_ptr()) });
                Err(error)
            }
        }
    }

    /// Takes what was reported since the last call.
    pub(crate) fn take(&mut self) -> Vec<Event> {
        // SAFETY: the ring is open. An error leaves the rest for the next call. The reports are borrowed after
        // the call has returned.
        unsafe {
            let _ = sys::ring_buffer__consume(self.ring.as_ptr());
            std::mem::take(self.read.as_mut())
        }
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        // SAFETY: opened in `of`, and closed once; after that nobody has the reports.
        unsafe {
            sys::ring_buffer__free(self.ring.as_ptr());
            drop(Box::from_raw(self.read.as_ptr()));
        }
    }
}

unsafe extern "C" fn take_one(context: *mut c_void, data: *mut c_void, size: sys::size_t) -> i32 {
    if size as usize >= size_of::<Event>() {
        // SAFETY: the context is the vector of `Events`, which nothing else borrows meanwhile; the report has the
        // size of an event, every pattern of bytes is one, and it need not be aligned.
        unsafe {
            let read = &mut *context.cast::<Vec<Event>>();
            read.push(data.cast::<Event>().read_unaligned());
        }
    }
    0
}
