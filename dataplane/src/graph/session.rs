//! Finds the session of a packet.
//!
//! | the packet | a session is there | none is |
//! |---|---|---|
//! | may open a connection | it goes on | to the policy node |
//! | only follows | it goes on | refused |
//! | quotes another (ICMP error) | it goes to the quoted packet's sender | refused |
//!
//! "Forwarded" means: the session is of the snapshot's generation, or is re-evaluated now. Sessions of
//! an earlier generation are collected, re-evaluated as one batch (`reevaluate`), and looked up again.

use super::owner::owner;
use super::reevaluate::Stale;
use super::{Context, Next, Node, Translation, reject, service};
use crate::packet::Packet;
use crate::policy::{self, Decision};
use crate::session::{Found, PacketInfo, Translated, TupleOrigin, Tuples};
use crate::wire::{self, Flow, Fragment, Headers, Kind, Mac, Role, protocol};
use crate::{Adjacency, Outcome, PortKind, Verdict};

// A session is in two cache lines, and the first holds the place of the second. Each is prefetched
// one node ahead, so that the work of the node between hides the latency.

/// Hashes the packet's flow and prefetches its index bucket.
#[inline]
pub(super) fn prefetch_bucket(context: &Context<'_>, packet: &mut Packet) {
    let flow = &packet.headers.flow;
    packet.hash = match packet.headers.kind {
        Kind::Ipv4 => context.sessions.hash_v4(flow),
        _ => context.sessions.hash(flow),
    };
    context.sessions.prefetch(packet.hash);
}

/// Finds the candidate record of the packet's session and prefetches it.
#[inline]
pub(super) fn prefetch_record(context: &Context<'_>, packet: &mut Packet) {
    packet.candidate = context.sessions.candidate(packet.hash);
}

/// Packets whose session is to be re-evaluated are sent to this node again.
#[inline(always)]
pub(super) fn step(context: &mut Context<'_>, packet: &mut Packet) -> Next {
    step_at::<true>(context, packet)
}

/// The same for those packets.
#[inline(never)]
pub(super) fn step_again(context: &mut Context<'_>, packet: &mut Packet) -> Next {
    step_at::<false>(context, packet)
}

#[inline(always)]
fn step_at<const FIRST: bool>(context: &mut Context<'_>, packet: &mut Packet) -> Next {
    if packet.may_take_fast_path {
        let headers = &packet.headers;
        let info = || info(context, headers);
        let adjacency = context.sessions.fast_path(packet.candidate, &headers.flow, info);
        if adjacency != Adjacency::NONE {
            return pass(context, packet, adjacency);
        }
        if context.sessions.is_translated_at(packet.candidate) {
            return translated::<FIRST>(context, packet);
        }
    }
    if packet.candidate.is_none() && packet.headers.role != Role::Quotes {
        return opens(context, packet);
    }
    look::<FIRST>(context, packet)
}

#[inline(always)]
fn info<'a>(context: &Context<'_>, headers: &'a Headers) -> PacketInfo<'a> {
    let Headers { flow, tcp_flags, .. } = headers;
    let (generation, now_s) = (context.snapshot.generation, context.now.seconds());
    PacketInfo { flow, tcp_flags: *tcp_flags, generation, now_s }
}

/// Forwards a packet whose session is in the candidate record.
#[inline]
fn pass(context: &Context<'_>, packet: &mut Packet, adjacency: Adjacency) -> Next {
    if context.counts {
        context.sessions.count_at(packet.candidate, packet.frame.len());
    }
    packet.adjacency = adjacency;
    packet.outcome = Some(Outcome::Session);
    Next::Node(Node::Rewrite)
}

/// Forwards a packet of a translated session.
#[inline(never)]
fn translated<const FIRST: bool>(context: &mut Context<'_>, packet: &mut Packet) -> Next {
    let info = info(context, &packet.headers);
    let translations = &mut *context.translations;
    let place = translations.len();
    let note = |it: Translated| {
        translations.push(match it.forward {
            true => Translation::forward(it.other, it.return_mac),
            false => Translation::reverse(&it.other, it.return_mac),
        });
    };
    let adjacency = context.sessions.fast_path_translated(packet.candidate, &info, note);
    if adjacency == Adjacency::NONE {
        context.translations.truncate(place);
        return look::<FIRST>(context, packet);
    }
    packet.translation = place as u16;
    if came_another_way(context, packet, &context.translations[place]) {
        let (hash, flow) = (packet.hash, &packet.headers.flow);
        let (origin, now_s) = (TupleOrigin::Entering, context.now.seconds());
        if let Some(found) = context.sessions.find_at(packet.candidate, hash, flow, origin, now_s) {
            context.sessions.return_to(&found, packet.headers.source_mac.bytes());
        }
    }
    pass(context, packet, adjacency)
}

