//! ICMP (RFC 792) and ICMPv6 (RFC 4443).
//!
//! An echo request and its reply are one connection, distinguished by the identifier; an error
//! belongs to the connection whose packet it quotes. Anything else opens nothing.

use super::{Flow, Fragment, Headers, Kind, Role, be16, checksum, ip, neighbour, protocol};
use crate::Outcome;

pub(super) const HEADER: usize = 8;

const V4_ECHO_REPLY: u8 = 0;
const V4_ECHO: u8 = 8;
const V6_ECHO: u8 = 128;
const V6_ECHO_REPLY: u8 = 129;

#[inline]
pub(super) fn parse_v4(message: &[u8], headers: &mut Headers) -> Result<(), Outcome> {
    if message.len() < HEADER {
        return Err(Outcome::MalformedTransport);
    }
    headers.icmp_type = message[0];
    match message[0] {
        V4_ECHO | V4_ECHO_REPLY => echo(message, headers),
        // Destination unreachable, time exceeded, parameter problem. A redirect would change the
        // receiver's routing table and is never forwarded.
        3 | 11 | 12 => quote(message, headers),
        _ => Err(Outcome::NoSession),
    }
}

#[inline]
pub(super) fn parse_v6(message: &[u8], headers: &mut Headers) -> Result<(), Outcome> {
    if message.len() < 4 {
        return Err(Outcome::MalformedTransport);
    }
    headers.icmp_type = message[0];
    match message[0] {
        // Multicast listener discovery (RFC 2710, RFC 3810) and neighbour discovery.
        130..=137 | 143 => {
            if headers.fragment != Fragment::Whole {
                return Err(Outcome::MalformedTransport);
            }
            return neighbour::check_nd(message, headers);
        }
        _ if message.len() < HEADER => return Err(Outcome::MalformedTransport),
        _ => {}
    }
    ip::refuse_multicast(headers)?;
    match message[0] {
        V6_ECHO | V6_ECHO_REPLY => echo(message, headers),
        1..=4 => quote(message, headers),
        _ => Err(Outcome::NoSession),
    }
}

fn echo(message: &[u8], headers: &mut Headers) -> Result<(), Outcome> {
    let Some((source, destination)) = echo_ports(message) else {
        return Err(Outcome::MalformedTransport);
    };
    headers.flow.source_port = source;
    headers.flow.destination_port = destination;
    let asks = matches!(message[0], V4_ECHO | V6_ECHO);
    headers.role = if asks { Role::Opens } else { Role::Follows };
    Ok(())
}

/// The identifier is the requester's port, so that two ends that ping each other with the same
/// identifier have two connections.
fn echo_ports(message: &[u8]) -> Option<(u16, u16)> {
    let identifier = be16(message, 4)?;
    match message[0] {
        V4_ECHO | V6_ECHO => Some((identifier, 0)),
        V4_ECHO_REPLY | V6_ECHO_REPLY => Some((0, identifier)),
        _ => None,
    }
}

fn quote(message: &[u8], headers: &mut Headers) -> Result<(), Outcome> {
    headers.role = Role::Quotes;
    // Errors are short (RFC 1812, section 4.3.2.3; RFC 4443, section 2.4).
    if message.len() < headers.payload() {
        return Err(Outcome::MalformedTransport);
    }
    quoted(message, headers).map(|_| ()).ok_or(Outcome::NoSession)
}

/// Returns the quoted flow, whose source must be the error's destination.
pub(super) fn quoted(message: &[u8], headers: &Headers) -> Option<Flow> {
    let (flow, _) = parse_quote(message.get(HEADER..)?, headers.kind)?;
    (flow.source == headers.flow.destination).then_some(flow)
}

/// The inner packet of an ICMP error: addresses, protocol and ports as far as they are quoted (at
/// least eight bytes of its transport header are). Also where that header begins.
pub(super) fn parse_quote(quote: &[u8], kind: Kind) -> Option<(Flow, usize)> {
    let (mut flow, l4) = ip::parse_quote(quote, kind)?;
    let transport = quote.get(l4..)?;
    match flow.protocol {
        protocol::TCP | protocol::UDP | protocol::SCTP => {
            flow.source_port = be16(transport, 0)?;
            flow.destination_port = be16(transport, 2)?;
        }
        protocol::ICMP | protocol::ICMPV6 => {
            (flow.source_port, flow.destination_port) = echo_ports(transport)?;
        }
        _ => {}
    }
    Some((flow, l4))
}

/// Writes the checksum of the ICMP message that begins at `l4` and ends with `packet`.
pub(super) fn finish(packet: &mut [u8], l3: usize, l4: usize, kind: Kind) {
    packet[l4 + 2..l4 + 4].fill(0);
    let length = packet.len() - l4;
    let pseudo = match kind {
        Kind::Ipv4 => 0,
        // The next header of the pseudo header is ICMPv6 behind whatever extensions.
        _ => checksum::pseudo(&packet[l3 + 8..l3 + 40], protocol::ICMPV6, length),
    };
    let sum = !checksum::fold(pseudo + checksum::sum(&packet[l4..]));
    packet[l4 + 2..l4 + 4].copy_from_slice(&sum.to_be_bytes());
}
