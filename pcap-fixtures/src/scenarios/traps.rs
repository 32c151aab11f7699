//! Packets that have broken other parsers, each sound enough to be taken up.

use testkit::packet::{arp_request, icmp, icmp_error, other, patch, tcp, udp};

use crate::Scenario;

/// Nested tags, chains of headers, fragments of nothing, options of nonsense.
pub(super) fn parser_traps() -> Scenario {
    const OPEN: &[&str] = &["NetworkPolicy default/b-in ingress[0]"];
    const OPEN_UDP: &[&str] = &["NetworkPolicy default/b-in ingress[1]"];
    const DENIED: &[&str] = &["default-deny of NetworkPolicy default/b-in"];
    let (a, b) = ("default/a", "default/b");
    let mut s = Scenario::new(
        "parser-traps",
        "node1",
        "nested VLAN tags, chains of extension headers, empty and overlapping fragments, invalid options: none changes the evaluated flow",
    );
    let mut port = 40_000;
    let mut four = |to: u16| {
        port += 1;
        tcp(&format!("10.1.1.230:{port}"), &format!("10.1.1.231:{to}")).syn()
    };
    // Priority tags in the order that no switch gives them, and an ARP packet behind two.
    s.from(a, four(80).vlan(0).service_vlan(0)).allowed(b, OPEN);
    s.from(a, four(81).vlan(0).service_vlan(0)).denied(DENIED);
    let tagged = {
        let arp = arp_request("10.1.1.230", "10.1.1.231").build();
        let tag = [0x81, 0, 0, 0, 0x81, 0, 0, 0];
        [&arp[..12], &tag, &arp[12..]].concat()
    };
    s.from(a, tagged).consumed("arp-reply");
    // A tag whose inner type says that a length follows.
    s.from(a, patch(four(80).vlan(1), 16, &[0, 40])).dropped("unknown-ethertype");

    // TCP options are the receiver's: of length 0 and 1, beyond the header, all ones. The port
    // is where it always is.
    let options: [&[u8]; 5] =
        [&[2, 0, 0, 0], &[3, 1, 3, 1], &[8, 255, 1, 1], &[0xff; 40], &[1, 1, 1, 2]];
    for bytes in options {
        let words = 5 + bytes.len() as u8 / 4;
        let garbage = |packet: testkit::packet::Packet| {
            patch(packet.payload(bytes), 14 + 20 + 12, &[words << 4])
        };
        s.from(a, garbage(four(80))).allowed(b, OPEN);
        s.from(a, garbage(four(81))).denied(DENIED);
    }
    // IPv4 options: none, one of length 0, the end of the list and rubbish behind it.
    for bytes in [&[1, 1, 1, 1][..], &[7, 0, 0, 0], &[0, 0xff, 0xff, 0xff], &[0xff; 40]] {
        s.from(a, four(80).ip_options(bytes)).allowed(b, OPEN);
        s.from(a, four(81).ip_options(bytes)).denied(DENIED);
    }

    // IPv6: the policy is about the packet behind the chain.
    let mut port6 = 40_000;
    let mut six = |to: u16| {
        port6 += 1;
        tcp(&format!("[fd00:1:1::e6]:{port6}"), &format!("[fd00:1:1::e7]:{to}")).syn()
    };
    const HOP_BY_HOP: u8 = 0;
    const ROUTING: u8 = 43;
    const AUTHENTICATION: u8 = 51;
    const NONE: u8 = 59;
    const DESTINATION: u8 = 60;
    let pad = [1, 4, 0, 0, 0, 0];
    let chain = |packet: testkit::packet::Packet| {
        packet.extension(HOP_BY_HOP, &pad).extension(DESTINATION, &pad).extension(DESTINATION, &pad)
    };
    s.from(a, chain(six(80))).allowed(b, OPEN);
    s.from(a, chain(six(81))).denied(DENIED);
    // Options whose lengths lead beyond their header: the receiver's business, as in IPv4.
    s.from(a, six(80).extension(DESTINATION, &[1, 200, 0, 0, 0, 0])).allowed(b, OPEN);
    // Hop-by-hop comes first or not at all (RFC 8200, section 4.1).
    s.from(a, six(80).extension(DESTINATION, &pad).extension(HOP_BY_HOP, &pad))
        .dropped("malformed-ip");
    // Routing header type 0 (RFC 5095) with a segment left, and with none.
    s.from(a, six(80).extension(ROUTING, &[0, 1, 0, 0, 0, 0])).dropped("source-route");
    s.from(a, six(80).extension(ROUTING, &[0, 0, 0, 0, 0, 0])).dropped("source-route");
    // A chain that goes on and on.
    let endless = (0..40).fold(six(80), |packet, _| packet.extension(DESTINATION, &pad));
    s.from(a, endless).dropped("malformed-ip");
    // A header longer than the packet.
    s.from(a, patch(six(80).extension(DESTINATION, &pad), 14 + 40 + 1, &[255]))
        .dropped("malformed-ip");
    s.from(a, patch(six(80).extension(AUTHENTICATION, &pad), 14 + 40 + 1, &[255]))
        .dropped("malformed-ip");
    // No next header: nothing that a rule for TCP is about.
    s.from(a, other("fd00:1:1::e6", "fd00:1:1::e7", NONE).payload(&[0; 20])).denied(DENIED);

    // Fragments of nothing: a first one without its ports, a later one without bytes.
    let datagram = udp("10.1.1.230:5000", "10.1.1.231:53").payload(&[1; 40]);
    s.from(a, datagram.clone().ip_id(1).fragment(0, true, &[])).dropped("malformed-transport");
    let bytes = datagram.transport_bytes();
    let piece = |id: u32, offset: usize, more: bool, bytes: &[u8]| {
        datagram.clone().ip_id(id).fragment(offset, more, bytes)
    };
    s.from(a, piece(2, 0, true, &bytes[..16])).allowed(b, OPEN_UDP);
    s.from(a, piece(2, 16, true, &[])).forwarded(b, "fragment");
    s.from(a, piece(2, 16, false, &bytes[16..])).forwarded(b, "fragment");
    // Overlapping fragments belong to the datagram they name, which was evaluated: what the receiver
    // makes of them has the ports of the first, unless they bring others.
    s.from(a, piece(3, 0, true, &bytes[..24])).session(b);
    s.from(a, piece(3, 8, true, &[2; 24])).forwarded(b, "fragment");
    s.from(a, piece(3, 24, false, &bytes[24..])).forwarded(b, "fragment");
    // Another first fragment, which would: it is evaluated by its own ports.
    let elsewhere = udp("10.1.1.230:5000", "10.1.1.231:54").payload(&[1; 40]);
    s.from(a, elsewhere.ip_id(3).fragments(24)[0].clone()).denied(DENIED);
    // A datagram that is one fragment, the first and the last (RFC 6946).
    s.from(a, piece(4, 0, false, &bytes)).session(b);
    s
}

