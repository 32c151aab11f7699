//! Maps of programs, by their types, and sets of keys that are kept equal to what is wanted.

#![allow(unsafe_code, reason = "system calls with memory that the kernel fills")]

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::marker::PhantomData;
use std::os::fd::RawFd;

use libbpf_sys as sys;

use super::result;

/// Keys and values: plain bytes without padding, laid out as the program declares them.
///
/// # Safety
/// Every byte of a value is initialised, and every pattern of bytes is a value.
pub unsafe trait Plain: Copy + Default {}

// SAFETY: numbers have no padding.
unsafe impl Plain for u8 {}
// SAFETY: as above.
unsafe impl Plain for u32 {}
// SAFETY: as above.
unsafe impl Plain for u64 {}

/// A map with keys `K` and values `V`, as [`Object::map`](super::Object::map) finds it; its descriptor
/// is open for as long as the object is.
#[derive(Debug)]
pub struct Map<K, V> {
    descriptor: RawFd,
    types: PhantomData<fn(K) -> V>,
}

/// Entries moved by one call.
const BATCH: usize = 1024;

impl<K: Plain, V: Plain> Map<K, V> {
    /// A map whose keys and values are of these sizes, one value to a key.
    pub(super) fn new(descriptor: RawFd) -> Self {
        Self { descriptor, types: PhantomData }
    }

    /// Enters a value in place of any other.
    ///
    /// # Errors
    /// As the kernel says: the map may be full.
    pub fn put(&self, key: &K, value: &V) -> io::Result<()> {
        // SAFETY: both are of the sizes that the map declares, and outlive the call.
        let error = unsafe {
            let (key, value) = (std::ptr::from_ref(key), std::ptr::from_ref(value));
            sys::bpf_map_update_elem(self.descriptor, key.cast(), value.cast(), 0)
        };
        result(error)
    }

    /// The value of a key, if there is one.
    pub fn get(&self, key: &K) -> Option<V> {
        let mut value = V::default();
        // SAFETY: both are of the sizes that the map declares, and outlive the call.
        let error = unsafe {
            let (key, value) = (std::ptr::from_ref(key), std::ptr::from_mut(&mut value));
            sys::bpf_map_lookup_elem(self.descriptor, key.cast(), value.cast())
        };
        (error == 0).then_some(value)
    }

    /// Removes an entry; one that is not there is removed already.
    ///
    /// # Errors
    /// As the kernel says.
    pub fn remove(&self, key: &K) -> io::Result<()> {
        // SAFETY: the key is of the size that the map declares, and outlives the call.
        let error =
            unsafe { sys::bpf_map_delete_elem(self.descriptor, std::ptr::from_ref(key).cast()) };
        match result(error) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }

