//! May this connection be opened?
//!
//! A connection opens if both ends let it: the table of the pod that opens it (`from_pod`) and
//! the table of the pod that it is for (`to_pod`). That is what combining the sender's rules
//! into the receiver's local table, and all senders' rules into one global table, would say
//! as well; asking two tables keeps a change at one pod from touching the tables of others.

mod batch;

use std::sync::Arc;

use acl::Key;

pub(crate) use batch::PolicyBatch;

use crate::wire::{Flow, protocol};
use crate::{Gate, Outcome, PortId, Snapshot};

/// The judgement of one connection, with the rules it rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// [`Outcome::PolicyAllowed`], [`Outcome::OwnNode`], [`Outcome::NoPolicy`],
    /// [`Outcome::PolicyDenied`] or [`Outcome::Closed`].
    pub outcome: Outcome,
    /// The deciding rules: the one at the opening pod, the one at the pod it is for.
    pub by: Deciders,
}

/// The rules that decided, at the opening end and at the receiving end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Deciders {
    /// The rule of the opening pod's `from_pod` table.
    pub from_pod: Option<RuleAt>,
    /// The rule of the receiving pod's `to_pod` table.
    pub to_pod: Option<RuleAt>,
}

/// A rule by its port and place; readable together with the snapshot that was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleAt {
    /// The pod's port.
    pub port: PortId,
    /// Index in the table's rules.
    pub rule: u32,
}

/// Judges the connection that `flow`, as its opener's packets show it, belongs to.
pub fn judge(snapshot: &Snapshot, flow: &Flow) -> Judgement {
    judge_deciding(snapshot, flow).0
}

/// The form of the connection that the judgement rests on; see [`forms`].
pub(crate) fn deciding(snapshot: &Snapshot, flow: &Flow) -> Flow {
    judge_deciding(snapshot, flow).1
}

fn judge_deciding(snapshot: &Snapshot, flow: &Flow) -> (Judgement, Flow) {
    let [sender, receiver] =
        [flow.source, flow.destination].map(|address| snapshot.pod_of(address).is_some());
    let mut forms = forms(snapshot, flow, sender, receiver).map(|flow| {
        let judgement = judge_form(snapshot, &flow);
        (judgement, flow)
    });
    let first = forms.next().unwrap_or_else(|| (judge_form(snapshot, flow), *flow));
    let is_refused =
        |(judgement, _): &(Judgement, Flow)| judgement.outcome.verdict() == crate::Verdict::Drop;
    if is_refused(&first) { first } else { forms.find(is_refused).unwrap_or(first) }
}

/// The forms in which policies know a connection: as it is, and with every other address by which
/// they know a cluster node that is an end of it. All must be allowed.
#[inline]
pub(crate) fn forms(
    snapshot: &Snapshot,
    flow: &Flow,
    sender: bool,
    receiver: bool,
) -> impl Iterator<Item = Flow> {
    let flow = *flow;
    let named = |address, asks: bool| {
        let named = asks.then(|| snapshot.policy_addresses(address));
        named.into_iter().flatten()
    };
    // What a pod opens is for the destination; what is for a pod comes from the source.
    let destinations = named(flow.destination, sender && !receiver);
    let sources = named(flow.source, receiver && !sender);
    let to = destinations.map(move |destination| Flow { destination, ..flow });
    let from = sources.map(move |source| Flow { source, ..flow });
    std::iter::once(flow).chain(to).chain(from)
}

