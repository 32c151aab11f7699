//! `hostPort`: served by the switch, and by the standard `portmap` plugin chained behind `podgate-cni`.

use serde_json::{Value, json};

use crate::chained::chained;
use crate::cluster_node::ClusterNode;
use crate::lan::Lan;
use crate::pod::Pod;
use crate::requires_the_machine;
use crate::several_nodes::asks;

/// The world's address.
const WORLD: &str = "192.0.2.9";

fn portmap(node: &ClusterNode, pod: &Pod<'_>, command: &str, mappings: &Value) {
    let config = json!({"snat": true, "runtimeConfig": {"portMappings": mappings}});
    chained(node, pod, "portmap", command, &config);
}

/// Lets clients of this network in to `db`.
fn policy(name: &str, network: &str) -> Value {
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"podSelector": {"matchLabels": {"role": "db"}},
            "ingress": [{"from": [{"ipBlock": {"cidr": network}}]}]}})
}

#[test]
fn host_ports_lead_to_pods_and_policies_see_the_client() {
    requires_the_machine!("redis-server", "redis-cli", "iptables", "/usr/lib/cni/portmap");
    let lan = Lan::start(&[]);
    let node = &lan.nodes[0];
    let db = node.pod("db", "db");
    let other = node.pod("other", "other");
    let _server = db.serve_redis();
    let mappings = json!([{"hostPort": 8080, "containerPort": 6379, "protocol": "tcp"}]);
    assert!(!asks(&lan.world, "192.0.2.1", 8080));
    portmap(node, &db, "ADD", &mappings);
    assert!(asks(&lan.world, "192.0.2.1", 8080));
    assert!(asks(&node.namespace, "192.0.2.1", 8080), "a process of the node");
    let opened = node.verdicts(&["--verdict", "forwarded", "--to-pod", "default/db"]);
    assert!(opened.iter().any(|it| it["from"]["ip"] == WORLD), "the client's address: {opened:?}");

    lan.apply("policy", &policy("other", "192.0.2.10/32"));
    assert!(!asks(&lan.world, "192.0.2.1", 8080), "another client is let in");
    let denied = node.verdicts(&["--verdict", "dropped", "--to-pod", "default/db"]);
    assert!(denied.iter().any(|it| it["from"]["ip"] == WORLD), "{denied:?}");
    lan.apply("policy-too", &policy("world", "192.0.2.9/32"));
    assert!(asks(&lan.world, "192.0.2.1", 8080));
    // A pod that is denied gains nothing by the detour.
    assert!(other.is_kept_from_redis(&db) && !asks(&other.namespace, "192.0.2.1", 8080));

    portmap(node, &db, "DEL", &mappings);
    assert!(!asks(&lan.world, "192.0.2.1", 8080));
}

/// Makes the object of `db` name a host port, as kubelet would tell it.
fn object(node: &ClusterNode, db: &Pod<'_>, host_port: u16) -> Value {
    let ips: Vec<Value> = db.addresses.iter().map(|ip| json!({"ip": ip})).collect();
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": db.name, "namespace": "default", "labels": {"role": "db"}},
        "spec": {"nodeName": node.name(), "containers": [{"name": "c", "image": "x",
            "ports": [{"containerPort": 6379, "hostPort": host_port}]}]},
        "status": {"podIPs": ips}})
}

#[test]
fn the_switch_serves_host_ports_to_pods_as_well() {
    requires_the_machine!("redis-server", "redis-cli", "nft");
    let lan = Lan::start(&[]);
    let [one, two] = &lan.nodes[..] else { panic!("two nodes") };
    let (db, near, far) = (one.pod("db", "db"), one.pod("near", "near"), two.pod("far", "far"));
    let _server = db.serve_redis();
    let clients = [&near.namespace, &far.namespace, &db.namespace, &one.namespace, &lan.world];
    assert!(clients.iter().all(|client| !asks(client, "192.0.2.1", 8080)));
    lan.write("pod-db", &object(one, &db, 8080));
    one.eventually("the host port", || asks(&near.namespace, "192.0.2.1", 8080).then_some(()));
    for (n, client) in clients.iter().enumerate() {
        assert!(asks(client, "192.0.2.1", 8080), "client {n}");
    }
    assert!(!asks(&near.namespace, "192.0.2.2", 8080), "the other node has no such pod");

    // Policies decide by the client's own address.
    lan.apply("policy", &policy("far", &format!("{}/32", far.v4())));
    assert!(asks(&far.namespace, "192.0.2.1", 8080));
    assert!(!asks(&near.namespace, "192.0.2.1", 8080) && !asks(&lan.world, "192.0.2.1", 8080));
    for from in [near.v4().to_string(), WORLD.to_owned()] {
        let dropped = one.verdicts(&["--verdict", "dropped"]);
        let is_it = |it: &&Value| it["from"]["ip"] == *from && it["reason"] == "policy-denied";
        assert!(dropped.iter().any(|it| is_it(&it)), "{from}: {dropped:?}");
    }

    // The port goes with the object's.
    lan.write("pod-db", &object(one, &db, 8081));
    one.eventually("the other port", || asks(&far.namespace, "192.0.2.1", 8081).then_some(()));
    assert!(!asks(&far.namespace, "192.0.2.1", 8080));
}
