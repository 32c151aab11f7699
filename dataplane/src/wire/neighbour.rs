//! ARP (RFC 826) and IPv6 neighbour discovery (RFC 4861).

use acl::Address;

use super::{ETHERNET, Headers, Kind, Mac, be16, checksum, v4_at, v6_at};
use crate::Outcome;

const ARP: usize = 28;
const ARP_REQUEST: u16 = 1;
const ARP_REPLY: u16 = 2;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
const ND_TARGET: usize = 8;
const ND_LENGTH: usize = 24;

/// ARP for IPv4 over Ethernet, or refused.
pub(super) fn check_arp(frame: &[u8], headers: &mut Headers) -> Result<(), Outcome> {
    let l3 = usize::from(headers.l3);
    let Some(arp) = frame.get(l3..l3 + ARP) else { return Err(Outcome::Truncated) };
    if arp[..6] != [0, 1, 8, 0, 6, 4] || !matches!(arp[7], 1 | 2) || arp[6] != 0 {
        return Err(Outcome::MalformedIp);
    }
    headers.kind = Kind::Arp;
    headers.flow.source = v4_at(arp, 14);
    headers.flow.destination = v4_at(arp, 24);
    Ok(())
}

/// Neighbour discovery is only valid with hop limit 255 (checked by [`message`]).
pub(super) fn check_nd(message: &[u8], headers: &mut Headers) -> Result<(), Outcome> {
    if matches!(message[0], SOLICITATION | ADVERTISEMENT) && message.len() < ND_LENGTH {
        return Err(Outcome::MalformedTransport);
    }
    headers.kind = Kind::NeighbourDiscovery;
    Ok(())
}

/// Content of a neighbour packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// A request for the MAC address of `target`. The sender is unspecified in a probe (RFC 5227,
    /// RFC 4862).
    Request {
        /// The sender's address; unspecified for a probe.
        sender: Address,
        /// The requested address.
        target: Address,
    },
    /// An announcement of `sender`'s address.
    Announcement {
        /// The address it claims.
        sender: Address,
    },
    /// Any other message.
    Other,
}

/// Reads a packet that [`super::parse`] found to be ARP or neighbour discovery.
pub fn message(frame: &[u8], headers: &Headers) -> Message {
    match headers.kind {
        Kind::Arp => {
            let l3 = usize::from(headers.l3);
            match be16(frame, l3 + 6) {
                Some(ARP_REQUEST) => Message::Request {
                    sender: headers.flow.source,
                    target: headers.flow.destination,
                },
                Some(ARP_REPLY) => Message::Announcement { sender: headers.flow.source },
                _ => Message::Other,
            }
        }
        _ => {
            let l3 = usize::from(headers.l3);
            let message = headers.segment(frame);
            let from_this_link = frame[l3 + 7] == 255;
            match message[0] {
                SOLICITATION if from_this_link => Message::Request {
                    sender: headers.flow.source,
                    target: v6_at(message, ND_TARGET),
                },
                ADVERTISEMENT if from_this_link => {
                    Message::Announcement { sender: v6_at(message, ND_TARGET) }
                }
                _ => Message::Other,
            }
        }
    }
}

/// The sender's MAC address in an ARP packet.
pub fn arp_sender(frame: &[u8], headers: &Headers) -> Mac {
    let at = usize::from(headers.l3) + 8;
    frame[at..at + 6].try_into().expect("checked by parse")
}

/// Length of the reply to a neighbour solicitation.
pub const ND_REPLY_LENGTH: usize = ETHERNET + 40 + 32;
/// Length of an ARP reply.
pub const ARP_REPLY_LENGTH: usize = ETHERNET + ARP;

/// Writes "`mac` has `target`" over `frame`, which holds the question and is at least
/// [`ARP_REPLY_LENGTH`] bytes long.
pub fn write_arp_reply(frame: &mut [u8], headers: &Headers, mac: Mac) {
    let l3 = usize::from(headers.l3);
    let mut arp = [0_u8; ARP];
    arp.copy_from_slice(&frame[l3..l3 + ARP]);
    let (asker_mac, asker, target) = (&arp[8..14], &arp[14..18], &arp[24..28]);
    frame.copy_within(6..12, 0);
    frame[6..12].copy_from_slice(&mac);
    frame[12..14].copy_from_slice(&[0x08, 0x06]);
    let reply = &mut frame[ETHERNET..ARP_REPLY_LENGTH];
    reply[..8].copy_from_slice(&[0, 1, 8, 0, 6, 4, 0, 2]);
    reply[8..14].copy_from_slice(&mac);
    reply[14..18].copy_from_slice(target);
    reply[18..24].copy_from_slice(asker_mac);
    reply[24..28].copy_from_slice(asker);
}

/// Writes the neighbour advertisement "`mac` has `target`" for `asker` into `frame`, which is
/// [`ND_REPLY_LENGTH`] bytes long and starts with the question's Ethernet header.
pub fn write_nd_reply(frame: &mut [u8], asker: Address, target: Address, mac: Mac) {
    const ROUTER_SOLICITED_OVERRIDE: u8 = 0xe0;
    frame.copy_within(6..12, 0);
    frame[6..12].copy_from_slice(&mac);
    frame[12..14].copy_from_slice(&[0x86, 0xdd]);
    let ip = &mut frame[ETHERNET..ND_REPLY_LENGTH];
    ip[..8].copy_from_slice(&[0x60, 0, 0, 0, 0, 32, 58, 255]);
    ip[8..24].copy_from_slice(&target.bits().to_be_bytes());
    ip[24..40].copy_from_slice(&asker.bits().to_be_bytes());
    let message = &mut ip[40..];
    message[..8].copy_from_slice(&[ADVERTISEMENT, 0, 0, 0, ROUTER_SOLICITED_OVERRIDE, 0, 0, 0]);
    message[8..24].copy_from_slice(&target.bits().to_be_bytes());
    message[24..26].copy_from_slice(&[2, 1]);
    message[26..32].copy_from_slice(&mac);
    let sum = checksum::pseudo(&ip[8..40], 58, 32) + checksum::sum(&ip[40..]);
    let value = !checksum::fold(sum);
    ip[42..44].copy_from_slice(&value.to_be_bytes());
}