    /// Removes an entry and returns it; `None` if it is not there.
    ///
    /// # Errors
    /// As the kernel says.
    pub fn take(&self, key: &K) -> io::Result<Option<V>> {
        let mut value = V::default();
        // SAFETY: both are of the sizes that the map declares, and outlive the call.
        let error = unsafe {
            let (key, value) = (std::ptr::from_ref(key), std::ptr::from_mut(&mut value));
            sys::bpf_map_lookup_and_delete_elem(self.descriptor, key.cast(), value.cast())
        };
        match result(error) {
            Ok(()) => Ok(Some(value)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Enters many values; how many got in before the map was full.
    pub fn put_all(&self, keys: &[K], values: &[V]) -> usize {
        let most = keys.len().min(values.len());
        let mut done = 0;
        while done < most {
            let wanted = (most - done).min(BATCH);
            let mut count = wanted as u32;
            // SAFETY: `count` keys and values stand from `done` on; both outlive the call.
            let error = unsafe {
                let (keys, values) = (keys[done..].as_ptr(), values[done..].as_ptr());
                let (map, options) = (self.descriptor, std::ptr::null());
                sys::bpf_map_update_batch(map, keys.cast(), values.cast(), &raw mut count, options)
            };
            done += (count as usize).min(wanted);
            if error != 0 {
                break;
            }
        }
        done
    }

    /// Calls `each` with all entries, as a picture taken while they change.
    ///
    /// # Errors
    /// As the kernel says.
    pub fn for_each(&self, mut each: impl FnMut(&K, &V)) -> io::Result<()> {
        // A hash's buckets are read whole; the token is the number of the next one, or the last key.
        let (mut keys, mut values) = (vec![K::default(); BATCH], vec![V::default(); BATCH]);
        let mut token = (0_u32, K::default());
        let mut first = true;
        loop {
            let mut count = keys.len() as u32;
            let mut next = (0_u32, K::default());
            // SAFETY: the arrays have room for `count` entries; the tokens have room for a number and
            // for a key, whichever the kind of map uses. All outlive the call.
            let error = unsafe {
                let from = if first { std::ptr::null_mut() } else { &raw mut token };
                let (keys, values) = (keys.as_mut_ptr(), values.as_mut_ptr());
                sys::bpf_map_lookup_batch(
                    self.descriptor,
                    from.cast(),
                    (&raw mut next).cast(),
                    keys.cast(),
                    values.cast(),
                    &raw mut count,
                    std::ptr::null(),
                )
            };
            match result(error) {
                Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => {
                    // A bucket has more entries than there is room for.
                    keys.resize(keys.len() * 2, K::default());
                    values.resize(values.len() * 2, V::default());
                    continue;
                }
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                end => {
                    let count = (count as usize).min(keys.len());
                    keys.iter().zip(&values).take(count).for_each(|(key, value)| each(key, value));
                    if end.is_err() {
                        return Ok(());
                    }
                    (token, first) = (next, false);
                }
            }
        }
    }
}

/// An array of counters; each processor has its own of each.
#[derive(Debug)]
pub struct Counts {
    descriptor: RawFd,
    /// Number of possible processors: the kernel writes a value for each.
    processors: usize,
}

impl Counts {
    /// An array of 64-bit numbers, one for each processor.
    ///
    /// # Errors
    /// If the number of processors cannot be read (`/sys/devices/system/cpu/possible`).
    pub(super) fn new(descriptor: RawFd) -> io::Result<Self> {
        // SAFETY: takes nothing.
        let count = unsafe { sys::libbpf_num_possible_cpus() };
        Ok(Self { descriptor, processors: processors(count)? })
    }

    /// A counter, of all processors together.
    pub fn sum(&self, key: u32) -> u64 {
        let mut values = vec![0_u64; self.processors];
        // SAFETY: the kernel writes a value for each possible processor.
        let error = unsafe {
            let key = std::ptr::from_ref(&key).cast();
            sys::bpf_map_lookup_elem(self.descriptor, key, values.as_mut_ptr().cast())
        };
        if error == 0 { values.iter().sum() } else { 0 }
    }

    /// Sets a counter to zero, of all processors.
    pub fn clear(&self, key: u32) {
        let values = vec![0_u64; self.processors];
        // SAFETY: the kernel reads a value for each possible processor.
        unsafe {
            let (key, values) = (std::ptr::from_ref(&key).cast(), values.as_ptr().cast());
            sys::bpf_map_update_elem(self.descriptor, key, values, sys::BPF_ANY.into());
        }
    }
}

/// A map whose keys are a set.
#[derive(Debug)]
pub struct KeySet<K> {
    map: Map<K, u8>,
    keys: BTreeSet<K>,
}

impl<K: Plain + Ord> KeySet<K> {
    /// The set of an empty map.
    pub fn new(map: Map<K, u8>) -> Self {
        Self { map, keys: BTreeSet::new() }
    }

    /// Makes the map hold exactly these keys; others that stay are not touched. After an error
    /// the next call goes on from what is there.
    ///
    /// # Errors
    /// As the kernel says: the map may be full.
    pub fn set(&mut self, wanted: BTreeSet<K>) -> io::Result<()> {
        let surplus: Vec<K> = self.keys.difference(&wanted).copied().collect();
        for key in surplus {
            self.map.remove(&key)?;
            self.keys.remove(&key);
        }
        for key in wanted {
            if !self.keys.contains(&key) {
                self.map.put(&key, &1)?;
                self.keys.insert(key);
            }
        }
        Ok(())
    }
}

/// A map of values.
#[derive(Debug)]
pub struct Entries<K, V> {
    map: Map<K, V>,
    values: BTreeMap<K, V>,
}

impl<K: Plain + Ord, V: Plain + PartialEq> Entries<K, V> {
    /// The entries of an empty map.
    pub fn new(map: Map<K, V>) -> Self {
        Self { map, values: BTreeMap::new() }
    }

    /// Makes the map hold exactly these. Puts first and removes afterwards, unlike [`KeySet`]: what is in two
    /// networks, before and after, is in one of them in between. After an error the next call goes on from what is
    /// there.
    ///
    /// # Errors
    /// As the kernel says: the map may be full.
    pub fn set(&mut self, wanted: &BTreeMap<K, V>) -> io::Result<()> {
        for (key, value) in wanted {
            if self.values.get(key) != Some(value) {
                self.map.put(key, value)?;
                self.values.insert(*key, *value);
            }
        }
        let surplus: Vec<_> =
            self.values.keys().filter(|it| !wanted.contains_key(it)).copied().collect();
        for key in surplus {
            self.map.remove(&key)?;
            self.values.remove(&key);
        }
        Ok(())
    }
}

/// The number that libbpf found, which is negative where it is an error.
fn processors(found: i32) -> io::Result<usize> {
    let named = |cause: io::Error| {
        let text = format!("the number of processors (/sys/devices/system/cpu/possible): {cause}");
        io::Error::new(cause.kind(), text)
    };
    match usize::try_from(found) {
        Ok(0) => Err(named(io::ErrorKind::InvalidData.into())),
        Ok(count) => Ok(count),
        Err(_) => Err(named(io::Error::from_raw_os_error(-found))),
    }
}

#[cfg(test)]
mod tests {
    use super::processors;

    #[test]
    fn an_unknown_number_of_processors_is_none() {
        assert_eq!(processors(64).unwrap(), 64);
        for (found, what) in [(-2, "No such file"), (-13, "denied"), (0, "invalid data")] {
            let error = processors(found).unwrap_err().to_string();
            assert!(error.contains(what) && error.contains("/sys/devices"), "{error}");
        }
    }
}
