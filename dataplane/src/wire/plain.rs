//! Fast paths of the parser: untagged IPv4 and IPv6 without options, extension headers or fragments,
//! and TCP or UDP, with nothing wrong.

use acl::Address;

use super::ip::{V4_HEADER, V6_HEADER, header_sums_up, is_fragment};
use super::{
    ETHERNET, ETHERTYPE_IPV4, ETHERTYPE_IPV6, Flow, Fragment, Headers, Kind, MacWord, Plain, Role,
    checksum, protocol, transport, v6_at,
};

/// Fewest bytes behind the IP header on the fast paths.
const LEAST_SEGMENT: usize = 8;

/// The fast path of the parser: untagged IPv4 without options or fragments, and TCP or UDP, with
/// nothing wrong. `None` leaves it to the general parser, which names the fault (a test compares
/// the two).
#[inline(always)]
pub(crate) fn parse_plain_v4(frame: &[u8], length: usize, headers: &mut Headers) -> Option<Plain> {
    const L3: usize = ETHERNET;
    const L4: usize = L3 + V4_HEADER;
    let start = frame.first_chunk::<{ L4 + LEAST_SEGMENT }>()?;
    let short = |at: usize| u16::from_be_bytes([start[at], start[at + 1]]);
    if short(12) != ETHERTYPE_IPV4 {
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
        icmp_type: 0,
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
#[inline(always)]
pub(crate) fn parse_plain_v6(frame: &[u8], length: usize, headers: &mut Headers) -> Option<Plain> {
    const L3: usize = ETHERNET;
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
        & (short(12) == ETHERTYPE_IPV6)
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
        icmp_type: 0,
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

/// The effect on connections, the TCP flags and the checksum of a TCP or UDP header with nothing wrong, of which
/// there are [`LEAST_SEGMENT`] bytes.
// The checksum is as wide as a register: as a part of one it would be packed and unpacked.
#[inline(always)]
fn plain_transport(frame: &[u8], protocol: u8, l4: usize, end: usize) -> Option<(Role, u8, u64)> {
    let short = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    match protocol {
        protocol::UDP => {
            if !transport::udp_fits(short(l4 + 4).into(), end - l4) {
                return None;
            }
            Some((Role::Opens, 0, short(l4 + checksum::UDP_FIELD).into()))
        }
        protocol::TCP => {
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
            let (mut quick, mut general) = (Headers::NONE, Headers::NONE);
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
