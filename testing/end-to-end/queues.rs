//! Uplinks with several queues, served by several workers.

use serde_json::{Value, json};

use crate::cluster_node::{ClusterNode, PATIENCE, flow_offload};
use crate::lan::Lan;
use crate::pod::Pod;
use crate::requires_the_machine;
use crate::several_nodes::apply_service;

/// The uplink's parts, by worker.
fn uplink_parts(node: &ClusterNode) -> Vec<Value> {
    let status = node.status();
    let ports = status["ports"].as_array().unwrap();
    let uplink = ports.iter().find(|port| port["name"] == "uplink").expect("an uplink");
    let mut parts = uplink["parts"].as_array().unwrap().clone();
    parts.sort_by_key(|part| part["worker"].as_u64());
    parts
}

/// The worker that serves a pod.
fn worker(node: &ClusterNode, pod: &Pod<'_>) -> Value {
    let status = node.status();
    let ports = status["ports"].as_array().unwrap();
    ports.iter().find(|port| port["name"] == pod.key()).expect("the pod's port")["worker"].clone()
}

fn streams(client: &Pod<'_>, server: &Pod<'_>) {
    let listener = server.namespace.spawn(["iperf3", "-s", "-1", "--forceflush"]);
    listener.wait_for_line("Server listening", PATIENCE);
    let address = server.v4().to_string();
    let command = ["iperf3", "-J", "-P", "4", "-t", "1", "-c", &address];
    let result: Value = serde_json::from_str(&client.namespace.exec(command)).unwrap();
    let bytes = result["end"]["sum_received"]["bytes"].as_u64().unwrap();
    assert!(bytes > 100_000, "{result}");
}

#[test]
fn every_worker_serves_queues_of_the_uplink() {
    requires_the_machine!("iperf3", "redis-server", "redis-cli", "ping");
    let lan = Lan::with_queues(2, &["--workers", "2"]);
    let [one, two] = &lan.nodes[..] else { panic!("two nodes") };
    let clients = [one.pod("a", "a"), one.pod("b", "b")];
    let servers = [two.pod("c", "c"), two.pod("d", "d")];
    let queues = |node| uplink_parts(node).iter().map(|it| it["queues"].clone()).collect();
    for (node, pods) in [(one, &clients), (two, &servers)] {
        let mut served: Vec<Value> = queues(node);
        served.sort_by_key(ToString::to_string);
        assert_eq!(served, [json!([0]), json!([1])]);
        // With flow offload every worker has a queue of the punt link, which all pods share.
        if !flow_offload() {
            assert_ne!(worker(node, &pods[0]), worker(node, &pods[1]));
        }
        let shown = node.podgate(&["show", "ports"]);
        assert!(shown.contains("native, copy, 2 queues"), "{shown}");
        assert!(shown.contains("(queue 0)") && shown.contains("(queue 1)"), "{shown}");
    }
    // With flow offload the switch sees what opens and ends the connections, twenty of them.
    let least = if flow_offload() { 4 } else { 100 };
    let is_busy = |part: &Value| {
        ["received", "sent"].iter().all(|what| part[*what].as_u64().unwrap() > least)
    };
    // A queue is chosen by the ports of a connection.
    one.eventually("packets by all queues of both nodes", || {
        for client in &clients {
            for server in &servers {
                streams(client, server);
                assert!(client.pings(server.v6()));
            }
        }
        [one, two].iter().all(|node| uplink_parts(node).iter().all(is_busy)).then_some(())
    });
}

/// The kernel outside chooses queues by flow: connections from there are handled by either worker,
/// whichever serves the pod.
#[test]
fn connections_from_outside_come_by_all_queues() {
    requires_the_machine!("redis-server", "redis-cli");
    let lan = Lan::with_queues(2, &["--workers", "2"]);
    let node = &lan.nodes[0];
    let db = node.pod("db", "db");
    let _server = db.serve_redis();
    apply_service(&lan, &db, "node1", &json!({}));
    let asks = || {
        let command = ["timeout", "5", "redis-cli", "-h", "192.0.2.1", "-p", "30379", "ping"];
        String::from_utf8_lossy(&lan.world.try_exec(command).stdout).trim() == "PONG"
    };
    node.eventually("connections by both queues", || {
        assert!(asks());
        let parts = uplink_parts(node);
        parts.iter().all(|part| part["received"].as_u64().unwrap() > 20).then_some(())
    });
}

#[test]
fn an_uplink_that_is_lost_is_served_by_all_workers_again() {
    requires_the_machine!("ping");
    let lan = Lan::with_queues(2, &["--workers", "2"]);
    let [one, two] = &lan.nodes[..] else { panic!("two nodes") };
    let clients = [one.pod("a", "a"), one.pod("b", "b")];
    let server = two.pod("c", "c");
    let address = server.v4().to_string();
    let flood = |client: &Pod<'_>| {
        let flood = ["ping", "-q", "-i", "0.002", "-c", "5000", &address];
        client.namespace.spawn(flood)
    };
    let _floods = [flood(&clients[0]), flood(&clients[1])];
    for queues in [3, 1] {
        lan.replace_link(1, queues);
        let sum = |parts: &[Value]| -> usize {
            parts.iter().map(|it| it["queues"].as_array().unwrap().len()).sum()
        };
        let mode = if queues > 1 { "native, copy, 3 queues" } else { "native, copy" };
        let parts = one.eventually("the new link", || {
            let parts = uplink_parts(one);
            let shown = one.podgate(&["show", "ports"]);
            (sum(&parts) == usize::from(queues) && shown.contains(mode)).then_some(parts)
        });
        assert_eq!(parts.len(), usize::from(queues).min(2));
        one.eventually("packets over the new link", || {
            clients.iter().all(|client| client.pings(server.v4())).then_some(())
        });
    }
    assert!(one.is_well());
}
