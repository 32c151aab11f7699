//! A pod that does its worst, as fast as it can: it alone suffers. Next to it, a client of
//! another pod has its pages, opens connections, has packets in fragments, and keeps an old
//! connection.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use testkit::packet::{self, Mac};
use testkit::{Namespace, RawSender};

use crate::clients::curl;
use crate::pod::Pod;
use crate::servers::{LARGE, Web};
use crate::several_nodes::Connection;
use crate::storm::Raise;
use crate::{ClusterNode, requires_the_machine};

/// Frames that must have reached the switch before the others are looked at.
const FLOOD: u64 = 5000;

/// The attack of one pod.
struct Attack<'a> {
    name: &'a str,
    /// Ends that some of its packets must meet: something was tried at all.
    ends: &'a [&'a str],
    frame: &'a (dyn Fn(u32) -> Vec<u8> + Sync),
}

/// Both addresses of a pod.
type Ends = [IpAddr; 2];

fn ends(pod: &Pod<'_>) -> Ends {
    [pod.v4(), pod.v6()]
}

/// An end of a connection as packets are written with, the families in turns.
fn end(ends: Ends, n: u32, port: u32) -> String {
    SocketAddr::new(ends[n as usize % 2], port as u16).to_string()
}

pub(crate) fn mac(pod: &Pod<'_>) -> Mac {
    let link = pod.namespace.exec(["ip", "-j", "link", "show", "eth0"]);
    let link: Value = serde_json::from_str(&link).unwrap();
    let bytes = link[0]["address"].as_str().unwrap().split(':');
    let bytes: Vec<u8> = bytes.map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
    bytes.try_into().unwrap()
}

/// The same bytes every time, and no pattern in them.
fn noise(seed: u32, length: usize) -> Vec<u8> {
    let mut state = u64::from(seed) << 1 | 1;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..length).map(|_| next()).collect()
}

fn received(node: &ClusterNode, pod: &Pod<'_>) -> u64 {
    let (name, interface) = (pod.key(), &pod.host_interface);
    let (namespace, pod) = name.split_once('/').unwrap();
    let labels = format!(
        "{{interface=\"{interface}\",namespace=\"{namespace}\",pod=\"{pod}\",port=\"{name}\"}}"
    );
    node.metric(&format!("podgate_port_received_packets_total{labels}")) as u64
}

/// Packets with these outcomes.
fn counts(node: &ClusterNode, ends: &[&str]) -> Vec<u64> {
    let errors = node.podgate(&["show", "errors", "-o", "json"]);
    let lines = errors.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let count = |line: Value| (line["reason"].to_string(), line["packets"].as_u64().unwrap());
    let counts: BTreeMap<String, u64> = lines.map(count).collect();
    ends.iter().map(|end| counts.get(&json!(end).to_string()).copied().unwrap_or(0)).collect()
}

/// Sends frames until told to stop.
fn send(pod: &Namespace, frame: &(dyn Fn(u32) -> Vec<u8> + Sync), stop: &AtomicBool) {
    pod.enter(|| {
        let sender = RawSender::open("eth0").unwrap();
        for n in 0.. {
            if stop.load(Ordering::Acquire) {
                return;
            }
            // Frames are dropped while the kernel has no room.
            let _ = sender.send(&frame(n));
        }
    });
}

/// Everything a well-behaved client does, once; fresh connections and old ones.
fn is_undisturbed(client: &Namespace, server: Ends, old: &mut Connection, what: &str) {
    old.goes_on();
    for address in server {
        let to = address.to_string();
        assert_eq!(curl(client, &to, 80, "/").as_deref(), Some("server"), "{what}: {to}");
        let page = curl(client, &to, 80, "/large").map(|page| page.len());
        assert_eq!(page, Some(LARGE), "{what}: {to}");
        // In three fragments each way, none of which may be lost. (After several at once ping waits no longer for
        // the last answer than the others took.)
        for _ in 0..5 {
            let ping = client.try_exec(["ping", "-c", "1", "-W", "10", "-s", "4000", &to]);
            assert!(ping.status.success(), "{what}: {}", String::from_utf8_lossy(&ping.stdout));
        }
    }
    old.goes_on();
}