/// ICMP errors that quote too little, too much or themselves.
pub(super) fn quotes() -> Scenario {
    const OPEN: &[&str] = &["default-allow"];
    let (a, b) = ("default/a", "default/b");
    let mut s = Scenario::new(
        "quotes",
        "node1",
        "an ICMP error needs enough of the packet it is about to find its session; lengths inside a quote are not believed",
    );
    let asked = udp("10.1.1.235:5000", "10.1.1.236:7").payload(&[1; 64]);
    s.from(a, asked.clone()).allowed(b, OPEN);
    let quoting = |bytes: &[u8]| icmp("10.1.1.236", "10.1.1.235", 3, 3).payload(bytes);
    let whole = asked.internet_packet();
    // Nothing, less than a header, a header without ports, half of them.
    for length in [0, 1, 19, 20, 22, 23] {
        s.from(b, quoting(&whole[..length])).dropped("no-session");
    }
    // RFC 792 requires eight bytes behind the header; four hold the ports.
    for length in [24, 28, 60] {
        s.from(b, quoting(&whole[..length])).forwarded(a, "related");
    }
    // A header that says it is longer than the quote, shorter than any, or IPv6.
    for first in [0x4f, 0x44, 0x40, 0x65] {
        let mut quote = whole[..28].to_vec();
        quote[0] = first;
        s.from(b, quoting(&quote)).dropped("no-session");
    }
    // A total length that is not the packet's: routers cut what they quote.
    let mut quote = whole[..28].to_vec();
    quote[2..4].copy_from_slice(&[0xff, 0xff]);
    s.from(b, quoting(&quote)).forwarded(a, "related");
    // A later fragment has no ports to be found by.
    let mut quote = whole[..28].to_vec();
    quote[6..8].copy_from_slice(&[0, 1]);
    s.from(b, quoting(&quote)).dropped("no-session");
    // An error about an error (RFC 1122 forbids them), and one that quotes the way back.
    let about = icmp_error("10.1.1.236", "10.1.1.235", 3, 3, &asked);
    s.from(a, icmp_error("10.1.1.235", "10.1.1.236", 3, 3, &about)).dropped("no-session");
    let back = udp("10.1.1.236:7", "10.1.1.235:5000");
    s.from(b, icmp_error("10.1.1.236", "10.1.1.235", 3, 3, &back)).dropped("no-session");
    // IPv6, with a chain in the quote that is whole, and one that is cut.
    let asked = udp("[fd00:1:1::eb]:5000", "[fd00:1:1::ec]:7").payload(&[1; 64]);
    s.from(a, asked.clone()).allowed(b, OPEN);
    let quoting = |bytes: &[u8]| icmp("fd00:1:1::ec", "fd00:1:1::eb", 1, 4).payload(bytes);
    let chained = asked.extension(60, &[1, 4, 0, 0, 0, 0]).internet_packet();
    for length in [0, 39, 40, 44, 48, 50] {
        s.from(b, quoting(&chained[..length])).dropped("no-session");
    }
    s.from(b, quoting(&chained[..56])).forwarded(a, "related");
    s
}
