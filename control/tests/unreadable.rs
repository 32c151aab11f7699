//! Objects that cannot be read, or only in part: what was known stays, and nothing opens.

mod common;

use common::{
    TCP, UDP, control, egress, faulty, ingress, key, object, pod, policy, reference_of, with_ports,
};
use control::{Control, PodGate};
use serde_json::{Value, json};

#[test]
fn an_invalid_update_leaves_the_last_valid_version_in_force() {
    let good = json!({"podSelector": {}, "ingress": [{"ports": [{"port": 80}]}]});
    let bad = json!({"podSelector": {}, "ingress": [{"ports": [{"port": 80}]},
        {"ports": [{"port": 90, "endPort": 80}]}, {"from": [{"ipBlock": {"cidr": "x"}}]}]});
    let mut control = control([pod("x/a", "10.0.0.1", json!({})), policy("x/p", good.clone())]);
    control.apply(faulty(policy("x/p", bad.clone())));
    assert!(control.commit().is_none(), "nothing changed");
    // Also when everything is told anew.
    control.resync(vec![
        object(pod("x/a", "10.0.0.1", json!({}))),
        faulty(policy("x/p", bad.clone())),
    ]);
    assert!(control.commit().is_none(), "nothing changed");
    // A pod that cannot be read any more keeps its tables and its place in peers.
    let mut unreadable = pod("x/a", "not an address", json!({}));
    unreadable["metadata"]["labels"] = json!({"app": "other"});
    control.resync(vec![faulty(unreadable), object(policy("x/p", good))]);
    assert!(control.commit().is_none(), "nothing changed");
}

#[test]
fn an_object_that_was_never_valid_closes_what_it_selects() {
    let bad_selector = json!({"podSelector": {"matchLabels": {"app": "db"},
        "matchExpressions": [{"key": "k", "operator": "Like", "values": ["v"]}]},
        "ingress": [{}]});
    let mut control = control([
        pod("x/db", "10.0.0.1", json!({"app": "db"})),
        pod("x/web", "10.0.0.2", json!({"app": "web"})),
    ]);
    control.apply(faulty(policy("x/p", bad_selector)));
    control.apply(faulty(policy("x/q", json!({"podSelector": 7, "policyTypes": ["Egress"]}))));
    control.apply(faulty(policy("y/r", json!(null))));
    let view = control.commit().unwrap();
    assert!(!egress(&view, "x/web", "x/db", TCP, 80).0, "whom x/q selects is not known: everybody");
    assert!(ingress(&view, "x/db", "x/web", TCP, 80).0, "x/p is about app=db at most");
    assert!(matches!(view.pods[&key("x/db")].to_pod, PodGate::Table(_)));
    // A valid version then counts.
    control.apply(object(policy(
        "x/q",
        json!({"podSelector": {}, "policyTypes": ["Egress"],
        "egress": [{}]}),
    )));
    control.commit();
    assert!(egress(&control.view(), "x/web", "x/db", TCP, 80).0);
}

#[test]
fn a_pod_that_was_never_readable_is_nobodys_peer() {
    let mut control = control([
        pod("x/a", "10.0.0.1", json!({})),
        policy("x/p", json!({"podSelector": {}, "ingress": [{"from": [{"podSelector": {}}]}]})),
    ]);
    let mut bad = pod("x/b", "10.0.0.2", json!({}));
    bad["metadata"]["labels"] = json!({"app": 5});
    control.apply(faulty(bad));
    control.commit();
    assert!(!ingress(&control.view(), "10.0.0.2", "x/a", TCP, 80).0);
}

/// A namespace whose labels cannot be read.
fn unreadable_namespace(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": name, "labels": {"team": 7, "stage": "test"}}})
}

fn namespace(name: &str, labels: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
}

fn cluster_policy(name: &str, priority: u16, subject: Value, rules: Value) -> Value {
    let mut spec = json!({"tier": "Admin", "priority": priority, "subject": subject});
    spec.as_object_mut().unwrap().extend(rules.as_object().unwrap().clone());
    json!({"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
        "metadata": {"name": name}, "spec": spec})
}

fn expression(key: &str, operator: &str) -> Value {
    let values = if operator == "NotIn" { json!(["x"]) } else { json!(null) };
    json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]})
}

/// Whether `y/b` gets through to `x/a` on a port of TCP.
fn reaches(control: &Control, port: u16) -> bool {
    ingress(&control.view(), "10.0.0.2", "x/a", TCP, port).0
}

