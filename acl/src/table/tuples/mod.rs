//! Rules over both ends: a two-dimensional tuple space with tuple pruning.
//!
//! Rules are parted into a few *tuples* (Srinivasan, Suri and Varghese, SIGCOMM 1999), merged
//! where that copies few rules (Daly and others, TupleMerge, ToN 2019). Within a tuple each end has
//! an equivalence class, and a hash table leads from the pair of classes to the list of rules over
//! both. Each end of a key knows which tuples have a rule that it fits; only tuples that both ends
//! agree on are probed, that with the best rule first, and none that cannot beat the rule in hand.
//!
//! Rules that would take too many entries stay out of tuples and are tried [set by set](by_set) or
//! [network by network](by_net).
//!
//! How many tuples there are, and what a probe costs, does not depend on the order of the rules.

mod by_net;
mod by_set;
mod hash;
#[cfg(target_arch = "x86_64")]
mod lanes;
mod merge;
mod probe;

use super::ends::{EndId, Ends, Kind};
use super::field::{Both, Field};
use super::index::Index;
use super::lists::{Effective, ListId, Lists, MakeLists};
use super::sort::{Keyed, sort};
use super::transport::TooMany;
use crate::Key;
use by_net::ByNet;
use by_set::BySet;
use hash::Cells;
#[cfg(target_arch = "x86_64")]
pub(super) use lanes::Vector;
pub(super) use merge::MOST;
use merge::Pair;

/// The tuples of a table, that with the best rule first.
#[derive(Debug)]
pub(super) struct Tuples {
    count: usize,
    /// By tuple: its first rule.
    best: [u32; u32::BITS as usize],
    /// By tuple: the kinds of its ends.
    kinds: [[Kind; 2]; u32::BITS as usize],
    cells: Cells,
    /// Pairs of classes with a list.
    pub(super) pairs: usize,
    /// Rules of the tuple that has most.
    pub(super) largest: usize,
    /// Rules over peer sets that no tuple takes.
    pub(super) by_set: BySet,
    /// Other rules that no tuple takes.
    pub(super) by_net: ByNet,
}

/// A rule in numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Numbered {
    pub(super) rule: u32,
    /// The number of its transport condition.
    pub(super) demand: u32,
    pub(super) ends: [EndId; 2],
}

impl Tuples {
    /// So many at most of these rules, which ascend, with the records of both fields.
    pub(super) fn new(
        rules: &[Numbered],
        ends: &[Ends; 2],
        lists: &mut impl MakeLists,
        effective: &mut Effective<'_>,
        most: usize,
    ) -> Result<(Self, [Field; 2]), TooMany> {
        let mut pairs: Vec<Pair> = Vec::new();
        let mut known = Index::default();
        let mut pair_of = Vec::with_capacity(rules.len());
        let mut best = Vec::new();
        for rule in rules {
            let words = rule.ends.map(|end| (end.kind as u64) << 32 | u64::from(end.number));
            let hash = known.hash(words.into_iter());
            let fresh = pairs.len() as u32;
            let pair = known.number(hash, fresh, |pair| pairs[pair as usize].0 == rule.ends);
            if pair == fresh {
                pairs.push((rule.ends, 0));
                best.push(rule.rule);
            }
            pairs[pair as usize].1 += 1;
            pair_of.push(pair);
        }
        let mut merged = merge::merge(&pairs, ends, most);
        let best_of = |tuple: &Vec<u32>| {
            tuple.iter().map(|pair| best[*pair as usize]).min().unwrap_or(u32::MAX)
        };
        merged.sort_by_key(best_of);
        let count =
            |tuple: &Vec<u32>| tuple.iter().map(|pair| pairs[*pair as usize].1).sum::<u32>();
        let largest = merged.iter().map(count).max().unwrap_or(0) as usize;

        let mut fields =
            [0, 1].map(|field: usize| Field::new(&ends[field], Both::Tuples(merged.len())));
        let mut best_in = [u32::MAX; u32::BITS as usize];
        let mut kinds_of = [[Kind::Net; 2]; u32::BITS as usize];
        let mut tuple_of = vec![MOST; pairs.len()];
        let mut next = [1, 1];
        let mut classes = Vec::new();
        for (number, tuple) in merged.iter().enumerate() {
            let kinds = pairs[tuple[0] as usize].0.map(|end| end.kind);
            (best_in[number], kinds_of[number]) = (best_of(tuple), kinds);
            tuple.iter().for_each(|pair| tuple_of[*pair as usize] = number);
            classes.push([0, 1].map(|field: usize| {
                let (ends, kind) = (&ends[field], kinds[field]);
                let used = merge::used(&pairs, tuple, field, kind, ends);
                let classes = ends.classes(kind, &used, &mut next[field]);
                for (element, class) in (0..).zip(&classes.of).filter(|(_, class)| **class != 0) {
                    fields[field].set_class_in(kind, element, number, *class);
                }
                if kind == Kind::Any {
                    // Every element has the class of rules that do not name this field.
                    fields[field].set_class_of_all_in(ends, number, classes.of[0]);
                }
                classes.covered
            }));
        }
        // Every pair of classes with every rule over it.
        let mut entries: Vec<Keyed> = Vec::with_capacity(2 * rules.len());
        for ((at, rule), pair) in (0..).zip(rules).zip(&pair_of) {
            let Some([sources, destinations]) = classes.get(tuple_of[*pair as usize]) else {
                continue;
            };
            let [source, destination] = rule.ends;
            for source in sources.by(source.number) {
                let destinations = destinations.by(destination.number);
                entries.extend(destinations.map(|destination| (join(source, destination), at)));
            }
        }
        sort(&mut entries);
        let mut cells: Vec<(u64, ListId)> = Vec::with_capacity(entries.len());
        let rule = |at: u32| {
            let Numbered { rule, demand, .. } = rules[at as usize];
            (rule, demand)
        };
        for same in entries.chunk_by(|a, b| a.0 == b.0) {
            let list = match same {
                [(_, alone)] => lists.list(&[rule(*alone)])?,
                _ => lists.list(effective.of(same.iter().map(|(_, at)| rule(*at))))?,
            };
            cells.push((same[0].0, list));
        }
        let is_left = |pair: u32| tuple_of[pair as usize] == MOST;
        let left = rules.iter().zip(&pair_of).filter(|(_, pair)| is_left(**pair));
        let (by_set, by_net): (Vec<Numbered>, Vec<Numbered>) = left
            .map(|(rule, _)| *rule)
            .partition(|rule| rule.ends.iter().any(|end| end.kind == Kind::Set));
        let tuples = Self {
            count: merged.len(),
            best: best_in,
            kinds: kinds_of,
            cells: Cells::new(&cells),
            pairs: cells.len(),
            largest,
            by_set: BySet::new(&by_set, ends, lists, effective)?,
            by_net: ByNet::new(&by_net, ends, lists, effective)?,
        };
        Ok((tuples, fields))
    }

