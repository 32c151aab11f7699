//! Compiled rule sets.
//!
//! ```text
//!            service class ---------.
//! key  <  source: net, identity -> rows ----> first one-sided rule ---.
//!         destination: the same -> rows ----> first one-sided rule ----> first of all
//!                 \  tuples of both ends -> pairs -> first two-sided --'
//! ```

mod editor;
mod lookup;
mod pairs;
mod rows;
mod service;
mod side;
mod state;
mod store;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, OnceLock};

use thiserror::Error;

use crate::paged::Paged;
use crate::{AddressMap, End, PeerSetId, Rule};
pub use editor::{RuleId, TableEditor};
use pairs::Pairs;
use rows::{NONE, Rows};
use service::Services;
use side::Side;
use state::State;
use store::Store;

/// A compiled, immutable rule set.
#[derive(Debug)]
pub struct Table {
    store: Store,
    /// All rules in one piece, made when asked for where an editor has added some.
    rules: OnceLock<Box<[Rule]>>,
    /// By number: the place in the order. `None` if numbers ascend in order.
    labels: Option<Arc<Paged<u64, 2048>>>,
    addresses: Arc<AddressMap>,
    services: Arc<Services>,
    rows: Arc<Rows>,
    uses_rows: bool,
    sides: [Arc<Side>; 2],
    pairs: Arc<Pairs>,
    /// Rules there are, and entries in the rows.
    count: usize,
    in_rows: usize,
}

