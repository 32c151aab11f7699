//! VXLAN between nodes: the senders a tunnel accepts, and packets that are no tunnel packets.

use testkit::packet::{Packet, arp_request, cut, patch, tcp, udp};

use crate::Scenario;

const NODE1: &str = "192.168.0.11:4789";
const NODE2: &str = "192.168.0.12:50000";

/// The VXLAN header in front of the inner frame (RFC 7348, section 5).
fn header(flags: u8, network: u32) -> [u8; 8] {
    let [_, a, b, c] = network.to_be_bytes();
    [flags, 0, 0, 0, a, b, c, 0]
}

/// A tunnel packet from one end to the other.
fn tunnel(from: &str, header: [u8; 8], inside: impl Into<Vec<u8>>) -> Packet {
    udp(from, NODE1).payload(&[&header[..], &inside.into()].concat())
}

/// A tunnel carries packets of its node and of that node's pods only.
pub(super) fn tunnels() -> Scenario {
    const IN: &[&str] = &["NetworkPolicy default/web-in ingress[0]"];
    const DENIED: &[&str] = &["default-deny of NetworkPolicy default/web-in"];
    let web = "default/web";
    let mut s = Scenario::new(
        "tunnels",
        "node1",
        "VXLAN: a tunnel carries packets of its node and that node's pods; truncated, nested and foreign packets are dropped, each with its reason",
    )
    .with(&["--underlay", "vxlan"]);
    let valid = header(0x08, 4096);
    let open = |port: u16| tcp(&format!("10.1.2.20:{port}"), "10.1.1.220:80").syn();
    s.from("uplink", tunnel(NODE2, valid, open(40_000))).allowed(web, IN);
    s.from(web, tcp("10.1.1.220:80", "10.1.2.20:40000").syn_ack()).session("uplink");
    s.from("uplink", tunnel(NODE2, valid, tcp("10.1.2.20:40000", "10.1.1.220:80").ack()))
        .session(web);
    // A client that the policy does not select.
    s.from("uplink", tunnel(NODE2, valid, tcp("10.1.2.21:40000", "10.1.1.220:80").syn()))
        .denied(DENIED);
    // IPv6 inside of IPv4, and tags inside.
    let six = tcp("[fd00:1:2::14]:40000", "[fd00:1:1::dc]:80").syn();
    s.from("uplink", tunnel(NODE2, valid, six)).allowed(web, IN);
    s.from("uplink", tunnel(NODE2, valid, open(40_001).vlan(7))).allowed(web, IN);
    // The group field says nothing here, whatever it says.
    s.from("uplink", tunnel(NODE2, header(0x88, 4096), open(40_002))).allowed(web, IN);
    // The pods of node2 do not speak outside of its tunnel.
    s.from("uplink", open(40_003)).dropped("spoofed-address");
    // No tunnel exists from the outside world or this node itself.
    s.from("uplink", tunnel("198.51.100.9:50000", valid, open(40_004))).dropped("tunnel-refused");
    // Inside may be no address of this node's pods, of the world, of another node.
    for source in ["10.1.1.221:1", "198.51.100.9:1", "10.1.3.7:1"] {
        s.from("uplink", tunnel(NODE2, valid, tcp(source, "10.1.1.220:80").syn()))
            .dropped("spoofed-address");
    }
    // Another network, and the flag that says there is one.
    s.from("uplink", tunnel(NODE2, header(0x08, 4097), open(40_005))).dropped("tunnel-refused");
    s.from("uplink", tunnel(NODE2, header(0, 4096), open(40_005))).dropped("tunnel-refused");
    // Cut at every layer: before, in and behind the VXLAN header, in the inner headers.
    for (length, reason) in [
        (0, "tunnel-refused"),
        (7, "tunnel-refused"),
        (8, "tunnel-refused"),
        (8 + 13, "tunnel-refused"),
        (8 + 14, "truncated"),
        (8 + 14 + 19, "truncated"),
        (8 + 14 + 20, "truncated"),
        (8 + 14 + 20 + 19, "truncated"),
    ] {
        let whole = [&valid[..], &open(40_006).build()].concat();
        let packet = udp(NODE2, NODE1).payload(&whole[..length]);
        s.from("uplink", packet).dropped(reason);
    }
    // The frame itself truncated: the outer lengths reveal it.
    s.from("uplink", cut(tunnel(NODE2, valid, open(40_006)), 60)).dropped("truncated");
    // A tunnel in a tunnel leads nowhere further.
    let nested = tunnel(NODE2, valid, open(40_007));
    s.from("uplink", tunnel(NODE2, valid, nested)).forwarded("host", "no-policy");
    // Neighbours are not found through tunnels; groups are not served.
    s.from("uplink", tunnel(NODE2, valid, arp_request("10.1.2.20", "10.1.1.220")))
        .dropped("tunnel-refused");
    s.from("uplink", tunnel(NODE2, valid, udp("10.1.2.20:5353", "224.0.0.251:5353")))
        .dropped("multicast");
    // Inside as broken as anywhere.
    let broken = patch(open(40_008), 24, &[0xde, 0xad]);
    s.from("uplink", tunnel(NODE2, valid, broken)).dropped("bad-checksum");
    s.from("uplink", tunnel(NODE2, valid, open(40_008).ttl(1))).dropped("ttl-expired");
    // Tunnel packets are not put together from fragments: what comes in pieces is the kernel's.
    let pieces = tunnel(NODE2, valid, open(40_009)).ip_id(9).fragments(48);
    s.from("uplink", pieces[0].clone()).forwarded("host", "no-policy");
    s
}
