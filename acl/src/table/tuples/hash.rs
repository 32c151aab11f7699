//! A hash table without collisions over keys that are known when it is made (Belazzougui,
//! Botelho and Dietzfelbinger, ESA 2009: compress, hash, displace).
//!
//! ```text
//! key -> bucket -> displacement \
//!     -> hash and step ----------+-> slot: one key and its value
//! ```
//!
//! Every lookup costs two loads, whatever its key, so no sender can choose keys that cost more.

#![allow(unsafe_code)]

use crate::table::lists::ListId;

/// Lists by pair of classes.
#[derive(Debug)]
pub(super) struct Cells {
    /// Their number is a power of two.
    cells: Box<[Cell]>,
    /// One for each bucket, whose number is a power of two, and one more.
    displacements: Box<[u16]>,
    /// Bits by which a hash is shifted right for its bucket.
    shift: u32,
}

#[derive(Clone, Copy, Debug)]
#[repr(C, align(16))]
struct Cell {
    key: u64,
    list: ListId,
}

/// No key: classes are below 2^31.
const FREE: u64 = u64::MAX;

/// Keys in a bucket on average, at most.
const BUCKET: usize = 4;

/// Bits without a pattern. The determinant of the first four is odd: no two keys hash alike.
const FACTORS: [u32; 5] = [0x9e37_79b1, 0x85eb_ca77, 0xc2b2_ae3e, 0x27d4_eb2f, 0x1656_67b1];

impl Cells {
    /// From distinct keys.
    pub(super) fn new(entries: &[(u64, ListId)]) -> Self {
        let mut slots = (entries.len() * 3 / 2).next_power_of_two().max(1);
        loop {
            match Self::with(entries, slots) {
                Some(cells) => return cells,
                None => slots *= 2,
            }
        }
    }

    fn with(entries: &[(u64, ListId)], slots: usize) -> Option<Self> {
        let buckets = entries.len().div_ceil(BUCKET).next_power_of_two().max(2);
        let shift = u32::BITS - buckets.trailing_zeros();
        let mut cells = Self {
            cells: vec![Cell { key: FREE, list: ListId::EMPTY }; slots].into(),
            displacements: vec![0; buckets + 1].into(),
            shift,
        };
        // Entries by bucket, the fullest buckets first.
        let mut ends = vec![0_u32; buckets + 1];
        let bucket_of = |hash: [u32; 2]| (hash[0] >> shift) as usize;
        entries.iter().for_each(|(key, _)| ends[bucket_of(hash(*key)) + 1] += 1);
        let largest = ends.iter().copied().max().unwrap_or(0);
        (1..=buckets).for_each(|bucket| ends[bucket] += ends[bucket - 1]);
        let mut at = ends.clone();
        let mut sorted = vec![(FREE, ListId::EMPTY); entries.len()];
        for (key, list) in entries {
            let place = &mut at[bucket_of(hash(*key))];
            sorted[*place as usize] = (*key, *list);
            *place += 1;
        }
        let mut by_size = vec![Vec::new(); largest as usize + 1];
        for bucket in 0..buckets {
            by_size[(ends[bucket + 1] - ends[bucket]) as usize].push(bucket);
        }
        // A bit for each slot, which stay in the cache where cells do not.
        let mut taken = vec![0_u64; slots.div_ceil(64)];
        let mut hashes = Vec::new();
        for bucket in by_size.into_iter().skip(1).rev().flatten() {
            let here = &sorted[ends[bucket] as usize..ends[bucket + 1] as usize];
            hashes.clear();
            hashes.extend(here.iter().map(|(key, _)| hash(*key)));
            let displacement = (0..=u16::MAX).find(|displacement| {
                let slot = |hash: [u32; 2]| cells.slot(hash, *displacement);
                hashes.iter().enumerate().all(|(at, hash)| {
                    let slot_of = slot(*hash);
                    taken[slot_of / 64] >> (slot_of % 64) & 1 == 0
                        && hashes[..at].iter().all(|other| slot(*other) != slot_of)
                })
            })?;
            cells.displacements[bucket] = displacement;
            for ((key, list), hash) in here.iter().zip(&hashes) {
                let slot = cells.slot(*hash, displacement);
                cells.cells[slot] = Cell { key: *key, list: *list };
                taken[slot / 64] |= 1 << (slot % 64);
            }
        }
        Some(cells)
    }

    #[inline(always)]
    fn slot(&self, [first, second]: [u32; 2], displacement: u16) -> usize {
        let slot = second.wrapping_add(u32::from(displacement).wrapping_mul(first | 1));
        slot as usize & (self.cells.len() - 1)
    }

    #[inline(always)]
    fn cell(&self, place: u32) -> &Cell {
        let slot = place as usize & (self.cells.len() - 1);
        // SAFETY: there is a cell at least, and a power of two of them, so that what the mask
        // leaves is below their number.
        unsafe { self.cells.get_unchecked(slot) }
    }

    /// Where the list of a pair of classes would be.
    #[inline(always)]
    pub(super) fn place(&self, key: u64) -> u32 {
        let hash = hash(key);
        // SAFETY: buckets are 2^(32 - shift) by construction, so that many bits are left.
        let displacement =
            unsafe { *self.displacements.get_unchecked((hash[0] >> self.shift) as usize) };
        self.slot(hash, displacement) as u32
    }

    /// Asks for the memory at a place.
    #[inline(always)]
    pub(super) fn prefetch(&self, place: u32) {
        crate::simd::prefetch(self.cell(place));
    }

    /// The list at a place if it is that of `key`, else the empty one.
    #[inline(always)]
    pub(super) fn list(&self, place: u32, key: u64) -> ListId {
        let cell = self.cell(place);
        // Whether it is there cannot be guessed.
        let mask = u32::from(cell.key == key).wrapping_neg();
        cell.list.masked(mask)
    }

    /// Visits all lists.
    pub(super) fn each_list(&mut self, mut visit: impl FnMut(&mut ListId)) {
        self.cells.iter_mut().for_each(|cell| visit(&mut cell.list));
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.cells) + size_of_val(&*self.displacements)
    }
}

/// Two numbers, together different for every key: every bit of the key counts in both.
#[inline(always)]
fn hash(key: u64) -> [u32; 2] {
    let (source, destination) = ((key >> 32) as u32, key as u32);
    let sum = |a: usize, b: usize| {
        source.wrapping_mul(FACTORS[a]).wrapping_add(destination.wrapping_mul(FACTORS[b]))
    };
    let first = sum(0, 1);
    let first = (first ^ first >> 15).wrapping_mul(FACTORS[4]);
    [first, sum(2, 3) ^ first >> 9]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_it_was_made_of() {
        for count in [0_u32, 1, 2, 3, 100, 5000] {
            let key = |n: u32| u64::from(n / 50 + 1) << 32 | u64::from(n % 50 + 1);
            let list = |n| ListId { cells: n + 1, rules: n + 2 };
            let entries: Vec<(u64, ListId)> = (0..count).map(|n| (key(n), list(n))).collect();
            let cells = Cells::new(&entries);
            for n in 0..count {
                assert_eq!(cells.list(cells.place(key(n)), key(n)), list(n));
            }
            for n in count..count + 100 {
                assert_eq!(cells.list(cells.place(key(n)), key(n)), ListId::EMPTY);
            }
        }
    }
}
