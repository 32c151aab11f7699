//! Prepares a packet that leaves: tags off, time to live, checksums, addresses of the link.

use super::{Context, Next, SWITCH_MAC};
use crate::Outcome;
use crate::packet::Packet;
use crate::wire::{Mac, checksum};

/// Where frames go whose receiver's MAC address is unknown (only captures have such ports).
const UNKNOWN_MAC: Mac = [0x02, 0, 0, 0, 0, 0];

#[inline]
pub(super) fn step(context: &Context<'_>, packet: &mut Packet) -> Next {
    let Some(port) = context.snapshot.port(packet.out_port) else {
        return Next::End(Outcome::PortGone);
    };
    if packet.headers.vlan_tags > 0 {
        remove_tags(context, packet);
    }
    let headers = packet.headers;
    let frame = context.memory.bytes_mut(&mut packet.frame);
    checksum::decrement_ttl(frame, &headers);
    checksum::complete(frame, &headers);
    frame[..6].copy_from_slice(&port.mac.unwrap_or(UNKNOWN_MAC));
    frame[6..12].copy_from_slice(&SWITCH_MAC);
    Next::End(packet.outcome.expect("decided by the node before"))
}

fn remove_tags(context: &Context<'_>, packet: &mut Packet) {
    let tags = u16::from(packet.headers.vlan_tags) * 4;
    context.memory.remove(&mut packet.frame, 12, usize::from(tags));
    packet.headers.vlan_tags = 0;
    packet.headers.l3 -= tags;
    packet.headers.l4 -= tags;
    packet.headers.end -= tags;
}
