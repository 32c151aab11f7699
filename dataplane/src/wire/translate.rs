//! Network address translation (RFC 3022): other addresses and ports, with an update of every
//! checksum that covers them.

use acl::Address;

use super::{Flow, Fragment, Headers, Kind, checksum, icmp, ip, protocol};

/// Rewrites a packet's addresses and ports (or echo identifier) into those of `to`, which has the
/// same family and protocol. Later fragments have no ports. Of a packet that stretches over
/// several frames this is the first; SCTP's checksum is then still to be finished.
pub fn rewrite(frame: &mut [u8], headers: &Headers, to: &Flow) {
    let (l3, l4, end) = (usize::from(headers.l3), usize::from(headers.l4), headers.end_in(frame));
    let has_ports = !matches!(headers.fragment, Fragment::Later(_));
    let whole = headers.fragment == Fragment::Whole && end == usize::from(headers.end);
    let change = addresses(&mut frame[..end], l3, headers.kind, &headers.flow, to);
    if has_ports {
        transport(&mut frame[l4..end], &headers.flow, to, change, whole);
    }
}

/// The same for a packet that a fast path of the parser took: its headers stand at fixed places.
#[inline(always)]
pub(crate) fn rewrite_plain(frame: &mut [u8], headers: &Headers, to: &Flow) {
    match headers.kind {
        Kind::Ipv4 => rewrite_plain_v4(frame, to),
        _ => rewrite(frame, headers, to),
    }
}

#[inline(never)]
fn rewrite_plain_v4(frame: &mut [u8], to: &Flow) {
    const L3: usize = super::ETHERNET;
    const L4: usize = L3 + ip::V4_HEADER;
    let Some(start) = frame.first_chunk_mut::<{ L4 + 4 }>() else { return };
    let mut replace = |at: usize, new: u32| {
        let field = start[at..].first_chunk_mut().expect("inside");
        checksum::change_of_32(u32::from_ne_bytes(std::mem::replace(field, new.to_ne_bytes())), new)
    };
    let addresses = replace(L3 + 12, v4(to.source)) + replace(L3 + 16, v4(to.destination));
    let all = addresses + replace(L4, ports(to));
    update(start, L3 + 10, addresses);
    let is_udp = to.protocol == protocol::UDP;
    let at = L4 + if is_udp { checksum::UDP_FIELD } else { checksum::TCP_FIELD };
    let Some(field) = frame.get_mut(at..at + 2) else { return };
    update_transport(field, is_udp, all);
}

/// Rewrites an ICMP error: its own addresses into those of `to`, and those of the packet that it
/// quotes into `quoted`.
pub fn rewrite_error(frame: &mut [u8], headers: &Headers, to: &Flow, quoted: &Flow) {
    let (l3, l4, end) =
        (usize::from(headers.l3), usize::from(headers.l4), usize::from(headers.end));
    addresses(&mut frame[..end], l3, headers.kind, &headers.flow, to);
    let inner = l4 + icmp::HEADER;
    let quote = &mut frame[inner..end];
    if let Some((flow, inner_l4)) = icmp::parse_quote(quote, headers.kind) {
        let change = addresses(quote, 0, headers.kind, &flow, quoted);
        transport(&mut quote[inner_l4..], &flow, quoted, change, false);
    }
    // A full sum is simpler than an update; errors are short and rare.
    icmp::finish(&mut frame[..end], l3, l4, headers.kind);
}

/// Writes the addresses of an IP header at `l3`; returns the change of sums over them.
#[inline(always)]
fn addresses(packet: &mut [u8], l3: usize, kind: Kind, old: &Flow, to: &Flow) -> u64 {
    if kind == Kind::Ipv4 {
        let change = checksum::change_of_32(v4(old.source), v4(to.source))
            + checksum::change_of_32(v4(old.destination), v4(to.destination));
        let header = &mut packet[l3..l3 + ip::V4_HEADER];
        header[12..16].copy_from_slice(&v4(to.source).to_ne_bytes());
        header[16..20].copy_from_slice(&v4(to.destination).to_ne_bytes());
        update(header, 10, change);
        return change;
    }
    let header = &mut packet[l3..l3 + ip::V6_HEADER];
    header[8..24].copy_from_slice(&v6(to.source).to_ne_bytes());
    header[24..40].copy_from_slice(&v6(to.destination).to_ne_bytes());
    checksum::change(v6(old.source), v6(to.source))
        + checksum::change(v6(old.destination), v6(to.destination))
}

