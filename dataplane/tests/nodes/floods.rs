//! A pod that floods hurts itself alone. Nothing here is timed: what is counted is what the
//! other pods get while it goes on.

use std::collections::BTreeMap;

use dataplane::{Outcome, Parts, PortId};
use testkit::packet::{tcp, udp};

use crate::nodes::rig::{FRAMES, Rig, host, ip, pod};

const ATTACKER: u16 = 0;
const CLIENT: u16 = 1;
const SERVER: u16 = 2;
/// Packets of one flood: many times what any table here has room for.
const FLOOD: u32 = 20_000;

fn rig() -> Rig {
    let ports = vec![
        pod("default/attacker", &["10.1.0.2", "fd01::2"]),
        pod("default/client", &["10.1.0.3", "fd01::3"]),
        pod("default/server", &["10.1.0.4", "fd01::4"]),
        host(),
    ];
    let node_addresses = vec![ip("10.1.0.1"), ip("fd01::1")];
    let rig = Rig::new(Parts { generation: 1, ports, node_addresses, ..Parts::default() });
    rig.sessions().set_ports(4, false);
    rig
}

/// The ends of both pods that are to be left alone, by family.
const ENDS: [(&str, &str); 2] =
    [("10.1.0.3:4000", "10.1.0.4:80"), ("[fd01::3]:4000", "[fd01::4]:80")];

/// Opens a connection in each family.
fn open(rig: &mut Rig) {
    for (client, server) in ENDS {
        rig.pass(CLIENT, tcp(client, server).syn().build(), SERVER);
        rig.pass(SERVER, tcp(server, client).syn_ack().build(), CLIENT);
        rig.pass(CLIENT, tcp(client, server).data(b"hello").build(), SERVER);
    }
}

/// The connections go on, others can be opened, and fragments find each other.
///
/// Gives the attacker's fragments that were pushed out meanwhile.
fn is_left_alone(rig: &mut Rig, round: u32) -> u32 {
    let mut pushed_out = 0;
    for (n, (client, server)) in ENDS.into_iter().enumerate() {
        let data = tcp(client, server).data(b"more").build();
        assert_eq!(rig.send(CLIENT, data), Outcome::Session);
        let back = tcp(server, client).data(b"answer").build();
        assert_eq!(rig.send(SERVER, back), Outcome::Session);
        let port = 10_000 + round as u16;
        let client = client.replace(":4000", &format!(":{port}"));
        let opened = rig.send(CLIENT, tcp(&client, server).syn().build());
        assert_eq!(opened, Outcome::PolicyAllowed, "a new connection");
        let reply = rig.send(SERVER, tcp(server, &client).syn_ack().build());
        assert_eq!(reply, Outcome::Session);
        let parts =
            udp(&client, server).payload(&[7; 64]).ip_id(2 * round + n as u32).fragments(32);
        let ends = rig.send_all(CLIENT, parts[1..].to_vec());
        assert!(ends.iter().all(|end| *end == Outcome::FragmentLimit), "{ends:?}");
        pushed_out += ends.len() as u32;
        let ends = rig.send_all(CLIENT, parts[..1].to_vec());
        assert_eq!(ends[0], Outcome::PolicyAllowed);
        assert_eq!(ends[1..], [Outcome::Fragment, Outcome::Fragment]);
    }
    for port in [CLIENT, SERVER] {
        while rig.receive(port).is_some() {}
    }
    pushed_out
}

/// Sends a flood in vectors; tells how its packets ended. In between, and after it, everybody else
/// is looked after.
fn flood(rig: &mut Rig, mut packet: impl FnMut(u32) -> Vec<u8>) -> BTreeMap<&'static str, u32> {
    let mut ends = BTreeMap::new();
    let (mut round, mut pushed_out) = (0, 0);
    for first in (0..FLOOD).step_by(50) {
        let outcomes = rig.send_all(ATTACKER, (first..first + 50).map(&mut packet).collect());
        for outcome in outcomes {
            *ends.entry(outcome.name()).or_default() += 1;
        }
        for port in [ATTACKER, CLIENT, SERVER, 3] {
            while rig.receive(port).is_some() {}
        }
        if first % 2_000 == 0 {
            round += 1;
            pushed_out += is_left_alone(rig, round);
        }
    }
    pushed_out += is_left_alone(rig, round + 1);
    if pushed_out > 0 {
        *ends.entry(Outcome::FragmentLimit.name()).or_default() += pushed_out;
    }
    ends
}

