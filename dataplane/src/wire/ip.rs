//! IPv4 (RFC 791) and IPv6 (RFC 8200).

use acl::Address;

use super::{Flow, Fragment, Headers, Kind, be16, checksum, v4_at, v6_at};
use crate::Outcome;

/// Length of an IPv4 header without options.
pub(super) const V4_HEADER: usize = 20;
/// Length of the IPv6 header.
pub(super) const V6_HEADER: usize = 40;
/// Extension headers looked into before a packet is refused.
const MOST_EXTENSIONS: usize = 8;

const MORE_FRAGMENTS: u16 = 0x2000;
const FRAGMENT_OFFSET: u16 = 0x1fff;

#[inline]
pub(super) fn parse_v4(frame: &[u8], headers: &mut Headers) -> Result<(), Outcome> {
    let l3 = usize::from(headers.l3);
    let Some(header) = frame.get(l3..l3 + V4_HEADER) else { return Err(Outcome::Truncated) };
    let header_length = usize::from(header[0] & 0x0f) * 4;
    if header[0] >> 4 != 4 || header_length < V4_HEADER {
        return Err(Outcome::MalformedIp);
    }
    let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
    if total < header_length {
        return Err(Outcome::MalformedIp);
    }
    let Some(options) = frame.get(l3 + V4_HEADER..l3 + header_length) else {
        return Err(Outcome::Truncated);
    };
    if l3 + total > usize::from(headers.end) {
        return Err(Outcome::Truncated);
    }
    let sums_up = match options {
        [] => header_sums_up(header),
        _ => checksum::fold(checksum::sum(header) + checksum::sum(options)) == 0xffff,
    };
    if !sums_up {
        return Err(Outcome::BadChecksum);
    }
    if has_source_route(options) {
        return Err(Outcome::SourceRoute);
    }
    headers.kind = Kind::Ipv4;
    headers.ttl = header[8];
    headers.l4 = (l3 + header_length) as u16;
    headers.end = (l3 + total) as u16;
    let word = u16::from_be_bytes([header[6], header[7]]);
    let identification = u32::from(u16::from_be_bytes([header[4], header[5]]));
    let protocol = header[9];
    set_ends(headers, v4_at(header, 12), v4_at(header, 16), protocol)?;
    let offset = word & FRAGMENT_OFFSET;
    headers.fragment = place(offset, word & MORE_FRAGMENTS != 0, identification);
    fragment_is_sound(offset, total - header_length, headers)
}

/// Whether the checksum of an IPv4 header without options is right.
#[inline]
pub(super) fn header_sums_up(header: &[u8]) -> bool {
    let word = |at: usize| {
        let word: [u8; 4] = header[at..at + 4].try_into().expect("four bytes");
        u64::from(u32::from_ne_bytes(word))
    };
    let sum = word(0) + word(4) + word(8) + word(12) + word(16);
    // Folded it would be 0xffff, in either order of bytes. (It is not 0: the version is in it.)
    checksum::is_zero(sum)
}

/// Whether an IPv4 header is of a fragment.
#[inline(always)]
pub(super) fn is_fragment(header: &[u8]) -> bool {
    const BITS: u16 = (MORE_FRAGMENTS | FRAGMENT_OFFSET).to_be();
    let word: [u8; 2] = header[6..8].try_into().expect("two bytes");
    u16::from_ne_bytes(word) & BITS != 0
}

#[inline]
pub(super) fn parse_v6(frame: &[u8], headers: &mut Headers) -> Result<(), Outcome> {
    let l3 = usize::from(headers.l3);
    let Some(header) = frame.get(l3..l3 + V6_HEADER) else { return Err(Outcome::Truncated) };
    if header[0] >> 4 != 6 {
        return Err(Outcome::MalformedIp);
    }
    let payload = usize::from(u16::from_be_bytes([header[4], header[5]]));
    let end = l3 + V6_HEADER + payload;
    if end > usize::from(headers.end) {
        return Err(Outcome::Truncated);
    }
    let (source, destination) = (v6_at(header, 8), v6_at(header, 24));
    // An IPv4-mapped address is invalid on the wire (RFC 4942, section 2.2).
    if source.is_v4() || destination.is_v4() {
        return Err(Outcome::Martian);
    }
    headers.kind = Kind::Ipv6;
    headers.ttl = header[7];
    headers.end = end as u16;
    let extensions = walk_extensions(&frame[..headers.end_in(frame)], l3 + V6_HEADER, header[6])?;
    headers.l4 = extensions.l4 as u16;
    headers.fragment = extensions.fragment;
    set_ends(headers, source, destination, extensions.protocol)?;
    fragment_is_sound(extensions.fragment_offset, end - extensions.l4, headers)
}

