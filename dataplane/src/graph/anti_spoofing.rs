//! Anti-spoofing, TTL check, dispatch.

use acl::Address;

use super::{Context, Next, Node, session};
use crate::packet::Packet;
use crate::wire::{Fragment, Headers, protocol};
use crate::{Outcome, PortId, PortKind, Snapshot};

#[inline(always)]
pub(super) fn step(context: &mut Context<'_>, packet: &mut Packet) -> Next {
    let snapshot = context.snapshot;
    let Some(port) = snapshot.line(packet.in_port) else {
        return Next::End(Outcome::PortGone);
    };
    packet.in_traits = port.traits;
    if port.kind != PortKind::Pod {
        return match port.kind {
            PortKind::Uplink => from_uplink(context, packet),
            _ => from_host(context, packet),
        };
    }
    if port.mac.is_some_and(|mac| packet.headers.source_mac != mac) {
        return Next::End(Outcome::SpoofedMac);
    }
    let source = packet.headers.flow.source;
    if !port.has(source) && !has_address(snapshot, packet.in_port, source) {
        return Next::End(Outcome::SpoofedAddress);
    }
    onward(context, packet)
}

/// Whether an address is one of a pod's own, of which there may be more than two.
#[cold]
fn has_address(snapshot: &Snapshot, port: PortId, address: Address) -> bool {
    snapshot.port(port).is_some_and(|port| port.addresses.contains(&address))
}

/// The kernel may send from any address but pods': their packets enter by their own ports or by the
/// uplink.
#[inline(never)]
fn from_host(context: &mut Context<'_>, packet: &mut Packet) -> Next {
    if context.snapshot.is_pod(packet.headers.flow.source) {
        return Next::End(Outcome::SpoofedAddress);
    }
    onward(context, packet)
}

#[inline(never)]
fn from_uplink(context: &mut Context<'_>, packet: &mut Packet) -> Next {
    let snapshot = context.snapshot;
    let flow = &packet.headers.flow;
    let ends = (flow.source, flow.destination);
    let may_be_tunnel = has_overlay_port(context, packet);
    if may_be_tunnel && context.tunnel.ends == Some(ends) {
        return Next::Node(Node::Decapsulate);
    }
    if snapshot.is_local(flow.source) {
        return Next::End(Outcome::SpoofedAddress);
    }
    if may_be_tunnel && snapshot.is_own_node(flow.destination) {
        context.tunnel.ends = Some(ends);
        return Next::Node(Node::Decapsulate);
    }
    if snapshot.arrives_in_tunnels_only(flow) {
        return Next::End(Outcome::SpoofedAddress);
    }
    match may_be_tunnel {
        true => no_tunnel(context, packet),
        false => onward(context, packet),
    }
}

/// A packet to the overlay's port that is no tunnel packet. Its session has not been looked for yet.
#[cold]
fn no_tunnel(context: &mut Context<'_>, packet: &mut Packet) -> Next {
    session::expect(context, packet);
    onward(context, packet)
}

/// Whether a packet may be a tunnel packet of the overlay. Its addresses decide, which
/// [`from_uplink`] looks at.
pub(super) fn may_be_tunnel(context: &Context<'_>, packet: &Packet) -> bool {
    let port = context.snapshot.line(packet.in_port);
    port.is_some_and(|port| port.kind == PortKind::Uplink) && has_overlay_port(context, packet)
}

/// Whether a packet is a whole UDP datagram to the overlay's port.
#[inline(always)]
fn has_overlay_port(context: &Context<'_>, packet: &Packet) -> bool {
    let Headers { flow, fragment, .. } = &packet.headers;
    u32::from(flow.destination_port) == context.tunnel_port
        && flow.protocol == protocol::UDP
        && *fragment == Fragment::Whole
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
            Fragment::First(_) => context.reassembly.note_first(),
            Fragment::Later(_) => return Next::Node(Node::Reassembly),
        }
    }
    session::guess(context, packet);
    Next::Node(Node::Session)
}
