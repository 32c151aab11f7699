//! Packets in tunnels, and packets that want to be.

use super::*;

/// Whatever is known of the tunnel packet before it in a vector.
#[test]
fn each_tunnel_packet_of_a_vector_is_held_to_its_own_addresses() {
    let mut rig = rig();
    let inner = |n: u8| udp(&format!("10.{n}.0.2:5"), "10.1.0.2:53").payload(b"x").build();
    let frames = [(2, 2), (2, 3), (3, 3), (3, 2), (7, 2), (2, 2)]
        .map(|(outer, inside)| tunnel(outer, &inner(inside)).build());
    let outcomes = rig.send_all(UPLINK, frames.to_vec());
    let names: Vec<&str> = outcomes.iter().map(|outcome| outcome.name()).collect();
    let (allowed, spoofed, refused) = ("policy-allowed", "spoofed-address", "tunnel-refused");
    assert_eq!(names, [allowed, spoofed, allowed, spoofed, refused, allowed]);
}

#[test]
fn no_pod_reaches_the_tunnel_port_of_anybody_outside_of_tunnels() {
    for masquerade in [false, true] {
        let mut rig = Rig::new(Parts { masquerade, ..parts() });
        // A node that this one does not know, the kernel of its own one, the world.
        for (from, to) in [
            ("10.1.0.2:5", "192.0.2.7:4789"),
            ("10.1.0.2:5", "192.0.2.1:4789"),
            ("10.1.0.2:5", "198.51.100.1:4789"),
            ("[fd01::2]:5", "[2001:db8::7]:4789"),
        ] {
            ends(&mut rig, POD, udp(from, to).payload(b"x"), "tunnel-refused");
            let fragment = udp(from, to).payload(&[1; 200]).fragments(104).swap_remove(0);
            assert_eq!(rig.send(POD, fragment).name(), "tunnel-refused");
        }
        for frame in wrapped("10.1.0.2:5", "192.0.2.7:4789", b"x").chain(wrapped(
            "[fd01::2]:5",
            "[2001:db8::7]:4789",
            b"x",
        )) {
            // A pod is in no VLAN.
            let is_tagged = matches!(frame[12..14], [0x81, 0] | [0x88, 0xa8]);
            let is_in_vlan = is_tagged && frame[15] != 0;
            let expected = if is_in_vlan { "pod-vlan" } else { "tunnel-refused" };
            assert_eq!(rig.send(POD, frame.clone()).name(), expected, "{frame:02x?}");
        }
        assert_eq!(rig.sessions().used(), 0);
        // Tunnels of its own, to pods here and elsewhere, and other ports are a pod's business.
        for to in ["10.1.0.3:4789", "10.2.0.3:4789", "198.51.100.1:4790"] {
            ends(&mut rig, POD, udp("10.1.0.2:5", to).payload(b"x"), "policy-allowed");
        }
        ends(&mut rig, POD, tcp("10.1.0.2:5", "192.0.2.7:4789").syn(), "policy-allowed");
    }
}

/// A datagram with tags, without a checksum, with IPv4 options or IPv6 extension headers.
fn wrapped(from: &str, to: &str, payload: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let plain = udp(from, to).payload(payload);
    let padding: &[u8] = &[1, 4, 0, 0, 0, 0];
    let (special, checksum) = match from.starts_with('[') {
        false => (vec![plain.clone().ip_options(&[1, 1, 1, 1])], 40),
        true => {
            let atomic = plain.clone().extension(44, &[0, 0, 0, 0, 0, 9]);
            let many = (0..8).fold(plain.clone(), |packet, _| packet.extension(60, padding));
            (vec![plain.clone().extension(0, padding), many, atomic], 60)
        }
    };
    let tagged =
        [plain.clone().vlan(0), plain.clone().vlan(7), plain.clone().service_vlan(7).vlan(9)];
    let without_checksum = patch(plain.build(), checksum, &[0, 0]);
    let built = tagged.into_iter().chain(special).map(|packet| packet.build());
    built.chain([without_checksum])
}