/// Whether a packet of the initiator came from another MAC address than the one that its replies
/// return to: the gateway or the client has another one by now.
#[inline]
fn came_another_way(context: &Context<'_>, packet: &Packet, translation: &Translation) -> bool {
    let Translation { return_mac, returns, .. } = *translation;
    !returns
        && return_mac != Mac::default()
        && packet.headers.source_mac != return_mac.into()
        && context.snapshot.uplink() == Some(packet.in_port)
}

#[inline(never)]
fn look<const FIRST: bool>(context: &mut Context<'_>, packet: &mut Packet) -> Next {
    if packet.headers.role == Role::Quotes {
        return related(context, packet);
    }
    let flow = &packet.headers.flow;
    let (hash, now_s) = (packet.hash, context.now.seconds());
    match context.sessions.find_at(packet.candidate, hash, flow, TupleOrigin::Entering, now_s) {
        None => opens(context, packet),
        Some(found)
            if packet.headers.role == Role::Opens && starts_anew(context, packet, &found) =>
        {
            opens(context, packet)
        }
        Some(found) if FIRST && is_stale(context, &found) => {
            context.stale.push(Stale::new(found));
            Next::Node(Node::Session)
        }
        Some(found) => go_on(context, packet, &found, Outcome::Session),
    }
}

/// Whether a session is to be re-evaluated. A worker behind neither ends nor re-evaluates a session
/// that a later snapshot allowed.
#[inline]
fn is_stale(context: &Context<'_>, found: &Found) -> bool {
    let generation = context.snapshot.generation;
    !found.is_of(generation) && !found.is_of_later(generation)
}

/// Dispatches a packet without a session.
#[inline]
fn opens(context: &Context<'_>, packet: &Packet) -> Next {
    match service::is_wanted(context.snapshot, &packet.headers.flow) {
        true => Next::Node(Node::Service),
        false => Next::Node(Node::Policy),
    }
}

