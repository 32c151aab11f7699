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

use super::ends::{Ends, Kind};
use super::lists::ListId;
use super::ranges::Ranges;
use crate::Address;

/// The records of one field.
#[derive(Debug)]
pub(super) struct Field {
    /// Where the record of an address is; `None` if no rule names a network.
    pub(super) nets: Option<Ranges>,
    records: Box<[u32]>,
    /// Words of a record.
    stride: u32,
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
        Self {
            nets: ends.ranges(stride),
            records: vec![0; (any + stride) as usize].into(),
            stride,
            identities_at: stride * of_nets,
            identities: of_identities,
            any,
            has_lists: [false; 3],
            has_classes: [false; 3],
        }
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
        (self.records[at], self.records[at + 1]) = (list.cells, list.rules);
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

    #[inline(always)]
    pub(super) fn list(&self, record: u32) -> ListId {
        ListId { cells: self.word(record), rules: self.word(record + 1) }
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
