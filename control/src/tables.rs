//! Compiled tables, one for each distinct rule list.
//!
//! Pods whose rules are equal, rule by rule and origin by origin, share a table. A table is
//! compiled when it is first needed, and again only when a new identity is in a set the table
//! names, or when identities are renumbered.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

use acl::{AddressMap, End, Identity, PeerSetId, Rule, Table};
use ahash::RandomState;

/// A rule list, found by a hash that is taken once: comparing shared lists takes no time, however
/// long they are.
#[derive(Clone, Debug)]
pub(crate) struct RuleList {
    hash: u64,
    rules: Arc<[Rule]>,
}

impl RuleList {
    fn new(rules: Vec<Rule>, state: &RandomState) -> Self {
        Self { hash: state.hash_one(&rules), rules: rules.into() }
    }
}

impl Deref for RuleList {
    type Target = [Rule];

    fn deref(&self) -> &[Rule] {
        &self.rules
    }
}

impl PartialEq for RuleList {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.rules, &other.rules)
            || self.hash == other.hash && self.rules == other.rules
    }
}

impl Eq for RuleList {}

impl Hash for RuleList {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.hash.hash(state);
    }
}

/// Rule lists with their users.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    entries: HashMap<RuleList, Entry, RandomState>,
    /// For the hashes of lists.
    state: RandomState,
    compiled: u64,
}

#[derive(Debug)]
struct Entry {
    users: usize,
    /// The peer sets that the rules name, sorted.
    sets: Box<[PeerSetId]>,
    table: Option<Arc<Table>>,
}

impl Tables {
    /// Adds a user to these rules. Returns them in their shared form and, if they are new, the sets
    /// they name.
    pub(crate) fn acquire(&mut self, rules: Vec<Rule>) -> (RuleList, Box<[PeerSetId]>) {
        let list = RuleList::new(rules, &self.state);
        if let Some((known, _)) = self.entries.get_key_value(&list) {
            let known = known.clone();
            self.share(&known);
            return (known, Box::default());
        }
        let sets = sets(&list);
        let entry = Entry { users: 1, sets: sets.clone(), table: None };
        self.entries.insert(list.clone(), entry);
        (list, sets)
    }

    /// Adds a user to rules that are in use.
    pub(crate) fn share(&mut self, rules: &RuleList) {
        self.entries.entry(rules.clone()).and_modify(|entry| entry.users += 1);
    }

    /// Removes a user; returns the sets that no rules name any more.
    pub(crate) fn release(&mut self, rules: &RuleList) -> Box<[PeerSetId]> {
        let Some(entry) = self.entries.get_mut(rules) else { return Box::default() };
        entry.users -= 1;
        match entry.users {
            0 => self.entries.remove(rules).map(|entry| entry.sets).unwrap_or_default(),
            _ => Box::default(),
        }
    }

    /// The table of these rules; they are in use and have been compiled.
    pub(crate) fn table(&self, rules: &RuleList) -> Option<&Arc<Table>> {
        self.entries.get(rules)?.table.as_ref()
    }

    /// The peer sets that rules in use name, sorted.
    pub(crate) fn sets(&self, rules: &RuleList) -> &[PeerSetId] {
        self.entries.get(rules).map_or(&[], |entry| &entry.sets)
    }

    /// Compiles new tables and those that the change of the address map makes stale. Returns
    /// whether any table in force was compiled again.
    ///
    /// Takes the time of `threads` cores at most.
    pub(crate) fn compile(
        &mut self,
        before: &AddressMap,
        now: &Arc<AddressMap>,
        threads: usize,
    ) -> bool {
        let all_stale = !now.same_lineage(before);
        let known = before.identities().count() as u32;
        let mut stale: Vec<PeerSetId> = Vec::new();
        if !all_stale {
            let count = now.identities().count() as u32;
            let fresh = (known..count).map(Identity);
            stale = fresh.flat_map(|identity| now.members(identity).iter().copied()).collect();
            stale.sort_unstable();
            stale.dedup();
        }
        let is_stale = |entry: &Entry| {
            let touched = || all_stale || intersect(&entry.sets, &stale);
            entry.table.is_none() || !entry.sets.is_empty() && touched()
        };
        let mut wanted: Vec<_> = self.entries.iter_mut().filter(|(_, it)| is_stale(it)).collect();
        let again = wanted.iter().any(|(_, entry)| entry.table.is_some());
        self.compiled += wanted.len() as u64;
        if wanted.len() > 1 {
            now.index_sets();
        }
        let compile = |wanted: &mut [(&RuleList, &mut Entry)]| {
            for (list, entry) in wanted {
                entry.table = Some(Arc::new(Table::compile(Arc::clone(&list.rules), now)));
            }
        };
        let share = wanted.len().div_ceil(threads).max(LEAST_SHARE);
        std::thread::scope(|scope| {
            let mut shares = wanted.chunks_mut(share);
            let own = shares.next();
            shares.for_each(|share| drop(scope.spawn(move || compile(share))));
            own.into_iter().for_each(compile);
        });
        again
    }

    /// Number of compilations so far.
    pub(crate) fn compiled(&self) -> u64 {
        self.compiled
    }

    /// Number of tables.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}

/// Tables that are not worth a thread.
const LEAST_SHARE: usize = 64;

fn sets(rules: &[Rule]) -> Box<[PeerSetId]> {
    let ends = rules.iter().flat_map(|rule| [rule.source, rule.destination]);
    let mut sets: Vec<PeerSetId> = ends
        .filter_map(|end| match end {
            End::Set(set) => Some(set),
            End::Any => None,
        })
        .collect();
    sets.sort_unstable();
    sets.dedup();
    sets.into()
}

/// Whether two sorted lists have anything in common.
fn intersect(few: &[PeerSetId], many: &[PeerSetId]) -> bool {
    few.iter().any(|set| many.binary_search(set).is_ok())
}
