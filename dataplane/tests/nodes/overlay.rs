//! Two nodes and the tunnels between them.

use std::sync::Arc;

use dataplane::graph::trace::{Filter, Tracing};
use dataplane::services::{Backend, Backends, Entry, Scope, ServicePort, Services};
use dataplane::wire::vxlan::Vxlan;
use dataplane::wire::{self, checksum, protocol};
use dataplane::{Outcome, Parts, Peer, Routes, Underlay};
use proptest::prelude::*;
use testkit::packet::{arp_request, divisible, icmp_error, ping, tcp, udp};

use crate::nodes::rig::{Rig, assert_is, host, ip, left_open, pod, uplink};

const POD: u16 = 0;
const HOST: u16 = 1;
const UPLINK: u16 = 2;
const OVERLAY: Vxlan = Vxlan { network: 4096, port: 4789, group: false };

fn mac(n: u8) -> wire::Mac {
    [2, 0, 0, 0, 0, n]
}

/// Node 1 or 2, with one pod; the underlay is of either family.
fn parts(n: u8, v6: bool, services: Services) -> Parts {
    let other = 3 - n;
    let node = |n: u8| match v6 {
        true => format!("2001:db8::{n}"),
        false => format!("192.0.2.{n}"),
    };
    let peer = Peer {
        name: format!("node{other}"),
        addresses: vec![ip(&node(other)).into()],
        networks: vec![
            format!("10.{other}.0.0/24").parse().unwrap(),
            format!("fd0{other}::/64").parse().unwrap(),
        ],
        endpoint: ip(&node(other)).into(),
        next_hop: Some(mac(other)),
        ..Peer::default()
    };
    Parts {
        generation: 1,
        ports: vec![
            pod("default/pod", &[&format!("10.{n}.0.2"), &format!("fd0{n}::2")]),
            host(),
            uplink(mac(n), mac(9), 1500),
        ],
        node_addresses: vec![ip(&node(n))],
        local_networks: vec![
            format!("10.{n}.0.0/24").parse().unwrap(),
            format!("fd0{n}::/64").parse().unwrap(),
        ],
        services: Arc::new(services),
        routes: Arc::new(Routes::new(vec![peer])),
        underlay: Underlay::Overlay(OVERLAY),
        ..Parts::default()
    }
}

fn pair(v6: bool) -> (Rig, Rig) {
    let rig = |n| Rig::new(parts(n, v6, Services::default()));
    (rig(1), rig(2))
}

/// Takes what left one uplink into the other.
fn cross(from: &mut Rig, to: &mut Rig) -> Outcome {
    let frame = from.receive(UPLINK).expect("a tunnel packet");
    to.send(UPLINK, frame)
}

#[test]
fn pods_of_two_cluster_nodes_talk_through_the_tunnel() {
    for v6 in [false, true] {
        let (mut one, mut two) = pair(v6);
        for (a, b) in [("10.1.0.2:4000", "10.2.0.2:80"), ("[fd01::2]:4000", "[fd02::2]:80")] {
            let syn = tcp(a, b).syn().build();
            assert_eq!(one.send(POD, syn.clone()), Outcome::PolicyAllowed);
            assert_eq!(cross(&mut one, &mut two), Outcome::PolicyAllowed);
            assert_is(&two.receive(POD).unwrap(), &syn);
            // The checksum of what is inside of a tunnel is finished in front of it.
            assert_eq!(one.send(POD, left_open(syn.clone())), Outcome::Session);
            assert_eq!(cross(&mut one, &mut two), Outcome::Session);
            assert_is(&two.receive(POD).unwrap(), &syn);
            let syn_ack = tcp(b, a).syn_ack().build();
            assert_eq!(two.send(POD, syn_ack.clone()), Outcome::Session);
            assert_eq!(cross(&mut two, &mut one), Outcome::Session);
            assert_is(&one.receive(POD).unwrap(), &syn_ack);
        }
    }
}

