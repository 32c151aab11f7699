//! Live connections, forged addresses, pods that are not rendered, and changes under traffic.

use std::net::IpAddr;
use std::time::Duration;

use control::Control;
use linux_net::LoggedPackets;
use nftables::{Enforcer, LOG_BYTES, LOG_GROUP, Renderer};
use serde_json::{Value, json};
use testkit::packet::{Packet, icmp_error, ping, pong, sctp, tcp, udp};

use crate::common::{control, object, pod, policy};
use crate::lab::{Lab, Network, until_forgotten};

pub(crate) const A: &str = "10.0.0.1";
pub(crate) const B: &str = "10.0.0.2";
pub(crate) const C: &str = "10.0.0.3";
pub(crate) const WORLD: &str = "198.51.100.7";

pub(crate) fn lab(network: Network) -> Lab {
    let end = |name: &str, list: &[&str]| {
        (name.to_owned(), list.iter().map(|it| it.parse::<IpAddr>().unwrap()).collect())
    };
    let ends = [
        end("x/a", &[A, "fd00::1"]),
        end("x/b", &[B, "fd00::2"]),
        end("x/c", &[C, "fd00::3"]),
        end("world", &[WORLD]),
    ];
    Lab::new(network, &ends)
}

pub(crate) fn socket(address: &str, port: u16) -> String {
    std::net::SocketAddr::new(address.parse().unwrap(), port).to_string()
}

pub(crate) fn two(labels: Value) -> Vec<Value> {
    let dual = |name: &str, v4: &str, v6: &str, labels: Value| {
        let mut it = pod(name, v4, labels);
        it["status"]["podIPs"] = json!([{"ip": v4}, {"ip": v6}]);
        it
    };
    vec![dual("x/a", A, "fd00::1", labels), dual("x/b", B, "fd00::2", json!({}))]
}

/// Lets peers with this label in.
pub(crate) fn only(label: &str) -> Value {
    only_to(json!({}), label)
}

/// The same for some pods.
pub(crate) fn only_to(pods: Value, label: &str) -> Value {
    let from = json!([{"podSelector": {"matchLabels": {"app": label}}}]);
    policy(
        "x/p",
        json!({"podSelector": pods, "policyTypes": ["Ingress"], "ingress": [{"from": from}]}),
    )
}

pub(crate) fn enforced(lab: &Lab, objects: Vec<Value>) -> (Control, (Renderer, Enforcer)) {
    let mut control = control(objects);
    control.list_peer_sets();
    control.commit();
    let mut state = (Renderer::default(), Enforcer::default());
    lab.enforce(&mut state, &control.view());
    (control, state)
}

pub(crate) fn change(
    lab: &Lab,
    control: &mut Control,
    state: &mut (Renderer, Enforcer),
    value: Value,
) {
    control.apply(object(value));
    control.commit();
    lab.enforce(state, &control.view());
}

#[test]
fn a_denial_stops_a_live_connection_at_its_next_packet_in_both_directions() {
    testkit::requires_root!();
    for network in [Network::Routed, Network::Bridged] {
        let lab = lab(network);
        let mut objects = two(json!({"app": "1"}));
        objects.push(only("1"));
        let (mut control, mut state) = enforced(&lab, objects);
        let there = udp(&format!("{A}:1000"), &format!("{B}:53"));
        let back = udp(&format!("{B}:53"), &format!("{A}:1000"));
        assert!(!lab.arrives("x/b", "x/a", &back), "nothing was opened yet");
        assert!(lab.arrives("x/a", "x/b", &there));
        assert!(lab.arrives("x/b", "x/a", &back), "the reply");
        let unreachable = icmp_error(B, A, 3, 3, &there);
        assert!(lab.arrives("x/b", "x/a", &unreachable), "an error about it");
        assert!(lab.arrives("x/a", "x/b", &ping(A, B, 7, 1)));
        assert!(lab.arrives("x/b", "x/a", &pong(B, A, 7, 1)));
        for value in [only("2"), only("1"), two(json!({"app": "2"})).remove(0)] {
            let denies = value != only("1");
            change(&lab, &mut control, &mut state, value.clone());
            for (from, to, packet) in [
                ("x/a", "x/b", &there),
                ("x/b", "x/a", &back),
                ("x/a", "x/b", &ping(A, B, 7, 2)),
                ("x/b", "x/a", &pong(B, A, 7, 2)),
            ] {
                assert_eq!(
                    lab.arrives(from, to, packet),
                    !denies,
                    "{network:?} {value} {packet:?}"
                );
            }
        }
        // The pod's egress counts as well.
        change(&lab, &mut control, &mut state, only("2"));
        let none = json!({"podSelector": {}, "policyTypes": ["Egress"]});
        change(&lab, &mut control, &mut state, policy("x/e", none));
        assert!(!lab.arrives("x/a", "x/b", &there) && !lab.arrives("x/b", "x/a", &back));
    }
}