struct Extensions {
    protocol: u8,
    l4: usize,
    fragment: Fragment,
    fragment_offset: u16,
}

#[inline]
fn walk_extensions(packet: &[u8], start: usize, first: u8) -> Result<Extensions, Outcome> {
    const HOP_BY_HOP: u8 = 0;
    const ROUTING: u8 = 43;
    const FRAGMENT: u8 = 44;
    const AUTHENTICATION: u8 = 51;
    const DESTINATION: u8 = 60;
    let mut found =
        Extensions { protocol: first, l4: start, fragment: Fragment::Whole, fragment_offset: 0 };
    for n in 0..=MOST_EXTENSIONS {
        let at = found.l4;
        let length = match found.protocol {
            HOP_BY_HOP if n > 0 => return Err(Outcome::MalformedIp),
            HOP_BY_HOP | ROUTING | DESTINATION => 8 + 8 * extension_length(packet, at)?,
            FRAGMENT => 8,
            AUTHENTICATION => 8 + 4 * extension_length(packet, at)?,
            _ => return Ok(found),
        };
        let Some(header) = packet.get(at..at + length) else { return Err(Outcome::MalformedIp) };
        match found.protocol {
            ROUTING if leads_elsewhere(header[2], header[3]) => return Err(Outcome::SourceRoute),
            FRAGMENT => {
                if found.fragment != Fragment::Whole {
                    return Err(Outcome::MalformedIp);
                }
                let word = u16::from_be_bytes([header[2], header[3]]);
                let identification =
                    u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
                found.fragment_offset = word >> 3;
                found.fragment = place(found.fragment_offset, word & 1 != 0, identification);
            }
            _ => {}
        }
        found.protocol = header[0];
        found.l4 += length;
        if found.fragment_offset > 0 {
            return Ok(found);
        }
    }
    Err(Outcome::MalformedIp)
}

/// Whether an IPv6 routing header is of a type that a network's edge refuses (RFC 9288, section
/// 3.4.4), or has segments left.
fn leads_elsewhere(kind: u8, segments_left: u8) -> bool {
    matches!(kind, 0 | 2 | 3 | 253 | 254) || segments_left > 0
}

/// Whether IPv4 options have a loose or strict source route (RFC 791; RFC 7126, section 4.3), as
/// far as they can be read.
fn has_source_route(mut options: &[u8]) -> bool {
    const END: u8 = 0;
    const NO_OPERATION: u8 = 1;
    const LOOSE: u8 = 131;
    const STRICT: u8 = 137;
    while let [kind, rest @ ..] = options {
        let length = match *kind {
            END => return false,
            LOOSE | STRICT => return true,
            NO_OPERATION => 1,
            _ => rest.first().map_or(0, |length| usize::from(*length)),
        };
        // A length that is none leaves nothing to be read behind it.
        let Some(next) = options.get(length..).filter(|_| length > 0) else { return false };
        options = next;
    }
    false
}

#[inline]
fn extension_length(packet: &[u8], at: usize) -> Result<usize, Outcome> {
    packet.get(at + 1).map(|length| usize::from(*length)).ok_or(Outcome::MalformedIp)
}

/// A datagram whose only fragment is the first is whole (RFC 6946).
#[inline]
fn place(offset: u16, more: bool, identification: u32) -> Fragment {
    match (offset, more) {
        (0, false) => Fragment::Whole,
        (0, true) => Fragment::First(identification),
        _ => Fragment::Later(identification),
    }
}