#[test]
fn a_tunnel_packet_is_one_between_the_cluster_nodes() {
    let (mut one, _) = pair(false);
    let frame = one.pass(POD, udp("10.1.0.2:4000", "10.2.0.2:53").payload(b"x").build(), UPLINK);
    assert_eq!((&frame[..6], &frame[6..12]), (&mac(2)[..], &mac(1)[..]));
    let outer = wire::parse(&frame).unwrap();
    assert_eq!(outer.flow.source.to_ip(), ip("192.0.2.1"));
    assert_eq!(outer.flow.destination.to_ip(), ip("192.0.2.2"));
    assert_eq!((outer.flow.protocol, outer.flow.destination_port), (protocol::UDP, 4789));
    let datagram = udp("10.1.0.2:4000", "10.2.0.2:53").payload(b"x").build();
    let same = one.pass(POD, left_open(datagram), UPLINK);
    assert_eq!(same[50..], frame[50..], "its checksum is finished in the tunnel");
    // Packets of one connection take one way, so that they keep their order.
    let again = one.pass(POD, udp("10.1.0.2:4000", "10.2.0.2:53").payload(b"y").build(), UPLINK);
    assert_eq!(wire::parse(&again).unwrap().flow, outer.flow);
}

#[test]
fn a_tunnel_carries_only_what_belongs_to_its_other_end() {
    let inside = |source: &str| udp(&format!("{source}:1"), "10.1.0.2:53").payload(b"x").build();
    let tunnel = |inner: &[u8], source: &str, port: u16, network: u32| {
        let header = [&[0x08, 0, 0, 0][..], &(network << 8).to_be_bytes()].concat();
        let payload = [&header, inner].concat();
        udp(&format!("{source}:50000"), &format!("192.0.2.1:{port}")).payload(&payload).build()
    };
    let cases = [
        (tunnel(&inside("10.2.0.2"), "192.0.2.2", 4789, 4096), Outcome::PolicyAllowed),
        (tunnel(&inside("10.2.0.2"), "192.0.2.3", 4789, 4096), Outcome::TunnelRefused),
        (tunnel(&inside("10.2.0.2"), "192.0.2.2", 4789, 4097), Outcome::TunnelRefused),
        (tunnel(&inside("10.2.0.2")[..20], "192.0.2.2", 4789, 4096), Outcome::Truncated),
        (tunnel(&[], "192.0.2.2", 4789, 4096), Outcome::TunnelRefused),
        (tunnel(&inside("10.3.0.2"), "192.0.2.2", 4789, 4096), Outcome::SpoofedAddress),
        (tunnel(&inside("10.1.0.7"), "192.0.2.2", 4789, 4096), Outcome::SpoofedAddress),
        (tunnel(&inside("192.0.2.1"), "192.0.2.2", 4789, 4096), Outcome::SpoofedAddress),
        (tunnel(&inside("192.0.2.2"), "192.0.2.2", 4789, 4096), Outcome::PolicyAllowed),
        (
            tunnel(&arp_request("10.2.0.2", "10.1.0.2").build(), "192.0.2.2", 4789, 4096),
            Outcome::TunnelRefused,
        ),
        // Outside of the tunnel nobody speaks for another node's pods.
        (inside("10.2.0.2"), Outcome::SpoofedAddress),
        (inside("198.51.100.1"), Outcome::PolicyAllowed),
    ];
    for (n, (frame, outcome)) in cases.into_iter().enumerate() {
        let (mut one, _) = pair(false);
        assert_eq!(one.send(UPLINK, frame), outcome, "case {n}");
    }
}

#[test]
fn a_pods_own_use_of_the_overlays_port_has_sessions() {
    for (pod, other) in
        [("10.1.0.2:4789", "198.51.100.1:53"), ("[fd01::2]:4789", "[2001:db8:1::1]:53")]
    {
        let (mut one, _) = pair(false);
        assert_eq!(one.send(POD, udp(pod, other).payload(b"x").build()), Outcome::PolicyAllowed);
        for _ in 0..2 {
            let answer = udp(other, pod).payload(b"y").build();
            assert_eq!(one.send(UPLINK, answer), Outcome::Session);
        }
    }
}

