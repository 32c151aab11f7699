//! Routes packets that no session knows, and asks the tables about the vector as a whole.

use super::{Context, Next, Node};
use crate::packet::Packet;
use crate::policy::{self, PolicyBatch};
use crate::wire::Role;
use crate::{Hop, Outcome, PortId, Verdict};

/// Gives each packet an outcome, and those that have somewhere to go a hop.
pub(super) fn judge(context: &mut Context<'_>, packets: &mut [Packet], items: &[u8]) {
    let snapshot = context.snapshot;
    let mut batch = std::mem::take(context.policy_batch).emptied();
    for index in items {
        let packet = &mut packets[usize::from(*index)];
        packet.outcome = add(context, packet, &mut batch);
    }
    let mut judgements = batch.judge(snapshot);
    for index in items {
        let packet = &mut packets[usize::from(*index)];
        if packet.outcome.is_none()
            && let Some(judgement) = judgements.next()
        {
            (packet.outcome, packet.by) = (Some(judgement.outcome), judgement.by);
            // Policies speak first, but open no way where there is none.
            if packet.hop == Hop::NONE && judgement.outcome.verdict() == Verdict::Forward {
                packet.outcome = Some(Outcome::LinkLocal);
            }
        }
    }
    drop(judgements);
    *context.policy_batch = batch.emptied();
}

/// Adds a packet's connection to those that gates decide about; its outcome if they need not.
#[inline]
fn add<'a>(
    context: &Context<'a>,
    packet: &mut Packet,
    batch: &mut PolicyBatch<'a>,
) -> Option<Outcome> {
    let snapshot = context.snapshot;
    let judged;
    let flow = match context.translation(packet) {
        None => &packet.headers.flow,
        Some(translation) => {
            judged = translation.views.judged();
            &judged
        }
    };
    let (hop, port) = match context.route(packet, flow) {
        Ok(found) => found,
        Err(Outcome::LinkLocal) => (Hop::NONE, PortId::NONE),
        Err(outcome) => return Some(outcome),
    };
    // Port security has held the source to the port; the way out leads to the destination.
    let pod = |id| snapshot.pod(id).map(|port| (id, port));
    let (sender, receiver) = (pod(packet.in_port), pod(port));
    let id = |pod: Option<(PortId, _)>| pod.map(|(id, _)| id);
    let settled = policy::settled(snapshot, flow, id(sender), id(receiver));
    if packet.headers.role == Role::Follows && settled != Some(Outcome::NoPolicy) {
        return Some(Outcome::NoSession);
    }
    if settled.is_none() {
        batch.push(flow, sender, receiver);
        let forms = policy::forms(snapshot, flow, sender.is_some(), receiver.is_some());
        forms.skip(1).for_each(|flow| batch.push_form(&flow));
    }
    packet.hop = hop;
    match settled {
        Some(_) if hop == Hop::NONE => Some(Outcome::LinkLocal),
        settled => settled,
    }
}

#[inline]
pub(super) fn step(context: &mut Context<'_>, packet: &mut Packet) -> Next {
    let outcome = packet.outcome.expect("every packet was judged");
    if outcome.verdict() != Verdict::Forward {
        return Next::End(outcome);
    }
    let is_plain = outcome == Outcome::NoPolicy
        && !context.translates(packet)
        && !context.snapshot.masquerades(packet.headers.flow.source, packet.hop);
    if is_plain {
        context.remember_fragment(packet, false);
        return Next::Node(Node::Rewrite);
    }
    Next::Node(Node::Open)
}
