//! Compiled rule sets.

use std::fmt;
use std::sync::Arc;

use crate::tuple_space::TupleSpace;
use crate::{AddressMap, Key, Rule};

/// A compiled, immutable rule set.
#[derive(Debug)]
pub struct Table {
    rules: Arc<[Rule]>,
    tuples: TupleSpace,
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
        let tuples = TupleSpace::build(&rules, addresses);
        Self { rules, tuples }
    }

    /// The index of the first rule that matches `key`.
    #[inline]
    pub fn lookup(&self, key: &Key) -> Option<usize> {
        self.tuples.lookup(key)
    }

    /// The rules in order.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// What the compiler found.
    pub fn report(&self) -> Report {
        Report { rules: self.rules.len(), ..self.tuples.report() }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} rules: {} tuples, {} entries, largest {}, {} bytes",
            self.rules, self.tuples, self.entries, self.largest, self.bytes
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Action, AddressMapBuilder, Block, End, PeerSetId, PortRange};

    #[test]
    fn says_what_it_found() {
        let mut builder = AddressMapBuilder::default();
        for net in ["10.0.0.1/32", "10.0.0.2/32"] {
            builder.add(PeerSetId(1), [Block { net: net.parse().unwrap(), except: vec![] }]);
        }
        let permit = Rule::new(Action::Permit, "a").protocol(6);
        let rules = [
            permit.clone().source(End::Set(PeerSetId(1))).destination_ports(PortRange::one(80)),
            permit.clone().source(End::Set(PeerSetId(1))).destination_ports(PortRange::one(443)),
            permit.source(End::Net("10.0.0.0/8".parse().unwrap())),
        ];
        let report = Table::compile(rules.into(), &Arc::new(builder.build())).report();
        let text = report.to_string();
        assert!(text.starts_with("3 rules: 2 tuples, 3 entries, largest 2, "), "{text}");
        assert!(report.bytes > 0);
    }
}
