//! Packets that stretch over several frames: a switch with small frames does with them what one
//! with frames for everything does.

use std::sync::Arc;

use dataplane::services::{Backend, Backends, Entry, Scope, ServicePort, Services};
use dataplane::wire::vxlan::Vxlan;
use dataplane::wire::{self, checksum, protocol};
use dataplane::{Outcome, Parts, Peer, Routes, Underlay};
use testkit::packet::{self, Packet, ping, sctp, tcp, udp};

use crate::nodes::rig::{Rig, ip, pod, uplink};

const CLIENT: u16 = 0;
const SERVER: u16 = 1;
const UPLINK: u16 = 2;
/// Room for 256 bytes of a packet, all of its headers among them.
const SMALL: usize = 512;
/// Room for the longest packet.
const LARGE: usize = 256 + 65536;
const LENGTHS: [usize; 6] = [0, 220, 300, 1001, 5000, 30_000];

/// A service at 10.96.0.1 and fd96::1, and another node behind a tunnel.
fn parts() -> Parts {
    let mut services = Services::default();
    for (vip, server) in [("10.96.0.1", "10.1.0.3"), ("fd96::1", "fd01::3")] {
        let all = Backends::new(vec![Backend { address: ip(server).into(), port: 8080 }]);
        let port = ServicePort {
            name: "default/web:http".into(),
            internal: all.clone(),
            any: all.clone(),
            external: all,
            affinity_s: None,
        };
        let port = Arc::new(port);
        for protocol in [protocol::TCP, protocol::UDP, protocol::SCTP] {
            let entry = Entry { port: Arc::clone(&port), scope: Scope::Cluster };
            services.add(ip(vip).into(), protocol, 80, entry);
        }
        services.claim(ip(vip).into());
    }
    let peer = Peer {
        name: "node2".to_owned(),
        addresses: vec![ip("192.0.2.2").into()],
        networks: ["10.2.0.0/24", "fd02::/64"].map(|text| text.parse().unwrap()).into(),
        endpoint: ip("192.0.2.2").into(),
        next_hop: Some([2, 0, 0, 0, 0, 2]),
        ..Peer::default()
    };
    Parts {
        generation: 1,
        ports: vec![
            pod("default/client", &["10.1.0.2", "fd01::2"]),
            pod("default/server", &["10.1.0.3", "fd01::3"]),
            uplink([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 9], 65_000),
        ],
        node_addresses: vec![ip("192.0.2.1")],
        local_networks: vec!["10.1.0.0/24".parse().unwrap(), "fd01::/64".parse().unwrap()],
        services: Arc::new(services),
        routes: Arc::new(Routes::new(vec![peer])),
        underlay: Underlay::Overlay(Vxlan { network: 4096, port: 4789, group: false }),
        ..Parts::default()
    }
}

struct Both {
    small: Rig,
    large: Rig,
}

impl Both {
    fn new() -> Self {
        let rig = |size| Rig::with_frames(parts(), size);
        Self { small: rig(SMALL), large: rig(LARGE) }
    }

    /// Sends a frame into both; what left, if the same left both.
    #[track_caller]
    fn send(&mut self, port: u16, frame: &[u8]) -> (Outcome, Option<(u16, Vec<u8>)>) {
        let through = |rig: &mut Rig| {
            let outcome = rig.send(port, frame);
            let left = [CLIENT, SERVER, UPLINK].map(|out| rig.receive(out).map(|it| (out, it)));
            (outcome, left.into_iter().flatten().map(|(out, it)| (out, steady(it))).next())
        };
        let (small, large) = (through(&mut self.small), through(&mut self.large));
        assert_eq!(small.0, large.0);
        assert!(small.1 == large.1, "{} bytes left differently: {}", frame.len(), small.0);
        small
    }

    #[track_caller]
    fn pass(&mut self, from: u16, packet: &Packet, to: u16) -> Vec<u8> {
        let (outcome, left) = self.send(from, &packet.build());
        let (port, frame) = left.unwrap_or_else(|| panic!("nothing left: {outcome}"));
        assert_eq!(port, to);
        frame
    }
}

