//! Rewrites a packet that leaves: VLAN tags, time to live, checksums, addresses, MAC addresses.

use super::{Context, Next, Node, Translation, dns, fragment};
use crate::packet::Packet;
use crate::snapshot::{Egress, Peer, PortId, PortLine};
use crate::wire::{self, ETHERNET, Fragment, Headers, checksum, partial_checksum, protocol};
use crate::{Adjacency, Outcome, Snapshot, Underlay};

/// The way out of a packet.
struct Exit<'a> {
    port_id: PortId,
    port: &'a PortLine,
    /// Bytes of the largest IP packet.
    most: u16,
    /// The node behind the uplink, if it is known.
    peer: Option<&'a Peer>,
    /// Whether it leaves in a tunnel.
    encapsulates: bool,
}

#[inline(always)]
pub(super) fn step(context: &mut Context<'_>, packet: &mut Packet) -> Next {
    let Egress::Port(port_id) = packet.adjacency.egress() else {
        return step_to_peer(context, packet);
    };
    let Some(port) = context.snapshot.line(port_id) else {
        return Next::End(Outcome::PortGone);
    };
    let exit = Exit { port_id, port, most: port.most, peer: None, encapsulates: false };
    leave(context, packet, &exit)
}

#[inline(never)]
fn step_to_peer(context: &mut Context<'_>, packet: &mut Packet) -> Next {
    match to_peer(context.snapshot, packet.adjacency) {
        Some(exit) => leave(context, packet, &exit),
        None => Next::End(Outcome::PortGone),
    }
}

#[inline(always)]
fn to_peer(snapshot: &Snapshot, adjacency: Adjacency) -> Option<Exit<'_>> {
    let (port_id, peer) = snapshot.egress(adjacency)?;
    let port = snapshot.line(port_id)?;
    let encapsulates = matches!(snapshot.underlay(), Underlay::Overlay(_));
    let most = match snapshot.mtu(adjacency) {
        0 => u16::MAX,
        mtu => mtu,
    };
    Some(Exit { port_id, port, most, peer, encapsulates })
}

#[inline(always)]
fn leave(context: &mut Context<'_>, packet: &mut Packet, exit: &Exit<'_>) -> Next {
    let headers = &packet.headers;
    if headers.end - headers.l3 > exit.most {
        return leave_long(context, packet);
    }
    let sender = packet.in_traits;
    if sender & PortLine::PARTIAL_CHECKSUMS != 0 {
        context.memory.complete_nested(&mut packet.frame, headers);
    }
    let translation = context.translation(packet);
    let frame = if packet.is_plain {
        let frame = context.memory.bytes_mut(&mut packet.frame);
        checksum::decrement_ttl_at(frame, ETHERNET, headers.kind);
        if let Some(translation) = translation {
            // An ICMP error, which quotes another packet, is not plain.
            wire::translate::rewrite_plain(frame, headers, &translation.to);
        }
        frame
    } else {
        forward_any(context, packet, exit.encapsulates);
        context.memory.bytes_mut(&mut packet.frame)
    };
    if let Err(outcome) = address(frame, exit, translation) {
        return Next::End(outcome);
    }
    if !exit.encapsulates {
        packet.out_port = exit.port_id;
    }
    if (exit.port.traits | sender) & PortLine::FOLLOWS_NAMES != 0
        && dns::is_wanted(context, packet, exit.port)
    {
        return Next::Node(Node::Dns);
    }
    if exit.encapsulates {
        return Next::Node(Node::Encapsulate);
    }
    Next::End(packet.outcome.expect("decided by the node before"))
}

/// Writes the MAC addresses of the way out.
#[inline(always)]
fn address(
    frame: &mut [u8],
    exit: &Exit<'_>,
    translation: Option<&Translation>,
) -> Result<(), Outcome> {
    frame[..12].copy_from_slice(&exit.port.ethernet);
    if let Some(translation) = translation.filter(|it| it.returns) {
        frame[..6].copy_from_slice(&translation.return_mac);
    }
    if let Some(peer) = exit.peer {
        let next_hop = peer.next_hop.as_ref().ok_or(Outcome::NoNeighbour)?;
        frame[..6].copy_from_slice(next_hop);
    }
    Ok(())
}

