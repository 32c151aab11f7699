//! Decapsulates tunnel packets. A node may send from its own and its pods' addresses only.

use super::{Context, Next, anti_spoofing, session};
use crate::packet::Packet;
use crate::wire::vxlan::Outer;
use crate::wire::{self, Headers, Kind, traffic_class};
use crate::{Adjacency, Egress, Outcome, PortId};

/// A tunnel that packets come by, over IPv4.
pub(super) struct Arrival {
    in_port: PortId,
    in_traits: u8,
    peer: Adjacency,
    outer: Outer,
}

/// Remembers the tunnel of a packet whose outer headers, which are plain and of IPv4, anti-spoofing has
/// verified.
#[inline(never)]
pub(super) fn note_arrival(context: &mut Context<'_>, packet: &Packet) {
    let Some(overlay) = context.snapshot.underlay().overlay() else { return };
    let (flow, routes) = (&packet.headers.flow, context.snapshot.routes());
    let Some(n) = routes.peer_at(flow.source) else { return };
    let Some(peer) = routes.peer(n) else { return };
    let outer = Outer::new(overlay, flow, peer.least_hop_limit);
    let Packet { in_port, in_traits, .. } = *packet;
    let arrival = Arrival { in_port, in_traits, peer: Adjacency::peer(n), outer };
    context.tunnel.from[outer.place()] = Some(arrival);
}

/// Takes a packet out of its tunnel if that is one of those noted, what is inside is plain IPv4, and there is
/// nothing wrong and no congestion; otherwise changes nothing.
#[inline(always)]
pub(super) fn take_out(context: &mut Context<'_>, packet: &mut Packet) -> bool {
    let (frame, length) = (context.memory.bytes(&packet.frame), packet.frame.len());
    let Some(from) = &context.tunnel.from[Outer::place_of(frame)] else { return false };
    if from.in_port != packet.in_port || !from.outer.is_of(frame, length) {
        return false;
    }
    let inside = &frame[Outer::LENGTH..];
    let length = length - Outer::LENGTH;
    let Some(plain) = wire::parse_plain_v4(inside, length, &mut packet.headers) else {
        return false;
    };
    context.memory.advance(&mut packet.frame, Outer::LENGTH);
    packet.hash = context.sessions.hash_v4(&packet.headers.flow);
    context.sessions.prefetch(packet.hash);
    packet.in_traits = from.in_traits;
    packet.from_peer = from.peer;
    packet.note(Some(plain));
    true
}

#[inline(always)]
pub(super) fn step(context: &mut Context<'_>, packet: &mut Packet) -> Next {
    match packet.from_peer.egress() {
        // Parse has taken it out.
        Egress::Peer(peer) if may_enter(context, packet, peer) => {
            anti_spoofing::onward(context, packet)
        }
        Egress::Peer(_) => Next::End(Outcome::SpoofedAddress),
        Egress::Port(_) => step_other(context, packet),
    }
}

/// Whether a packet that came out of a peer's tunnel is from an address behind it.
#[inline(always)]
fn may_enter(context: &Context<'_>, packet: &Packet, peer: u16) -> bool {
    context.snapshot.routes().leads_to(peer, packet.headers.flow.source)
}

/// The same for packets that are still in their tunnels.
#[inline(never)]
fn step_other(context: &mut Context<'_>, packet: &mut Packet) -> Next {
    let refused = Next::End(Outcome::TunnelRefused);
    let Some(overlay) = context.snapshot.underlay().overlay() else { return refused };
    let outer = &packet.headers;
    let routes = context.snapshot.routes();
    let peer = match context.tunnel.peer {
        Some((source, peer)) if source == outer.flow.source => peer,
        _ => {
            let Some(peer) = routes.peer_at(outer.flow.source) else { return refused };
            context.tunnel.peer = Some((outer.flow.source, peer));
            peer
        }
    };
    if routes.peer(peer).is_none_or(|peer| outer.ttl < peer.least_hop_limit) {
        return refused;
    }
    let frame = context.memory.bytes(&packet.frame);
    let Some(inside) = overlay.inside(frame, outer) else { return refused };
    let class = traffic_class::of(frame, outer);
    context.memory.advance(&mut packet.frame, inside);
    let (frame, length) = (context.memory.bytes(&packet.frame), packet.frame.len());
    let plain = match wire::parse_into(frame, length, &mut packet.headers) {
        Ok(plain) => plain,
        Err(outcome) => {
            packet.headers = Headers::NONE;
            return Next::End(outcome);
        }
    };
    // Neighbour discovery happens on the underlay, never inside a tunnel.
    if !matches!(packet.headers.kind, Kind::Ipv4 | Kind::Ipv6) {
        return refused;
    }
    session::prefetch_bucket(context, packet);
    if !may_enter(context, packet, peer) {
        return Next::End(Outcome::SpoofedAddress);
    }
    let frame = context.memory.bytes_mut(&mut packet.frame);
    if !traffic_class::combine_congestion(frame, &packet.headers, class) {
        return Next::End(Outcome::CongestionLost);
    }
    packet.from_peer = Adjacency::peer(peer);
    packet.note(plain);
    anti_spoofing::onward(context, packet)
}
