//! One sender's share of sessions and masquerade ports, and the rest for the others.

use std::sync::Arc;

use dataplane::{Outcome, Parts, Peer, PortId, Routes, Underlay};
use testkit::packet::{tcp, udp};

use crate::nodes::rig::{Rig, host, ip, pod, uplink};

const ONE: u16 = 0;
const OTHER: u16 = 1;
const UPLINK: u16 = 3;

fn rig() -> Rig {
    let mac = |n| [2, 0, 0, 0, 0, n];
    let rig = Rig::new(Parts {
        generation: 1,
        ports: vec![
            pod("default/one", &["10.1.0.2"]),
            pod("default/other", &["10.1.0.3"]),
            host(),
            uplink(mac(1), mac(2), 1500),
        ],
        node_addresses: vec![ip("192.0.2.1")],
        local_networks: vec!["10.1.0.0/24".parse().unwrap()],
        underlay: Underlay::Routed,
        masquerade: true,
        translation_ports: Some(61_000..=61_255),
        routes: Arc::new(Routes::new(vec![Peer {
            name: "node2".to_owned(),
            addresses: vec![ip("192.0.2.2").into()],
            networks: vec!["10.2.0.0/24".parse().unwrap()],
            endpoint: ip("192.0.2.2").into(),
            next_hop: Some(mac(3)),
            ..Peer::default()
        }])),
        ..Parts::default()
    });
    rig.sessions().set_ports(4, true);
    rig
}

/// Opens connections of `from` to a pod without end.
fn flood(rig: &mut Rig, port: u16, from: &str) {
    for n in 0..3_000 {
        let syn = tcp(&format!("{from}:{}", 1024 + n), "10.1.0.2:80").syn().build();
        rig.send(port, syn);
        while rig.receive(ONE).is_some() {}
    }
}

#[test]
fn a_remote_sender_leaves_sessions_for_the_others() {
    // A pod of another node, and a host outside.
    for attacker in ["10.2.0.2", "203.0.113.7"] {
        let mut rig = rig();
        flood(&mut rig, UPLINK, attacker);
        let taken = rig.sessions().used_by_remote();
        assert!((64..512).contains(&taken), "{attacker} has {taken} of the shared half");
        // A sender has two of 32 owners here, and very few have the same two as the attacker.
        let others =
            (3..23).flat_map(|n| [format!("10.2.0.{n}:5000"), format!("198.51.{n}.1:5000")]);
        let served = others.filter(|other| {
            let syn = tcp(other, "10.1.0.2:80").syn().build();
            rig.send(UPLINK, syn) == Outcome::PolicyAllowed
        });
        assert!(served.count() >= 36, "of 40");
        // A second flood leaves room as well, and so does one of a pod here.
        flood(&mut rig, UPLINK, "10.2.0.99");
        flood(&mut rig, OTHER, "10.1.0.3");
        let newcomers = (0..40).filter(|n| {
            let syn = tcp(&format!("198.18.{n}.1:5000"), "10.1.0.2:80").syn().build();
            rig.send(UPLINK, syn) == Outcome::PolicyAllowed
        });
        // A few have their share in common with an attacker.
        assert!(newcomers.count() >= 20);
        for n in 0..64 {
            let syn = tcp(&format!("10.1.0.2:{}", 5000 + n), "10.1.0.3:80").syn().build();
            assert_eq!(rig.send(ONE, syn), Outcome::PolicyAllowed, "the guarantee of a pod");
        }
        assert_eq!(rig.sessions().used_by(PortId(ONE)), 64);
    }
}

#[test]
fn one_pod_does_not_take_all_masquerade_ports_of_a_destination() {
    let mut rig = rig();
    let outside = "203.0.113.9:53";
    let open = |rig: &mut Rig, port: u16, from: &str, n: u16| {
        let packet = udp(&format!("{from}:{}", 1024 + n), outside).payload(b"?").build();
        let outcome = rig.send(port, packet);
        while rig.receive(UPLINK).is_some() {}
        outcome
    };
    let taken = (0..800).filter(|n| open(&mut rig, ONE, "10.1.0.2", *n) == Outcome::PolicyAllowed);
    let taken = taken.count();
    assert!((32..=128).contains(&taken), "one pod has {taken} of 256");
    for n in 0..16 {
        assert_eq!(open(&mut rig, OTHER, "10.1.0.3", n), Outcome::PolicyAllowed, "{n}");
    }
    // Those that were never answered do not stay.
    rig.now_s += 31;
    rig.send_all(ONE, Vec::new());
    assert_eq!(open(&mut rig, ONE, "10.1.0.2", 1_000), Outcome::PolicyAllowed);
}
