//! The peer sets that rules name in one field (source or destination), and the identities in each.
//!
//! A rule that does not name the field names the *set of all*: every identity is in it, so that structures know one
//! kind of end.

use std::collections::HashMap;

use ahash::RandomState;

use super::index::Slices;
use crate::{AddressMap, End, Identity, PeerSetId, Rule};

/// The ends of one field, by number; that behind the last peer set is the set of all.
#[derive(Debug)]
pub(super) struct Ends {
    /// Peer sets that rules name.
    sets: u32,
    /// The lists of named sets, ascending, that identities are in, each behind by the set of all.
    members: Slices,
    /// By identity: its list. One identity if no rule names a set.
    of: Vec<u32>,
}

/// Equivalence classes of identities for some ends: identities that the same ones of these ends cover are of one class.
#[derive(Debug)]
pub(super) struct Classes {
    /// By identity: its class, or 0 if none of the ends covers it.
    pub(super) of: Vec<u32>,
    /// By end: the classes it covers, for ends in use.
    pub(super) covered: Vec<Vec<u32>>,
}

impl Ends {
    /// The ends of `rules` as `end` picks them, and for each rule which it names.
    pub(super) fn of(
        rules: &[(u32, &Rule)],
        end: impl Fn(&Rule) -> End,
        addresses: &AddressMap,
    ) -> (Self, Vec<u32>) {
        let mut sets = Sets::default();
        let mut named = Vec::with_capacity(rules.len());
        for (_, rule) in rules {
            named.push(match end(rule) {
                End::Any => u32::MAX,
                End::Set(set) => {
                    let fresh = sets.len() as u32;
                    *sets.entry(set).or_insert(fresh)
                }
            });
        }
        let all = sets.len() as u32;
        named.iter_mut().for_each(|end| *end = all.min(*end));
        let mut members = Slices::default();
        let of = match known(&sets, addresses) {
            Some(known) => of_known(known, all, addresses, &mut members),
            None => of_each(&sets, all, addresses, &mut members),
        };
        (Self { sets: all, members, of }, named)
    }

    /// The set of all.
    pub(super) fn all(&self) -> u32 {
        self.sets
    }

    /// Number of ends.
    pub(super) fn count(&self) -> usize {
        self.sets as usize + 1
    }

    /// Number of identities.
    pub(super) fn identities(&self) -> usize {
        self.of.len()
    }

    /// The ends that cover an identity, ascending.
    pub(super) fn around(&self, identity: usize) -> &[u32] {
        self.members.of(self.of[identity])
    }

    /// Calls `make` with the ends that cover each identity; returns its results by identity.
    pub(super) fn each<T: Copy, E>(
        &self,
        mut make: impl FnMut(&[u32]) -> Result<T, E>,
    ) -> Result<impl Iterator<Item = T>, E> {
        let made = (0..self.members.count() as u32).map(|list| make(self.members.of(list)));
        let made: Vec<T> = made.collect::<Result<_, E>>()?;
        Ok(self.of.iter().map(move |list| made[*list as usize]))
    }

    /// By end: how many identities it covers.
    pub(super) fn sizes(&self) -> Vec<u32> {
        let mut sizes = vec![0; self.count()];
        for identity in 0..self.identities() {
            self.around(identity).iter().for_each(|end| sizes[*end as usize] += 1);
        }
        sizes
    }

    /// By end: how many [classes](Self::classes) each covers if only the ends in `used` were there.
    pub(super) fn fan_out(&self, used: &[bool]) -> Vec<u32> {
        let mut counts = vec![0; used.len()];
        let (classes, _) = self.parts(used);
        classes.items.iter().for_each(|end| counts[*end as usize] += 1);
        counts
    }

    /// The classes for the ends in `used`, numbered from `next` on, which moves behind them.
    pub(super) fn classes(&self, used: &[bool], next: &mut u32) -> Classes {
        let (classes, of) = self.parts(used);
        // Class 0 is the one without an end.
        let first = *next - 1;
        *next = first + classes.count() as u32;
        let mut covered = vec![Vec::new(); used.len()];
        for class in 1..classes.count() as u32 {
            classes.of(class).iter().for_each(|end| covered[*end as usize].push(first + class));
        }
        let number = |list: &u32| match of[*list as usize] {
            0 => 0,
            class => first + class,
        };
        Classes { of: self.of.iter().map(number).collect(), covered }
    }

    /// The distinct lists of ends in `used` that identities are in, the empty one first, and which each list of all ends
    /// comes to.
    fn parts(&self, used: &[bool]) -> (Slices, Vec<u32>) {
        let mut parts = Slices::default();
        parts.number(&[]);
        let mut part = Vec::new();
        let of = (0..self.members.count() as u32).map(|list| {
            part.clear();
            part.extend(self.members.of(list).iter().filter(|end| used[**end as usize]));
            parts.number(&part)
        });
        let of = of.collect();
        (parts, of)
    }
}

type Sets = HashMap<PeerSetId, u32, RandomState>;

/// The identities in these sets, each with the number of the set, sorted; `None` if the map has no index of them.
fn known(sets: &Sets, addresses: &AddressMap) -> Option<Vec<(Identity, u32)>> {
    let mut known = Vec::new();
    for (set, number) in sets {
        known.extend(addresses.identities_in(*set)?.iter().map(|identity| (*identity, *number)));
    }
    known.sort_unstable();
    Some(known)
}

/// By identity: the number of its list, from those of sets that have any.
fn of_known(
    known: Vec<(Identity, u32)>,
    all: u32,
    addresses: &AddressMap,
    members: &mut Slices,
) -> Vec<u32> {
    let count = if all == 0 { 1 } else { addresses.identities().count() };
    let mut of = vec![members.number(&[all]); count];
    let mut own = Vec::new();
    for sets in known.chunk_by(|(a, _), (b, _)| a == b) {
        own.clear();
        own.extend(sets.iter().map(|(_, set)| *set));
        own.push(all);
        of[sets[0].0.0 as usize] = members.number(&own);
    }
    of
}

/// The same from the sets that each identity is in.
fn of_each(sets: &Sets, all: u32, addresses: &AddressMap, members: &mut Slices) -> Vec<u32> {
    let mut own = Vec::new();
    let identities = addresses.identities().take(if all == 0 { 1 } else { usize::MAX });
    let of = identities.map(|identity| {
        own.clear();
        own.extend(addresses.members(identity).iter().filter_map(|set| sets.get(set)));
        own.sort_unstable();
        own.push(all);
        members.number(&own)
    });
    of.collect()
}
