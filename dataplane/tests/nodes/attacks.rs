//! Attacks on one cluster node of two: every line of `docs/security.md` about packets has its test
//! here or is named there.

use std::sync::Arc;

use acl::{Action, AddressMap, End, Rule, Table};
use dataplane::services::{Backend, Backends, Entry, Scope, ServicePort, Services};
use dataplane::wire::vxlan::Vxlan;
use dataplane::wire::{self, checksum, protocol};
use dataplane::{AclBinding, Outcome, Parts, Peer, Routes, Underlay};
use testkit::packet::{Packet, arp_request, neighbour_solicitation, other, patch, ping, tcp, udp};

use crate::rig::{Rig, assert_is, host, ip, pod, uplink};

const POD: u16 = 0;
const OTHER: u16 = 1;
const HOST: u16 = 2;
const UPLINK: u16 = 3;
const OVERLAY: Vxlan = Vxlan { network: 4096, port: 4789, group: false };

/// Cluster node 1 with two pods, peers 2 and 3, and addresses beyond those of its object: its
/// gateways on the host port and a bridge.
fn parts() -> Parts {
    let mac = |n| [2, 0, 0, 0, 0, n];
    let peer = |n: u8| Peer {
        name: format!("node{n}"),
        addresses: vec![ip(&format!("192.0.2.{n}")).into(), ip(&format!("2001:db8::{n}")).into()],
        more_addresses: vec![ip(&format!("10.{n}.0.1")).into(), ip(&format!("fd0{n}::1")).into()],
        networks: vec![
            format!("10.{n}.0.0/24").parse().unwrap(),
            format!("fd0{n}::/64").parse().unwrap(),
        ],
        endpoint: ip(&format!("192.0.2.{n}")).into(),
        next_hop: Some(mac(n)),
        ..Peer::default()
    };
    Parts {
        generation: 1,
        ports: vec![
            pod("default/pod", &["10.1.0.2", "fd01::2"]),
            pod("default/other", &["10.1.0.3", "fd01::3"]),
            host(),
            uplink(mac(1), mac(9), 1500),
        ],
        node_addresses: ["192.0.2.1", "2001:db8::1"].map(ip).to_vec(),
        more_node_addresses: ["10.1.0.1", "fd01::1", "172.17.0.1"].map(ip).to_vec(),
        local_networks: vec!["10.1.0.0/24".parse().unwrap(), "fd01::/64".parse().unwrap()],
        routes: Arc::new(Routes::new(vec![peer(2), peer(3)])),
        underlay: Underlay::Overlay(OVERLAY),
        ..Parts::default()
    }
}

fn rig() -> Rig {
    Rig::new(parts())
}

/// A tunnel packet from cluster node `n`.
fn tunnel(n: u8, inner: &[u8]) -> Packet {
    let header = [&[0x08, 0, 0, 0][..], &(OVERLAY.network << 8).to_be_bytes()].concat();
    let payload = [&header, inner].concat();
    udp(&format!("192.0.2.{n}:50000"), "192.0.2.1:4789").payload(&payload)
}

#[track_caller]
fn ends(rig: &mut Rig, port: u16, packet: Packet, name: &str) {
    assert_eq!(rig.send(port, packet.build()).name(), name);
}

#[test]
fn a_pod_sends_from_each_of_its_addresses_and_from_no_other() {
    let own = ["10.1.0.2", "fd01::2", "10.1.0.7", "fd01::7"];
    for count in 0..=own.len() {
        let mut parts = parts();
        parts.ports[usize::from(POD)] = pod("default/pod", &own[..count]);
        let mut rig = Rig::new(parts);
        for (n, address) in own.iter().enumerate() {
            let to = if address.contains(':') { "[fd01::3]:53" } else { "10.1.0.3:53" };
            let from = std::net::SocketAddr::new(ip(address), 5).to_string();
            let outcome = if n < count { "policy-allowed" } else { "spoofed-address" };
            ends(&mut rig, POD, udp(&from, to).payload(b"x"), outcome);
        }
    }
}

