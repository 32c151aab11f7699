//! Mistakes that earlier systems made, one test each, named for what it prevents.

use std::sync::Arc;

use crate::common::{
    ICMP, SCTP, TCP, UDP, acl, control, egress, faulty, ingress, key, object, pod, policy,
    with_ports,
};
use control::{Control, PodAcl};
use serde_json::{Value, json};

fn permits(control: &Control, from: &str, to: &str, protocol: u8, port: u16) -> bool {
    let view = control.view();
    egress(&view, from, to, protocol, port).0 && ingress(&view, from, to, protocol, port).0
}

#[test]
fn a_port_name_that_resolves_nowhere_opens_nothing() {
    let spec = json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"ports": [{"port": "nowhere"}]}], "egress": [{"ports": [{"port": "nowhere"}]}]});
    let control = control([
        pod("x/a", "10.0.0.1", json!({})),
        pod("x/b", "10.0.0.2", json!({})),
        policy("x/p", spec),
    ]);
    let view = control.view();
    for (protocol, port) in [(TCP, 80), (TCP, 0), (UDP, 53), (ICMP, 0)] {
        assert!(!ingress(&view, "x/a", "x/b", protocol, port).0);
        assert!(!egress(&view, "x/a", "x/b", protocol, port).0);
    }
}

#[test]
fn a_port_name_means_each_pods_own_number() {
    let http = |number: u16| json!([{"name": "http", "containerPort": number}]);
    let spec = json!({"podSelector": {}, "ingress": [{"ports": [{"port": "http"}]}]});
    let out = json!({"podSelector": {}, "policyTypes": ["Egress"],
        "egress": [{"to": [{"podSelector": {}}], "ports": [{"port": "http"}]}]});
    let control = control([
        with_ports("x/a", "10.0.0.1", json!({}), http(80)),
        with_ports("x/b", "10.0.0.2", json!({}), http(8080)),
        policy("x/p", spec),
        policy("x/q", out),
    ]);
    assert!(permits(&control, "x/a", "x/b", TCP, 8080));
    assert!(!permits(&control, "x/a", "x/b", TCP, 80));
    assert!(permits(&control, "x/b", "x/a", TCP, 80));
    assert!(!permits(&control, "x/b", "x/a", TCP, 8080));
    let view = control.view();
    assert!(egress(&view, "x/a", "x/b", TCP, 8080).0 && !egress(&view, "x/a", "x/b", TCP, 80).0);
}

#[test]
fn tables_are_shared_by_equality_and_by_nothing_less() {
    let ports = |first: u16| -> Vec<Value> {
        (first..first + 50).map(|port| json!({"port": port})).collect()
    };
    let open = |app: &str, first: u16| {
        json!({"podSelector": {"matchLabels": {"app": app}},
        "ingress": [{"ports": ports(first)}]})
    };
    let control = control([
        pod("x/a1", "10.0.0.1", json!({"app": "a"})),
        pod("x/a2", "10.0.0.2", json!({"app": "a"})),
        pod("x/b", "10.0.0.3", json!({"app": "b"})),
        policy("x/a", open("a", 100)),
        policy("x/b", open("b", 101)),
    ]);
    let view = control.view();
    let table = |name: &str| match &view.pods[&key(name)].to_pod {
        PodAcl::Table(table) => Arc::clone(table),
        PodAcl::Open => panic!("{name} is open"),
    };
    assert!(Arc::ptr_eq(&table("x/a1"), &table("x/a2")));
    assert!(!Arc::ptr_eq(&table("x/a1"), &table("x/b")));
    assert!(
        permits(&control, "x/b", "x/a1", TCP, 100) && !permits(&control, "x/a1", "x/b", TCP, 100)
    );
}

#[test]
fn a_port_with_only_a_protocol_is_all_ports_of_it() {
    let spec = json!({"podSelector": {}, "ingress": [{"ports": [{"protocol": "UDP"}]}]});
    let control = control([pod("x/a", "10.0.0.1", json!({})), policy("x/p", spec)]);
    let view = control.view();
    assert!(ingress(&view, "192.0.2.9", "x/a", UDP, 1).0);
    assert!(ingress(&view, "192.0.2.9", "x/a", UDP, 65_535).0);
    assert!(!ingress(&view, "192.0.2.9", "x/a", TCP, 1).0);
}

