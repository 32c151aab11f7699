//! Compiling: which structure takes which rules.
//!
//! ```text
//! rule looks at     goes to
//! no end            the list that every key is asked about
//! one end           lists of that end's elements, merged with those around
//! both ends         tuples; each end notes the tuple and its class there
//! ```
//!
//! Where there are few classes of both ends, all rules go to one [crossed](super::crossed) table
//! instead. Where the lists of one end, merged, would grow beyond what is linear in the number of
//! rules, those of the widest ends go to tuples as well. Where there are too many transport
//! classes, lists are cut by ports.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use ahash::RandomState;

use super::crossed::Crossed;
use super::ends::{EndId, Ends, Kind};
use super::field::Field;
use super::lists::{ListId, MakeLists, Rows, RowsBuilder};
use super::scan::{Scans, ScansBuilder};
use super::transport::{Matching, TooMany, Transport, TransportClasses};
use super::tuples::{MOST, Numbered, Tuples};
use crate::prefix::Prefix;
use crate::{AddressMap, End, Rule};

/// The compiled parts of a table.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) lists: Decide,
    pub(super) ends: ByEnds,
}

/// Maps the ends of a key to lists.
#[derive(Debug)]
pub(super) enum ByEnds {
    /// One list for each pair of classes.
    Crossed(Crossed),
    /// Lists for each end, and tuples.
    Pruned(Box<Pruned>),
}

/// Lists for each end, and tuples of rules over both.
#[derive(Debug)]
pub(super) struct Pruned {
    /// Rules over no end.
    pub(super) any: ListId,
    pub(super) fields: [Field; 2],
    pub(super) tuples: Tuples,
    /// Rules in lists of one end or none.
    pub(super) in_lists: usize,
}

/// How lists are decided.
#[derive(Debug)]
pub(super) enum Decide {
    /// By transport class.
    Rows(Box<TransportClasses>, Rows),
    /// By cuts and comparing.
    Scans(Scans),
}

/// Compiles these rules.
pub(super) fn compile(rules: &[Rule], addresses: &AddressMap) -> Parts {
    let input = Input::new(rules, addresses);
    let crossed = || if input.is_two_sided() { input.crossed() } else { None };
    crossed().or_else(|| input.pruned(MOST)).unwrap_or_else(|| input.pruned_by_cuts(MOST))
}

/// Every structure that can hold these rules, be it chosen for them or not.
#[cfg(test)]
pub(super) fn all(rules: &[Rule], addresses: &AddressMap) -> Vec<Parts> {
    let input = Input::new(rules, addresses);
    let by_cuts = [0, 1, 2, MOST].map(|most| input.pruned_by_cuts(most));
    let by_class = [0, 1, 2, MOST].into_iter().filter_map(|most| input.pruned(most));
    by_class.chain(by_cuts).chain(input.crossed()).collect()
}

/// Cells of rows in a crossed table, and in another beyond what is linear in its rules.
const CELLS_CROSSED: usize = 1 << 19;
const CELLS_MORE: usize = 1 << 23;

/// Rules that can match, with their transport conditions by number.
struct Input {
    transport: Result<(TransportClasses, Matching), TooMany>,
    rules: Vec<Numbered>,
    demands: Vec<Transport>,
    ends: [Ends; 2],
}

impl Input {
    fn new(rules: &[Rule], addresses: &AddressMap) -> Self {
        let rules: Vec<(u32, &Rule)> =
            (0..).zip(rules).filter(|(_, rule)| can_match(rule)).collect();
        let (sources, source) = Ends::of(&rules, |rule| rule.source, addresses);
        let (destinations, destination) = Ends::of(&rules, |rule| rule.destination, addresses);
        let mut demands = Vec::new();
        let mut known: HashMap<Transport, u32, RandomState> = HashMap::default();
        let numbered = rules.iter().zip(source.into_iter().zip(destination));
        let rules = numbered.map(|((rule, of), (source, destination))| Numbered {
            rule: *rule,
            demand: *known.entry(Transport::of(of)).or_insert_with_key(|demand| {
                demands.push(*demand);
                demands.len() as u32 - 1
            }),
            ends: [source, destination],
        });
        let rules = rules.collect();
        let transport = TransportClasses::new(&demands);
        Self { transport, rules, demands, ends: [sources, destinations] }
    }

