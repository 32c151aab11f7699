//! Answers ARP requests and neighbour solicitations with the switch's MAC address, so that every
//! neighbour of a port sends its packets here.

use acl::Address;

use super::{Context, Next};
use crate::packet::Packet;
use crate::wire::neighbour::{self, Message};
use crate::wire::{Kind, Mac, SWITCH_MAC};
use crate::{Outcome, PortKind, PortState};

pub(super) fn step(context: &mut Context<'_>, packet: &mut Packet) -> Next {
    let Some(port) = context.snapshot.port(packet.in_port) else {
        return Next::End(Outcome::PortGone);
    };
    let frame = context.memory.bytes(&packet.frame);
    let source_mac: Mac = frame[6..12].try_into().expect("checked by parse");
    if port.mac.is_some_and(|mac| mac != source_mac) {
        return Next::End(Outcome::SpoofedMac);
    }
    let is_arp = packet.headers.kind == Kind::Arp;
    if is_arp && neighbour::arp_sender(frame, &packet.headers) != source_mac {
        return Next::End(Outcome::SpoofedMac);
    }
    let ignored = if is_arp { Outcome::ArpIgnored } else { Outcome::NdIgnored };
    match neighbour::message(frame, &packet.headers) {
        Message::Other => Next::End(ignored),
        Message::Announcement { sender } if is_spoofed(context, port, sender) => {
            Next::End(Outcome::SpoofedAddress)
        }
        Message::Announcement { .. } => Next::End(ignored),
        Message::Request { sender, target } => {
            if !is_unspecified(sender) && is_spoofed(context, port, sender) {
                return Next::End(Outcome::SpoofedAddress);
            }
            match is_answered(context, port, sender, target) {
                true => answer(context, packet, sender, target),
                false => Next::End(ignored),
            }
        }
    }
}

fn is_unspecified(address: Address) -> bool {
    address.bits() == 0 || address == Address::from_v4_bits(0)
}

fn is_link_local(address: Address) -> bool {
    address.bits() >> 118 == 0xfe80 >> 6
}

/// A pod may claim its own addresses and link-local ones, which never leave the link; no other port
/// may claim a pod's.
fn is_spoofed(context: &Context<'_>, port: &PortState, sender: Address) -> bool {
    match port.kind {
        PortKind::Pod => !port.addresses.contains(&sender) && !is_link_local(sender),
        _ => context.snapshot.pod_of(sender).is_some(),
    }
}

/// Pods and the host reach every address but their own through the switch; the uplink reaches this
/// node's pods through it.
fn is_answered(context: &Context<'_>, port: &PortState, sender: Address, target: Address) -> bool {
    // A reply to an address probe would make every address a duplicate.
    if is_unspecified(sender) || is_unspecified(target) || sender == target {
        return false;
    }
    match port.kind {
        PortKind::Pod => !port.addresses.contains(&target),
        PortKind::Host => !context.snapshot.is_own_node(target),
        PortKind::Uplink => context.snapshot.pod_of(target).is_some(),
    }
}

fn answer(context: &Context<'_>, packet: &mut Packet, sender: Address, target: Address) -> Next {
    let memory = context.memory;
    let headers = packet.headers;
    let outcome = if headers.kind == Kind::Arp {
        neighbour::write_arp_reply(memory.bytes_mut(&mut packet.frame), &headers, SWITCH_MAC);
        memory.set_length(&mut packet.frame, neighbour::ARP_REPLY_LENGTH);
        Outcome::ArpReply
    } else {
        if !memory.set_length(&mut packet.frame, neighbour::ND_REPLY_LENGTH) {
            return Next::End(Outcome::NdIgnored);
        }
        let frame = memory.bytes_mut(&mut packet.frame);
        neighbour::write_nd_reply(frame, sender, target, SWITCH_MAC);
        Outcome::NdReply
    };
    packet.out_port = packet.in_port;
    Next::End(outcome)
}
