//! Puts packets for other cluster nodes into tunnels.

use super::{Context, Next};
use crate::packet::Packet;
use crate::wire::vxlan::{self, Ends, Vxlan};
use crate::{Outcome, Underlay};

#[inline(always)]
pub(super) fn step(context: &mut Context<'_>, packet: &mut Packet) -> Next {
    let snapshot = context.snapshot;
    let (Underlay::Overlay(overlay), Some((port, Some(peer)))) =
        (snapshot.underlay(), snapshot.egress(packet.adjacency))
    else {
        return Next::End(Outcome::NoRoute);
    };
    let Some(uplink) = snapshot.port(port) else { return Next::End(Outcome::PortGone) };
    let destination = peer.endpoint;
    let (Some(next_hop), Some(source)) = (peer.next_hop, snapshot.node_address(destination)) else {
        return Next::End(Outcome::NoNeighbour);
    };
    let class = vxlan::class(context.memory.bytes(&packet.frame), &packet.headers);
    let group = snapshot.tunnel_group(overlay, packet.headers.flow.source);
    // The ring towards the kernel leaves this much room in front of every frame.
    if !context.memory.prepend(&mut packet.frame, Vxlan::front(destination.is_v4())) {
        return Next::End(Outcome::TooBig);
    }
    let length = packet.frame.len();
    let frame = context.memory.bytes_mut(&mut packet.frame);
    let ends = Ends { source_mac: uplink.own_mac, next_hop, source, destination };
    overlay.write(frame, length, &ends, packet.hash, class, group);
    packet.out_port = port;
    Next::End(packet.outcome.unwrap_or(Outcome::NoRoute))
}
