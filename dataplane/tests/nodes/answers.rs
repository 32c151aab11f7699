//! ICMP errors to senders whose packets are dropped.

use dataplane::wire::{self, protocol};
use dataplane::{Outcome, Parts, Underlay};
use testkit::packet::{ping, udp};

use crate::nodes::rig::{Rig, host, ip, pod, uplink};

fn rig(mtu: u16) -> Rig {
    let mut ports = vec![
        pod("default/client", &["10.1.0.2", "fd01::2"]),
        pod("default/server", &["10.1.0.3", "fd01::3"]),
        host(),
    ];
    ports[1].as_mut().unwrap().mtu = mtu;
    let node_addresses = vec![ip("10.1.0.1"), ip("fd01::1")];
    Rig::new(Parts { generation: 1, ports, node_addresses, ..Parts::default() })
}

#[test]
fn traceroute_sees_the_switch() {
    let mut rig = rig(0);
    for (client, server, node) in
        [("10.1.0.2", "10.1.0.3", "10.1.0.1"), ("fd01::2", "fd01::3", "fd01::1")]
    {
        assert_eq!(rig.send(0, ping(client, server, 7, 1).ttl(1).build()), Outcome::TtlExpired);
        let told = rig.receive(0).expect("time exceeded");
        let headers = wire::parse(&told).unwrap();
        assert_eq!(headers.flow.source.to_ip(), ip(node));
        let asked = wire::parse(&ping(client, server, 7, 1).build()).unwrap().flow;
        assert_eq!(wire::quoted(&told, &headers), Some(asked));
        assert!(rig.receive(1).is_none());
    }
}

#[test]
fn a_packet_too_large_for_its_way_tells_how_large_it_may_be() {
    let mut rig = rig(1000);
    for (from, to, at) in [
        ("10.1.0.2:5", "10.1.0.3:53", 34 + 6..34 + 8),
        ("[fd01::2]:5", "[fd01::3]:53", 54 + 4..54 + 8),
    ] {
        assert_eq!(rig.send(0, udp(from, to).payload(&[7; 900]).build()), Outcome::PolicyAllowed);
        assert!(rig.receive(1).is_some());
        assert_eq!(rig.send(0, udp(from, to).payload(&[7; 990]).build()), Outcome::TooBig);
        assert!(rig.receive(1).is_none());
        let told = rig.receive(0).expect("too big");
        let mtu = told[at].iter().fold(0, |mtu, byte| mtu << 8 | u32::from(*byte));
        assert_eq!(mtu, 1000);
    }
}

#[test]
fn a_flood_is_answered_a_bounded_number_of_times() {
    let mut rig = rig(0);
    for _ in 0..10 {
        rig.send_all(
            0,
            (0..50).map(|_| ping("10.1.0.2", "10.1.0.3", 7, 1).ttl(1).build()).collect(),
        );
    }
    let told = std::iter::from_fn(|| rig.receive(0)).count();
    assert_eq!(told, 50);
    // Others are told as ever.
    rig.send(1, ping("10.1.0.3", "10.1.0.2", 7, 1).ttl(1).build());
    let told = rig.receive(1).expect("time exceeded");
    assert_eq!(wire::parse(&told).unwrap().flow.protocol, protocol::ICMP);
}

#[test]
fn a_remote_sender_leaves_answers_for_the_others() {
    const POD: &str = "10.1.0.2";
    let mut rig = Rig::new(Parts {
        generation: 1,
        ports: vec![pod("default/pod", &[POD]), host(), uplink([2; 6], [4; 6], 1500)],
        node_addresses: vec![ip("192.0.2.1")],
        local_networks: vec!["10.1.0.0/24".parse().unwrap()],
        underlay: Underlay::Routed,
        ..Parts::default()
    });
    let answered = |rig: &mut Rig, from: &str| {
        rig.send(2, ping(from, POD, 7, 1).ttl(1).build());
        std::iter::from_fn(|| rig.receive(2)).count()
    };
    let flood: usize = (0..500).map(|_| answered(&mut rig, "203.0.113.7")).sum();
    assert!((50..=100).contains(&flood), "{flood}: one or two buckets");
    // A few have their bucket in common with the flood.
    let others = (0..40).filter(|n| answered(&mut rig, &format!("198.51.{n}.1")) == 1);
    assert!(others.count() >= 30, "of 40");
    // All of them together have a bound.
    let all: usize =
        (0..5000).map(|n| answered(&mut rig, &format!("198.{}.{}.1", n >> 8, n & 255))).sum();
    assert!(all <= 800, "{all}");
}