#[test]
fn a_tunnel_packet_is_held_to_its_other_end_however_it_is_wrapped() {
    let header = [&[0x08, 0, 0, 0][..], &(OVERLAY.network << 8).to_be_bytes()].concat();
    let inside = |source: &str| {
        let inner = udp(&format!("{source}:1"), "10.1.0.2:53").payload(b"x").build();
        [&header[..], &inner].concat()
    };
    let outer = |n: u8, v6: bool| match v6 {
        false => (format!("192.0.2.{n}:5"), "192.0.2.1:4789"),
        true => (format!("[2001:db8::{n}]:5"), "[2001:db8::1]:4789"),
    };
    for v6 in [false, true] {
        let mut parts = parts();
        let mut peers = parts.routes.peers().to_vec();
        if v6 {
            peers.iter_mut().for_each(|peer| peer.endpoint = peer.addresses[1]);
        }
        parts.routes = Arc::new(Routes::new(peers));
        for (n, source, expected) in [
            (2, "10.2.0.2", "policy-allowed"),
            (2, "10.3.0.2", "spoofed-address"),
            (2, "10.1.0.3", "spoofed-address"),
            (2, "192.0.2.1", "spoofed-address"),
            (7, "10.2.0.2", "tunnel-refused"),
            (7, "198.51.100.1", "tunnel-refused"),
        ] {
            let (from, to) = outer(n, v6);
            for frame in wrapped(&from, to, &inside(source)) {
                let mut rig = Rig::new(parts.clone());
                assert_eq!(rig.send(UPLINK, frame).name(), expected, "{from} {source}");
                assert_eq!(rig.receive(POD).is_some(), expected == "policy-allowed");
            }
            // In fragments it is the kernel's, whatever is in it.
            let mut rig = Rig::new(parts.clone());
            let padded = [inside(source), vec![0; 200]].concat();
            for frame in udp(&from, to).payload(&padded).ip_id(9).fragments(64) {
                rig.send_all(UPLINK, vec![frame]);
            }
            assert_eq!(rig.receive(POD), None);
        }
    }
}

#[test]
fn another_cluster_nodes_processes_reach_pods_by_its_tunnel_alone() {
    let mut rig = rig();
    for (from, to) in [("192.0.2.2:5", "10.1.0.2:80"), ("[2001:db8::2]:5", "[fd01::2]:80")] {
        ends(&mut rig, UPLINK, tcp(from, to).syn(), "spoofed-address");
        ends(&mut rig, UPLINK, tunnel(2, &tcp(from, to).syn().build()), "policy-allowed");
        // Also within the connection that it has by the tunnel.
        ends(&mut rig, UPLINK, tcp(from, to).data(b"x"), "spoofed-address");
        ends(&mut rig, UPLINK, tcp(from, to).rst(), "spoofed-address");
        ends(&mut rig, UPLINK, tunnel(2, &tcp(from, to).data(b"x").build()), "session");
    }
    // Its pods have no other way, wherever they go.
    for (from, to) in [("10.2.0.2:5", "192.0.2.1:22"), ("[fd02::2]:5", "[2001:db8::1]:22")] {
        ends(&mut rig, UPLINK, tcp(from, to).syn(), "spoofed-address");
        ends(&mut rig, UPLINK, tunnel(2, &tcp(from, to).syn().build()), "no-policy");
    }
    let mut rig = Rig::new(Parts { underlay: Underlay::Routed, ..parts() });
    ends(&mut rig, UPLINK, tcp("192.0.2.2:5", "10.1.0.2:80").syn(), "policy-allowed");
}

/// A forged tunnel packet has no address of the kernel's own, such as loopback. What it has for the node, the host
/// firewalls see with the sender that is inside.
#[test]
fn a_tunnel_leads_to_no_special_address_of_the_kernel() {
    let inner = |to: &str| {
        let from = if to.starts_with('[') { "[fd02::2]:5" } else { "10.2.0.2:5" };
        udp(from, to).payload(b"x").build()
    };
    for to in [
        "127.0.0.1:53",
        "0.0.0.0:53",
        "224.0.0.1:53",
        "255.255.255.255:53",
        "169.254.169.254:53",
        "[::1]:53",
        "[::]:53",
        "[ff02::1]:53",
        "[fe80::1]:53",
        "[::ffff:192.0.2.1]:53",
    ] {
        let mut rig = rig();
        rig.send(UPLINK, tunnel(2, &inner(to)).build());
        assert_eq!(rig.receive(HOST), None, "{to}");
        assert_eq!((rig.receive(POD), rig.receive(OTHER)), (None, None), "{to}");
    }
    for to in ["192.0.2.1:53", "10.1.0.1:53", "172.17.0.1:53", "[2001:db8::1]:53"] {
        let mut rig = rig();
        ends(&mut rig, UPLINK, tunnel(2, &inner(to)), "no-policy");
        let frame = rig.receive(HOST).unwrap();
        assert_is(&frame, &inner(to));
    }
    // A tunnel within a tunnel is not opened.
    let pods = udp("10.3.0.2:5", "10.1.0.2:53").payload(b"x").build();
    let nested = tunnel(3, &pods).build();
    let mut rig = rig();
    rig.send(UPLINK, tunnel(2, &nested).build());
    assert_eq!((rig.receive(POD), rig.receive(HOST)), (None, None));
    let header = [&[0x08, 0, 0, 0][..], &(OVERLAY.network << 8).to_be_bytes()].concat();
    let from_pod = udp("10.2.0.2:5", "192.0.2.1:4789").payload(&[&header, &pods[..]].concat());
    rig.send(UPLINK, tunnel(2, &from_pod.build()).build());
    assert_eq!(rig.receive(POD), None);
}

