//! Finds records by hash: buckets of one cache line, of which a session may be in several.
//!
//! | bytes of a bucket | hold |
//! |---|---|
//! | 0–15 | eight tags, 16 bits of a hash each; 0 where the slot is free or just being filled |
//! | 16–47 | eight numbers of records, plus one; 0 where the slot is free |
//! | 48–55 | whether it was once too full for a session of its own |
//! | 56–63 | whether a session of its own is just being created |
//!
//! A slot only names candidates; the record itself is verified. So a stale tag is harmless.

use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::region::{Array, Cells};
use crate::cpu;

/// Slots of a bucket.
const SLOTS: usize = 8;
/// Some record beyond the first bucket may have the hash: one less than the number in a free slot.
pub(super) const ELSEWHERE: u32 = 0_u32.wrapping_sub(1);
/// No record has it.
pub(super) const NOTHING: u32 = ELSEWHERE - 1;
/// Buckets a session may be in. Half-full buckets of eight overflow rarely, eight in a row never.
const PROBES: usize = 8;

#[repr(align(64))]
struct Bucket {
    /// The tag of slot `4 * word + lane`.
    tags: [AtomicU64; 2],
    records: [AtomicU32; SLOTS],
    overflowed: AtomicU64,
    locked: AtomicU64,
}

// SAFETY: atomic integers only, 64 bytes of them.
#[allow(unsafe_code, reason = "stands in mapped memory")]
unsafe impl Cells for Bucket {}

pub(super) struct Index {
    buckets: Array<Bucket>,
}

impl Index {
    pub(super) fn new(capacity: usize) -> io::Result<Self> {
        let buckets = (2 * capacity / SLOTS).next_power_of_two().max(PROBES);
        Ok(Self { buckets: Array::zeroed(buckets)?.populate() })
    }

    /// Prefetches the first bucket of this hash.
    #[inline(always)]
    pub(super) fn prefetch(&self, hash: u64) {
        let first = hash as usize & (self.buckets.len() - 1);
        cpu::prefetch(self.buckets.as_ptr().wrapping_add(first));
    }

    /// The same for a session that is to be entered there.
    #[inline]
    pub(super) fn prefetch_to_insert(&self, hash: u64) {
        cpu::prefetch_to_write(self.first_bucket(hash));
    }

    /// The most likely record of this hash; [`NOTHING`] if there is none, and [`ELSEWHERE`] if the
    /// first bucket does not decide that.
    #[inline]
    pub(super) fn candidate(&self, hash: u64) -> u32 {
        let bucket = self.first_bucket(hash);
        match bucket.matches(tag(hash)) {
            0 if bucket.has_overflowed() => ELSEWHERE,
            0 => NOTHING,
            // While another worker is filling or clearing the slot a further one may match.
            matches => bucket.record(matches).wrapping_sub(1),
        }
    }

    /// The candidate records of this hash.
    #[inline]
    pub(super) fn records(&self, hash: u64) -> impl Iterator<Item = u32> {
        let tag = tag(hash);
        let buckets = self.buckets_in_use(hash).map(|bucket| &self.buckets[bucket]);
        buckets.flat_map(move |bucket| {
            let mut left = bucket.matches(tag);
            std::iter::from_fn(move || {
                (left != 0).then(|| {
                    let record = bucket.record(left);
                    left &= left - 1;
                    record.wrapping_sub(1)
                })
            })
        })
    }

    /// Locks out creators of sessions with either of these hashes. (The bucket is in the cache: it
    /// was looked up, and it is written next. A lock elsewhere would not be.)
    #[inline]
    pub(super) fn lock(&self, one: u64, other: u64) -> (Lock<'_>, Option<Lock<'_>>) {
        if one == other {
            return (self.first_bucket(one).lock(), None);
        }
        let [one, other] = [one, other].map(|hash| self.first_bucket(hash));
        // Always in the same order, so that two creators never wait for each other.
        let (first, second) =
            if std::ptr::from_ref(one) <= other { (one, other) } else { (other, one) };
        let guard = first.lock();
        (guard, (!std::ptr::eq(first, second)).then(|| second.lock()))
    }

