//! Each event touches the tables that it concerns, and no others.

use std::sync::Arc;

use crate::common::{TCP, UDP, acl, egress, ingress, key, object};
use control::{Control, Kind, ObjectRef, PodAcl, Scope, View};
use serde_json::{Value, json};

fn pod(index: usize, app: &str, node: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "x", "name": format!("p{index}"), "labels": {"app": app}},
        "spec": {"nodeName": node, "containers": [{"name": "c",
            "ports": [{"name": "http", "containerPort": 8000 + index % 2}]}]},
        "status": {"podIPs": [{"ip": format!("10.1.{}.{}", index / 256, index % 256)}]}})
}

fn policy(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"namespace": "x", "name": name}, "spec": spec})
}

fn gone(kind: Kind, name: &str) -> ObjectRef {
    ObjectRef { kind, namespace: Some("x".into()), name: name.into() }
}

/// One local pod that lets web pods in and may go to the `http` of any pod, and `webs` of them.
fn cluster(webs: usize) -> Control {
    let mut control = Control::new(Scope::Node("n1".into()));
    control.apply(object(pod(0, "db", "n1")));
    (1..=webs).for_each(|index| control.apply(object(pod(index, "web", "n2"))));
    control.apply(object(policy(
        "p",
        json!({"podSelector": {"matchLabels": {"app": "db"}}, "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "web"}}}]}],
            "egress": [{"to": [{"podSelector": {}}], "ports": [{"port": "http"}]}]}),
    )));
    control.commit();
    control
}

fn table(view: &View) -> Arc<acl::Table> {
    match &view.pods[&key("x/p0")].to_pod {
        PodAcl::Table(table) => Arc::clone(table),
        PodAcl::Open => panic!("open"),
    }
}

#[test]
fn a_pod_that_comes_and_goes_in_known_sets_changes_the_address_map_and_nothing_else() {
    let mut control = cluster(4);
    let (before, compiled) = (control.view(), control.figures().compiled);
    control.apply(object(pod(5, "web", "n2")));
    let with = control.commit().unwrap();
    assert!(ingress(&with, "10.1.0.5", "x/p0", TCP, 1).0);
    control.delete(&gone(Kind::Pod, "p5"));
    let without = control.commit().unwrap();
    assert!(!ingress(&without, "10.1.0.5", "x/p0", TCP, 1).0);
    assert_eq!(control.figures().compiled, compiled);
    for view in [&with, &without] {
        assert!(Arc::ptr_eq(&view.pods, &before.pods) && Arc::ptr_eq(&view.nodes, &before.nodes));
        assert!(Arc::ptr_eq(&table(view), &table(&before)));
    }
    assert_eq!(without.generation, before.generation + 2);
}

#[test]
fn a_pod_of_no_concern_changes_nothing() {
    let mut control = cluster(2);
    let mut other = pod(9, "web", "n2");
    other["metadata"]["namespace"] = json!("elsewhere");
    control.apply(object(other));
    control.apply(object(policy("q", json!({"podSelector": {"matchLabels": {"app": "none"}}}))));
    assert!(control.commit().is_none());
}

#[test]
fn a_new_number_of_a_port_name_reaches_the_rules() {
    let mut control = cluster(2);
    let mut odd = pod(7, "web", "n2");
    odd["spec"]["containers"][0]["ports"][0]["containerPort"] = json!(9999);
    let ask = |view: &View, port: u16| {
        let from = &view.pods[&key("x/p0")];
        let to = "10.1.0.7".parse().unwrap();
        acl(view, &from.from_pod, from.addresses[0], to, TCP, port).0
    };
    control.apply(object(odd));
    let view = control.commit().unwrap();
    assert!(ask(&view, 9999) && !ask(&view, 8000));
    control.delete(&gone(Kind::Pod, "p7"));
    let view = control.commit().unwrap();
    assert!(!ask(&view, 9999));
    assert_eq!(table(&view).rules().len(), 2, "one permission and the end");
}

#[test]
fn thousands_of_changes_in_one_commit_are_worked_in_at_once() {
    let mut control = cluster(9_000);
    let asks = |view: &View, address: &str| ingress(view, address, "x/p0", UDP, 5).0;
    assert!(asks(&control.view(), "10.1.0.1") && asks(&control.view(), "10.1.35.40"));
    (1..=9_000).for_each(|index| control.apply(object(pod(index, "none", "n2"))));
    control.apply(object(pod(3, "web", "n2")));
    let view = control.commit().unwrap();
    assert!(asks(&view, "10.1.0.3"));
    assert!(!asks(&view, "10.1.0.1") && !asks(&view, "10.1.35.40"));
}

