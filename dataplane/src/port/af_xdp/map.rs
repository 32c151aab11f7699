//! Entries of BPF maps, and sets of keys that are kept equal to what is wanted.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::RawFd;

use libbpf_sys as sys;

/// Keys and values: plain bytes without padding, laid out as the program declares them.
///
/// # Safety
/// Every byte of a value is initialised.
pub(super) unsafe trait Plain: Copy {}

// SAFETY: numbers have no padding.
unsafe impl Plain for u32 {}
// SAFETY: as above.
unsafe impl Plain for u8 {}

/// Enters a value.
pub(super) fn put<K: Plain, V: Plain>(map: RawFd, key: &K, value: &V) -> io::Result<()> {
    // SAFETY: both are of the sizes that the map declares, and outlive the call.
    let error = unsafe {
        sys::bpf_map_update_elem(
            map,
            std::ptr::from_ref(key).cast(),
            std::ptr::from_ref(value).cast(),
            0,
        )
    };
    result(error)
}

/// The value of an entry, if it is there.
pub(super) fn get<K: Plain, V: Plain + Default>(map: RawFd, key: &K) -> Option<V> {
    let mut value = V::default();
    // SAFETY: both are of the sizes that the map declares, and outlive the call.
    let error = unsafe {
        sys::bpf_map_lookup_elem(
            map,
            std::ptr::from_ref(key).cast(),
            std::ptr::from_mut(&mut value).cast(),
        )
    };
    (error == 0).then_some(value)
}

/// Removes an entry; one that is not there is removed already.
pub(super) fn remove<K: Plain>(map: RawFd, key: &K) -> io::Result<()> {
    // SAFETY: the key is of the size that the map declares, and outlives the call.
    let error = unsafe { sys::bpf_map_delete_elem(map, std::ptr::from_ref(key).cast()) };
    match result(error) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// A map whose keys are a set.
pub(super) struct KeySet<K> {
    map: RawFd,
    keys: BTreeSet<K>,
}

impl<K: Plain + Ord> KeySet<K> {
    /// An empty map, whose descriptor stays open for as long as this is used.
    pub(super) fn new(map: RawFd) -> Self {
        Self { map, keys: BTreeSet::new() }
    }

    /// Makes the map hold exactly these keys; others that stay are not touched. After an error
    /// the next call goes on from what is there.
    pub(super) fn set(&mut self, wanted: BTreeSet<K>) -> io::Result<()> {
        let surplus: Vec<K> = self.keys.difference(&wanted).copied().collect();
        for key in surplus {
            remove(self.map, &key)?;
            self.keys.remove(&key);
        }
        for key in wanted {
            if !self.keys.contains(&key) {
                put(self.map, &key, &1_u8)?;
                self.keys.insert(key);
            }
        }
        Ok(())
    }
}

fn result(error: i32) -> io::Result<()> {
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(-error)) }
}
