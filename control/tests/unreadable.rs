//! Objects with faults count as they stand, whatever was known of them before, and fail closed.

use crate::common::{
    TCP, control, egress, faulty, ingress, key, object, pod, policy, reference_of, with_ports,
};
use control::{Control, PodAcl};
use serde_json::{Value, json};

#[test]
fn an_update_with_a_fault_counts_with_its_new_denials() {
    let good = json!({"podSelector": {}, "ingress": [{"ports": [{"port": 80}, {"port": 90}]}]});
    // 90 is not permitted any more, 100 would be.
    let bad = json!({"podSelector": {}, "ingress": [{"ports": [{"port": 80}]},
        {"ports": [{"port": 100}], "from": [{"ipBlock": {"cidr": "x"}}]}]});
    let mut control = control([pod("x/a", "10.0.0.1", json!({})), policy("x/p", good.clone())]);
    let open = |control: &Control| -> Vec<u16> {
        let view = control.view();
        let permits = |port: &u16| ingress(&view, "10.0.0.2", "x/a", TCP, *port).0;
        [80, 90, 100].into_iter().filter(permits).collect()
    };
    assert_eq!(open(&control), [80, 90]);
    control.apply(faulty(policy("x/p", bad.clone())));
    control.commit();
    assert_eq!(open(&control), [80]);
    control.resync(vec![object(pod("x/a", "10.0.0.1", json!({}))), faulty(policy("x/p", bad))]);
    assert!(control.commit().is_none(), "the same again changes nothing");
    control.apply(object(policy("x/p", good)));
    control.commit();
    assert_eq!(open(&control), [80, 90]);
    // A pod that cannot be read any more is closed.
    let mut unreadable = pod("x/a", "10.0.0.1", json!({}));
    unreadable["metadata"]["labels"] = json!({"app": 7});
    control.apply(faulty(unreadable));
    control.commit();
    assert!(!control.view().pods.contains_key(&key("x/a")), "no tables, so its port is closed");
    control.apply(object(pod("x/a", "10.0.0.1", json!({}))));
    control.commit();
    assert_eq!(open(&control), [80, 90]);
}

#[test]
fn a_cluster_policy_update_with_names_and_a_new_denial_counts() {
    let number = |port: u16| json!([{"tcp": {"destinationPort": {"number": port}}}]);
    let deny = |port: u16| json!({"action": "Deny", "to": [{"networks": ["0.0.0.0/0"]}], "protocols": number(port)});
    let names = json!({"action": "Accept", "to": [{"domainNames": ["org"]}]});
    let with =
        |rules: Value| cluster_policy("c", 1, json!({"namespaces": {}}), json!({"egress": rules}));
    let mut control = control([pod("x/a", "10.0.0.1", json!({})), with(json!([deny(1)]))]);
    let open = |control: &Control| -> Vec<u16> {
        let view = control.view();
        (1..=3).filter(|port| egress(&view, "x/a", "192.0.2.9", TCP, *port).0).collect()
    };
    assert_eq!(open(&control), [2, 3]);
    control.apply(faulty(with(json!([names, deny(2)]))));
    control.commit();
    assert_eq!(open(&control), [1, 3]);
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
    assert!(matches!(view.pods[&key("x/db")].to_pod, PodAcl::Table(_)));
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
fn a_pod_whose_labels_cannot_be_read_has_none_of_them() {
    let mut control = control([
        pod("x/a", "10.0.0.1", json!({})),
        policy(
            "x/p",
            json!({"podSelector": {}, "ingress": [
            {"from": [{"podSelector": {"matchLabels": {"app": "5"}}}]}]}),
        ),
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

#[test]
fn the_pods_of_a_namespace_with_a_fault_are_closed() {
    let mut control = control([
        pod("x/a", "10.0.0.1", json!({})),
        pod("y/b", "10.0.0.2", json!({})),
        policy(
            "x/p",
            json!({"podSelector": {}, "ingress": [
            {"from": [{"namespaceSelector": expression("team", "NotIn")}], "ports": [{"port": 1}]}]}),
        ),
        namespace("y", json!({"team": "blue"})),
    ]);
    assert!(reaches(&control, 1) && !reaches(&control, 2));
    for _ in 0..2 {
        control.apply(faulty(unreadable_namespace("y")));
        control.commit();
        assert!(!control.view().pods.contains_key(&key("y/b")), "no tables: closed both ways");
        assert!(control.view().pods.contains_key(&key("x/a")), "others are as they were");
        control.apply(object(namespace("y", json!({"team": "x"}))));
        control.commit();
        assert!(control.view().pods.contains_key(&key("y/b")) && !reaches(&control, 1));
    }
    control.apply(faulty(unreadable_namespace("y")));
    control.delete(&reference_of("Namespace", "", "y"));
    control.commit();
    assert!(control.view().pods.contains_key(&key("y/b")) && reaches(&control, 1));
}

#[test]
fn a_pod_with_a_fault_is_closed_and_keeps_its_address_from_others() {
    let http = json!([{"name": "http", "containerPort": 80}]);
    let mut bad = pod("y/b", "10.0.0.2", json!({"app": 5, "tier": "front"}));
    let mut control = control([
        with_ports("x/a", "10.0.0.1", json!({}), http),
        pod("y/c", "10.0.0.3", json!({})),
    ]);
    control.apply(faulty(bad.clone()));
    control.commit();
    assert!(!control.view().pods.contains_key(&key("y/b")), "no tables, so its port is closed");
    assert_eq!(control.pod_at("10.0.0.2".parse().unwrap()), Some(&key("y/b")));
    // Read at last, it is what it says.
    bad["metadata"]["labels"]["app"] = json!("web");
    control.apply(object(bad));
    control.commit();
    assert!(control.view().pods.contains_key(&key("y/b")));
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
        cluster_policy(
            "c",
            1,
            subject,
            json!({"egress": [to("Deny", 1), to("Accept", 2), to("Pass", 3)]}),
        ),
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
    assert!(!egress(&view, "x/a", "192.0.2.1", TCP, 3).0, "whether it would pass is not known");
    assert!(egress(&view, "x/a", "192.0.2.2", TCP, 1).0);
}