/// A SYN on a connection that is over, or refused, opens another one; a SYN from the responder is not a reply. A
/// reset that was forged ends nothing: behind one, the SYN is evaluated, and the session stays.
#[inline]
fn starts_anew(context: &Context<'_>, packet: &Packet, found: &Found) -> bool {
    if packet.headers.flow.protocol != protocol::TCP {
        return false;
    }
    if found.state().is_reset() && !found.state().is_refused() {
        return true;
    }
    // After a denial, who opens what is known.
    if found.state().is_over() || found.state().is_refused() {
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
        // The session may have ended since the lookup.
        let Some(tuples) = context.sessions.tuples(found) else {
            return Next::End(Outcome::NoSession);
        };
        if is_stale(context, found) {
            if let Err(next) = reevaluate(context, packet, found, &tuples) {
                return next;
            }
            if found.forward {
                context.sessions.claim(found, || owner(context, packet));
            }
        }
        if found.translated {
            let translation = translation_of(found, &tuples);
            if came_another_way(context, packet, &translation) {
                context.sessions.return_to(found, packet.headers.source_mac.bytes());
            }
            context.translate(packet, translation);
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
    context.count(found.id, packet);
    context.remember_fragment(packet, true);
    packet.outcome = Some(outcome);
    Next::Node(Node::Rewrite)
}

/// The translation of a packet of a translated session.
pub(super) fn translation_of(found: &Found, tuples: &Tuples) -> Translation {
    match found.forward {
        true => Translation::forward(tuples.responder, tuples.return_mac),
        false => Translation::reverse(&tuples.initiator, tuples.return_mac),
    }
}

/// Routes a packet of a session by its translated addresses.
pub(super) fn route(context: &Context<'_>, packet: &Packet) -> Result<Adjacency, Outcome> {
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

/// Re-evaluates a session under the current snapshot. Refuses it while the policies do not permit
/// it, and ends it if one of its addresses has changed its pod, or if it is a UDP flow whose
/// addresses mean something else now: its packet opens another one then.
fn reevaluate(
    context: &mut Context<'_>,
    packet: &mut Packet,
    found: &Found,
    tuples: &Tuples,
) -> Result<(), Next> {
    let has_departed = context.sessions.has_departed(found, tuples);
    if has_departed || service::is_outdated(context.snapshot, tuples) {
        context.sessions.end(found);
        // A reply to the initiator of before opens nothing.
        let may_open = packet.headers.role == Role::Opens
            && (has_departed || found.forward)
            && !matches!(packet.headers.fragment, Fragment::Later(_));
        return Err(if may_open { opens(context, packet) } else { Next::End(Outcome::NoSession) });
    }
    let Decision { outcome, by } = policy::reevaluate(context.snapshot, tuples);
    if outcome.verdict() != Verdict::Forward {
        refuse(context, found, outcome);
        packet.by = by;
        return Err(match outcome {
            Outcome::PolicyDenied => reject::session(context, packet, found, tuples),
            outcome => Next::End(outcome),
        });
    }
    Ok(())
}

/// Refuses a session that is denied. Behind a closed port nothing is decided yet, as after a start
/// without the cluster's objects: the session is evaluated when there are tables.
fn refuse(context: &Context<'_>, found: &Found, outcome: Outcome) {
    if outcome != Outcome::Closed {
        context.sessions.refuse(found, context.now.seconds());
    }
}

/// Forwards an ICMP error to the sender of the packet it quotes, if it arrives on the port which
/// that packet left by (or from this node's kernel, which routes).
fn related(context: &mut Context<'_>, packet: &mut Packet) -> Next {
    let refused = Next::End(Outcome::NoSession);
    let snapshot = context.snapshot;
    let quoted = wire::quoted(context.memory.bytes(&packet.frame), &packet.headers);
    let Some(quoted) = quoted else { return refused };
    let hash = context.sessions.hash(&quoted);
    let now_s = context.now.seconds();
    let Some(found) = context.sessions.find(hash, &quoted, TupleOrigin::Quoted, now_s) else {
        return of_kernel(context, packet, &quoted);
    };
    let Some(tuples) = context.sessions.tuples(&found) else { return refused };
    if context.sessions.has_departed(&found, &tuples) {
        context.sessions.end(&found);
        return refused;
    }
    if is_stale(context, &found) {
        let Decision { outcome, by } = policy::reevaluate(snapshot, &tuples);
        if outcome.verdict() != Verdict::Forward {
            refuse(context, &found, outcome);
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

/// Forwards an ICMP error about a packet of this node's kernel, or to it, that no policy is about:
/// it has no session here, and the kernel knows its own connections. As above, it arrives on the
/// port which the packet left by.
#[cold]
fn of_kernel(context: &Context<'_>, packet: &mut Packet, quoted: &Flow) -> Next {
    let (snapshot, flow) = (context.snapshot, &packet.headers.flow);
    let ends = [quoted.source, quoted.destination];
    let went = snapshot.route(quoted.destination).and_then(|adjacency| {
        let (port, _) = snapshot.egress(adjacency).ok_or(Outcome::PortGone)?;
        let is_by_tunnel = packet.from_peer != Adjacency::NONE;
        Ok(port == packet.in_port && (!is_by_tunnel || packet.from_peer == adjacency))
    });
    if flow.destination != quoted.source
        || !ends.iter().any(|end| snapshot.is_own_node(*end))
        || ends.iter().any(|end| snapshot.pod_of(*end).is_some())
        || went != Ok(true)
    {
        return Next::End(Outcome::NoSession);
    }
    match context.route(packet, flow) {
        Err(outcome) => Next::End(outcome),
        Ok((adjacency, _)) => {
            packet.adjacency = adjacency;
            packet.outcome = Some(Outcome::Related);
            Next::Node(Node::Rewrite)
        }
    }
}

/// Translates an error about a translated packet back to its sender's tuple.
fn related_translation(error: &Flow, forward: bool, tuples: Tuples) -> Translation {
    let (sent, left) = match forward {
        true => (tuples.initiator, tuples.responder),
        false => (tuples.responder.reversed(), tuples.initiator.reversed()),
    };
    // A router's address stays, unless the sender knows the other end by this node's address: its
    // own node takes nothing else from here. The far end has another address here.
    let is_hidden = !forward && tuples.initiator.source != tuples.responder.source;
    let is_far_end = error.source == left.destination || is_hidden;
    let source = if is_far_end { sent.destination } else { error.source };
    let to = Flow { source, destination: sent.source, ..*error };
    let (quoted, return_mac) = (Some(Box::new(sent)), tuples.return_mac);
    Translation { to, quoted, return_mac, returns: forward && return_mac != Mac::default() }
}
