//! One field of the rules, source or destination: what is known of each element.
//!
//! An element has a record: the list of rules over one end that it matches, and for rules over both
//! ends its class in each layer of pairs, or the tuples that hold rules which fit it and its class in each of these. All of
//! it includes what the networks around an element, or the sets an identity is in, bring along, so
//! one search by address or one identity is sufficient.
//!
//! ```text
//! record:  list (2 words)
//!          list (2 words) | class in layer 0 | class in layer 1 ...
//!          list (2 words) | mask of tuples | class in tuple 0 | class in tuple 1 ...
//! ```

#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_mm512_cmplt_epu32_mask, _mm512_maskz_mullo_epi32};
#[cfg(target_arch = "x86_64")]
use std::mem::offset_of;

use super::ends::{Ends, Kind};
use super::lists::ListId;
use super::ranges::Ranges;
use crate::Address;
#[cfg(target_arch = "x86_64")]
use crate::Key;
#[cfg(target_arch = "x86_64")]
use crate::addresses::Addresses;
#[cfg(target_arch = "x86_64")]
use crate::simd::lanes::{LANES, Lanes, load, of_keys, pairs, plus, splat, words};

/// The records of one field.
#[derive(Debug)]
pub(super) struct Field {
    /// Where the record of an address is; `None` if no rule names a network.
    pub(super) nets: Option<Ranges>,
    /// By range of addresses, then by identity; by network until [finished](Self::finish).
    records: Vec<u32>,
    /// Words of a record.
    stride: u32,
    /// Until finished: the element of each range.
    of_ranges: Vec<u32>,
    /// Where the records of identities begin.
    identities_at: u32,
    /// Identities covered; larger ones are in no set that counts. 0 if no rule names a set.
    pub(super) identities: u32,
    /// The record of rules that name no end.
    pub(super) any: u32,
    /// Whether elements of each [kind](Kind) have lists, and classes of rules over both ends.
    pub(super) has_lists: [bool; 3],
    pub(super) has_classes: [bool; 3],
}

/// Parts of a record that serve rules over both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Both {
    /// Nothing: there are none.
    Nothing,
    /// A class in each of so many layers.
    Layers(usize),
    /// A mask of tuples and a class in each of so many.
    Tuples(usize),
}

/// Word of a record that holds the class in the first layer, or the mask of tuples.
const CLASS: u32 = 2;
const MASK: u32 = 2;
/// Word of the class in the first tuple.
const CLASSES: u32 = 3;

impl Field {
    /// Empty records for the elements of these ends.
    pub(super) fn new(ends: &Ends, both: Both) -> Self {
        let stride = match both {
            Both::Nothing => CLASS,
            Both::Layers(layers) => CLASS + layers as u32,
            Both::Tuples(tuples) => CLASSES + tuples as u32,
        };
        let [of_nets, of_identities] =
            [Kind::Net, Kind::Set].map(|kind| ends.elements(kind) as u32);
        let any = stride * (of_nets + of_identities);
        let (nets, of_ranges) = ends.ranges(stride).unzip();
        Self {
            nets,
            records: vec![0; (any + stride) as usize],
            stride,
            of_ranges: of_ranges.unwrap_or_default(),
            identities_at: stride * of_nets,
            identities: of_identities,
            any,
            has_lists: [false; 3],
            has_classes: [false; 3],
        }
    }

    /// Copies the record of each network to its ranges, so that a search by address ends at the record.
    pub(super) fn finish(&mut self) {
        if self.nets.is_none() {
            return;
        }
        let stride = self.stride as usize;
        let behind = self.records.split_off(self.identities_at as usize);
        let of_nets = std::mem::take(&mut self.records);
        let of_ranges = std::mem::take(&mut self.of_ranges);
        self.records.reserve_exact(of_ranges.len() * stride + behind.len());
        for element in of_ranges {
            self.records.extend_from_slice(&of_nets[element as usize * stride..][..stride]);
        }
        let moved = self.records.len() as u32;
        self.any = self.any - self.identities_at + moved;
        self.identities_at = moved;
        self.records.extend(behind);
    }

