//! Replies to denied connections: the kernel's, as the switch has them.

use std::net::IpAddr;
use std::time::Duration;

use nftables::{Enforcer, Renderer};
use serde_json::{Value, json};
use testkit::packet::{Packet, ping, tcp, udp};

use crate::common::{control, object, pod, policy};
use crate::lab::{Lab, Network};

const WORLD: &str = "198.51.100.7";

/// Two pods, an end outside, and a node with addresses of its own.
fn lab(network: Network) -> Lab {
    let end = |name: &str, list: &[&str]| {
        (name.to_owned(), list.iter().map(|it| it.parse::<IpAddr>().unwrap()).collect())
    };
    let ends = [
        end("x/a", &["10.0.0.1", "fd00::1"]),
        end("x/b", &["10.0.0.2", "fd00::2"]),
        end("world", &[WORLD]),
    ];
    let lab = Lab::new(network, &ends);
    for address in ["192.0.2.1/32", "2001:db8::1/128"] {
        lab.node.exec(["ip", "address", "add", address, "dev", "lo"]);
    }
    lab.node.exec(["ip", "link", "set", "lo", "up"]);
    if network == Network::Bridged {
        // Packets of the node itself to pods.
        for address in ["0.0.0.0/0", "fd00::/64"] {
            lab.node.exec(["ip", "route", "add", address, "dev", "cni0"]);
        }
        for (address, end) in [("10.0.0.1", "x/a"), ("fd00::1", "x/a"), ("10.0.0.2", "x/b")] {
            let mac = lab.mac(end).map(|byte| format!("{byte:02x}")).join(":");
            let neighbour = [address, "dev", "cni0", "lladdr", &mac, "nud", "permanent"];
            lab.node.exec(["ip", "neigh", "replace"].into_iter().chain(neighbour));
        }
    }
    // Errors are limited for each receiver; one a second would be too few here.
    lab.node.exec(["sysctl", "-qw", "net.ipv4.icmp_ratelimit=0", "net.ipv6.icmp.ratelimit=0"]);
    lab
}

fn objects(reply: &str, admitted: &str) -> Vec<Value> {
    let dual = |name: &str, n: u8, labels: Value| {
        let mut it = pod(name, &format!("10.0.0.{n}"), labels);
        it["status"]["podIPs"] =
            json!([{"ip": format!("10.0.0.{n}")}, {"ip": format!("fd00::{n}")}]);
        it
    };
    let from = json!([{"podSelector": {"matchLabels": {"app": admitted}}}]);
    let server = json!({"matchLabels": {"app": "server"}});
    vec![
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata":
            {"name": "x", "annotations": {"podgate.io/denied-reply": reply}}}),
        dual("x/a", 1, json!({"app": "client"})),
        dual("x/b", 2, json!({"app": "server"})),
        policy("x/p", json!({"podSelector": server, "ingress": [{"from": from}]})),
    ]
}

/// The IP packets that the ends `x/a` and `x/b` receive after one of them has sent a packet.
fn replies(lab: &Lab, from: &str, to: &str, packet: &Packet) -> [Vec<Vec<u8>>; 2] {
    ["x/a", "x/b"].iter().for_each(|end| drop(lab.received(end)));
    lab.send_frame(from, to, packet);
    testkit::transit(Duration::from_millis(60));
    ["x/a", "x/b"].map(|end| {
        let all = lab.received(end).into_iter();
        // Neighbour discovery and listener reports (behind a hop-by-hop header) are no replies.
        let is_ours = |it: &Vec<u8>| match it[0] >> 4 {
            4 => true,
            _ => it[6] != 0 && !(it[6] == 58 && it[40] >= 130),
        };
        all.filter(is_ours).collect()
    })
}

/// The source, and what it is: `tcp FLAGS` or `icmp TYPE CODE`.
fn what(packet: &[u8]) -> (IpAddr, String) {
    let (source, protocol, header) = match packet[0] >> 4 {
        4 => (IpAddr::from(<[u8; 4]>::try_from(&packet[12..16]).unwrap()), packet[9], 20),
        _ => (IpAddr::from(<[u8; 16]>::try_from(&packet[8..24]).unwrap()), packet[6], 40),
    };
    let body = &packet[header..];
    let text = match protocol {
        6 => format!("tcp {:02x}", body[13]),
        1 | 58 => format!("icmp {} {}", body[0], body[1]),
        other => format!("protocol {other}"),
    };
    (source, text)
}