/// Lets time pass; nothing waits afterwards and no frame is lost.
fn ends_clean(rig: &mut Rig) -> usize {
    rig.now_s += 3;
    let ended = rig.send_all(ATTACKER, Vec::new()).len();
    assert_eq!(rig.free(), FRAMES);
    ended
}

#[test]
fn a_flood_of_syns_takes_its_own_share_of_the_sessions() {
    let mut rig = rig();
    open(&mut rig);
    let ends = flood(&mut rig, |n| {
        let (port, to) = (1024 + n % 50_000, 1 + n % 7_919);
        tcp(&format!("10.1.0.2:{port}"), &format!("10.1.0.4:{to}")).syn().build()
    });
    assert_eq!(ends.values().sum::<u32>(), FLOOD);
    let opened = rig.sessions().used_by(PortId(ATTACKER));
    let evicted = rig.sessions().evicted();
    assert_eq!(ends["policy-allowed"], FLOOD, "{ends:?}");
    assert_eq!(u64::from(opened) + evicted.unanswered, u64::from(FLOOD), "its own make room");
    assert!(opened < rig.sessions().capacity(), "the rest is for others");
    ends_clean(&mut rig);
}

#[test]
fn spoofed_packets_end_no_connection() {
    let mut rig = rig();
    open(&mut rig);
    let ends = flood(&mut rig, |n| {
        let (client, server) = ENDS[n as usize % 2];
        match n % 6 {
            0 | 1 => tcp(client, server).rst().build(),
            2 | 3 => tcp(server, client).syn().build(),
            _ => udp(client, server).payload(&[1; 64]).ip_id(n).fragments(32).swap_remove(1),
        }
    });
    assert_eq!(ends, BTreeMap::from([("spoofed-address", FLOOD)]));
    assert_eq!(rig.sessions().used_by(PortId(ATTACKER)), 0);
    ends_clean(&mut rig);
}

#[test]
fn garbage_ends_where_it_came_in() {
    let mut rig = rig();
    open(&mut rig);
    let mut rng = fastrand::Rng::with_seed(0x5eed);
    let ends = flood(&mut rig, |n| {
        let mut frame = tcp("10.1.0.2:5", "10.1.0.4:80").data(&[7; 20]).build();
        // Noise from some place on, the IP header's addresses at the latest.
        let from = [0, 12, 14, 20, 24, 26][n as usize % 6];
        rng.fill(&mut frame[from..]);
        frame
    });
    assert_eq!(ends.values().sum::<u32>() as usize + ends_clean(&mut rig), FLOOD as usize);
    let forwarded = Outcome::ALL.iter().filter(|it| it.verdict() == dataplane::Verdict::Forward);
    let forwarded: u32 = forwarded.filter_map(|outcome| ends.get(outcome.name())).sum();
    assert_eq!(forwarded, 0, "{ends:?}");
}

#[test]
fn fragments_without_end_push_out_each_other() {
    let mut rig = rig();
    open(&mut rig);
    let ends = flood(&mut rig, |n| {
        let (from, to) =
            [("10.1.0.2:5", "10.1.0.4:80"), ("[fd01::2]:5", "[fd01::4]:80")][n as usize % 2];
        udp(from, to).payload(&[1; 64]).ip_id(n).fragments(32).swap_remove(1)
    });
    let waited = ends_clean(&mut rig) as u32;
    assert!(waited > 0);
    assert_eq!(ends, BTreeMap::from([("fragment-limit", FLOOD - waited)]));
}
