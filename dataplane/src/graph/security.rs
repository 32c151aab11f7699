//! Port security: who may send with which addresses where, and how much further.

use super::{Context, Next, Node};
use crate::packet::Packet;
use crate::wire::Fragment;
use crate::{Outcome, PortKind};

#[inline]
pub(super) fn step(context: &Context<'_>, packet: &mut Packet) -> Next {
    let snapshot = context.snapshot;
    let Some(port) = snapshot.port(packet.in_port) else {
        return Next::End(Outcome::PortGone);
    };
    let source = packet.headers.flow.source;
    match port.kind {
        PortKind::Pod => {
            let frame = context.memory.bytes(&packet.frame);
            if port.mac.is_some_and(|mac| frame[6..12] != mac) {
                return Next::End(Outcome::SpoofedMac);
            }
            if !port.addresses.contains(&source) {
                return Next::End(Outcome::SpoofedAddress);
            }
        }
        // The kernel speaks for the cluster node and whatever is routed through it, but not
        // for pods, whose packets only come out of their own ports.
        PortKind::Host if snapshot.pod_of(source).is_some() => {
            return Next::End(Outcome::SpoofedAddress);
        }
        PortKind::Uplink if snapshot.owner(source).is_some() => {
            return Next::End(Outcome::SpoofedAddress);
        }
        _ => {}
    }
    // The switch is a router; a packet that ends here makes no session.
    if packet.headers.ttl <= 1 {
        return Next::End(Outcome::TtlExpired);
    }
    match packet.headers.fragment {
        Fragment::Later(_) => Next::Node(Node::Fragment),
        _ => Next::Node(Node::Session),
    }
}
