//! Exact match on 32-bit keys, such as single IPv4 addresses: a hash of cache lines.
//!
//! A bucket is one cache line of eight keys and their numbers, filled from the front.
//! All eight are compared at once, without a branch; a full bucket spills into the next and
//! says so. Whether a bucket has spilled is the only thing that a lookup branches on: it is
//! rare, whereas whether a key is found cannot be guessed.

use crate::paged::Grouped;

/// Keys and the number of each, 0 for those not held.
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
    /// 0 where the slot is free; slots are taken from the front. The last one also has
    /// [`SPILLED`].
    values: [u32; SLOTS],
}

const SLOTS: usize = 8;

/// The golden ratio's fraction: bits without a pattern.
const FRACTION: u64 = 0x9e37_79b9_7f4a_7c15;

/// Set in a full bucket's last value when entries that belong here went further on.
const SPILLED: u32 = 1 << 31;

/// Average entries in a bucket beyond which a table of so many buckets doubles. Spilling costs
/// small tables, which the cache holds, more than room does.
const fn load(buckets: usize) -> usize {
    if buckets < 4096 { 3 } else { 4 }
}

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

    #[inline(always)]
    fn home(&self, key: u32) -> usize {
        // Addresses come in runs, and one multiplication keeps runs together.
        let mixed = u64::from(key).wrapping_mul(self.multiplier);
        let mixed = (mixed ^ mixed >> 32).wrapping_mul(FRACTION);
        (mixed >> 32) as usize & self.mask
    }

    /// The number of `key`, or 0.
    #[inline(always)]
    pub(crate) fn lookup(&self, key: u32) -> u32 {
        let mut at = self.home(key);
        loop {
            let bucket = self.buckets.get(at);
            let value = bucket.find(key);
            if !bucket.has_spilled() || value != 0 {
                return value;
            }
            at = (at + 1) & self.mask;
        }
    }

    /// Sets the number of `key`, which is not 0 and below 2^31.
    pub(crate) fn insert(&mut self, key: u32, value: u32) {
        if self.entries >= load(self.mask + 1) * (self.mask + 1) {
            self.double();
        }
        let mut at = self.home(key);
        loop {
            let bucket = self.buckets.get(at);
            if let Some(slot) = bucket.slot_for(key) {
                let fresh = bucket.values[slot] == 0;
                let bucket = self.buckets.get_mut(at);
                bucket.keys[slot] = key;
                bucket.values[slot] = value | bucket.values[slot] & SPILLED;
                self.entries += usize::from(fresh);
                return;
            }
            if !bucket.has_spilled() {
                self.buckets.get_mut(at).values[SLOTS - 1] |= SPILLED;
            }
            at = (at + 1) & self.mask;
        }
    }

    /// Forgets `key`.
    pub(crate) fn remove(&mut self, key: u32) {
        let mut at = self.home(key);
        loop {
            let bucket = self.buckets.get(at);
            match bucket.slot_for(key) {
                Some(slot) if bucket.values[slot] == 0 => return,
                Some(slot) => {
                    let spilled = bucket.has_spilled();
                    self.buckets.get_mut(at).take(slot);
                    self.entries -= 1;
                    if spilled {
                        self.settle(at);
                    }
                    return;
                }
                None if !bucket.has_spilled() => return,
                None => at = (at + 1) & self.mask,
            }
        }
    }

    /// Puts in again whatever may have spilled past a bucket.
    fn settle(&mut self, from: usize) {
        let mut again = Vec::new();
        let mut at = from;
        loop {
            at = (at + 1) & self.mask;
            if at == from {
                break;
            }
            let bucket = std::mem::take(self.buckets.get_mut(at));
            again.extend(bucket.entries());
            if !bucket.has_spilled() {
                break;
            }
        }
        self.entries -= again.len();
        for (key, value) in again {
            self.insert(key, value);
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
    #[inline(always)]
    fn find(&self, key: u32) -> u32 {
        let mut found = 0;
        for slot in 0..SLOTS {
            // A mask, not a choice: the compiler compares all slots in one go.
            found |= self.values[slot] & u32::from(self.keys[slot] == key).wrapping_neg();
        }
        found & !SPILLED
    }

    #[inline(always)]
    fn has_spilled(&self) -> bool {
        self.values[SLOTS - 1] & SPILLED != 0
    }

    /// Where `key` is or would go; `None` if it is not here and the bucket is full.
    fn slot_for(&self, key: u32) -> Option<usize> {
        (0..SLOTS).find(|slot| self.values[*slot] == 0 || self.keys[*slot] == key)
    }

    /// Frees `slot`, keeping the taken ones in front; forgets that the bucket has spilled.
    fn take(&mut self, slot: usize) {
        self.values[SLOTS - 1] &= !SPILLED;
        let last = (0..SLOTS).rfind(|slot| self.values[*slot] != 0).unwrap_or(slot);
        self.keys[slot] = self.keys[last];
        self.values[slot] = self.values[last];
        // A free slot's key may stay: its value tells.
        self.values[last] = 0;
    }

    fn entries(&self) -> impl Iterator<Item = (u32, u32)> + use<> {
        let Self { keys, mut values } = *self;
        values[SLOTS - 1] &= !SPILLED;
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
