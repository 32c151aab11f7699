//! Addresses of another node that its Node object does not list, as its switch publishes them through
//! the API server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};
use testkit::Namespace;

use crate::cluster_node::ClusterNode;
use crate::lan::{Lan, ip};
use crate::requires_the_machine;

/// Addresses of node2 alone: of a bridge, and a second one of each family of its link.
const UNLISTED: [&str; 3] = ["172.17.0.1", "203.0.113.22", "2001:db8:7::22"];
const PORT: u16 = 7000;

/// Counts the connections that reach a port of a namespace, at any address.
fn count_connections(namespace: &Namespace) -> Arc<AtomicU64> {
    let listener = namespace.enter(|| std::net::TcpListener::bind(("::", PORT)).unwrap());
    let count = Arc::<AtomicU64>::default();
    let counted = Arc::clone(&count);
    std::thread::spawn(move || {
        for _ in listener.incoming().flatten() {
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    count
}

/// Denies what `peer` stands for in egress of all pods.
fn denial(peer: &Value) -> [Value; 2] {
    let subject = json!({"namespaces": {}});
    let egress = json!([{"action": "Deny", "to": [peer]}]);
    [
        json!({"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
            "metadata": {"name": "nodes"},
            "spec": {"tier": "Admin", "priority": 1, "subject": subject, "egress": egress}}),
        json!({"apiVersion": "podgate.io/v1alpha1", "kind": "ClusterEgressFirewall",
            "metadata": {"name": "api-server"}, "spec": {"subject": subject, "egress": egress}}),
    ]
}

/// Waits until the node has an object, or is without it, and decides by that.
fn until_known(node: &ClusterNode, kind: &str, count: u64) {
    node.eventually(kind, || {
        let status = node.status();
        let known = status["objects"][kind].as_u64().unwrap_or_default() == count;
        (known && status["generation"] == status["generation_in_force"]).then_some(())
    });
}

#[test]
fn a_denial_covers_addresses_that_another_cluster_node_publishes() {
    requires_the_machine!();
    let lan = Lan::with_api_server();
    let [one, two] = &lan.nodes[..] else { panic!("two nodes") };
    let server = || one.api_server();
    let client = one.pod("client", "client");
    let arrived = count_connections(&two.namespace);
    ip(&two.namespace, "link add docker0 type bridge");
    ip(&two.namespace, "link set docker0 up");
    for (address, link) in
        [("172.17.0.1/16", "docker0"), ("203.0.113.22/24", "eth0"), ("2001:db8:7::22/64", "eth0")]
    {
        ip(&two.namespace, &format!("address add {address} dev {link}"));
    }
    for address in UNLISTED {
        let via = if address.contains(':') { "2001:db8::2" } else { "192.0.2.2" };
        ip(&one.namespace, &format!("route add {address} via {via}"));
    }
    let published = || server().object("nodeaddresses", None, "node2");
    one.eventually("the addresses to be published", || {
        let published = published()?["spec"]["addresses"].to_string();
        UNLISTED.iter().all(|it| published.contains(it)).then_some(())
    });
    until_known(one, "NodeAddresses", 2);
    let reaches = |to: &str| {
        let before = arrived.load(Ordering::Relaxed);
        let is_open = client.try_connect(to.parse().unwrap(), PORT).is_ok();
        let has_arrived = || arrived.load(Ordering::Relaxed) > before;
        match is_open {
            true => one.eventually("the connection is counted", || has_arrived().then_some(())),
            false => assert!(!has_arrived(), "{to}"),
        }
        is_open
    };
    let listed = ["192.0.2.2", "2001:db8::2"];
    let all: Vec<&str> = UNLISTED.into_iter().chain(listed).collect();
    for to in &all {
        one.eventually(to, || reaches(to).then_some(()));
    }

    // The API server of the cluster is on node2.
    let metadata = json!({"name": "kubernetes", "namespace": "default",
        "labels": {"kubernetes.io/service-name": "kubernetes"}});
    server().apply(json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "addressType": "IPv4", "metadata": metadata, "ports": [{"name": "https", "port": 6443}],
        "endpoints": [{"addresses": ["192.0.2.2"], "conditions": {"ready": true}}]}));
    let [policy, _] = denial(&json!({"nodes": {}}));
    let [_, firewall] = denial(&json!({"apiServer": {}}));
    for (kind, plural, object) in [
        ("ClusterNetworkPolicy", "clusternetworkpolicies", policy),
        ("ClusterEgressFirewall", "clusteregressfirewalls", firewall),
    ] {
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        server().apply(object);
        until_known(one, kind, 1);
        for to in &all {
            assert!(!reaches(to), "{kind}: {to}");
        }
        server().delete(plural, None, &name);
        until_known(one, kind, 0);
        for to in &all {
            assert!(reaches(to), "{kind}: {to}");
        }
    }

    // An address that the node no longer has is not the node's.
    let [policy, _] = denial(&json!({"nodes": {}}));
    server().apply(policy);
    until_known(one, "ClusterNetworkPolicy", 1);
    ip(&two.namespace, "address del 172.17.0.1/16 dev docker0");
    ip(&lan.world, "address add 172.17.0.1/32 dev lo");
    ip(&one.namespace, "route replace 172.17.0.1 via 192.0.2.9");
    let outside = count_connections(&lan.world);
    one.eventually("it to be another host's", || {
        client.try_connect(UNLISTED[0].parse().unwrap(), PORT).is_ok().then_some(())
    });
    one.eventually("its count", || (outside.load(Ordering::Relaxed) > 0).then_some(()));
    assert!(!reaches(UNLISTED[1]));
}