/// The ports of these on which it does.
fn open(control: &Control, ports: std::ops::RangeInclusive<u16>) -> Vec<u16> {
    ports.filter(|port| reaches(control, *port)).collect()
}

#[test]
fn a_namespace_that_was_never_readable_is_nobodys_peer_where_labels_are_asked_for() {
    let peers = [
        json!({"matchLabels": {"team": "blue"}}),
        expression("team", "NotIn"),
        expression("team", "DoesNotExist"),
        expression("team", "Exists"),
        json!({"matchLabels": {"kubernetes.io/metadata.name": "y"}}),
        json!({"matchLabels": {"stage": "test"}}),
        json!({}),
    ];
    let rules: Vec<Value> = (1..)
        .zip(peers)
        .map(|(port, it)| json!({"from": [{"namespaceSelector": it}], "ports": [{"port": port}]}))
        .collect();
    let mut control = control([
        pod("x/a", "10.0.0.1", json!({})),
        pod("y/b", "10.0.0.2", json!({})),
        policy("x/p", json!({"podSelector": {}, "ingress": rules})),
    ]);
    // Only mentioned, it exists and has its name as its one label.
    assert_eq!(open(&control, 1..=7), [2, 3, 5, 7]);
    control.apply(faulty(unreadable_namespace("y")));
    control.commit();
    assert_eq!(open(&control, 1..=7), [5, 6, 7], "by what could be read, and by no demand");
    control.apply(object(namespace("y", json!({"team": "blue"}))));
    control.commit();
    assert_eq!(open(&control, 1..=7), [1, 2, 4, 5, 7]);
    control.apply(faulty(unreadable_namespace("y")));
    assert!(control.commit().is_none(), "the last valid version stays in force");
    control.delete(&reference_of("Namespace", "", "y"));
    control.commit();
    assert_eq!(open(&control, 1..=7), [2, 3, 5, 7]);
}

#[test]
fn a_namespace_that_was_never_readable_is_meant_by_every_denial() {
    let denial = |peer: Value, port: u16| {
        json!({"action": "Deny", "from": [{"namespaces": peer}],
            "protocols": [{"tcp": {"destinationPort": {"number": port}}}]})
    };
    let pass = json!({"action": "Pass", "from": [{"namespaces": expression("team", "NotIn")}],
        "protocols": [{"tcp": {"destinationPort": {"number": 5}}}]});
    let rules = json!([
        denial(json!({"matchLabels": {"team": "blue"}}), 1),
        denial(expression("team", "Exists"), 2),
        denial(expression("team", "DoesNotExist"), 3),
        denial(json!({"matchLabels": {"stage": "other"}}), 4),
        pass
    ]);
    let mut control = control([
        pod("x/a", "10.0.0.1", json!({})),
        pod("y/b", "10.0.0.2", json!({})),
        namespace("z", json!({"team": "x"})),
        pod("z/c", "10.0.0.3", json!({})),
        cluster_policy("c", 1, json!({"namespaces": {}}), json!({"ingress": rules})),
    ]);
    assert_eq!(open(&control, 1..=6), [1, 2, 4, 5, 6]);
    control.apply(faulty(unreadable_namespace("y")));
    control.commit();
    assert_eq!(open(&control, 1..=6), [4, 6], "whether 5 would pass is not known");
    let other = |port| ingress(&control.view(), "10.0.0.3", "x/a", TCP, port).0;
    assert!(other(1) && !other(2) && other(3) && other(5), "others are as they were");
    control.apply(object(namespace("y", json!({}))));
    control.commit();
    assert_eq!(open(&control, 1..=6), [1, 2, 4, 5, 6]);
}

