//! Puts packets for other nodes into tunnels.

use super::{Context, Next};
use crate::packet::Packet;
use crate::wire::traffic_class;
use crate::wire::vxlan::{Ends, Front, Vxlan};
use crate::{Adjacency, Outcome, PortId, Snapshot, Underlay};

/// The tunnel to another node.
pub(super) struct Tunnel {
    adjacency: Adjacency,
    port: PortId,
    front: Front,
}

#[inline(always)]
pub(super) fn step(context: &mut Context<'_>, packet: &mut Packet) -> Next {
    let snapshot = context.snapshot;
    let Underlay::Overlay(overlay) = snapshot.underlay() else {
        return Next::End(Outcome::NoRoute);
    };
    let last = &mut context.tunnel.to;
    let tunnel = match last {
        Some(tunnel) if tunnel.adjacency == packet.adjacency => tunnel,
        _ => match find(snapshot, overlay, packet.adjacency) {
            Ok(tunnel) => last.insert(tunnel),
            Err(outcome) => return Next::End(outcome),
        },
    };
    let class = traffic_class::of(context.memory.bytes(&packet.frame), &packet.headers);
    let group = snapshot.tunnel_group(overlay, packet.headers.flow.source);
    // The ring towards the kernel leaves this much room in front of every frame.
    if !context.memory.prepend(&mut packet.frame, tunnel.front.length()) {
        return Next::End(Outcome::TooBig);
    }
    let length = packet.frame.len();
    let frame = context.memory.bytes_mut(&mut packet.frame);
    tunnel.front.write(frame, length, packet.hash, class, group);
    packet.out_port = tunnel.port;
    Next::End(packet.outcome.unwrap_or(Outcome::NoRoute))
}

#[inline(never)]
fn find(snapshot: &Snapshot, overlay: &Vxlan, adjacency: Adjacency) -> Result<Tunnel, Outcome> {
    let Some((port, Some(peer))) = snapshot.egress(adjacency) else {
        return Err(Outcome::NoRoute);
    };
    let uplink = snapshot.port(port).ok_or(Outcome::PortGone)?;
    let destination = peer.endpoint;
    let next_hop = peer.next_hop.ok_or(Outcome::NoNeighbour)?;
    let source = snapshot.node_address(destination).ok_or(Outcome::NoNeighbour)?;
    let ends = Ends { source_mac: uplink.own_mac, next_hop, source, destination };
    Ok(Tunnel { adjacency, port, front: Front::new(overlay, &ends) })
}