    /// Whether every rule is in a tuple.
    pub(super) fn takes_all(&self) -> bool {
        self.by_set.rules == 0 && self.by_net.rules == 0
    }

    /// The first rule of a key of a transport class among `best` and those that no tuple takes.
    pub(super) fn first_of_rest(
        &self,
        key: &Key,
        class: u32,
        lists: impl Lists,
        mut best: u32,
    ) -> u32 {
        if self.by_set.rules > 0 {
            best = self.by_set.first(key, class, lists, best);
        }
        if self.by_net.rules > 0 {
            best = self.by_net.first(key, class, lists, best);
        }
        best
    }

    /// Tuples there are.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Whether one of the tuples in `mask` may have a rule before `best`; those that come later
    /// promise less.
    #[inline(always)]
    pub(super) fn may_beat(&self, mask: u32, best: u32) -> bool {
        (mask != 0) & (self.best[first(mask)] < best)
    }

    /// The pair of classes in the first tuple of `mask`, which is not empty, and the place where
    /// its list would be. `record` maps a kind to the place of a field's record.
    #[inline(always)]
    pub(super) fn probe(
        &self,
        mask: u32,
        fields: &[Field; 2],
        record: impl Fn(usize, Kind) -> u32,
    ) -> (u64, u32) {
        let tuple = first(mask);
        let class = |at: usize| fields[at].class_in(record(at, self.kinds[tuple][at]), tuple);
        let pair = join(class(0), class(1));
        (pair, self.cells.place(pair))
    }

    #[inline(always)]
    pub(super) fn prefetch(&self, place: u32) {
        self.cells.prefetch(place);
    }

    /// The list of a pair of classes, which would be at `place`; else the empty one.
    #[inline(always)]
    pub(super) fn list(&self, pair: u64, place: u32) -> ListId {
        self.cells.list(place, pair)
    }

    /// Visits all lists.
    pub(super) fn each_list(&mut self, mut visit: impl FnMut(&mut ListId)) {
        self.cells.each_list(&mut visit);
        self.by_set.each_list(&mut visit);
        self.by_net.each_list(visit);
    }

    pub(super) fn bytes(&self) -> usize {
        self.cells.bytes() + self.by_set.bytes() + self.by_net.bytes()
    }
}

/// The first tuple of a mask that is not empty.
#[inline(always)]
fn first(mask: u32) -> usize {
    // Without the bound the compiler cannot prove that arrays are long enough.
    mask.trailing_zeros() as usize % u32::BITS as usize
}

/// A pair of classes in one number. Classes differ from tuple to tuple, so it names the tuple too.
#[inline(always)]
fn join(source: u32, destination: u32) -> u64 {
    u64::from(source) << 32 | u64::from(destination)
}