#[test]
fn a_neighbours_tunnel_packets_have_passed_no_router() {
    for (v6, from, to) in [
        (false, "192.0.2.2:50000", "192.0.2.1:4789"),
        (true, "[2001:db8::2]:50000", "[2001:db8::1]:4789"),
    ] {
        let (mut two, _) = pair(v6);
        let sent = two.pass(POD, udp("10.1.0.2:1", "10.2.0.2:53").payload(b"x").build(), UPLINK);
        assert_eq!(wire::parse(&sent).unwrap().ttl, 255);
        for (least, hops, expected) in [
            (255, 255, Outcome::PolicyAllowed),
            (255, 254, Outcome::TunnelRefused),
            (255, 64, Outcome::TunnelRefused),
            (0, 64, Outcome::PolicyAllowed),
        ] {
            let mut parts = parts(1, v6, Services::default());
            let mut peers = parts.routes.peers().to_vec();
            peers[0].least_hop_limit = least;
            parts.routes = Arc::new(Routes::new(peers));
            let inner = udp("10.2.0.2:1", "10.1.0.2:53").payload(b"x").build();
            let header = [&[0x08, 0, 0, 0][..], &(4096_u32 << 8).to_be_bytes()].concat();
            let outer = udp(from, to).payload(&[&header, &inner[..]].concat());
            assert_eq!(Rig::new(parts).send(UPLINK, outer.ttl(hops).build()), expected, "{hops}");
        }
    }
}

proptest! {
    /// Parse takes most packets out of their tunnels, but none while packets are traced: whatever is in a
    /// packet, both ways end alike.
    #[test]
    fn whoever_takes_a_packet_out_of_its_tunnel(
        least_hop_limit in prop::sample::select(vec![0, 255]),
        packets in prop::collection::vec(tunnel_packet(), 1..20),
    ) {
        let rig = || {
            let mut parts = parts(1, false, Services::default());
            let mut peers = parts.routes.peers().to_vec();
            peers[0].least_hop_limit = least_hop_limit;
            parts.routes = Arc::new(Routes::new(peers));
            Rig::new(parts)
        };
        let (mut quick, mut general) = (rig(), rig());
        general.follow(Some(Arc::new(Tracing::endless(Filter::default(), 1))));
        let ends = [&mut quick, &mut general].map(|rig| rig.send_all(UPLINK, packets.clone()));
        prop_assert_eq!(&ends[0], &ends[1]);
        for port in [POD, HOST, UPLINK] {
            let left = [&mut quick, &mut general].map(|rig| {
                let mut frames: Vec<_> = std::iter::from_fn(|| rig.receive(port)).collect();
                // The outer source port is a hash under keys of each switch's own.
                frames.iter_mut().filter(|_| port == UPLINK).for_each(|it| it[34..36].fill(0));
                frames
            });
            prop_assert_eq!(&left[0], &left[1]);
        }
    }
}

/// Packets of node 2's tunnel to node 1, some with a few bytes changed.
fn tunnel_packet() -> impl Strategy<Value = Vec<u8>> {
    let changes = prop::collection::vec((0..110_usize, any::<u8>()), 0..3);
    let kinds = (any::<[bool; 3]>(), any::<[u8; 2]>());
    (changes, kinds, 0..8_usize).prop_map(
        |(changes, ([is_tcp, is_v4, mends], classes), padding)| {
            let (from, to) = match is_v4 {
                true => ("10.2.0.2:1", "10.1.0.2:53"),
                false => ("[fd02::2]:1", "[fd01::2]:53"),
            };
            let inner = match is_tcp {
                true => tcp(from, to).syn().build(),
                false => udp(from, to).payload(b"some").build(),
            };
            let header = [&[0x08, 0, 0, 0][..], &(4096_u32 << 8).to_be_bytes()].concat();
            let outer = udp("192.0.2.2:50000", "192.0.2.1:4789").ttl(255);
            let mut frame = outer.payload(&[&header, &inner[..]].concat()).build();
            frame.resize(frame.len() + padding, 0);
            // Congestion marks: most are the same outside and inside.
            for (at, class) in [(15, classes[0]), (65, classes[1])] {
                if is_v4 && class < 64 {
                    frame[at] = class % 4;
                }
            }
            for (at, value) in changes {
                let length = frame.len();
                frame[at % length] = value;
            }
            for ip in [14, 64] {
                if mends && frame[ip] == 0x45 {
                    frame[ip + 10..ip + 12].fill(0);
                    let sum = !checksum::fold(checksum::sum(&frame[ip..ip + 20]));
                    frame[ip + 10..ip + 12].copy_from_slice(&sum.to_be_bytes());
                }
            }
            frame
        },
    )
}

