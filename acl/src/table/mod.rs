//! Compiled rule sets.
//!
//! ```text
//!       transport class --------------------------------------------------.
//! key   source: identity      -> record -> list of rules over it alone -.  |
//!       destination: identity -> record -> list likewise                ---> first rule
//!                                 \ classes of both, by tuple -> list -'
//! ```

mod bits;
mod ends;
mod field;
mod groups;
mod index;
#[cfg(target_arch = "x86_64")]
mod lanes;
mod lists;
mod lookup;
mod plan;
mod report;
mod scan;
mod transport;
mod tuples;

use std::sync::Arc;

use crate::{Action, AddressMap, Rule};
use lists::NONE;
use plan::Parts;
pub use report::Report;

/// A compiled, immutable rule set.
#[derive(Debug)]
pub struct Table {
    rules: Arc<[Rule]>,
    /// A bit for each rule that permits: a rule itself takes two cache lines.
    permits: Box<[u64]>,
    /// The address map that tests compare with.
    #[cfg(test)]
    addresses: Arc<AddressMap>,
    parts: Parts,
}

impl Table {
    /// Value that [`lookup_vector`](Self::lookup_vector) writes where no rule matches.
    pub const NONE: u32 = NONE;

    /// Compiles `rules` for the identities of `addresses`.
    pub fn compile(rules: Arc<[Rule]>, addresses: &Arc<AddressMap>) -> Self {
        Self {
            permits: permits(&rules),
            parts: plan::compile(&rules, addresses),
            rules,
            #[cfg(test)]
            addresses: Arc::clone(addresses),
        }
    }

    /// The rules in order; a lookup returns an index into them.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Whether the rule that a lookup found permits; false for [`NONE`](Self::NONE) and for an
    /// index that no rule has.
    #[inline]
    pub fn permits(&self, found: u32) -> bool {
        self.permits.get(found as usize / 64).is_some_and(|word| word >> (found % 64) & 1 == 1)
    }

    /// Whether the rule that a lookup found is a denial that a policy states; false for
    /// [`NONE`](Self::NONE), a denial by default.
    pub fn denies_explicitly(&self, found: u32) -> bool {
        let rule = self.rules().get(found as usize);
        rule.is_some_and(|rule| rule.action != Action::Permit && !rule.is_default)
    }

    /// Whether any rule names the source, and the destination, by peer set. Keys need no identity
    /// in a field that none does.
    #[inline]
    pub fn asks_identities(&self) -> [bool; 2] {
        self.parts.fields.each_ref().map(|field| field.asks_identities())
    }

    /// Findings of the compiler.
    pub fn report(&self) -> Report {
        Report::new(&self.parts, self.rules.len(), size_of::<Self>() + size_of_val(&*self.permits))
    }
}

/// A bit for each rule that permits.
fn permits(rules: &[Rule]) -> Box<[u64]> {
    let word = |rules: &[Rule]| {
        let bits = rules.iter().map(|rule| u64::from(rule.action == Action::Permit));
        bits.rev().fold(0, |word, bit| word << 1 | bit)
    };
    rules.chunks(64).map(word).collect()
}

#[cfg(test)]
mod tests;