/// Packets, of open connections too, ARP and neighbour discovery.
#[test]
fn a_pod_sends_from_its_own_mac_address_alone() {
    let own = [2, 0, 0, 0, 7, 1];
    let mut parts = parts();
    parts.ports[usize::from(POD)].as_mut().unwrap().mac = Some(own);
    let mut rig = Rig::new(parts);
    let macs = [(own, true), ([2, 0, 0, 0, 7, 2], false), ([2, 0, 0, 0, 9, 1], false)];
    for (mac, is_own) in macs {
        let outcome = |own: &'static str| if is_own { own } else { "spoofed-mac" };
        for (n, (from, to)) in
            [("10.1.0.2:5", "10.1.0.3:53"), ("[fd01::2]:5", "[fd01::3]:53")].into_iter().enumerate()
        {
            let packet = udp(from, to).payload(b"x").from_mac(mac);
            ends(&mut rig, POD, packet, outcome("policy-allowed"));
            assert_eq!(rig.receive(OTHER).is_some(), is_own, "{n}");
            // The session of the pod's own frames carries no others.
            let packet = udp(from, to).payload(b"x").from_mac([2, 0, 0, 0, 7, 3]);
            ends(&mut rig, POD, packet, "spoofed-mac");
        }
        let arp = arp_request("10.1.0.2", "10.1.0.1").from_mac(mac).sender_mac(mac).build();
        assert_eq!(rig.send(POD, arp).name(), outcome("arp-reply"));
        let solicitation = || neighbour_solicitation("fd01::2", "fe80::1").from_mac(mac);
        ends(&mut rig, POD, solicitation(), outcome("nd-reply"));
        ends(&mut rig, POD, solicitation().vlan(0), outcome("nd-reply"));
    }
    // An ARP message with another sender than its frame's.
    let arp = arp_request("10.1.0.2", "10.1.0.1").from_mac(own).sender_mac([2, 0, 0, 0, 7, 2]);
    assert_eq!(rig.send(POD, arp.build()).name(), "spoofed-mac");
}

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
        // A cluster node that this one does not know, the kernel of its own one, the world.
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
            assert_eq!(rig.send(POD, frame.clone()).name(), "tunnel-refused", "{frame:02x?}");
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
fn link_local_destinations_are_never_forwarded() {
    let mut rig = rig();
    for (port, from) in
        [(POD, "[fd01::2]:5"), (HOST, "[2001:db8::1]:5"), (UPLINK, "[2001:db8:9::1]:5")]
    {
        for to in ["[fe80::1]:80", "[febf::1]:80"] {
            ends(&mut rig, port, udp(from, to), "link-local");
        }
    }
    for (port, from) in [(POD, "10.1.0.2:5"), (HOST, "192.0.2.1:5"), (UPLINK, "198.51.100.1:5")] {
        ends(&mut rig, port, udp(from, "169.254.169.254:80"), "link-local");
    }
    // One that is the cluster node's own goes no further than to it.
    let mut own = parts();
    own.more_node_addresses.extend([ip("169.254.20.10"), ip("fe80::1")]);
    let mut rig = Rig::new(own);
    ends(&mut rig, POD, udp("10.1.0.2:5", "169.254.20.10:53"), "policy-allowed");
    ends(&mut rig, POD, udp("[fd01::2]:5", "[fe80::1]:53"), "link-local");
    // Neighbour discovery between link-local addresses is not forwarding.
    let ask = testkit::packet::neighbour_solicitation("fe80::2", "fd01::9").build();
    assert_eq!(rig.send(POD, ask), Outcome::NdReply);
}

