//! Anti-spoofing, TTL check, dispatch.

use acl::Address;

use super::{Context, Next, Node, session};
use crate::packet::Packet;
use crate::snapshot::PortLine;
use crate::wire::{Fragment, Headers, protocol};
use crate::{Outcome, PortId, PortKind, Snapshot};

#[inline(always)]
pub(super) fn step(context: &mut Context<'_>, packet: &mut Packet) -> Next {
    let snapshot = context.snapshot;
    let Some(port) = snapshot.line(packet.in_port) else {
        return Next::End(Outcome::PortGone);
    };
    packet.in_traits = port.traits;
    let checked = match port.kind {
        PortKind::Pod => from_pod(snapshot, port, packet),
        PortKind::Uplink => from_uplink(snapshot, packet),
        PortKind::Host => from_host(snapshot, packet),
    };
    match checked {
        Ok(()) => onward(context, packet),
        Err(next) => next,
    }
}

/// A pod sends from its own addresses.
#[inline(always)]
fn from_pod(snapshot: &Snapshot, port: &PortLine, packet: &Packet) -> Result<(), Next> {
    if port.mac.is_some_and(|mac| packet.headers.source_mac != mac) {
        return Err(Next::End(Outcome::SpoofedMac));
    }
    let source = packet.headers.flow.source;
    if !port.has(source) && !has_address(snapshot, packet.in_port, source) {
        return Err(Next::End(Outcome::SpoofedAddress));
    }
    Ok(())
}

/// Whether an address is one of a pod's own, of which there may be more than two.
#[cold]
fn has_address(snapshot: &Snapshot, port: PortId, address: Address) -> bool {
    snapshot.port(port).is_some_and(|port| port.addresses.contains(&address))
}

/// The kernel may send from any address but pods': their packets enter by their own ports or by the
/// uplink.
#[inline(never)]
fn from_host(snapshot: &Snapshot, packet: &Packet) -> Result<(), Next> {
    match snapshot.is_pod(packet.headers.flow.source) {
        true => Err(Next::End(Outcome::SpoofedAddress)),
        false => Ok(()),
    }
}

#[inline(never)]
fn from_uplink(snapshot: &Snapshot, packet: &Packet) -> Result<(), Next> {
    let flow = &packet.headers.flow;
    match snapshot.is_local(flow.source) || snapshot.arrives_in_tunnels_only(flow) {
        true => Err(Next::End(Outcome::SpoofedAddress)),
        false => Ok(()),
    }
}

/// Whether a packet to the overlay's port is a tunnel packet: a whole UDP datagram that came by the uplink, to
/// this node, and not from here. It has no session, and the other checks are for the packet inside.
#[inline(always)]
pub(super) fn is_tunnel(context: &mut Context<'_>, packet: &mut Packet) -> bool {
    let snapshot = context.snapshot;
    let Headers { flow, fragment, .. } = &packet.headers;
    let Some(port) = snapshot.line(packet.in_port) else { return false };
    if port.kind != PortKind::Uplink
        || flow.protocol != protocol::UDP
        || *fragment != Fragment::Whole
    {
        return false;
    }
    packet.in_traits = port.traits;
    let ends = (flow.source, flow.destination);
    if context.tunnel.ends == Some(ends) {
        return true;
    }
    let is_ours = !snapshot.is_local(flow.source) && snapshot.is_own_node(flow.destination);
    if is_ours {
        context.tunnel.ends = Some(ends);
    }
    is_ours
}

/// Dispatches a packet whose source is verified.
#[inline(always)]
pub(super) fn onward(context: &mut Context<'_>, packet: &mut Packet) -> Next {
    // The switch is a router. A packet that ends here creates no session.
    if packet.headers.ttl <= 1 {
        packet.outcome = Some(Outcome::TtlExpired);
        return Next::Node(Node::IcmpError);
    }
    if !packet.is_plain {
        match packet.headers.fragment {
            Fragment::Whole => {}
            Fragment::First(_) => context.waiting.fragments.note_first(),
            Fragment::Later(_) => return Next::Node(Node::Reassembly),
        }
    }
    session::prefetch_record(context, packet);
    Next::Node(Node::Session)
}
