//! Finds records by hash: buckets of one cache line, of which a session may be in several.
//!
//! A slot holds the upper half of a hash and the number of a record, or 0. It only leads to
//! records worth looking at; what a record holds says whether it is the one.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use super::region::{Array, Cells};
use crate::cpu;

/// Slots of a bucket: one cache line.
const SLOTS: usize = 8;
/// No record has the hash.
pub(super) const NOTHING: u32 = u32::MAX;
/// Some record beyond the first bucket may have it.
pub(super) const ELSEWHERE: u32 = u32::MAX - 1;
/// Buckets a session may be in. Half-full buckets of eight overflow rarely, eight in a row never.
const PROBES: usize = 8;

#[repr(align(64))]
struct Bucket([AtomicU64; SLOTS]);

// SAFETY: atomic integers only, 64 bytes of them.
#[allow(unsafe_code, reason = "stands in mapped memory")]
unsafe impl Cells for Bucket {}

pub(super) struct Index {
    buckets: Array<Bucket>,
    /// A bit for each bucket that was once too full for a session of its own, so that most
    /// packets without a session look into one bucket only.
    overflowed: Array<AtomicU64>,
}

impl Index {
    pub(super) fn new(capacity: usize) -> io::Result<Self> {
        let buckets = (2 * capacity / SLOTS).next_power_of_two().max(PROBES);
        Ok(Self {
            buckets: Array::zeroed(buckets)?.populate(),
            overflowed: Array::zeroed(buckets.div_ceil(64))?,
        })
    }

    /// Asks for the cache line where the search for this hash begins.
    #[inline]
    pub(super) fn prefetch(&self, hash: u64) {
        cpu::prefetch(self.first_bucket(hash));
    }

    /// The record that this hash most likely leads to; [`NOTHING`] if it leads nowhere, and
    /// [`ELSEWHERE`] if that cannot be told from the first bucket.
    #[inline]
    pub(super) fn guess(&self, hash: u64) -> u32 {
        let tag = tag(hash);
        let mut found = 0;
        // Without a branch: which slot it is nobody could predict.
        for slot in &self.first_bucket(hash).0 {
            let value = slot.load(Ordering::Acquire);
            found = if value >> 32 == tag { value as u32 } else { found };
        }
        match found {
            0 if self.has_overflowed(hash as usize & (self.buckets.len() - 1)) => ELSEWHERE,
            0 => NOTHING,
            found => found - 1,
        }
    }

    /// The records that this hash leads to.
    #[inline]
    pub(super) fn records(&self, hash: u64) -> impl Iterator<Item = u32> {
        let tag = tag(hash);
        let buckets = self.buckets_in_use(hash).map(|bucket| &self.buckets[bucket].0);
        let values = buckets.flatten().map(|slot| slot.load(Ordering::Acquire));
        let values = values.filter(move |value| value >> 32 == tag);
        values.map(|value| (value as u32).wrapping_sub(1))
    }

    /// Has this hash lead to this record; `false` if there is no place.
    pub(super) fn insert(&self, hash: u64, record: u32) -> bool {
        let value = value(hash, record);
        self.probes(hash).any(|bucket| {
            let placed = self.buckets[bucket].0.iter().any(|slot| {
                slot.compare_exchange(0, value, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            });
            if !placed {
                // Before a session can be in the next one, it must be looked for there.
                self.overflowed[bucket / 64].fetch_or(1 << (bucket % 64), Ordering::AcqRel);
            }
            placed
        })
    }

    /// Undoes [`Self::insert`].
    pub(super) fn remove(&self, hash: u64, record: u32) {
        let value = value(hash, record);
        let mut slots = self.buckets_in_use(hash).flat_map(|bucket| &self.buckets[bucket].0);
        slots.any(|slot| {
            slot.compare_exchange(value, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        });
    }

    /// The buckets that a session of this hash may be put into, in order.
    #[inline]
    fn probes(&self, hash: u64) -> impl Iterator<Item = usize> {
        let mask = self.buckets.len() - 1;
        // Odd, so that no bucket comes twice.
        let step = (hash >> 32) as usize | 1;
        (0..PROBES).map(move |n| (hash as usize).wrapping_add(n * step) & mask)
    }

    /// The buckets that may hold one: each after the first only if the one before overflowed.
    #[inline]
    fn buckets_in_use(&self, hash: u64) -> impl Iterator<Item = usize> {
        let mut goes_on = true;
        self.probes(hash).take_while(move |bucket| {
            let this_one = goes_on;
            goes_on = this_one && self.has_overflowed(*bucket);
            this_one
        })
    }

    #[inline]
    fn has_overflowed(&self, bucket: usize) -> bool {
        self.overflowed[bucket / 64].load(Ordering::Acquire) >> (bucket % 64) & 1 == 1
    }

    #[inline]
    fn first_bucket(&self, hash: u64) -> &Bucket {
        &self.buckets[hash as usize & (self.buckets.len() - 1)]
    }
}

#[inline]
fn value(hash: u64, record: u32) -> u64 {
    tag(hash) << 32 | u64::from(record + 1)
}

/// Never 0, so that an empty slot matches nobody.
#[inline]
fn tag(hash: u64) -> u64 {
    (hash >> 32) | 1 << 31
}
