//! Finds the connection that a packet belongs to.
//!
//! | the packet | a session is there | none is |
//! |---|---|---|
//! | may open a connection | it goes on | to the policy node |
//! | only follows | it goes on | refused |
//! | quotes another (ICMP error) | it goes to the quoted packet's sender | refused |
//!
//! "Goes on" means: the session is of the snapshot's generation, or is re-evaluated now.

use super::{Context, Next, Node, Translation, open, service};
use crate::packet::Packet;
use crate::policy::{Decision, evaluate};
use crate::session::{Found, TupleOrigin, Tuples};
use crate::wire::{self, Flow, Fragment, Headers, Mac, Role, protocol};
use crate::{Adjacency, Outcome, PortKind, Verdict};

// A session is in two cache lines, and the second is only known from the first. Each is asked for
// one node ahead, so that what the node in between does hides the wait.

/// Gives the packet its hash, for which a session will be looked for.
#[inline]
pub(super) fn expect(context: &Context<'_>, packet: &mut Packet) {
    packet.hash = context.sessions.hash(&packet.headers.flow);
    context.sessions.prefetch(packet.hash);
}

/// Guesses where the session is.
#[inline]
pub(super) fn guess(context: &Context<'_>, packet: &mut Packet) {
    packet.guess = context.sessions.guess(packet.hash);
}

#[inline]
pub(super) fn step(context: &mut Context<'_>, packet: &mut Packet) -> Next {
    let headers = &packet.headers;
    let may_pass = match headers.role {
        Role::Follows => true,
        Role::Opens => headers.flow.protocol != protocol::TCP,
        Role::Quotes => false,
    };
    if may_pass && headers.fragment == Fragment::Whole {
        let (generation, now_s) = (context.snapshot.generation, context.now.seconds());
        let Packet { guess, headers: Headers { flow, tcp_flags, .. }, .. } = packet;
        if let Some(adjacency) = context.sessions.pass(*guess, flow, *tcp_flags, generation, now_s)
        {
            packet.adjacency = adjacency;
            packet.outcome = Some(Outcome::Session);
            return Next::Node(Node::Rewrite);
        }
    }
    look(context, packet)
}

#[inline(never)]
fn look(context: &mut Context<'_>, packet: &mut Packet) -> Next {
    if packet.headers.role == Role::Quotes {
        return related(context, packet);
    }
    let flow = &packet.headers.flow;
    let (hash, now_s) = (packet.hash, context.now.seconds());
    match context.sessions.find_at(packet.guess, hash, flow, TupleOrigin::Entering, now_s) {
        None => opens(context, packet),
        Some(found)
            if packet.headers.role == Role::Opens && starts_anew(context, packet, &found) =>
        {
            opens(context, packet)
        }
        Some(found) => go_on(context, packet, &found, Outcome::Session),
    }
}

