//! Checksums that a kernel left to hardware are completed, and finished ones left alone.

use dataplane::wire::{self, checksum, partial_checksum};
use proptest::prelude::*;
use testkit::packet::{Packet, tcp, udp};

/// Where the transport checksum stands, and where the addresses do.
fn places(frame: &[u8]) -> (usize, std::ops::Range<usize>) {
    let headers = wire::parse(frame).unwrap();
    let (l3, l4) = (usize::from(headers.l3), usize::from(headers.l4));
    let field = if headers.flow.protocol == wire::protocol::TCP { 16 } else { 6 };
    let v4 = headers.flow.source.is_v4();
    (l4 + field, if v4 { l3 + 12..l3 + 20 } else { l3 + 8..l3 + 40 })
}

/// The frame as a kernel with checksum offload hands it over: the sum of the pseudo header only.
fn left_open(frame: &[u8]) -> Vec<u8> {
    let headers = wire::parse(frame).unwrap();
    let (at, addresses) = places(frame);
    let length = usize::from(headers.end - headers.l4);
    let sum = checksum::pseudo(&frame[addresses], headers.flow.protocol, length);
    let mut open = frame.to_vec();
    open[at..at + 2].copy_from_slice(&checksum::fold(sum).to_be_bytes());
    open
}

fn packets() -> impl Strategy<Value = Packet> {
    let ends = [("10.1.0.2", "10.1.0.3"), ("[fd00::2]", "[fd00::3]")];
    let parts = (0..2_usize, any::<bool>(), 1..u16::MAX, 1..u16::MAX);
    (parts, proptest::collection::vec(any::<u8>(), 0..300)).prop_map(
        move |((family, is_tcp, from, to), payload)| {
            let (a, b) = ends[family];
            let (from, to) = (format!("{a}:{from}"), format!("{b}:{to}"));
            match is_tcp {
                true => tcp(&from, &to).ack().payload(&payload),
                false => udp(&from, &to).payload(&payload),
            }
        },
    )
}

proptest! {
    #[test]
    fn what_was_left_open_is_completed(packet in packets()) {
        let finished = packet.build();
        let mut frame = left_open(&finished);
        let headers = wire::parse(&frame).unwrap();
        prop_assert!(partial_checksum::complete(&mut frame, &headers));
        prop_assert_eq!(frame, finished);
    }

    #[test]
    fn what_is_finished_is_left_alone(packet in packets()) {
        let finished = packet.build();
        let mut frame = finished.clone();
        let headers = wire::parse(&frame).unwrap();
        partial_checksum::complete(&mut frame, &headers);
        prop_assert_eq!(frame, finished);
    }

    #[test]
    fn one_hop_less_keeps_the_header_sound(packet in packets()) {
        let mut frame = packet.ttl(17).build();
        let headers = wire::parse(&frame).unwrap();
        checksum::decrement_ttl(&mut frame, &headers);
        let after = wire::parse(&frame).expect("still sound");
        prop_assert_eq!(after, wire::Headers { ttl: 16, ..headers });
    }
}

/// UDP over IPv4 may do without a checksum (RFC 768); there is nothing to complete.
#[test]
fn no_checksum_stays_none() {
    let mut frame = udp("10.1.0.2:53", "10.1.0.3:4000").payload(b"answer").build();
    let (at, _) = places(&frame);
    frame[at..at + 2].fill(0);
    let before = frame.clone();
    let headers = wire::parse(&frame).unwrap();
    assert!(!partial_checksum::complete(&mut frame, &headers));
    assert_eq!(frame, before);
}
