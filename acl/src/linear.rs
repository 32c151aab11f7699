//! The definition: rules tried one after the other.
//!
//! Slow and obvious on purpose. Tests hold every compiled structure to it.

use crate::{AddressMap, Key, Rule};

/// The index of the first rule that matches `key`.
pub fn lookup(rules: &[Rule], addresses: &AddressMap, key: &Key) -> Option<usize> {
    rules.iter().position(|rule| rule.matches(key, addresses))
}
