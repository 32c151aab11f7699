//! Checks the headers.

use super::{Context, Next, Node, session};
use crate::packet::Packet;
use crate::wire::{self, Headers, Kind};

#[inline]
pub(super) fn step(context: &mut Context<'_>, packet: &mut Packet) -> Next {
    let (frame, length) = (context.memory.bytes(&packet.frame), packet.frame.len());
    match wire::parse_into(frame, length, &mut packet.headers) {
        Err(outcome) => {
            // Incomplete headers must not be used.
            packet.headers = Headers::default();
            Next::End(outcome)
        }
        Ok(()) => match packet.headers.kind {
            Kind::Ipv4 | Kind::Ipv6 => {
                session::expect(context, packet);
                Next::Node(Node::AntiSpoofing)
            }
            Kind::Arp | Kind::NeighbourDiscovery => Next::Node(Node::Neighbour),
        },
    }
}