/// A segment, or what opens or ends a connection, at a place of its stream.
fn segment(from: &str, to: &str, at: [u32; 2], flags: fn(Packet) -> Packet) -> Packet {
    flags(tcp(from, to)).tcp_header(|tcp| {
        [tcp.sequence_number, tcp.acknowledgment_number] = at;
    })
}

/// Conntrack forgets a connection by what a peer sends, also if a rule drops it. What the other end sends
/// next is no new connection of its own: a denial holds, whenever it comes.
#[test]
fn a_connection_that_conntrack_forgot_is_nobody_elses() {
    testkit::requires_root!();
    const CLIENT: &str = "10.0.0.1:1000";
    const SERVER: &str = "10.0.0.2:80";
    const HEARTBEAT: u8 = 4;
    // Only the server restricts: the client accepts all connections.
    let server = json!({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]});
    let only = |label: &str| only_to(server.clone(), label);
    for network in [Network::Routed, Network::Bridged] {
        let lab = lab(network);
        lab.node.exec(["sysctl", "-qw", "net.netfilter.nf_conntrack_tcp_timeout_close=1"]);
        let mut objects = two(json!({"app": "1"}));
        objects.push(only("1"));
        let (mut control, mut state) = enforced(&lab, objects);
        let there = |at, flags| lab.arrives("x/a", "x/b", &segment(CLIENT, SERVER, at, flags));
        let back = |at, flags| lab.arrives("x/b", "x/a", &segment(SERVER, CLIENT, at, flags));
        let data = |packet: Packet| packet.data(b"abc");
        assert!(there([100, 0], Packet::syn) && back([500, 101], Packet::syn_ack));
        assert!(there([101, 501], data) && back([501, 104], data), "{network:?}");
        let forget = || until_forgotten(&lab.node);
        change(&lab, &mut control, &mut state, only("2"));
        assert!(!there([104, 504], data) && !back([504, 104], data));
        assert!(!there([104, 504], Packet::rst), "a reset");
        forget();
        for _ in 0..2 {
            assert!(!back([504, 104], data), "{network:?}: the server goes on");
            assert!(!there([104, 507], data), "{network:?}: the client");
        }
        // Where both are permitted, it is taken up in the middle, by whoever sends; a later denial ends it.
        for server_first in [true, false] {
            change(&lab, &mut control, &mut state, only("1"));
            assert!(!server_first || back([504, 104], data));
            assert!(there([104, 507], data) && back([507, 107], data), "{network:?}");
            change(&lab, &mut control, &mut state, only("2"));
            assert!(!back([510, 107], data) && !there([107, 510], data), "{network:?}");
            assert!(!there([107, 510], Packet::rst));
            forget();
        }
        // Conntrack picks up an SCTP association at a heartbeat.
        let heartbeat = sctp(SERVER, CLIENT, HEARTBEAT);
        assert!(!lab.arrives("x/b", "x/a", &heartbeat), "{network:?}");
        change(&lab, &mut control, &mut state, only("1"));
        assert!(lab.arrives("x/b", "x/a", &heartbeat), "{network:?}");
    }
}

