//! Checks the headers.

use super::{Context, Next, Node, anti_spoofing, decapsulate, session};
use crate::packet::Packet;
use crate::wire::{self, Headers, Kind, Plain, vxlan};
use crate::{Outcome, PortKind};

#[inline(always)]
pub(super) fn step(context: &mut Context<'_>, packet: &mut Packet) -> Next {
    let (frame, length) = (context.memory.bytes(&packet.frame), packet.frame.len());
    if vxlan::may_be_to(context.tunnel_port, frame) {
        return step_outer(context, packet);
    }
    let Some(plain) = wire::parse_plain_v4(frame, length, &mut packet.headers) else {
        return step_other(context, packet);
    };
    packet.hash = context.sessions.hash_v4(&packet.headers.flow);
    go_on(context, packet, plain)
}

/// The same for packets that may be to the overlay's port over IPv4. Most come by few tunnels, and are taken out
/// of them here.
#[inline(never)]
fn step_outer(context: &mut Context<'_>, packet: &mut Packet) -> Next {
    if decapsulate::take_out(context, packet) {
        return Next::Node(Node::Decapsulate);
    }
    let (frame, length) = (context.memory.bytes(&packet.frame), packet.frame.len());
    let Some(plain) = wire::parse_plain_v4(frame, length, &mut packet.headers) else {
        return step_other(context, packet);
    };
    let next = step_tunnel(context, packet, Some(plain));
    if next == Next::Node(Node::Decapsulate) && !context.traces {
        decapsulate::note_arrival(context, packet);
        decapsulate::take_out(context, packet);
    }
    next
}

/// The same for packets that are not plain IPv4.
#[inline(never)]
fn step_other(context: &mut Context<'_>, packet: &mut Packet) -> Next {
    let (frame, length) = (context.memory.bytes(&packet.frame), packet.frame.len());
    let Some(plain) = wire::parse_plain_v6(frame, length, &mut packet.headers) else {
        return step_any(context, packet);
    };
    if is_to_overlay(context, packet) {
        return step_tunnel(context, packet, Some(plain));
    }
    packet.hash = context.sessions.hash_v6(&packet.headers.flow);
    go_on(context, packet, plain)
}

#[inline(always)]
fn go_on(context: &Context<'_>, packet: &mut Packet, plain: Plain) -> Next {
    context.sessions.prefetch(packet.hash);
    packet.note(Some(plain));
    Next::Node(Node::AntiSpoofing)
}

/// The same for packets of every kind.
#[inline(never)]
fn step_any(context: &mut Context<'_>, packet: &mut Packet) -> Next {
    let (frame, length) = (context.memory.bytes(&packet.frame), packet.frame.len());
    match wire::parse_any(frame, length, &mut packet.headers) {
        Err(outcome) => {
            // Incomplete headers must not be used.
            packet.headers = Headers::NONE;
            Next::End(outcome)
        }
        // The rest of the graph sees the packet without its tags.
        Ok(())
            if packet.headers.vlan_tags > 0
                && wire::is_of_vlan(frame, packet.headers.vlan_tags)
                && is_from_pod(context, packet) =>
        {
            Next::End(Outcome::PodVlan)
        }
        Ok(()) => match packet.headers.kind {
            Kind::Ipv4 | Kind::Ipv6 => {
                if is_to_overlay(context, packet) {
                    return step_tunnel(context, packet, None);
                }
                session::prefetch_bucket(context, packet);
                packet.note(None);
                Next::Node(Node::AntiSpoofing)
            }
            Kind::Arp | Kind::NeighbourDiscovery => Next::Node(Node::Neighbour),
        },
    }
}

fn is_from_pod(context: &Context<'_>, packet: &Packet) -> bool {
    context.snapshot.line(packet.in_port).is_some_and(|port| port.kind == PortKind::Pod)
}

/// Whether a packet may be a tunnel packet, by its port.
#[inline(always)]
fn is_to_overlay(context: &Context<'_>, packet: &Packet) -> bool {
    u32::from(packet.headers.flow.destination_port.to_be()) == context.tunnel_port
}

/// The same for those packets: of a tunnel packet, the session of the packet inside is looked for.
#[inline(never)]
fn step_tunnel(context: &mut Context<'_>, packet: &mut Packet, plain: Option<Plain>) -> Next {
    if anti_spoofing::is_tunnel(context, packet) {
        return Next::Node(Node::Decapsulate);
    }
    session::prefetch_bucket(context, packet);
    packet.note(plain);
    Next::Node(Node::AntiSpoofing)
}
