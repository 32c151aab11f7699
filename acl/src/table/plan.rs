//! Compiling: which structure takes which rules.
//!
//! ```text
//! rule looks at     goes to
//! one end or none   lists of that end's identities
//! both ends         tuples
//! too much of both  stays with one of its peer sets
//! ```
//!
//! Where the lists of one end, merged, would grow beyond what is linear in the number of rules, the rules of those
//! that most identities have go to tuples as well. Where there are too many transport classes, lists are cut by ports.

use std::collections::HashSet;

use ahash::RandomState;

use super::ends::Ends;
use super::field::Field;
use super::groups::Groups;
use super::lists::{Effective, MakeLists, PLAIN, Rows, RowsBuilder};
use super::scan::{Scans, ScansBuilder};
use super::transport::{Demands, Matching, TooMany, Transport, TransportClasses};
use super::tuples::{MOST, Tuples};
use crate::{AddressMap, End, Rule};

/// The compiled parts of a table.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) lists: Decide,
    pub(super) fields: [Field; 2],
    /// Rules that are in no list of one end, if there are any.
    pub(super) tuples: Option<Box<Tuples>>,
    /// Rules that a key can find.
    pub(super) rules: usize,
}

/// Lists for each end, and tuples.
type ByEnds = ([Field; 2], Option<Box<Tuples>>);

/// The structure that decides lists.
#[derive(Debug)]
pub(super) enum Decide {
    /// By transport class.
    Rows(Box<TransportClasses>, Rows),
    /// By cuts and comparing.
    Scans(Scans),
}

/// A rule in numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Numbered {
    pub(super) rule: u32,
    /// The number of its transport condition.
    pub(super) demand: u32,
    /// The numbers of its ends in both fields.
    pub(super) ends: [u32; 2],
}

/// Compiles these rules.
pub(super) fn compile(rules: &[Rule], addresses: &AddressMap) -> Parts {
    let input = Input::new(rules, addresses);
    input.by_class(MOST, PLAIN).unwrap_or_else(|| input.by_cuts(MOST))
}

/// Every structure that can hold these rules, be it chosen for them or not.
#[cfg(test)]
pub(super) fn all(rules: &[Rule], addresses: &AddressMap) -> Vec<Parts> {
    let input = Input::new(rules, addresses);
    let tuples = [0, 1, 2, MOST].into_iter();
    let by_class = tuples.clone().flat_map(|most| [(most, 0), (most, PLAIN)]);
    let by_class = by_class.filter_map(|(most, plain)| input.by_class(most, plain));
    by_class.chain(tuples.map(|most| input.by_cuts(most))).collect()
}

/// Cells that rows are expected to have at most for each rule, and beyond.
const CELLS_EXPECTED: usize = 1 << 9;
const CELLS_EXPECTED_MORE: usize = 1 << 16;

/// Cells of rows beyond what is linear in the rules of a table.
const CELLS_MORE: usize = 1 << 23;

/// Rules over no end that others are looked for behind: those that match most.
const HIDING: usize = 64;

/// Rules that can match, with their transport conditions by number.
struct Input {
    /// If rows are worth their memory.
    transport: Result<(TransportClasses, Matching), TooMany>,
    rules: Vec<Numbered>,
    demands: Vec<Transport>,
    ends: [Ends; 2],
}

impl Input {
    /// Keeps all rules but some that no key finds.
    fn new(rules: &[Rule], addresses: &AddressMap) -> Self {
        let mut rules: Vec<(u32, &Rule)> =
            (0..).zip(rules).filter(|(_, rule)| can_match(rule)).collect();
        drop_covered(&mut rules);
        let (sources, source) = Ends::of(&rules, |rule| rule.source, addresses);
        let (destinations, destination) = Ends::of(&rules, |rule| rule.destination, addresses);
        let mut demands = Demands::default();
        let numbered = rules.iter().zip(source.into_iter().zip(destination));
        let rules = numbered.map(|((rule, of), (source, destination))| Numbered {
            rule: *rule,
            demand: demands.number(Transport::of(of)),
            ends: [source, destination],
        });
        let rules: Vec<Numbered> = rules.collect();
        let demands = demands.all;
        let transport = TransportClasses::new(&demands, most_classes(&rules, demands.len()));
        Self { transport, rules, demands, ends: [sources, destinations] }
    }

    /// With lists decided by transport class, if these are few, and so many tuples at most.
    fn by_class(&self, most: usize, most_plain: usize) -> Option<Parts> {
        let (classes, matching) = self.transport.as_ref().ok()?;
        let mut rows = RowsBuilder::new(matching, 64 * self.rules.len() + CELLS_MORE);
        let mut effective = Effective::new(Some(matching), &self.demands);
        let (mut fields, mut tuples) = self.build(&mut rows, &mut effective, most).ok()?;
        let rows = rows.finish(most_plain, |visit| {
            tuples.iter_mut().for_each(|tuples| tuples.each_list(&mut *visit));
            fields.iter_mut().for_each(|field| field.each_list(&mut *visit));
        });
        let lists = Decide::Rows(Box::new(classes.clone()), rows);
        Some(Parts { lists, fields, tuples, rules: self.rules.len() })
    }

    /// With lists cut by ports, whatever the rules.
    fn by_cuts(&self, most: usize) -> Parts {
        let mut scans = ScansBuilder::new(&self.demands);
        let mut effective = Effective::new(None, &self.demands);
        let built = self.build(&mut scans, &mut effective, most);
        let (fields, tuples) = built.unwrap_or_else(|TooMany| unreachable!("cuts have no limit"));
        let lists = Decide::Scans(scans.finish());
        Parts { lists, fields, tuples, rules: self.rules.len() }
    }

