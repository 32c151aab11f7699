//! Rules over peer sets that no tuple takes, tried set by set.
//!
//! Where identities are in many sets each, nearly every identity is a class of its own and a rule covers hundreds of
//! pairs of classes. Such a rule stays with one of its sets, that with fewer identities. A lookup goes through the sets
//! that a key is in: each has a list of its rules over one end, and those over both, which are compared one by one.
//! Sets are in the order of their first rules, so a lookup ends at the rule that is found already.
//!
//! ```text
//! identity -> sets -> list of rules over one end
//!                     rules over both: other end, transport condition
//! ```

use std::ops::Range;

use crate::Key;
use crate::table::ends::Ends;
use crate::table::lists::{Effective, ListId, Lists, MakeLists, NONE};
use crate::table::plan::Numbered;
use crate::table::transport::{TooMany, Transport};

/// Rules tried set by set.
#[derive(Debug, Default)]
pub(in crate::table) struct BySet {
    /// Sources and destinations.
    fields: [Sets; 2],
    /// Rules over both ends; those of one set follow each other.
    both: Vec<OfBoth>,
    demands: Box<[Transport]>,
    /// Rules there are.
    pub(in crate::table) rules: usize,
}

/// The peer sets of one field, numbered in the order of their first rules.
#[derive(Debug, Default)]
struct Sets {
    /// By identity: where its sets begin in `members`. And one more number.
    starts: Vec<u32>,
    /// Ascending for each identity.
    members: Vec<u32>,
    /// And one more without a rule.
    sets: Vec<OfSet>,
}

/// The rules that stay with a set.
#[derive(Clone, Copy, Debug)]
struct OfSet {
    first: u32,
    /// Where those over both ends begin.
    both: u32,
    /// Those over one end.
    list: ListId,
}

/// A rule over both ends.
#[derive(Debug)]
struct OfBoth {
    rule: u32,
    /// The number of its transport condition.
    demand: u32,
    /// The number of its other set.
    other: u32,
}

/// A filter of the sets that an identity is in: for set *n*, bit *n* modulo 2,048 is set. One load excludes most
/// of the sets that it is not in.
struct Filter([u64; 32]);

impl Filter {
    fn new(members: &[u32]) -> Self {
        let mut bits = [0; 32];
        members.iter().for_each(|set| bits[*set as usize / 64 % 32] |= 1 << (set % 64));
        Self(bits)
    }

    fn may_hold(&self, set: u32) -> bool {
        self.0[set as usize / 64 % 32] >> (set % 64) & 1 == 1
    }
}

impl Sets {
    /// The sets that have a head, by end's number: the first rule that stays with it, or [`NONE`]. Also their
    /// numbers, by end's number.
    fn new(heads: &[Option<u32>], ends: &Ends) -> (Self, Vec<u32>) {
        let heads = (0..).zip(heads);
        let mut sets: Vec<(u32, usize)> =
            heads.filter_map(|(number, head)| head.map(|head| (head, number))).collect();
        sets.sort_unstable();
        let mut numbers = vec![NONE; ends.count()];
        (0..).zip(&sets).for_each(|(fresh, (_, number))| numbers[*number] = fresh);
        let (mut starts, mut members) = (vec![0], Vec::new());
        for identity in 0..ends.identities() {
            let from = members.len();
            let named = ends.around(identity).iter().map(|set| numbers[*set as usize]);
            members.extend(named.filter(|set| *set != NONE));
            members[from..].sort_unstable();
            starts.push(members.len() as u32);
        }
        let heads = sets.into_iter().map(|(head, _)| head).chain([NONE]);
        let of_set = |first| OfSet { first, both: 0, list: ListId::EMPTY };
        (Self { starts, members, sets: heads.map(of_set).collect() }, numbers)
    }

    /// The sets that an identity is in.
    fn of(&self, identity: u32) -> &[u32] {
        // Larger identities are in no set that counts, as identity 0.
        let known = if identity as usize + 1 < self.starts.len() { identity as usize } else { 0 };
        match self.starts[known..] {
            [from, to, ..] => &self.members[from as usize..to as usize],
            _ => &[],
        }
    }

    /// The places of a set's rules over both ends.
    fn both(&self, set: u32) -> Range<usize> {
        self.sets[set as usize].both as usize..self.sets[set as usize + 1].both as usize
    }

    fn bytes(&self) -> usize {
        size_of_val(&*self.starts) + size_of_val(&*self.members) + size_of_val(&*self.sets)
    }
}