    /// The only kind by which rules name this field; `None` if there are two.
    pub(super) fn kind(&self) -> Option<Kind> {
        match (self.nets.is_some(), self.identities > 0) {
            (true, true) => None,
            (true, false) => Some(Kind::Net),
            (false, true) => Some(Kind::Set),
            (false, false) => Some(Kind::Any),
        }
    }

    /// Where the record of an address is.
    #[inline]
    pub(super) fn of_address(&self, address: Address) -> u32 {
        self.nets.as_ref().map_or(0, |nets| nets.find(address))
    }

    /// Where the record of an element is.
    fn record(&self, kind: Kind, element: u32) -> u32 {
        match kind {
            Kind::Net => self.stride * element,
            Kind::Set => self.identities_at + self.stride * element,
            Kind::Any => self.any,
        }
    }

    /// Where the record of an identity is.
    #[inline(always)]
    pub(super) fn of_identity(&self, identity: u32) -> u32 {
        // Identity 0 is in no set.
        let identity = if identity < self.identities { identity } else { 0 };
        self.identities_at + self.stride * identity
    }

    pub(super) fn set_list(&mut self, kind: Kind, element: u32, list: ListId) {
        let at = self.record(kind, element) as usize;
        (self.records[at], self.records[at + 1]) = (list.rules, list.cells);
        self.has_lists[kind as usize] |= list != ListId::EMPTY;
    }

    /// Notes the class of an element in a layer.
    pub(super) fn set_class(&mut self, kind: Kind, element: u32, layer: usize, class: u32) {
        let at = self.record(kind, element) as usize;
        self.records[at + CLASS as usize + layer] = class;
        self.has_classes[kind as usize] = true;
    }

    /// Notes the class of an element in a tuple.
    pub(super) fn set_class_in(&mut self, kind: Kind, element: u32, tuple: usize, class: u32) {
        let at = self.record(kind, element) as usize;
        self.records[at + MASK as usize] |= u32::from(class != 0) << tuple;
        self.records[at + CLASSES as usize + tuple] = class;
        self.has_classes[kind as usize] |= class != 0;
    }

    /// Notes a class of all elements in a tuple.
    pub(super) fn set_class_of_all_in(&mut self, ends: &Ends, tuple: usize, class: u32) {
        let of_nets = if self.nets.is_some() { ends.elements(Kind::Net) } else { 0 };
        for (kind, elements) in [(Kind::Net, of_nets), (Kind::Set, self.identities as usize)] {
            for element in 0..elements as u32 {
                self.set_class_in(kind, element, tuple, class);
            }
        }
    }

    /// Visits the lists of all records.
    pub(super) fn each_list(&mut self, mut visit: impl FnMut(&mut ListId)) {
        for record in self.records.chunks_mut(self.stride as usize) {
            let mut list = ListId { rules: record[0], cells: record[1] };
            visit(&mut list);
            (record[0], record[1]) = (list.rules, list.cells);
        }
    }

    #[inline(always)]
    pub(super) fn list(&self, record: u32) -> ListId {
        ListId { rules: self.word(record), cells: self.word(record + 1) }
    }