    /// With both fields' classes crossed, if they are few.
    fn crossed(&self) -> Option<Parts> {
        let (classes, matching) = self.transport.as_ref().ok()?;
        let mut rows = RowsBuilder::new(matching, CELLS_CROSSED);
        let mut distinct = Distinct::new(self.demands.len());
        let crossed = Crossed::new(&self.rules, &self.ends, &mut rows, &mut distinct)?;
        let lists = Decide::Rows(Box::new(classes.clone()), rows.finish());
        Some(Parts { lists, ends: ByEnds::Crossed(crossed) })
    }

    /// With lists for each end, and so many tuples at most, if transport classes are few.
    fn pruned(&self, tuples: usize) -> Option<Parts> {
        let (classes, matching) = self.transport.as_ref().ok()?;
        let mut rows = RowsBuilder::new(matching, 64 * self.rules.len() + CELLS_MORE);
        let pruned = self.build(&mut rows, tuples).ok()?;
        let lists = Decide::Rows(Box::new(classes.clone()), rows.finish());
        Some(Parts { lists, ends: ByEnds::Pruned(Box::new(pruned)) })
    }

    /// The same with lists cut by ports, whatever the rules.
    fn pruned_by_cuts(&self, tuples: usize) -> Parts {
        let mut scans = ScansBuilder::new(&self.demands);
        let pruned = self.build(&mut scans, tuples);
        let pruned = pruned.unwrap_or_else(|TooMany| unreachable!("cuts have no limit"));
        let ends = ByEnds::Pruned(Box::new(pruned));
        Parts { lists: Decide::Scans(scans.finish()), ends }
    }

    /// Whether any rule looks at both ends.
    fn is_two_sided(&self) -> bool {
        self.rules.iter().any(|rule| rule.ends.iter().all(|end| end.kind != Kind::Any))
    }

    /// Lists for each end, and so many tuples at most.
    fn build(&self, lists: &mut impl MakeLists, most: usize) -> Result<Pruned, TooMany> {
        let mut distinct = Distinct::new(self.demands.len());
        let wide = [0, 1].map(|at| self.wide(at));
        let in_list = |rule: &&Numbered| match rule.ends {
            [EndId { kind: Kind::Any, .. }, EndId { kind: Kind::Any, .. }] => true,
            [end, EndId { kind: Kind::Any, .. }] => !wide[0].contains(&end),
            [EndId { kind: Kind::Any, .. }, end] => !wide[1].contains(&end),
            _ => false,
        };
        let any = self.rules.iter().filter(|rule| rule.ends == [EndId::ANY; 2]);
        let any = lists.list(distinct.of(any.map(|rule| (rule.rule, rule.demand))))?;
        let in_tuples: Vec<Numbered> =
            self.rules.iter().filter(|rule| !in_list(rule)).copied().collect();
        let (tuples, mut fields) = Tuples::new(&in_tuples, &self.ends, lists, &mut distinct, most)?;
        for (at, (ends, field)) in self.ends.iter().zip(&mut fields).enumerate() {
            let mut own = [Kind::Net, Kind::Set].map(|kind| vec![Vec::new(); ends.numbers(kind)]);
            for rule in self.rules.iter().filter(in_list) {
                let EndId { kind, number } = rule.ends[at];
                if let Some(own) = own.get_mut(kind as usize) {
                    own[number as usize].push((rule.rule, rule.demand));
                }
            }
            let mut merger = Merger { lists: &mut *lists, distinct: &mut distinct };
            let [of_nets, of_sets] = &own;
            merger.nets(of_nets, ends, field)?;
            merger.identities(of_sets, ends, field)?;
        }
        let in_lists = self.rules.len() - in_tuples.len();
        Ok(Pruned { any, fields, tuples, in_lists })
    }

