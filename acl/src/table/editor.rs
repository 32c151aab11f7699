//! Tables that change by a rule at a time.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use ahash::RandomState;

use super::Table;
use super::state::State;
use super::store::Store;
use crate::paged::Paged;
use crate::{AddressMap, Rule};

/// Names a rule in a [`TableEditor`] for as long as it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RuleId(pub u64);

/// Holds an ordered rule set and makes a [`Table`] of it at any time.
///
/// Adding or removing a rule costs in proportion to what it touches: one hash entry for a rule
/// over both ends, the rows of the addresses or identities it names for one over a single end.
/// Versions share what did not change, and readers of earlier ones are not disturbed. When as
/// many rules have come and gone as there are, the set is compiled anew.
///
/// ```
/// use std::sync::Arc;
/// use acl::{AddressMap, Key, TableEditor, parse_rules};
///
/// let rules = parse_rules("deny any from any to any").unwrap();
/// let mut editor = TableEditor::new(rules.into(), &Arc::new(AddressMap::default()));
/// let deny = editor.ids().next();
/// let closed = editor.version();
/// let id = editor.insert("permit tcp from any to any port 80".parse().unwrap(), deny);
/// let open = editor.version();
///
/// let key = Key { protocol: 6, destination_port: 80, ..Key::default() };
/// let decides = |table: &Table| table.lookup(&key).unwrap();
/// # use acl::Table;
/// assert_eq!(closed.rules()[decides(&closed)].to_string(), "deny any from any to any");
/// assert_eq!(open.rules()[decides(&open)].to_string(), "permit tcp from any to any port 80");
/// assert!(editor.remove(id));
/// ```
#[derive(Debug)]
pub struct TableEditor {
    store: Store,
    /// Next number in the store.
    next_number: u32,
    next_id: u64,
    numbers: HashMap<RuleId, u32, RandomState>,
    /// The rules that are there, in order.
    order: BTreeMap<u64, (u32, RuleId)>,
    /// By number: a key of `order`.
    labels: Arc<Paged<u64, 512>>,
    /// Whether numbers ascend in order, so that nobody needs the labels.
    ascending: bool,
    state: State,
    addresses: Arc<AddressMap>,
}

/// Labels between neighbours at first.
const SPACING: u64 = 1 << 40;

impl TableEditor {
    /// An editor for these rules. Their [`ids`](Self::ids) come in their order.
    pub fn new(rules: Arc<[Rule]>, addresses: &Arc<AddressMap>) -> Self {
        let ids = (0..rules.len() as u64).map(RuleId);
        let next_id = rules.len() as u64;
        Self::build(rules, ids, next_id, addresses)
    }

    fn build(
        rules: Arc<[Rule]>,
        ids: impl Iterator<Item = RuleId>,
        next_id: u64,
        addresses: &Arc<AddressMap>,
    ) -> Self {
        let mut labels = Paged::filled(rules.len(), &0);
        let mut order = BTreeMap::new();
        for (number, id) in ids.enumerate() {
            let label = SPACING.saturating_mul(number as u64 + 1);
            *labels.get_mut(number) = label;
            order.insert(label, (number as u32, id));
        }
        let numbered: Vec<(u32, &Rule)> =
            rules.iter().enumerate().map(|(number, rule)| (number as u32, rule)).collect();
        let state = State::new(&numbered, &u64::from, addresses);
        Self {
            next_number: rules.len() as u32,
            next_id,
            numbers: order.values().map(|(number, id)| (*id, *number)).collect(),
            order,
            labels: Arc::new(labels),
            ascending: true,
            state,
            addresses: Arc::clone(addresses),
            store: Store::new(rules),
        }
    }

    /// The rules that are there, in order.
    pub fn ids(&self) -> impl Iterator<Item = RuleId> + '_ {
        self.order.values().map(|(_, id)| *id)
    }

    /// The rule of this name.
    pub fn rule(&self, id: RuleId) -> Option<&Rule> {
        self.store.get(*self.numbers.get(&id)?)
    }

    /// Adds a rule before another one, or as the last if there is no such rule.
    pub fn insert(&mut self, rule: Rule, before: Option<RuleId>) -> RuleId {
        let id = RuleId(self.next_id);
        self.next_id += 1;
        let before = before.and_then(|before| self.numbers.get(&before)).copied();
        let label = self.label(before);
        let number = self.next_number;
        self.next_number += 1;
        self.ascending &= before.is_none();
        self.numbers.insert(id, number);
        self.order.insert(label, (number, id));
        let labels = Arc::make_mut(&mut self.labels);
        labels.grow(number as usize + 1, &0);
        *labels.get_mut(number as usize) = label;
        let order = |number: u32| *labels.get(number as usize);
        let done = self.state.insert(number, &rule, &order);
        let stored = self.store.add(number, rule);
        if done.is_err() || !stored || self.is_worn() {
            self.rebuild();
        }
        id
    }

    /// Takes a rule out; whether it was there.
    pub fn remove(&mut self, id: RuleId) -> bool {
        let Some(number) = self.numbers.remove(&id) else { return false };
        let order = |number: u32| *self.labels.get(number as usize);
        self.order.remove(&order(number));
        let Some(rule) = self.store.get(number) else { return false };
        if self.state.remove(number, rule, &order).is_err() || self.is_worn() {
            self.rebuild();
        }
        true
    }

    /// Goes on with another version of the address map. New identities of the same lineage
    /// are added to the table; for a map of another lineage it is compiled anew.
    pub fn set_addresses(&mut self, addresses: &Arc<AddressMap>) {
        let follows = self.addresses.same_lineage(addresses)
            && self.addresses.identities().count() <= addresses.identities().count();
        self.addresses = Arc::clone(addresses);
        let order = |number: u32| *self.labels.get(number as usize);
        if !follows || self.state.set_addresses(addresses, &order).is_err() {
            self.rebuild();
        }
    }

    /// The table as it is now.
    pub fn version(&mut self) -> Table {
        let labels = (!self.ascending).then(|| Arc::clone(&self.labels));
        Table::version(&mut self.state, self.store.clone(), labels, self.order.len())
    }

    /// A free label right before a rule, or behind the last.
    fn label(&mut self, before: Option<u32>) -> u64 {
        for _ in 0..2 {
            let high = before.map_or(u64::MAX, |number| *self.labels.get(number as usize));
            let low = self.order.range(..high).next_back().map_or(0, |(label, _)| *label);
            let step = ((high - low) / 2).min(if before.is_some() { 1 << 32 } else { SPACING });
            if step > 0 {
                return low + step;
            }
            self.relabel();
        }
        // Not reached while labels outnumber rules by far.
        u64::MAX
    }

    /// Spreads the labels evenly again.
    fn relabel(&mut self) {
        let mut labels = Paged::filled(self.next_number as usize, &0);
        let order = std::mem::take(&mut self.order);
        for (at, rule) in order.into_values().enumerate() {
            let label = SPACING.saturating_mul(at as u64 + 1);
            *labels.get_mut(rule.0 as usize) = label;
            self.order.insert(label, rule);
        }
        self.labels = Arc::new(labels);
    }

    /// Whether rules that are gone take more room than those that are there.
    fn is_worn(&self) -> bool {
        self.next_number as usize > 2 * self.order.len() + 1024
    }

    fn rebuild(&mut self) {
        let rules: Arc<[Rule]> = self
            .order
            .values()
            .filter_map(|(number, _)| self.store.get(*number))
            .cloned()
            .collect();
        let ids: Vec<RuleId> = self.ids().collect();
        *self = Self::build(rules, ids.into_iter(), self.next_id, &self.addresses);
    }
}