impl BySet {
    /// Builds it from rules in ascending order.
    pub(super) fn new(
        rules: &[Numbered],
        ends: &[Ends; 2],
        lists: &mut impl MakeLists,
        effective: &mut Effective<'_>,
    ) -> Result<Self, TooMany> {
        if rules.is_empty() {
            return Ok(Self::default());
        }
        let sizes = ends.each_ref().map(Ends::sizes);
        let field = |rule: &Numbered| {
            let size = |at: usize| match rule.ends[at] {
                all if all == ends[at].all() => u64::MAX / 2,
                set => u64::from(sizes[at][set as usize]),
            };
            // Of sets that are about as large a rule stays with the source.
            usize::from(2 * size(1) < size(0))
        };
        // By field and set: the first rule that stays with it, `NONE` if it is an other end alone.
        let mut heads = ends.each_ref().map(|ends| vec![None; ends.count()]);
        for rule in rules {
            let field = field(rule);
            for (at, heads) in heads.iter_mut().enumerate() {
                let head = heads[rule.ends[at] as usize].get_or_insert(NONE);
                *head = if at == field { rule.rule.min(*head) } else { *head };
            }
        }
        let [(source, sources), (destination, destinations)] =
            [0, 1].map(|at: usize| Sets::new(&heads[at], &ends[at]));
        let numbers = [sources, destinations];
        let set_of = |at: usize, rule: &Numbered| numbers[at][rule.ends[at] as usize];
        let mut sorted: Vec<(usize, u32, Numbered)> =
            rules.iter().map(|rule| (field(rule), set_of(field(rule), rule), *rule)).collect();
        sorted.sort_by_key(|(at, set, _)| (*at, *set));
        let mut sorted = &sorted[..];
        let mut both = Vec::new();
        let mut fields = [source, destination];
        for (at, field) in fields.iter_mut().enumerate() {
            for (set, of_set) in (0..).zip(&mut field.sets) {
                let here = sorted.iter().take_while(|rule| (rule.0, rule.1) == (at, set)).count();
                let (of_this, others) = sorted.split_at(here);
                sorted = others;
                let rules = || of_this.iter().map(|(.., rule)| rule);
                let is_alone = |rule: &&Numbered| rule.ends[1 - at] == ends[1 - at].all();
                let alone = rules().filter(is_alone);
                let alone = effective.of(alone.map(|rule| (rule.rule, rule.demand)));
                of_set.list = lists.list(alone)?;
                of_set.both = both.len() as u32;
                both.extend(rules().filter(|rule| !is_alone(rule)).map(|rule| OfBoth {
                    rule: rule.rule,
                    demand: rule.demand,
                    other: set_of(1 - at, rule),
                }));
            }
        }
        let demands = effective.demands().into();
        Ok(Self { fields, both, demands, rules: rules.len() })
    }

    pub(in crate::table) fn is_empty(&self) -> bool {
        self.rules == 0
    }

    /// The first rule that a key of a transport class matches if it is before `best`, else that.
    pub(in crate::table) fn first(
        &self,
        key: &Key,
        class: u32,
        lists: impl Lists,
        mut best: u32,
    ) -> u32 {
        let identities = [key.source_identity.0, key.destination_identity.0];
        let members = [0, 1].map(|at: usize| self.fields[at].of(identities[at]));
        for (at, field) in self.fields.iter().enumerate() {
            let others = members[1 - at];
            let mut filter = None;
            for set in members[at] {
                let OfSet { first, list, .. } = field.sets[*set as usize];
                if first >= best {
                    break;
                }
                if list != ListId::EMPTY {
                    best = best.min(lists.first(list, class, key, best));
                }
                let both = &self.both[field.both(*set)];
                if both.is_empty() {
                    continue;
                }
                let filter = filter.get_or_insert_with(|| Filter::new(others));
                let before = both.iter().take_while(|of| of.rule < best);
                let mut matching = before.filter(|of| {
                    filter.may_hold(of.other)
                        && self.demands[of.demand as usize].matches(key)
                        && others.binary_search(&of.other).is_ok()
                });
                best = matching.next().map_or(best, |of| of.rule);
            }
        }
        best
    }

    /// Memory accesses of a lookup at most, if a list takes so many.
    pub(in crate::table) fn loads(&self, list: usize) -> usize {
        let of_set = |field: &Sets, set: u32| {
            // Its number, what stays with it, and of each rule over both ends its parts and its transport condition.
            let lists = usize::from(field.sets[set as usize].list != ListId::EMPTY);
            2 + list * lists + 2 * field.both(set).len()
        };
        let most = |field: &Sets| {
            let of_identity = |identity: u32| {
                field.of(identity).iter().map(|set| of_set(field, *set)).sum::<usize>()
            };
            (0..field.starts.len() as u32).map(of_identity).max().unwrap_or(0)
        };
        self.fields.iter().map(most).sum()
    }

    /// Visits all lists.
    pub(super) fn each_list(&mut self, visit: impl FnMut(&mut ListId)) {
        self.fields
            .iter_mut()
            .flat_map(|field| &mut field.sets)
            .map(|set| &mut set.list)
            .for_each(visit);
    }

    pub(super) fn bytes(&self) -> usize {
        self.fields.iter().map(Sets::bytes).sum::<usize>()
            + size_of_val(&*self.both)
            + size_of_val(&*self.demands)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filter_holds_what_it_was_made_of() {
        let members: Vec<u32> = (0..50).map(|number| number * number * 7).collect();
        let filter = Filter::new(&members);
        assert!(members.iter().all(|set| filter.may_hold(*set)));
        assert!((0..2048).filter(|set| filter.may_hold(*set)).count() <= members.len());
    }
}