/// An entry of conntrack says which end opened a connection, and would say so of the next pod.
#[test]
fn a_new_pod_at_an_old_address_inherits_no_connection() {
    testkit::requires_root!();
    const SERVICE: &str = "10.96.0.1";
    let closed = policy(
        "x/p",
        json!({"podSelector": {"matchLabels": {"app": "new"}}, "policyTypes": ["Ingress"]}),
    );
    let a = |uid: &str, app: &str| {
        let mut it = two(json!({"app": app})).remove(0);
        it["metadata"]["uid"] = json!(uid);
        it
    };
    for (network, at_once) in
        [(Network::Routed, true), (Network::Routed, false), (Network::Bridged, true)]
    {
        let lab = lab(network);
        let objects = vec![a("1", "old"), two(json!({})).remove(1), closed.clone()];
        let (mut control, mut state) = enforced(&lab, objects);
        let mut opened = vec![(A, B, B), ("fd00::1", "fd00::2", "fd00::2")];
        if network == Network::Routed {
            let chain = "add chain ip proxy pre { type nat hook prerouting priority dstnat; }";
            let rule = format!("add rule ip proxy pre ip daddr {SERVICE} dnat to {B}");
            for command in ["add table ip proxy", chain, &rule] {
                lab.node.exec(["nft", command]);
            }
            opened.push((A, SERVICE, B));
        }
        let passes = |from: &str, to: &str, packet: &Packet| {
            lab.received(to);
            lab.send_frame(from, to, packet);
            testkit::transit(Duration::from_millis(30));
            let protocol_at = |packet: &[u8]| if packet[0] >> 4 == 4 { 9 } else { 6 };
            lab.received(to).iter().any(|packet| packet[protocol_at(packet)] == 17)
        };
        let exchange = |port: u16, (here, asked, there): (&str, &str, &str)| {
            let question = udp(&socket(here, port), &socket(asked, 53));
            let answer = udp(&socket(there, 53), &socket(here, port));
            (passes("x/a", "x/b", &question), passes("x/b", "x/a", &answer))
        };
        for (port, ends) in (1000..).zip(&opened) {
            assert_eq!(exchange(port, *ends), (true, true), "{network:?} {ends:?}");
        }
        let mut replace = |change: &mut dyn FnMut(&mut Control)| {
            change(&mut control);
            control.commit();
            let departed = control.take_departed();
            lab.replace(&mut state, &control.view(), &departed);
        };
        if !at_once {
            let old = object(a("1", "old")).reference();
            replace(&mut |control| control.delete(&old));
        }
        replace(&mut |control| control.apply(object(a("2", "new"))));
        for (port, (here, _, there)) in (1000..).zip(&opened) {
            let answer = udp(&socket(there, 53), &socket(here, port));
            let arrived = (0..20).filter(|_| passes("x/b", "x/a", &answer)).count();
            assert_eq!(arrived, 0, "{network:?} {here} {there}: of 20 datagrams");
        }
        // Its own connections are as they were allowed.
        assert_eq!(exchange(2000, (A, B, B)), (true, true), "{network:?}");
    }
}

#[test]
fn denied_packets_are_logged_with_the_deciding_policy() {
    testkit::requires_root!();
    for network in [Network::Routed, Network::Bridged] {
        let lab = lab(network);
        let mut log = lab.node.enter(|| LoggedPackets::open(LOG_GROUP, LOG_BYTES)).unwrap();
        let taken = lab.node.enter(|| LoggedPackets::open(LOG_GROUP, LOG_BYTES)).unwrap_err();
        assert!(taken.to_string().contains(&LOG_GROUP.to_string()), "{taken}");
        let mut objects = two(json!({"app": "1"}));
        objects.push(only("2"));
        let (_control, _state) = enforced(&lab, objects);
        for (from, to) in [(A, B), ("fd00::1", "fd00::2")] {
            let packet = udp(&socket(from, 1000), &socket(to, 53)).payload(&[7; 500]);
            assert!(!lab.arrives("x/a", "x/b", &packet));
            let logged = log.receive(Duration::from_secs(60)).unwrap().remove(0);
            assert_eq!(logged.prefix, "default-deny of NetworkPolicy x/p");
            assert_eq!(logged.bytes.len(), LOG_BYTES as usize);
            let source = if from == A { &logged.bytes[12..16] } else { &logged.bytes[8..24] };
            let wanted: IpAddr = from.parse().unwrap();
            let wanted = match wanted {
                IpAddr::V4(v4) => v4.octets().to_vec(),
                IpAddr::V6(v6) => v6.octets().to_vec(),
            };
            assert_eq!(source, wanted);
        }
        // A flood is denied whole, and logged in part.
        let flood = udp(&socket(A, 1000), &socket(B, 53));
        (0..500).for_each(|_| lab.send_frame("x/a", "x/b", &flood));
        testkit::transit(Duration::from_millis(100));
        assert_eq!(
            lab.received("x/b").iter().filter(|it| it[0] >> 4 == 4 && it[9] == 17).count(),
            0
        );
        let mut count = 0;
        loop {
            match log.receive(Duration::from_millis(100)).unwrap().len() {
                0 => break,
                some => count += some,
            }
        }
        assert!((1..200).contains(&count), "{count} of 500 packets were logged");
    }
}
