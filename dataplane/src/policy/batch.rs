//! The policy batch: connections of one vector, classified side by side.
//!
//! Looks up each table once for all connections that it decides about, so that the waits for memory
//! of one lookup overlap with the others.

use acl::{Key, Table};

use super::{Deciders, Judgement, RuleAt, key};
use crate::wire::Flow;
use crate::{Gate, Outcome, PortId, PortState, Snapshot};

/// Connections that gates decide about.
#[derive(Debug, Default)]
pub(crate) struct PolicyBatch<'a> {
    cases: Vec<Case<'a>>,
    keys: Vec<Key>,
    lists: Lists,
}

/// One connection.
#[derive(Debug)]
struct Case<'a> {
    /// The gates of the pod that opens it and of the one that it is for, and what tables found.
    gates: [Option<(PortId, &'a Gate)>; 2],
    found: [u32; 2],
    refused: Option<Outcome>,
    /// Whether it is the same connection as the one before, in another form.
    is_further_form: bool,
}

/// What is needed while tables are asked.
#[derive(Debug, Default)]
struct Lists {
    asked: Vec<Asked>,
    batch: Vec<Key>,
    found: Vec<u32>,
}

/// A question to a table.
#[derive(Clone, Copy, Debug)]
struct Asked {
    /// The table's address, which tells tables apart.
    table: usize,
    case: usize,
}

/// Where as few lookups as this go to one table, each is made alone.
const FEW: usize = 4;

impl<'a> PolicyBatch<'a> {
    /// No connections, in the room that these had: it is large.
    pub(crate) fn emptied<'b>(mut self) -> PolicyBatch<'b> {
        self.cases.clear();
        self.keys.clear();
        // Nothing is left that could be borrowed; the room is kept.
        let cases = self.cases.into_iter().map(|_| unreachable!("cleared")).collect();
        PolicyBatch { cases, keys: self.keys, lists: self.lists }
    }

    /// One more connection, as its opener's packets show it, with its pods, where these are on this
    /// cluster node.
    #[inline]
    pub(crate) fn push(
        &mut self,
        flow: &Flow,
        sender: Option<(PortId, &'a PortState)>,
        receiver: Option<(PortId, &'a PortState)>,
    ) {
        let gates = [
            sender.map(|(id, pod)| (id, &pod.from_pod)),
            receiver.map(|(id, pod)| (id, &pod.to_pod)),
        ];
        let is_further_form = false;
        self.cases.push(Case { gates, found: [Table::NONE; 2], refused: None, is_further_form });
        self.keys.push(key(flow));
    }

    /// Adds another form of the last connection.
    #[inline]
    pub(crate) fn push_form(&mut self, flow: &Flow) {
        if let Some(Case { gates, .. }) = self.cases.last() {
            let gates = *gates;
            let (found, refused) = ([Table::NONE; 2], None);
            self.cases.push(Case { gates, found, refused, is_further_form: true });
            self.keys.push(key(flow));
        }
    }

    /// Judges them; says what was found about each connection, in the order in which they came. All
    /// its forms must be allowed.
    #[inline]
    pub(crate) fn judge(&mut self, snapshot: &Snapshot) -> impl Iterator<Item = Judgement> {
        self.identify(snapshot);
        for end in 0..2 {
            self.ask_gates(end);
            self.ask_tables(end);
        }
        let mut cases = self.cases.iter().peekable();
        std::iter::from_fn(move || {
            let mut judgement = cases.next()?.judgement();
            while let Some(form) = cases.next_if(|case| case.is_further_form) {
                if judgement.outcome == Outcome::PolicyAllowed && form.refused.is_some() {
                    judgement = form.judgement();
                }
            }
            Some(judgement)
        })
    }

    /// Completes the keys by what any table asks for.
    #[inline]
    fn identify(&mut self, snapshot: &Snapshot) {
        let mut wanted = [false; 2];
        let mut last = std::ptr::null();
        for (_, gate) in self.cases.iter().flat_map(|case| case.gates.iter().flatten()) {
            // Neighbours often are of one gate.
            if let Gate::Table(table) = gate
                && !std::ptr::eq(std::mem::replace(&mut last, *gate), *gate)
            {
                let [source, destination] = table.asks_identities();
                wanted = [wanted[0] | source, wanted[1] | destination];
            }
        }
        if wanted[0] {
            snapshot.address_map().identify_sources(&mut self.keys);
        }
        if wanted[1] {
            snapshot.address_map().identify_destinations(&mut self.keys);
        }
    }

    /// Has one end's gates decide, but for those that have tables: these are to be asked.
    #[inline]
    fn ask_gates(&mut self, end: usize) {
        let asked = &mut self.lists.asked;
        asked.clear();
        for (n, case) in self.cases.iter_mut().enumerate() {
            match case.gates[end] {
                None | Some((_, Gate::Open)) => {}
                Some(_) if case.refused.is_some() => {}
                Some((_, Gate::Closed)) => case.refuse(end, Outcome::Closed),
                Some((_, Gate::Table(table))) => {
                    asked.push(Asked { table: std::ptr::from_ref(&**table).addr(), case: n });
                }
            }
        }
    }

    /// Asks each table once.
    #[inline]
    fn ask_tables(&mut self, end: usize) {
        let Self { cases, keys, lists: Lists { asked, batch, found } } = self;
        let Some(first) = asked.first() else { return };
        let is_one = asked.iter().all(|asked| asked.table == first.table);
        if !is_one {
            asked.sort_unstable_by_key(|asked| asked.table);
        }
        let is_about_all = is_one && asked.len() == keys.len();
        for asked in asked.chunk_by(|a, b| a.table == b.table) {
            let Some((_, Gate::Table(table))) = cases[asked[0].case].gates[end] else { continue };
            found.clear();
            if asked.len() <= FEW {
                let lookup = |key| table.lookup(key).map_or(Table::NONE, |rule| rule as u32);
                found.extend(asked.iter().map(|asked| lookup(&keys[asked.case])));
            } else {
                found.resize(asked.len(), Table::NONE);
                if is_about_all {
                    table.lookup_vector(keys, found);
                } else {
                    batch.clear();
                    batch.extend(asked.iter().map(|asked| keys[asked.case]));
                    table.lookup_vector(batch, found);
                }
            }
            for (asked, found) in asked.iter().zip(found.iter()) {
                let case = &mut cases[asked.case];
                case.found[end] = *found;
                // A table that has nothing to say about a packet says no.
                if !table.permits(*found) {
                    case.refuse(end, Outcome::PolicyDenied);
                }
            }
        }
    }
}

impl Case<'_> {
    fn refuse(&mut self, end: usize, outcome: Outcome) {
        self.refused = Some(outcome);
        // The end that let it pass is not what decided.
        self.found[1 - end] = Table::NONE;
    }

    #[inline]
    fn judgement(&self) -> Judgement {
        let rule = |end: usize| {
            let (port, _) = self.gates[end]?;
            (self.found[end] != Table::NONE).then_some(RuleAt { port, rule: self.found[end] })
        };
        let by = Deciders { from_pod: rule(0), to_pod: rule(1) };
        Judgement { outcome: self.refused.unwrap_or(Outcome::PolicyAllowed), by }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use acl::{Action, Address, AddressMapBuilder, Block, PeerSetId, PortRange, Rule};
    use proptest::prelude::*;

    use super::*;
    use crate::policy::{forms, judge, settled};
    use crate::{Parts, PortKind};

    /// Pods 10.1.0.0 to 10.1.0.7 here, others elsewhere; 10.1.0.100 is the cluster node.
    fn address(n: u8) -> Address {
        Address::from_v4_bits(0x0a01_0000 + u32::from(n))
    }

    fn snapshot(gates: &[(u8, u8)]) -> Snapshot {
        let mut builder = AddressMapBuilder::default();
        let block = |net: &str| Block { net: net.parse().unwrap(), except: vec![] };
        builder.add(PeerSetId(0), [block("10.1.0.0/30"), block("10.1.0.32/28")]);
        builder.add(PeerSetId(1), [block("10.1.0.2/31")]);
        let map = Arc::new(builder.build());
        let permit = |n: u8| {
            let rule = Rule::new(Action::Permit, format!("rule {n}")).protocol(6);
            rule.destination_ports(PortRange::one(u16::from(n)))
        };
        let set = |n| acl::End::Set(PeerSetId(n));
        let tables = [
            vec![permit(0), permit(1).source(set(0)), permit(2).destination(set(1))],
            vec![Rule::new(Action::Deny, "deny").source(set(1)), permit(1), permit(2)],
            vec![permit(3).source(set(1)).destination(set(0)), permit(0)],
        ]
        .map(|rules| Gate::Table(Arc::new(Table::compile(rules.into(), &map))));
        let gate = |n: u8| match n {
            0 => Gate::Closed,
            1 => Gate::Open,
            _ => tables[usize::from(n) % 3].clone(),
        };
        let pods = gates.iter().zip(0..).map(|((from_pod, to_pod), n)| {
            Some(PortState {
                addresses: vec![address(n)],
                from_pod: gate(*from_pod),
                to_pod: gate(*to_pod),
                ..PortState::new(format!("default/{n}"), PortKind::Pod)
            })
        });
        let ports = pods.collect();
        let node_addresses = vec![address(100).to_ip(), address(33).to_ip()];
        Snapshot::new(Parts {
            generation: 1,
            ports,
            addresses: map,
            node_addresses,
            more_node_addresses: vec![address(101).to_ip()],
            ..Parts::default()
        })
    }

    proptest! {
        #[test]
        fn side_by_side_they_are_judged_as_alone(
            gates in prop::collection::vec((0..6_u8, 0..6_u8), 8),
            flows in prop::collection::vec((0..48_u8, 0..12_u8, 0..4_u16, any::<bool>()), 1..60),
        ) {
            let snapshot = snapshot(&gates);
            let flows = flows.into_iter().map(|(from, to, port, turned)| {
                let (mut from, to) = (address(from), address(to));
                if from == address(47) {
                    from = address(100);
                }
                if from == address(46) {
                    from = address(101);
                }
                let (source, destination) = if turned { (to, from) } else { (from, to) };
                Flow { source, destination, source_port: 9, destination_port: port, protocol: 6 }
            });
            let mut cases = PolicyBatch::default();
            let mut expected = Vec::new();
            for flow in flows {
                let [sender, receiver] =
                    [flow.source, flow.destination].map(|address| snapshot.pod_of(address));
                let [from, to] = [sender, receiver].map(|pod| pod.map(|(id, _)| id));
                match settled(&snapshot, &flow, from, to) {
                    Some(outcome) => prop_assert_eq!(judge(&snapshot, &flow).outcome, outcome),
                    None => {
                        cases.push(&flow, sender, receiver);
                        let forms = forms(&snapshot, &flow, sender.is_some(), receiver.is_some());
                        forms.skip(1).for_each(|form| cases.push_form(&form));
                        expected.push(judge(&snapshot, &flow));
                    }
                }
            }
            let found: Vec<Judgement> = cases.judge(&snapshot).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
