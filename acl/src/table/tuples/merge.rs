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
/// Entries over all tuples for each rule, and beyond: these take most of the time to compile.
const ENTRIES_OF_ALL: u64 = 128;
const ENTRIES_OF_ALL_MORE: u64 = 1 << 22;

/// Powers of two that fan-outs are compared with; a pair with a larger one fits no tuple beside others.
const BOUNDS: usize = 40;

/// The pairs of ends of some rules, each with so many rules.
pub(super) type Pair = ([EndId; 2], u32);

/// Parts pairs into so many tuples at most; those in none would need more. Unless all fit some grant, tuples are of the
/// least one that leaves none but rules over peer sets, else of the least one.
pub(super) fn merge(pairs: &[Pair], fields: &[Ends; 2], most: usize) -> Vec<Vec<u32>> {
    let names_set = |at: &u32| pairs[*at as usize].0.iter().any(|end| end.kind == Kind::Set);
    let (mut least, mut sparing) = (None, None);
    for each in ENTRIES_EACH {
        let mut tuples = Vec::new();
        let mut left = Vec::new();
        let rules: u64 = pairs.iter().map(|(_, rules)| u64::from(*rules)).sum();
        let mut room = ENTRIES_OF_ALL * rules + ENTRIES_OF_ALL_MORE;
        for source in [Kind::Net, Kind::Set, Kind::Any] {
            for destination in [Kind::Net, Kind::Set, Kind::Any] {
                let kinds = [source, destination];
                let of_kinds = |at: &u32| pairs[*at as usize].0.map(|end| end.kind) == kinds;
                let rest = (0..pairs.len() as u32).filter(of_kinds).collect();
                let mut merger = Merger { pairs, fields, kinds, each, most, room };
                left.extend(merger.merge(rest, &mut tuples));
                room = merger.room;
            }
        }
        if left.is_empty() {
            return tuples;
        }
        if sparing.is_none() && left.iter().all(names_set) {
            sparing = Some(tuples);
        } else if least.is_none() {
            least = Some(tuples);
        }
    }
    sparing.or(least).unwrap_or_default()
}

/// Merges pairs whose ends are of the same kinds.
struct Merger<'a> {
    pairs: &'a [Pair],
    fields: &'a [Ends; 2],
    kinds: [Kind; 2],
    each: u64,
    most: usize,
    /// Entries that tuples still to come may have.
    room: u64,
}