#[test]
fn denials_are_replied_to_as_the_namespace_says() {
    testkit::requires_root!();
    for network in [Network::Routed, Network::Bridged] {
        let lab = lab(network);
        let mut control = control(objects("reject", "nobody"));
        control.list_peer_sets();
        control.commit();
        let mut state = (Renderer::default(), Enforcer::default());
        lab.enforce(&mut state, &control.view());
        for (a, b, prohibited) in
            [("10.0.0.1", "10.0.0.2", "icmp 3 13"), ("fd00::1", "fd00::2", "icmp 1 1")]
        {
            let end = |address: &str, port: u16| {
                std::net::SocketAddr::new(address.parse().unwrap(), port).to_string()
            };
            let syn = tcp(&end(a, 1000), &end(b, 80)).syn();
            let [to_a, to_b] = replies(&lab, "x/a", "x/b", &syn);
            let found: Vec<_> = to_a.iter().map(|it| what(it)).collect();
            assert_eq!(found, [(b.parse().unwrap(), "tcp 14".to_owned())], "{network:?}");
            assert!(to_b.is_empty());
            let question = udp(&end(a, 1000), &end(b, 53)).payload(b"question");
            for packet in [question, ping(a, b, 7, 1)] {
                let [to_a, to_b] = replies(&lab, "x/a", "x/b", &packet);
                let found: Vec<_> = to_a.iter().map(|it| what(it).1).collect();
                assert_eq!(found, [prohibited], "{network:?} {packet:?}");
                assert!(to_b.is_empty());
            }
        }
        // Clients outside get no reply unless the option says `reject-all`.
        let syn = |port: u16| tcp(&format!("{WORLD}:{port}"), "10.0.0.2:80").syn();
        let told = |port: u16| {
            drop(lab.received("world"));
            lab.send_frame("world", "x/b", &syn(port));
            testkit::transit(Duration::from_millis(60));
            lab.received("world").iter().any(|it| what(it).1 == "tcp 14")
        };
        assert!(!told(1000), "{network:?}");
        let set = |control: &mut control::Control, values: Vec<Value>| {
            values.into_iter().for_each(|it| control.apply(object(it)));
            control.commit();
        };
        set(&mut control, objects("reject-all", "nobody"));
        lab.enforce(&mut state, &control.view());
        assert!(told(1001), "{network:?}");
        // A live connection: each sender is reset; without TCP only the initiator gets a reply.
        set(&mut control, objects("reject", "client"));
        lab.enforce(&mut state, &control.view());
        let (a, b) = ("10.0.0.1:2000", "10.0.0.2:80");
        // Conntrack follows the stream.
        let at = |packet: Packet, sequence: u32, acknowledged: u32| {
            packet.tcp_header(|tcp| {
                (tcp.sequence_number, tcp.acknowledgment_number) = (sequence, acknowledged);
            })
        };
        assert!(lab.arrives("x/a", "x/b", &at(tcp(a, b).syn(), 100, 0)));
        assert!(lab.arrives("x/b", "x/a", &at(tcp(b, a).syn_ack(), 500, 101)));
        assert!(lab.arrives("x/a", "x/b", &at(tcp(a, b).ack(), 101, 501)));
        assert!(lab.arrives("x/a", "x/b", &udp(a, b)) && lab.arrives("x/b", "x/a", &udp(b, a)));
        set(&mut control, objects("reject", "nobody"));
        lab.enforce(&mut state, &control.view());
        let texts = |packets: &[Vec<u8>]| packets.iter().map(|it| what(it).1).collect::<Vec<_>>();
        let [to_a, to_b] = replies(&lab, "x/a", "x/b", &at(tcp(a, b).data(b"x"), 101, 501));
        assert_eq!((&texts(&to_a)[..], to_b.len()), (&["tcp 04".to_owned()][..], 0), "{network:?}");
        let [to_a, to_b] = replies(&lab, "x/b", "x/a", &at(tcp(b, a).data(b"x"), 501, 101));
        assert_eq!((to_a.len(), &texts(&to_b)[..]), (0, &["tcp 04".to_owned()][..]), "{network:?}");
        let [to_a, to_b] = replies(&lab, "x/b", "x/a", &udp(b, a));
        assert_eq!((to_a.len(), to_b.len()), (0, 0), "{network:?}");
        let [to_a, to_b] = replies(&lab, "x/a", "x/b", &udp(a, b));
        assert_eq!((texts(&to_a), to_b.len()), (vec!["icmp 3 13".to_owned()], 0), "{network:?}");
        // One sender has a bounded number of replies.
        drop(lab.received("x/a"));
        for n in 0..400 {
            lab.send_frame("x/a", "x/b", &tcp(&format!("10.0.0.1:{}", 3000 + n), b).syn());
        }
        testkit::transit(Duration::from_millis(60));
        let count = lab.received("x/a").len();
        assert!((50..400).contains(&count), "{count}");
        // Elements that the kernel adds for senders are not a change by another program.
        lab.node.enter(|| state.1.verify()).unwrap();
        assert!(lab.node.exec(["nft", "list", "ruleset"]).contains("limit rate 1000/second"));
        let noted = "nft list ruleset \
             | awk '$1 == \"set\" {set = $2} set == \"replied-4\" && /10.0.0.1 limit rate/' | wc -l";
        assert_eq!(lab.node.exec(["sh", "-c", noted]), "1\n");
        // Without replies nothing of them is left.
        set(&mut control, objects("drop", "nobody"));
        lab.enforce(&mut state, &control.view());
        let [to_a, to_b] = replies(&lab, "x/a", "x/b", &tcp("10.0.0.1:4000", b).syn());
        assert_eq!((to_a.len(), to_b.len()), (0, 0), "{network:?}");
        let tables = lab.node.exec(["nft", "list", "ruleset"]);
        assert!(!["reject", "replied", "aborted"].iter().any(|it| tables.contains(it)), "{tables}");
    }
}
