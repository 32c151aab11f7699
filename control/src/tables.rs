//! Compiled tables, one for each distinct rule list.
//!
//! Pods whose rules are equal, rule by rule and origin by origin, share a table. A table is
//! compiled when it is first needed, and again only when a new identity is in a set the table
//! names, or when identities are renumbered.

use std::collections::HashMap;
use std::sync::Arc;

use acl::{AddressMap, End, Identity, PeerSetId, Rule, Table};
use ahash::RandomState;

/// Rule lists with their users.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    entries: HashMap<Arc<[Rule]>, Entry, RandomState>,
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
    pub(crate) fn acquire(&mut self, rules: Vec<Rule>) -> (Arc<[Rule]>, Box<[PeerSetId]>) {
        let known =
            self.entries.get_key_value(rules.as_slice()).map(|(rules, _)| Arc::clone(rules));
        match known {
            Some(rules) => {
                self.entries.entry(Arc::clone(&rules)).and_modify(|entry| entry.users += 1);
                (rules, Box::default())
            }
            None => {
                let sets = sets(&rules);
                let rules: Arc<[Rule]> = rules.into();
                let entry = Entry { users: 1, sets: sets.clone(), table: None };
                self.entries.insert(Arc::clone(&rules), entry);
                (rules, sets)
            }
        }
    }

    /// Removes a user; returns the sets that no rules name any more.
    pub(crate) fn release(&mut self, rules: &Arc<[Rule]>) -> Box<[PeerSetId]> {
        let Some(entry) = self.entries.get_mut(rules) else { return Box::default() };
        entry.users -= 1;
        match entry.users {
            0 => self.entries.remove(rules).map(|entry| entry.sets).unwrap_or_default(),
            _ => Box::default(),
        }
    }

    /// The table of these rules; they are in use and have been compiled.
    pub(crate) fn table(&self, rules: &Arc<[Rule]>) -> Option<&Arc<Table>> {
        self.entries.get(rules)?.table.as_ref()
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
        let compile = |wanted: &mut [(&Arc<[Rule]>, &mut Entry)]| {
            for (rules, entry) in wanted {
                entry.table = Some(Arc::new(Table::compile(Arc::clone(rules), now)));
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
