//! The distinct ends that rules name in one field (source or destination), and what lies inside
//! each.
//!
//! A key's end is known as an *element*: the longest of these networks around its address, or its
//! identity. A network covers itself and the networks inside it; a peer set covers identities.

use std::collections::HashMap;
use std::ops::Range;

use ahash::RandomState;

use super::index::Index;
use super::ranges::Ranges;
use super::sort::{Keyed, sort};
use crate::prefix::Prefix;
use crate::{AddressMap, End, PeerSetId, Rule};

/// How a rule names an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Kind {
    /// By a network; elements are the numbers of networks, 0 for an address in none.
    Net,
    /// By a peer set; elements are identities.
    Set,
    /// Not at all; there is one element.
    Any,
}

/// An end that rules name, by its number among those of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct EndId {
    pub(super) kind: Kind,
    /// For networks counted from 1, as elements are.
    pub(super) number: u32,
}

impl EndId {
    pub(super) const ANY: Self = Self { kind: Kind::Any, number: 0 };
}

/// The ends of one field.
#[derive(Debug)]
pub(super) struct Ends {
    /// Networks, each before those inside it.
    pub(super) nets: Vec<Prefix>,
    /// By network number: the one next around, or 0.
    around: Vec<u32>,
    /// Peer sets that rules name.
    sets: u32,
    /// By identity: the named sets it is in, ascending. Empty if no rule names a set.
    members: Vec<Vec<u32>>,
}

/// Equivalence classes of a field's elements for the ends of some rules: elements that the same
/// ones of these ends cover are of one class.
#[derive(Debug)]
pub(super) struct Classes {
    /// By element: its class, or 0 if none of the ends covers it.
    pub(super) of: Vec<u32>,
    /// By end's number: the classes it covers, for ends in use.
    pub(super) covered: Covered,
}

/// The classes that each end covers.
#[derive(Debug)]
pub(super) enum Covered {
    /// Those of networks follow each other: the first one and how many.
    Runs(Vec<(u32, u32)>),
    /// Those of peer sets do not.
    Lists(Vec<Vec<u32>>),
}

impl Covered {
    /// The classes that end `number` covers: those of a run and those of a list.
    pub(super) fn parts(&self, number: u32) -> (Range<u32>, &[u32]) {
        match self {
            Self::Runs(runs) => {
                let (first, count) = runs[number as usize];
                (first..first + count, &[])
            }
            Self::Lists(lists) => (0..0, &lists[number as usize]),
        }
    }

    /// The classes that end `number` covers.
    pub(super) fn by(&self, number: u32) -> impl Iterator<Item = u32> + Clone + '_ {
        let (run, list) = self.parts(number);
        run.chain(list.iter().copied())
    }
}

impl Ends {
    /// The ends of `rules` as `end` picks them, and for each rule which it names.
    pub(super) fn of(
        rules: &[(u32, &Rule)],
        end: impl Fn(&Rule) -> End,
        addresses: &AddressMap,
    ) -> (Self, Vec<EndId>) {
        let mut named = vec![EndId::ANY; rules.len()];
        let mut by_net = Vec::new();
        let mut sets: HashMap<PeerSetId, u32, RandomState> = HashMap::default();
        for (at, (_, rule)) in rules.iter().enumerate() {
            match end(rule) {
                End::Any => {}
                End::Net(net) => by_net.extend(Prefix::new(&net).map(|prefix| (prefix, at as u32))),
                End::Set(set) => {
                    let fresh = sets.len() as u32;
                    let number = *sets.entry(set).or_insert(fresh);
                    named[at] = EndId { kind: Kind::Set, number };
                }
            }
        }
        let mut nets: Vec<Prefix> = Vec::new();
        for place in in_order(&by_net) {
            let (prefix, at) = by_net[place as usize];
            if nets.last() != Some(&prefix) {
                nets.push(prefix);
            }
            named[at as usize] = EndId { kind: Kind::Net, number: nets.len() as u32 };
        }
        let mut around = vec![0; nets.len() + 1];
        let mut open: Vec<u32> = Vec::new();
        for (number, net) in (1..).zip(&nets) {
            while open.pop_if(|outer| !nets[*outer as usize - 1].covers(*net)).is_some() {}
            around[number as usize] = open.last().copied().unwrap_or(0);
            open.push(number);
        }
        let members = match sets.is_empty() {
            true => Vec::new(),
            false => addresses
                .identities()
                .map(|identity| {
                    let named = addresses.members(identity).iter().filter_map(|set| sets.get(set));
                    let mut named: Vec<u32> = named.copied().collect();
                    named.sort_unstable();
                    named
                })
                .collect(),
        };
        (Self { nets, around, sets: sets.len() as u32, members }, named)
    }

    /// The ranges of addresses, with numbers `stride` apart, and the element of each; `None` if rules
    /// name no network.
    pub(super) fn ranges(&self, stride: u32) -> Option<(Ranges, Vec<u32>)> {
        let numbered = self.nets.iter().copied().zip(1_u32..);
        (!self.nets.is_empty()).then(|| Ranges::new(numbered, 0, stride))
    }

    /// Elements of a kind.
    pub(super) fn elements(&self, kind: Kind) -> usize {
        match kind {
            Kind::Net => self.nets.len() + 1,
            Kind::Set => self.members.len(),
            Kind::Any => 1,
        }
    }

    /// One more than the largest number of an end of a kind.
    pub(super) fn numbers(&self, kind: Kind) -> usize {
        match kind {
            Kind::Net => self.nets.len() + 1,
            Kind::Set => self.sets as usize,
            Kind::Any => 1,
        }
    }

