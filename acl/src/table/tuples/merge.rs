//! Groups rules over both ends into tuples.
//!
//! A tuple has a cell for each pair of classes that one of its rules covers. The classes depend on
//! the ends of the tuple's rules alone, so rules over hosts take a cell each, and rules over wide
//! sets take few cells as long as the sets inside belong to other tuples. Tuples are made
//! one after the other: of the rules that are left, as many as fit a number of entries that is
//! linear in their number.

use crate::table::ends::Ends;

/// Most tuples: as many as bits in a mask.
pub(in crate::table) const MOST: usize = 24;

/// Entries that a tuple may have for each rule in it, and beyond; more are granted if the
/// tuples would be too many.
const ENTRIES_EACH: [u64; 2] = [4, 16];
const ENTRIES_MORE: u64 = 2048;
/// Entries of a tuple beyond which no more than sixteen for each rule are granted.
const ENTRIES_MOST: u64 = 1 << 22;
/// Entries over all tuples for each rule, and beyond: these take most of the time to compile.
const ENTRIES_OF_ALL: u64 = 128;
const ENTRIES_OF_ALL_MORE: u64 = 1 << 22;

/// Powers of two that fan-outs are compared with; a pair with a larger one fits no tuple beside others.
const BOUNDS: usize = 40;

/// A pair of ends, and how many rules are over it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair {
    pub(super) ends: [u32; 2],
    pub(super) rules: u32,
}

impl Pair {
    /// The classes that its ends cover.
    fn fan_out(&self, fan_out: &[Vec<u32>; 2]) -> [u64; 2] {
        [0, 1].map(|at: usize| u64::from(fan_out[at][self.ends[at] as usize]))
    }
}

/// Parts pairs into so many tuples at most; those in none would need more. Unless all fit some grant, tuples are of the
/// least one.
pub(super) fn merge(pairs: &[Pair], ends: &[Ends; 2], most: usize) -> Vec<Vec<u32>> {
    let mut least = None;
    for each in ENTRIES_EACH {
        let rules: u64 = pairs.iter().map(|pair| u64::from(pair.rules)).sum();
        let room = ENTRIES_OF_ALL * rules + ENTRIES_OF_ALL_MORE;
        let mut merger = Merger { pairs, ends, each, room };
        let (tuples, left) = merger.merge(most);
        if left.is_empty() {
            return tuples;
        }
        least.get_or_insert(tuples);
    }
    least.unwrap_or_default()
}

/// Merges pairs.
struct Merger<'a> {
    pairs: &'a [Pair],
    ends: &'a [Ends; 2],
    each: u64,
    /// Entries that tuples still to come may have.
    room: u64,
}

