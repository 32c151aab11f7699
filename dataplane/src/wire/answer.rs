//! Packets that the switch itself sends back: ICMP errors (RFC 792, RFC 4443) and TCP resets
//! (RFC 9293, section 3.10.7.1).

use acl::Address;

use super::tcp_flags::{ACK, FIN, RST, SYN};
use super::{ETHERNET, Fragment, Headers, Kind, Role, checksum, icmp, ip, protocol};

/// What the sender is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Its packet has been on its way for too long.
    TimeExceeded,
    /// Its packet is larger than this, and could be sent no further.
    TooBig(u16),
    /// Nobody serves this port: a reset for TCP, else port unreachable.
    PortUnreachable,
}

/// Bytes of the longest answer, Ethernet header included: ICMPv6 errors fill the smallest MTU.
pub const LONGEST: usize = ETHERNET + 1280;
/// ICMP errors over IPv4 need not quote more (RFC 1812, section 4.3.2.3).
const LONGEST_V4: usize = 576;
const HOPS: u8 = 64;

/// Writes the answer to `packet` in the name of `from` (a reset: of the packet's destination);
/// its length. `None` if the packet must not be answered (RFC 1122, section 3.2.2; RFC 4443,
/// section 2.4): errors, resets, later fragments, and what no single host sent.
pub fn write(
    notice: Notice,
    packet: &[u8],
    headers: &Headers,
    from: Address,
    answer: &mut [u8; LONGEST],
) -> Option<usize> {
    let is_error = headers.role == Role::Quotes || matches!(headers.fragment, Fragment::Later(_));
    if is_error || from.is_v4() != (headers.kind == Kind::Ipv4) {
        return None;
    }
    answer[..6].copy_from_slice(&packet[6..12]);
    answer[6..12].copy_from_slice(&packet[..6]);
    let is_tcp = headers.flow.protocol == protocol::TCP;
    match notice {
        Notice::PortUnreachable if is_tcp => reset(packet, headers, answer),
        _ => error(notice, packet, headers, from, answer),
    }
}

fn error(
    notice: Notice,
    packet: &[u8],
    headers: &Headers,
    from: Address,
    answer: &mut [u8; LONGEST],
) -> Option<usize> {
    let quote = &packet[usize::from(headers.l3)..headers.end_in(packet)];
    let v4 = headers.kind == Kind::Ipv4;
    let (kind, code, rest): (u8, u8, u32) = match (notice, v4) {
        (Notice::TimeExceeded, true) => (11, 0, 0),
        (Notice::TimeExceeded, false) => (3, 0, 0),
        // The next hop's MTU is in the lower half (RFC 1191, section 4).
        (Notice::TooBig(mtu), true) => (3, 4, u32::from(mtu)),
        (Notice::TooBig(mtu), false) => (2, 0, u32::from(mtu)),
        (Notice::PortUnreachable, true) => (3, 3, 0),
        (Notice::PortUnreachable, false) => (1, 4, 0),
    };
    let (header, longest) =
        if v4 { (ip::V4_HEADER, LONGEST_V4) } else { (ip::V6_HEADER, LONGEST - ETHERNET) };
    let quoted = quote.len().min(longest - header - icmp::HEADER);
    let l4 = ETHERNET + header;
    let message = &mut answer[l4..];
    message[..4].copy_from_slice(&[kind, code, 0, 0]);
    message[4..8].copy_from_slice(&rest.to_be_bytes());
    message[icmp::HEADER..icmp::HEADER + quoted].copy_from_slice(&quote[..quoted]);
    let protocol = if v4 { protocol::ICMP } else { protocol::ICMPV6 };
    let length = icmp::HEADER + quoted;
    internet(answer, protocol, from, headers.flow.source, length);
    icmp::finish(&mut answer[..l4 + length], ETHERNET, l4, headers.kind);
    Some(l4 + length)
}

fn reset(packet: &[u8], headers: &Headers, answer: &mut [u8; LONGEST]) -> Option<usize> {
    const LENGTH: usize = 20;
    let flags = headers.tcp_flags;
    if flags & RST != 0 {
        return None;
    }
    let segment = headers.segment(packet);
    let word = |at: usize| u32::from_be_bytes(segment[at..at + 4].try_into().expect("four bytes"));
    let data = headers.payload() - usize::from(segment[12] >> 4) * 4;
    // What the reset acknowledges: everything that came, if it acknowledged nothing itself.
    let (sequence, acknowledged, flags) = if flags & ACK != 0 {
        (word(8), 0, RST)
    } else {
        let counted = u32::from(flags & SYN != 0) + u32::from(flags & FIN != 0);
        (0, word(4).wrapping_add(data as u32).wrapping_add(counted), RST | ACK)
    };
    let l4 = ETHERNET + if headers.kind == Kind::Ipv4 { ip::V4_HEADER } else { ip::V6_HEADER };
    let reply = &mut answer[l4..l4 + LENGTH];
    reply.fill(0);
    reply[..2].copy_from_slice(&headers.flow.destination_port.to_be_bytes());
    reply[2..4].copy_from_slice(&headers.flow.source_port.to_be_bytes());
    reply[4..8].copy_from_slice(&sequence.to_be_bytes());
    reply[8..12].copy_from_slice(&acknowledged.to_be_bytes());
    reply[12] = 5 << 4;
    reply[13] = flags;
    let flow = headers.flow.reversed();
    internet(answer, protocol::TCP, flow.source, flow.destination, LENGTH);
    let addresses = if headers.kind == Kind::Ipv4 { 12..20 } else { 8..40 };
    let addresses = &answer[ETHERNET + addresses.start..ETHERNET + addresses.end];
    let pseudo = checksum::pseudo(addresses, protocol::TCP, LENGTH);
    let sum = !checksum::fold(pseudo + checksum::sum(&answer[l4..l4 + LENGTH]));
    answer[l4 + 16..l4 + 18].copy_from_slice(&sum.to_be_bytes());
    Some(l4 + LENGTH)
}