/// Sends a packet that is longer than the way out takes in fragments, if it may be cut; its sender
/// learns of it otherwise. An answer of DNS that the graph has to read is not cut.
// It finds the way out again: that of other packets stays in registers.
#[cold]
#[inline(never)]
fn leave_long(context: &mut Context<'_>, packet: &mut Packet) -> Next {
    let snapshot = context.snapshot;
    let exit = match packet.adjacency.egress() {
        Egress::Peer(_) => to_peer(snapshot, packet.adjacency),
        Egress::Port(port_id) => snapshot.line(port_id).map(|port| {
            let most = port.most;
            Exit { port_id, port, most, peer: None, encapsulates: false }
        }),
    };
    let Some(exit) = exit else { return Next::End(Outcome::PortGone) };
    let follows_names = (exit.port.traits | packet.in_traits) & PortLine::FOLLOWS_NAMES != 0;
    if follows_names && dns::is_wanted(context, packet, exit.port)
        || !fragment::is_divisible(context, packet)
    {
        packet.outcome = Some(Outcome::TooBig);
        return Next::Node(Node::IcmpError);
    }
    if packet.in_traits & PortLine::PARTIAL_CHECKSUMS != 0 {
        context.memory.complete_nested(&mut packet.frame, &packet.headers);
    }
    // No fragment has a checksum of its own that a port could complete.
    forward_any(context, packet, true);
    let translation = context.translation(packet);
    let frame = context.memory.bytes_mut(&mut packet.frame);
    if let Err(outcome) = address(frame, &exit, translation) {
        return Next::End(outcome);
    }
    if !exit.encapsulates {
        packet.out_port = exit.port_id;
    }
    fragment::send(context, packet, exit.most)
}

#[inline(never)]
fn translate(frame: &mut [u8], headers: &Headers, translation: &Translation) {
    match &translation.quoted {
        None => wire::translate::rewrite(frame, headers, &translation.to),
        Some(quoted) => {
            wire::translate::rewrite_error(frame, headers, &translation.to, quoted);
        }
    }
}

/// Removes VLAN tags, completes a partial checksum, lowers the time to live and translates, in packets
/// of several frames too.
#[inline(never)]
fn forward_any(context: &Context<'_>, packet: &mut Packet, encapsulates: bool) {
    if packet.headers.vlan_tags > 0 {
        remove_tags(context, packet);
    }
    let headers = packet.headers;
    // A tunnel's peer expects complete checksums, and with a short packet deferring saves nothing.
    let may_stay = packet.frame.is_chain() && !encapsulates;
    context.memory.defer_or_complete(&mut packet.frame, &headers, may_stay);
    let is_chain = packet.frame.is_chain();
    let is_partial = packet.frame.partial_checksum().is_some();
    let translation = context.translation(packet);
    let frame = context.memory.bytes_mut(&mut packet.frame);
    checksum::decrement_ttl(frame, &headers);
    let Some(translation) = translation else { return };
    translate(frame, &headers, translation);
    if is_partial {
        partial_checksum::renew_pseudo(frame, &headers);
    }
    let has_crc = is_chain && headers.flow.protocol == protocol::SCTP;
    if has_crc && headers.fragment == Fragment::Whole {
        context.memory.finish_sctp(&mut packet.frame, &headers);
    }
}

fn remove_tags(context: &Context<'_>, packet: &mut Packet) {
    let tags = u16::from(packet.headers.vlan_tags) * 4;
    context.memory.remove(&mut packet.frame, 12, usize::from(tags));
    packet.headers.vlan_tags = 0;
    packet.headers.l3 -= tags;
    packet.headers.l4 -= tags;
    packet.headers.end -= tags;
}
