//! TCP (RFC 9293), UDP (RFC 768), SCTP (RFC 9260): as much as forwarding needs.

use super::tcp_flags::{ACK, FIN, RST, SYN};
use super::{Headers, Role, be16};
use crate::Outcome;

const TCP_HEADER: usize = 20;
const UDP_HEADER: usize = 8;
const SCTP_HEADER: usize = 12;
const SCTP_INIT: u8 = 1;

#[inline]
pub(super) fn tcp(segment: &[u8], headers: &mut Headers) -> Result<(), Outcome> {
    let (role, flags) = tcp_role(segment).ok_or(Outcome::MalformedTransport)?;
    (headers.role, headers.tcp_flags) = (role, flags);
    ports(segment, headers)
}

/// Role of a TCP segment in its connection, and its flags; `None` for a malformed one.
#[inline]
pub(super) fn tcp_role(segment: &[u8]) -> Option<(Role, u8)> {
    // A first fragment too small for the header hides the flags (RFC 1858).
    let header = segment.first_chunk::<TCP_HEADER>()?;
    let header_length = usize::from(header[12] >> 4) * 4;
    let flags = header[13];
    let contradicts = flags & SYN != 0 && flags & (FIN | RST) != 0;
    let says_nothing = flags & (SYN | ACK | RST) == 0;
    let is_sound = header_length >= TCP_HEADER
        && header_length <= segment.len()
        && !contradicts
        && !says_nothing;
    let role = if flags & (SYN | ACK) == SYN { Role::Opens } else { Role::Follows };
    is_sound.then_some((role, flags))
}

#[inline]
pub(super) fn udp(segment: &[u8], whole: bool, headers: &mut Headers) -> Result<(), Outcome> {
    let Some(length) = be16(segment, 4).map(usize::from) else {
        return Err(Outcome::MalformedTransport);
    };
    let there = headers.payload();
    // A datagram in fragments is longer than any of them.
    let fits = if whole { udp_fits(length, there) } else { length > there.max(UDP_HEADER - 1) };
    if segment.len() < UDP_HEADER || !fits {
        return Err(Outcome::MalformedTransport);
    }
    ports(segment, headers)
}

/// Whether the length that a UDP header states can be true of so many bytes.
#[inline]
pub(super) fn udp_fits(length: usize, there: usize) -> bool {
    (UDP_HEADER..=there).contains(&length)
}

#[inline]
pub(super) fn sctp(segment: &[u8], headers: &mut Headers) -> Result<(), Outcome> {
    if segment.len() < SCTP_HEADER + 4 {
        return Err(Outcome::MalformedTransport);
    }
    ports(segment, headers)?;
    let opens = segment[SCTP_HEADER] == SCTP_INIT;
    headers.role = if opens { Role::Opens } else { Role::Follows };
    Ok(())
}

#[inline]
fn ports(segment: &[u8], headers: &mut Headers) -> Result<(), Outcome> {
    let (Some(source), Some(destination)) = (be16(segment, 0), be16(segment, 2)) else {
        return Err(Outcome::MalformedTransport);
    };
    headers.flow.source_port = source;
    headers.flow.destination_port = destination;
    Ok(())
}
