//! Compiling: which structure takes which rules.
//!
//! ```text
//! rule looks at     goes to
//! no end            the lists of an end, or a list that every lookup reads
//! one end           lists of that end's elements, merged with those around
//! both ends         pairs of classes in one array; tuples if these are too many
//! too many pairs    stays with one of its peer sets, or with its source network
//! ```
//!
//! Where the lists of one end, merged, would grow beyond what is linear in the number of rules, those
//! of the widest ends go to tuples as well. Where there are too many transport classes, lists are cut
//! by ports.

use std::collections::HashSet;

use ahash::RandomState;

use super::crossed::Crossed;
use super::ends::{EndId, Ends, Kind};
use super::field::{Both, Field};
use super::groups::Groups;
use super::hidden::{drop_covered, seen};
use super::lists::{Effective, ListId, MakeLists, PLAIN, Rows, RowsBuilder};
use super::scan::{Scans, ScansBuilder};
use super::transport::{Demands, Matching, TooMany, Transport, TransportClasses};
use super::tuples::{MOST, Numbered, Tuples};
use crate::prefix::Prefix;
use crate::{AddressMap, End, Rule};

/// The compiled parts of a table.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) lists: Decide,
    pub(super) ends: ByEnds,
    /// Rules that a key can find.
    pub(super) rules: usize,
}

/// Maps the ends of a key to lists.
#[derive(Debug)]
pub(super) struct ByEnds {
    /// Rules over no end that are in no other list.
    pub(super) any: ListId,
    pub(super) fields: [Field; 2],
    pub(super) both: BothEnds,
    /// Rules in lists of one end or none.
    pub(super) in_lists: usize,
}

impl ByEnds {
    /// Visits every list, those of pairs first and in the order of their numbers.
    fn each_list(&mut self, visit: &mut dyn FnMut(&mut ListId)) {
        match &mut self.both {
            BothEnds::Nothing => {}
            BothEnds::Crossed(crossed) => {
                crossed.layers.iter_mut().for_each(|layer| layer.each_list(&mut *visit));
            }
            BothEnds::Tuples(tuples) => tuples.each_list(&mut *visit),
        }
        visit(&mut self.any);
        self.fields.iter_mut().for_each(|field| field.each_list(&mut *visit));
    }
}

/// Rules over both ends.
#[derive(Debug)]
pub(super) enum BothEnds {
    /// There are none.
    Nothing,
    /// One list for each pair of classes.
    Crossed(Crossed),
    /// Lists for pairs of classes in each tuple.
    Tuples(Box<Tuples>),
}

/// How lists are decided.
#[derive(Debug)]
pub(super) enum Decide {
    /// By transport class.
    Rows(Box<TransportClasses>, Rows),
    /// By cuts and comparing.
    Scans(Scans),
}

/// How rules over both ends may be held.
#[derive(Clone, Copy, Debug)]
enum Allowed {
    /// Crossed if they fit, else in tuples.
    Crossed,
    /// In so many tuples at most.
    Tuples(usize),
}

/// Compiles these rules.
pub(super) fn compile(rules: &[Rule], addresses: &AddressMap) -> Parts {
    let input = Input::new(rules, addresses);
    let by_class = |allowed| input.by_class(allowed, PLAIN);
    let parts = by_class(Allowed::Crossed).or_else(|| by_class(Allowed::Tuples(MOST)));
    parts.unwrap_or_else(|| input.by_cuts(Allowed::Crossed))
}

/// Every structure that can hold these rules, be it chosen for them or not.
#[cfg(test)]
pub(super) fn all(rules: &[Rule], addresses: &AddressMap) -> Vec<Parts> {
    let some = matchable(rules);
    let less_hidden = Input::of(&some, addresses).less_hidden(&some, addresses, some.len());
    let tuples = [0, 1, 2, MOST].map(Allowed::Tuples);
    let allowed = [Allowed::Crossed].into_iter().chain(tuples);
    let all = [Input::new(rules, addresses), less_hidden].into_iter().flat_map(|input| {
        let by_cuts = allowed.clone().map(|allowed| input.by_cuts(allowed));
        let by_class = allowed.clone().flat_map(|allowed| [(allowed, 0), (allowed, PLAIN)]);
        let by_class = by_class.filter_map(|(allowed, plain)| input.by_class(allowed, plain));
        by_class.chain(by_cuts).collect::<Vec<Parts>>()
    });
    all.collect()
}

/// With rows, and with lists cut by ports, all rules over both ends in no tuple.
#[cfg(test)]
pub(super) fn without_tuples(rules: &[Rule], addresses: &AddressMap) -> [Parts; 2] {
    let input = Input::of(&matchable(rules), addresses);
    let by_class = input.by_class(Allowed::Tuples(0), PLAIN);
    [by_class.unwrap_or_else(|| unreachable!("classes are few")), input.by_cuts(Allowed::Tuples(0))]
}