/// An error goes to the sender of what it quotes, by the way that this left, and to nobody else: not to the node's
/// processes, nor to a pod that its sender may not reach.
#[test]
fn errors_lead_nowhere_that_their_connection_does_not() {
    let mut rig = rig();
    let question = udp("10.1.0.2:5", "10.2.0.2:53").payload(b"x");
    ends(&mut rig, POD, question.clone(), "policy-allowed");
    let own = udp("192.0.2.1:5", "10.1.0.2:53").payload(b"x");
    ends(&mut rig, HOST, own.clone(), "own-node");
    let data = |from: &str, to: &str, quoted: &Packet| {
        icmp(from, to, 3, 3).payload(&quoted.clone().payload(&[7; 400]).internet_packet())
    };
    // Another pod's, about both connections.
    for (to, quoted) in [("10.1.0.2", &question), ("192.0.2.1", &own)] {
        ends(&mut rig, OTHER, data("10.1.0.3", to, quoted), "no-session");
        ends(&mut rig, UPLINK, data("198.51.100.1", "192.0.2.1", quoted), "no-session");
    }
    // An end's own, to somebody else.
    for to in ["192.0.2.1", "10.1.0.3", "10.1.0.1"] {
        ends(&mut rig, UPLINK, tunnel(2, &data("10.2.0.2", to, &question).build()), "no-session");
        ends(&mut rig, POD, data("10.1.0.2", to, &question), "no-session");
    }
    // A pod has the node's error about nothing, and the other way round.
    ends(
        &mut rig,
        POD,
        data("10.1.0.2", "192.0.2.1", &udp("192.0.2.1:9", "10.1.0.2:9")),
        "no-session",
    );
    ends(&mut rig, UPLINK, tunnel(2, &data("10.2.0.2", "10.1.0.2", &question).build()), "related");
    ends(&mut rig, POD, data("10.1.0.2", "192.0.2.1", &own), "related");
}

#[test]
fn no_service_leads_to_a_tunnel_port_outside_of_tunnels() {
    let mut services = Services::default();
    let backends = Backends::new(vec![Backend { address: ip("192.0.2.7").into(), port: 4789 }]);
    let port = ServicePort {
        internal: backends.clone(),
        any: backends.clone(),
        external: backends,
        ..ServicePort::default()
    };
    let entry = Entry { port: Arc::new(port), scope: Scope::External };
    services.add(ip("203.0.113.7").into(), protocol::UDP, 53, entry);
    let mut rig = Rig::new(Parts { services: Arc::new(services), masquerade: true, ..parts() });
    ends(&mut rig, POD, udp("10.1.0.2:5", "203.0.113.7:53").payload(b"x"), "tunnel-refused");
    ends(&mut rig, UPLINK, udp("198.51.100.1:5", "203.0.113.7:53"), "tunnel-refused");
    ends(&mut rig, HOST, udp("192.0.2.1:5", "203.0.113.7:53"), "tunnel-refused");
}

#[test]
fn a_congestion_mark_is_never_lost_at_the_end_of_a_tunnel() {
    // The outer and the inner mark, and the inner one as it leaves (RFC 6040, figure 4).
    for (outer, inner, left) in [
        (0b00, 0b00, Some(0b00)),
        (0b01, 0b00, Some(0b00)),
        (0b10, 0b00, Some(0b00)),
        (0b11, 0b00, None),
        (0b00, 0b10, Some(0b10)),
        (0b01, 0b10, Some(0b01)),
        (0b10, 0b10, Some(0b10)),
        (0b11, 0b10, Some(0b11)),
        (0b00, 0b01, Some(0b01)),
        (0b10, 0b01, Some(0b01)),
        (0b11, 0b01, Some(0b11)),
        (0b00, 0b11, Some(0b11)),
        (0b11, 0b11, Some(0b11)),
    ] {
        for (from, to) in [("10.2.0.2:5", "10.1.0.2:53"), ("[fd02::2]:5", "[fd01::2]:53")] {
            let frame = marked(udp(from, to).payload(b"x").build(), inner);
            let outer_frame = marked(tunnel(2, &frame).build(), outer);
            let mut rig = rig();
            let end = rig.send(UPLINK, outer_frame);
            let got = rig.receive(POD).map(|frame| {
                let headers = wire::parse(&frame).unwrap();
                wire::traffic_class::of(&frame, &headers) & 3
            });
            assert_eq!(got, left, "{outer:02b} around {inner:02b}: {end}");
            assert_eq!(end.name() == "congestion-lost", left.is_none());
        }
    }
}

/// The frame with a mark in its traffic class.
fn marked(mut frame: Vec<u8>, mark: u8) -> Vec<u8> {
    match frame[12..14] {
        [0x08, 0x00] => {
            frame[15] |= mark;
            frame[24..26].fill(0);
            let sum = !checksum::fold(checksum::sum(&frame[14..34]));
            frame[24..26].copy_from_slice(&sum.to_be_bytes());
        }
        _ => frame[15] |= mark << 4,
    }
    frame
}