impl Merger<'_> {
    /// So many tuples at most, and the pairs in none.
    fn merge(&mut self, most: usize) -> (Vec<Vec<u32>>, Vec<u32>) {
        let mut tuples = Vec::new();
        let mut rest: Vec<u32> = (0..self.pairs.len() as u32).collect();
        while !rest.is_empty() && tuples.len() < most {
            let fan_out = self.fan_out(&rest);
            // By the product, the source's and the destination's share of it.
            let bounds = [0, 1, 2].map(|by: usize| {
                let bound = |pair: &u32| {
                    let [source, destination] = self.pairs[*pair as usize].fan_out(&fan_out);
                    let value = [source * destination, source, destination][by];
                    (value.next_power_of_two().trailing_zeros() as u8).min(BOUNDS as u8)
                };
                rest.iter().map(bound).collect::<Vec<u8>>()
            });
            let tuple = bounds.iter().map(|bounds| self.largest(&rest, bounds, &fan_out));
            let Some(tuple) = tuple.max_by_key(Vec::len).filter(|tuple| !tuple.is_empty()) else {
                break;
            };
            self.room -= self.entries(&tuple, &self.fan_out(&tuple)).0;
            let mut taken = tuple.iter().copied().peekable();
            rest.retain(|pair| taken.next_if_eq(pair).is_none());
            tuples.push(tuple);
        }
        (tuples, rest)
    }

    /// The pairs that are left, those with the smallest bounds of their fan-outs, as many as fit a tuple.
    fn largest(&self, rest: &[u32], bounds: &[u8], fan_out: &[Vec<u32>; 2]) -> Vec<u32> {
        let mut best = Vec::new();
        // So many are too many.
        let mut failed = usize::MAX;
        // Whether so many fit does not quite follow the bound: the search is a heuristic.
        let (mut low, mut high) = (0, BOUNDS + 1);
        while low < high {
            let bound = (low + high) / 2;
            let few = rest.iter().zip(bounds).filter(|(_, of)| usize::from(**of) <= bound);
            let few: Vec<u32> = few.map(|(pair, _)| *pair).collect();
            let fits = |fan_out: &[Vec<u32>; 2]| {
                let (entries, granted) = self.entries(&few, fan_out);
                entries <= granted
            };
            // Some bounds take the same pairs, and fewer pairs have smaller fan-outs.
            let fits = few.len() == best.len()
                || few.len() < failed && (fits(fan_out) || fits(&self.fan_out(&few)));
            if fits {
                (low, best) = (bound + 1, few);
            } else {
                (high, failed) = (bound, few.len());
            }
        }
        best
    }

    /// Entries of a tuple of these pairs, and how many it may have.
    fn entries(&self, some: &[u32], fan_out: &[Vec<u32>; 2]) -> (u64, u64) {
        let (mut entries, mut rules) = (0, 0);
        for pair in some.iter().map(|pair| &self.pairs[*pair as usize]) {
            let [source, destination] = pair.fan_out(fan_out);
            entries += source * destination * u64::from(pair.rules);
            rules += u64::from(pair.rules);
        }
        let granted = (self.each * rules).min((16 * rules).max(ENTRIES_MOST)) + ENTRIES_MORE;
        (entries, granted.min(self.room))
    }

    /// By end: how many classes it covers if there are only these pairs.
    fn fan_out(&self, some: &[u32]) -> [Vec<u32>; 2] {
        let pairs = || some.iter().map(|pair| &self.pairs[*pair as usize]);
        [0, 1].map(|at: usize| self.ends[at].fan_out(&used(pairs(), at, &self.ends[at])))
    }
}

/// By end of a field: whether one of these pairs names it.
pub(super) fn used<'a>(
    pairs: impl Iterator<Item = &'a Pair>,
    field: usize,
    ends: &Ends,
) -> Vec<bool> {
    let mut used = vec![false; ends.count()];
    pairs.for_each(|pair| used[pair.ends[field] as usize] = true);
    used
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::tests::networks::Networks;
    use crate::{Action, Rule};

    #[test]
    fn tuples_keep_within_their_room() {
        let mut networks = Networks::default();
        let mut net = |bits: u32, length: u32| {
            let bits = bits.wrapping_mul(0x9e37_79b1);
            networks.end(ipnet::Ipv4Net::new_assert(bits.into(), length as u8).into())
        };
        let mut rule = |number: u32| {
            let rule = Rule::new(Action::Permit, "").source(net(number % 7, number % 32 + 1));
            rule.destination(net(number % 11, number * 5 % 32 + 1))
        };
        let rules: Vec<Rule> = (0..500).map(&mut rule).collect();
        let rules: Vec<(u32, &Rule)> = (0..).zip(&rules).collect();
        let map = networks.map();
        let (sources, source) = Ends::of(&rules, |rule| rule.source, &map);
        let (destinations, destination) = Ends::of(&rules, |rule| rule.destination, &map);
        let pairs = source.into_iter().zip(destination);
        let pairs: Vec<Pair> = pairs.map(|(a, b)| Pair { ends: [a, b], rules: 1 }).collect();
        let ends = [sources, destinations];
        for room in [0, 100, 2000, 1 << 20] {
            let mut merger = Merger { pairs: &pairs, ends: &ends, each: 256, room };
            let (tuples, left) = merger.merge(MOST);
            let entries: u64 =
                tuples.iter().map(|tuple| merger.entries(tuple, &merger.fan_out(tuple)).0).sum();
            assert!(entries <= room, "{entries} of {room}");
            assert_eq!(room - entries, merger.room);
            assert_eq!(left.is_empty(), room == 1 << 20, "{room}");
            let mut all: Vec<u32> = tuples.into_iter().flatten().chain(left).collect();
            all.sort_unstable();
            assert!(all.into_iter().eq(0..500));
        }
    }
}
