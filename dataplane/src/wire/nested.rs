//! Partial checksums inside a pod's own tunnels.
//!
//! A pod may have a VXLAN, Geneve, GRE or IP-in-IP interface, or a nested cluster's overlay. Its
//! kernel then completes the outer checksum and leaves the *inner* one to the hardware, with its
//! place in the socket buffer, not in the packet. So this parses the usual tunnel formats for an
//! inner TCP or UDP header whose checksum equals the sum of its pseudo header, under an IP header
//! that is complete, valid and ends with the packet.
//!
//! Completing it keeps the outer checksum valid: the sum over the inner packet does not depend on
//! its bytes, which is how the kernel could complete the outer one first.

use super::partial_checksum::PartialChecksum;
use super::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, Fragment, Headers, be16, checksum, ip, protocol};

const IP_IN_IP: u8 = 4;
const IPV6_IN_IP: u8 = 41;
const GRE: u8 = 47;
const UDP_HEADER: usize = 8;
/// The shortest packet inside: IPv4 and UDP.
const LEAST: usize = ip::V4_HEADER + UDP_HEADER;
/// Ethernet inside of a tunnel: "transparent Ethernet bridging".
const ETHERTYPE_ETHERNET: u16 = 0x6558;

/// Whether a packet may contain another one with a partial checksum. Most packets are TCP or short,
/// and do not.
#[inline]
pub(crate) fn may_have(headers: &Headers) -> bool {
    headers.flow.protocol != protocol::TCP
        && headers.payload() >= LEAST
        && headers.fragment == Fragment::Whole
}

/// Finds the inner partial checksum of a packet of `length` bytes, of which `packet` is the first
/// frame.
pub(crate) fn find(packet: &[u8], length: usize, headers: &Headers) -> Option<PartialChecksum> {
    let l4 = usize::from(headers.l4);
    let whole = packet.get(..usize::from(headers.end).min(packet.len()))?;
    if usize::from(headers.end) != length {
        return None;
    }
    let in_ip = |at: usize| in_ip(whole, at, length);
    match headers.flow.protocol {
        protocol::UDP => {
            let payload = l4 + UDP_HEADER;
            in_vxlan(whole, payload)
                .or_else(|| in_geneve(whole, payload))
                .and_then(in_ip)
                // Foo over UDP.
                .or_else(|| in_ip(payload))
        }
        IP_IN_IP | IPV6_IN_IP => in_ip(l4),
        GRE => in_gre(whole, l4).and_then(in_ip),
        _ => None,
    }
}

/// Offset of the IP header inside of VXLAN (RFC 7348), or of its generic extension.
fn in_vxlan(packet: &[u8], at: usize) -> Option<usize> {
    let header = packet.get(at..at + 8)?;
    let (is_valid, names_protocol) = (header[0] & 0x08 != 0, header[0] & 0x04 != 0);
    match header[3] {
        _ if !is_valid || header[7] != 0 => None,
        1 | 2 if names_protocol => Some(at + 8),
        _ => in_ethernet(packet, at + 8),
    }
}

/// Offset of the IP header inside of Geneve (RFC 8926).
fn in_geneve(packet: &[u8], at: usize) -> Option<usize> {
    let header = packet.get(at..at + 8)?;
    let inside = at + 8 + usize::from(header[0] & 0x3f) * 4;
    if header[0] >> 6 != 0 || header[7] != 0 {
        return None;
    }
    by_type(packet, inside, be16(header, 2)?)
}

/// Offset of the IP header inside of GRE (RFC 2784, RFC 2890).
fn in_gre(packet: &[u8], at: usize) -> Option<usize> {
    const VERSION: u8 = 0x07;
    let header = packet.get(at..at + 4)?;
    // A checksum, a key and a sequence number may follow.
    let options = (header[0] & 0xb0).count_ones() as usize;
    if header[1] & VERSION != 0 {
        return None;
    }
    by_type(packet, at + 4 + options * 4, be16(header, 2)?)
}

fn by_type(packet: &[u8], at: usize, ethertype: u16) -> Option<usize> {
    match ethertype {
        ETHERTYPE_IPV4 | ETHERTYPE_IPV6 => Some(at),
        ETHERTYPE_ETHERNET => in_ethernet(packet, at),
        _ => None,
    }
}

fn in_ethernet(packet: &[u8], at: usize) -> Option<usize> {
    let ip = at + super::ETHERNET;
    matches!(be16(packet, ip - 2)?, ETHERTYPE_IPV4 | ETHERTYPE_IPV6).then_some(ip)
}