/// Where a packet goes that no session knows.
#[inline]
fn opens(context: &Context<'_>, packet: &Packet) -> Next {
    match service::is_wanted(context.snapshot, &packet.headers.flow) {
        true => Next::Node(Node::Service),
        false => Next::Node(Node::Policy),
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
    let is_current = found.is_of(generation);
    if !is_current || found.translated {
        // The session may have ended since it was found.
        let Some(tuples) = context.sessions.tuples(found) else {
            return Next::End(Outcome::NoSession);
        };
        // What a later snapshot allowed, a worker that is behind neither ends nor evaluates.
        if !is_current && !found.is_of_later(generation) {
            if let Err(next) = reevaluate(context, packet, found, &tuples) {
                return next;
            }
            if found.forward {
                context.sessions.claim(found, open::owner(context, packet, &tuples));
            }
        }
        if found.translated {
            let (to, returns) = match found.forward {
                true => (tuples.responder, false),
                false => (tuples.initiator.reversed(), tuples.return_mac != Mac::default()),
            };
            context.translate(packet, Translation { tuples, to, quoted: None, returns });
        }
    }
    let known = found.adjacency();
    packet.adjacency = if known != Adjacency::NONE && is_current {
        known
    } else {
        match route(context, packet) {
            Ok(adjacency) => {
                context.sessions.stamp(found, generation, adjacency);
                adjacency
            }
            Err(outcome) => return Next::End(outcome),
        }
    };
    context.sessions.touch(found, packet.headers.tcp_flags, context.now.seconds());
    context.remember_fragment(packet, true);
    packet.outcome = Some(outcome);
    Next::Node(Node::Rewrite)
}

/// Where a packet of a session leaves, with the addresses it will have then.
fn route(context: &Context<'_>, packet: &Packet) -> Result<Adjacency, Outcome> {
    match context.translation(packet) {
        None => context.route(packet, &packet.headers.flow).map(|(adjacency, _)| adjacency),
        Some(translation) if translation.returns => {
            let adjacency =
                context.snapshot.uplink().map(Adjacency::port).ok_or(Outcome::NoRoute)?;
            let is_stray =
                context.snapshot.is_stray_tunnel(&translation.to, packet.in_port, adjacency);
            if is_stray { Err(Outcome::TunnelRefused) } else { Ok(adjacency) }
        }
        Some(translation) => context.route(packet, &translation.to).map(|(adjacency, _)| adjacency),
    }
}

/// A policy change reaches connections that live: what is no longer allowed ends here. So does the
/// connection of a pod that has its address no longer; the next pod opens its own. So does a flow of datagrams to an endpoint that its service no longer has; it gets another one.
fn reevaluate(
    context: &Context<'_>,
    packet: &mut Packet,
    found: &Found,
    tuples: &Tuples,
) -> Result<(), Next> {
    if context.sessions.has_departed(found, tuples) {
        context.sessions.end(found);
        let may_open = packet.headers.role == Role::Opens
            && !matches!(packet.headers.fragment, Fragment::Later(_));
        return Err(match may_open {
            true => opens(context, packet),
            false => Next::End(Outcome::NoSession),
        });
    }
    let Decision { outcome, by } = evaluate(context.snapshot, &tuples.policy_flow());
    if outcome.verdict() != Verdict::Forward {
        context.sessions.end(found);
        packet.by = by;
        return Err(Next::End(outcome));
    }
    if has_lost_its_backend(context, tuples) {
        context.sessions.end(found);
        let starts_over = found.forward && !matches!(packet.headers.fragment, Fragment::Later(_));
        return Err(match starts_over {
            true => Next::Node(Node::Service),
            false => Next::End(Outcome::NoSession),
        });
    }
    Ok(())
}

fn has_lost_its_backend(context: &Context<'_>, tuples: &Tuples) -> bool {
    let Flow { destination: address, destination_port: port, protocol, .. } = tuples.responder;
    if !service::admits(context.snapshot, &tuples.initiator) {
        return true;
    }
    // A connection would error, and opens another one when its endpoint has ended.
    if protocol != protocol::UDP
        || (tuples.initiator.destination, tuples.initiator.destination_port) == (address, port)
    {
        return false;
    }
    let Some(entry) = service::find(context.snapshot, &tuples.initiator) else { return true };
    let lists = [entry.backends(false), entry.backends(true)];
    !lists.iter().any(|backends| {
        backends.list().binary_search(&crate::services::Backend { address, port }).is_ok()
    })
}

/// An ICMP error goes to the sender of the packet it quotes, if it comes from where that packet
/// went (or from this cluster node's kernel, which routes).
fn related(context: &mut Context<'_>, packet: &mut Packet) -> Next {
    let refused = Next::End(Outcome::NoSession);
    let snapshot = context.snapshot;
    let quoted = wire::quoted(context.memory.bytes(&packet.frame), &packet.headers);
    let Some(quoted) = quoted else { return refused };
    let hash = context.sessions.hash(&quoted);
    let now_s = context.now.seconds();
    let Some(found) = context.sessions.find(hash, &quoted, TupleOrigin::Quoted, now_s) else {
        return refused;
    };
    let Some(tuples) = context.sessions.tuples(&found) else { return refused };
    if context.sessions.has_departed(&found, &tuples) {
        context.sessions.end(&found);
        return refused;
    }
    if !found.is_of(snapshot.generation) && !found.is_of_later(snapshot.generation) {
        let Decision { outcome, by } = evaluate(snapshot, &tuples.policy_flow());
        if outcome.verdict() != Verdict::Forward {
            context.sessions.end(&found);
            packet.by = by;
            return Next::End(outcome);
        }
    }
    let went = snapshot.route(quoted.destination).ok();
    let quoted_went = went.and_then(|adjacency| snapshot.egress(adjacency)).map(|(port, _)| port);
    let from_host = snapshot.port(packet.in_port).is_some_and(|port| port.kind == PortKind::Host);
    let returned = !found.forward && tuples.return_mac != Mac::default();
    let came_back = quoted_went == Some(packet.in_port)
        || returned && snapshot.uplink() == Some(packet.in_port);
    if !came_back && !from_host {
        return refused;
    }
    if found.translated {
        let error = related_translation(&packet.headers.flow, found.forward, tuples);
        context.translate(packet, error);
    }
    match route(context, packet) {
        Err(outcome) => Next::End(outcome),
        Ok(adjacency) => {
            packet.adjacency = adjacency;
            packet.outcome = Some(Outcome::Related);
            Next::Node(Node::Rewrite)
        }
    }
}

/// What an error about a translated packet looks like to whoever sent that.
fn related_translation(error: &Flow, forward: bool, tuples: Tuples) -> Translation {
    let (sent, left) = match forward {
        true => (tuples.initiator, tuples.responder),
        false => (tuples.responder.reversed(), tuples.initiator.reversed()),
    };
    // Routers on the way speak for themselves; the far end is known by another address here.
    let source = if error.source == left.destination { sent.destination } else { error.source };
    let to = Flow { source, destination: sent.source, ..*error };
    let returns = forward && tuples.return_mac != Mac::default();
    Translation { tuples, to, quoted: Some(sent), returns }
}
