//! Compiled rule sets.
//!
//! ```text
//!            service class ---------.
//! key  <  source: net, identity -> rows ----> first one-sided rule ---.
//!         destination: the same -> rows ----> first one-sided rule ----> first of all
//!                 \  tuples of both ends -> pairs -> first two-sided --'
//! ```

mod lookup;
mod pairs;
mod rows;
mod service;
mod side;
mod state;

use std::fmt;
use std::sync::Arc;

use crate::{Action, AddressMap, Key, Rule};
use pairs::Pairs;
use rows::{NONE, Rows};
use service::Services;
use side::Side;
use state::State;

/// A compiled, immutable rule set.
#[derive(Debug)]
pub struct Table {
    rules: Arc<[Rule]>,
    /// A bit for each rule that permits: a rule itself takes two cache lines.
    permits: Box<[u64]>,
    addresses: Arc<AddressMap>,
    services: Arc<Services>,
    rows: Arc<Rows>,
    uses_rows: bool,
    sides: [Arc<Side>; 2],
    pairs: Arc<Pairs>,
    /// Entries in the rows.
    in_rows: usize,
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
    /// What [`lookup_vector`](Self::lookup_vector) says where no rule matches.
    pub const NONE: u32 = NONE;

    /// Compiles `rules` for the identities of `addresses`.
    pub fn compile(rules: Arc<[Rule]>, addresses: &Arc<AddressMap>) -> Self {
        let mut state = State::new(&rules, addresses);
        let [source, destination] = &mut state.sides;
        let sides = [source.version(), destination.version()];
        Self {
            permits: permits(&rules),
            rules,
            addresses: Arc::clone(addresses),
            services: Arc::clone(&state.rows.services),
            rows: Arc::clone(&state.rows.rows),
            uses_rows: state.uses_rows,
            sides,
            pairs: Arc::clone(&state.pairs.pairs),
            in_rows: state.rows.entries + state.any(),
        }
    }

    /// The rules in order; a lookup returns an index into them.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Whether a rule matches, by definition.
    fn rule_matches(&self, rule: u32, key: &Key) -> bool {
        self.rules.get(rule as usize).is_some_and(|rule| rule.matches(key, &self.addresses))
    }

    /// Whether a lookup found a rule that permits: of [`NONE`](Self::NONE) and of an index that
    /// no rule has it did not.
    #[inline]
    pub fn permits(&self, found: u32) -> bool {
        self.permits.get(found as usize / 64).is_some_and(|word| word >> (found % 64) & 1 == 1)
    }

    /// Whether any rule asks for the identity of the source, and of the destination: a key whose
    /// identity nobody asks for needs none.
    #[inline]
    pub fn asks_identities(&self) -> [bool; 2] {
        let asks = |side: &Side| side.of_identities.has_rows || side.of_identities.has_tuples;
        [asks(&self.sides[0]), asks(&self.sides[1])]
    }

    /// What the compiler found.
    pub fn report(&self) -> Report {
        let (tuples, entries, largest) = self.pairs.entries();
        Report {
            rules: self.rules.len(),
            tuples: tuples + usize::from(self.in_rows > 0),
            entries: entries + self.in_rows,
            largest: largest.max(self.in_rows),
            bytes: self.bytes(),
        }
    }

    fn bytes(&self) -> usize {
        size_of::<Self>()
            + self.services.bytes()
            + self.rows.bytes()
            + self.sides.iter().map(|side| side.bytes()).sum::<usize>()
            + self.pairs.bytes()
            + size_of_val(&*self.permits)
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
    fn permits_what_rules_permit() {
        let action = |number| if number % 3 == 0 { Action::Permit } else { Action::Deny };
        let rules: Arc<[Rule]> = (0..130).map(|number| Rule::new(action(number), "")).collect();
        let table = Table::compile(rules, &Arc::new(AddressMap::default()));
        for number in 0..130 {
            assert_eq!(table.permits(number), number % 3 == 0, "{number}");
        }
        assert!(!table.permits(132) && !table.permits(1 << 20) && !table.permits(Table::NONE));
    }

    #[test]
    fn tells_all_protocols_apart() {
        let rules: Arc<[Rule]> =
            (0..=255).rev().map(|number| Rule::new(Action::Deny, "").protocol(number)).collect();
        let table = Table::compile(rules, &Arc::new(AddressMap::default()));
        for protocol in 0..=255 {
            let key = Key { protocol, ..Key::default() };
            assert_eq!(table.lookup(&key), Some(255 - usize::from(protocol)), "{protocol}");
        }
    }

    #[test]
    fn says_what_it_found() {
        let mut builder = AddressMapBuilder::default();
        for net in ["10.0.0.1/32", "10.0.0.2/32"] {
            builder.add(PeerSetId(1), [Block { net: net.parse().unwrap(), except: vec![] }]);
        }
        let permit = Rule::new(Action::Permit, "a").protocol(6);
        let peers = End::Set(PeerSetId(1));
        let net = End::Net("10.0.0.0/8".parse().unwrap());
        let rules = [
            permit.clone().source(peers).destination_ports(PortRange::one(80)),
            permit.clone().source(peers).destination_ports(PortRange::one(443)),
            permit.clone().source(net),
            permit.source(peers).destination(net),
        ];
        let report = Table::compile(rules.into(), &Arc::new(builder.build())).report();
        let text = report.to_string();
        assert!(text.starts_with("4 rules: 2 tuples, 4 entries, largest 3, "), "{text}");
        assert!(report.bytes > 0);
    }
}
