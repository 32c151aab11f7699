//! Longest-prefix match: prefixes to small numbers.

use std::collections::HashMap;

use ahash::RandomState;

use crate::Address;
use crate::prefix::{Prefix, V4_BITS};

/// Gives an address the number of the longest prefix that covers it: one hash probe
/// for each prefix length in use, longest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lpm {
    numbers: HashMap<Prefix, u32, RandomState>,
    /// Lengths in use, longest first.
    v4_lengths: Vec<u8>,
    v6_lengths: Vec<u8>,
}

impl Lpm {
    /// Sets the number of a prefix.
    pub(crate) fn insert(&mut self, prefix: Prefix, number: u32) {
        self.numbers.insert(prefix, number);
        let lengths = if prefix.is_v4() { &mut self.v4_lengths } else { &mut self.v6_lengths };
        if let Err(at) = lengths.binary_search_by(|length| prefix.length().cmp(length)) {
            lengths.insert(at, prefix.length());
        }
    }

    /// The number of the longest prefix that covers `address`.
    pub(crate) fn lookup(&self, address: Address) -> Option<u32> {
        let lengths = if address.is_v4() { &self.v4_lengths } else { &self.v6_lengths };
        debug_assert!(self.v4_lengths.iter().all(|length| *length >= V4_BITS));
        lengths.iter().find_map(|length| self.numbers.get(&Prefix::of(address, *length)).copied())
    }
}
