//! ICMP error generation: ICMP errors (RFC 792, RFC 4443) and TCP resets
//! (RFC 9293, section 3.10.7.1).

use acl::Address;

use super::tcp_flags::{ACK, FIN, RST, SYN};
use super::{ETHERNET, Flow, Fragment, Headers, Kind, Role, checksum, icmp, ip, protocol};

/// An ICMP error, without the packet that it quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IcmpError {
    /// Time exceeded in transit.
    TimeExceeded,
    /// Fragmentation needed, or packet too big: the MTU of the next link.
    TooBig(u16),
    /// Port unreachable; a TCP reset for TCP.
    PortUnreachable,
    /// Communication administratively prohibited; a TCP reset for TCP.
    Prohibited,
}

/// Bytes of the longest ICMP error, Ethernet header included: ICMPv6 errors fill the minimum MTU.
pub const LONGEST: usize = ETHERNET + 1280;
/// ICMP errors over IPv4 need not quote more (RFC 1812, section 4.3.2.3).
const LONGEST_V4: usize = 576;
const HOP_LIMIT: u8 = 64;

/// Writes the ICMP error about `packet` with source `from` (a TCP reset has the packet's destination
/// as its source); returns its length. Returns `None` where no error may be sent (RFC 1122, section
/// 3.2.2; RFC 4443, section 2.4): about errors, resets, later fragments, and multicast.
pub fn write(
    kind: IcmpError,
    packet: &[u8],
    headers: &Headers,
    from: Address,
    reply: &mut [u8; LONGEST],
) -> Option<usize> {
    let is_error = headers.role == Role::Quotes || matches!(headers.fragment, Fragment::Later(_));
    if is_error || from.is_v4() != (headers.kind == Kind::Ipv4) {
        return None;
    }
    reply[..6].copy_from_slice(&packet[6..12]);
    reply[6..12].copy_from_slice(&packet[..6]);
    let is_tcp = headers.flow.protocol == protocol::TCP;
    match kind {
        IcmpError::PortUnreachable | IcmpError::Prohibited if is_tcp => {
            reset(packet, headers, reply)
        }
        _ => icmp_error(kind, packet, headers, from, reply),
    }
}

fn icmp_error(
    kind: IcmpError,
    packet: &[u8],
    headers: &Headers,
    from: Address,
    reply: &mut [u8; LONGEST],
) -> Option<usize> {
    let quote = &packet[usize::from(headers.l3)..headers.end_in(packet)];
    let v4 = headers.kind == Kind::Ipv4;
    let (kind, code, rest): (u8, u8, u32) = match (kind, v4) {
        (IcmpError::TimeExceeded, true) => (11, 0, 0),
        (IcmpError::TimeExceeded, false) => (3, 0, 0),
        // The next hop's MTU is in the lower half (RFC 1191, section 4).
        (IcmpError::TooBig(mtu), true) => (3, 4, u32::from(mtu)),
        (IcmpError::TooBig(mtu), false) => (2, 0, u32::from(mtu)),
        (IcmpError::PortUnreachable, true) => (3, 3, 0),
        (IcmpError::PortUnreachable, false) => (1, 4, 0),
        (IcmpError::Prohibited, true) => (3, 13, 0),
        (IcmpError::Prohibited, false) => (1, 1, 0),
    };
    let (header, longest) =
        if v4 { (ip::V4_HEADER, LONGEST_V4) } else { (ip::V6_HEADER, LONGEST - ETHERNET) };
    let quoted = quote.len().min(longest - header - icmp::HEADER);
    let l4 = ETHERNET + header;
    let message = &mut reply[l4..];
    message[..4].copy_from_slice(&[kind, code, 0, 0]);
    message[4..8].copy_from_slice(&rest.to_be_bytes());
    message[icmp::HEADER..icmp::HEADER + quoted].copy_from_slice(&quote[..quoted]);
    let protocol = if v4 { protocol::ICMP } else { protocol::ICMPV6 };
    let length = icmp::HEADER + quoted;
    internet(reply, protocol, from, headers.flow.source, length);
    icmp::finish(&mut reply[..l4 + length], ETHERNET, l4, headers.kind);
    Some(l4 + length)
}

/// Writes the TCP reset by which the sender of `packet` would end its connection; returns its length.
pub fn write_abort(packet: &[u8], headers: &Headers, abort: &mut [u8; LONGEST]) -> usize {
    abort[..12].copy_from_slice(&packet[..12]);
    let received = headers.segment(packet);
    let acknowledged = headers.tcp_flags & ACK;
    segment(
        headers.kind,
        &headers.flow,
        word(received, 4),
        word(received, 8),
        RST | acknowledged,
        abort,
    )
}

fn word(segment: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(segment[at..at + 4].try_into().expect("four bytes"))
}

fn reset(packet: &[u8], headers: &Headers, reply: &mut [u8; LONGEST]) -> Option<usize> {
    let flags = headers.tcp_flags;
    if flags & RST != 0 {
        return None;
    }
    let received = headers.segment(packet);
    let data = headers.payload() - usize::from(received[12] >> 4) * 4;
    // What the reset acknowledges: everything that came, if it acknowledged nothing itself.
    let (sequence, acknowledged, flags) = if flags & ACK != 0 {
        (word(received, 8), 0, RST)
    } else {
        let counted = u32::from(flags & SYN != 0) + u32::from(flags & FIN != 0);
        let next = word(received, 4).wrapping_add(data as u32).wrapping_add(counted);
        (0, next, RST | ACK)
    };
    Some(segment(headers.kind, &headers.flow.reversed(), sequence, acknowledged, flags, reply))
}