#[test]
fn a_hostile_pod_harms_nobody_else() {
    requires_the_machine!("nginx", "curl", "ping");
    let node = ClusterNode::start(&["--sessions", "4096"]);
    let (attacker, target) = (node.pod("attacker", "attacker"), node.pod("target", "target"));
    let (client, server) = (node.pod("client", "client"), node.pod("server", "server"));
    let _web = Web::start(&server);
    let (own, others) = (mac(&attacker), mac(&client));
    let (me, them, it, at) = (ends(&attacker), ends(&target), ends(&client), ends(&server));
    let mut old = {
        let (client, server) = (client.namespace.path(), server.namespace.path());
        Connection::open(client, server, SocketAddr::new(at[0], 7000))
    };
    let attacks = [
        Attack {
            name: "speaks for others",
            ends: &["spoofed-address", "spoofed-mac"],
            frame: &|n| match n % 4 {
                0 => {
                    let (from, to) = (end(it, n / 4, 40_000), end(at, n / 4, 80));
                    packet::tcp(&from, &to).rst().from_mac(own).build()
                }
                1 => {
                    let (from, to) = (end(me, n / 4, 40_000), end(at, n / 4, 80));
                    packet::tcp(&from, &to).syn().from_mac(others).build()
                }
                2 => {
                    let (from, to) = (at[0].to_string(), it[0].to_string());
                    packet::arp_reply(&from, &to).sender_mac(own).from_mac(own).build()
                }
                _ => {
                    let (from, to) = (at[1].to_string(), it[1].to_string());
                    packet::neighbour_advertisement(&from, &to).from_mac(own).build()
                }
            },
        },
        Attack {
            name: "opens connections without end",
            ends: &["policy-allowed"],
            frame: &|n| {
                let from = end(me, n, 1024 + n / 2 % 60_000);
                packet::tcp(&from, &end(them, n, 1 + n / 7 % 60_000)).syn().from_mac(own).build()
            },
        },
        Attack {
            name: "sends fragments that never are whole",
            ends: &["fragment-limit"],
            frame: &|n| {
                let whole = packet::udp(&end(me, n, 9), &end(them, n, 9)).ip_id(n / 2);
                let (offset, length) = (n / 2 % 40 * 8, 8 + n / 80 % 32 * 8);
                whole.from_mac(own).fragment(offset as usize, true, &noise(n, length as usize))
            },
        },
        Attack {
            name: "sends garbage",
            ends: &["truncated", "malformed-ip", "unknown-ethertype", "malformed-transport"],
            frame: &|n| {
                let good = packet::tcp(&end(me, n, 1), &end(at, n, 80)).syn().from_mac(own).build();
                match n / 2 % 4 {
                    0 => [&good[..12], &noise(n, 2 + n as usize / 8 % 1400)].concat(),
                    1 => packet::cut(good.clone(), 14 + n as usize / 8 % (good.len() - 14)),
                    2 => packet::patch(good, 14 + n as usize / 8 % 36, &noise(n, 4)),
                    _ => noise(n, 14 + n as usize / 8 % 1400),
                }
            },
        },
        Attack {
            name: "asks for addresses",
            ends: &["arp-reply", "nd-reply"],
            frame: &|n| {
                let (from, to) = (me[n as usize % 2].to_string(), at[n as usize % 2].to_string());
                match n % 2 {
                    0 => packet::arp_request(&from, &to).sender_mac(own).from_mac(own).build(),
                    _ => packet::neighbour_solicitation(&from, &to).from_mac(own).build(),
                }
            },
        },
        Attack {
            name: "reports errors about connections of others",
            ends: &["no-session"],
            frame: &|n| {
                let quoted = packet::tcp(&end(it, n, 7000), &end(at, n, 80)).ack();
                let (from, to) = (me[n as usize % 2].to_string(), it[n as usize % 2].to_string());
                let kind = if n.is_multiple_of(2) { 3 } else { 1 };
                packet::icmp_error(&from, &to, kind, 3, &quoted).from_mac(own).build()
            },
        },
    ];
    is_undisturbed(&client.namespace, at, &mut old, "nobody attacks");
    for attack in &attacks {
        let before = (received(&node, &attacker), counts(&node, attack.ends));
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _stopping = Raise(&stop);
            let (inside, stop) = (&attacker.namespace, &stop);
            scope.spawn(move || send(inside, attack.frame, stop));
            node.eventually(attack.name, || {
                (received(&node, &attacker) >= before.0 + FLOOD).then_some(())
            });
            is_undisturbed(&client.namespace, at, &mut old, attack.name);
        });
        let after = counts(&node, attack.ends);
        let tried = after.iter().zip(&before.1).all(|(after, before)| after > before);
        assert!(tried, "{}: {:?} of {:?}, {after:?}", attack.name, before.1, attack.ends);
        assert!(node.is_well(), "{}", attack.name);
    }
}