// Numbers as they stand in packets: sums are the same in either order of bytes (RFC 1071, section 2).

#[inline]
fn v4(address: Address) -> u32 {
    (address.bits() as u32).to_be()
}

#[inline]
fn v6(address: Address) -> u128 {
    address.bits().to_be()
}

#[inline]
fn ports(flow: &Flow) -> u32 {
    (u32::from(flow.source_port) << 16 | u32::from(flow.destination_port)).to_be()
}

/// Updates the checksum in a header, which is inside of it.
#[inline]
fn update(header: &mut [u8], at: usize, change: u64) {
    let sum = checksum::updated(u16::from_ne_bytes([header[at], header[at + 1]]), change);
    header[at..at + 2].copy_from_slice(&sum.to_ne_bytes());
}

/// Writes the ports of a transport header, as far as it is there, and updates its checksum. The
/// addresses have changed its pseudo header by `addresses`.
#[inline(always)]
fn transport(segment: &mut [u8], old: &Flow, to: &Flow, addresses: u64, whole: bool) {
    // It is the requester's port; the other one is 0.
    let identifier = |flow: &Flow| (flow.source_port | flow.destination_port).to_be();
    let is_v4 = to.source.is_v4();
    let (at, change) = match to.protocol {
        protocol::TCP | protocol::UDP | protocol::SCTP => {
            let Some(field) = segment.first_chunk_mut() else { return };
            *field = ports(to).to_ne_bytes();
            let at = if to.protocol == protocol::TCP { 16 } else { 6 };
            (at, checksum::change_of_32(ports(old), ports(to)))
        }
        protocol::ICMP | protocol::ICMPV6 if is_v4 == (to.protocol == protocol::ICMP) => {
            // The sequence number behind it stays.
            let Some(field) = segment.get_mut(4..6) else { return };
            field.copy_from_slice(&identifier(to).to_ne_bytes());
            (2, checksum::change_of_32(identifier(old).into(), identifier(to).into()))
        }
        _ => return,
    };
    let change = match to.protocol {
        protocol::SCTP => {
            // A CRC over the packet alone; it cannot be updated in parts.
            if whole && ports(old) != ports(to) {
                super::crc32c::finish(segment);
            }
            return;
        }
        // ICMP's checksum does not cover the addresses.
        protocol::ICMP => change,
        _ => change + addresses,
    };
    let Some(field) = segment.get_mut(at..at + 2) else { return };
    update_transport(field, to.protocol == protocol::UDP, change);
}

