//! Live connections, forged addresses, pods that are not rendered, and changes under traffic.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use control::{Control, ObjectRef};
use linux_net::LoggedPackets;
use nftables::{Enforcer, LOG_BYTES, LOG_GROUP, Renderer};
use serde_json::{Value, json};
use testkit::packet::{Packet, icmp_error, neighbour_advertisement, ping, pong, sctp, tcp, udp};

use crate::common::{control, object, pod, policy, reference_of};
use crate::lab::{Lab, Network, until_forgotten};

const A: &str = "10.0.0.1";
const B: &str = "10.0.0.2";
const C: &str = "10.0.0.3";
const WORLD: &str = "198.51.100.7";

fn lab(network: Network) -> Lab {
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

fn socket(address: &str, port: u16) -> String {
    std::net::SocketAddr::new(address.parse().unwrap(), port).to_string()
}

fn two(labels: Value) -> Vec<Value> {
    let dual = |name: &str, v4: &str, v6: &str, labels: Value| {
        let mut it = pod(name, v4, labels);
        it["status"]["podIPs"] = json!([{"ip": v4}, {"ip": v6}]);
        it
    };
    vec![dual("x/a", A, "fd00::1", labels), dual("x/b", B, "fd00::2", json!({}))]
}

/// Lets peers with this label in.
fn only(label: &str) -> Value {
    only_to(json!({}), label)
}

/// The same for some pods.
fn only_to(pods: Value, label: &str) -> Value {
    let from = json!([{"podSelector": {"matchLabels": {"app": label}}}]);
    policy(
        "x/p",
        json!({"podSelector": pods, "policyTypes": ["Ingress"], "ingress": [{"from": from}]}),
    )
}

fn enforced(lab: &Lab, objects: Vec<Value>) -> (Control, (Renderer, Enforcer)) {
    let mut control = control(objects);
    control.list_peer_sets();
    control.commit();
    let mut state = (Renderer::default(), Enforcer::default());
    lab.enforce(&mut state, &control.view());
    (control, state)
}

fn change(lab: &Lab, control: &mut Control, state: &mut (Renderer, Enforcer), value: Value) {
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
    // The server alone: the client takes connections of everybody.
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
        // Of SCTP, conntrack takes up what begins with a heartbeat.
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

/// A bridge passes tagged frames by the hooks that evaluate packets, and a pod looks behind the tag of
/// VLAN 0.
#[test]
fn no_tag_leads_past_the_policies() {
    testkit::requires_root!();
    for network in [Network::Routed, Network::Bridged] {
        let lab = lab(network);
        let tagged = |tag: fn(Packet) -> Packet| {
            [(A, B), ("fd00::1", "fd00::2")]
                .map(|(from, to)| tag(udp(&socket(from, 1000), &socket(to, 53)).payload(b"x")))
        };
        let frames = [
            tagged(|packet| packet.vlan(0)),
            tagged(|packet| packet.service_vlan(0)),
            tagged(|packet| packet.vlan(5)),
            tagged(|packet| packet.service_vlan(0).vlan(0)),
        ];
        let arrive = |lab: &Lab| {
            let all = frames.iter().flatten();
            all.filter(|packet| lab.arrives("x/a", "x/b", packet)).count()
        };
        let outward = udp(&socket(A, 1000), &socket(WORLD, 53)).payload(b"x");
        let outward = [outward.clone().vlan(0), outward.service_vlan(5)];
        let leave =
            |lab: &Lab| outward.iter().filter(|packet| lab.arrives("x/a", "world", packet)).count();
        if network == Network::Bridged {
            assert!(arrive(&lab) >= 6 && leave(&lab) == 2, "without rules");
        }
        let mut objects = two(json!({"app": "1"}));
        objects.push(only("2"));
        let (mut control, mut state) = enforced(&lab, objects);
        assert_eq!(arrive(&lab), 0, "{network:?}");
        // Where they cannot be evaluated, they do not pass if they are allowed either.
        change(&lab, &mut control, &mut state, only("1"));
        assert!(lab.arrives("x/a", "x/b", &udp(&format!("{A}:1000"), &format!("{B}:53"))));
        assert!(network == Network::Routed || arrive(&lab) + leave(&lab) == 0);
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

#[test]
fn forged_addresses_go_nowhere() {
    testkit::requires_root!();
    for network in [Network::Routed, Network::Bridged] {
        let lab = lab(network);
        let (_, _state) = enforced(&lab, two(json!({})));
        let forged = |from: &str, to: &str| udp(&socket(from, 1000), &socket(to, 53));
        let expect = |from: &str, to: &str, packet: &Packet, arrives: bool| {
            assert_eq!(lab.arrives(from, to, packet), arrives, "{network:?} {from} {packet:?}");
        };
        expect("x/a", "x/b", &forged(A, B), true);
        expect("world", "x/b", &forged(WORLD, B), true);
        expect("x/a", "x/b", &forged("fd00::1", "fd00::2"), true);
        // Another pod's address, one outside, one of nobody: none is its own.
        for source in [B, WORLD, C, "203.0.113.9"] {
            expect("x/a", "x/b", &forged(source, B), false);
        }
        expect("x/a", "x/b", &forged("fd00::7", "fd00::2"), false);
        expect("x/a", "x/b", &forged("fe80::7", "fd00::2"), false);
        // A pod's address from elsewhere.
        expect("world", "x/b", &forged(A, B), false);
        expect("world", "x/b", &forged("fd00::1", "fd00::2"), false);
        // What is for nobody at the pod's interface.
        if network == Network::Bridged {
            expect("world", "x/b", &forged(WORLD, "192.0.2.99"), false);
            // Claims to be another pod.
            expect("x/a", "world", &neighbour_advertisement("fd00::1", "ff02::1"), true);
            expect("x/a", "world", &neighbour_advertisement("fd00::2", "ff02::1"), false);
            expect("world", "x/a", &neighbour_advertisement("fd00::2", "ff02::1"), false);
        }
    }
}

#[test]
fn pods_that_are_not_rendered_are_closed() {
    testkit::requires_root!();
    for network in [Network::Routed, Network::Bridged] {
        let lab = lab(network);
        let (control, mut state) = enforced(&lab, two(json!({})));
        let to = |from: &str, to: &str| udp(&socket(from, 1000), &socket(to, 53));
        // Nobody is known by c's address.
        assert!(lab.arrives("x/c", "world", &to(C, WORLD)));
        let mut site = lab.site(&control.view());
        site.networks = vec!["10.0.0.0/24".parse().unwrap(), "fd00::/64".parse().unwrap()];
        let set = |state: &mut (Renderer, Enforcer), site: &nftables::Site| {
            let ruleset = state.0.render(&control.view(), site);
            lab.node.enter(|| state.1.set(ruleset)).unwrap();
        };
        set(&mut state, &site);
        assert!(!lab.arrives("x/c", "world", &to(C, WORLD)));
        assert!(!lab.arrives("world", "x/c", &to(WORLD, C)));
        assert!(!lab.arrives("x/a", "x/c", &to("fd00::1", "fd00::3")));
        assert!(lab.arrives("x/a", "x/b", &to(A, B)));
        // A pod whose interface is not known.
        site.attachments.retain(|key, _| key.to_string() != "x/a");
        set(&mut state, &site);
        assert!(!lab.arrives("x/a", "x/b", &to(A, B)));
        assert!(!lab.arrives("world", "x/a", &to(WORLD, A)));
        assert!(lab.arrives("world", "x/b", &to(WORLD, B)));
        if network == Network::Bridged {
            // Where the kernel does not pass bridged frames to the hooks that evaluate them.
            site = lab.site(&control.view());
            site.bridge_filter = false;
            set(&mut state, &site);
            assert!(!lab.arrives("x/a", "x/b", &to(A, B)));
        }
        // Removed, nothing is enforced.
        lab.node.enter(|| state.1.remove()).unwrap();
        assert!(lab.arrives("x/a", "x/b", &to(A, B)));
        assert_eq!(lab.node.exec(["nft", "list", "tables"]).trim(), "");
    }
}

#[test]
fn somebody_elses_changes_are_found_and_mended() {
    testkit::requires_root!();
    let lab = lab(Network::Routed);
    let mut objects = two(json!({}));
    objects.push(only("1"));
    let (_, mut state) = enforced(&lab, objects);
    let packet = udp(&format!("{A}:1000"), &format!("{B}:53"));
    let verify = |state: &mut (Renderer, Enforcer)| lab.node.enter(|| state.1.verify()).unwrap();
    assert!(!lab.arrives("x/a", "x/b", &packet));
    lab.node.exec(["nft", "add", "table", "inet", "other"]);
    verify(&mut state);
    assert_eq!(state.1.written_whole(), 1, "another's table is no concern");
    for command in
        ["flush chain inet podgate-policy-a forward-to", "delete table inet podgate-policy-b"]
    {
        lab.node.exec(["nft", command]);
        assert!(lab.arrives("x/a", "x/b", &packet), "{command}");
        verify(&mut state);
        assert!(!lab.arrives("x/a", "x/b", &packet), "{command}");
    }
    assert_eq!(state.1.written_whole(), 3);
    // A change that is refused, for somebody deleted an element, ends with everything written.
    lab.node.exec(["nft", "flush map inet podgate-policy-a from-original-4"]);
    let nothing = control(Vec::new()).view();
    let next = state.0.render(&nothing, &lab.site(&nothing));
    lab.node.enter(|| state.1.set(next)).unwrap();
    assert_eq!(state.1.written_whole(), 4);
}

#[test]
fn no_change_opens_what_is_denied_or_loses_more_than_packets_under_way() {
    testkit::requires_root!();
    let lab = lab(Network::Routed);
    let mut objects = two(json!({"app": "1"}));
    objects.extend([only("1"), pod("x/c", C, json!({"app": "9"}))]);
    let (mut control, mut state) = enforced(&lab, objects);
    let allowed = udp(&format!("{A}:1000"), &format!("{B}:53"));
    let denied = udp(&format!("{C}:1000"), &format!("{B}:53"));
    assert!(lab.arrives("x/a", "x/b", &allowed) && !lab.arrives("x/c", "x/b", &denied));
    const CHANGES: u64 = 60;
    let ended = AtomicBool::new(false);
    let (mut received, mut opened) = (0, 0);
    let sent = std::thread::scope(|scope| {
        let traffic = scope.spawn(|| {
            let mut sent = 0;
            while !ended.load(Ordering::Relaxed) {
                lab.send_frame("x/a", "x/b", &allowed);
                lab.send_frame("x/c", "x/b", &denied);
                sent += 1;
                std::thread::sleep(Duration::from_micros(50));
            }
            sent
        });
        for step in 0..CHANGES {
            // Peers that come and go in the set, other lists for the same pod, a list of its own.
            let value = match step % 4 {
                0 => pod("y/d", "10.0.1.1", json!({"app": "1"})),
                1 => policy(
                    "x/q",
                    json!({"podSelector": {}, "policyTypes": ["Ingress"],
                    "ingress": [{"from": [{"ipBlock": {"cidr": "192.0.2.0/24"}}]}]}),
                ),
                2 => only("1"),
                _ => pod("x/c", C, json!({"app": step.to_string()})),
            };
            change(&lab, &mut control, &mut state, value);
            if step % 10 == 9 {
                // The process starts anew and knows nothing of what it wrote.
                state = (Renderer::default(), Enforcer::default());
                lab.enforce(&mut state, &control.view());
            }
            if step % 4 == 3 {
                let gone: ObjectRef = reference_of("NetworkPolicy", "x", "q");
                control.delete(&gone);
                control.commit();
                lab.enforce(&mut state, &control.view());
            }
        }
        ended.store(true, Ordering::Relaxed);
        traffic.join().unwrap()
    });
    testkit::transit(Duration::from_millis(50));
    for packet in lab.received("x/b") {
        match packet.get(12..16) {
            Some([10, 0, 0, 1]) => received += 1,
            Some([10, 0, 0, 3]) => opened += 1,
            _ => {}
        }
    }
    assert_eq!(opened, 0, "of {sent}");
    // A packet that is in the chains while a transaction replaces them may fall off their end.
    assert!(received <= sent && sent - received <= CHANGES, "{received} of {sent} arrived");
    assert_eq!(state.1.written_whole(), 1);
}
