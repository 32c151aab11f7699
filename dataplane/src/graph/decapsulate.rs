//! Decapsulates tunnel packets. A cluster node may send from its own and its pods' addresses only.

use super::{Context, Next, anti_spoofing, session};
use crate::packet::Packet;
use crate::wire::{self, Headers, Kind, vxlan};
use crate::{Adjacency, Outcome, Underlay};

#[inline(always)]
pub(super) fn step(context: &mut Context<'_>, packet: &mut Packet) -> Next {
    let refused = Next::End(Outcome::TunnelRefused);
    let Underlay::Overlay(overlay) = context.snapshot.underlay() else { return refused };
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
    let length = packet.frame.len();
    let frame = context.memory.bytes_mut(&mut packet.frame);
    let plain = match wire::parse_into(frame, length, &mut packet.headers) {
        Ok(plain) => plain,
        Err(outcome) => {
            packet.headers = Headers::default();
            return Next::End(outcome);
        }
    };
    // Neighbour discovery happens on the underlay, never inside a tunnel.
    if !matches!(packet.headers.kind, Kind::Ipv4 | Kind::Ipv6) {
        return refused;
    }
    if context.snapshot.routes().find(packet.headers.flow.source) != Some(peer) {
        return Next::End(Outcome::SpoofedAddress);
    }
    if !vxlan::combine_congestion(frame, &packet.headers, class) {
        return Next::End(Outcome::CongestionLost);
    }
    packet.from_peer = Adjacency::peer(peer);
    session::expect(context, packet);
    packet.note(plain);
    anti_spoofing::onward(context, packet)
}