    /// Lists for each end, and tuples for what is in none.
    fn build(
        &self,
        lists: &mut impl MakeLists,
        effective: &mut Effective<'_>,
        most: usize,
    ) -> Result<ByEnds, TooMany> {
        let field_of = self.fields();
        let wide = [0, 1].map(|at: usize| self.wide(at, &field_of, lists.copies(self.rules.len())));
        let is_in_list = |rule: &Numbered, field: &Option<usize>| {
            field.filter(|at| !wide[*at][rule.ends[*at] as usize])
        };
        let field_of: Vec<Option<usize>> =
            self.rules.iter().zip(&field_of).map(|(rule, field)| is_in_list(rule, field)).collect();
        let rules = || self.rules.iter().zip(&field_of);
        let others: Vec<Numbered> =
            rules().filter(|(_, field)| field.is_none()).map(|(rule, _)| *rule).collect();
        let (tuples, mut fields) = match others.is_empty() {
            true => (None, self.ends.each_ref().map(|ends| Field::new(ends, None))),
            false => {
                let (tuples, fields) = Tuples::new(&others, &self.ends, lists, effective, most)?;
                (Some(Box::new(tuples)), fields)
            }
        };
        let mut of_identity = Vec::new();
        for (at, (ends, field)) in self.ends.iter().zip(&mut fields).enumerate() {
            let own: Groups<(u32, u32)> = Groups::new(ends.count(), || {
                let of_field = rules().filter(|(_, field)| **field == Some(at));
                of_field.map(|(rule, _)| (rule.ends[at], (rule.rule, rule.demand)))
            });
            if own.is_empty() {
                continue;
            }
            field.set_lists(ends.each(|around| {
                of_identity.clear();
                around.iter().for_each(|end| of_identity.extend(own.of(*end)));
                // Made of runs that ascend, which the sort takes as they are.
                of_identity.sort();
                lists.list(effective.of(of_identity.iter().copied()))
            })?);
        }
        Ok((fields, tuples))
    }

    /// By rule: the only field that it names; rules over none are in the field that others are in.
    fn fields(&self) -> Vec<Option<usize>> {
        let names = |rule: &Numbered| [0, 1].map(|at: usize| rule.ends[at] != self.ends[at].all());
        let names: Vec<[bool; 2]> = self.rules.iter().map(names).collect();
        let usual = usize::from(names.contains(&[false, true]) && !names.contains(&[true, false]));
        let field = |names: [bool; 2]| match names {
            [true, true] => None,
            [true, false] => Some(0),
            [false, true] => Some(1),
            [false, false] => Some(usual),
        };
        names.into_iter().map(field).collect()
    }

    /// By end of a field: whether its rules over it alone are better off in tuples, as most identities have them. The
    /// lists of identities hold no more than `room` rules without those.
    fn wide(&self, at: usize, field_of: &[Option<usize>], room: usize) -> Vec<bool> {
        let ends = &self.ends[at];
        let mut own = vec![0_u64; ends.count()];
        for (rule, _) in self.rules.iter().zip(field_of).filter(|(_, field)| **field == Some(at)) {
            own[rule.ends[at] as usize] += 1;
        }
        let used: Vec<bool> = own.iter().map(|own| *own > 0).collect();
        let copies = own.iter().zip(ends.fan_out(&used)).map(|(own, of)| own * u64::from(of));
        let mut copies: Vec<(u64, usize)> = copies.zip(0..).collect();
        let mut total: u64 = copies.iter().map(|(copies, _)| copies).sum();
        copies.sort_unstable();
        let mut wide = vec![false; ends.count()];
        while total > room as u64
            && let Some((copies, end)) = copies.pop()
        {
            total -= copies;
            wide[end] = true;
        }
        wide
    }
}

/// Transport classes for which rows, if each pair of ends that rules name has one, or each demand if these are fewer,
/// are worth their memory.
fn most_classes(rules: &[Numbered], demands: usize) -> usize {
    let cells = CELLS_EXPECTED * rules.len() + CELLS_EXPECTED_MORE;
    let by_demand = cells / demands.max(1);
    if by_demand > usize::from(u16::MAX) {
        return by_demand;
    }
    let ends: HashSet<_, RandomState> = rules.iter().map(|rule| rule.ends).collect();
    by_demand.max(cells / ends.len())
}

/// Whether any packet at all could match.
fn can_match(rule: &Rule) -> bool {
    rule.source_ports.first <= rule.source_ports.last
        && rule.destination_ports.first <= rule.destination_ports.last
        && rule.tcp_flags.value & !rule.tcp_flags.mask == 0
}

/// Drops rules that an earlier rule over no end covers.
fn drop_covered(rules: &mut Vec<(u32, &Rule)>) {
    let over_none = |rule: &Rule| rule.source == End::Any && rule.destination == End::Any;
    let mut hiding: Vec<(u32, &Rule)> =
        rules.iter().filter(|(_, rule)| over_none(rule)).copied().collect();
    hiding.sort_by_key(|(_, rule)| std::cmp::Reverse(Transport::of(rule).extent()));
    hiding.truncate(HIDING);
    if hiding.is_empty() {
        return;
    }
    let mut demands = Demands::default();
    // By demand: the first rule over no end that holds it.
    let mut first = Vec::new();
    rules.retain(|(number, rule)| {
        let demand = demands.number(Transport::of(rule)) as usize;
        if demand == first.len() {
            let covering = hiding.iter().filter(|(_, wide)| wide.covers(rule));
            first.push(covering.map(|(number, _)| *number).min().unwrap_or(u32::MAX));
        }
        *number <= first[demand]
    });
}
