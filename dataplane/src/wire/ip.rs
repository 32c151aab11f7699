//! IPv4 (RFC 791) and IPv6 (RFC 8200).

use acl::Address;

use super::{
    Flow, Fragment, Headers, Kind, MacWord, Plain, be16, checksum, transport, v4_at, v6_at,
};
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
    fragment_is_sound(offset, total - header_length, headers)?;
    transport::parse(frame, headers)
}

/// Fewest bytes behind the IP header on the fast paths.
const LEAST_SEGMENT: usize = 8;

/// The fast path of the parser: untagged IPv4 without options or fragments, and TCP or UDP, with
/// nothing wrong. `None` leaves it to the general parser, which names the fault (a test compares
/// the two).
#[inline(always)]
pub(crate) fn parse_plain_v4(frame: &[u8], length: usize, headers: &mut Headers) -> Option<Plain> {
    const L3: usize = super::ETHERNET;
    const L4: usize = L3 + V4_HEADER;
    let start = frame.first_chunk::<{ L4 + LEAST_SEGMENT }>()?;
    let short = |at: usize| u16::from_be_bytes([start[at], start[at + 1]]);
    if short(12) != super::ETHERTYPE_IPV4 {
        return None;
    }
    let source_mac = MacWord::source_of(start.first_chunk().expect("longer"));
    let word =
        |at: usize| u32::from_be_bytes([start[at], start[at + 1], start[at + 2], start[at + 3]]);
    let total = usize::from(short(L3 + 2));
    let (source, destination) = (word(L3 + 12), word(L3 + 16));
    let is_one_host = |at: usize| IS_ONE_HOST[usize::from(start[at])];
    // Evaluated without branches: nearly all packets pass.
    let is_plain = !source_mac.is_multicast()
        & (start[L3] == 0x45)
        & !is_fragment(&start[L3..L4])
        & (total >= V4_HEADER + LEAST_SEGMENT)
        & (L3 + total <= length)
        & (length <= usize::from(u16::MAX))
        & is_one_host(L3 + 12)
        & is_one_host(L3 + 16)
        & (source != destination)
        & header_sums_up(&start[L3..L4]);
    if !is_plain {
        return None;
    }
    let (protocol, end) = (start[L3 + 9], L3 + total);
    let (role, tcp_flags, sum) = plain_transport(frame, protocol, L4, end)?;
    let payload = total - V4_HEADER;
    let pseudo = u64::from(source) + u64::from(destination) + u64::from(protocol) + payload as u64;
    *headers = Headers {
        kind: Kind::Ipv4,
        role,
        tcp_flags,
        vlan_tags: 0,
        ttl: start[L3 + 8],
        l3: L3 as u16,
        l4: L4 as u16,
        end: end as u16,
        fragment: Fragment::Whole,
        source_mac,
        flow: Flow {
            source: Address::from_v4_bits(source),
            destination: Address::from_v4_bits(destination),
            source_port: short(L4),
            destination_port: short(L4 + 2),
            protocol,
        },
    };
    Some(Plain { may_be_partial: checksum::may_equal(pseudo, sum) })
}

