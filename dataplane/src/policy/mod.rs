//! Policy evaluation of connections.
//!
//! A connection is permitted if both ends permit it: the table of the pod that opens it
//! (`from_pod`) and the table of the pod that it is for (`to_pod`). Combining the senders' rules
//! into the receiver's local table, and all of them into one global table, gives the same result;
//! with two tables a change at one pod leaves the tables of others alone.

mod batch;
pub(crate) mod definition;

use acl::{Address, AddressMap, Key, Origin, Table};

pub(crate) use batch::PolicyBatch;

use crate::session::Tuples;
use crate::wire::{Flow, protocol};
use crate::{AclBinding, Outcome, PortId, PortState, Snapshot};

/// The decision about one connection, with the rules that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// [`Outcome::PolicyAllowed`], [`Outcome::OwnNode`], [`Outcome::NoPolicy`],
    /// [`Outcome::PolicyDenied`] or [`Outcome::Closed`].
    pub outcome: Outcome,
    /// The deciding rules at the initiator's and the responder's pod.
    pub by: Deciders,
}

/// The rules that decided, at the initiator's and at the responder's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Deciders {
    /// The rule of the initiator's `from_pod` table.
    pub from_pod: Option<RuleAt>,
    /// The rule of the responder's `to_pod` table.
    pub to_pod: Option<RuleAt>,
}

/// A rule by its port and index, in the snapshot that was evaluated; without a port in the ACL of
/// clients outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleAt {
    /// The pod's port.
    pub port: PortId,
    /// Index in the table's rules.
    pub rule: u32,
}

/// The ACLs of a port to evaluate by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acls {
    Enforced,
    /// Staged ones where the port has them.
    Staged,
}

impl Acls {
    /// Those for connections that the pod opens, and for connections towards it.
    #[inline(always)]
    fn of(self, port: &PortState) -> [&AclBinding; 2] {
        match (self, &port.staged) {
            (Self::Staged, Some(staged)) => [&staged.from_pod, &staged.to_pod],
            _ => [&port.from_pod, &port.to_pod],
        }
    }
}

/// The decision of staged ACLs about a connection, where it is another one than that of the enforced ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StagedDecision {
    /// The outcome if staged policies were enforced.
    pub outcome: Outcome,
    /// The origins of the staged rules that decide; see [`Deciders::origins`].
    pub by: Vec<Origin>,
}

impl StagedDecision {
    /// A decision by staged ACLs about a connection that the enforced ones ended with this outcome; `None` if
    /// the verdict is the same.
    pub(crate) fn new(snapshot: &Snapshot, staged: Decision, enforced: Outcome) -> Option<Self> {
        let is_other = staged.outcome.verdict() != enforced.verdict();
        is_other.then(|| Self {
            outcome: staged.outcome,
            by: staged.by.origins_in(snapshot, Acls::Staged, staged.outcome),
        })
    }
}

/// Evaluates the connection with the original tuple `flow`, as one that opens now.
pub fn evaluate(snapshot: &Snapshot, flow: &Flow) -> Decision {
    evaluate_deciding(snapshot, snapshot.address_map(), flow, Acls::Enforced).0
}

/// Evaluates an open connection by the staged ACLs of its ends. `None` if they permit it as the enforced ones do.
pub fn staged_difference_of_session(
    snapshot: &Snapshot,
    tuples: &Tuples,
) -> Option<StagedDecision> {
    let (flow, map) = (tuples.policy_flow(), snapshot.live_address_map());
    let is_staged = |address| snapshot.pod_of(address).is_some_and(|(_, pod)| pod.staged.is_some());
    if !is_staged(flow.source) && !is_staged(flow.destination) {
        return None;
    }
    let enforced = evaluate_deciding(snapshot, map, &flow, Acls::Enforced).0.outcome;
    StagedDecision::new(snapshot, evaluate_deciding(snapshot, map, &flow, Acls::Staged).0, enforced)
}

/// Evaluates a connection that is open.
pub(crate) fn reevaluate(snapshot: &Snapshot, tuples: &Tuples) -> Decision {
    let flow = tuples.policy_flow();
    let map = snapshot.live_address_map();
    let decision = evaluate_deciding(snapshot, map, &flow, Acls::Enforced).0;
    if !tuples.is_translated() {
        return decision;
    }
    let is_sent_on = decision.outcome == Outcome::NoPolicy;
    let refused = if is_sent_on { refuse_outside(snapshot, map, &flow) } else { None };
    refused.or_else(|| refuse_by_host(snapshot, map, &flow)).unwrap_or(decision)
}

