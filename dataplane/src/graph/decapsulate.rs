//! Decapsulates tunnel packets. A cluster node may send from its own and its pods' addresses only.

use super::{Context, Next, anti_spoofing, session};
use crate::packet::Packet;
use crate::wire::{self, Headers, Kind, Plain, vxlan};
use crate::{Adjacency, Outcome};

#[inline(always)]
pub(super) fn step(context: &mut Context<'_>, packet: &mut Packet) -> Next {
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
    let class = vxlan::class(frame, outer);
    context.memory.advance(&mut packet.frame, inside);
    let (frame, length) = (context.memory.bytes(&packet.frame), packet.frame.len());
    let Some(plain) = wire::parse_plain_v4(frame, length, &mut packet.headers) else {
        return other(context, packet, peer, class);
    };
    packet.hash = context.sessions.hash_v4(&packet.headers.flow);
    context.sessions.prefetch(packet.hash);
    go_on(context, packet, peer, class, Some(plain))
}

/// The same where what is inside is not plain IPv4.
#[inline(never)]
fn other(context: &mut Context<'_>, packet: &mut Packet, peer: u16, class: u8) -> Next {
    let (frame, length) = (context.memory.bytes(&packet.frame), packet.frame.len());
    let plain = match wire::parse_into(frame, length, &mut packet.headers) {
        Ok(plain) => plain,
        Err(outcome) => {
            packet.headers = Headers::default();
            return Next::End(outcome);
        }
    };
    // Neighbour discovery happens on the underlay, never inside a tunnel.
    if !matches!(packet.headers.kind, Kind::Ipv4 | Kind::Ipv6) {
        return Next::End(Outcome::TunnelRefused);
    }
    session::expect(context, packet);
    go_on(context, packet, peer, class, plain)
}

#[inline(always)]
fn go_on(
    context: &mut Context<'_>,
    packet: &mut Packet,
    peer: u16,
    class: u8,
    plain: Option<Plain>,
) -> Next {
    if !context.snapshot.routes().leads_to(peer, packet.headers.flow.source) {
        return Next::End(Outcome::SpoofedAddress);
    }
    let frame = context.memory.bytes_mut(&mut packet.frame);
    if !vxlan::combine_congestion(frame, &packet.headers, class) {
        return Next::End(Outcome::CongestionLost);
    }
    packet.from_peer = Adjacency::peer(peer);
    packet.note(plain);
    anti_spoofing::onward(context, packet)
}
