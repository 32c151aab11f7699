//! Rules that no key finds, as earlier rules match all that they match: one over no end, or several over the same
//! wider ends together.

use std::collections::HashMap;

use ahash::RandomState;

use super::bits::ones;
use super::ends::{EndId, Ends, Kind};
use super::transport::{Demands, Transport};
use super::tuples::Numbered;
use crate::{End, PortRange, Rule, TcpFlags};

/// Rules over no end that others are looked for behind: those that match most.
const HIDING: usize = 64;

/// Drops rules that an earlier rule over no end covers.
pub(super) fn drop_covered(rules: &mut Vec<(u32, &Rule)>) {
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
            // Any ends are covered.
            let covering = hiding.iter().filter(|(_, wide)| wide.covers(rule));
            first.push(covering.map(|(number, _)| *number).min().unwrap_or(u32::MAX));
        }
        *number <= first[demand]
    });
}

/// Pairs of ends that others are looked for behind: those that most rules name.
const PAIRS: usize = u64::BITS as usize;

/// Which of these rules, which ascend, earlier ones do not hide together: those over the same ends or wider ones whose
/// ranges of destination ports hold all of theirs. Where thousands of ranges overlap, few rules are left.
pub(super) fn seen(rules: &[Numbered], demands: &[Transport], ends: &[Ends; 2]) -> Vec<bool> {
    let mut counts: HashMap<[EndId; 2], u32, RandomState> = HashMap::default();
    rules.iter().for_each(|rule| *counts.entry(rule.ends).or_default() += 1);
    let mut pairs: Vec<([EndId; 2], u32)> =
        counts.into_iter().filter(|(_, count)| *count > 1).collect();
    pairs.sort_unstable_by_key(|(ends, count)| (std::cmp::Reverse(*count), *ends));
    pairs.truncate(PAIRS);
    let covering = [0, 1].map(|at: usize| {
        let pairs: Vec<EndId> = pairs.iter().map(|(ends, _)| ends[at]).collect();
        Covering::new(&pairs, &ends[at])
    });
    // By pair and protocol: the ports that rules so far match whatever the source port.
    let mut matched: HashMap<(u32, Option<u8>), Ports, RandomState> = HashMap::default();
    let mut around: Vec<u32> = Vec::new();
    let seen = rules.iter().map(|rule| {
        let Transport { protocol, source_ports, destination_ports, tcp_flags } =
            demands[rule.demand as usize];
        let pairs_around = covering[0].of(rule.ends[0]) & covering[1].of(rule.ends[1]);
        around.clear();
        around.extend(ones(&[pairs_around]).map(|pair| pair as u32));
        let earlier = around.iter().flat_map(|pair| {
            let named = protocol.and_then(|_| matched.get(&(*pair, protocol)));
            matched.get(&(*pair, None)).into_iter().chain(named)
        });
        if hold(&earlier.collect::<Vec<_>>(), destination_ports) {
            return false;
        }
        if source_ports == PortRange::ANY && tcp_flags == TcpFlags::ANY {
            let own = around.iter().find(|pair| pairs[**pair as usize].0 == rule.ends);
            if let Some(own) = own {
                matched.entry((*own, protocol)).or_default().add(destination_ports);
            }
        }
        true
    });
    seen.collect()
}

/// The pairs, as bits, whose end in a field covers another.
struct Covering {
    /// By kind and number.
    by_end: [Vec<u64>; 3],
}

impl Covering {
    /// Of each pair its end in a field.
    fn new(pairs: &[EndId], ends: &Ends) -> Self {
        let mut by_end = [Kind::Net, Kind::Set, Kind::Any].map(|kind| vec![0; ends.numbers(kind)]);
        for (bit, end) in pairs.iter().enumerate() {
            by_end[end.kind as usize][end.number as usize] |= 1 << bit;
        }
        // What covers all covers networks, and each network what is inside.
        let any = by_end[Kind::Any as usize][0];
        by_end[Kind::Set as usize].iter_mut().for_each(|pairs| *pairs |= any);
        by_end[Kind::Net as usize][0] = any;
        for net in 1..ends.numbers(Kind::Net) {
            let around = by_end[Kind::Net as usize][ends.around(net as u32) as usize];
            by_end[Kind::Net as usize][net] |= around;
        }
        Self { by_end }
    }

    fn of(&self, end: EndId) -> u64 {
        self.by_end[end.kind as usize][end.number as usize]
    }
}

/// Ports, as ranges that neither overlap nor touch, in order.
#[derive(Default)]
struct Ports(Vec<PortRange>);

impl Ports {
    fn add(&mut self, PortRange { mut first, mut last }: PortRange) {
        let from = self.0.partition_point(|range| range.last < first.saturating_sub(1));
        let to = self.0.partition_point(|range| range.first <= last.saturating_add(1));
        if let [outer, .., other] | [outer @ other] = &self.0[from..to] {
            (first, last) = (first.min(outer.first), last.max(other.last));
        }
        self.0.splice(from..to, [PortRange { first, last }]);
    }

    /// The last port of the range that holds a port.
    fn end_of(&self, port: u16) -> Option<u16> {
        let range = self.0.get(self.0.partition_point(|range| range.last < port))?;
        range.contains(port).then_some(range.last)
    }
}

/// Whether these hold all of a range together.
fn hold(ports: &[&Ports], range: PortRange) -> bool {
    let mut next = range.first;
    while let Some(last) = ports.iter().filter_map(|ports| ports.end_of(next)).max() {
        if last >= range.last {
            return true;
        }
        next = last + 1;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_ports_are_joined() {
        let range = |first, last| PortRange { first, last };
        let mut ports = Ports::default();
        for (added, joined) in [
            (range(10, 20), vec![range(10, 20)]),
            (range(22, 30), vec![range(10, 20), range(22, 30)]),
            (range(0, 0), vec![range(0, 0), range(10, 20), range(22, 30)]),
            (range(12, 15), vec![range(0, 0), range(10, 20), range(22, 30)]),
            (range(21, 21), vec![range(0, 0), range(10, 30)]),
            (range(30, u16::MAX), vec![range(0, 0), range(10, u16::MAX)]),
            (range(1, 9), vec![range(0, u16::MAX)]),
        ] {
            ports.add(added);
            assert_eq!(ports.0, joined);
        }
    }

    #[test]
    fn several_hold_a_range_together() {
        let some = Ports(vec![PortRange { first: 5, last: 9 }, PortRange { first: 20, last: 30 }]);
        let others = Ports(vec![PortRange { first: 8, last: 19 }]);
        let range = |first, last| PortRange { first, last };
        assert!(hold(&[&some, &others], range(5, 30)));
        assert!(hold(&[&some, &others], range(9, 9)));
        assert!(!hold(&[&some, &others], range(4, 30)));
        assert!(!hold(&[&some, &others], range(5, 31)));
        assert!(!hold(&[&some], range(9, 20)));
        assert!(!hold(&[], range(9, 9)));
        let all = Ports(vec![PortRange::ANY]);
        assert!(hold(&[&all], PortRange::ANY) && !hold(&[&some, &others], PortRange::ANY));
    }
}
