//! Rewrites a packet that leaves: VLAN tags, time to live, checksums, addresses, MAC addresses.

use super::{Context, Next, Node, dns};
use crate::frame::ONE_PIECE;
use crate::packet::Packet;
use crate::snapshot::Egress;
use crate::wire::{Fragment, Mac, checksum, crc32c, nested, partial_checksum, protocol, translate};
use crate::{Outcome, PortState, Underlay};

/// Destination of frames on ports without a MAC address (only captures have such ports).
const UNKNOWN_MAC: Mac = [0x02, 0, 0, 0, 0, 0];

#[inline]
pub(super) fn step(context: &mut Context<'_>, packet: &mut Packet) -> Next {
    let snapshot = context.snapshot;
    let (port_id, peer) = match packet.adjacency.egress() {
        Egress::Port(port) => (port, None),
        Egress::Peer(_) => match snapshot.egress(packet.adjacency) {
            Some(way) => way,
            None => return Next::End(Outcome::PortGone),
        },
    };
    let Some(port) = snapshot.port(port_id) else { return Next::End(Outcome::PortGone) };
    let most = if peer.is_some() { snapshot.mtu(packet.adjacency) } else { port.mtu };
    if port.mtu > 0 && packet.headers.end - packet.headers.l3 > most {
        packet.outcome = Some(Outcome::TooBig);
        return Next::Node(Node::IcmpError);
    }
    let sender = snapshot.port(packet.in_port);
    let follows_names = port.follows_names || sender.is_some_and(|it| it.follows_names);
    if sender.is_some_and(sends_partial_checksums) {
        nested::complete(context.memory, &mut packet.frame, &packet.headers);
    }
    let is_plain = packet.headers.vlan_tags == 0
        && packet.translation == Packet::AS_IT_IS
        && peer.is_none()
        && !packet.frame.is_chain();
    if is_plain {
        // The common case: each field is read once.
        let headers = &packet.headers;
        let frame = context.memory.bytes_mut(&mut packet.frame);
        checksum::decrement_ttl(frame, headers);
        partial_checksum::complete(frame, headers);
        frame[..6].copy_from_slice(port.mac.as_ref().unwrap_or(&UNKNOWN_MAC));
        frame[6..12].copy_from_slice(&port.own_mac);
        packet.out_port = port_id;
        if follows_names && dns::is_wanted(context, packet, port) {
            return Next::Node(Node::Dns);
        }
        return Next::End(packet.outcome.expect("decided by the node before"));
    }
    if packet.headers.vlan_tags > 0 {
        remove_tags(context, packet);
    }
    let headers = packet.headers;
    let translation = context.translation(packet);
    // A tunnel's peer expects complete checksums, and with a short packet deferring saves nothing.
    let encapsulates = peer.is_some() && matches!(snapshot.underlay(), Underlay::Overlay(_));
    let may_stay = packet.frame.is_chain() && !encapsulates;
    partial_checksum::defer_or_complete(context.memory, &mut packet.frame, &headers, may_stay);
    let is_chain = packet.frame.is_chain();
    let is_partial = packet.frame.partial_checksum().is_some();
    let frame = context.memory.bytes_mut(&mut packet.frame);
    checksum::decrement_ttl(frame, &headers);
    let mut receiver = port.mac.unwrap_or(UNKNOWN_MAC);
    if let Some(translation) = translation {
        match &translation.quoted {
            None => translate::rewrite(frame, &headers, &translation.to),
            Some(quoted) => translate::rewrite_error(frame, &headers, &translation.to, quoted),
        }
        if is_partial {
            partial_checksum::renew_pseudo(frame, &headers);
        }
        if translation.returns {
            receiver = translation.tuples.return_mac;
        }
    }
    let has_crc = is_chain && headers.flow.protocol == protocol::SCTP;
    if has_crc && packet.translation != Packet::AS_IT_IS && headers.fragment == Fragment::Whole {
        crc32c::finish_chain(context.memory, &mut packet.frame, &headers);
    }
    let frame = context.memory.bytes_mut(&mut packet.frame);
    if let Some(peer) = peer {
        match peer.next_hop {
            Some(next_hop) => receiver = next_hop,
            None => return Next::End(Outcome::NoNeighbour),
        }
    }
    frame[..6].copy_from_slice(&receiver);
    frame[6..12].copy_from_slice(&port.own_mac);
    if !encapsulates {
        packet.out_port = port_id;
    }
    if follows_names && dns::is_wanted(context, packet, port) {
        return Next::Node(Node::Dns);
    }
    if encapsulates {
        return Next::Node(Node::Encapsulate);
    }
    Next::End(packet.outcome.expect("decided by the node before"))
}

/// Whether the kernel behind a port may send partial checksums: the plugin leaves checksum offload
/// on for large MTUs. Memory ports and captures have no MTU.
#[inline]
fn sends_partial_checksums(port: &PortState) -> bool {
    port.mtu == 0 || port.mtu > ONE_PIECE
}

fn remove_tags(context: &Context<'_>, packet: &mut Packet) {
    let tags = u16::from(packet.headers.vlan_tags) * 4;
    context.memory.remove(&mut packet.frame, 12, usize::from(tags));
    packet.headers.vlan_tags = 0;
    packet.headers.l3 -= tags;
    packet.headers.l4 -= tags;
    packet.headers.end -= tags;
}