#[test]
fn the_pods_of_a_namespace_that_was_never_readable_are_subjects_of_denials_alone() {
    let blue = json!({"namespaces": {"matchLabels": {"team": "blue"}}});
    let rule = |action: &str, port: u16| {
        json!({"action": action, "from": [{"namespaces": {}}],
            "protocols": [{"tcp": {"destinationPort": {"number": port}}}]})
    };
    let rules = json!({"ingress": [rule("Accept", 1), rule("Deny", 2), rule("Pass", 3)]});
    let after = json!({"ingress": [rule("Accept", 3)]});
    let mut control = control([
        pod("x/a", "10.0.0.1", json!({})),
        pod("y/b", "10.0.0.2", json!({})),
        policy("y/closed", json!({"podSelector": {}})),
        cluster_policy("c", 1, blue, rules),
        cluster_policy("d", 2, json!({"namespaces": {}}), after),
    ]);
    control.apply(faulty(unreadable_namespace("y")));
    control.commit();
    let by = |control: &Control, port| ingress(&control.view(), "x/a", "y/b", TCP, port);
    assert_eq!(by(&control, 1), (false, "default-deny of NetworkPolicy y/closed".into()));
    assert_eq!(by(&control, 2), (false, "ClusterNetworkPolicy c ingress[1]".into()));
    assert_eq!(by(&control, 3), (false, "ClusterNetworkPolicy c ingress[2]".into()));
    control.apply(object(namespace("y", json!({"team": "blue"}))));
    control.commit();
    assert!(by(&control, 1).0 && !by(&control, 2).0);
    assert_eq!(by(&control, 3), (false, "default-deny of NetworkPolicy y/closed".into()));
    control.apply(object(namespace("y", json!({}))));
    control.commit();
    assert_eq!(by(&control, 3), (true, "ClusterNetworkPolicy d ingress[0]".into()));
}

#[test]
fn a_pod_that_was_never_readable_is_meant_by_every_denial_and_opens_nothing_itself() {
    let to = |action: &str, pods: Value, protocols: Value| {
        json!({"action": action, "to": [{"pods": {"namespaceSelector": {}, "podSelector": pods}}],
            "protocols": protocols})
    };
    let port = |port: u16| json!([{"tcp": {"destinationPort": {"number": port}}}]);
    let rules = json!({"egress": [
        to("Deny", json!({"matchLabels": {"app": "db"}}), port(1)),
        to("Deny", json!({"matchLabels": {"tier": "back"}}), port(2)),
        to("Deny", json!({}), json!([{"destinationNamedPort": "http"}])),
    ]});
    let mut bad = pod("y/b", "10.0.0.2", json!({"app": 5, "tier": "front"}));
    let mut control = control([
        with_ports("x/a", "10.0.0.1", json!({}), json!([{"name": "http", "containerPort": 80}])),
        pod("y/c", "10.0.0.3", json!({})),
        cluster_policy("c", 1, json!({"namespaces": {}}), rules),
    ]);
    control.apply(faulty(bad.clone()));
    control.commit();
    let view = control.view();
    assert!(!view.pods.contains_key(&key("y/b")), "no gates, so its port is closed");
    let out = |address: &str, protocol, port| egress(&view, "x/a", address, protocol, port).0;
    assert!(!out("10.0.0.2", TCP, 1), "it may be app=db");
    assert!(!out("10.0.0.2", TCP, 2) && !out("10.0.0.2", UDP, 9), "any port may be called http");
    assert!(out("10.0.0.3", TCP, 1) && out("10.0.0.3", UDP, 9), "others are as they were");
    assert!(!egress(&view, "y/c", "10.0.0.1", TCP, 80).0);
    // Read at last, it is what it says.
    bad["metadata"]["labels"]["app"] = json!("web");
    control.apply(object(bad));
    control.commit();
    let view = control.view();
    let out = |protocol, port| egress(&view, "x/a", "10.0.0.2", protocol, port).0;
    assert!(out(TCP, 1) && out(TCP, 2) && out(UDP, 9));
}

#[test]
fn a_cluster_node_that_was_never_readable_is_meant_by_every_denial() {
    let to = |action: &str, port: u16| {
        json!({"action": action, "to": [{"nodes": {"matchLabels": {"role": "edge"}}}],
            "protocols": [{"tcp": {"destinationPort": {"number": port}}}]})
    };
    let subject = json!({"namespaces": {}});
    let mut control = control([
        pod("x/a", "10.0.0.1", json!({})),
        pod("y/a", "10.0.0.2", json!({})),
        policy("y/closed", json!({"podSelector": {}, "policyTypes": ["Egress"]})),
        cluster_policy("c", 1, subject, json!({"egress": [to("Deny", 1), to("Accept", 2)]})),
    ]);
    let node = json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "n", "labels": {"role": 1}},
        "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"},
            {"type": "InternalIP", "address": "nowhere"}]}});
    control.apply(faulty(node));
    control.commit();
    let view = control.view();
    assert!(!egress(&view, "x/a", "192.0.2.1", TCP, 1).0);
    assert!(!egress(&view, "y/a", "192.0.2.1", TCP, 2).0, "nothing that permits means it");
    assert!(egress(&view, "x/a", "192.0.2.2", TCP, 1).0);
}
