//! Routes packets without a session, and classifies the vector as one policy batch.

use super::{Context, Next, Node, reject, staged, verify};
use crate::packet::Packet;
use crate::policy::{self, PolicyBatch};
use crate::wire::Role;
use crate::{Adjacency, Outcome, PortId, VECTOR, Verdict};

/// Sets each packet's outcome, and its adjacency where it has a route.
pub(super) fn classify(context: &mut Context<'_>, packets: &mut [Packet], items: &[u8]) {
    let snapshot = context.snapshot;
    let mut batch = std::mem::take(context.policy_batch).emptied();
    for index in items {
        let packet = &mut packets[usize::from(*index)];
        packet.outcome = add(context, packet, &mut batch);
    }
    let mut decisions = batch.evaluate(snapshot.address_map());
    let (mut decided, mut count) = ([0_u8; VECTOR], 0);
    for index in items {
        let packet = &mut packets[usize::from(*index)];
        if packet.outcome.is_none()
            && let Some(decision) = decisions.next()
        {
            (packet.outcome, packet.by) = (Some(decision.outcome), decision.by);
            (decided[count], count) = (*index, count + 1);
            // Policies are evaluated first, but a permitted packet needs a route.
            if packet.adjacency == Adjacency::NONE && decision.outcome.verdict() == Verdict::Forward
            {
                packet.outcome = Some(Outcome::LinkLocal);
            }
        }
    }
    if snapshot.is_staged() {
        batch.restage(snapshot);
        let staged = batch.evaluate(snapshot.address_map());
        staged::compare(context, packets, decided[..count].iter().copied().zip(staged));
    }
    *context.policy_batch = batch.emptied();
    if context.snapshot.verify_every() > 0 {
        verify::sample(context, packets, items);
    }
}

/// Adds a packet's connection to the batch; returns its outcome if no ACL applies.
#[inline]
fn add<'a>(
    context: &Context<'a>,
    packet: &mut Packet,
    batch: &mut PolicyBatch<'a>,
) -> Option<Outcome> {
    let snapshot = context.snapshot;
    let policy_flow;
    let flow = match context.translation(packet) {
        None => &packet.headers.flow,
        Some(_) => {
            policy_flow = context.tuples(packet).policy_flow();
            &policy_flow
        }
    };
    let (adjacency, port) = match context.route(packet, flow) {
        Ok(found) => found,
        Err(Outcome::LinkLocal) => (Adjacency::NONE, PortId::NONE),
        Err(outcome) => return Some(outcome),
    };
    // Anti-spoofing has verified the source; the egress port is the destination's.
    let pod = |id| snapshot.pod(id).map(|port| (id, port));
    let (initiator, responder) = (pod(packet.in_port), pod(port));
    let id = |pod: Option<(PortId, _)>| pod.map(|(id, _)| id);
    if responder.is_some() && context.is_from_its_link_alone(packet) {
        return Some(Outcome::LinkLocal);
    }
    let exempt = policy::exempt(snapshot, flow, id(initiator), id(responder));
    if packet.headers.role == Role::Follows && exempt != Some(Outcome::NoPolicy) {
        return Some(Outcome::NoSession);
    }
    if exempt.is_none() {
        batch.push_all_forms(snapshot, flow, initiator, responder);
    }
    packet.adjacency = adjacency;
    match exempt {
        Some(_) if adjacency == Adjacency::NONE => Some(Outcome::LinkLocal),
        exempt => exempt,
    }
}

#[inline(always)]
pub(super) fn step(context: &mut Context<'_>, packet: &mut Packet) -> Next {
    let outcome = packet.outcome.expect("every packet was policy_flow");
    if outcome.verdict() != Verdict::Forward {
        let replies = outcome == Outcome::PolicyDenied && context.snapshot.rejects();
        return if replies { reject::opening(context, packet) } else { Next::End(outcome) };
    }
    let is_plain = outcome == Outcome::NoPolicy
        && !context.translates(packet)
        && !context.snapshot.masquerades(packet.headers.flow.source, packet.adjacency);
    if is_plain {
        context.remember_fragment(packet, false);
        return Next::Node(Node::Rewrite);
    }
    context.sessions.prefetch_to_open(packet.hash);
    Next::Node(Node::Open)
}