/// The partial checksum behind an IP header at `at`.
fn in_ip(packet: &[u8], at: usize, length: usize) -> Option<PartialChecksum> {
    let (l4, protocol, addresses) = match packet.get(at)? >> 4 {
        4 => {
            let header_length = usize::from(packet[at] & 0x0f) * 4;
            let header = packet.get(at..at + header_length.max(ip::V4_HEADER))?;
            let is_sound = header_length >= ip::V4_HEADER
                && checksum::fold(checksum::sum(header)) == 0xffff
                && at + usize::from(be16(header, 2)?) == length
                // Neither more fragments nor an offset.
                && be16(header, 6)? & 0x3fff == 0;
            is_sound.then_some((at + header_length, header[9], &header[12..20]))?
        }
        6 => {
            let header = packet.get(at..at + ip::V6_HEADER)?;
            let is_sound = at + ip::V6_HEADER + usize::from(be16(header, 4)?) == length;
            is_sound.then_some((at + ip::V6_HEADER, header[6], &header[8..40]))?
        }
        _ => return None,
    };
    let field = match protocol {
        protocol::TCP => 16,
        protocol::UDP => 6,
        _ => return None,
    };
    let pseudo = checksum::pseudo(addresses, protocol, length - l4);
    let is_partial = be16(packet, l4 + field)? == checksum::fold(pseudo);
    PartialChecksum::new(l4 as u16, field as u16).filter(|_| is_partial)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use testkit::packet::{Packet, tcp, udp};

    use super::*;
    use crate::wire::parse;

    /// The packet with its checksum as a kernel leaves it to hardware.
    fn left_open(packet: Packet) -> (Vec<u8>, Vec<u8>) {
        let finished = packet.build();
        let headers = parse(&finished).unwrap();
        let mut open = finished.clone();
        crate::wire::partial_checksum::renew_pseudo(&mut open, &headers);
        (open, finished)
    }

    fn completed(packet: &[u8]) -> Vec<u8> {
        let headers = parse(packet).unwrap();
        let partial = find(packet, packet.len(), &headers).filter(|_| may_have(&headers));
        let mut completed = packet.to_vec();
        if let Some(partial) = partial {
            partial.complete(&mut completed);
        }
        completed
    }

    /// Tunnels by what stands between UDP and what they carry, and how much of the carried
    /// packet's front they leave out.
    const OVER_UDP: [(&[u8], usize); 5] = [
        (&[0x08, 0, 0, 0, 0, 0, 7, 0], 0),
        (&[0x0c, 0, 0, 1, 0, 0, 7, 0], 14),
        (&[0x00, 0, 0x65, 0x58, 0, 0, 7, 0], 0),
        (&[0x01, 0, 0x08, 0x00, 0, 0, 7, 0, 1, 2, 3, 4], 14),
        (&[], 14),
    ];

    #[test]
    fn a_sum_inside_of_a_tunnel_is_completed() {
        for inner in [tcp("10.9.0.1:1", "10.9.0.2:2").ack(), udp("10.9.0.1:1", "10.9.0.2:2")] {
            let (open, finished) = left_open(inner.payload(b"payload"));
            for (front, skip) in OVER_UDP {
                let outer = |inner: &[u8]| {
                    let mut packet = udp("10.0.0.1:9", "10.0.0.2:4789")
                        .payload(&[front, &inner[skip..]].concat())
                        .build();
                    packet[40..42].fill(0);
                    packet
                };
                assert_eq!(completed(&outer(&open)), outer(&finished), "{front:x?}");
                assert_eq!(completed(&outer(&finished)), outer(&finished), "{front:x?}");
            }
        }
    }

    #[test]
    fn a_sum_over_ipv6_inside_is_completed() {
        let (open, finished) = left_open(tcp("[fd00::1]:1", "[fd00::2]:2").ack().payload(b"six"));
        let outer = |inner: &[u8]| {
            let payload = [&[0x08, 0, 0, 0, 0, 0, 7, 0], inner].concat();
            let mut packet = udp("10.0.0.1:9", "10.0.0.2:8472").payload(&payload).build();
            packet[40..42].fill(0);
            packet
        };
        assert_eq!(completed(&outer(&open)), outer(&finished));
    }

    #[test]
    fn what_only_resembles_a_tunnel_is_left_alone() {
        let (open, _) = left_open(tcp("10.9.0.1:1", "10.9.0.2:2").ack().payload(b"payload"));
        let vxlan = [&[0x08, 0, 0, 0, 0, 0, 7, 0][..], &open].concat();
        let as_sent = |payload: &[u8]| udp("10.0.0.1:9", "10.0.0.2:4789").payload(payload).build();
        let mut damaged = vxlan.clone();
        damaged[8 + 14 + 10] ^= 1;
        let longer = [&vxlan[..], b"more"].concat();
        let mut invalid = vxlan.clone();
        invalid[0] = 0;
        for payload in [&damaged[..], &longer, &invalid, &vxlan[..40], &vxlan[..3], &[]] {
            assert_eq!(completed(&as_sent(payload)), as_sent(payload));
        }
    }

    proptest! {
        #[test]
        fn no_payload_is_too_strange(payload in proptest::collection::vec(any::<u8>(), 0..100)) {
            let packet = udp("10.0.0.1:9", "10.0.0.2:4789").payload(&payload).build();
            prop_assert_eq!(completed(&packet).len(), packet.len());
            for protocol in [IP_IN_IP, IPV6_IN_IP, GRE] {
                let mut headers = parse(&packet).unwrap();
                headers.flow.protocol = protocol;
                let _ = find(&packet, packet.len(), &headers);
            }
        }
    }
}
