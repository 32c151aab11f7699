//! Connections of pods without policies.

use std::io::{Read, Write};
use std::net::{TcpListener, UdpSocket};

use serde_json::Value;

use crate::cluster_node::PATIENCE;
use crate::pod::Pod;
use crate::{ClusterNode, requires_the_machine};

/// The port of servers.
const PORT: u16 = 9000;
/// Datagrams that are under way at once, and how often.
const AT_ONCE: u32 = 16;
const ROUNDS: u32 = 250;

/// Streams to the server, which receives every byte.
fn stream_passes(client: &Pod<'_>, server: &Pod<'_>) {
    let listener = server.namespace.enter(|| TcpListener::bind(("0.0.0.0", PORT)).unwrap());
    let sent: Vec<u8> = (0..1_u32 << 18).flat_map(u32::to_be_bytes).collect();
    let sent = sent.repeat(24);
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let mut received = Vec::new();
            listener.accept().unwrap().0.read_to_end(&mut received).map(|_| received)
        });
        client.connect(server.v4(), PORT).unwrap().write_all(&sent).unwrap();
        assert!(receiver.join().unwrap().unwrap() == sent, "the server received something else");
    });
}

/// Each datagram comes back, and once. The next ones are sent then, so that no socket overflows however busy the
/// machine is.
fn datagrams_pass(client: &Pod<'_>, server: &Pod<'_>) {
    let bind = |pod: &Pod<'_>, peer: &Pod<'_>| {
        let socket = pod.namespace.enter(|| UdpSocket::bind(("0.0.0.0", PORT)).unwrap());
        socket.connect((peer.v4(), PORT)).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    };
    let (near, far) = (bind(client, server), bind(server, client));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut bytes = [0; 1200];
            for _ in 0..AT_ONCE * ROUNDS {
                let count = far.recv(&mut bytes).expect("no datagram to the server is lost");
                far.send(&bytes[..count]).unwrap();
            }
        });
        let mut bytes = [0; 1200];
        for round in 0..ROUNDS {
            let numbers: Vec<u32> = (round * AT_ONCE..(round + 1) * AT_ONCE).collect();
            for number in &numbers {
                bytes[..4].copy_from_slice(&number.to_be_bytes());
                near.send(&bytes).unwrap();
            }
            let mut back: Vec<u32> = numbers
                .iter()
                .map(|_| {
                    let count = near.recv(&mut bytes).expect("no datagram to the client is lost");
                    assert_eq!(count, bytes.len());
                    u32::from_be_bytes(*bytes.first_chunk().unwrap())
                })
                .collect();
            back.sort();
            assert_eq!(back, numbers);
        }
    });
}

/// Packets that the switch has dropped, by reason.
fn drops(node: &ClusterNode) -> Vec<String> {
    let metrics = node.http("/metrics");
    let counts = metrics.lines().filter(|line| line.starts_with("podgate_packets_total{"));
    let drops = counts.filter(|line| line.contains("verdict=\"drop\""));
    drops.filter(|line| !line.ends_with(" 0")).map(ToOwned::to_owned).collect()
}

fn streams_pass(node: &ClusterNode) {
    let (client, server) = (node.pod("client", "client"), node.pod("server", "server"));
    stream_passes(&client, &server);
    datagrams_pass(&client, &server);
    assert_eq!(drops(node), [""; 0]);
}

#[test]
fn tcp_and_udp_streams_pass() {
    requires_the_machine!();
    streams_pass(&ClusterNode::start(&[]));
}

#[test]
fn streams_pass_from_worker_to_worker() {
    requires_the_machine!();
    let node = ClusterNode::start(&["--workers", "2"]);
    streams_pass(&node);
    assert_eq!(node.status()["workers"].as_array().unwrap().len(), 2);
}

#[test]
fn pods_and_their_cluster_node_ping_each_other_in_both_families() {
    requires_the_machine!("ping");
    let node = ClusterNode::start(&[]);
    let (a, b) = (node.pod("a", "a"), node.pod("b", "b"));
    assert!(a.pings(b.v4()) && b.pings(a.v4()));
    assert!(a.pings(b.v6()) && b.pings(a.v6()));
    for gateway in ["10.77.0.1", "fd77::1"] {
        assert!(a.pings(gateway.parse().unwrap()), "{gateway}");
    }
    for address in [a.v4(), a.v6()] {
        let address = address.to_string();
        node.namespace.exec(["ping", "-c", "1", "-W", "2", address.as_str()]);
    }
}

#[test]
fn rates_and_ways_of_packets_can_be_watched() {
    requires_the_machine!("ping");
    let node = ClusterNode::start(&[]);
    let (a, b) = (node.pod("a", "a"), node.pod("b", "b"));
    let address = b.v4().to_string();
    node.podgate(&["trace", "add", "2", "--filter", "from=default/a protocol=icmp"]);
    let pings = a.namespace.spawn(["ping", "-i", "0.05", "-c", "200", address.as_str()]);
    pings.wait_for_line("icmp_seq=2", PATIENCE);
    let top = node.podgate(&["top", "--interval", "500ms", "--count", "1", "-o", "json"]);
    let top: Value = serde_json::from_str(&top).unwrap();
    let busiest = &top["ports"][0];
    assert!(busiest["received"].as_f64().unwrap() > 1.0, "{top}");
    assert!(node.podgate(&["top", "--interval", "100ms", "--count", "1"]).contains("default/a"));
    let trace = node.podgate(&["trace", "show"]);
    for part in ["default/a", "parse", "session", "policy", "rewrite", "policy-allowed"] {
        assert!(trace.contains(part), "{part} is not in\n{trace}");
    }
}

#[test]
fn what_happened_can_be_read() {
    requires_the_machine!("ping");
    let node = ClusterNode::start(&[]);
    let (a, b) = (node.pod("a", "a"), node.pod("b", "b"));
    assert!(a.pings(b.v4()));
    let status = node.status();
    let ports = status["ports"].as_array().unwrap();
    let port = |name: &str| ports.iter().find(|port| port["name"] == name).unwrap();
    for name in [a.key(), b.key(), "host".to_owned()] {
        let mode = port(&name)["mode"].as_str().unwrap();
        let is_pod = name != "host";
        let by_program = is_pod && status["flow_offload"]["state"] == "on";
        assert!(mode.ends_with("copy") || by_program && mode == "flow offload", "{status}");
    }
    assert!(port(&a.key())["received"].as_u64().unwrap() > 0);
    assert!(node.metric("podgate_packets_total{reason=\"session\",verdict=\"forward\"}") >= 1.0);
    let opened = node.verdicts(&["--from-pod", "default/a", "--to-pod", "default/b"]);
    assert_eq!(opened.len(), 1, "{opened:?}");
    assert_eq!(opened[0]["verdict"], "forward");
    assert_eq!(opened[0]["by"][0], "default-allow");
}