#[test]
fn packets_too_large_for_the_tunnel_say_so() {
    for (v6, mtu) in [(false, 1450), (true, 1430)] {
        let (mut one, mut two) = pair(v6);
        let fits = udp("10.1.0.2:1", "10.2.0.2:53").payload(&vec![7; mtu - 28]).build();
        assert_eq!(one.send(POD, fits), Outcome::PolicyAllowed);
        assert_eq!(cross(&mut one, &mut two), Outcome::PolicyAllowed);
        let large = udp("10.1.0.2:1", "10.2.0.2:53").payload(&vec![7; mtu - 27]).build();
        assert_eq!(one.send(POD, large), Outcome::TooBig);
        // Over IPv6 only, the node has no IPv4 address to answer from.
        assert_eq!(one.receive(POD).is_some(), !v6);
    }
}

/// The kernel's route to the other node has a bound, or the kernel has learnt one.
#[test]
fn the_underlays_own_path_mtu_bounds_what_enters_a_tunnel() {
    let parts = parts(1, false, Services::default());
    let mut peers = parts.routes.peers().to_vec();
    peers[0].mtu = 1400;
    let mut one = Rig::new(Parts { routes: Arc::new(Routes::new(peers)), ..parts });
    let of_length = |length: usize| udp("10.1.0.2:1", "10.2.0.2:53").payload(&vec![7; length - 28]);
    let outside = one.pass(POD, of_length(1350).build(), UPLINK);
    assert_eq!(outside.len(), 14 + 1400);
    assert_eq!(one.send(POD, of_length(1351).build()), Outcome::TooBig);
    let told = one.receive(POD).expect("too big");
    assert_eq!(told[40..42], 1350_u16.to_be_bytes());
}

/// As routers do (RFC 1812, section 5.2.6), of tagged frames and of fragments too.
#[test]
fn long_datagrams_cross_in_fragments_where_their_senders_permit_it() {
    let (mut one, mut two) = pair(false);
    let bytes: Vec<u8> = (0..4000_u32).map(|n| (n / 7) as u8).collect();
    let datagram = udp("10.1.0.2:1", "10.2.0.2:53").payload(&bytes).ip_id(77);
    let whole = datagram.build();
    let plain = divisible(whole.clone());
    let tagged = [&plain[..12], &[0x81, 0, 0, 0], &plain[12..]].concat();
    for frames in [vec![plain], vec![tagged], datagram.fragments(2000)] {
        for frame in frames {
            let outcome = one.send(POD, frame);
            assert!(
                matches!(outcome, Outcome::PolicyAllowed | Outcome::Session | Outcome::Fragment),
                "{outcome}"
            );
        }
        let mut data = vec![0; whole.len() - 34];
        let mut length = 0;
        while let Some(frame) = one.receive(UPLINK) {
            assert!(frame.len() <= 1514, "{}", frame.len());
            two.send(UPLINK, frame);
            let there = two.receive(POD).expect("each fragment");
            let place = usize::from(u16::from_be_bytes([there[20], there[21]]) & 0x1fff) * 8;
            let end = usize::from(wire::parse(&there).unwrap().end);
            data[place..place + end - 34].copy_from_slice(&there[34..end]);
            length += end - 34;
        }
        assert_eq!(length, data.len());
        assert!(data == whole[34..]);
    }
}