#[test]
fn link_local_sources_stay_on_their_link() {
    for underlay in [Underlay::Overlay(OVERLAY), Underlay::Routed, Underlay::Plain] {
        let mut rig = Rig::new(Parts { underlay, ..parts() });
        for (from, to) in [
            ("169.254.7.7:5", "10.1.0.2:80"),
            ("[fe80::7]:5", "[fd01::2]:80"),
            ("[febf::7]:5", "[fd01::2]:80"),
        ] {
            ends(&mut rig, UPLINK, tcp(from, to).syn(), "link-local");
            ends(&mut rig, UPLINK, udp(from, to).payload(b"x"), "link-local");
        }
        assert_eq!(rig.sessions().used(), 0);
    }
    // The kernel's own address is the cluster node's.
    let mut own = parts();
    own.more_node_addresses.push(ip("169.254.1.1"));
    ends(&mut Rig::new(own), HOST, tcp("169.254.1.1:5", "10.1.0.2:80").syn(), "own-node");
}

/// A pod whose outbound ACL denies a network and permits the rest.
fn denied(network: &str) -> Parts {
    let mut parts = parts();
    let rules = vec![
        Rule::new(Action::Deny, "denied").destination(End::Net(network.parse().unwrap())),
        Rule::new(Action::Permit, "the rest"),
    ];
    let map = Arc::new(AddressMap::default());
    let table = AclBinding::Table(Arc::new(Table::compile(rules.into(), &map)));
    parts.ports[usize::from(POD)].as_mut().unwrap().from_pod = table;
    parts.addresses = map;
    parts
}

#[test]
fn a_cluster_node_is_denied_at_whatever_address_it_has() {
    for (network, from, reached, not) in [
        (
            "192.0.2.1/32",
            "10.1.0.2:5",
            &["192.0.2.1:22", "10.1.0.1:22", "172.17.0.1:22"][..],
            &["192.0.2.2:22", "10.2.0.1:22"][..],
        ),
        ("192.0.2.2/32", "10.1.0.2:5", &["192.0.2.2:22", "10.2.0.1:22"], &["10.1.0.1:22"]),
        (
            "2001:db8::1/128",
            "[fd01::2]:5",
            &["[2001:db8::1]:22", "[fd01::1]:22"],
            &["[fd02::1]:22"],
        ),
        ("2001:db8::3/128", "[fd01::2]:5", &["[fd03::1]:22"], &["[fd03::2]:22"]),
        // And at the address that the denial names.
        ("10.1.0.1/32", "10.1.0.2:5", &["10.1.0.1:22"], &["192.0.2.1:22", "172.17.0.1:22"]),
        ("172.17.0.1/32", "10.1.0.2:5", &["172.17.0.1:22"], &["192.0.2.1:22"]),
    ] {
        let mut rig = Rig::new(denied(network));
        for to in reached {
            ends(&mut rig, POD, tcp(from, to).syn(), "policy-denied");
        }
        for to in not {
            ends(&mut rig, POD, tcp(from, to).syn(), "policy-allowed");
        }
        // The same where packets come one vector.
        let all = reached
            .iter()
            .chain(not)
            .map(|to| tcp(from, to).syn().tcp_header(|tcp| tcp.source_port = 9).build());
        let found = rig.send_all(POD, all.collect());
        let denied = found.iter().filter(|end| **end == Outcome::PolicyDenied).count();
        assert_eq!(denied, reached.len(), "{network}");
    }
}

#[test]
fn a_denial_reaches_connections_to_every_address_of_a_cluster_node() {
    let mut rig = rig();
    ends(&mut rig, POD, tcp("10.1.0.2:5", "10.2.0.1:22").syn(), "policy-allowed");
    rig.publish(Parts { generation: 2, ..denied("192.0.2.2/32") });
    ends(&mut rig, POD, tcp("10.1.0.2:5", "10.2.0.1:22").data(b"x"), "policy-denied");
}