    /// The ends of a field whose rules over it alone would be copied to so many elements that they
    /// are better off in tuples.
    fn wide(&self, at: usize) -> HashSet<EndId, RandomState> {
        let ends = &self.ends[at];
        let mut copies = Vec::new();
        for kind in [Kind::Net, Kind::Set] {
            let mut own = vec![0_u32; ends.numbers(kind)];
            for rule in self.rules.iter().filter(|rule| rule.ends[1 - at] == EndId::ANY) {
                if rule.ends[at].kind == kind {
                    own[rule.ends[at].number as usize] += 1;
                }
            }
            let used: Vec<bool> = own.iter().map(|own| *own > 0).collect();
            let fan_out = ends.fan_out(kind, &used);
            let ends = (0..).zip(own).zip(fan_out).filter(|((_, own), _)| *own > 0);
            copies.extend(ends.map(|((number, own), fan_out)| {
                (u64::from(own) * u64::from(fan_out), EndId { kind, number })
            }));
        }
        let mut total: u64 = copies.iter().map(|(copies, _)| copies).sum();
        let room = 16 * self.rules.len() as u64 + (1 << 16);
        copies.sort_unstable();
        let mut wide = HashSet::default();
        while total > room
            && let Some((copies, end)) = copies.pop()
        {
            total -= copies;
            wide.insert(end);
        }
        wide
    }
}

/// A list of rules, each with its demand.
type Merged = Rc<Vec<(u32, u32)>>;

/// Merges the lists of ends into those of elements.
struct Merger<'a, L> {
    lists: &'a mut L,
    distinct: &'a mut Distinct,
}

impl<L: MakeLists> Merger<'_, L> {
    /// By network: its rules and those of the networks around.
    fn nets(
        &mut self,
        own: &[Vec<(u32, u32)>],
        ends: &Ends,
        field: &mut Field,
    ) -> Result<(), TooMany> {
        if own.iter().all(Vec::is_empty) {
            return Ok(());
        }
        let mut merged: Vec<(Merged, ListId)> = vec![(Rc::default(), ListId::EMPTY); own.len()];
        for net in 1..own.len() {
            let (outer, list) = &merged[ends.around(net as u32) as usize];
            merged[net] = if own[net].is_empty() {
                (Rc::clone(outer), *list)
            } else {
                let both = [&**outer, &own[net]];
                let both = self.merge(both.into_iter());
                let list = self.lists.list(&both)?;
                (Rc::new(both), list)
            };
            field.set_list(Kind::Net, net as u32, merged[net].1);
        }
        Ok(())
    }

    /// By identity: the rules of the sets it is in.
    fn identities(
        &mut self,
        own: &[Vec<(u32, u32)>],
        ends: &Ends,
        field: &mut Field,
    ) -> Result<(), TooMany> {
        if own.iter().all(Vec::is_empty) {
            return Ok(());
        }
        for identity in 0..ends.elements(Kind::Set) as u32 {
            let sets = ends.members(identity).iter().map(|set| &own[*set as usize]);
            if sets.clone().all(Vec::is_empty) {
                continue;
            }
            let merged = self.merge(sets);
            field.set_list(Kind::Set, identity, self.lists.list(&merged)?);
        }
        Ok(())
    }

    /// The rules of some lists in order; of those with equal conditions only the first.
    fn merge<'a>(&mut self, lists: impl Iterator<Item = &'a Vec<(u32, u32)>>) -> Vec<(u32, u32)> {
        let mut all: Vec<(u32, u32)> = lists.flatten().copied().collect();
        // Made of runs that ascend, which the sort takes as they are.
        all.sort();
        self.distinct.of(all.into_iter()).to_vec()
    }
}

/// Drops rules whose transport condition an earlier rule has.
#[derive(Debug)]
pub(super) struct Distinct {
    /// By demand: the last list that has it.
    last: Vec<u32>,
    list: u32,
    rules: Vec<(u32, u32)>,
}

impl Distinct {
    /// For so many demands.
    pub(super) fn new(demands: usize) -> Self {
        Self { last: vec![0; demands], list: 0, rules: Vec::new() }
    }

    /// Of rules over the same ends, which ascend, each with its demand: those that can be found.
    pub(super) fn of(&mut self, rules: impl Iterator<Item = (u32, u32)>) -> &[(u32, u32)] {
        self.list += 1;
        self.rules.clear();
        for rule in rules {
            if std::mem::replace(&mut self.last[rule.1 as usize], self.list) != self.list {
                self.rules.push(rule);
            }
        }
        &self.rules
    }
}

/// Whether any packet at all could match.
fn can_match(rule: &Rule) -> bool {
    let end = |end: &End| match end {
        End::Net(net) => Prefix::new(net).is_some(),
        End::Any | End::Set(_) => true,
    };
    end(&rule.source)
        && end(&rule.destination)
        && rule.source_ports.first <= rule.source_ports.last
        && rule.destination_ports.first <= rule.destination_ports.last
        && rule.tcp_flags.value & !rule.tcp_flags.mask == 0
}