#[test]
fn a_network_that_cannot_be_parsed_closes_and_does_not_crash() {
    let spec = json!({"podSelector": {}, "ingress": [
        {"from": [{"ipBlock": {"cidr": "300.0.0.0/8"}}]}, {"ports": [{"port": 443}]}]});
    let mut control = control([pod("x/a", "10.0.0.1", json!({}))]);
    control.apply(faulty(policy("x/p", spec)));
    let view = control.commit().unwrap();
    assert!(!ingress(&view, "192.0.2.9", "x/a", TCP, 80).0);
    assert!(ingress(&view, "192.0.2.9", "x/a", TCP, 443).0);
}

#[test]
fn a_namespace_that_is_not_known_yet_exists_by_its_name() {
    let by_name = json!({"namespaceSelector":
        {"matchLabels": {"kubernetes.io/metadata.name": "y"}}});
    let by_team = json!({"namespaceSelector": {"matchLabels": {"team": "blue"}}});
    let spec = json!({"podSelector": {}, "ingress": [
        {"from": [by_name], "ports": [{"port": 80}]}, {"from": [by_team], "ports": [{"port": 443}]}]});
    let mut control = control([
        pod("x/a", "10.0.0.1", json!({})),
        pod("y/b", "10.0.0.2", json!({})),
        policy("x/p", spec),
    ]);
    assert!(permits(&control, "y/b", "x/a", TCP, 80));
    assert!(!permits(&control, "y/b", "x/a", TCP, 443));
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": "y", "labels": {"team": "blue"}}});
    control.apply(object(namespace));
    control.commit();
    assert!(permits(&control, "y/b", "x/a", TCP, 80));
    assert!(permits(&control, "y/b", "x/a", TCP, 443));
}

#[test]
fn pod_and_namespace_selector_in_one_peer_must_both_hold() {
    let peer = json!({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "y"}},
        "podSelector": {"matchLabels": {"app": "web"}}});
    let control = control([
        pod("x/db", "10.0.0.1", json!({})),
        pod("x/web", "10.0.0.2", json!({"app": "web"})),
        pod("y/web", "10.0.0.3", json!({"app": "web"})),
        pod("y/other", "10.0.0.4", json!({})),
        policy("x/p", json!({"podSelector": {}, "ingress": [{"from": [peer]}]})),
    ]);
    let lets_in = |from: &str| ingress(&control.view(), from, "x/db", TCP, 80).0;
    assert!(lets_in("y/web"));
    assert!(!lets_in("x/web") && !lets_in("y/other"));
}

#[test]
fn sctp_is_not_tcp() {
    let spec =
        json!({"podSelector": {}, "ingress": [{"ports": [{"port": 80, "protocol": "SCTP"}]}]});
    let control = control([pod("x/a", "10.0.0.1", json!({})), policy("x/p", spec)]);
    let view = control.view();
    assert!(ingress(&view, "192.0.2.9", "x/a", SCTP, 80).0);
    assert!(!ingress(&view, "192.0.2.9", "x/a", TCP, 80).0);
}

#[test]
fn end_port_makes_a_range() {
    let spec = json!({"podSelector": {}, "ingress": [{"ports": [{"port": 80, "endPort": 90}]}]});
    let control = control([pod("x/a", "10.0.0.1", json!({})), policy("x/p", spec)]);
    let view = control.view();
    for (port, expected) in [(79, false), (80, true), (85, true), (90, true), (91, false)] {
        assert_eq!(ingress(&view, "192.0.2.9", "x/a", TCP, port).0, expected, "{port}");
    }
}

