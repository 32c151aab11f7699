//! Observes a packet before and after a node.

use std::sync::Arc;

use acl::Origin;

use super::record::{AclResult, BindingKind, Evaluation, Exit, Finding, SessionInfo};
use crate::graph::{Context, Node};
use crate::packet::Packet;
use crate::policy;
use crate::session::TupleOrigin;
use crate::wire::{self, Flow, Headers, Role};
use crate::{AclBinding, Adjacency, Egress, Outcome, PortId, Snapshot};

/// State that a node may change, as it was before.
pub(super) enum Before {
    Nothing,
    Session(Option<SessionInfo>),
    Reassembly(Option<Flow>, Option<SessionInfo>),
    Service(Flow),
}

/// Observes a packet before a node.
pub(super) fn before(node: Node, context: &Context<'_>, packet: &Packet) -> Before {
    match node {
        Node::Session => Before::Session(session(context, packet)),
        Node::Reassembly => {
            let first = context.first_flow(packet);
            let session = first.and_then(|flow| seen(context, &flow, TupleOrigin::Entering));
            Before::Reassembly(first, session)
        }
        Node::Service => Before::Service(packet.headers.flow),
        _ => Before::Nothing,
    }
}

/// Observes it after the node.
pub(super) fn after(
    node: Node,
    before: Before,
    context: &Context<'_>,
    packet: &Packet,
    outcome: Option<Outcome>,
) -> Finding {
    let snapshot = context.snapshot;
    let headers = (packet.headers != Headers::NONE).then_some(packet.headers);
    match (node, before) {
        (Node::Parse, _) => Finding::Headers(headers),
        (Node::AntiSpoofing, _) => {
            Finding::Port(snapshot.port(packet.in_port).map(|port| port.kind))
        }
        (Node::Decapsulate, _) => {
            let is_out = packet.from_peer != Adjacency::NONE;
            let peer = exit(snapshot, packet.from_peer).and_then(|exit| exit.peer);
            Finding::Tunnel { peer, inside: headers.filter(|_| is_out) }
        }
        (Node::Session, Before::Session(seen)) => {
            let old = seen.filter(|seen| !seen.current);
            let evaluation = old.map(|old| evaluation(snapshot, &old.tuples.policy_flow()));
            Finding::Session { seen, evaluation }
        }
        (Node::Reassembly, Before::Reassembly(first, session)) => {
            Finding::Reassembly { first, session }
        }
        (Node::Service, Before::Service(asked)) => {
            let given = context.translation(packet).map(|translation| translation.to);
            Finding::Service { asked, given }
        }
        (Node::Policy, _) => Finding::Policy {
            exit: exit(snapshot, packet.adjacency),
            evaluation: (packet.adjacency != Adjacency::NONE
                || outcome == Some(Outcome::NoSession))
            .then(|| evaluation(snapshot, &context.tuples(packet).policy_flow())),
        },
        (Node::Open, _) => {
            Finding::Open { made: session(context, packet).filter(|_| outcome.is_none()) }
        }
        (Node::Rewrite, _) => Finding::Rewrite {
            to: context.translation(packet).map(|translation| translation.to),
            ttl: packet.headers.ttl.saturating_sub(1),
            exit: exit(snapshot, packet.adjacency),
        },
        (Node::IcmpError, _) => Finding::IcmpError { sent: packet.is_reply },
        (Node::Encapsulate, _) => Finding::Encapsulate {
            exit: exit(snapshot, packet.adjacency),
            to: snapshot
                .egress(packet.adjacency)
                .and_then(|(_, peer)| peer)
                .map(|peer| peer.endpoint),
        },
        (Node::Dns, _) => Finding::Dns { held: packet.outcome.is_none() },
        (Node::Hold, _) if packet.out_port != PortId::NONE => Finding::Dns { held: true },
        _ => Finding::Nothing,
    }
}

/// Evaluates a connection, with the result of each ACL.
pub(super) fn evaluation(snapshot: &Snapshot, flow: &Flow) -> Evaluation {
    let decision = policy::evaluate(snapshot, flow);
    let flow = &policy::deciding(snapshot, flow);
    let asks = !matches!(decision.outcome, Outcome::OwnNode | Outcome::NoPolicy);
    let (sender, responder) = (snapshot.pod_of(flow.source), snapshot.pod_of(flow.destination));
    let same = sender.map(|(id, _)| id) == responder.map(|(id, _)| id);
    let ask = |pod: Option<(_, &crate::PortState)>, from: bool| {
        let (_, port) = pod.filter(|_| asks && !same)?;
        let binding = if from { &port.from_pod } else { &port.to_pod };
        let (refused, rule) = policy::evaluate_binding(snapshot.address_map(), binding, flow);
        let (binding, origin) = match binding {
            AclBinding::Closed => (BindingKind::Closed, None),
            AclBinding::Open => (BindingKind::Open, None),
            AclBinding::Table(table) => {
                let origin = rule.and_then(|rule| table.rules().get(rule as usize));
                (BindingKind::Table, origin.map(|rule| rule.origin.clone()))
            }
        };
        let pod = Arc::clone(&port.name);
        Some(AclResult { pod, binding, permits: refused.is_none(), rule: rule.zip(origin) })
    };
    let mut by = decision.by.origins(snapshot, decision.outcome);
    if decision.outcome != Outcome::PolicyAllowed {
        by.retain(|origin| *origin != Origin::DefaultAllow);
    }
    Evaluation {
        flow: *flow,
        from_pod: ask(sender, true),
        to_pod: ask(responder, false),
        outcome: decision.outcome,
        by,
    }
}

/// Finds the session of a packet.
fn session(context: &Context<'_>, packet: &Packet) -> Option<SessionInfo> {
    if packet.headers.role != Role::Quotes {
        return seen(context, &packet.headers.flow, TupleOrigin::Entering);
    }
    let quoted = wire::quoted(context.memory.bytes(&packet.frame), &packet.headers)?;
    seen(context, &quoted, TupleOrigin::Quoted)
}

fn seen(context: &Context<'_>, flow: &Flow, origin: TupleOrigin) -> Option<SessionInfo> {
    let hash = context.sessions.hash(flow);
    let found = context.sessions.find(hash, flow, origin, context.now.seconds())?;
    Some(SessionInfo {
        forward: found.forward,
        state: found.state(),
        current: found.is_of(context.snapshot.generation),
        tuples: context.sessions.tuples(&found)?,
    })
}

fn exit(snapshot: &Snapshot, adjacency: Adjacency) -> Option<Exit> {
    if adjacency == Adjacency::NONE {
        return None;
    }
    let name = |id| snapshot.port(id).map(|port| Arc::clone(&port.name));
    Some(match adjacency.egress() {
        Egress::Port(port) => Exit { port: name(port), peer: None },
        Egress::Peer(n) => Exit {
            port: snapshot.uplink().and_then(name),
            peer: snapshot.routes().peer(n).map(|peer| peer.name.as_str().into()),
        },
    })
}
