//! Exact match on single IPv4 addresses: a hash of cache lines.
//!
//! A bucket is one cache line of eight addresses and their numbers, filled from the front.
//! All eight are compared at once, without a branch; a full bucket spills into the next.

use crate::paged::Grouped;

/// IPv4 addresses (host byte order) and the number of each, 0 for those not held.
#[derive(Clone, Debug)]
pub(crate) struct Hosts {
    buckets: Grouped<Bucket, 128>,
    /// Number of buckets less one; their number is a power of two.
    mask: usize,
    /// Odd multiplier of the hash, drawn at random against crafted addresses.
    multiplier: u64,
    entries: usize,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Bucket {
    keys: [u32; SLOTS],
    /// 0 where the slot is free; slots are taken from the front.
    values: [u32; SLOTS],
}

const SLOTS: usize = 8;

/// Average entries in a bucket beyond which the table doubles.
const LOAD: usize = 5;

impl Hosts {
    pub(crate) fn new() -> Self {
        Self::with_buckets(1, crate::seed() | 1)
    }

    fn with_buckets(buckets: usize, multiplier: u64) -> Self {
        let buckets = buckets.next_power_of_two();
        Self {
            buckets: Grouped::filled(buckets, &Bucket::default()),
            mask: buckets - 1,
            multiplier,
            entries: 0,
        }
    }

    #[inline]
    fn home(&self, key: u32) -> usize {
        (u64::from(key).wrapping_mul(self.multiplier) >> 32) as usize & self.mask
    }

    /// The number of `key`, or 0.
    #[inline]
    pub(crate) fn lookup(&self, key: u32) -> u32 {
        let mut at = self.home(key);
        loop {
            let bucket = self.buckets.get(at);
            let value = bucket.find(key);
            // Only a full bucket can have spilled.
            if value != 0 || bucket.values[SLOTS - 1] == 0 {
                return value;
            }
            at = (at + 1) & self.mask;
        }
    }

    /// Sets the number of `key`, which is not 0.
    pub(crate) fn insert(&mut self, key: u32, value: u32) {
        if self.entries >= LOAD * (self.mask + 1) {
            self.double();
        }
        let mut at = self.home(key);
        loop {
            let bucket = self.buckets.get(at);
            if let Some(slot) = bucket.slot_for(key) {
                let fresh = bucket.values[slot] == 0;
                let bucket = self.buckets.get_mut(at);
                bucket.keys[slot] = key;
                bucket.values[slot] = value;
                self.entries += usize::from(fresh);
                return;
            }
            at = (at + 1) & self.mask;
        }
    }

    /// Forgets `key`.
    pub(crate) fn remove(&mut self, key: u32) {
        let mut at = self.home(key);
        loop {
            let bucket = *self.buckets.get(at);
            let Some(slot) = bucket.slot_for(key) else {
                at = (at + 1) & self.mask;
                continue;
            };
            if bucket.values[slot] == 0 {
                return;
            }
            // Whatever had spilled from a full bucket is put in again.
            let mut again = Vec::new();
            self.buckets.get_mut(at).take(slot);
            self.entries -= 1;
            let mut full = bucket.values[SLOTS - 1] != 0;
            let mut next = at;
            while full {
                next = (next + 1) & self.mask;
                if next == at {
                    break;
                }
                let bucket = std::mem::take(self.buckets.get_mut(next));
                full = bucket.values[SLOTS - 1] != 0;
                again.extend(bucket.entries());
            }
            self.entries -= again.len();
            for (key, value) in again {
                self.insert(key, value);
            }
            return;
        }
    }

    fn double(&mut self) {
        let mut larger = Self::with_buckets(2 * (self.mask + 1), self.multiplier);
        for at in 0..=self.mask {
            for (key, value) in self.buckets.get(at).entries() {
                larger.insert(key, value);
            }
        }
        *self = larger;
    }

    pub(crate) fn bytes(&self) -> usize {
        self.buckets.bytes()
    }
}

impl Bucket {
    /// The number of `key`, or 0. Free slots have 0 whatever their key.
    #[inline]
    fn find(&self, key: u32) -> u32 {
        let mut found = 0;
        for slot in 0..SLOTS {
            found |= if self.keys[slot] == key { self.values[slot] } else { 0 };
        }
        found
    }

    /// Where `key` is or would go; `None` if it is not here and the bucket is full.
    fn slot_for(&self, key: u32) -> Option<usize> {
        (0..SLOTS).find(|slot| self.values[*slot] == 0 || self.keys[*slot] == key)
    }

    /// Frees `slot`, keeping the taken ones in front.
    fn take(&mut self, slot: usize) {
        let last = (0..SLOTS).rfind(|slot| self.values[*slot] != 0).unwrap_or(slot);
        self.keys[slot] = self.keys[last];
        self.values[slot] = self.values[last];
        // A free slot's key may stay: its value tells.
        self.values[last] = 0;
    }

    fn entries(&self) -> impl Iterator<Item = (u32, u32)> + use<> {
        let Self { keys, values } = *self;
        keys.into_iter().zip(values).filter(|(_, value)| *value != 0)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn is_a_map(steps in vec((0_u32..400, 0_u32..4), 0..1500)) {
            let mut hosts = Hosts::new();
            let mut model = HashMap::new();
            for (key, value) in steps {
                if value == 0 {
                    hosts.remove(key);
                    model.remove(&key);
                } else {
                    hosts.insert(key, value);
                    model.insert(key, value);
                }
            }
            prop_assert_eq!(hosts.entries, model.len());
            for key in 0..400 {
                prop_assert_eq!(hosts.lookup(key), model.get(&key).copied().unwrap_or(0));
            }
        }
    }
}