/// Fragments may not reach beyond the largest datagram, nor overwrite the transport header of
/// the first fragment (RFC 1858, RFC 3128).
#[inline]
fn fragment_is_sound(offset: u16, length: usize, headers: &Headers) -> Result<(), Outcome> {
    let start = usize::from(offset) * 8;
    let reaches_too_far = start + length > usize::from(u16::MAX);
    let overwrites_ports = offset == 1 && headers.flow.protocol == super::protocol::TCP;
    if reaches_too_far || overwrites_ports { Err(Outcome::MalformedIp) } else { Ok(()) }
}

#[inline]
fn set_ends(
    headers: &mut Headers,
    source: Address,
    destination: Address,
    protocol: u8,
) -> Result<(), Outcome> {
    headers.flow = Flow { source, destination, protocol, ..Flow::default() };
    match source.is_v4() {
        true => check_v4(source.bits() as u32, destination.bits() as u32),
        false => check_v6(source.bits(), destination.bits()),
    }
}

#[inline]
fn check_v4(source: u32, destination: u32) -> Result<(), Outcome> {
    let network = |address: u32| address >> 24;
    let is_multicast = |address: u32| address >> 28 == 0xe;
    let unusable = |address: u32| matches!(network(address), 0 | 127);
    // 0.0.0.0 is the source of DHCP requests, which the switch does not serve.
    let bad_source = unusable(source) || is_multicast(source) || source == u32::MAX;
    if is_multicast(destination) || destination == u32::MAX {
        return Err(Outcome::Multicast);
    }
    if bad_source || unusable(destination) || source == destination {
        return Err(Outcome::Martian);
    }
    // RFC 1112, section 4.
    if source >> 28 == 0xf || destination >> 28 == 0xf {
        return Err(Outcome::ReservedAddress);
    }
    Ok(())
}

#[inline]
fn check_v6(source: u128, destination: u128) -> Result<(), Outcome> {
    let is_multicast = |address: u128| address >> 120 == 0xff;
    // Unspecified sources and multicast destinations belong to neighbour discovery, which is
    // recognized later; see `icmp`.
    if is_multicast(source) || source == 1 || destination <= 1 || source == destination {
        return Err(Outcome::Martian);
    }
    Ok(())
}

/// IPv6 multicast and unspecified sources are for neighbour discovery only.
#[inline]
pub(super) fn refuse_multicast(headers: &Headers) -> Result<(), Outcome> {
    let v6 = !headers.flow.source.is_v4();
    if v6 && headers.flow.destination.bits() >> 120 == 0xff {
        return Err(Outcome::Multicast);
    }
    if v6 && headers.flow.source.bits() == 0 {
        return Err(Outcome::Martian);
    }
    Ok(())
}

/// The inner packet of an ICMP error: addresses and protocol, and where its transport header begins.
pub(super) fn parse_quote(quote: &[u8], kind: Kind) -> Option<(Flow, usize)> {
    match kind {
        Kind::Ipv4 => {
            let header_length = usize::from(quote.first()? & 0x0f) * 4;
            let header = quote.get(..header_length.max(V4_HEADER))?;
            let sound = header[0] >> 4 == 4 && header_length >= V4_HEADER;
            let first = be16(header, 6)? & FRAGMENT_OFFSET == 0;
            (sound && first).then_some(())?;
            let (source, destination) = (v4_at(header, 12), v4_at(header, 16));
            let flow = Flow { source, destination, protocol: header[9], ..Flow::default() };
            Some((flow, header_length))
        }
        _ => {
            let header = quote.get(..V6_HEADER)?;
            let (source, destination) = (v6_at(header, 8), v6_at(header, 24));
            let extensions = walk_extensions(quote, V6_HEADER, header[6]).ok()?;
            (extensions.fragment_offset == 0 && header[0] >> 4 == 6).then_some(())?;
            let protocol = extensions.protocol;
            let flow = Flow { source, destination, protocol, ..Flow::default() };
            Some((flow, extensions.l4))
        }
    }
}
