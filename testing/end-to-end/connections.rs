//! Connections of pods without policies.

use serde_json::Value;

use crate::cluster_node::PATIENCE;
use crate::pod::Pod;
use crate::{ClusterNode, requires_the_machine};

fn stream(client: &Pod<'_>, server: &Pod<'_>, options: &[&str]) -> Value {
    let listener = server.namespace.spawn(["iperf3", "-s", "-1", "--forceflush"]);
    listener.wait_for_line("Server listening", PATIENCE);
    let address = server.v4().to_string();
    let command = [&["iperf3", "-J", "-t", "2", "-c", &address], options].concat();
    serde_json::from_str(&client.namespace.exec(command)).unwrap()
}

fn streams_pass(node: &ClusterNode) {
    let (client, server) = (node.pod("client", "client"), node.pod("server", "server"));
    let tcp = stream(&client, &server, &[]);
    assert!(tcp["end"]["sum_received"]["bytes"].as_u64().unwrap() > 1_000_000, "{tcp}");
    // Slow enough for the receiver's buffer while a busy machine keeps it waiting.
    let udp = stream(&client, &server, &["-u", "-b", "5M"]);
    let sum = &udp["end"]["sum"];
    let (sent, lost) = (sum["packets"].as_f64().unwrap(), sum["lost_packets"].as_f64().unwrap());
    assert!(sent > 300.0 && lost < sent / 4.0, "{sum}");
}

#[test]
fn tcp_and_udp_streams_pass() {
    requires_the_machine!("iperf3");
    streams_pass(&ClusterNode::start(&[]));
}

#[test]
fn streams_pass_from_worker_to_worker() {
    requires_the_machine!("iperf3");
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