/// Writes the IP header in front of a payload of `length` bytes, and the ethertype.
fn internet(answer: &mut [u8], protocol: u8, from: Address, to: Address, length: usize) {
    if from.is_v4() {
        answer[12..14].copy_from_slice(&[0x08, 0x00]);
        let header = &mut answer[ETHERNET..ETHERNET + ip::V4_HEADER];
        header.fill(0);
        header[0] = 0x45;
        header[2..4].copy_from_slice(&((ip::V4_HEADER + length) as u16).to_be_bytes());
        header[8] = HOPS;
        header[9] = protocol;
        header[12..16].copy_from_slice(&(from.bits() as u32).to_be_bytes());
        header[16..20].copy_from_slice(&(to.bits() as u32).to_be_bytes());
        let sum = !checksum::fold(checksum::sum(header));
        header[10..12].copy_from_slice(&sum.to_be_bytes());
    } else {
        answer[12..14].copy_from_slice(&[0x86, 0xdd]);
        let header = &mut answer[ETHERNET..ETHERNET + ip::V6_HEADER];
        header[..4].copy_from_slice(&[0x60, 0, 0, 0]);
        header[4..6].copy_from_slice(&(length as u16).to_be_bytes());
        header[6] = protocol;
        header[7] = HOPS;
        header[8..24].copy_from_slice(&from.bits().to_be_bytes());
        header[24..40].copy_from_slice(&to.bits().to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{parse, quoted};
    use testkit::packet::{self, tcp, udp};

    fn answer(notice: Notice, frame: &[u8], from: &str) -> Option<Vec<u8>> {
        let headers = parse(frame).unwrap();
        let from = from.parse::<std::net::IpAddr>().unwrap().into();
        let mut answer = [0xee; LONGEST];
        let length = write(notice, frame, &headers, from, &mut answer)?;
        Some(answer[..length].to_vec())
    }

    #[test]
    fn errors_quote_the_packet_and_their_checksums_hold() {
        let families = [
            ("10.1.0.2:5", "10.2.0.3:53", "10.1.0.1", [(11, 0), (3, 4), (3, 3)]),
            ("[fd00::2]:5", "[fd02::3]:53", "fd00::1", [(3, 0), (2, 0), (1, 4)]),
        ];
        for (from, to, switch, kinds) in families {
            let frame = udp(from, to).payload(&[7; 1400]).build();
            let flow = parse(&frame).unwrap().flow;
            let notices = [Notice::TimeExceeded, Notice::TooBig(1450), Notice::PortUnreachable];
            for (notice, kind) in notices.into_iter().zip(kinds) {
                let error = answer(notice, &frame, switch).unwrap();
                let headers = parse(&error).unwrap();
                let l4 = usize::from(headers.l4);
                assert_eq!((error[l4], error[l4 + 1]), kind);
                assert_eq!(headers.flow.destination, flow.source);
                assert_eq!(quoted(&error, &headers), Some(flow));
                let pseudo = match headers.kind {
                    Kind::Ipv4 => 0,
                    _ => checksum::pseudo(&error[22..54], protocol::ICMPV6, error.len() - l4),
                };
                assert_eq!(checksum::fold(pseudo + checksum::sum(&error[l4..])), 0xffff);
                if notice == Notice::TooBig(1450) {
                    assert_eq!(error[l4 + 6..l4 + 8], 1450_u16.to_be_bytes());
                }
                let longest = if headers.kind == Kind::Ipv4 { 590 } else { LONGEST };
                assert_eq!(error.len(), longest);
            }
        }
    }

    #[test]
    fn a_reset_is_what_the_sender_believes() {
        for (from, to, switch) in
            [("10.1.0.2:5", "10.2.0.3:80", "10.1.0.1"), ("[fd00::2]:5", "[fd02::3]:80", "fd00::1")]
        {
            let syn = tcp(from, to).syn().tcp_header(|tcp| tcp.sequence_number = 41).build();
            let reset = answer(Notice::PortUnreachable, &syn, switch).unwrap();
            let headers = parse(&reset).unwrap();
            assert_eq!(headers.flow, parse(&syn).unwrap().flow.reversed());
            assert_eq!(headers.tcp_flags, RST | ACK);
            let l4 = usize::from(headers.l4);
            assert_eq!(reset[l4 + 8..l4 + 12], 42_u32.to_be_bytes());
            let data = tcp(from, to).data(b"abc").tcp_header(|tcp| {
                tcp.acknowledgment_number = 77;
            });
            let reset = answer(Notice::PortUnreachable, &data.build(), switch).unwrap();
            assert_eq!(parse(&reset).unwrap().tcp_flags, RST);
            assert_eq!(reset[l4 + 4..l4 + 8], 77_u32.to_be_bytes());
            let rst = tcp(from, to).rst().build();
            assert_eq!(answer(Notice::PortUnreachable, &rst, switch), None);
        }
    }

    #[test]
    fn errors_and_later_fragments_are_not_answered() {
        let sent = udp("10.1.0.2:5", "10.2.0.3:53").payload(&[7; 100]);
        let error =
            packet::icmp_error("10.1.0.2", "10.2.0.3", 3, 3, &udp("10.2.0.3:5", "10.1.0.2:5"));
        assert_eq!(answer(Notice::TimeExceeded, &error.build(), "10.1.0.1"), None);
        let later = &sent.fragments(64)[1];
        assert_eq!(answer(Notice::TimeExceeded, later, "10.1.0.1"), None);
    }
}