/// A frame without the source port of its tunnel, which a switch chooses by a secret of its own.
fn steady(mut frame: Vec<u8>) -> Vec<u8> {
    let is_tunnel = frame.len() > 50 && frame[12..14] == [8, 0] && frame[36..38] == [0x12, 0xb5];
    if is_tunnel {
        frame[34..36].fill(0);
    }
    frame
}

fn payload(length: usize) -> Vec<u8> {
    (0..length as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

const PODS: [(&str, &str, &str); 2] =
    [("10.1.0.2", "10.1.0.3", "10.96.0.1"), ("[fd01::2]", "[fd01::3]", "[fd96::1]")];

#[test]
fn they_pass_from_pod_to_pod_and_through_services() {
    let mut both = Both::new();
    for (client, server, service) in PODS {
        for (n, length) in LENGTHS.into_iter().enumerate() {
            let bytes = payload(length);
            for to in [format!("{server}:9"), format!("{service}:80")] {
                let from = format!("{client}:{}", 1000 + n);
                let arrived = both.pass(CLIENT, &udp(&from, &to).payload(&bytes), SERVER);
                assert!(arrived.ends_with(&bytes));
                both.pass(CLIENT, &tcp(&from, &to).syn(), SERVER);
                both.send(CLIENT, &tcp(&from, &to).data(&bytes).build());
                both.pass(CLIENT, &sctp(&from, &to, 1).payload(&bytes), SERVER);
                let priority = udp(&from, &to).payload(&bytes).vlan(0);
                assert!(both.pass(CLIENT, &priority, SERVER).ends_with(&bytes));
            }
            let (client, server) =
                (client.trim_matches(['[', ']']), server.trim_matches(['[', ']']));
            let asks = ping(client, server, n as u16, 1).payload(&bytes);
            assert!(both.pass(CLIENT, &asks, SERVER).ends_with(&bytes));
        }
    }
}

#[test]
fn checksums_that_were_left_open_are_completed_over_all_frames() {
    let mut both = Both::new();
    for (client, server, service) in PODS {
        for (n, length) in LENGTHS.into_iter().enumerate() {
            for to in [format!("{server}:9"), format!("{service}:80")] {
                let packet = udp(&format!("{client}:{}", 2000 + n), &to).payload(&payload(length));
                let finished = packet.build();
                let headers = wire::parse(&finished).unwrap();
                let l4 = usize::from(headers.l4);
                let addresses = if headers.flow.source.is_v4() { 26..34 } else { 22..54 };
                let pseudo = checksum::pseudo(&finished[addresses], 17, finished.len() - l4);
                let mut open = finished.clone();
                open[l4 + 6..l4 + 8].copy_from_slice(&checksum::fold(pseudo).to_be_bytes());
                let (_, completed) = both.send(CLIENT, &open);
                let (_, untouched) = both.send(CLIENT, &finished);
                assert_eq!(completed, untouched);
                assert!(completed.is_some());
            }
        }
    }
}

#[test]
fn tunnels_carry_them() {
    let mut both = Both::new();
    for (from, to) in [("10.1.0.2:7", "10.2.0.2:8"), ("[fd01::2]:7", "[fd02::2]:8")] {
        for length in LENGTHS {
            let bytes = payload(length);
            let outside = both.pass(CLIENT, &udp(from, to).payload(&bytes), UPLINK);
            assert!(outside.ends_with(&bytes));
            let headers = wire::parse(&outside).unwrap();
            assert_eq!(headers.flow.destination, ip("192.0.2.2").into());
            assert_eq!(usize::from(headers.end), outside.len());
            // The answer as the other node would send it.
            let inside = udp(to, from).payload(&bytes).build();
            let tunnel = [&[0x08, 0, 0, 0, 0, 0x10, 0, 0], &inside[..]].concat();
            let back = udp("192.0.2.2:50000", "192.0.2.1:4789").payload(&tunnel);
            let arrived = both.pass(UPLINK, &back.to_mac([2, 0, 0, 0, 0, 1]), CLIENT);
            assert!(arrived.ends_with(&bytes));
        }
    }
}

#[test]
fn tunnels_over_the_largest_mtu_have_room_for_their_headers() {
    let mut parts = parts();
    parts.ports[usize::from(UPLINK)].as_mut().unwrap().mtu = u16::MAX;
    let mut rig = Rig::with_frames(parts, LARGE);
    let of_length = |length: usize| udp("10.1.0.2:7", "10.2.0.2:8").payload(&payload(length - 28));
    let outside = rig.pass(CLIENT, of_length(65_485).build(), UPLINK);
    assert_eq!(outside.len() - 14, usize::from(u16::MAX));
    assert_eq!(outside[30..34], [192, 0, 2, 2]);
    for length in [65_486, 65_521] {
        assert_eq!(rig.send(CLIENT, of_length(length).build()), Outcome::TooBig, "{length}");
        let error = rig.receive(CLIENT).expect("the sender is told the MTU");
        assert_eq!(error[34..36], [3, 4]);
        assert_eq!(error[40..42], 65_485_u16.to_be_bytes());
        assert!(rig.receive(UPLINK).is_none());
    }
}

/// A packet over many frames needs few others.
#[test]
fn long_packets_are_cut_where_their_senders_permit_it() {
    let mut parts = parts();
    parts.ports[usize::from(SERVER)].as_mut().unwrap().mtu = 1400;
    for size in [SMALL, 2048, LARGE] {
        let mut rig = Rig::with_frames(parts.clone(), size);
        for length in [1373, 1400, 5000, 30_000] {
            let sent = udp("10.1.0.2:7", "10.96.0.1:80").payload(&payload(length)).ip_id(9);
            rig.send(CLIENT, packet::divisible(sent.build()));
            let whole = udp("10.1.0.2:7", "10.1.0.3:8080").payload(&payload(length)).build();
            let mut data: Vec<u8> = Vec::new();
            while let Some(fragment) = rig.receive(SERVER) {
                let headers = wire::parse(&fragment).unwrap();
                assert!(headers.end - headers.l3 <= 1400);
                data.extend(&fragment[34..]);
            }
            // Frames for a few hundred bytes each are soon too few.
            assert!(data == whole[34..] || size == SMALL && data.is_empty(), "{size} {length}");
        }
    }
}

#[test]
fn fragments_of_them_pass() {
    let mut both = Both::new();
    let whole = udp("10.1.0.2:7", "10.1.0.3:8").payload(&payload(9000)).ip_id(5);
    for fragment in whole.fragments(4000) {
        let (outcome, left) = both.send(CLIENT, &fragment);
        assert!(left.is_some(), "{outcome}");
    }
}

#[test]
fn what_must_stand_in_one_frame_is_refused_otherwise() {
    let mut small = Rig::with_frames(parts(), SMALL);
    let sent = udp("10.1.0.2:7", "10.1.0.3:8").payload(&payload(300));
    assert_eq!(small.send(CLIENT, sent.build()).verdict(), dataplane::Verdict::Forward);
    let error = packet::icmp_error("10.1.0.3", "10.1.0.2", 3, 4, &sent).payload(&payload(300));
    assert_eq!(small.send(SERVER, error.build()), Outcome::MalformedTransport);
    let mut extended = udp("[fd01::2]:7", "[fd01::3]:8").payload(&payload(300));
    for _ in 0..3 {
        extended = extended.extension(60, &[0; 94]);
    }
    assert_eq!(small.send(CLIENT, extended.build()), Outcome::MalformedIp);
    // Long, and cut short: what the header claims is not all there.
    for keep in [60, 250, 256, 257, 1000] {
        let cut =
            packet::cut(udp("10.1.0.2:7", "10.1.0.3:8").payload(&payload(2000)).build(), keep);
        assert_eq!(small.send(CLIENT, cut), Outcome::Truncated, "cut to {keep}");
    }
}