#[test]
fn an_answer_finds_its_way_back_through_the_tunnel() {
    let (mut one, mut two) = pair(false);
    // One hop to the first switch, and none left for the second.
    assert_eq!(
        one.send(POD, ping("10.1.0.2", "10.2.0.2", 7, 1).ttl(2).build()),
        Outcome::PolicyAllowed
    );
    assert_eq!(cross(&mut one, &mut two), Outcome::TtlExpired);
    assert_eq!(cross(&mut two, &mut one), Outcome::Related);
    let told = one.receive(POD).expect("time exceeded");
    assert_eq!(wire::parse(&told).unwrap().flow.source.to_ip(), ip("192.0.2.2"));
}

#[test]
fn a_next_hop_that_is_not_known_yet_loses_packets_and_opens_nothing() {
    let mut parts = parts(1, false, Services::default());
    let mut peers = parts.routes.peers().to_vec();
    peers[0].next_hop = None;
    parts.routes = Arc::new(Routes::new(peers));
    let mut one = Rig::new(parts);
    let question = udp("10.1.0.2:4000", "10.2.0.2:53").payload(b"x").build();
    assert_eq!(one.send(POD, question), Outcome::NoNeighbour);
    assert!([POD, HOST, UPLINK].iter().all(|port| one.receive(*port).is_none()));
}

#[test]
fn the_cluster_node_itself_reaches_pods_elsewhere_and_is_reached() {
    let (mut one, mut two) = pair(false);
    let ask = ping("192.0.2.1", "10.2.0.2", 7, 1).build();
    assert_eq!(one.send(HOST, ask.clone()), Outcome::NoPolicy);
    assert_eq!(cross(&mut one, &mut two), Outcome::PolicyAllowed);
    assert_is(&two.receive(POD).unwrap(), &ask);
    let ask = ping("10.2.0.2", "192.0.2.1", 8, 1).build();
    assert_eq!(two.send(POD, ask.clone()), Outcome::PolicyAllowed);
    assert_eq!(cross(&mut two, &mut one), Outcome::NoPolicy);
    assert_is(&one.receive(HOST).unwrap(), &ask);
}

/// A closed port of a pod elsewhere, a router on the way, and a closed port of this node.
#[test]
fn errors_reach_the_cluster_nodes_own_processes_and_come_from_them() {
    let (mut one, mut two) = pair(false);
    let ask = udp("192.0.2.1:4000", "10.2.0.2:53").payload(b"x");
    one.send(HOST, ask.clone().build());
    cross(&mut one, &mut two);
    two.receive(POD).unwrap();
    let closed = icmp_error("10.2.0.2", "192.0.2.1", 3, 3, &ask).build();
    two.send(POD, closed.clone());
    assert_eq!(cross(&mut two, &mut one), Outcome::Related);
    assert_is(&one.receive(HOST).unwrap(), &closed);
    one.send(HOST, ask.ttl(2).build());
    assert_eq!(cross(&mut one, &mut two), Outcome::TtlExpired);
    assert_eq!(cross(&mut two, &mut one), Outcome::Related);
    assert!(one.receive(HOST).is_some());
    let ask = udp("10.2.0.2:4000", "192.0.2.1:9").payload(b"x");
    two.send(POD, ask.clone().build());
    cross(&mut two, &mut one);
    one.receive(HOST).unwrap();
    let closed = icmp_error("192.0.2.1", "10.2.0.2", 3, 3, &ask).build();
    one.send(HOST, closed.clone());
    assert_eq!(cross(&mut one, &mut two), Outcome::Related);
    assert_is(&two.receive(POD).unwrap(), &closed);
}

