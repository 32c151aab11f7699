//! Anti-spoofing, TTL check, dispatch.

use super::{Context, Next, Node, session};
use crate::packet::Packet;
use crate::wire::{Fragment, protocol};
use crate::{Outcome, PortKind, Underlay};

#[inline]
pub(super) fn step(context: &mut Context<'_>, packet: &mut Packet) -> Next {
    let snapshot = context.snapshot;
    let Some(port) = snapshot.port(packet.in_port) else {
        return Next::End(Outcome::PortGone);
    };
    let source = packet.headers.flow.source;
    match port.kind {
        PortKind::Pod => {
            if port.mac.is_some_and(|mac| packet.source_mac != mac.into()) {
                return Next::End(Outcome::SpoofedMac);
            }
            if !port.addresses.contains(&source) {
                return Next::End(Outcome::SpoofedAddress);
            }
        }
        // The kernel may send from any address but pods': their packets enter by their own ports or
        // by the uplink.
        PortKind::Host if snapshot.is_pod(source) => {
            return Next::End(Outcome::SpoofedAddress);
        }
        PortKind::Host => {}
        PortKind::Uplink => {
            if snapshot.is_local(source) {
                return Next::End(Outcome::SpoofedAddress);
            }
            if let Underlay::Overlay(overlay) = snapshot.underlay() {
                let flow = &packet.headers.flow;
                let is_tunnel = flow.protocol == protocol::UDP
                    && flow.destination_port == overlay.port
                    && snapshot.is_own_node(flow.destination);
                if is_tunnel && packet.headers.fragment == Fragment::Whole {
                    return Next::Node(Node::Decapsulate);
                }
                // Packets of other cluster nodes' pods arrive in tunnels only; so do those of their
                // processes for pods.
                let routes = snapshot.routes();
                let for_pod = || snapshot.pod_of(packet.headers.flow.destination).is_some();
                if routes.find(source).is_some() && (routes.is_pod(source) || for_pod()) {
                    return Next::End(Outcome::SpoofedAddress);
                }
            }
        }
    }
    onward(context, packet)
}

/// Dispatches a packet whose source is verified.
#[inline]
pub(super) fn onward(context: &mut Context<'_>, packet: &mut Packet) -> Next {
    // The switch is a router. A packet that ends here creates no session.
    if packet.headers.ttl <= 1 {
        packet.outcome = Some(Outcome::TtlExpired);
        return Next::Node(Node::IcmpError);
    }
    match packet.headers.fragment {
        Fragment::Whole => {}
        Fragment::First(_) => context.reassembly.note_first(),
        Fragment::Later(_) => return Next::Node(Node::Reassembly),
    }
    session::guess(context, packet);
    Next::Node(Node::Session)
}