/// Updates the checksum of a transport header in this field.
#[inline(always)]
fn update_transport(field: &mut [u8], is_udp: bool, change: u64) {
    let stated = u16::from_ne_bytes([field[0], field[1]]);
    let sum = checksum::updated(stated, change);
    // To UDP 0 means that there is none.
    let sum = match (is_udp, stated, sum) {
        (true, 0, _) => 0,
        (true, _, 0) => 0xffff,
        _ => sum,
    };
    field.copy_from_slice(&sum.to_ne_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{parse, quoted};
    use proptest::prelude::*;
    use testkit::packet;

    fn flow(frame: &[u8]) -> Flow {
        parse(frame).unwrap().flow
    }

    fn translated(mut frame: Vec<u8>, to: &[u8]) -> Vec<u8> {
        let headers = parse(&frame).unwrap();
        rewrite(&mut frame, &headers, &flow(to));
        frame
    }

    /// Without MAC addresses.
    fn internet(frame: &[u8]) -> &[u8] {
        &frame[12..]
    }

    proptest! {
        /// A translated packet is, byte for byte, the one that would have been sent with the
        /// other addresses in the first place.
        #[test]
        fn what_comes_out_is_what_would_have_been_sent(
            a in 1..250_u8, b in 1..250_u8, c in 1..250_u8, d in 1..250_u8,
            ports in any::<[u16; 4]>(), payload in prop::collection::vec(any::<u8>(), 0..40),
            v4: bool,
        ) {
            prop_assume!(a != b && c != d);
            let end = |n: u8, port: u16| match v4 {
                true => format!("10.1.{n}.{n}:{port}"),
                false => format!("[fd00:{n:x}::{n:x}]:{port}"),
            };
            let (from, to) = (end(a, ports[0]), end(b, ports[1]));
            let (new_from, new_to) = (end(c, ports[2]), end(d, ports[3]));
            let udp = |from: &str, to: &str| packet::udp(from, to).payload(&payload).build();
            let tcp = |from: &str, to: &str| packet::tcp(from, to).syn().payload(&payload).build();
            for (before, after) in [
                (udp(&from, &to), udp(&new_from, &new_to)),
                (tcp(&from, &to), tcp(&new_from, &new_to)),
            ] {
                let mut quick = before.clone();
                rewrite_plain(&mut quick, &parse(&before).unwrap(), &flow(&after));
                let translated = translated(before, &after);
                prop_assert_eq!(internet(&translated), internet(&after));
                prop_assert_eq!(quick, translated);
            }
        }
    }

    #[test]
    fn echoes_sctp_and_others_are_translated_whole() {
        let pairs = [
            (
                packet::ping("10.1.0.2", "10.1.0.3", 7, 1).build(),
                packet::ping("10.9.0.2", "10.9.0.3", 99, 1).build(),
            ),
            (
                packet::ping("fd00::2", "fd00::3", 7, 1).build(),
                packet::ping("fd09::2", "fd09::3", 99, 1).build(),
            ),
            (
                packet::sctp("10.1.0.2:7", "10.1.0.3:8", 1).build(),
                packet::sctp("10.9.0.2:9", "10.9.0.3:10", 1).build(),
            ),
        ];
        for (before, after) in pairs {
            assert_eq!(internet(&translated(before, &after)), internet(&after));
        }
    }

    /// ICMP of the other family is no ICMP.
    #[test]
    fn protocols_without_ports_keep_every_byte() {
        for number in [protocol::ICMP, 50] {
            let before = packet::other("fd00::2", "fd00::3", number).payload(&[7; 16]).build();
            let after = packet::other("fd09::2", "fd09::3", number).payload(&[7; 16]).build();
            assert_eq!(internet(&translated(before, &after)), internet(&after));
        }
    }

    #[test]
    fn a_udp_packet_without_checksum_stays_without() {
        let mut frame = packet::udp("10.1.0.2:5", "10.1.0.3:53").payload(b"x").build();
        frame[40..42].fill(0);
        let to = packet::udp("10.1.0.2:5", "10.1.0.9:5353").payload(b"x").build();
        assert_eq!(translated(frame, &to)[40..42], [0, 0]);
    }

    #[test]
    fn an_error_quotes_what_its_receiver_sent() {
        let families = [
            ("10.1.0.2:5", "10.96.0.1:53", "10.1.0.3:5353", "10.1.0.3", "10.1.0.2", "10.96.0.1", 3),
            ("[fd00::2]:5", "[fd60::1]:53", "[fd00::3]:5353", "fd00::3", "fd00::2", "fd60::1", 1),
        ];
        for (client, service, pod, pod_ip, client_ip, service_ip, kind) in families {
            let at_pod = packet::udp(client, pod).payload(b"question");
            let at_client = packet::udp(client, service).payload(b"question");
            let mut error = packet::icmp_error(pod_ip, client_ip, kind, 3, &at_pod).build();
            let expected = packet::icmp_error(service_ip, client_ip, kind, 3, &at_client).build();
            let headers = parse(&error).unwrap();
            let quote = flow(&at_client.build());
            rewrite_error(&mut error, &headers, &flow(&expected), &quote);
            assert_eq!(internet(&error), internet(&expected));
            assert_eq!(quoted(&error, &parse(&error).unwrap()), Some(quote));
        }
    }
}
