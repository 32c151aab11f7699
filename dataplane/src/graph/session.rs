//! Finds the connection that a packet belongs to.
//!
//! | the packet | a session is there | none is |
//! |---|---|---|
//! | may open a connection | it goes on | to the policy node |
//! | only follows | it goes on | refused |
//! | quotes another (ICMP error) | it goes to the quoted packet's sender | refused |
//!
//! "Goes on" means: the session is of the snapshot's generation, or is judged again now.

use super::{Context, Next, Node};
use crate::packet::Packet;
use crate::policy::{Judgement, judge};
use crate::session::Found;
use crate::wire::{self, Role, protocol};
use crate::{Outcome, PortId, PortKind, Verdict};

/// Gives every packet its hash and asks for the cache lines that the step will read.
#[inline]
pub(super) fn prepare(context: &Context<'_>, packets: &mut [Packet], items: &[u8]) {
    for index in items {
        let packet = &mut packets[usize::from(*index)];
        packet.hash = context.sessions.hash(&packet.headers.flow);
        context.sessions.prefetch(packet.hash);
    }
    for index in items {
        context.sessions.prefetch_session(packets[usize::from(*index)].hash);
    }
}

#[inline]
pub(super) fn step(context: &mut Context<'_>, packet: &mut Packet) -> Next {
    if packet.headers.role == Role::Quotes {
        return related(context, packet);
    }
    let flow = &packet.headers.flow;
    match context.sessions.find(packet.hash, flow, context.now.seconds()) {
        None => Next::Node(Node::Policy),
        Some(found)
            if packet.headers.role == Role::Opens && starts_anew(context, packet, &found) =>
        {
            Next::Node(Node::Policy)
        }
        Some(found) => go_on(context, packet, &found, Outcome::Session),
    }
}

/// A SYN on a connection that is over opens another one; a SYN from the end that did not open
/// the connection is no reply to anything.
#[inline]
fn starts_anew(context: &Context<'_>, packet: &Packet, found: &Found) -> bool {
    if packet.headers.flow.protocol != protocol::TCP {
        return false;
    }
    if found.state().is_over() {
        context.sessions.end(found);
        return true;
    }
    !found.forward
}

#[inline]
pub(super) fn go_on(
    context: &mut Context<'_>,
    packet: &mut Packet,
    found: &Found,
    outcome: Outcome,
) -> Next {
    let generation = context.snapshot.generation;
    if !found.is_of(generation)
        && let Err(next) = judge_again(context, packet, found)
    {
        return next;
    }
    let known = found.out_port();
    packet.out_port = if known != PortId::NONE && found.is_of(generation) {
        known
    } else {
        match context.route(packet, packet.headers.flow.destination) {
            Ok(port) => {
                context.sessions.stamp(found, generation, port);
                port
            }
            Err(outcome) => return Next::End(outcome),
        }
    };
    context.sessions.touch(found, packet.headers.tcp_flags, context.now.seconds());
    context.remember_fragment(packet);
    packet.outcome = Some(outcome);
    Next::Node(Node::Rewrite)
}

/// A policy change reaches connections that live: what is no longer allowed ends here.
fn judge_again(context: &Context<'_>, packet: &mut Packet, found: &Found) -> Result<(), Next> {
    let Judgement { outcome, by } = judge(context.snapshot, &found.flow);
    if outcome.verdict() == Verdict::Forward {
        return Ok(());
    }
    context.sessions.end(found);
    packet.by = by;
    Err(Next::End(outcome))
}

/// An ICMP error goes to the sender of the packet it quotes, if it comes from where that packet
/// went (or from this cluster node's kernel, which routes).
fn related(context: &Context<'_>, packet: &mut Packet) -> Next {
    let quoted = wire::quoted(context.memory.bytes(&packet.frame), &packet.headers);
    let Some(quoted) = quoted else { return Next::End(Outcome::NoSession) };
    let hash = context.sessions.hash(&quoted);
    let Some(found) = context.sessions.find(hash, &quoted, context.now.seconds()) else {
        return Next::End(Outcome::NoSession);
    };
    if !found.is_of(context.snapshot.generation)
        && let Err(next) = judge_again(context, packet, &found)
    {
        return next;
    }
    let quoted_went = context.snapshot.route(quoted.destination);
    let from_host =
        context.snapshot.port(packet.in_port).is_some_and(|port| port.kind == PortKind::Host);
    if quoted_went != Some(packet.in_port) && !from_host {
        return Next::End(Outcome::NoSession);
    }
    match context.route(packet, packet.headers.flow.destination) {
        Err(outcome) => Next::End(outcome),
        Ok(port) => {
            packet.out_port = port;
            packet.outcome = Some(Outcome::Related);
            Next::Node(Node::Rewrite)
        }
    }
}
