//! Ends that are reached over a pod between them: by a connection to it, and one from it.
//!
//! Intermediate pods are those that could exist on the pod network. Over nodes and the internet nearly every end would
//! be reachable, so they do not count.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use control::PodKey;

use super::ends::End;
use super::{Connection, Counterexample, Hop, Prover, Refuting, Statement};
use crate::policy::matrix;
use crate::probe::Protocol;

/// The ends of a pod, one for each of its addresses.
type Middle = Vec<End>;

impl Prover {
    /// Two connections that refute a statement, over a pod of a namespace that is meant.
    pub(super) fn over_a_pod(
        &self,
        statement: &Statement,
        from: &[End],
        to: &[End],
        is_meant: &dyn Fn(&str) -> bool,
    ) -> Option<Counterexample> {
        let every = statement.about_every_connection();
        for middle in self.middles(is_meant) {
            let last = to.iter().flat_map(|to| middle.iter().map(move |at| (at, to)));
            let last = last.filter(|(at, to)| self.is_pair(at, to));
            let mut last = last
                .filter_map(|(at, to)| Some((at, to, self.refuting(statement, at, to)?)))
                .peekable();
            if last.peek().is_none() {
                continue;
            }
            let first = from.iter().flat_map(|from| middle.iter().map(move |at| (from, at)));
            let first = first.filter(|(from, at)| self.is_pair(from, at));
            let first: Vec<_> = first
                .filter_map(|(from, at)| Some((from, at, self.refuting(&every, from, at)?)))
                .collect();
            for (leaves, to, second) in last {
                let fitting = first.iter().filter(|(from, ..)| self.are_apart(from, to));
                let found = fitting.filter_map(|(from, enters, first)| {
                    self.both([from, enters, leaves, to], first, &second)
                });
                if let Some(found) = { found }.next() {
                    return Some(found);
                }
            }
        }
        None
    }

    /// Both connections; `None` where their pods cannot be there at once.
    fn both(
        &self,
        [from, enters, leaves, to]: [&End; 4],
        first: &Refuting,
        second: &Refuting,
    ) -> Option<Counterexample> {
        let addresses = [from, enters, leaves, to].map(|end| end.address);
        let addresses = self.parts.real(&addresses)?;
        let port = |it: &Refuting| (it.protocol != Protocol::Icmp).then_some(it.port);
        let connection = |it: &Refuting, ends: [(&End, IpAddr); 2]| Connection {
            ends: ends.map(|(end, address)| (end.pod.clone(), address)),
            protocol: it.protocol,
            port: it.port,
        };
        let via = Hop {
            to: self.words(enters),
            protocol: first.protocol.name(),
            port: port(first),
            by: first.decision.by.clone(),
        };
        Some(Counterexample {
            from: self.words(from),
            to: self.words(to),
            protocol: second.protocol.name(),
            port: port(second),
            by: second.decision.by.clone(),
            via: vec![via],
            permits: second.decision.permits,
            connections: vec![
                connection(first, [(from, addresses[0]), (enters, addresses[1])]),
                connection(second, [(leaves, addresses[2]), (to, addresses[3])]),
            ],
        })
    }

    /// Two pods of each class that tables treat alike, by all their addresses.
    fn middles(&self, is_meant: &dyn Fn(&str) -> bool) -> Vec<Middle> {
        let view = self.matrix.view();
        let mut counts: HashMap<_, usize> = HashMap::new();
        let mut kept = Vec::new();
        for (key, pod) in view.pods.iter() {
            let name = self.named(&key.namespace);
            if !is_meant(name) {
                continue;
            }
            let tables = matrix::tables(view, key).map(|table| table.as_ref().map(Arc::as_ptr));
            let places = pod.addresses.iter().map(|address| {
                let identity = view.addresses.lookup((*address).into());
                (identity, self.parts.of(*address), address.is_ipv4())
            });
            let places: Vec<_> = places.collect();
            let class = (tables, places, self.shared.get(name));
            let count = counts.entry(class).or_default();
            *count += 1;
            if *count <= 2 {
                kept.push(self.ends_of(key, &pod.addresses));
            }
        }
        kept
    }

    fn ends_of(&self, key: &PodKey, addresses: &[IpAddr]) -> Middle {
        let node = self.prober.world().pod(key).and_then(|pod| pod.node.clone());
        let end = |address: &IpAddr| End {
            pod: Some(key.clone()),
            node: node.clone(),
            address: *address,
            port: None,
        };
        addresses.iter().map(end).collect()
    }
}