fn judge_form(snapshot: &Snapshot, flow: &Flow) -> Judgement {
    let (sender, receiver) = (snapshot.pod_of(flow.source), snapshot.pod_of(flow.destination));
    let mut by = Deciders::default();
    let id = |(id, _)| id;
    if let Some(outcome) = settled(snapshot, flow, sender.map(id), receiver.map(id)) {
        return Judgement { outcome, by };
    }
    if let Some((id, port)) = sender {
        let (refused, rule) = ask(snapshot, &port.from_pod, flow);
        by.from_pod = rule.map(|rule| RuleAt { port: id, rule });
        if let Some(outcome) = refused {
            return Judgement { outcome, by };
        }
    }
    if let Some((id, port)) = receiver {
        let (refused, rule) = ask(snapshot, &port.to_pod, flow);
        by.to_pod = rule.map(|rule| RuleAt { port: id, rule });
        if let Some(outcome) = refused {
            // The end that let it pass is not what decided.
            return Judgement { outcome, by: Deciders { from_pod: None, ..by } };
        }
    }
    Judgement { outcome: Outcome::PolicyAllowed, by }
}

/// What one gate says to a connection: why it refuses, and the rule that decides.
pub(crate) fn ask(snapshot: &Snapshot, gate: &Gate, flow: &Flow) -> (Option<Outcome>, Option<u32>) {
    match gate {
        Gate::Closed => (Some(Outcome::Closed), None),
        Gate::Open => (None, None),
        Gate::Table(table) => {
            let (mut key, map) = (key(flow), snapshot.address_map());
            let [of_source, of_destination] = table.asks_identities();
            if of_source {
                key.source_identity = map.lookup(flow.source);
            }
            if of_destination {
                key.destination_identity = map.lookup(flow.destination);
            }
            let rule = table.lookup(&key).map(|rule| rule as u32);
            let permits = rule.is_some_and(|rule| table.permits(rule));
            ((!permits).then_some(Outcome::PolicyDenied), rule)
        }
    }
}

/// What no gate is asked about.
#[inline]
pub(crate) fn settled(
    snapshot: &Snapshot,
    flow: &Flow,
    sender: Option<PortId>,
    receiver: Option<PortId>,
) -> Option<Outcome> {
    match (sender, receiver) {
        (None, None) => Some(Outcome::NoPolicy),
        // A pod may always talk to itself, and its own cluster node (kubelet) may always talk to
        // it.
        (Some(sender), Some(receiver)) if sender == receiver => Some(Outcome::PolicyAllowed),
        (None, Some(_)) if snapshot.is_own_node(flow.source) => Some(Outcome::OwnNode),
        _ => None,
    }
}

/// The key of a connection, without identities.
#[inline]
fn key(flow: &Flow) -> Key {
    let (source_port, destination_port) = match flow.protocol {
        // Only echo requests open anything: type 8 or 128, code 0.
        protocol::ICMP => (8, 0),
        protocol::ICMPV6 => (128, 0),
        _ => (flow.source_port, flow.destination_port),
    };
    Key {
        source: flow.source,
        destination: flow.destination,
        protocol: flow.protocol,
        source_port,
        destination_port,
        ..Key::default()
    }
}

/// What the verdict of a new connection is reported by where no rule decided it.
pub const DEFAULT_ALLOW: &str = "default-allow";

impl Deciders {
    /// Names of the deciding rules' origins, opening end first; [`DEFAULT_ALLOW`] where an
    /// allowed connection met no rule.
    pub fn origins(&self, snapshot: &Snapshot, outcome: Outcome) -> Vec<Arc<str>> {
        let origin = |at: Option<RuleAt>, from: bool| {
            let at = at?;
            let port = snapshot.port(at.port)?;
            let gate = if from { &port.from_pod } else { &port.to_pod };
            let Gate::Table(table) = gate else { return None };
            table.rules().get(at.rule as usize).map(|rule| Arc::clone(&rule.origin))
        };
        let mut origins: Vec<Arc<str>> = Vec::new();
        for found in [origin(self.from_pod, true), origin(self.to_pod, false)].into_iter().flatten()
        {
            if !origins.contains(&found) {
                origins.push(found);
            }
        }
        if origins.is_empty() && outcome == Outcome::PolicyAllowed {
            origins.push(DEFAULT_ALLOW.into());
        }
        origins
    }
}