    /// Where the records of many keys are, if rules name this field by networks.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    pub(super) fn find_nets(&self, at: usize, keys: &[Key], records: &mut [u32]) {
        if let Some(nets) = &self.nets {
            nets.find_each(Addresses::of_end(keys, at), records);
        }
    }

    /// The records of the first keys, those of the only kind by which rules name this field; of networks
    /// they are `found`.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn records_lanes<const N: usize>(
        &self,
        at: usize,
        keys: &[Key],
        found: &[[u32; LANES]],
    ) -> [Lanes; N] {
        let mut records = [splat(self.any); N];
        if self.nets.is_some() {
            for (record, found) in records.iter_mut().zip(found) {
                *record = load(found);
            }
        } else if self.identities > 0 {
            records = match at {
                0 => of_keys::<{ offset_of!(Key, source_identity) }, N>(keys),
                _ => of_keys::<{ offset_of!(Key, destination_identity) }, N>(keys),
            };
            let (known, stride) = (splat(self.identities), splat(self.stride));
            for record in &mut records {
                // Identity 0 is in no set.
                let is_known = _mm512_cmplt_epu32_mask(*record, known);
                let offset = _mm512_maskz_mullo_epi32(is_known, *record, stride);
                *record = plus(splat(self.identities_at), offset);
            }
        }
        records
    }

    /// The lists of records, each its rules and its cells, and their classes in the first layer of pairs if there
    /// is one. Lists come without rules if rows are [plain](Rows::plain): cells and class are loaded together.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn known_lanes<const N: usize>(
        &self,
        records: &[Lanes; N],
        plain: bool,
        layers: bool,
    ) -> ([[Lanes; 2]; N], [Lanes; N]) {
        let (mut lists, mut classes) = ([[splat(0); 2]; N], [splat(0); N]);
        let has_lists = self.has_lists.contains(&true);
        if has_lists && plain && layers {
            for at in 0..N {
                // SAFETY: as for `word`: the class stands behind the list.
                let [cells, class] = unsafe { pairs(&self.records, plus(records[at], splat(1))) };
                (lists[at][1], classes[at]) = (cells, class);
            }
            return (lists, classes);
        }
        if has_lists && plain {
            for at in 0..N {
                lists[at][1] = self.word_lanes(records[at], 1);
            }
        } else if has_lists {
            // SAFETY: as for `word`.
            lists = records.map(|record| unsafe { pairs(&self.records, record) });
        }
        if layers {
            for at in 0..N {
                classes[at] = self.class_lanes(records[at], 0);
            }
        }
        (lists, classes)
    }

    /// [`class`](Self::class) of sixteen records.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn class_lanes(&self, records: Lanes, layer: usize) -> Lanes {
        debug_assert!((layer as u32) < self.stride - CLASS);
        self.word_lanes(records, CLASS + layer as u32)
    }

    /// [`mask`](Self::mask) of sixteen records.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn mask_lanes(&self, records: Lanes) -> Lanes {
        self.word_lanes(records, MASK)
    }

    /// [`class_in`](Self::class_in) of sixteen records.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn class_in_lanes(&self, records: Lanes, tuple: usize) -> Lanes {
        debug_assert!((tuple as u32) < self.stride - CLASSES);
        self.word_lanes(records, CLASSES + tuple as u32)
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn word_lanes(&self, records: Lanes, word: u32) -> Lanes {
        // SAFETY: as for `word`.
        unsafe { words(&self.records, plus(records, splat(word))) }
    }

    #[inline(always)]
    fn word(&self, at: u32) -> u32 {
        debug_assert!((at as usize) < self.records.len());
        // SAFETY: a record is one whose place this field returned, for a network that it knows or
        // an identity that it covers, and all words of these are there.
        unsafe { *self.records.get_unchecked(at as usize) }
    }

    /// The tuples that have a rule for an element.
    #[inline(always)]
    pub(super) fn mask(&self, record: u32) -> u32 {
        self.word(record + MASK)
    }

    /// The class of an element in a layer.
    #[inline(always)]
    pub(super) fn class(&self, record: u32, layer: usize) -> u32 {
        debug_assert!((layer as u32) < self.stride - CLASS);
        self.word(record + CLASS + layer as u32)
    }

    /// The class of an element in a tuple.
    #[inline(always)]
    pub(super) fn class_in(&self, record: u32, tuple: usize) -> u32 {
        debug_assert!((tuple as u32) < self.stride - CLASSES);
        self.word(record + CLASSES + tuple as u32)
    }

    pub(super) fn bytes(&self) -> usize {
        self.nets.as_ref().map_or(0, Ranges::bytes) + size_of_val(&*self.records)
    }
}