    /// Enters a record under this hash; returns `false` if its buckets are full.
    pub(super) fn insert(&self, hash: u64, record: u32) -> bool {
        self.probes(hash).any(|bucket| {
            let bucket = &self.buckets[bucket];
            let take = |slot: &AtomicU32| {
                // An exchange is dear, also one that fails.
                slot.load(Ordering::Relaxed) == 0
                    && slot
                        .compare_exchange(0, record + 1, Ordering::AcqRel, Ordering::Relaxed)
                        .is_ok()
            };
            let slot = bucket.records.iter().position(take);
            match slot {
                Some(slot) => {
                    let (word, shift) = place(slot);
                    bucket.tags[word].fetch_or(tag(hash) << shift, Ordering::AcqRel);
                }
                // Lookups must visit the next bucket before a session is entered there.
                None => bucket.overflowed.store(1, Ordering::Release),
            }
            slot.is_some()
        })
    }

    /// Undoes [`Self::insert`].
    pub(super) fn remove(&self, hash: u64, record: u32) {
        for bucket in self.buckets_in_use(hash).map(|bucket| &self.buckets[bucket]) {
            let is_it = |slot: &AtomicU32| slot.load(Ordering::Acquire) == record + 1;
            let mut slots = bucket.records.iter().enumerate().filter(|(_, slot)| is_it(slot));
            // A session with two hashes may be in one bucket twice.
            let found = slots.find(|(slot, _)| {
                let (word, shift) = place(*slot);
                bucket.tags[word].load(Ordering::Acquire) >> shift & LANE == tag(hash)
            });
            if let Some((slot, number)) = found {
                let (word, shift) = place(slot);
                bucket.tags[word].fetch_and(!(LANE << shift), Ordering::AcqRel);
                number.store(0, Ordering::Release);
                return;
            }
        }
    }

    /// Slots in use.
    #[cfg(test)]
    pub(super) fn in_use(&self) -> usize {
        let slots = self.buckets.iter().flat_map(|bucket| &bucket.records);
        slots.filter(|slot| slot.load(Ordering::Relaxed) != 0).count()
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
            goes_on = this_one && self.buckets[*bucket].has_overflowed();
            this_one
        })
    }

    #[inline]
    fn first_bucket(&self, hash: u64) -> &Bucket {
        &self.buckets[hash as usize & (self.buckets.len() - 1)]
    }
}

impl Bucket {
    /// The slots that have this tag, as bits; see [`Self::record`]. The lowest is one for certain,
    /// others may not be.
    #[inline]
    fn matches(&self, tag: u64) -> u64 {
        let word = |n: usize| self.tags[n].load(Ordering::Acquire);
        cpu::equal_lanes([word(0), word(1)], tag as u16)
    }

    /// The number that stands in the first of the slots.
    #[inline]
    fn record(&self, matches: u64) -> u32 {
        let slot = cpu::first_lane(matches);
        self.records[slot % SLOTS].load(Ordering::Acquire)
    }

    #[inline]
    fn has_overflowed(&self) -> bool {
        self.overflowed.load(Ordering::Acquire) != 0
    }

    #[inline]
    fn lock(&self) -> Lock<'_> {
        let mut attempts = 0_u32;
        while self.locked.swap(1, Ordering::Acquire) != 0 {
            // Held for as long as one session takes, unless the holder was interrupted.
            attempts += 1;
            if attempts.is_multiple_of(64) {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
        Lock(self)
    }
}

/// No other thread creates a session of this bucket while this exists.
pub(super) struct Lock<'a>(&'a Bucket);

impl Drop for Lock<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.locked.store(0, Ordering::Release);
    }
}

/// One lane of 16 bits.
const LANE: u64 = 0xffff;

/// The place of a slot's tag: the word, and bits to shift by.
fn place(slot: usize) -> (usize, usize) {
    (slot / 4, slot % 4 * 16)
}

/// Never 0, so that no hash matches an empty slot.
#[inline]
fn tag(hash: u64) -> u64 {
    hash >> 48 | 1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A session that is being ended has cleared its slot; the reader saw its tag just before. Another
    /// session of the same tag may be in the next slot.
    #[test]
    fn a_slot_that_is_being_emptied_hides_no_other() {
        let index = Index::new(64).unwrap();
        let hash = 0x1234_0000_0000_0003;
        assert!(index.insert(hash, 1) && index.insert(hash, 2));
        assert_eq!(index.candidate(hash), 1);
        index.first_bucket(hash).records[0].store(0, Ordering::Relaxed);
        assert_eq!(index.candidate(hash), ELSEWHERE);
        assert_eq!(index.records(hash).filter(|record| *record == 2).count(), 1);
    }
}
