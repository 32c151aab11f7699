//! Groups rules over both ends into tuples.
//!
//! A tuple has a cell for each pair of classes that one of its rules covers. The classes depend on
//! the ends of the tuple's rules alone, so rules over hosts take a cell each, and rules over wide
//! networks take few cells as long as the networks inside belong to other tuples. Tuples are made
//! one after the other: of the rules that are left, as many as fit a number of entries that is
//! linear in their number.

use crate::table::ends::{EndId, Ends, Kind, add_inside};

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
            let left = Left::new(self, &rest);
            let fan_out = left.fan_out(left.pairs.iter());
            let (entries, granted) = self.entries(left.pairs.iter(), &fan_out);
            if entries <= granted {
                self.room -= entries;
                tuples.push(std::mem::take(&mut rest));
                break;
            }
            // By the product, the source's and the destination's share of it.
            let bounds = [0, 1, 2].map(|by: usize| {
                let bound = |pair: &Pairs| {
                    let [source, destination] = pair.fan_out(&fan_out);
                    let value = [source * destination, source, destination][by];
                    (value.next_power_of_two().trailing_zeros() as u8).min(BOUNDS as u8)
                };
                left.pairs.iter().map(bound).collect::<Vec<u8>>()
            });
            let most = bounds.iter().map(|bounds| (self.most(&left, bounds, &fan_out), bounds));
            let Some(((count, bound), bounds)) = most.max_by_key(|((count, _), _)| *count) else {
                break;
            };
            if count == 0 {
                break;
            }
            let few = || left.pairs.iter().zip(bounds).filter(|(_, of)| usize::from(**of) <= bound);
            let fan_out = left.fan_out(few().map(|(pair, _)| pair));
            self.room -= self.entries(few().map(|(pair, _)| pair), &fan_out).0;
            let mut bounds = bounds.iter();
            let is_few = |_: &mut u32| bounds.next().is_some_and(|of| usize::from(*of) <= bound);
            tuples.push(rest.extract_if(.., is_few).collect());
        }
        rest
    }

    /// How many of the pairs that are left, those with the smallest bounds of their fan-outs, fit a tuple; and the
    /// largest of these bounds.
    fn most(&self, left: &Left, bounds: &[u8], fan_out: &[Vec<u32>; 2]) -> (usize, usize) {
        let up_to = |bound: usize| {
            let pairs = left.pairs.iter().zip(bounds);
            pairs.filter(move |(_, of)| usize::from(**of) <= bound).map(|(pair, _)| pair)
        };
        // By bound: pairs up to there.
        let mut counts = [0; BOUNDS + 1];
        bounds.iter().for_each(|bound| counts[usize::from(*bound)] += 1);
        (1..=BOUNDS).for_each(|bound| counts[bound] += counts[bound - 1]);
        let mut best = (0, 0);
        let (mut low, mut high) = (0, BOUNDS);
        // So many are too many, as all of them are.
        let mut failed = bounds.len();
        // Whether so many fit does not quite follow the bound: the search is a heuristic.
        while low < high {
            let bound = (low + high) / 2;
            let count = counts[bound];
            // Fan-outs are dear to count, and often nearly all alike: some bounds take the same pairs, or none. Fewer
            // pairs have smaller ones.
            let fits = |fan_out: &[Vec<u32>; 2]| {
                let (entries, granted) = self.entries(up_to(bound), fan_out);
                entries <= granted
            };
            if count < failed && (fits(fan_out) || fits(&left.fan_out(up_to(bound)))) {
                low = bound + 1;
                best = (count, bound);
            } else {
                (failed, high) = (count, bound);
            }
        }
        best
    }

    /// Entries of a tuple of these pairs, and how many it may have.
    fn entries<'p>(
        &self,
        some: impl Iterator<Item = &'p Pairs>,
        fan_out: &[Vec<u32>; 2],
    ) -> (u64, u64) {
        let (mut entries, mut rules) = (0, 0);
        for pair in some {
            let [source, destination] = pair.fan_out(fan_out);
            entries += source * destination * u64::from(pair.rules);
            rules += u64::from(pair.rules);
        }
        let granted = (self.each * rules).min((16 * rules).max(ENTRIES_MOST)) + ENTRIES_MORE;
        (entries, granted.min(self.room))
    }
}

/// Pairs that are left, and what counts of their ends.
struct Left<'a> {
    pairs: Vec<Pairs>,
    fields: [Side<'a>; 2],
}

/// A pair of ends by their numbers, and its rules.
struct Pairs {
    ends: [u32; 2],
    rules: u32,
}

/// The ends of one field.
enum Side<'a> {
    /// Of networks those that pairs name, numbered anew: the one next around each, or 0.
    Nets(Vec<u32>),
    Others(&'a Ends, Kind),
}

impl<'a> Left<'a> {
    fn new(merger: &Merger<'a>, rest: &[u32]) -> Self {
        let mut numbers = [Vec::new(), Vec::new()];
        let fields = [0, 1].map(|at: usize| {
            let (ends, kind) = (&merger.fields[at], merger.kinds[at]);
            if kind != Kind::Net {
                return Side::Others(ends, kind);
            }
            let around;
            (numbers[at], around) = ends.only(&used(merger.pairs, rest, at, kind, ends));
            Side::Nets(around)
        });
        let number = |at: usize, end: EndId| {
            numbers[at].get(end.number as usize).copied().unwrap_or(end.number)
        };
        let pairs = rest.iter().map(|pair| {
            let (ends, rules) = merger.pairs[*pair as usize];
            Pairs { ends: [number(0, ends[0]), number(1, ends[1])], rules }
        });
        Self { pairs: pairs.collect(), fields }
    }

    /// By end: how many classes it covers if there are only these pairs.
    fn fan_out<'p>(&self, some: impl Iterator<Item = &'p Pairs> + Clone) -> [Vec<u32>; 2] {
        [0, 1].map(|at: usize| {
            let ends = some.clone().map(|pair| pair.ends[at] as usize);
            match &self.fields[at] {
                Side::Nets(around) => {
                    let mut counts = vec![0; around.len()];
                    ends.for_each(|end| counts[end] = 1);
                    add_inside(&mut counts, around);
                    counts
                }
                Side::Others(of, kind) => {
                    let mut used = vec![false; of.numbers(*kind)];
                    ends.for_each(|end| used[end] = true);
                    of.fan_out(*kind, &used)
                }
            }
        })
    }
}

impl Pairs {
    fn fan_out(&self, fan_out: &[Vec<u32>; 2]) -> [u64; 2] {
        [0, 1].map(|at: usize| u64::from(fan_out[at][self.ends[at] as usize]))
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
            let entries = |some: &Vec<u32>| {
                let some = Left::new(&merger, some);
                merger.entries(some.pairs.iter(), &some.fan_out(some.pairs.iter())).0
            };
            let entries: u64 = tuples.iter().map(entries).sum();
            assert!(entries <= room, "{entries} of {room}");
            assert_eq!(room - entries, merger.room);
            assert_eq!(left.is_empty(), room == 1 << 20, "{room}");
            let taken: usize = tuples.iter().map(Vec::len).sum();
            assert_eq!(taken + left.len(), pairs.len());
        }
    }
}