#[test]
fn nothing_from_the_uplink_is_of_this_cluster_node_or_a_pod() {
    let with_host = parts();
    let mut without = parts();
    without.ports[usize::from(HOST)] = None;
    for parts in [with_host, without] {
        for underlay in [Underlay::Overlay(OVERLAY), Underlay::Routed, Underlay::Plain] {
            let mut rig = Rig::new(Parts { underlay, ..parts.clone() });
            for (source, to) in [
                ("192.0.2.1:5", "10.1.0.2:80"),
                ("10.1.0.1:5", "10.1.0.2:80"),
                ("172.17.0.1:5", "10.1.0.2:80"),
                ("10.1.0.3:5", "10.1.0.2:80"),
                // Its pod network, where nobody has the address now.
                ("10.1.0.77:5", "10.1.0.2:80"),
                ("[2001:db8::1]:5", "[fd01::2]:80"),
                ("[fd01::3]:5", "[fd01::2]:80"),
                ("[fd01::77]:5", "[fd01::2]:80"),
            ] {
                ends(&mut rig, UPLINK, tcp(source, to).syn(), "spoofed-address");
                ends(&mut rig, UPLINK, tcp(source, to).syn().vlan(0), "spoofed-address");
            }
            ends(&mut rig, UPLINK, tcp("198.51.100.1:5", "10.1.0.2:80").syn(), "policy-allowed");
        }
    }
}

#[test]
fn the_kernel_speaks_for_no_pod() {
    for underlay in [Underlay::Overlay(OVERLAY), Underlay::Routed] {
        let mut rig = Rig::new(Parts { underlay, ..parts() });
        for (source, to) in [
            ("10.1.0.3:5", "10.1.0.2:80"),
            ("10.2.0.3:5", "10.1.0.2:80"),
            ("10.1.0.77:5", "10.1.0.2:80"),
            ("[fd03::3]:5", "[fd01::2]:80"),
        ] {
            ends(&mut rig, HOST, tcp(source, to).syn(), "spoofed-address");
        }
        ends(&mut rig, HOST, tcp("10.1.0.1:5", "10.1.0.2:80").syn(), "own-node");
        ends(&mut rig, HOST, tcp("198.51.100.1:5", "10.1.0.2:80").syn(), "policy-allowed");
    }
}

#[test]
fn without_a_host_port_nobody_is_led_elsewhere_by_the_cluster_nodes_addresses() {
    let mut parts = parts();
    parts.ports[usize::from(HOST)] = None;
    for underlay in [Underlay::Overlay(OVERLAY), Underlay::Plain] {
        let mut rig = Rig::new(Parts { underlay, ..parts.clone() });
        for to in ["192.0.2.1:22", "10.1.0.1:22", "172.17.0.1:22"] {
            ends(&mut rig, POD, tcp("10.1.0.2:5", to).syn(), "no-route");
        }
    }
}