impl Merger<'_> {
    fn merge(&mut self, mut rest: Vec<u32>, tuples: &mut Vec<Vec<u32>>) -> Vec<u32> {
        while !rest.is_empty() && tuples.len() < self.most {
            let fan_out = self.fan_out(&rest);
            if let Some(entries) = self.fitting(&rest, &fan_out) {
                self.room -= entries;
                tuples.push(std::mem::take(&mut rest));
                break;
            }
            // By the product, the source's and the destination's share of it.
            let most = (0..3).map(|by| self.most(&rest, by, &fan_out));
            let Some((count, by, bound)) = most.max_by_key(|(count, ..)| *count) else { break };
            if count == 0 {
                break;
            }
            let few = |pair: &mut u32| self.bound(*pair, by, &fan_out) <= bound;
            let most: Vec<u32> = rest.extract_if(.., few).collect();
            self.room -= self.entries(&most, &self.fan_out(&most));
            tuples.push(most);
        }
        rest
    }

    /// The power of two that a pair's fan-out is not above.
    fn bound(&self, pair: u32, by: usize, fan_out: &[Vec<u32>; 2]) -> usize {
        let [source, destination] = self.fan_out_of(pair, fan_out);
        let value = match by {
            0 => source * destination,
            1 => source,
            _ => destination,
        };
        (value.next_power_of_two().trailing_zeros() as usize).min(BOUNDS)
    }

    /// How many pairs of `rest` fit a tuple, those with the smallest fan-out; what is that by, and its bound.
    fn most(&self, rest: &[u32], by: usize, fan_out: &[Vec<u32>; 2]) -> (usize, usize, usize) {
        let bounds: Vec<u8> =
            rest.iter().map(|pair| self.bound(*pair, by, fan_out) as u8).collect();
        // By bound: pairs up to there, their rules, and entries at most, as fewer pairs have a smaller fan-out.
        let mut up_to = [(0, 0, 0); BOUNDS + 1];
        for (pair, bound) in rest.iter().zip(&bounds) {
            let (count, rules, entries) = &mut up_to[usize::from(*bound)];
            *count += 1;
            *rules += u64::from(self.pairs[*pair as usize].1);
            *entries += self.entries_of(*pair, fan_out);
        }
        for bound in 1..up_to.len() {
            let before = up_to[bound - 1];
            let (count, rules, entries) = &mut up_to[bound];
            (*count, *rules, *entries) =
                (*count + before.0, *rules + before.1, *entries + before.2);
        }
        let mut best = (0, by, 0);
        let (mut low, mut high) = (0, BOUNDS);
        // So many are too many, as all of them are.
        let mut failed = rest.len();
        // Whether so many fit does not quite follow the bound: the search is a heuristic.
        while low < high {
            let bound = (low + high) / 2;
            let (count, rules, entries) = up_to[bound];
            // Fan-outs are dear to count, and often nearly all alike: some bounds take the same pairs, or none.
            let fits = count < failed
                && (entries <= self.granted(rules) || {
                    let some =
                        rest.iter().zip(&bounds).filter(|(_, of)| usize::from(**of) <= bound);
                    let some: Vec<u32> = some.map(|(pair, _)| *pair).collect();
                    self.fitting(&some, &self.fan_out(&some)).is_some()
                });
            if fits {
                low = bound + 1;
                best = best.max((count, by, bound));
            } else {
                (failed, high) = (count, bound);
            }
        }
        best
    }

    /// By end: how many classes it covers if there are only these pairs.
    fn fan_out(&self, some: &[u32]) -> [Vec<u32>; 2] {
        [0, 1].map(|field| {
            let kind = self.kinds[field];
            let used = used(self.pairs, some, field, kind, &self.fields[field]);
            self.fields[field].fan_out(kind, &used)
        })
    }

    fn fan_out_of(&self, pair: u32, fan_out: &[Vec<u32>; 2]) -> [u64; 2] {
        let ends = self.pairs[pair as usize].0;
        [0, 1].map(|field| u64::from(fan_out[field][ends[field].number as usize]))
    }

    /// Entries of a pair.
    fn entries_of(&self, pair: u32, fan_out: &[Vec<u32>; 2]) -> u64 {
        let [source, destination] = self.fan_out_of(pair, fan_out);
        source * destination * u64::from(self.pairs[pair as usize].1)
    }

    /// Entries of a tuple of these pairs.
    fn entries(&self, some: &[u32], fan_out: &[Vec<u32>; 2]) -> u64 {
        some.iter().map(|pair| self.entries_of(*pair, fan_out)).sum()
    }

    /// Entries that a tuple of so many rules may have.
    fn granted(&self, rules: u64) -> u64 {
        let granted = (self.each * rules).min((16 * rules).max(ENTRIES_MOST)) + ENTRIES_MORE;
        granted.min(self.room)
    }

    /// Entries of a tuple of these pairs, if it may have so many.
    fn fitting(&self, some: &[u32], fan_out: &[Vec<u32>; 2]) -> Option<u64> {
        let rules = some.iter().map(|pair| u64::from(self.pairs[*pair as usize].1)).sum();
        let entries = self.entries(some, fan_out);
        (entries <= self.granted(rules)).then_some(entries)
    }
}

/// By end's number: whether one of `some` pairs, which are of one kind, names it.
pub(super) fn used(
    pairs: &[Pair],
    some: &[u32],
    field: usize,
    kind: Kind,
    ends: &Ends,
) -> Vec<bool> {
    let mut used = vec![false; ends.numbers(kind)];
    for pair in some {
        used[pairs[*pair as usize].0[field].number as usize] = true;
    }
    used
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Action, AddressMap, End, Rule};

    #[test]
    fn tuples_keep_within_their_room() {
        let net = |bits: u32, length: u32| {
            let bits = bits.wrapping_mul(0x9e37_79b1);
            End::Net(ipnet::Ipv4Net::new_assert(bits.into(), length as u8).trunc().into())
        };
        let rule = |number: u32| {
            let rule = Rule::new(Action::Permit, "").source(net(number % 7, number % 32 + 1));
            rule.destination(net(number % 11, number * 5 % 32 + 1))
        };
        let rules: Vec<Rule> = (0..500).map(rule).collect();
        let rules: Vec<(u32, &Rule)> = (0..).zip(&rules).collect();
        let map = AddressMap::default();
        let (sources, source) = Ends::of(&rules, |rule| rule.source, &map);
        let (destinations, destination) = Ends::of(&rules, |rule| rule.destination, &map);
        let pairs: Vec<Pair> =
            source.into_iter().zip(destination).map(|(a, b)| ([a, b], 1)).collect();
        let fields = [sources, destinations];
        for room in [0, 100, 2000, 1 << 20] {
            let kinds = [Kind::Net; 2];
            let mut merger =
                Merger { pairs: &pairs, fields: &fields, kinds, each: 256, most: MOST, room };
            let mut tuples = Vec::new();
            let left = merger.merge((0..pairs.len() as u32).collect(), &mut tuples);
            let entries = |some: &Vec<u32>| merger.entries(some, &merger.fan_out(some));
            let entries: u64 = tuples.iter().map(entries).sum();
            assert!(entries <= room, "{entries} of {room}");
            assert_eq!(room - entries, merger.room);
            assert_eq!(left.is_empty(), room == 1 << 20, "{room}");
            let taken: usize = tuples.iter().map(Vec::len).sum();
            assert_eq!(taken + left.len(), pairs.len());
        }
    }
}