/// Nobody else's, and none about pods, which have sessions.
#[test]
fn errors_about_what_nobody_sent_reach_no_process() {
    let (mut one, mut two) = pair(false);
    for (from, to, quoted) in [
        // A connection of the node with a pod here.
        ("10.2.0.2", "192.0.2.1", udp("192.0.2.1:4000", "10.1.0.2:53")),
        // One that does not lead there.
        ("10.2.0.2", "192.0.2.1", udp("192.0.2.1:4000", "198.51.100.9:53")),
        // Of others.
        ("10.2.0.2", "192.0.2.1", udp("10.1.0.2:4000", "10.2.0.2:53")),
        ("10.2.0.2", "10.1.0.2", udp("10.1.0.2:4000", "10.2.0.2:53")),
    ] {
        let error = icmp_error(from, to, 3, 3, &quoted.payload(b"x")).build();
        two.send(POD, error.clone());
        // The other switch may refuse it, or this one.
        let tunnel = two.receive(UPLINK);
        let ended = tunnel.map(|frame| one.send(UPLINK, frame));
        assert!(ended.is_none_or(|it| it == Outcome::NoSession), "{from} {to}: {ended:?}");
        let outcome = one.send(UPLINK, error);
        assert!(matches!(outcome, Outcome::SpoofedAddress | Outcome::NoSession), "{outcome}");
        assert!([POD, HOST].iter().all(|port| one.receive(*port).is_none()));
    }
}

/// A pod replies through the tunnel, and a node's process past it.
#[test]
fn a_process_reaches_pods_and_processes_elsewhere_through_a_service() {
    for (server, is_pod) in [("10.2.0.2:8080", true), ("192.0.2.2:8080", false)] {
        let (address, _) = server.split_once(':').unwrap();
        let backend = Backend { address: ip(address).into(), port: 8080 };
        let port = ServicePort { internal: Backends::new(vec![backend]), ..ServicePort::default() };
        let mut services = Services::default();
        let entry = Entry { port: Arc::new(port), scope: Scope::Cluster };
        services.add(ip("10.96.0.1").into(), protocol::TCP, 80, entry);
        let translation_ports = Some(61_000..=61_999);
        let mut one = Rig::new(Parts { translation_ports, ..parts(1, false, services) });
        let mut two = Rig::new(parts(2, false, Services::default()));
        let (client, vip) = ("192.0.2.1:4000", "10.96.0.1:80");
        one.send(HOST, tcp(client, vip).syn().build());
        cross(&mut one, &mut two);
        let there = two.receive(if is_pod { POD } else { HOST }).unwrap();
        let seen = format!("192.0.2.1:{}", wire::parse(&there).unwrap().flow.source_port);
        assert_is(&there, &tcp(&seen, server).syn().build());
        assert_eq!(seen == client, is_pod, "{seen}");
        let answer = tcp(server, &seen).syn_ack().build();
        if is_pod {
            two.send(POD, answer);
            cross(&mut two, &mut one);
        } else {
            one.send(UPLINK, answer);
        }
        assert_is(&one.receive(HOST).unwrap(), &tcp(vip, client).syn_ack().build());
    }
}

#[test]
fn a_service_leads_to_a_pod_elsewhere() {
    let backend = Backend { address: ip("10.2.0.2").into(), port: 8080 };
    let port = ServicePort { internal: Backends::new(vec![backend]), ..ServicePort::default() };
    let mut services = Services::default();
    let entry = Entry { port: Arc::new(port), scope: Scope::Cluster };
    services.add(ip("10.96.0.1").into(), protocol::TCP, 80, entry);
    let mut one = Rig::new(parts(1, false, services));
    let mut two = Rig::new(parts(2, false, Services::default()));
    one.send(POD, tcp("10.1.0.2:4000", "10.96.0.1:80").syn().build());
    cross(&mut one, &mut two);
    assert_is(&two.receive(POD).unwrap(), &tcp("10.1.0.2:4000", "10.2.0.2:8080").syn().build());
    two.send(POD, tcp("10.2.0.2:8080", "10.1.0.2:4000").syn_ack().build());
    cross(&mut two, &mut one);
    assert_is(&one.receive(POD).unwrap(), &tcp("10.96.0.1:80", "10.1.0.2:4000").syn_ack().build());
}
