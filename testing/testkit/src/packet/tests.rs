//! Another parser reads the built packets as they were meant.

use etherparse::checksum::Sum16BitWords;
use etherparse::{IpNumber, NetSlice, SlicedPacket, TransportSlice};

use super::*;

fn parsed(frame: &[u8]) -> SlicedPacket<'_> {
    SlicedPacket::from_ethernet(frame).expect("a packet that parses")
}

/// The transport checksum over pseudo header and bytes must come to zero.
fn checksum_holds(packet: &Packet) {
    let internet = &packet.internet;
    let bytes = packet.transport_bytes();
    let frame = packet.build();
    let slice = parsed(&frame);
    let holds = match (slice.transport, slice.net) {
        (Some(TransportSlice::Tcp(tcp)), Some(NetSlice::Ipv4(ip))) => {
            let header = ip.header();
            let sum = tcp.calc_checksum_ipv4(header.source(), header.destination());
            sum.expect("short enough") == tcp.checksum()
        }
        (Some(TransportSlice::Tcp(tcp)), Some(NetSlice::Ipv6(ip))) => {
            let header = ip.header();
            let sum = tcp.calc_checksum_ipv6(header.source(), header.destination());
            sum.expect("short enough") == tcp.checksum()
        }
        (Some(TransportSlice::Udp(udp)), _) => {
            let header = udp.to_header();
            let sum = match (internet.source, internet.destination) {
                (IpAddr::V4(from), IpAddr::V4(to)) => {
                    header.calc_checksum_ipv4_raw(from.octets(), to.octets(), udp.payload())
                }
                (IpAddr::V6(from), IpAddr::V6(to)) => {
                    header.calc_checksum_ipv6_raw(from.octets(), to.octets(), udp.payload())
                }
                _ => unreachable!("one family"),
            };
            sum.expect("short enough") == udp.checksum()
        }
        (Some(TransportSlice::Icmpv4(_)), _) => {
            Sum16BitWords::new().add_slice(&bytes).ones_complement() == 0
        }
        (Some(TransportSlice::Icmpv6(icmp)), Some(NetSlice::Ipv6(ip))) => {
            icmp.is_checksum_valid(ip.header().source(), ip.header().destination())
        }
        other => panic!("not a transport with a checksum: {other:?}"),
    };
    assert!(holds, "{packet:?}");
}

#[test]
fn checksums_hold() {
    for packet in [
        tcp("10.1.1.2:40000", "10.1.1.3:6379").syn(),
        tcp("[fd00::2]:40000", "[fd00::3]:6379").data(b"odd"),
        udp("10.1.1.2:5353", "10.1.1.3:53").payload(b"query"),
        udp("[fd00::2]:5353", "[fd00::3]:53").extension(0, &[]),
        ping("10.1.1.2", "10.1.1.3", 7, 1).payload(b"hello"),
        pong("fd00::2", "fd00::3", 7, 1),
        neighbour_solicitation("fd00::2", "fd00::3"),
        neighbour_advertisement("fd00::2", "fd00::3"),
        icmp_error("10.1.1.3", "10.1.1.2", 3, 3, &udp("10.1.1.2:1", "10.1.1.3:2")),
    ] {
        checksum_holds(&packet);
    }
}

#[test]
fn ipv4_header_with_options() {
    let frame = tcp("10.1.1.2:40000", "10.1.1.3:6379").syn().ip_options(&[1, 1, 1, 0]).build();
    let Some(NetSlice::Ipv4(ip)) = parsed(&frame).net else { panic!("IPv4") };
    assert_eq!((ip.header().ihl(), ip.header().options()), (6, &[1, 1, 1, 0][..]));
    assert_eq!(ip.header().to_header().calc_header_checksum(), ip.header().header_checksum());
}

#[test]
fn extension_headers_lead_to_the_transport() {
    let packet = tcp("[fd00::2]:40000", "[fd00::3]:6379").syn();
    let frame = packet.extension(0, &[5, 2, 0, 0]).extension(60, &[0; 5]).build();
    let slice = parsed(&frame);
    assert!(matches!(slice.transport, Some(TransportSlice::Tcp(_))));
    let Some(NetSlice::Ipv6(ip)) = slice.net else { panic!("IPv6") };
    assert_eq!(ip.header().next_header(), IpNumber::IPV6_HEADER_HOP_BY_HOP);
    assert_eq!(ip.extensions().slice().len(), 16);
}

#[test]
fn tags_stand_in_front_of_the_type() {
    let frame = udp("10.1.1.2:1", "10.1.1.3:2").service_vlan(10).vlan(20).build();
    assert_eq!(frame[12..22], [0x88, 0xa8, 0, 10, 0x81, 0, 0, 20, 0x08, 0]);
    assert!(matches!(parsed(&frame).transport, Some(TransportSlice::Udp(_))));
}

#[test]
fn fragments_add_up_to_the_packet() {
    for packet in [
        udp("10.1.1.2:1", "10.1.1.3:2").payload(&[7; 30]).ip_id(9),
        udp("[fd00::2]:1", "[fd00::3]:2").payload(&[7; 30]).ip_id(9),
    ] {
        let mut whole = Vec::<u8>::new();
        let frames = packet.fragments(16);
        assert_eq!(frames.len(), 3);
        for (index, frame) in frames.iter().enumerate() {
            let (offset, more, bytes) = match parsed(frame).net {
                Some(NetSlice::Ipv4(ip)) => {
                    let header = ip.header();
                    let offset = header.fragments_offset().byte_offset();
                    (offset, header.more_fragments(), ip.payload().payload)
                }
                Some(NetSlice::Ipv6(ip)) => {
                    let (start, bytes) = ip.extensions().slice().split_at(8);
                    assert!(bytes.is_empty());
                    let field = u16::from_be_bytes([start[2], start[3]]);
                    (field & !7, field & 1 == 1, ip.payload().payload)
                }
                other => panic!("{other:?}"),
            };
            assert_eq!((usize::from(offset), more), (index * 16, index < 2));
            whole.extend(bytes);
        }
        assert_eq!(whole, packet.transport_bytes());
    }
}

#[test]
fn arp_asks_and_answers() {
    let request = arp_request("10.1.1.2", "10.1.1.1").build();
    assert_eq!(request[..6], [0xff; 6]);
    assert_eq!(request[20..22], [0, 1]);
    assert_eq!(request[28..32], [10, 1, 1, 2]);
    assert_eq!(request[38..42], [10, 1, 1, 1]);
    assert_eq!(arp_probe("10.1.1.2").build()[28..32], [0; 4]);
    assert_eq!(arp_reply("10.1.1.2", "10.1.1.1").build()[20..22], [0, 2]);
}

#[test]
fn made_wrong_again() {
    let frame = tcp("10.1.1.2:40000", "10.1.1.3:6379").syn().build();
    assert!(SlicedPacket::from_ethernet(&cut(frame.clone(), 30)).is_err());
    let patched = patch_ipv4(frame, 22, &[1]);
    let Some(NetSlice::Ipv4(ip)) = parsed(&patched).net else { panic!("IPv4") };
    assert_eq!(ip.header().ttl(), 1);
    assert_eq!(ip.header().to_header().calc_header_checksum(), ip.header().header_checksum());
}
