//! Rules over both ends: a two-dimensional tuple space with tuple pruning.
//!
//! Rules are parted into a few *tuples* (Srinivasan, Suri and Varghese, SIGCOMM 1999), merged
//! where that copies few rules (Daly and others, TupleMerge, ToN 2019). Within a tuple each end has
//! an equivalence class, and a hash table leads from the pair of classes to the list of rules over
//! both. Each end of a key knows which tuples have a rule that it fits; only tuples that both ends
//! agree on are probed, that with the best rule first, and none that cannot beat the rule in hand.
//!
//! Rules that would take too many entries stay out of tuples and are tried [set by set](by_set).
//!
//! The order of the rules changes neither the number of tuples nor the cost of a probe.

mod by_set;
mod hash;
mod merge;

use super::ends::Ends;
use super::field::Field;
use super::index::Index;
use super::lists::{Effective, ListId, MakeLists};
use super::plan::Numbered;
use super::transport::TooMany;
use by_set::BySet;
use hash::Cells;
pub(super) use merge::MOST;
use merge::{Pair, used};

/// The tuples of a table, that with the best rule first.
#[derive(Debug)]
pub(super) struct Tuples {
    /// Number of tuples.
    pub(super) count: usize,
    /// Rules in them and beside.
    pub(super) rules: usize,
    /// By tuple: its first rule.
    best: [u32; u32::BITS as usize],
    cells: Cells,
    /// Pairs of classes with a list.
    pub(super) pairs: usize,
    /// Rules that no tuple takes.
    pub(super) rest: BySet,
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
        let mut first = Vec::new();
        let pair_of = rules.iter().map(|rule| {
            let fresh = pairs.len() as u32;
            let hash = known.hash_of(&rule.ends);
            let pair = known.number(hash, fresh, |pair| pairs[pair as usize].ends == rule.ends);
            if pair == fresh {
                pairs.push(Pair { ends: rule.ends, rules: 0 });
                first.push(rule.rule);
            }
            pairs[pair as usize].rules += 1;
            pair
        });
        let pair_of: Vec<u32> = pair_of.collect();
        let mut merged = merge::merge(&pairs, ends, most);
        let best_of = |tuple: &Vec<u32>| tuple.iter().map(|pair| first[*pair as usize]).min();
        merged.sort_by_key(best_of);

        let mut fields = ends.each_ref().map(|ends| Field::new(ends, Some(merged.len())));
        let mut best = [u32::MAX; u32::BITS as usize];
        let mut tuple_of = vec![MOST; pairs.len()];
        let mut next = [1, 1];
        let mut covered = Vec::new();
        for (number, tuple) in merged.iter().enumerate() {
            best[number] = best_of(tuple).unwrap_or(u32::MAX);
            tuple.iter().for_each(|pair| tuple_of[*pair as usize] = number);
            covered.push([0, 1].map(|at: usize| {
                let of_tuple = tuple.iter().map(|pair| &pairs[*pair as usize]);
                let classes = ends[at].classes(&used(of_tuple, at, &ends[at]), &mut next[at]);
                fields[at].set_classes(number, &classes.of);
                classes.covered
            }));
        }
        // Every pair of classes with every rule over it.
        let mut entries: Vec<(u64, u32)> = Vec::with_capacity(2 * rules.len());
        let mut rest = Vec::new();
        for ((at, rule), pair) in (0..).zip(rules).zip(&pair_of) {
            let Some([sources, destinations]) = covered.get(tuple_of[*pair as usize]) else {
                rest.push(*rule);
                continue;
            };
            let [source, destination] = rule.ends;
            for source in &sources[source as usize] {
                let destinations = destinations[destination as usize].iter();
                entries.extend(destinations.map(|destination| (join(*source, *destination), at)));
            }
        }
        entries.sort_unstable();
        let mut cells: Vec<(u64, ListId)> = Vec::with_capacity(entries.len());
        for same in entries.chunk_by(|a, b| a.0 == b.0) {
            let rules = same.iter().map(|(_, at)| rules[*at as usize]);
            let list = effective.of(rules.map(|rule| (rule.rule, rule.demand)));
            cells.push((same[0].0, lists.list(list)?));
        }
        let tuples = Self {
            count: merged.len(),
            rules: rules.len(),
            best,
            cells: Cells::new(&cells),
            pairs: cells.len(),
            rest: BySet::new(&rest, ends, lists, effective)?,
        };
        Ok((tuples, fields))
    }

    /// Whether one of the tuples in `mask` may have a rule before `best`; those that come later
    /// promise less.
    #[inline(always)]
    pub(super) fn may_beat(&self, mask: u32, best: u32) -> bool {
        (mask != 0) & (self.best[first(mask)] < best)
    }

    /// The pair of classes in the first tuple of `mask`, which is not empty, and the place where its list would be.
    /// `class` maps a field and a tuple to the key's class.
    #[inline(always)]
    pub(super) fn probe(&self, mask: u32, class: impl Fn(usize, usize) -> u32) -> (u64, u32) {
        let pair = join(class(0, first(mask)), class(1, first(mask)));
        (pair, self.cells.place(pair))
    }

    /// Asks for the memory at a place.
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
        self.rest.each_list(visit);
    }

    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + self.cells.bytes() + self.rest.bytes()
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