/// Refuses a connection that a service leads to a process of this node, or that such a process opens by
/// a service, if its host firewalls deny it. The kernel sees the switch's address in the place of the other end's.
pub(crate) fn refuse_by_host(
    snapshot: &Snapshot,
    map: &AddressMap,
    flow: &Flow,
) -> Option<Decision> {
    let port = snapshot.host()?;
    let host = snapshot.port(port)?;
    let is_own = [flow.source, flow.destination].map(|it| snapshot.is_own_node(it));
    let binding = match is_own {
        [true, false] => &host.from_pod,
        [false, true] => &host.to_pod,
        _ => return None,
    };
    binding.table()?;
    let (refused, rule) = evaluate_binding(map, binding, flow);
    let at = |is_own: bool| rule.filter(|_| is_own).map(|rule| RuleAt { port, rule });
    let by = Deciders { from_pod: at(is_own[0]), to_pod: at(is_own[1]) };
    refused.map(|outcome| Decision { outcome, by })
}

/// Refuses a connection of a client outside that a service leads to something that is no pod, if an
/// egress firewall for the whole cluster denies its destination.
pub(crate) fn refuse_outside(
    snapshot: &Snapshot,
    map: &AddressMap,
    flow: &Flow,
) -> Option<Decision> {
    let is_asked = !matches!(snapshot.outside(), AclBinding::Open)
        && snapshot.is_outside(flow.source)
        && !snapshot.is_pod(flow.destination);
    if !is_asked {
        return None;
    }
    let forms = snapshot.policy_addresses(flow.destination);
    let forms = forms.map(|destination| (Flow { destination, ..*flow }, true));
    std::iter::once((*flow, false)).chain(forms).find_map(|(form, is_further)| {
        let (refused, rule) = evaluate_binding(map, snapshot.outside(), &form);
        let by = Deciders {
            from_pod: rule.map(|rule| RuleAt { port: PortId::NONE, rule }),
            to_pod: None,
        };
        let decision = Decision { outcome: refused?, by };
        (!is_further || decision.is_explicit_denial(snapshot, Acls::Enforced)).then_some(decision)
    })
}

/// Returns the form of the connection that decided; see [`further_forms`].
pub(crate) fn deciding(snapshot: &Snapshot, flow: &Flow) -> Flow {
    evaluate_deciding(snapshot, snapshot.address_map(), flow, Acls::Enforced).1
}

fn evaluate_deciding(
    snapshot: &Snapshot,
    map: &AddressMap,
    flow: &Flow,
    acls: Acls,
) -> (Decision, Flow) {
    let [initiator, responder] =
        [flow.source, flow.destination].map(|address| snapshot.pod_of(address));
    let id = |pod: Option<(PortId, _)>| pod.map(|(id, _)| id);
    if let Some(outcome) = exempt(snapshot, flow, id(initiator), id(responder)) {
        return (Decision { outcome, by: Deciders::default() }, *flow);
    }
    let first = evaluate_form(map, flow, initiator, responder, acls);
    if first.outcome == Outcome::PolicyAllowed {
        for form in further_forms(snapshot, flow, initiator.is_some(), responder.is_some()) {
            let decision = evaluate_form(map, &form, initiator, responder, acls);
            if decision.is_explicit_denial(snapshot, acls) {
                return (decision, form);
            }
        }
    }
    (first, *flow)
}

/// Returns the further forms of a connection: its tuple with every other address of the
/// node that is one of its ends. What a policy denies of them is denied; a permission is one for
/// the address in the packet.
#[inline(always)]
pub(crate) fn further_forms(
    snapshot: &Snapshot,
    flow: &Flow,
    initiator: bool,
    responder: bool,
) -> impl Iterator<Item = Flow> {
    let flow = *flow;
    let others =
        node_end(&flow, initiator, responder).map(|address| snapshot.policy_addresses(address));
    others.into_iter().flatten().map(move |other| match initiator {
        true => Flow { destination: other, ..flow },
        false => Flow { source: other, ..flow },
    })
}

/// Whether a connection may have [further forms](further_forms).
#[inline(always)]
pub(crate) fn has_further_forms(
    snapshot: &Snapshot,
    flow: &Flow,
    initiator: bool,
    responder: bool,
) -> bool {
    node_end(flow, initiator, responder)
        .is_some_and(|address| snapshot.may_have_policy_addresses(address))
}