    /// The network next around another, or 0.
    pub(super) fn around(&self, net: u32) -> u32 {
        self.around[net as usize]
    }

    /// The networks in `used` numbered anew from 1: by network its number, or that of the one next around which is in
    /// use; and by number the one next around.
    pub(super) fn only(&self, used: &[bool]) -> (Vec<u32>, Vec<u32>) {
        let (mut numbers, mut around) = (vec![0], vec![0]);
        for (net, used) in used.iter().enumerate().skip(1) {
            let outer = numbers[self.around[net] as usize];
            numbers.push(if *used { around.len() as u32 } else { outer });
            if *used {
                around.push(outer);
            }
        }
        (numbers, around)
    }

    /// The named sets that an identity is in.
    pub(super) fn members(&self, identity: u32) -> &[u32] {
        &self.members[identity as usize]
    }

    /// By peer set: how many identities are in it.
    pub(super) fn sizes(&self) -> Vec<u32> {
        let mut sizes = vec![0; self.sets as usize];
        self.members.iter().flatten().for_each(|set| sizes[*set as usize] += 1);
        sizes
    }

    /// By end's number: how many [classes](Self::classes) each covers if only the ends in `used`
    /// were there.
    pub(super) fn fan_out(&self, kind: Kind, used: &[bool]) -> Vec<u32> {
        let mut counts: Vec<u32> = used.iter().map(|used| u32::from(*used)).collect();
        match kind {
            Kind::Any => {}
            Kind::Net => {
                add_inside(&mut counts, &self.around);
            }
            Kind::Set => {
                counts.fill(0);
                // Only the hashes of classes are compared, sums of their sets', as this is called often. If two classes
                // had the same, a count would be one too low, and with it an estimate of memory.
                let mut known = Index::default();
                let hash = |(set, used): (u64, &bool)| {
                    if *used { known.hash([set].into_iter()) } else { 0 }
                };
                let hashes: Vec<u64> = (0..).zip(used).map(hash).collect();
                let mut classes: Vec<u64> = Vec::new();
                for members in &self.members {
                    let sum = |class: u64, set: &u32| class.wrapping_add(hashes[*set as usize]);
                    let class = members.iter().fold(0, sum);
                    let fresh = classes.len() as u32;
                    let number =
                        known.number(class, fresh, |known| classes[known as usize] == class);
                    if number == fresh {
                        classes.push(class);
                        used_of(members, used).for_each(|set| counts[set as usize] += 1);
                    }
                }
            }
        }
        counts
    }

    /// The classes for the ends in `used`, numbered from `next` on, which moves behind them.
    pub(super) fn classes(&self, kind: Kind, used: &[bool], next: &mut u32) -> Classes {
        match kind {
            Kind::Any => {
                *next += 1;
                Classes { of: vec![*next - 1], covered: Covered::Runs(vec![(*next - 1, 1)]) }
            }
            Kind::Net => {
                let mut runs = vec![(0, 0); used.len()];
                let mut of = vec![0; used.len()];
                for net in 1..used.len() {
                    of[net] = of[self.around[net] as usize];
                    if used[net] {
                        (of[net], runs[net].0) = (*next, *next);
                        *next += 1;
                    }
                }
                for (run, count) in runs.iter_mut().zip(self.fan_out(kind, used)) {
                    run.1 = count;
                }
                Classes { of, covered: Covered::Runs(runs) }
            }
            Kind::Set => {
                let mut lists = vec![Vec::new(); used.len()];
                let mut known: HashMap<Vec<u32>, u32, RandomState> = HashMap::default();
                known.insert(Vec::new(), 0);
                let class = |members: &Vec<u32>| {
                    let class: Vec<u32> = used_of(members, used).collect();
                    *known.entry(class).or_insert_with_key(|class| {
                        class.iter().for_each(|set| lists[*set as usize].push(*next));
                        *next += 1;
                        *next - 1
                    })
                };
                let of = self.members.iter().map(class).collect();
                Classes { of, covered: Covered::Lists(lists) }
            }
        }
    }
}

/// Adds to what is counted of networks what is counted of those inside.
pub(super) fn add_inside(counts: &mut [u32], around: &[u32]) {
    for net in (1..counts.len()).rev() {
        counts[around[net] as usize] += counts[net];
    }
}

/// The places of networks, by their [order](Prefix::order).
fn in_order(nets: &[(Prefix, u32)]) -> impl Iterator<Item = u32> {
    let v4 = |net: Prefix| (net.first().bits() as u64) << 8 | u64::from(net.length());
    let mut places: Vec<Keyed> = nets.iter().map(|(net, _)| v4(*net)).zip(0..).collect();
    if nets.iter().all(|(net, _)| net.is_v4()) {
        sort(&mut places);
    } else {
        // By what counts least first.
        let parts: [fn(Prefix) -> u64; 4] = [
            |net| net.length().into(),
            |net| net.first().bits() as u64,
            |net| (net.first().bits() >> 64) as u64,
            |net| net.is_v4().into(),
        ];
        for part in parts {
            places.iter_mut().for_each(|(key, place)| *key = part(nets[*place as usize].0));
            sort(&mut places);
        }
    }
    places.into_iter().map(|(_, place)| place)
}

fn used_of<'a>(members: &'a [u32], used: &'a [bool]) -> impl Iterator<Item = u32> + 'a {
    members.iter().copied().filter(|set| used[*set as usize])
}
