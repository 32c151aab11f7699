//! Compiled rule sets.

use std::sync::Arc;

use crate::{AddressMap, Key, Rule, linear};

/// A compiled, immutable rule set.
#[derive(Debug)]
pub struct Table {
    rules: Arc<[Rule]>,
    addresses: Arc<AddressMap>,
}

/// What the compiler found in a rule set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Report {
    /// Rules in the set.
    pub rules: usize,
    /// Groups of rules with the same shape.
    pub tuples: usize,
    /// Entries over all groups.
    pub entries: usize,
    /// Entries of the largest group.
    pub largest: usize,
    /// Memory of the compiled form.
    pub bytes: usize,
}

impl Table {
    /// Compiles `rules` for the identities of `addresses`.
    pub fn compile(rules: Arc<[Rule]>, addresses: &Arc<AddressMap>) -> Self {
        Self { rules, addresses: Arc::clone(addresses) }
    }

    /// The index of the first rule that matches `key`.
    #[inline]
    pub fn lookup(&self, key: &Key) -> Option<usize> {
        linear::lookup(&self.rules, &self.addresses, key)
    }

    /// The rules in order.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// What the compiler found.
    pub fn report(&self) -> Report {
        Report { rules: self.rules.len(), ..Report::default() }
    }
}
