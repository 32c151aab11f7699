//! Attacks on one node of two: every line of `docs/security.md` about packets has its test
//! here or is named there.

mod cluster_node;
mod tunnels;

use std::sync::Arc;

use acl::{Action, AddressMapBuilder, Block, End, PeerSetId, Rule, Table};
use dataplane::services::{Backend, Backends, Entry, Scope, ServicePort, Services};
use dataplane::wire::vxlan::Vxlan;
use dataplane::wire::{self, checksum, protocol};
use dataplane::{AclBinding, Outcome, Parts, Peer, Routes, Underlay};
use testkit::packet::{
    Packet, arp_request, icmp, neighbour_solicitation, other, patch, ping, tcp, udp,
};

use crate::nodes::rig::{Rig, assert_is, host, ip, pod, uplink};

const POD: u16 = 0;
const OTHER: u16 = 1;
const HOST: u16 = 2;
const UPLINK: u16 = 3;
const OVERLAY: Vxlan = Vxlan { network: 4096, port: 4789, group: false };

/// Node 1 with two pods, peers 2 and 3, and addresses beyond those of its object: its
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

/// A tunnel packet from node `n`.
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

#[test]
fn no_frame_of_a_pod_is_of_a_vlan() {
    let mut rig = Rig::new(parts());
    for (from, to) in [("10.1.0.2:9", "10.1.0.3:9"), ("[fd01::2]:9", "[fd01::3]:9")] {
        let packet = || udp(from, to).payload(b"x");
        ends(&mut rig, POD, packet().vlan(7), "pod-vlan");
        ends(&mut rig, POD, packet().service_vlan(0).vlan(7), "pod-vlan");
        ends(&mut rig, POD, packet().service_vlan(7).vlan(0), "pod-vlan");
        ends(&mut rig, POD, packet().vlan(0), "policy-allowed");
    }
    let mut arp = arp_request("10.1.0.2", "10.1.0.1").build();
    arp.splice(12..12, [0x81, 0, 0, 7]);
    assert_eq!(rig.send(POD, arp).name(), "pod-vlan");
    ends(&mut rig, POD, neighbour_solicitation("fd01::2", "fe80::1").vlan(7), "pod-vlan");
}

#[test]
fn some_link_local_destinations_are_asked_of_the_kernel_for_pods() {
    for underlay in [Underlay::Overlay(OVERLAY), Underlay::Routed, Underlay::Plain] {
        let link_local_destinations = vec!["169.254.169.254/32".parse().unwrap()];
        let with_host = Parts { underlay, link_local_destinations, ..parts() };
        let mut rig = Rig::new(with_host.clone());
        let ask = tcp("10.1.0.2:5", "169.254.169.254:80").syn();
        ends(&mut rig, POD, ask, "policy-allowed");
        assert!(rig.receive(HOST).is_some(), "the kernel is asked");
        let answer = tcp("169.254.169.254:80", "10.1.0.2:5").syn_ack();
        ends(&mut rig, HOST, answer, "session");
        ends(&mut rig, POD, tcp("10.1.0.2:5", "169.254.169.253:80").syn(), "link-local");
        for (port, from) in [(HOST, "192.0.2.1:5"), (UPLINK, "198.51.100.1:5")] {
            ends(&mut rig, port, udp(from, "169.254.169.254:80"), "link-local");
        }
        // Policies decide.
        let ruled = cluster_node::denied("169.254.169.254/32");
        rig.publish(Parts {
            generation: 2,
            ports: ruled.ports,
            addresses: ruled.addresses,
            ..with_host.clone()
        });
        ends(&mut rig, POD, tcp("10.1.0.2:6", "169.254.169.254:80").syn(), "policy-denied");
        // Without a host port nobody can be asked.
        let mut alone = with_host;
        alone.ports[usize::from(HOST)] = None;
        ends(
            &mut Rig::new(alone),
            POD,
            tcp("10.1.0.2:5", "169.254.169.254:80").syn(),
            "link-local",
        );
    }
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
    // One that is the node's own goes no further than to it.
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
    // The kernel's own address is the node's.
    let mut own = parts();
    own.more_node_addresses.push(ip("169.254.1.1"));
    ends(&mut Rig::new(own), HOST, tcp("169.254.1.1:5", "10.1.0.2:80").syn(), "own-node");
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
    // Another pod's address, its node's, a stranger's.
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
    // A tunnel packet inside a tunnel, and one from an address that is no tunnel endpoint.
    let nested = tunnel(3, &udp("10.3.0.2:5", "10.1.0.2:53").build());
    ends(&mut rig, UPLINK, tunnel(2, &nested.build()), "spoofed-address");
    ends(&mut rig, UPLINK, tunnel(9, &udp("10.2.0.2:5", "10.1.0.2:53").build()), "tunnel-refused");
    ends(&mut rig, HOST, tunnel(2, &udp("10.2.0.2:5", "10.1.0.2:53").build()), "not-local");
}
