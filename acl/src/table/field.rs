//! One field of the rules, source or destination: what is known of each identity.
//!
//! An identity has a record: the list of rules over this end alone, with those of all sets that it is in, and where there
//! are tuples, which of them have a rule for it and its class in each.
//!
//! ```text
//! record:  list (2 words)
//!          list (2 words) | mask of tuples | class in tuple 0 | class in tuple 1 ...
//! ```

#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_mm512_cmplt_epu32_mask, _mm512_maskz_mullo_epi32};
#[cfg(target_arch = "x86_64")]
use std::mem::offset_of;

use super::ends::Ends;
use super::lists::ListId;
use crate::Key;
#[cfg(target_arch = "x86_64")]
use crate::simd::lanes::{Lanes, of_keys, pairs, plus, splat, words};

/// The records of one field.
#[derive(Debug)]
pub(super) struct Field {
    /// By identity.
    records: Vec<u32>,
    /// Words of a record.
    stride: u32,
    /// Identities with a record. Others are in no set that counts, as identity 0.
    identities: u32,
    /// Whether any identity has a list.
    pub(super) has_lists: bool,
}

/// Word of a record that holds the mask of tuples.
const MASK: u32 = 2;
/// Word of the class in the first tuple.
const CLASSES: u32 = 3;

impl Field {
    /// Empty records for the identities of these ends, with so many tuples if there may be any.
    pub(super) fn new(ends: &Ends, tuples: Option<usize>) -> Self {
        let stride = tuples.map_or(MASK, |tuples| CLASSES + tuples as u32);
        let records = vec![0; stride as usize * ends.identities()];
        Self { records, stride, identities: ends.identities() as u32, has_lists: false }
    }

    /// Whether identities differ.
    pub(super) fn asks_identities(&self) -> bool {
        self.identities > 1
    }

    /// Where the record of a key is, by its source (field 0) or its destination.
    #[inline(always)]
    pub(super) fn record(&self, at: usize, key: &Key) -> u32 {
        let identity = if at == 0 { key.source_identity } else { key.destination_identity };
        self.stride * if identity.0 < self.identities { identity.0 } else { 0 }
    }

    /// Notes the list of each identity.
    pub(super) fn set_lists(&mut self, lists: impl Iterator<Item = ListId>) {
        for (record, list) in self.records.chunks_mut(self.stride as usize).zip(lists) {
            // Records are empty.
            if list == ListId::EMPTY {
                continue;
            }
            (record[0], record[1]) = (list.rules, list.cells);
            self.has_lists = true;
        }
    }

    /// Notes the class of each identity in a tuple, 0 if it has none.
    pub(super) fn set_classes(&mut self, tuple: usize, classes: &[u32]) {
        for (record, class) in self.records.chunks_mut(self.stride as usize).zip(classes) {
            record[MASK as usize] |= u32::from(*class != 0) << tuple;
            record[CLASSES as usize + tuple] = *class;
        }
    }

    /// Visits the lists of all records but empty ones.
    pub(super) fn each_list(&mut self, mut visit: impl FnMut(&mut ListId)) {
        for record in self.records.chunks_mut(self.stride as usize) {
            let mut list = ListId { rules: record[0], cells: record[1] };
            if list == ListId::EMPTY {
                continue;
            }
            visit(&mut list);
            (record[0], record[1]) = (list.rules, list.cells);
        }
    }

    /// The list of a record.
    #[inline(always)]
    pub(super) fn list(&self, record: u32) -> ListId {
        ListId { rules: self.word(record), cells: self.word(record + 1) }
    }

    /// The tuples that have a rule for a record's identity.
    #[inline(always)]
    pub(super) fn mask(&self, record: u32) -> u32 {
        self.word(record + MASK)
    }

    /// The class of a record's identity in a tuple.
    #[inline(always)]
    pub(super) fn class(&self, record: u32, tuple: usize) -> u32 {
        debug_assert!((tuple as u32) < self.stride - CLASSES);
        self.word(record + CLASSES + tuple as u32)
    }

    #[inline(always)]
    fn word(&self, at: u32) -> u32 {
        debug_assert!((at as usize) < self.records.len());
        // SAFETY: a record is one whose place this field returned, for an identity that it has, and all words of these
        // are there.
        unsafe { *self.records.get_unchecked(at as usize) }
    }

    /// The lists of the first keys, each its rules and its cells; its cells alone if rows are
    /// [plain](super::lists::Rows::plain).
    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn lists_lanes<const N: usize>(
        &self,
        at: usize,
        keys: &[Key],
        plain: bool,
    ) -> [[Lanes; 2]; N] {
        let mut records = [splat(0); N];
        if self.identities > 1 {
            records = match at {
                0 => of_keys::<{ offset_of!(Key, source_identity) }, N>(keys),
                _ => of_keys::<{ offset_of!(Key, destination_identity) }, N>(keys),
            };
            let (known, stride) = (splat(self.identities), splat(self.stride));
            for record in &mut records {
                let is_known = _mm512_cmplt_epu32_mask(*record, known);
                *record = _mm512_maskz_mullo_epi32(is_known, *record, stride);
            }
        }
        let mut lists = [[splat(0); 2]; N];
        for (list, record) in lists.iter_mut().zip(records) {
            // SAFETY: as for `word`.
            unsafe {
                match plain {
                    true => list[1] = words(&self.records, plus(record, splat(1))),
                    false => *list = pairs(&self.records, record),
                }
            }
        }
        lists
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.records)
    }
}