/// The same for IPv6 without extension headers.
#[inline]
pub(crate) fn parse_plain_v6(frame: &[u8], length: usize, headers: &mut Headers) -> Option<Plain> {
    const L3: usize = super::ETHERNET;
    const L4: usize = L3 + V6_HEADER;
    let start = frame.first_chunk::<{ L4 + LEAST_SEGMENT }>()?;
    let short = |at: usize| u16::from_be_bytes([start[at], start[at + 1]]);
    let end = L4 + usize::from(short(L3 + 4));
    let (source, destination) = (v6_at(start, L3 + 8), v6_at(start, L3 + 24));
    // Neither multicast nor of 0000::/8, where the unspecified address, the loopback address and
    // IPv4-mapped ones are.
    let is_one_host = |at: usize| start[at].wrapping_sub(1) < 0xfe;
    let source_mac = MacWord::source_of(start.first_chunk().expect("longer"));
    let is_plain = !source_mac.is_multicast()
        & (short(12) == super::ETHERTYPE_IPV6)
        & (start[L3] >> 4 == 6)
        & (end >= L4 + LEAST_SEGMENT)
        & (end <= length)
        & (length <= usize::from(u16::MAX))
        & is_one_host(L3 + 8)
        & is_one_host(L3 + 24)
        & (source != destination);
    if !is_plain {
        return None;
    }
    let protocol = start[L3 + 6];
    let (role, tcp_flags, sum) = plain_transport(frame, protocol, L4, end)?;
    let pseudo = checksum::sum_of(source.bits())
        + checksum::sum_of(destination.bits())
        + u64::from(protocol)
        + (end - L4) as u64;
    *headers = Headers {
        kind: Kind::Ipv6,
        role,
        tcp_flags,
        vlan_tags: 0,
        ttl: start[L3 + 7],
        l3: L3 as u16,
        l4: L4 as u16,
        end: end as u16,
        fragment: Fragment::Whole,
        source_mac,
        flow: Flow {
            source,
            destination,
            source_port: short(L4),
            destination_port: short(L4 + 2),
            protocol,
        },
    };
    Some(Plain { may_be_partial: checksum::may_equal(pseudo, sum) })
}

/// What a TCP or UDP header with nothing wrong may do to connections, its TCP flags and its
/// checksum; there are [`LEAST_SEGMENT`] bytes of it.
// The checksum is as wide as a register: as a part of one it would be packed and unpacked.
#[inline(always)]
fn plain_transport(
    frame: &[u8],
    protocol: u8,
    l4: usize,
    end: usize,
) -> Option<(super::Role, u8, u64)> {
    let short = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    match protocol {
        super::protocol::UDP => {
            let fits = transport::udp_fits(short(l4 + 4).into(), end - l4);
            fits.then(|| (super::Role::Opens, 0, short(l4 + checksum::UDP_FIELD).into()))
        }
        super::protocol::TCP => {
            let (role, flags) = transport::tcp_role(&frame[l4..end.min(frame.len())])?;
            Some((role, flags, short(l4 + checksum::TCP_FIELD).into()))
        }
        _ => None,
    }
}

/// Whether an address with this first byte is of class A, B or C, and neither this host nor this
/// network: most are.
static IS_ONE_HOST: [bool; 256] = {
    let mut table = [false; 256];
    let mut network = 1;
    while network < 0xe0 {
        table[network] = network != 127;
        network += 1;
    }
    table
};

/// Whether an IPv4 header is of a fragment.
#[inline(always)]
fn is_fragment(header: &[u8]) -> bool {
    const BITS: u16 = (MORE_FRAGMENTS | FRAGMENT_OFFSET).to_be();
    let word: [u8; 2] = header[6..8].try_into().expect("two bytes");
    u16::from_ne_bytes(word) & BITS != 0
}