/// Writes a TCP segment without data behind the MAC addresses; returns the frame's length.
fn segment(
    kind: Kind,
    flow: &Flow,
    sequence: u32,
    acknowledged: u32,
    flags: u8,
    reply: &mut [u8; LONGEST],
) -> usize {
    const LENGTH: usize = 20;
    let l4 = ETHERNET + if kind == Kind::Ipv4 { ip::V4_HEADER } else { ip::V6_HEADER };
    let segment = &mut reply[l4..l4 + LENGTH];
    segment.fill(0);
    segment[..2].copy_from_slice(&flow.source_port.to_be_bytes());
    segment[2..4].copy_from_slice(&flow.destination_port.to_be_bytes());
    segment[4..8].copy_from_slice(&sequence.to_be_bytes());
    segment[8..12].copy_from_slice(&acknowledged.to_be_bytes());
    segment[12] = 5 << 4;
    segment[13] = flags;
    internet(reply, protocol::TCP, flow.source, flow.destination, LENGTH);
    let addresses = if kind == Kind::Ipv4 { 12..20 } else { 8..40 };
    let addresses = &reply[ETHERNET + addresses.start..ETHERNET + addresses.end];
    let pseudo = checksum::pseudo(addresses, protocol::TCP, LENGTH);
    let sum = !checksum::fold(pseudo + checksum::sum(&reply[l4..l4 + LENGTH]));
    reply[l4 + 16..l4 + 18].copy_from_slice(&sum.to_be_bytes());
    l4 + LENGTH
}

/// Writes the IP header in front of a payload of `length` bytes, and the ethertype.
fn internet(reply: &mut [u8], protocol: u8, from: Address, to: Address, length: usize) {
    if from.is_v4() {
        reply[12..14].copy_from_slice(&[0x08, 0x00]);
        let header = &mut reply[ETHERNET..ETHERNET + ip::V4_HEADER];
        header.fill(0);
        header[0] = 0x45;
        header[2..4].copy_from_slice(&((ip::V4_HEADER + length) as u16).to_be_bytes());
        header[8] = HOP_LIMIT;
        header[9] = protocol;
        header[12..16].copy_from_slice(&(from.bits() as u32).to_be_bytes());
        header[16..20].copy_from_slice(&(to.bits() as u32).to_be_bytes());
        let sum = !checksum::fold(checksum::sum(header));
        header[10..12].copy_from_slice(&sum.to_be_bytes());
    } else {
        reply[12..14].copy_from_slice(&[0x86, 0xdd]);
        let header = &mut reply[ETHERNET..ETHERNET + ip::V6_HEADER];
        header[..4].copy_from_slice(&[0x60, 0, 0, 0]);
        header[4..6].copy_from_slice(&(length as u16).to_be_bytes());
        header[6] = protocol;
        header[7] = HOP_LIMIT;
        header[8..24].copy_from_slice(&from.bits().to_be_bytes());
        header[24..40].copy_from_slice(&to.bits().to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{parse, quoted};
    use testkit::packet::{self, tcp, udp};

    fn answer(kind: IcmpError, frame: &[u8], from: &str) -> Option<Vec<u8>> {
        let headers = parse(frame).unwrap();
        let from = from.parse::<std::net::IpAddr>().unwrap().into();
        let mut answer = [0xee; LONGEST];
        let length = write(kind, frame, &headers, from, &mut answer)?;
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
            let errors =
                [IcmpError::TimeExceeded, IcmpError::TooBig(1450), IcmpError::PortUnreachable];
            for (sent, kind) in errors.into_iter().zip(kinds) {
                let error = answer(sent, &frame, switch).unwrap();
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
                if sent == IcmpError::TooBig(1450) {
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
            let reset = answer(IcmpError::PortUnreachable, &syn, switch).unwrap();
            let headers = parse(&reset).unwrap();
            assert_eq!(headers.flow, parse(&syn).unwrap().flow.reversed());
            assert_eq!(headers.tcp_flags, RST | ACK);
            let l4 = usize::from(headers.l4);
            assert_eq!(reset[l4 + 8..l4 + 12], 42_u32.to_be_bytes());
            let data = tcp(from, to).data(b"abc").tcp_header(|tcp| {
                tcp.acknowledgment_number = 77;
            });
            let reset = answer(IcmpError::PortUnreachable, &data.build(), switch).unwrap();
            assert_eq!(parse(&reset).unwrap().tcp_flags, RST);
            assert_eq!(reset[l4 + 4..l4 + 8], 77_u32.to_be_bytes());
            let rst = tcp(from, to).rst().build();
            assert_eq!(answer(IcmpError::PortUnreachable, &rst, switch), None);
        }
    }

    #[test]
    fn errors_and_later_fragments_are_not_answered() {
        let sent = udp("10.1.0.2:5", "10.2.0.3:53").payload(&[7; 100]);
        let error =
            packet::icmp_error("10.1.0.2", "10.2.0.3", 3, 3, &udp("10.2.0.3:5", "10.1.0.2:5"));
        assert_eq!(answer(IcmpError::TimeExceeded, &error.build(), "10.1.0.1"), None);
        let later = &sent.fragments(64)[1];
        assert_eq!(answer(IcmpError::TimeExceeded, later, "10.1.0.1"), None);
    }
}
