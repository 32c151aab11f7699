//! The policy batch: connections of one vector, classified side by side.
//!
//! Looks up each table once for all connections that it classifies, so that the memory latencies of
//! the lookups overlap.

use acl::{AddressMap, Key, Table};

use super::{Deciders, Decision, RuleAt, key};
use crate::wire::Flow;
use crate::{AclBinding, Outcome, PortId, PortState, Snapshot};

/// The connections of one vector that ACLs decide about.
#[derive(Debug, Default)]
pub(crate) struct PolicyBatch<'a> {
    entries: Vec<Entry<'a>>,
    keys: Vec<Key>,
    lists: Lists,
}

/// One connection.
#[derive(Debug)]
struct Entry<'a> {
    /// The ACL bindings of the initiator's and the responder's pod, and the rules found.
    bindings: [Option<(PortId, &'a AclBinding)>; 2],
    found: [u32; 2],
    refused: Option<Outcome>,
    /// Whether it is another form of the previous entry's connection.
    is_further_form: bool,
}

/// The decisions about a batch.
pub(crate) struct Decisions<'b, 'a> {
    left: std::slice::Iter<'b, Entry<'a>>,
}

impl Iterator for Decisions<'_, '_> {
    type Item = Decision;

    #[inline]
    fn next(&mut self) -> Option<Decision> {
        let mut decision = self.left.next()?.decision();
        while let [form, ..] = self.left.as_slice()
            && form.is_further_form
        {
            if decision.outcome == Outcome::PolicyAllowed && form.refused.is_some() {
                decision = form.decision();
            }
            self.left.next();
        }
        Some(decision)
    }
}

/// Scratch lists of the table lookups.
#[derive(Debug, Default)]
struct Lists {
    lookups: Vec<Lookup>,
    batch: Vec<Key>,
    found: Vec<u32>,
}

/// A lookup in a table.
#[derive(Clone, Copy, Debug)]
struct Lookup {
    /// The table's address, which tells tables apart.
    table: usize,
    entry: usize,
}

/// Up to this number, lookups in one table are made one by one.
const FEW: usize = 4;

impl<'a> PolicyBatch<'a> {
    /// An empty batch that reuses the allocations of this one.
    pub(crate) fn emptied<'b>(mut self) -> PolicyBatch<'b> {
        self.entries.clear();
        self.keys.clear();
        // The vector is empty, so nothing is borrowed; the allocation is reused.
        let entries = self.entries.into_iter().map(|_| unreachable!("cleared")).collect();
        PolicyBatch { entries, keys: self.keys, lists: self.lists }
    }

    /// Adds a connection by its original tuple, with those of its pods that are on this cluster
    /// node.
    #[inline]
    fn push(
        &mut self,
        flow: &Flow,
        initiator: Option<(PortId, &'a PortState)>,
        responder: Option<(PortId, &'a PortState)>,
    ) {
        let bindings = [
            initiator.map(|(id, pod)| (id, &pod.from_pod)),
            responder.map(|(id, pod)| (id, &pod.to_pod)),
        ];
        let is_further_form = false;
        self.entries.push(Entry {
            bindings,
            found: [Table::NONE; 2],
            refused: None,
            is_further_form,
        });
        self.keys.push(key(flow));
    }

    /// Adds a connection between these pods in every form that policies may name it by.
    #[inline]
    pub(crate) fn push_all_forms(
        &mut self,
        snapshot: &Snapshot,
        flow: &Flow,
        initiator: Option<(PortId, &'a PortState)>,
        responder: Option<(PortId, &'a PortState)>,
    ) {
        self.push(flow, initiator, responder);
        // Only an end that is no pod here may be a cluster node.
        if initiator.is_some() != responder.is_some() {
            super::further_forms(snapshot, flow, initiator.is_some(), responder.is_some())
                .for_each(|form| self.push_form(&form));
        }
    }

    /// Adds another form of the last connection.
    #[inline]
    fn push_form(&mut self, flow: &Flow) {
        if let Some(Entry { bindings, .. }) = self.entries.last() {
            let bindings = *bindings;
            let (found, refused) = ([Table::NONE; 2], None);
            self.entries.push(Entry { bindings, found, refused, is_further_form: true });
            self.keys.push(key(flow));
        }
    }

    /// Classifies the batch; returns one decision a connection, in order. Every form of a
    /// connection must be permitted.
    #[inline]
    pub(crate) fn evaluate(&mut self, map: &AddressMap) -> Decisions<'_, 'a> {
        self.identify(map);
        for end in 0..2 {
            self.evaluate_bindings(end);
            self.lookup_tables(end);
        }
        Decisions { left: self.entries.iter() }
    }

    /// Adds the identities that any of the tables matches on.
    #[inline]
    fn identify(&mut self, map: &AddressMap) {
        let mut wanted = [false; 2];
        let mut last = std::ptr::null();
        for (_, binding) in self.entries.iter().flat_map(|entry| entry.bindings.iter().flatten()) {
            // Adjacent entries often share a binding.
            if let AclBinding::Table(table) = binding
                && !std::ptr::eq(std::mem::replace(&mut last, *binding), *binding)
            {
                let [source, destination] = table.asks_identities();
                wanted = [wanted[0] | source, wanted[1] | destination];
            }
        }
        if wanted[0] {
            map.identify_sources(&mut self.keys);
        }
        if wanted[1] {
            map.identify_destinations(&mut self.keys);
        }
    }

    /// Evaluates one end's bindings; collects those with tables for lookup.
    #[inline]
    fn evaluate_bindings(&mut self, end: usize) {
        let lookups = &mut self.lists.lookups;
        lookups.clear();
        for (n, entry) in self.entries.iter_mut().enumerate() {
            match entry.bindings[end] {
                None | Some((_, AclBinding::Open)) => {}
                Some(_) if entry.refused.is_some() => {}
                Some((_, AclBinding::Closed)) => entry.refuse(end, Outcome::Closed),
                Some((_, AclBinding::Table(table))) => {
                    lookups.push(Lookup { table: std::ptr::from_ref(&**table).addr(), entry: n });
                }
            }
        }
    }

    /// Looks up each table once.
    #[inline]
    fn lookup_tables(&mut self, end: usize) {
        let Self { entries, keys, lists: Lists { lookups, batch, found } } = self;
        let Some(first) = lookups.first() else { return };
        let is_one = lookups.iter().all(|lookups| lookups.table == first.table);
        if !is_one {
            lookups.sort_unstable_by_key(|lookups| lookups.table);
        }
        let is_about_all = is_one && lookups.len() == keys.len();
        for lookups in lookups.chunk_by(|a, b| a.table == b.table) {
            let Some((_, AclBinding::Table(table))) = entries[lookups[0].entry].bindings[end]
            else {
                continue;
            };
            found.clear();
            if lookups.len() <= FEW {
                let lookup = |key| table.lookup(key).map_or(Table::NONE, |rule| rule as u32);
                found.extend(lookups.iter().map(|lookups| lookup(&keys[lookups.entry])));
            } else {
                found.resize(lookups.len(), Table::NONE);
                if is_about_all {
                    table.lookup_vector(keys, found);
                } else {
                    batch.clear();
                    batch.extend(lookups.iter().map(|lookups| keys[lookups.entry]));
                    table.lookup_vector(batch, found);
                }
            }
            for (lookups, found) in lookups.iter().zip(found.iter()) {
                let entry = &mut entries[lookups.entry];
                entry.found[end] = *found;
                // Without a matching rule a table denies.
                if !table.permits(*found) {
                    entry.refuse(end, Outcome::PolicyDenied);
                }
            }
        }
    }
}

impl Entry<'_> {
    fn refuse(&mut self, end: usize, outcome: Outcome) {
        self.refused = Some(outcome);
        // The permitting end did not decide.
        self.found[1 - end] = Table::NONE;
    }

    #[inline]
    fn decision(&self) -> Decision {
        let rule = |end: usize| {
            let (port, _) = self.bindings[end]?;
            (self.found[end] != Table::NONE).then_some(RuleAt { port, rule: self.found[end] })
        };
        let by = Deciders { from_pod: rule(0), to_pod: rule(1) };
        Decision { outcome: self.refused.unwrap_or(Outcome::PolicyAllowed), by }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use acl::{Action, Address, AddressMapBuilder, Block, PeerSetId, PortRange, Rule};
    use proptest::prelude::*;

    use super::*;
    use crate::policy::{evaluate, exempt};
    use crate::{Parts, PortKind};

    /// Pods 10.1.0.0 to 10.1.0.7 here, others elsewhere; 10.1.0.100 is the cluster node.
    fn address(n: u8) -> Address {
        Address::from_v4_bits(0x0a01_0000 + u32::from(n))
    }

    fn snapshot(bindings: &[(u8, u8)]) -> Snapshot {
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
        .map(|rules| AclBinding::Table(Arc::new(Table::compile(rules.into(), &map))));
        let binding = |n: u8| match n {
            0 => AclBinding::Closed,
            1 => AclBinding::Open,
            _ => tables[usize::from(n) % 3].clone(),
        };
        let pods = bindings.iter().zip(0..).map(|((from_pod, to_pod), n)| {
            Some(PortState {
                addresses: vec![address(n)],
                from_pod: binding(*from_pod),
                to_pod: binding(*to_pod),
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
        fn a_batch_decides_as_single_evaluations_do(
            bindings in prop::collection::vec((0..6_u8, 0..6_u8), 8),
            flows in prop::collection::vec((0..48_u8, 0..12_u8, 0..4_u16, any::<bool>()), 1..60),
        ) {
            let snapshot = snapshot(&bindings);
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
            let mut entries = PolicyBatch::default();
            let mut expected = Vec::new();
            for flow in flows {
                let [initiator, responder] =
                    [flow.source, flow.destination].map(|address| snapshot.pod_of(address));
                let [from, to] = [initiator, responder].map(|pod| pod.map(|(id, _)| id));
                match exempt(&snapshot, &flow, from, to) {
                    Some(outcome) => prop_assert_eq!(evaluate(&snapshot, &flow).outcome, outcome),
                    None => {
                        entries.push_all_forms(&snapshot, &flow, initiator, responder);
                        expected.push(evaluate(&snapshot, &flow));
                    }
                }
            }
            let found: Vec<Decision> = entries.evaluate(snapshot.address_map()).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
