//! The object file with the programs and their maps, loaded.

#![allow(unsafe_code, reason = "calls of libbpf")]

use std::ffi::CStr;
use std::io;
use std::os::fd::RawFd;
use std::ptr::NonNull;

use libbpf_sys as sys;

use crate::Error;
use crate::map::{Map, Plain, result};

static BYTES: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/flow.bpf.o"));

/// A loaded object. What is attached of it lives on without it.
pub(crate) struct Object(NonNull<sys::bpf_object>);

// SAFETY: the object is used through `&self` only to read descriptors, and closed once.
unsafe impl Send for Object {}
// SAFETY: as above; reading a loaded object changes nothing in it.
unsafe impl Sync for Object {}

impl Object {
    /// Loads the programs, with room for so many entries.
    pub(crate) fn load(entries: u32) -> Result<Self, Error> {
        let failed = |what: &'static str| move |cause| Error::new(what, cause);
        // SAFETY: the object file is a static slice; libbpf copies what it needs.
        let object = unsafe {
            sys::bpf_object__open_mem(BYTES.as_ptr().cast(), BYTES.len() as _, std::ptr::null())
        };
        let opened = NonNull::new(object).ok_or_else(io::Error::last_os_error);
        let this = Self(opened.map_err(failed("open the programs of flow offload"))?);
        // SAFETY: the object is open, and its maps are not made yet.
        let error = unsafe {
            let map = sys::bpf_object__find_map_by_name(this.0.as_ptr(), c"flows".as_ptr());
            sys::bpf_map__set_max_entries(map, entries.max(1))
        };
        result(error).map_err(failed("size the map of flow offload"))?;
        // SAFETY: the object was opened above and is closed by `drop`.
        let error = unsafe { sys::bpf_object__load(this.0.as_ptr()) };
        result(error).map_err(failed("load the programs of flow offload"))?;
        Ok(this)
    }

    /// The descriptor of a program; open for as long as `self` is.
    pub(crate) fn program(&self, name: &CStr) -> Result<RawFd, Error> {
        // SAFETY: the object is open and the name a C string.
        let found = unsafe {
            let program = sys::bpf_object__find_program_by_name(self.0.as_ptr(), name.as_ptr());
            if program.is_null() { -1 } else { sys::bpf_program__fd(program) }
        };
        found_or(found, name)
    }

    /// A map; usable for as long as `self` is there.
    pub(crate) fn map<K: Plain, V: Plain>(&self, name: &CStr) -> Result<Map<K, V>, Error> {
        self.descriptor(name).map(Map::new)
    }

    /// The descriptor of a map; open for as long as `self` is.
    pub(crate) fn descriptor(&self, name: &CStr) -> Result<RawFd, Error> {
        // SAFETY: the object is open and the name a C string.
        let found = unsafe {
            let map = sys::bpf_object__find_map_by_name(self.0.as_ptr(), name.as_ptr());
            if map.is_null() { -1 } else { sys::bpf_map__fd(map) }
        };
        found_or(found, name)
    }
}

fn found_or(found: RawFd, name: &CStr) -> Result<RawFd, Error> {
    let missing = || {
        let what = format!("find {} in the programs of flow offload", name.to_string_lossy());
        Error::new(what, io::ErrorKind::NotFound.into())
    };
    (found >= 0).then_some(found).ok_or_else(missing)
}

impl Drop for Object {
    fn drop(&mut self) {
        // SAFETY: opened in `load`, closed once. An attached program stays with the kernel.
        unsafe { sys::bpf_object__close(self.0.as_ptr()) };
    }
}
