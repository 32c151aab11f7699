//! The policy batch: connections of one vector, classified side by side.
//!
//! Looks up each table once for all connections that it classifies, so that the memory latencies of
//! the lookups overlap.

use acl::{AddressMap, Key, Table};

use super::{Acls, Deciders, Decision, RuleAt, key};
use crate::wire::Flow;
use crate::{AclBinding, Outcome, PortId, PortState, Snapshot};

/// The connections of one vector that ACLs decide about.
#[derive(Debug, Default)]
pub(crate) struct PolicyBatch<'a> {
    entries: Vec<Entry>,
    keys: Vec<Key>,
    /// Lookups in the tables of initiators (`from_pod`) and of responders (`to_pod`).
    lookups: [Lookups<'a>; 2],
    /// Whether any of the tables matches on identities of sources, and of destinations.
    asks_identities: [bool; 2],
    /// Whether the keys have them.
    has_identities: [bool; 2],
    lists: Lists,
}

/// One connection.
#[derive(Debug)]
struct Entry {
    /// The ports of the initiator's and the responder's pod, and the rules found.
    ports: [PortId; 2],
    found: [u32; 2],
    refused: Option<Outcome>,
    /// Whether the responder's ACL binding is closed.
    to_closed: bool,
    /// Whether it is another form of the previous entry's connection.
    is_further_form: bool,
}

/// The decisions about a batch.
pub(crate) struct Decisions<'b> {
    left: std::slice::Iter<'b, Entry>,
}

impl Iterator for Decisions<'_> {
    type Item = Decision;

    #[inline]
    fn next(&mut self) -> Option<Decision> {
        let mut decision = self.left.next()?.decision();
        while let [form, ..] = self.left.as_slice()
            && form.is_further_form
        {
            if decision.outcome == Outcome::PolicyAllowed && form.refusal().is_some() {
                decision = form.decision();
            }
            self.left.next();
        }
        Some(decision)
    }
}

/// The lookups of one end's tables.
#[derive(Debug, Default)]
struct Lookups<'a> {
    list: Vec<Lookup<'a>>,
    /// Whether more than one table is among them.
    has_several: bool,
}

/// A lookup in a table.
#[derive(Clone, Copy, Debug)]
struct Lookup<'a> {
    table: &'a Table,
    entry: usize,
}

impl Lookup<'_> {
    /// The table's address in memory: equal addresses mean the same table.
    #[inline]
    fn place(&self) -> *const Table {
        self.table
    }
}

/// Scratch lists of the table lookups.
#[derive(Debug, Default)]
struct Lists {
    batch: Vec<Key>,
    found: Vec<u32>,
}

/// Up to this number, lookups in one table are made one by one.
const FEW: usize = 4;

impl<'a> Lookups<'a> {
    fn emptied<'b>(mut self) -> Lookups<'b> {
        self.list.clear();
        // The vector is empty, so nothing is borrowed; the allocation is reused.
        let list = self.list.into_iter().map(|_| unreachable!("cleared")).collect();
        Lookups { list, has_several: false }
    }

    /// Adds a lookup; returns whether its table is another one than the last.
    #[inline]
    fn push(&mut self, table: &'a Table, entry: usize) -> bool {
        let is_other = self.list.last().is_none_or(|last| !std::ptr::eq(last.table, table));
        self.has_several |= is_other && !self.list.is_empty();
        self.list.push(Lookup { table, entry });
        is_other
    }
}

impl<'a> PolicyBatch<'a> {
    /// An empty batch that reuses the allocations of this one.
    pub(crate) fn emptied<'b>(mut self) -> PolicyBatch<'b> {
        self.entries.clear();
        self.keys.clear();
        PolicyBatch {
            entries: self.entries,
            keys: self.keys,
            lookups: self.lookups.map(Lookups::emptied),
            asks_identities: [false; 2],
            has_identities: [false; 2],
            lists: self.lists,
        }
    }

