//! Short connections take the kernel's way between nodes, and with several workers.

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};

use super::handshake::of_reasons;
use super::uplink::{ROUTED, TUNNELS, policy};
use super::{arrived, asks, connect_to_redis, connections, offload, settled};
use crate::cluster_node::PATIENCE;
use crate::lan::Lan;
use crate::pod::Pod;
use crate::several_nodes::apply_service;
use crate::{ClusterNode, requires_the_machine};

const CONNECTIONS: u64 = 50;

fn opened(node: &ClusterNode) -> u64 {
    offload(node)["opened"].as_u64().unwrap()
}

/// Connects until templates of all these nodes open many connections in a row; how often.
fn await_templates(nodes: &[&ClusterNode], client: &Pod<'_>, to: IpAddr) -> u64 {
    let mut made = 0;
    nodes[0].eventually("templates", || {
        let before: Vec<u64> = nodes.iter().map(|node| opened(node)).collect();
        (0..20).for_each(|_| asks(&mut connect_to_redis(client, to)).unwrap());
        made += 20;
        nodes.iter().zip(before).all(|(node, before)| opened(node) >= before + 19).then_some(made)
    })
}

/// Openings that a node's observers have seen.
fn shown(node: &ClusterNode, to: IpAddr) -> u64 {
    let is_opening =
        |it: &&Value| it["reason"] == "policy-allowed" && it["to"]["ip"] == to.to_string();
    node.verdicts(&[]).iter().filter(is_opening).count() as u64
}

/// Each is opened by all these nodes, without the switch, and shown by each.
fn are_short(nodes: &[&ClusterNode], client: &Pod<'_>, to: IpAddr) {
    let made = await_templates(nodes, client, to);
    // All of them are over, and shown.
    for node in nodes {
        node.eventually("the end of entries", || (connections(node) == 0).then_some(()));
        node.eventually("their verdicts", || (shown(node, to) == made).then_some(()));
    }
    let punted = |node: &&ClusterNode| of_reasons(&offload(node));
    let all = |of: &dyn Fn(&&ClusterNode) -> u64| nodes.iter().map(of).collect::<Vec<u64>>();
    let before = (all(&|node| opened(node)), all(&punted));
    for _ in 0..CONNECTIONS {
        asks(&mut connect_to_redis(client, to)).unwrap();
    }
    for (n, node) in nodes.iter().enumerate() {
        let state = offload(node);
        assert!(opened(node) > before.0[n] + CONNECTIONS * 9 / 10, "{to}, {n}: {state}");
        assert!(punted(node) < before.1[n] + CONNECTIONS, "{to}, {n}: {state}");
        node.eventually("all verdicts", || (shown(node, to) == made + CONNECTIONS).then_some(()));
        node.eventually("the end of entries", || (connections(node) == 0).then_some(()));
        assert!(node.is_well());
    }
}

fn between_nodes(arguments: &[&str]) {
    let lan = Lan::start(arguments);
    let [one, two] = &lan.nodes[..] else { panic!("two nodes") };
    let (client, server) = (one.pod("client", "client"), two.pod("server", "server"));
    let _redis = server.serve_redis();
    for to in [server.v4(), server.v6()] {
        are_short(&[one, two], &client, to);
        let is_refused = || {
            let to = SocketAddr::new(to, 6379);
            let connect = || TcpStream::connect_timeout(&to, Duration::from_millis(50)).is_err();
            client.namespace.enter(connect)
        };
        // Where it arrives, counted by the server's kernel.
        policy(&lan, two, "server", &json!({"policyTypes": ["Ingress"], "ingress": []}));
        let before = settled(&server);
        assert!((0..10).all(|_| is_refused()), "{to}");
        assert_eq!(arrived(&server), before, "{to}: connections after the denial of what arrives");
        policy(&lan, two, "server", &json!({"policyTypes": ["Ingress"], "ingress": [{}]}));
        await_templates(&[one, two], &client, to);
        // Where it leaves.
        policy(&lan, one, "client", &json!({"policyTypes": ["Egress"], "egress": []}));
        let before = (opened(one), opened(two));
        assert!((0..10).all(|_| is_refused()), "{to}");
        assert_eq!((opened(one), opened(two)), before, "{to}: after the denial of what leaves");
        policy(&lan, one, "client", &json!({"policyTypes": ["Egress"], "egress": [{}]}));
    }
    // And where a service leads to the other node.
    apply_service(&lan, &server, "node2", &json!({}));
    let asks_service = || {
        let to = SocketAddr::new("10.96.0.10".parse().unwrap(), 6380);
        let connect = || TcpStream::connect_timeout(&to, PATIENCE).unwrap();
        let mut connection = client.namespace.enter(connect);
        connection.set_read_timeout(Some(PATIENCE)).unwrap();
        asks(&mut connection).unwrap();
    };
    one.eventually("templates of the service", || {
        let before = (opened(one), opened(two));
        (0..20).for_each(|_| asks_service());
        (opened(one) >= before.0 + 19 && opened(two) >= before.1 + 19).then_some(())
    });
}

#[test]
fn short_connections_in_tunnels_take_the_kernels_way_until_they_are_denied() {
    requires_the_machine!("redis-server");
    between_nodes(&TUNNELS);
}

#[test]
fn short_routed_connections_take_the_kernels_way_until_they_are_denied() {
    requires_the_machine!("redis-server");
    between_nodes(&ROUTED);
}

/// The worker of a pod's queue waits for the one that takes note of its connections.
#[test]
fn several_workers_take_note_of_connections_that_templates_open() {
    requires_the_machine!("redis-server");
    let node = ClusterNode::start(&["--flow-offload", "on", "--workers", "2"]);
    let clients = [node.pod("one", "client"), node.pod("two", "client")];
    let server = node.pod("server", "server");
    let redis = server.serve_redis();
    for (client, to) in clients.iter().zip([server.v4(), server.v6()]) {
        are_short(&[&node], client, to);
    }
    // The refusals of the server's kernel come by the switch, on whichever worker.
    drop(redis);
    for (client, to) in clients.iter().zip([server.v4(), server.v6()]) {
        for _ in 0..20 {
            let connect = || TcpStream::connect_timeout(&SocketAddr::new(to, 6379), PATIENCE);
            let error = client.namespace.enter(connect).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
        }
    }
    let dropped = node.verdicts(&["--verdict", "dropped"]);
    assert!(dropped.iter().all(|it| it["reason"] != "no-session"), "{dropped:?}");
}
