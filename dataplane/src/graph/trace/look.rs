//! What there is to see of a packet before and after a node.

use std::sync::Arc;

use super::way::{Asked, Exit, GateKind, Judged, Saw, Seen};
use crate::graph::{Context, Node};
use crate::packet::Packet;
use crate::policy::{self, DEFAULT_ALLOW};
use crate::session::Sight;
use crate::wire::{self, Flow, Headers, Role};
use crate::{Gate, Hop, Leads, Outcome, Snapshot};

/// What a node may change, as it was before.
pub(super) enum Before {
    Nothing,
    Session(Option<Seen>),
    Reassembly(Option<Flow>, Option<Seen>),
    Service(Flow),
}

/// Looks at a packet that a node is about to get.
pub(super) fn before(node: Node, context: &Context<'_>, packet: &Packet) -> Before {
    match node {
        Node::Session => Before::Session(session(context, packet)),
        Node::Reassembly => {
            let first = context.first_flow(packet);
            let session = first.and_then(|flow| seen(context, &flow, Sight::Entering));
            Before::Reassembly(first, session)
        }
        Node::Service => Before::Service(packet.headers.flow),
        _ => Before::Nothing,
    }
}

/// Looks at it again once the node is done with it.
pub(super) fn after(
    node: Node,
    before: Before,
    context: &Context<'_>,
    packet: &Packet,
    outcome: Option<Outcome>,
) -> Saw {
    let snapshot = context.snapshot;
    let headers = (packet.headers != Headers::default()).then_some(packet.headers);
    match (node, before) {
        (Node::Parse, _) => Saw::Headers(headers),
        (Node::AntiSpoofing, _) => Saw::Port(snapshot.port(packet.in_port).map(|port| port.kind)),
        (Node::Decapsulate, _) => {
            let is_out = packet.from_peer != Hop::NONE;
            let peer = exit(snapshot, packet.from_peer).and_then(|exit| exit.peer);
            Saw::Tunnel { peer, inside: headers.filter(|_| is_out) }
        }
        (Node::Session, Before::Session(seen)) => {
            let old = seen.filter(|seen| !seen.current);
            let judged = old.map(|old| judged(snapshot, &old.views.judged()));
            Saw::Session { seen, judged }
        }
        (Node::Reassembly, Before::Reassembly(first, session)) => {
            Saw::Reassembly { first, session }
        }
        (Node::Service, Before::Service(asked)) => {
            let given = context.translation(packet).map(|translation| translation.to);
            Saw::Service { asked, given }
        }
        (Node::Policy, _) => Saw::Policy {
            exit: exit(snapshot, packet.hop),
            judged: (packet.hop != Hop::NONE || outcome == Some(Outcome::NoSession)).then(|| {
                let translation = context.translation(packet);
                let flow = translation.map_or(packet.headers.flow, |it| it.views.judged());
                judged(snapshot, &flow)
            }),
        },
        (Node::Open, _) => {
            Saw::Open { made: session(context, packet).filter(|_| outcome.is_none()) }
        }
        (Node::Rewrite, _) => Saw::Rewrite {
            to: context.translation(packet).map(|translation| translation.to),
            ttl: packet.headers.ttl.saturating_sub(1),
            exit: exit(snapshot, packet.hop),
        },
        (Node::IcmpError, _) => Saw::IcmpError { told: packet.is_answered },
        (Node::Encapsulate, _) => Saw::Encapsulate {
            exit: exit(snapshot, packet.hop),
            to: snapshot.way(packet.hop).and_then(|(_, peer)| peer).map(|peer| peer.endpoint),
        },
        _ => Saw::Nothing,
    }
}

/// A judgement with what each gate said.
pub(super) fn judged(snapshot: &Snapshot, flow: &Flow) -> Judged {
    let judgement = policy::judge(snapshot, flow);
    let flow = &policy::deciding(snapshot, flow);
    let asks = !matches!(judgement.outcome, Outcome::OwnNode | Outcome::NoPolicy);
    let (sender, receiver) = (snapshot.pod_of(flow.source), snapshot.pod_of(flow.destination));
    let same = sender.map(|(id, _)| id) == receiver.map(|(id, _)| id);
    let ask = |pod: Option<(_, &crate::PortState)>, from: bool| {
        let (_, port) = pod.filter(|_| asks && !same)?;
        let gate = if from { &port.from_pod } else { &port.to_pod };
        let (refused, rule) = policy::ask(snapshot, gate, flow);
        let (gate, origin) = match gate {
            Gate::Closed => (GateKind::Closed, None),
            Gate::Open => (GateKind::Open, None),
            Gate::Table(table) => {
                let origin = rule.and_then(|rule| table.rules().get(rule as usize));
                (GateKind::Table, origin.map(|rule| Arc::clone(&rule.origin)))
            }
        };
        let pod = Arc::clone(&port.name);
        Some(Asked { pod, gate, permits: refused.is_none(), rule: rule.zip(origin) })
    };
    let mut by = judgement.by.origins(snapshot, judgement.outcome);
    if judgement.outcome != Outcome::PolicyAllowed {
        by.retain(|origin| &**origin != DEFAULT_ALLOW);
    }
    Judged {
        flow: *flow,
        from_pod: ask(sender, true),
        to_pod: ask(receiver, false),
        outcome: judgement.outcome,
        by,
    }
}

/// The connection that a packet belongs to.
fn session(context: &Context<'_>, packet: &Packet) -> Option<Seen> {
    if packet.headers.role != Role::Quotes {
        return seen(context, &packet.headers.flow, Sight::Entering);
    }
    let quoted = wire::quoted(context.memory.bytes(&packet.frame), &packet.headers)?;
    seen(context, &quoted, Sight::Quoted)
}

fn seen(context: &Context<'_>, flow: &Flow, sight: Sight) -> Option<Seen> {
    let hash = context.sessions.hash(flow);
    let found = context.sessions.find(hash, flow, sight, context.now.seconds())?;
    Some(Seen {
        forward: found.forward,
        state: found.state(),
        current: found.is_of(context.snapshot.generation),
        views: context.sessions.views(&found)?,
    })
}

fn exit(snapshot: &Snapshot, hop: Hop) -> Option<Exit> {
    if hop == Hop::NONE {
        return None;
    }
    let name = |id| snapshot.port(id).map(|port| Arc::clone(&port.name));
    Some(match hop.leads() {
        Leads::Port(port) => Exit { port: name(port), peer: None },
        Leads::Peer(n) => Exit {
            port: snapshot.uplink().and_then(name),
            peer: snapshot.routes().peer(n).map(|peer| peer.name.as_str().into()),
        },
    })
}