    /// Adds a connection between these pods (those that are on this node) in every form that
    /// policies may name it by, its original tuple first.
    #[inline]
    pub(crate) fn push_all_forms(
        &mut self,
        snapshot: &'a Snapshot,
        flow: &Flow,
        initiator: Option<(PortId, &'a PortState)>,
        responder: Option<(PortId, &'a PortState)>,
    ) {
        self.push(flow, initiator, responder, false);
        if super::has_further_forms(snapshot, flow, initiator.is_some(), responder.is_some()) {
            self.push_further_forms(snapshot, flow);
        }
    }

    /// Adds the further forms of the connection that was added last.
    #[inline(never)]
    fn push_further_forms(&mut self, snapshot: &'a Snapshot, flow: &Flow) {
        let Some(Entry { ports, .. }) = self.entries.last() else { return };
        let [initiator, responder] = ports.map(|id| snapshot.pod(id).map(|port| (id, port)));
        super::further_forms(snapshot, flow, initiator.is_some(), responder.is_some())
            .for_each(|form| self.push(&form, initiator, responder, true));
    }

    #[inline]
    fn push(
        &mut self,
        flow: &Flow,
        initiator: Option<(PortId, &'a PortState)>,
        responder: Option<(PortId, &'a PortState)>,
        is_further_form: bool,
    ) {
        let ports = [initiator, responder].map(|pod| pod.map_or(PortId::NONE, |(id, _)| id));
        let pods = [initiator, responder].map(|pod| pod.map(|(_, port)| port));
        let (refused, to_closed) = self.bind(self.entries.len(), pods, Acls::Enforced);
        let found = [Table::NONE; 2];
        self.entries.push(Entry { ports, found, refused, to_closed, is_further_form });
        self.keys.push(key(flow));
    }

    /// Adds the lookups of an entry; returns why it is refused without one, and whether the responder's binding is
    /// closed.
    #[inline(always)]
    fn bind(
        &mut self,
        entry: usize,
        pods: [Option<&'a PortState>; 2],
        acls: Acls,
    ) -> (Option<Outcome>, bool) {
        let bindings = [pods[0].map(|it| acls.of(it)[0]), pods[1].map(|it| acls.of(it)[1])];
        let is_closed = |end: usize| matches!(bindings[end], Some(AclBinding::Closed));
        let refused = is_closed(0).then_some(Outcome::Closed);
        for (end, binding) in bindings.into_iter().enumerate() {
            if let Some(AclBinding::Table(table)) = binding
                && refused.is_none()
                && self.lookups[end].push(table, entry)
            {
                let [source, destination] = table.asks_identities();
                self.asks_identities[0] |= source;
                self.asks_identities[1] |= destination;
            }
        }
        (refused, is_closed(1))
    }

    /// Prepares an evaluated batch for another evaluation, by the staged ACLs of pods that have any. What is decided
    /// about connections of others stays as it is.
    pub(crate) fn restage(&mut self, snapshot: &'a Snapshot) {
        self.asks_identities = [false; 2];
        for lookups in &mut self.lookups {
            lookups.list.clear();
            lookups.has_several = false;
        }
        for n in 0..self.entries.len() {
            let pods = self.entries[n].ports.map(|id| snapshot.pod(id));
            if pods.iter().flatten().any(|port| port.staged.is_some()) {
                let (refused, to_closed) = self.bind(n, pods, Acls::Staged);
                let entry = &mut self.entries[n];
                (entry.refused, entry.to_closed, entry.found) =
                    (refused, to_closed, [Table::NONE; 2]);
            }
        }
    }

    /// Classifies the batch; returns one decision a connection, in order: permitted if its first
    /// form is and no policy states a denial of another one.
    #[inline]
    pub(crate) fn evaluate(&mut self, map: &AddressMap) -> Decisions<'_> {
        if self.asks_identities[0] && !self.has_identities[0] {
            map.identify_sources(&mut self.keys);
            self.has_identities[0] = true;
        }
        if self.asks_identities[1] && !self.has_identities[1] {
            map.identify_destinations(&mut self.keys);
            self.has_identities[1] = true;
        }
        if self.lookup_tables(0) {
            // The initiators' tables have decided about some.
            let entries = &self.entries;
            self.lookups[1].list.retain(|lookup| entries[lookup.entry].refused.is_none());
        }
        self.lookup_tables(1);
        Decisions { left: self.entries.iter() }
    }

    /// Looks up each table of one end once; returns whether one denied a connection.
    #[inline]
    fn lookup_tables(&mut self, end: usize) -> bool {
        let Self { entries, keys, lookups, lists: Lists { batch, found }, .. } = self;
        let Lookups { list, has_several } = &mut lookups[end];
        if *has_several {
            list.sort_unstable_by_key(Lookup::place);
        }
        let is_about_all = !*has_several && list.len() == keys.len();
        let mut refuses = false;
        for part in list.chunk_by(|a, b| std::ptr::eq(a.table, b.table)) {
            let table = part[0].table;
            found.clear();
            if part.len() <= FEW {
                let rule_of = |key| table.lookup(key).map_or(Table::NONE, |rule| rule as u32);
                found.extend(part.iter().map(|lookup| rule_of(&keys[lookup.entry])));
            } else {
                found.resize(part.len(), Table::NONE);
                if is_about_all {
                    table.lookup_vector(keys, found);
                } else {
                    batch.clear();
                    batch.extend(part.iter().map(|lookup| keys[lookup.entry]));
                    table.lookup_vector(batch, found);
                }
            }
            for (lookup, found) in part.iter().zip(found.iter()) {
                let entry = &mut entries[lookup.entry];
                entry.found[end] = *found;
                // Without a matching rule a table denies.
                if !table.permits(*found)
                    && (!entry.is_further_form || table.denies_explicitly(*found))
                {
                    entry.refuse(end, Outcome::PolicyDenied);
                    refuses = true;
                }
            }
        }
        refuses
    }
}

impl Entry {
    #[inline]
    fn refuse(&mut self, end: usize, outcome: Outcome) {
        self.refused = Some(outcome);
        // The permitting end did not decide.
        self.found[1 - end] = Table::NONE;
    }

    /// Why it is refused, if it is.
    #[inline]
    fn refusal(&self) -> Option<Outcome> {
        self.refused.or(self.to_closed.then_some(Outcome::Closed))
    }

    #[inline]
    fn decision(&self) -> Decision {
        let refusal = self.refusal();
        // A closed binding decides without a rule.
        let by_rules = refusal != Some(Outcome::Closed);
        let rule = |end: usize| {
            let (port, rule) = (self.ports[end], self.found[end]);
            (by_rules && rule != Table::NONE).then_some(RuleAt { port, rule })
        };
        let by = Deciders { from_pod: rule(0), to_pod: rule(1) };
        Decision { outcome: refusal.unwrap_or(Outcome::PolicyAllowed), by }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use acl::{Action, Address, AddressMapBuilder, Block, PeerSetId, PortRange, Rule};
    use proptest::prelude::*;

    use super::*;
    use crate::policy::{evaluate, evaluate_deciding, exempt};
    use crate::{Parts, PortKind, StagedAcls};

    /// Pods 10.1.0.0 to 10.1.0.7 here, others elsewhere; 10.1.0.100 is the node.
    fn address(n: u8) -> Address {
        Address::from_v4_bits(0x0a01_0000 + u32::from(n))
    }

    /// ACLs of a pod for what it opens and for what is for it, and staged ones.
    type Bindings = ((u8, u8), Option<(u8, u8)>);

    fn snapshot(bindings: &[Bindings]) -> Snapshot {
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
            vec![
                permit(3).source(set(1)).destination(set(0)),
                permit(0),
                Rule::new(Action::Deny, "default-deny").as_default(),
            ],
        ]
        .map(|rules| AclBinding::Table(Arc::new(Table::compile(rules.into(), &map))));
        let binding = |n: u8| match n {
            0 => AclBinding::Closed,
            1 => AclBinding::Open,
            _ => tables[usize::from(n) % 3].clone(),
        };
        let pods = bindings.iter().zip(0..).map(|(((from_pod, to_pod), staged), n)| {
            let staged = staged.map(|(from_pod, to_pod)| {
                Arc::new(StagedAcls { from_pod: binding(from_pod), to_pod: binding(to_pod) })
            });
            Some(PortState {
                addresses: vec![address(n)],
                from_pod: binding(*from_pod),
                to_pod: binding(*to_pod),
                staged,
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
            bindings in prop::collection::vec(
                ((0..6_u8, 0..6_u8), prop::option::of((0..6_u8, 0..6_u8))),
                8,
            ),
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
            let (mut expected, mut expected_of_staged) = (Vec::new(), Vec::new());
            for flow in flows {
                let [initiator, responder] =
                    [flow.source, flow.destination].map(|address| snapshot.pod_of(address));
                let [from, to] = [initiator, responder].map(|pod| pod.map(|(id, _)| id));
                match exempt(&snapshot, &flow, from, to) {
                    Some(outcome) => prop_assert_eq!(evaluate(&snapshot, &flow).outcome, outcome),
                    None => {
                        let expect = |acls| {
                            evaluate_deciding(&snapshot, snapshot.address_map(), &flow, acls).0
                        };
                        entries.push_all_forms(&snapshot, &flow, initiator, responder);
                        expected.push(expect(Acls::Enforced));
                        expected_of_staged.push(expect(Acls::Staged));
                    }
                }
            }
            let found: Vec<Decision> = entries.evaluate(snapshot.address_map()).collect();
            prop_assert_eq!(found, expected);
            entries.restage(&snapshot);
            let found: Vec<Decision> = entries.evaluate(snapshot.address_map()).collect();
            prop_assert_eq!(found, expected_of_staged);
        }
    }
}