/// The end that may be a node: the one that is no pod here, where the other one is. `from_pod` matches the destination,
/// `to_pod` the source.
#[inline(always)]
fn node_end(flow: &Flow, initiator: bool, responder: bool) -> Option<Address> {
    match (initiator, responder) {
        (true, false) => Some(flow.destination),
        (false, true) => Some(flow.source),
        _ => None,
    }
}

fn evaluate_form(
    map: &AddressMap,
    flow: &Flow,
    initiator: Option<(PortId, &PortState)>,
    responder: Option<(PortId, &PortState)>,
    acls: Acls,
) -> Decision {
    let mut by = Deciders::default();
    if let Some((id, port)) = initiator {
        let (refused, rule) = evaluate_binding(map, acls.of(port)[0], flow);
        by.from_pod = rule.map(|rule| RuleAt { port: id, rule });
        if let Some(outcome) = refused {
            return Decision { outcome, by };
        }
    }
    if let Some((id, port)) = responder {
        let (refused, rule) = evaluate_binding(map, acls.of(port)[1], flow);
        by.to_pod = rule.map(|rule| RuleAt { port: id, rule });
        if let Some(outcome) = refused {
            // The permitting end did not decide.
            return Decision { outcome, by: Deciders { from_pod: None, ..by } };
        }
    }
    Decision { outcome: Outcome::PolicyAllowed, by }
}

/// Evaluates one binding: the outcome of a denial, and the matching rule.
pub(crate) fn evaluate_binding(
    map: &AddressMap,
    binding: &AclBinding,
    flow: &Flow,
) -> (Option<Outcome>, Option<u32>) {
    match binding {
        AclBinding::Closed => (Some(Outcome::Closed), None),
        AclBinding::Open => (None, None),
        AclBinding::Table(table) => {
            let mut key = key(flow);
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

/// The outcome of connections that no ACL applies to.
#[inline]
pub(crate) fn exempt(
    snapshot: &Snapshot,
    flow: &Flow,
    initiator: Option<PortId>,
    responder: Option<PortId>,
) -> Option<Outcome> {
    match (initiator, responder) {
        (None, None) => Some(Outcome::NoPolicy),
        // A pod may always talk to itself, and its own node (kubelet) may always talk to
        // it.
        (Some(initiator), Some(responder)) if initiator == responder => {
            Some(Outcome::PolicyAllowed)
        }
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

impl Decision {
    /// Whether a policy states the denial, as opposed to one that leaves it open (default-deny).
    fn is_explicit_denial(&self, snapshot: &Snapshot, acls: Acls) -> bool {
        let states = |(table, rule): (&Table, u32)| table.denies_explicitly(rule);
        self.outcome == Outcome::PolicyDenied && self.by.rules(snapshot, acls).any(states)
    }
}

impl Deciders {
    /// Whether the rule of a denied connection is the responder's (`to_pod`); `None` where no rule
    /// decided.
    pub fn is_responders(&self) -> Option<bool> {
        // A denial has one rule.
        self.to_pod.or(self.from_pod).map(|_| self.to_pod.is_some())
    }

    /// The rules with their tables, the initiator's first.
    fn rules(self, snapshot: &Snapshot, acls: Acls) -> impl Iterator<Item = (&Table, u32)> {
        let table = |at: Option<RuleAt>, from: bool| {
            let at = at?;
            let binding = match (snapshot.port(at.port), from) {
                (None, _) if at.port == PortId::NONE => snapshot.outside(),
                (port, true) => acls.of(port?)[0],
                (port, false) => acls.of(port?)[1],
            };
            binding.table().map(|table| (table, at.rule))
        };
        [table(self.from_pod, true), table(self.to_pod, false)].into_iter().flatten()
    }

    /// Origins of the deciding rules, the initiator's first; [`Origin::DefaultAllow`] where an allowed
    /// connection met no rule.
    pub fn origins(&self, snapshot: &Snapshot, outcome: Outcome) -> Vec<Origin> {
        self.origins_in(snapshot, Acls::Enforced, outcome)
    }

    fn origins_in(&self, snapshot: &Snapshot, acls: Acls, outcome: Outcome) -> Vec<Origin> {
        let mut origins: Vec<Origin> = Vec::new();
        for (table, rule) in self.rules(snapshot, acls) {
            let Some(rule) = table.rules().get(rule as usize) else { continue };
            if !origins.contains(&rule.origin) {
                origins.push(rule.origin.clone());
            }
        }
        if origins.is_empty() && outcome == Outcome::PolicyAllowed {
            origins.push(Origin::DefaultAllow);
        }
        origins
    }
}