#[test]
fn a_rule_for_every_protocol_beside_a_port_rule_lets_icmp_through() {
    let spec = json!({"podSelector": {"matchLabels": {"app": "db"}}, "ingress": [
        {"ports": [{"port": 80}]}, {"from": [{"podSelector": {}}]}]});
    let out = json!({"podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Egress"],
        "egress": [{"ports": [{"port": 80}]}]});
    let control = control([
        pod("x/db", "10.0.0.1", json!({"app": "db"})),
        pod("x/web", "10.0.0.2", json!({"app": "web"})),
        pod("x/any", "10.0.0.3", json!({})),
        policy("x/p", spec),
        policy("x/q", out),
    ]);
    assert!(permits(&control, "x/any", "x/db", ICMP, 0));
    assert!(!permits(&control, "x/web", "x/db", ICMP, 0), "its egress is for TCP 80 alone");
    assert!(permits(&control, "x/web", "x/db", TCP, 80));
    assert!(!ingress(&control.view(), "192.0.2.9", "x/db", ICMP, 0).0);
}

#[test]
fn an_exception_of_one_block_is_none_of_another() {
    let spec = json!({"podSelector": {}, "ingress": [{"from": [
        {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16", "10.2.0.0/16"]}},
        {"ipBlock": {"cidr": "10.1.1.0/24"}},
        {"ipBlock": {"cidr": "10.3.0.0/16", "except": ["10.3.128.0/17"]}}]}]});
    let control = control([pod("x/a", "172.16.0.1", json!({})), policy("x/p", spec)]);
    let lets_in = |from: &str| ingress(&control.view(), from, "x/a", TCP, 80).0;
    assert!(lets_in("10.0.0.1") && lets_in("10.1.1.1") && lets_in("10.3.0.1"));
    assert!(!lets_in("10.1.0.1") && !lets_in("10.2.0.1") && !lets_in("11.0.0.1"));
    // An exception that is all of the network is a fault, and the rule permits nothing.
    let spec = json!({"podSelector": {}, "ingress": [{"from": [
        {"ipBlock": {"cidr": "10.3.0.0/16", "except": ["10.3.0.0/16"]}}]}]});
    let mut control = control;
    control.apply(faulty(policy("x/p", spec)));
    control.commit();
    assert!(!ingress(&control.view(), "10.3.0.1", "x/a", TCP, 80).0);
}

#[test]
fn every_ipv4_address_is_not_every_address() {
    let spec =
        json!({"podSelector": {}, "ingress": [{"from": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]}]});
    let mut dual = pod("x/a", "10.0.0.1", json!({}));
    dual["status"]["podIPs"] = json!([{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]);
    let control = control([dual, policy("x/p", spec)]);
    let view = control.view();
    let ask = |from: &str, to: &str| {
        let acl_of = &view.pods[&key("x/a")].to_pod;
        acl(&view, acl_of, from.parse().unwrap(), to.parse().unwrap(), TCP, 80).0
    };
    assert!(ask("192.0.2.9", "10.0.0.1"));
    assert!(!ask("2001:db8::9", "fd00::1"));
}

#[test]
fn a_verdict_names_the_rule_or_all_isolating_policies() {
    let spec = json!({"podSelector": {}, "ingress": [{"ports": [{"port": 80}]}, {"ports": [{"port": 443}]}]});
    let control = control([
        pod("x/a", "10.0.0.1", json!({})),
        policy("x/q", json!({"podSelector": {}})),
        policy("x/p", spec),
    ]);
    let by = |port: u16| ingress(&control.view(), "192.0.2.9", "x/a", TCP, port).1;
    assert_eq!(&*by(443), "NetworkPolicy x/p ingress[1]");
    assert_eq!(&*by(22), "default-deny of NetworkPolicy x/p, NetworkPolicy x/q");
}

#[test]
fn external_traffic_policy_local_says_nothing_about_the_cluster_ip() {
    let service = json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"namespace": "x", "name": "s"},
        "spec": {"clusterIP": "10.96.0.1", "externalTrafficPolicy": "Local",
                 "ports": [{"port": 80}]}});
    let control = control([service]);
    let service = control.services().next().unwrap();
    assert!(service.external_local && !service.internal_local);
}