#[test]
fn the_same_told_again_is_no_news() {
    let mut control = cluster(3);
    let before = control.revision();
    let heartbeat = |annotation: &str| {
        let mut pod = pod(1, "web", "n2");
        pod["metadata"]["annotations"] = json!({"seen": annotation});
        pod["metadata"]["resourceVersion"] = json!(annotation);
        object(pod)
    };
    control.apply(heartbeat("1"));
    let told = control.revision();
    control.apply(heartbeat("2"));
    assert_eq!(control.revision(), told, "what differs is nothing that counts");
    assert!(told <= before + 1);
    control.apply(object(pod(1, "other", "n2")));
    assert!(control.revision() > told);
}

#[test]
fn a_port_name_counts_from_the_first_pod_that_has_it() {
    let policy = json!({"apiVersion": "policy.networking.k8s.io/v1alpha2",
        "kind": "ClusterNetworkPolicy", "metadata": {"name": "c"},
        "spec": {"tier": "Admin", "priority": 0, "subject": {"namespaces": {}},
            "egress": [{"action": "Deny", "to": [{"namespaces": {}}],
                "protocols": [{"destinationNamedPort": "dns"}]}]}});
    let ports = json!([{"containerPort": 53, "name": "dns", "protocol": "TCP"}]);
    let later = crate::common::with_ports("x/b", "10.1.0.2", json!({}), ports);
    let mut control =
        crate::common::control([policy, crate::common::pod("x/a", "10.1.0.1", json!({}))]);
    control.apply(object(later));
    control.commit();
    let (allowed, by) = egress(&control.view(), "x/a", "x/b", TCP, 53);
    assert!(!allowed, "by {by}");
}

/// An endpoint slice of a service, with one endpoint.
fn slice(namespace: &str, service: &str, address: &str) -> Value {
    json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"namespace": namespace, "name": format!("{service}-1"),
            "labels": {"kubernetes.io/service-name": service}},
        "endpoints": [{"addresses": [address]}], "ports": [{"name": "http", "port": 8000}]})
}

#[test]
fn endpoints_that_are_held_back_wait_for_a_later_commit_and_nothing_waits_with_them() {
    let mut control = cluster(4);
    let service = |namespace: &str, name: &str, address: &str| {
        json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"namespace": namespace, "name": name},
            "spec": {"clusterIP": address, "ports": [{"name": "http", "port": 80}]}})
    };
    let of = |view: &View, name: &str| {
        let (_, service) = view.services.iter().find(|(key, _)| &*key.name == name).unwrap();
        service.endpoints[0].iter().map(|it| it.address.to_string()).collect::<Vec<_>>()
    };
    for (namespace, name) in [("x", "web"), ("default", "kubernetes")] {
        let address = if name == "web" { "10.96.0.2" } else { "10.96.0.1" };
        control.apply(object(service(namespace, name, address)));
        control.apply(object(slice(namespace, name, "10.1.0.1")));
    }
    control.commit().unwrap();
    control.hold_endpoints(true);
    control.apply(object(slice("x", "web", "10.1.0.2")));
    assert!(control.commit().is_none() && control.has_endpoints());
    control.apply(object(slice("default", "kubernetes", "10.1.0.3")));
    control.apply(object(pod(5, "web", "n2")));
    let view = control.commit().unwrap();
    assert!(ingress(&view, "10.1.0.5", "x/p0", TCP, 1).0);
    assert_eq!(
        (of(&view, "web"), of(&view, "kubernetes")),
        (vec!["10.1.0.1".into()], vec!["10.1.0.3".into()])
    );
    control.hold_endpoints(false);
    let view = control.commit().unwrap();
    assert_eq!(of(&view, "web"), ["10.1.0.2"]);
    assert!(!control.has_endpoints());
    // A service that is another one itself has the endpoints of now.
    control.hold_endpoints(true);
    control.apply(object(slice("x", "web", "10.1.0.4")));
    control.apply(object(service("x", "web", "10.96.0.3")));
    assert_eq!(of(&control.commit().unwrap(), "web"), ["10.1.0.4"]);
}