/// A rule set that may need more memory than it is granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{rules} rules may need {needed} bytes, more than the {limit} granted")]
pub struct TooLarge {
    /// Rules in the set.
    pub rules: usize,
    /// Bytes that it may need.
    pub needed: usize,
    /// Bytes it is granted.
    pub limit: usize,
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
        let numbered: Vec<(u32, &Rule)> =
            rules.iter().enumerate().map(|(number, rule)| (number as u32, rule)).collect();
        let mut state = State::new(&numbered, &u64::from, addresses);
        let count = rules.len();
        Self::version(&mut state, Store::new(rules), None, count)
    }

    /// Compiles within `limit` bytes.
    ///
    /// # Errors
    /// If [`memory_bound`](Self::memory_bound) is larger than `limit`; nothing was compiled then.
    pub fn compile_within(
        rules: Arc<[Rule]>,
        addresses: &Arc<AddressMap>,
        limit: usize,
    ) -> Result<Self, TooLarge> {
        let needed = Self::memory_bound(rules.len(), addresses.identities().count());
        if needed > limit {
            return Err(TooLarge { rules: rules.len(), needed, limit });
        }
        Ok(Self::compile(rules, addresses))
    }

    /// The bytes that the compiled form of so many rules for so many identities takes at most,
    /// whatever the rules say; [`Report::bytes`] tells what it did take, mostly far less.
    pub const fn memory_bound(rules: usize, identities: usize) -> usize {
        // Service pages and crossed axes; both sides' tables of /16s; first pages of arrays.
        const FIXED: usize = 8 << 20;
        // Networks of both sides with their ranges, hosts, rows and tuples; entry and chain.
        const EACH: usize = 1200;
        FIXED + EACH * rules + 2 * 24 * identities + rows::Limits::of(rules).bytes()
    }

    /// Whether this table also decides for identities that `addresses` knows and the table's
    /// own map did not: whether both are of one lineage and no new identity is in a set that a
    /// rule names. If not, compile anew, or use a [`TableEditor`].
    pub fn knows(&self, addresses: &AddressMap) -> bool {
        let known = self.addresses.identities().count();
        let fresh: BTreeSet<PeerSetId> = addresses
            .identities()
            .skip(known)
            .flat_map(|identity| addresses.members(identity).iter().copied())
            .collect();
        let named = |rule: &Rule| {
            [rule.source, rule.destination]
                .iter()
                .any(|end| matches!(end, End::Set(set) if fresh.contains(set)))
        };
        self.addresses.same_lineage(addresses)
            && (fresh.is_empty() || !self.rules().iter().any(named))
    }

    fn version(
        state: &mut State,
        store: Store,
        labels: Option<Arc<Paged<u64, 2048>>>,
        count: usize,
    ) -> Self {
        let [source, destination] = &mut state.sides;
        let sides = [source.version(), destination.version()];
        Self {
            store,
            rules: OnceLock::new(),
            labels,
            addresses: Arc::clone(state.addresses()),
            services: Arc::clone(&state.rows.services),
            rows: Arc::clone(&state.rows.rows),
            uses_rows: state.uses_rows,
            sides,
            pairs: Arc::clone(&state.pairs.pairs),
            count,
            in_rows: state.rows.entries + state.any(),
        }
    }

    /// The rules, so that what a lookup returns is an index here. In order for a table that
    /// was compiled in one go; in a table from an editor, rules added later come last wherever
    /// they stand in the order, and rules taken out may still be listed.
    pub fn rules(&self) -> &[Rule] {
        let base = self.store.base();
        if self.store.get(base.len() as u32).is_none() {
            return base;
        }
        self.rules.get_or_init(|| (0..).map_while(|n| self.store.get(n).cloned()).collect())
    }

    /// The rule that a lookup returned the index of, without making a list of all.
    pub fn rule(&self, index: usize) -> Option<&Rule> {
        self.store.get(u32::try_from(index).ok()?)
    }

    /// Whether a lookup found a rule that permits: of [`NONE`](Self::NONE) and of an index that
    /// no rule has it did not.
    #[inline]
    pub fn permits(&self, found: u32) -> bool {
        found != NONE && self.store.permits(found)
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
            rules: self.count,
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
            + self.labels.as_ref().map_or(0, |labels| labels.bytes())
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
    use crate::{Action, AddressMapBuilder, AddressMapEditor, Block, PortRange};

    #[test]
    fn says_before_what_it_may_need() {
        let rules: Arc<[Rule]> = (0..=u16::MAX)
            .step_by(7)
            .map(|port| {
                let net = u32::from(port).wrapping_mul(0x9e37_79b1).to_be_bytes().into();
                let net = ipnet::Ipv4Net::new_assert(net, (port % 33) as u8).trunc();
                let ports = PortRange { first: port / 2, last: port };
                Rule::new(Action::Deny, "").source(End::Net(net.into())).destination_ports(ports)
            })
            .collect();
        let addresses = Arc::new(AddressMap::default());
        let needed = Table::memory_bound(rules.len(), 1);
        let refused = Table::compile_within(Arc::clone(&rules), &addresses, needed - 1);
        assert_eq!(
            refused.unwrap_err(),
            TooLarge { rules: rules.len(), needed, limit: needed - 1 }
        );
        let table = Table::compile_within(rules, &addresses, needed).unwrap();
        assert!(table.report().bytes <= needed, "{}", table.report());
    }

    #[test]
    fn needs_no_more_where_few_hosts_take_whole_blocks() {
        // Six hosts of one /24 in each /16, apart from each other: too many ranges for a line.
        let host = |number: u32| {
            let address = (number / 6) << 16 | (number % 6 * 2 + 1);
            End::Net(ipnet::Ipv4Net::new_assert(address.into(), 32).into())
        };
        let rules: Arc<[Rule]> = (0..30_000)
            .map(|number| {
                Rule::new(Action::Deny, "").source(host(number)).destination(host(number))
            })
            .collect();
        let needed = Table::memory_bound(rules.len(), 1);
        let table = Table::compile(rules, &Arc::new(AddressMap::default()));
        assert!(table.report().bytes <= needed, "{} of {needed}", table.report());
    }

    #[test]
    fn knows_what_it_need_not_know() {
        let block = |net: &str| Block { net: net.parse().unwrap(), except: vec![] };
        let mut editor = AddressMapEditor::default();
        editor.add(PeerSetId(1), &block("10.0.0.1/32"));
        let rule = Rule::new(Action::Permit, "").source(End::Set(PeerSetId(1)));
        let table = Table::compile([rule].into(), &Arc::new(editor.version()));
        editor.add(PeerSetId(1), &block("10.0.0.2/32"));
        editor.add(PeerSetId(2), &block("10.0.0.3/32"));
        assert!(table.knows(&editor.version()), "another address, and a set that no rule names");
        editor.add(PeerSetId(2), &block("10.0.0.2/32"));
        assert!(!table.knows(&editor.version()), "addresses in both sets are new");
        assert!(!table.knows(&AddressMapBuilder::default().build()), "another lineage");
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
