//! An object file with programs and their maps, loaded.

#![allow(unsafe_code, reason = "calls of libbpf")]

use std::ffi::CStr;
use std::io;
use std::os::fd::RawFd;
use std::ptr::NonNull;

use libbpf_sys as sys;

use super::{Counts, Map, Plain, result};

/// A loaded object. What is attached of it lives on without it.
#[derive(Debug)]
pub struct Object(NonNull<sys::bpf_object>);

// SAFETY: the object is used through `&self` only to read descriptors, and closed once.
unsafe impl Send for Object {}
// SAFETY: as above; reading a loaded object changes nothing in it.
unsafe impl Sync for Object {}

impl Object {
    /// Loads an object file, with other sizes of some maps: number of entries by name.
    ///
    /// # Errors
    /// If it is no object file, lacks such a map, or the kernel refuses it.
    pub fn load(file: &'static [u8], sizes: &[(&CStr, u32)]) -> io::Result<Self> {
        // SAFETY: the object file is a static slice; libbpf copies what it needs.
        let object = unsafe {
            sys::bpf_object__open_mem(file.as_ptr().cast(), file.len() as _, std::ptr::null())
        };
        let this = Self(NonNull::new(object).ok_or_else(io::Error::last_os_error)?);
        for (name, entries) in sizes {
            let map = this.find(name)?;
            // SAFETY: the object is open, and its maps are not made yet.
            result(unsafe { sys::bpf_map__set_max_entries(map.as_ptr(), (*entries).max(1)) })?;
        }
        // SAFETY: the object was opened above and is closed by `drop`.
        result(unsafe { sys::bpf_object__load(this.0.as_ptr()) })?;
        Ok(this)
    }

    /// The descriptor of a program; open for as long as `self` is.
    ///
    /// # Errors
    /// If there is none of that name.
    pub fn program(&self, name: &CStr) -> io::Result<RawFd> {
        // SAFETY: the object is open and the name a C string.
        let found = unsafe {
            let program = sys::bpf_object__find_program_by_name(self.0.as_ptr(), name.as_ptr());
            if program.is_null() { -1 } else { sys::bpf_program__fd(program) }
        };
        (found >= 0).then_some(found).ok_or_else(|| missing(name))
    }

    /// A map; usable for as long as `self` is there.
    ///
    /// # Errors
    /// If there is none of that name, or its keys or values are of other sizes than `K` and `V`.
    pub fn map<K: Plain, V: Plain>(&self, name: &CStr) -> io::Result<Map<K, V>> {
        let map = self.find(name)?;
        // SAFETY: the object is open.
        let (kind, sizes) = unsafe {
            let map = map.as_ptr();
            let sizes = (sys::bpf_map__key_size(map), sys::bpf_map__value_size(map));
            (sys::bpf_map__type(map), sizes)
        };
        let has_one_value = [
            sys::BPF_MAP_TYPE_HASH,
            sys::BPF_MAP_TYPE_LRU_HASH,
            sys::BPF_MAP_TYPE_ARRAY,
            sys::BPF_MAP_TYPE_LPM_TRIE,
            sys::BPF_MAP_TYPE_XSKMAP,
            sys::BPF_MAP_TYPE_PROG_ARRAY,
            sys::BPF_MAP_TYPE_ARRAY_OF_MAPS,
            sys::BPF_MAP_TYPE_CGROUP_STORAGE,
        ];
        if !has_one_value.contains(&kind) || sizes != (size_of::<K>() as u32, size_of::<V>() as u32)
        {
            return Err(other(name));
        }
        self.descriptor(name).map(Map::new)
    }

    /// An array of counters of which each processor has its own; usable for as long as `self` is there.
    ///
    /// # Errors
    /// If there is none of that name, or it is of another kind.
    pub fn counts(&self, name: &CStr) -> io::Result<Counts> {
        let map = self.find(name)?;
        // SAFETY: the object is open.
        let found = unsafe {
            (sys::bpf_map__type(map.as_ptr()), sys::bpf_map__value_size(map.as_ptr()) as usize)
        };
        if found != (sys::BPF_MAP_TYPE_PERCPU_ARRAY, size_of::<u64>()) {
            return Err(other(name));
        }
        Counts::new(self.descriptor(name)?)
    }

    /// The descriptor of a map; open for as long as `self` is.
    ///
    /// # Errors
    /// If there is none of that name.
    pub fn descriptor(&self, name: &CStr) -> io::Result<RawFd> {
        // SAFETY: the object is open.
        let found = unsafe { sys::bpf_map__fd(self.find(name)?.as_ptr()) };
        (found >= 0).then_some(found).ok_or_else(|| missing(name))
    }

    fn find(&self, name: &CStr) -> io::Result<NonNull<sys::bpf_map>> {
        // SAFETY: the object is open and the name a C string.
        let map = unsafe { sys::bpf_object__find_map_by_name(self.0.as_ptr(), name.as_ptr()) };
        NonNull::new(map).ok_or_else(|| missing(name))
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        // SAFETY: opened in `load`, closed once. An attached program stays with the kernel.
        unsafe { sys::bpf_object__close(self.0.as_ptr()) };
    }
}

fn missing(name: &CStr) -> io::Error {
    let problem = format!("the object has no {}", name.to_string_lossy());
    io::Error::new(io::ErrorKind::NotFound, problem)
}

fn other(name: &CStr) -> io::Error {
    let problem = format!("the map {} is of another kind", name.to_string_lossy());
    io::Error::new(io::ErrorKind::InvalidData, problem)
}