/// Whether the checksum of an IPv4 header without options is right.
#[inline]
fn header_sums_up(header: &[u8]) -> bool {
    let word = |at: usize| {
        let word: [u8; 4] = header[at..at + 4].try_into().expect("four bytes");
        u64::from(u32::from_ne_bytes(word))
    };
    let sum = word(0) + word(4) + word(8) + word(12) + word(16);
    // Folded it would be 0xffff, in either order of bytes. (It is not 0: the version is in it.)
    checksum::is_zero(sum)
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
    fragment_is_sound(extensions.fragment_offset, end - extensions.l4, headers)?;
    transport::parse(frame, headers)
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

/// The inner packet of an ICMP error: addresses, protocol and ports as far as they are quoted.
/// Also where its transport header begins.
pub(super) fn parse_quote(quote: &[u8], kind: Kind) -> Option<(Flow, usize)> {
    let (flow, l4) = match kind {
        Kind::Ipv4 => {
            let header_length = usize::from(quote.first()? & 0x0f) * 4;
            let header = quote.get(..header_length.max(V4_HEADER))?;
            let sound = header[0] >> 4 == 4 && header_length >= V4_HEADER;
            let first = be16(header, 6)? & FRAGMENT_OFFSET == 0;
            (sound && first).then_some(())?;
            let ends = (v4_at(header, 12), v4_at(header, 16));
            (
                Flow {
                    source: ends.0,
                    destination: ends.1,
                    protocol: header[9],
                    ..Flow::default()
                },
                header_length,
            )
        }
        _ => {
            let header = quote.get(..V6_HEADER)?;
            let ends = (v6_at(header, 8), v6_at(header, 24));
            let extensions = walk_extensions(quote, V6_HEADER, header[6]).ok()?;
            (extensions.fragment_offset == 0 && header[0] >> 4 == 6).then_some(())?;
            let protocol = extensions.protocol;
            (
                Flow { source: ends.0, destination: ends.1, protocol, ..Flow::default() },
                extensions.l4,
            )
        }
    };
    Some((transport::quoted_ports(quote.get(l4..)?, flow)?, l4))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{parse_any, partial_checksum};
    use proptest::prelude::*;
    use testkit::packet::{tcp, udp};

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]

        /// Whatever the quick way takes, the general way takes for the same; whatever is plain,
        /// the quick way takes.
        #[test]
        fn the_quick_way_is_the_general_way(
            is_tcp: bool,
            is_v4: bool,
            flags in any::<u8>(),
            payload in 0..40_usize,
            padding in 0..8_usize,
            changes in prop::collection::vec((0..90_usize, any::<u8>()), 0..3),
            mends_sum: bool,
            cut in prop::option::of(0..100_usize),
        ) {
            let (from, to) = match is_v4 {
                true => ("10.1.0.2:5", "10.1.0.3:80"),
                false => ("[fd00::2]:5", "[fd00::3]:80"),
            };
            let mut frame = match is_tcp {
                true => tcp(from, to)
                    .tcp_header(|header| {
                        header.syn = flags & 1 != 0;
                        header.ack = flags & 2 != 0;
                        header.rst = flags & 4 != 0;
                        header.fin = flags & 8 != 0;
                    })
                    .payload(&vec![7; payload])
                    .build(),
                false => udp(from, to).payload(&vec![7; payload]).build(),
            };
            frame.resize(frame.len() + padding, 0);
            let length = frame.len();
            for (at, value) in &changes {
                frame[at % length] = *value;
            }
            if mends_sum && frame[14] == 0x45 {
                frame[24..26].fill(0);
                let sum = !checksum::fold(checksum::sum(&frame[14..34]));
                frame[24..26].copy_from_slice(&sum.to_be_bytes());
            }
            frame.truncate(cut.unwrap_or(length));
            let (mut quick, mut general) = (Headers::default(), Headers::default());
            let taken = match is_v4 {
                true => parse_plain_v4(&frame, frame.len(), &mut quick),
                false => parse_plain_v6(&frame, frame.len(), &mut quick),
            };
            let result = parse_any(&frame, frame.len(), &mut general);
            if let Some(plain) = taken {
                prop_assert_eq!(result, Ok(()));
                prop_assert_eq!(quick, general);
                let is_partial = partial_checksum::find(&frame, &quick).is_some();
                prop_assert!(plain.may_be_partial || !is_partial);
                partial_checksum::renew_pseudo(&mut frame, &quick);
                let renewed = match is_v4 {
                    true => parse_plain_v4(&frame, frame.len(), &mut quick),
                    false => parse_plain_v6(&frame, frame.len(), &mut quick),
                };
                prop_assert!(renewed.is_some_and(|plain| plain.may_be_partial));
            } else if changes.is_empty() {
                prop_assert!(result.is_err());
            }
        }
    }
}