/// Cells that rows are expected to have at most for each rule, and beyond.
const CELLS_EXPECTED: usize = 1 << 9;
const CELLS_EXPECTED_MORE: usize = 1 << 16;

/// Cells of rows beyond what is linear in the rules of a table.
const CELLS_MORE: usize = 1 << 23;

/// Rules that can match, with their transport conditions by number.
struct Input {
    /// If rows are worth their memory.
    transport: Result<(TransportClasses, Matching), TooMany>,
    rules: Vec<Numbered>,
    demands: Vec<Transport>,
    ends: [Ends; 2],
}

impl Input {
    /// Of all these rules but some that no key finds.
    fn new(rules: &[Rule], addresses: &AddressMap) -> Self {
        let mut rules = matchable(rules);
        drop_covered(&mut rules);
        let input = Self::of(&rules, addresses);
        // Thousands of ranges may overlap. Unless that halves the rules, their order is no reason for another structure.
        match input.transport {
            Ok(_) => input,
            Err(TooMany) => input.less_hidden(&rules, addresses, rules.len() / 2),
        }
    }

    /// Of all these rules.
    fn of(rules: &[(u32, &Rule)], addresses: &AddressMap) -> Self {
        let (sources, source) = Ends::of(rules, |rule| rule.source, addresses);
        let (destinations, destination) = Ends::of(rules, |rule| rule.destination, addresses);
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

    /// Without the rules that earlier ones hide together, if so few are left.
    fn less_hidden(self, rules: &[(u32, &Rule)], addresses: &AddressMap, few: usize) -> Self {
        let seen = seen(&self.rules, &self.demands, &self.ends);
        let left = rules.iter().zip(seen).filter(|(_, seen)| *seen).map(|(rule, _)| *rule);
        let left: Vec<(u32, &Rule)> = left.collect();
        if left.len() <= few { Self::of(&left, addresses) } else { self }
    }

    /// With lists decided by transport class, if these are few.
    fn by_class(&self, allowed: Allowed, most_plain: usize) -> Option<Parts> {
        let (classes, matching) = self.transport.as_ref().ok()?;
        let mut rows = RowsBuilder::new(matching, 64 * self.rules.len() + CELLS_MORE);
        let mut effective = Effective::new(Some(matching), &self.demands);
        let mut ends = self.build(&mut rows, &mut effective, allowed).ok()?;
        let rows = rows.finish(most_plain, |visit| ends.each_list(visit));
        if let (true, BothEnds::Crossed(crossed)) = (rows.plain, &mut ends.both) {
            crossed.find_rows(rows.classes());
        }
        let lists = Decide::Rows(Box::new(classes.clone()), rows);
        Some(Parts { lists, ends, rules: self.rules.len() })
    }

    /// With lists cut by ports, whatever the rules.
    fn by_cuts(&self, allowed: Allowed) -> Parts {
        let mut scans = ScansBuilder::new(&self.demands, self.rules.len());
        let mut effective = Effective::new(None, &self.demands);
        let ends = self.build(&mut scans, &mut effective, allowed);
        let ends = ends.unwrap_or_else(|TooMany| unreachable!("cuts have no limit"));
        Parts { lists: Decide::Scans(scans.finish()), ends, rules: self.rules.len() }
    }

    /// Lists for each end and for both.
    fn build(
        &self,
        lists: &mut impl MakeLists,
        effective: &mut Effective<'_>,
        allowed: Allowed,
    ) -> Result<ByEnds, TooMany> {
        let room = lists.copies(self.rules.len());
        let wide = [0, 1].map(|at| self.wide(at, room));
        let in_list = |rule: &&Numbered| match rule.ends {
            [EndId { kind: Kind::Any, .. }, EndId { kind: Kind::Any, .. }] => true,
            [end, EndId { kind: Kind::Any, .. }] => !wide[0].contains(&end),
            [EndId { kind: Kind::Any, .. }, end] => !wide[1].contains(&end),
            _ => false,
        };
        let of_both: Vec<Numbered> =
            self.rules.iter().filter(|rule| !in_list(rule)).copied().collect();
        let (both, mut fields) = self.both(&of_both, lists, effective, allowed)?;
        let any: Vec<(u32, u32)> = self
            .rules
            .iter()
            .filter(|rule| rule.ends == [EndId::ANY; 2])
            .map(|rule| (rule.rule, rule.demand))
            .collect();
        let mut any = effective.of(any.into_iter()).to_vec();
        for (at, (ends, field)) in self.ends.iter().zip(&mut fields).enumerate() {
            let mut merger =
                Merger { lists: &mut *lists, effective: &mut *effective, both: Vec::new() };
            for kind in [Kind::Net, Kind::Set] {
                let of_kind = |rule: &&Numbered| rule.ends[at].kind == kind && in_list(rule);
                let own = ByEnd::new(ends.numbers(kind), || {
                    let rules = self.rules.iter().filter(of_kind);
                    rules.map(|rule| (rule.ends[at].number, (rule.rule, rule.demand)))
                });
                if own.is_empty() {
                    continue;
                }
                // Every key has an element of this kind, which may bring these along.
                let few = any.len() * ends.elements(kind) <= 4 * self.rules.len() + 4096;
                let base = if few { std::mem::take(&mut any) } else { Vec::new() };
                match kind {
                    Kind::Net => merger.nets(base, &own, ends, field)?,
                    _ => merger.identities(&base, &own, ends, field)?,
                }
            }
        }
        fields.iter_mut().for_each(Field::finish);
        let any = lists.list(&any)?;
        let in_lists = self.rules.len() - of_both.len();
        Ok(ByEnds { any, fields, both, in_lists })
    }

    /// Rules over both ends, with the records of both fields.
    fn both(
        &self,
        rules: &[Numbered],
        lists: &mut impl MakeLists,
        effective: &mut Effective<'_>,
        allowed: Allowed,
    ) -> Result<(BothEnds, [Field; 2]), TooMany> {
        if rules.is_empty() {
            let fields = self.ends.each_ref().map(|ends| Field::new(ends, Both::Nothing));
            return Ok((BothEnds::Nothing, fields));
        }
        let most = match allowed {
            Allowed::Tuples(most) => most,
            Allowed::Crossed => {
                let all = self.rules.len();
                let crossed = Crossed::new(rules, all, &self.ends, lists, effective)?;
                if let Some((crossed, fields)) = crossed {
                    return Ok((BothEnds::Crossed(crossed), fields));
                }
                MOST
            }
        };
        let (tuples, fields) = Tuples::new(rules, &self.ends, lists, effective, most)?;
        Ok((BothEnds::Tuples(Box::new(tuples)), fields))
    }

    /// The widest ends of a field, whose rules over it alone are better off in tuples: the lists of
    /// elements hold no more than `room` rules without them.
    fn wide(&self, at: usize, room: usize) -> HashSet<EndId, RandomState> {
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
        copies.sort_unstable();
        let mut wide = HashSet::default();
        while total > room as u64
            && let Some((copies, end)) = copies.pop()
        {
            total -= copies;
            wide.insert(end);
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

/// Rules by an end's number, which ascend, each with its demand.
type ByEnd = Groups<(u32, u32)>;

/// Merges the lists of ends into those of elements.
struct Merger<'a, 'm, L> {
    lists: &'a mut L,
    effective: &'a mut Effective<'m>,
    /// Rules of the list that is made.
    both: Vec<(u32, u32)>,
}

impl<L: MakeLists> Merger<'_, '_, L> {
    /// By network: its rules, those of the networks around, and `base`.
    fn nets(
        &mut self,
        base: Vec<(u32, u32)>,
        own: &ByEnd,
        ends: &Ends,
        field: &mut Field,
    ) -> Result<(), TooMany> {
        // By network: its list, and where the rules of that stand.
        let mut lists = vec![(self.lists.list(&base)?, 0, base.len())];
        let mut rules = base;
        field.set_list(Kind::Net, 0, lists[0].0);
        for net in 1..ends.numbers(Kind::Net) as u32 {
            let mut list = lists[ends.around(net) as usize];
            let own = own.of(net);
            if !own.is_empty() {
                let (_, start, end) = list;
                merge(&rules[start..end], own, &mut self.both);
                let of_net = self.effective.of(self.both.iter().copied());
                if of_net != &rules[start..end] {
                    list = (self.lists.list(of_net)?, rules.len(), rules.len() + of_net.len());
                    rules.extend(of_net);
                }
            }
            field.set_list(Kind::Net, net, list.0);
            lists.push(list);
        }
        Ok(())
    }

    /// By identity: the rules of the sets it is in, and `base`.
    fn identities(
        &mut self,
        base: &[(u32, u32)],
        own: &ByEnd,
        ends: &Ends,
        field: &mut Field,
    ) -> Result<(), TooMany> {
        for identity in 0..ends.elements(Kind::Set) as u32 {
            self.both.clear();
            self.both.extend(base);
            ends.members(identity).iter().for_each(|set| self.both.extend(own.of(*set)));
            // Made of runs that ascend, which the sort takes as they are.
            self.both.sort();
            let of_identity = self.effective.of(self.both.iter().copied());
            field.set_list(Kind::Set, identity, self.lists.list(of_identity)?);
        }
        Ok(())
    }
}

/// Both of two lists of rules that ascend.
fn merge(mut some: &[(u32, u32)], others: &[(u32, u32)], both: &mut Vec<(u32, u32)>) {
    both.clear();
    for other in others {
        let before = some.partition_point(|rule| rule.0 < other.0);
        both.extend(&some[..before]);
        both.push(*other);
        some = &some[before..];
    }
    both.extend(some);
}

/// The rules that a packet could match.
fn matchable(rules: &[Rule]) -> Vec<(u32, &Rule)> {
    (0..).zip(rules).filter(|(_, rule)| can_match(rule)).collect()
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