#[test]
fn source_routes_and_reserved_addresses_are_refused_by_name() {
    let mut rig = rig();
    let options = |options: &[u8]| tcp("10.1.0.2:5", "10.1.0.3:80").syn().ip_options(options);
    for kind in [131, 137] {
        ends(&mut rig, POD, options(&[kind, 7, 4, 198, 51, 100, 1, 0]), "source-route");
        // Behind others, and whatever its pointer says.
        ends(&mut rig, POD, options(&[1, 7, 3, 4, kind, 7, 8, 198, 51, 100, 1, 0]), "source-route");
        // Cut short by its own length or by the header.
        ends(&mut rig, POD, options(&[kind, 0, 0, 0]), "source-route");
        ends(&mut rig, POD, options(&[1, 1, 1, kind]), "source-route");
    }
    // What stands behind the end of the options is padding, and so is an option's value.
    ends(&mut rig, POD, options(&[0, 131, 7, 4]), "policy-allowed");
    ends(&mut rig, POD, options(&[7, 4, 131, 7]), "session");
    let routing = |kind: u8, left: u8| {
        tcp("[fd01::2]:5", "[fd01::3]:80").syn().extension(43, &[kind, left, 0, 0, 0, 0])
    };
    for kind in [0, 2, 3, 253, 254] {
        for left in [0, 1] {
            ends(&mut rig, POD, routing(kind, left), "source-route");
        }
    }
    // Of another kind, one that leads elsewhere still.
    ends(&mut rig, POD, routing(4, 1), "source-route");
    ends(&mut rig, POD, routing(4, 0), "policy-allowed");
    for (from, to) in [("10.1.0.2:5", "240.0.0.1:80"), ("10.1.0.2:5", "255.255.255.254:80")] {
        ends(&mut rig, POD, tcp(from, to).syn(), "reserved-address");
    }
    ends(&mut rig, UPLINK, tcp("240.0.0.1:80", "10.1.0.2:80").syn(), "reserved-address");
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
                wire::vxlan::class(&frame, &headers) & 3
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

#[test]
fn what_a_cluster_node_sends_on_for_a_service_leaves_under_its_address() {
    let service = |backend: &str| {
        let backends = Backends::new(vec![Backend { address: ip(backend).into(), port: 8080 }]);
        let port = ServicePort {
            internal: backends.clone(),
            any: backends.clone(),
            external: backends,
            ..ServicePort::default()
        };
        let mut services = Services::default();
        services.add_node_port(false, protocol::TCP, 30080, Arc::new(port));
        Arc::new(services)
    };
    let syn = tcp("10.2.0.2:5", "192.0.2.1:30080").syn();
    // On the client's own cluster node, and on a third one.
    for (backend, third) in [("10.2.0.9", "192.0.2.2"), ("10.3.0.9", "192.0.2.3")] {
        let mut rig = Rig::new(Parts { services: service(backend), ..parts() });
        let left = rig.pass(UPLINK, tunnel(2, &syn.build()).build(), UPLINK);
        let outer = wire::parse(&left).unwrap();
        assert_eq!(outer.flow.destination.to_ip(), ip(third));
        let inner = wire::parse(&left[50..]).unwrap().flow;
        assert_eq!(inner.source.to_ip(), ip("192.0.2.1"), "under the cluster node's address");
        assert_eq!(inner.destination.to_ip(), ip(backend));
        let from = third.rsplit('.').next().unwrap().parse().unwrap();
        let answer = tcp(&format!("{backend}:8080"), &format!("192.0.2.1:{}", inner.source_port));
        let back = rig.pass(UPLINK, tunnel(from, &answer.syn_ack().build()).build(), UPLINK);
        assert_eq!(wire::parse(&back).unwrap().flow.destination.to_ip(), ip("192.0.2.2"));
        assert_is(&back[50..], &tcp("192.0.2.1:30080", "10.2.0.2:5").syn_ack().build());
    }
    // On this one the endpoint sees the client.
    let mut rig = Rig::new(Parts { services: service("10.1.0.2"), ..parts() });
    let there = rig.pass(UPLINK, tunnel(2, &syn.build()).build(), POD);
    assert_is(&there, &tcp("10.2.0.2:5", "10.1.0.2:8080").syn().build());
}

#[test]
fn errors_towards_the_kernel_come_from_no_address_of_its_own() {
    let mut parts = parts();
    parts.ports[usize::from(POD)].as_mut().unwrap().mtu = 1000;
    let own = [&parts.node_addresses[..], &parts.more_node_addresses].concat();
    let mut rig = Rig::new(parts);
    for (from, to) in [("192.0.2.1:5", "10.1.0.2:53"), ("[2001:db8::1]:5", "[fd01::2]:53")] {
        assert_eq!(rig.send(HOST, udp(from, to).payload(&[1; 1200]).build()), Outcome::TooBig);
        let error = rig.receive(HOST).expect("the kernel is told");
        let source = wire::parse(&error).unwrap().flow.source.to_ip();
        assert!(!own.contains(&source), "{source} would be a martian");
    }
}

#[test]
fn later_fragments_without_policy_follow_their_first() {
    let mut rig = Rig::new(Parts { underlay: Underlay::Plain, ..parts() });
    for (port, out, from, to) in [
        (HOST, UPLINK, "192.0.2.1:5", "198.51.100.1:53"),
        (UPLINK, HOST, "198.51.100.1:5", "192.0.2.1:53"),
    ] {
        let sent = udp(from, to).payload(&[7; 600]).ip_id(9).fragments(104);
        let (first, later) = sent.split_at(1);
        // Behind their first, in front of it, and some of each.
        for order in [[first, later].concat(), [later, first].concat()] {
            let mut found = Vec::new();
            for frame in order {
                found.extend(rig.send_all(port, vec![frame]));
            }
            found.sort_by_key(|end| end.name());
            let mut expected = vec![Outcome::Fragment; later.len()];
            expected.push(Outcome::NoPolicy);
            assert_eq!(found, expected);
            for _ in &sent {
                assert!(rig.receive(out).is_some());
            }
        }
    }
}

#[test]
fn floods_of_first_fragments_push_out_nobody_elses() {
    let mut rig = Rig::new(parts());
    let victim = udp("10.1.0.3:5", "10.1.0.2:53").payload(&[7; 600]).ip_id(9).fragments(104);
    assert_eq!(rig.send(OTHER, victim[0].clone()), Outcome::PolicyAllowed);
    for id in 0..20_000 {
        let first = udp("10.1.0.2:5", "10.1.0.3:53").payload(&[7; 600]).ip_id(id).fragments(104);
        rig.send(POD, first[0].clone());
        rig.receive(OTHER);
    }
    // From behind the uplink, another sender than the flood's.
    for fragment in &victim[1..] {
        assert_eq!(rig.send(OTHER, fragment.clone()), Outcome::Fragment);
    }
    let from_outside = |n: u8, id| {
        udp(&format!("198.51.100.{n}:5"), "10.1.0.2:53").payload(&[7; 600]).ip_id(id).fragments(104)
    };
    let victim = from_outside(1, 9);
    assert_eq!(rig.send(UPLINK, victim[0].clone()), Outcome::PolicyAllowed);
    for id in 0..20_000 {
        rig.send(UPLINK, from_outside(2, id)[0].clone());
        rig.receive(POD);
    }
    for fragment in &victim[1..] {
        assert_eq!(rig.send(UPLINK, fragment.clone()), Outcome::Fragment);
    }
}

#[test]
fn what_held_before_holds() {
    let mut rig = rig();
    // Another pod's address, its cluster node's, a stranger's.
    for from in ["10.1.0.4", "192.0.2.1", "10.1.0.1", "10.2.0.2", "198.51.100.1"] {
        ends(&mut rig, POD, ping(from, "10.1.0.3", 1, 1), "spoofed-address");
    }
    // The loopback network, this network, an IPv4 address as IPv6.
    for to in ["127.0.0.1", "0.0.0.1"] {
        ends(&mut rig, POD, ping("10.1.0.2", to, 1, 1), "martian");
    }
    ends(&mut rig, POD, ping("fd01::2", "::1", 1, 1), "martian");
    ends(&mut rig, POD, ping("fd01::2", "::ffff:10.1.0.3", 1, 1), "martian");
    ends(&mut rig, POD, other("10.1.0.2", "224.0.0.1", 17), "multicast");
    // A tunnel inside of a tunnel, and one from who is no end of one.
    let nested = tunnel(3, &udp("10.3.0.2:5", "10.1.0.2:53").build());
    ends(&mut rig, UPLINK, tunnel(2, &nested.build()), "spoofed-address");
    ends(&mut rig, UPLINK, tunnel(9, &udp("10.2.0.2:5", "10.1.0.2:53").build()), "tunnel-refused");
    ends(&mut rig, HOST, tunnel(2, &udp("10.2.0.2:5", "10.1.0.2:53").build()), "not-local");
}
