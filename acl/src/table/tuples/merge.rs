//! Groups rules over both ends into tuples.
//!
//! A tuple has a cell for each pair of classes that one of its rules covers. The classes depend on
//! the ends of the tuple's rules alone, so rules over hosts take a cell each, and rules over wide
//! networks take few cells as long as the networks inside belong to other tuples. Tuples are made
//! one after the other: of the rules that are left, as many as fit a number of entries that is
//! linear in their number.

use crate::table::ends::{EndId, Ends, Kind};

/// Most tuples: as many as bits in a mask.
pub(in crate::table) const MOST: usize = 24;

/// Entries that a tuple may have for each pair of ends in it, and beyond; more are granted if the
/// tuples would be too many.
const ENTRIES_EACH: [u64; 4] = [4, 16, 64, 256];
const ENTRIES_MORE: u64 = 2048;
/// Entries of a tuple beyond which no more than sixteen for each rule are granted.
const ENTRIES_MOST: u64 = 1 << 22;

/// The pairs of ends of some rules, each with so many rules.
pub(super) type Pair = ([EndId; 2], u32);

/// Parts pairs into so many tuples at most; those in none would need more.
pub(super) fn merge(pairs: &[Pair], fields: &[Ends; 2], most: usize) -> Vec<Vec<u32>> {
    let mut tuples = Vec::new();
    for each in ENTRIES_EACH {
        tuples.clear();
        let mut left = 0;
        for source in [Kind::Net, Kind::Set, Kind::Any] {
            for destination in [Kind::Net, Kind::Set, Kind::Any] {
                let kinds = [source, destination];
                let of_kinds = |at: &u32| pairs[*at as usize].0.map(|end| end.kind) == kinds;
                let rest = (0..pairs.len() as u32).filter(of_kinds).collect();
                let merger = Merger { pairs, fields, kinds, each, most };
                left += merger.merge(rest, &mut tuples).len();
            }
        }
        if left == 0 {
            break;
        }
    }
    tuples
}

/// Merges pairs whose ends are of the same kinds.
struct Merger<'a> {
    pairs: &'a [Pair],
    fields: &'a [Ends; 2],
    kinds: [Kind; 2],
    each: u64,
    most: usize,
}

impl Merger<'_> {
    fn merge(&self, mut rest: Vec<u32>, tuples: &mut Vec<Vec<u32>>) -> Vec<u32> {
        while !rest.is_empty() && tuples.len() < self.most {
            let fan_out = self.fan_out(&rest);
            if self.fits(&rest, &fan_out) {
                tuples.push(std::mem::take(&mut rest));
                break;
            }
            // By the product, the source's and the destination's share of it.
            let most = (0..3).map(|by| self.most(&rest, by, &fan_out)).max_by_key(Vec::len);
            let Some(most) = most.filter(|most| !most.is_empty()) else { break };
            let mut taken = most.iter().peekable();
            rest.retain(|pair| taken.next_if_eq(&pair).is_none());
            tuples.push(most);
        }
        rest
    }

    /// As many pairs of `rest` as fit a tuple, those with the smallest fan-out.
    fn most(&self, rest: &[u32], by: usize, fan_out: &[Vec<u32>; 2]) -> Vec<u32> {
        let value = |pair: u32| {
            let [source, destination] = self.fan_out_of(pair, fan_out);
            match by {
                0 => source * destination,
                1 => source,
                _ => destination,
            }
        };
        let mut best = Vec::new();
        let (mut low, mut high) = (0, 40);
        // Whether so many fit does not quite follow the bound: the search is a heuristic.
        while low < high {
            let bound = (low + high) / 2;
            let some: Vec<u32> =
                rest.iter().copied().filter(|pair| value(*pair) <= 1 << bound).collect();
            if self.fits(&some, &self.fan_out(&some)) {
                low = bound + 1;
                if some.len() > best.len() {
                    best = some;
                }
            } else {
                high = bound;
            }
        }
        best
    }

    /// By end: how many classes it covers if there are only these pairs.
    fn fan_out(&self, some: &[u32]) -> [Vec<u32>; 2] {
        [0, 1].map(|field| {
            let kind = self.kinds[field];
            let used = used(self.pairs, some, field, &self.fields[field]);
            self.fields[field].fan_out(kind, &used)
        })
    }

    fn fan_out_of(&self, pair: u32, fan_out: &[Vec<u32>; 2]) -> [u64; 2] {
        let ends = self.pairs[pair as usize].0;
        [0, 1].map(|field| u64::from(fan_out[field][ends[field].number as usize]))
    }

    fn fits(&self, some: &[u32], fan_out: &[Vec<u32>; 2]) -> bool {
        let rules: u64 = some.iter().map(|pair| u64::from(self.pairs[*pair as usize].1)).sum();
        let entries = |pair: &u32| {
            let [source, destination] = self.fan_out_of(*pair, fan_out);
            source * destination * u64::from(self.pairs[*pair as usize].1)
        };
        let granted = (self.each * rules).min((16 * rules).max(ENTRIES_MOST)) + ENTRIES_MORE;
        some.iter().map(entries).sum::<u64>() <= granted
    }
}

/// By end's number: whether one of `some` pairs, which are of one kind, names it.
pub(super) fn used(pairs: &[Pair], some: &[u32], field: usize, ends: &Ends) -> Vec<bool> {
    let kind = some.first().map_or(Kind::Any, |pair| pairs[*pair as usize].0[field].kind);
    let mut used = vec![false; ends.numbers(kind)];
    for pair in some {
        used[pairs[*pair as usize].0[field].number as usize] = true;
    }
    used
}
