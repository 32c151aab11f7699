//! Addresses that switches publish of their nodes: they add to denials, and open nothing.

use crate::common::{TCP, control, egress, faulty, object, pod};
use acl::{Action, End, Rule};
use control::{Control, Kind, ObjectRef, Scope, View};
use domain_names::Change;
use serde_json::{Value, json};
use std::net::IpAddr;

const DOCKER: &str = "172.17.0.1";
const SECOND: &str = "2001:db8::22";

fn node(name: &str, addresses: &[&str], network: &str) -> Value {
    let addresses: Vec<Value> =
        addresses.iter().map(|it| json!({"type": "InternalIP", "address": it})).collect();
    json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {"name": name}},
        "spec": {"podCIDRs": [network]}, "status": {"addresses": addresses}})
}

fn on_n2(mut pod: Value) -> Value {
    pod["spec"]["nodeName"] = "n2".into();
    pod
}

fn published(name: &str, addresses: &[&str]) -> Value {
    json!({"apiVersion": "podgate.io/v1alpha1", "kind": "NodeAddresses",
        "metadata": {"name": name}, "spec": {"addresses": addresses}})
}

fn cluster_policy(spec: Value) -> Value {
    json!({"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
        "metadata": {"name": "nodes"}, "spec": spec})
}

fn denied_nodes() -> Value {
    cluster_policy(json!({"tier": "Admin", "priority": 1, "subject": {"namespaces": {}},
        "egress": [{"action": "Deny", "to": [{"nodes": {}}]}]}))
}

fn firewall(rules: Value) -> Value {
    json!({"apiVersion": "podgate.io/v1alpha1", "kind": "ClusterEgressFirewall",
        "metadata": {"name": "outside"},
        "spec": {"subject": {"namespaces": {}}, "egress": rules}})
}

fn two_nodes(more: impl IntoIterator<Item = Value>) -> Control {
    let objects = [
        node("n1", &["192.0.2.1"], "10.1.0.0/24"),
        node("n2", &["192.0.2.2"], "10.2.0.0/24"),
        pod("x/a", "10.1.0.5", json!({})),
        pod("x/b", "2001:db8:1::5", json!({})),
    ];
    control(objects.into_iter().chain(more))
}

fn apply(control: &mut Control, value: Value) -> std::sync::Arc<View> {
    control.apply(object(value));
    control.commit();
    control.view()
}

fn opens(view: &View, to: &str) -> bool {
    let from = if to.contains(':') { "x/b" } else { "x/a" };
    egress(view, from, to, TCP, 443).0
}

fn faults(control: &Control) -> Vec<String> {
    control.published_address_faults().iter().map(ToString::to_string).collect()
}

#[test]
fn a_denial_of_nodes_covers_what_they_publish() {
    let mut control = two_nodes([denied_nodes()]);
    assert!(!opens(&control.view(), "192.0.2.2"));
    assert!(opens(&control.view(), DOCKER) && opens(&control.view(), SECOND));
    let view = apply(&mut control, published("n2", &[DOCKER, SECOND]));
    assert!(!opens(&view, DOCKER) && !opens(&view, SECOND) && !opens(&view, "192.0.2.2"));
    // Every node has the same docker0: it is a node's until the last one is without it.
    apply(&mut control, published("n1", &[DOCKER]));
    let view = apply(&mut control, published("n2", &[]));
    assert!(!opens(&view, DOCKER) && opens(&view, SECOND));
    let view = apply(&mut control, published("n1", &[]));
    assert!(opens(&view, DOCKER));
    apply(&mut control, published("n2", &[SECOND]));
    assert!(!opens(&control.view(), SECOND));
    control.delete(&ObjectRef { kind: Kind::Node, namespace: None, name: "n2".into() });
    control.commit();
    assert!(opens(&control.view(), SECOND), "of no node");
    let view = apply(&mut control, node("n2", &["192.0.2.2"], "10.2.0.0/24"));
    assert!(!opens(&view, SECOND));
}

#[test]
fn a_host_firewalls_denial_of_nodes_covers_what_they_publish() {
    let host_firewall = json!({"apiVersion": "podgate.io/v1alpha1", "kind": "ClusterHostFirewall",
        "metadata": {"name": "nodes"}, "spec": {"ingress": [
            {"action": "Allow", "from": [{"nodes": {"matchLabels": {"name": "n2"}}}],
                "protocols": [{"tcp": {"destinationPort": {"number": 22}}}]},
            {"action": "Deny", "from": [{"nodes": {}}]}]}});
    let mut control = Control::new(Scope::Node("n1".into()));
    let own =
        [node("n1", &["192.0.2.1"], "10.1.0.0/24"), node("n2", &["192.0.2.2"], "10.2.0.0/24")];
    own.into_iter().chain([host_firewall]).for_each(|it| control.apply(object(it)));
    let view = apply(&mut control, published("n2", &[DOCKER]));
    let verdicts = |address: &str| -> Vec<Action> {
        let address = address.parse().unwrap();
        let holds = |rule: &&Rule| match rule.source {
            End::Set(set) => view.peer_sets[&set].contains(address),
            End::Any => true,
        };
        let rules = view.host_firewalls[0].ingress.iter().filter(holds);
        rules.map(|rule| rule.action).collect()
    };
    assert_eq!(verdicts("192.0.2.2"), [Action::Permit, Action::Deny, Action::Permit]);
    assert_eq!(
        verdicts(DOCKER),
        [Action::Deny, Action::Permit],
        "the last permits what no rule does"
    );
}

#[test]
fn a_published_address_opens_nothing() {
    let accept = |action: &str| {
        cluster_policy(json!({"tier": "Admin", "priority": 1, "subject": {"namespaces": {}},
            "egress": [{"action": action, "to": [{"nodes": {}}]},
                       {"action": "Deny", "to": [{"networks": ["0.0.0.0/0", "::/0"]}]}]}))
    };
    for action in ["Accept", "Pass"] {
        let control = two_nodes([accept(action), published("n2", &[DOCKER, "203.0.113.9"])]);
        assert!(opens(&control.view(), "192.0.2.2"), "{action}");
        assert!(!opens(&control.view(), DOCKER) && !opens(&control.view(), "203.0.113.9"));
    }
    let rules = json!([{"action": "Allow", "to": [{"apiServer": {}}]},
                       {"action": "Deny", "to": [{"networks": ["0.0.0.0/0"]}]}]);
    let control = two_nodes([firewall(rules), api_server("192.0.2.2"), published("n2", &[DOCKER])]);
    assert!(opens(&control.view(), "192.0.2.2") && !opens(&control.view(), DOCKER));
}

#[test]
fn a_node_publishes_no_address_that_is_anothers() {
    let service = json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "s", "namespace": "x"},
        "spec": {"clusterIP": "10.96.0.7", "ports": [{"port": 443}]}});
    let claims =
        ["10.1.0.5", "10.1.0.9", "192.0.2.1", "10.96.0.7", "169.254.1.1", "127.0.0.1", "10.2.0.1"];
    let mut control = two_nodes([denied_nodes(), service, published("n2", &claims)]);
    let refused = [
        "NodeAddresses n2: spec.addresses[0]: 10.1.0.5 is an address of a pod; it is ignored",
        "NodeAddresses n2: spec.addresses[1]: 10.1.0.9 is in the pod network of Node n1; it is ignored",
        "NodeAddresses n2: spec.addresses[2]: 192.0.2.1 is an address of Node n1; it is ignored",
        "NodeAddresses n2: spec.addresses[3]: 10.96.0.7 is an address of Service x/s; it is ignored",
        "NodeAddresses n2: spec.addresses[4]: 169.254.1.1 is no address that other hosts reach; it is ignored",
        "NodeAddresses n2: spec.addresses[5]: 127.0.0.1 is no address that other hosts reach; it is ignored",
    ];
    assert_eq!(faults(&control), refused);
    let view = control.view();
    assert!(opens(&view, "10.1.0.9") && opens(&view, "10.96.0.7"));
    assert!(!opens(&view, "10.2.0.1"), "its kernel's own address in its own pod network");
    // A pod that comes to the address takes it, and leaves it again.
    let view = apply(&mut control, on_n2(pod("x/c", "10.2.0.1", json!({}))));
    assert!(opens(&view, "10.2.0.1"));
    let gone =
        |kind, name: &str| ObjectRef { kind, namespace: Some("x".into()), name: name.into() };
    control.delete(&gone(Kind::Pod, "c"));
    control.delete(&gone(Kind::Service, "s"));
    control.commit();
    assert!(!opens(&control.view(), "10.2.0.1") && !opens(&control.view(), "10.96.0.7"));
}

#[test]
fn what_counts_does_not_depend_on_the_order_of_events() {
    let objects = [
        node("n1", &["192.0.2.1"], "10.1.0.0/24"),
        node("n2", &["192.0.2.2"], "10.2.0.0/24"),
        published("n1", &[DOCKER, "10.2.0.7", "10.96.0.7", "192.0.2.2", SECOND]),
        published("n2", &[SECOND, "10.1.0.5", "10.2.0.5", "198.51.100.3"]),
        pod("x/a", "10.1.0.5", json!({})),
        pod("x/b", "2001:db8:1::5", json!({})),
        on_n2(pod("x/c", "10.2.0.5", json!({}))),
        json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "s", "namespace": "x"},
            "spec": {"clusterIP": "10.96.0.7", "ports": [{"port": 443}]}}),
        api_server("198.51.100.3"),
        denied_nodes(),
    ];
    let asked = [DOCKER, SECOND, "10.2.0.7", "10.96.0.7", "10.2.0.5", "192.0.2.2", "198.51.100.3"];
    let of = |control: &Control| {
        let view = control.view();
        (asked.map(|to| opens(&view, to)), faults(control))
    };
    let expected = of(&control(objects.clone()));
    assert_eq!(expected.0, [false, false, true, true, true, false, true]);
    for first in 0..objects.len() {
        let mut list = objects.clone();
        list.rotate_left(first);
        for list in [list.clone(), list.into_iter().rev().collect::<Vec<_>>().try_into().unwrap()] {
            // One commit for each object, and one for all.
            let mut one = control([]);
            list.iter().for_each(|it| drop(apply(&mut one, it.clone())));
            assert_eq!(of(&one), expected, "from {first}");
            assert_eq!(of(&control(list)), expected, "from {first}");
        }
    }
}

#[test]
fn a_list_is_bounded_and_a_fault_costs_the_rest_nothing() {
    let many: Vec<String> = (0..70).map(|n| format!("172.18.0.{n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let mut control = two_nodes([denied_nodes()]);
    control.apply(faulty(published("n2", &many)));
    control.commit();
    assert!(!opens(&control.view(), "172.18.0.63") && opens(&control.view(), "172.18.0.64"));
    control.apply(faulty(published("n2", &["nonsense", DOCKER])));
    control.commit();
    assert!(!opens(&control.view(), DOCKER) && opens(&control.view(), "172.18.0.63"));
}

#[test]
fn a_switch_publishes_what_counts_elsewhere() {
    let service = json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "s", "namespace": "x"},
        "spec": {"clusterIP": "10.96.0.7", "ports": [{"port": 443}]}});
    let control = two_nodes([service]);
    let kernels = ["10.1.0.1", "10.96.0.7", "192.0.2.1", "127.0.0.1", "fe80::1", SECOND, DOCKER];
    let kernels = kernels.map(|it| it.parse::<IpAddr>().unwrap());
    let own = control.publishable("n1", kernels.into_iter());
    assert_eq!(own, ["10.1.0.1", DOCKER, SECOND].map(|it| it.parse::<IpAddr>().unwrap()));
    assert_eq!(control.publishable("n9", kernels.into_iter()), [] as [IpAddr; 0], "no such node");
    let many = (0..1000).map(|n: u16| IpAddr::from([172, 20, (n >> 8) as u8, n as u8]));
    assert_eq!(control.publishable("n1", many).len(), 64);
}

#[test]
fn no_name_opens_a_published_address() {
    let names =
        cluster_policy(json!({"tier": "Admin", "priority": 1, "subject": {"namespaces": {}},
        "egress": [{"action": "Accept", "to": [{"domainNames": ["*.example.org"]}]},
                   {"action": "Deny", "to": [{"networks": ["0.0.0.0/0"]}]}]}));
    let mut control = two_nodes([names, published("n2", &[DOCKER])]);
    let says = |control: &mut Control, address: &str| {
        let key = crate::common::key("x/a");
        let open = vec![address.parse().unwrap()];
        let name = "evil.example.org".into();
        let ignored = control.set_names(&[Change { pod: key, name, open, lingering: vec![] }]);
        control.commit();
        !ignored.is_empty()
    };
    assert!(says(&mut control, DOCKER), "ignored");
    assert!(!opens(&control.view(), DOCKER));
    assert!(!says(&mut control, "172.18.0.1"));
    assert!(opens(&control.view(), "172.18.0.1"));
    let view = apply(&mut control, published("n2", &["172.18.0.1"]));
    assert!(!opens(&view, "172.18.0.1"), "published later");
}

fn api_server(address: &str) -> Value {
    json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"namespace": "default", "name": "kubernetes",
            "labels": {"kubernetes.io/service-name": "kubernetes"}},
        "endpoints": [{"addresses": [address]}], "ports": [{"port": 6443}]})
}

#[test]
fn a_denial_of_the_api_server_covers_its_nodes_other_addresses() {
    let rules = json!([{"action": "Deny", "to": [{"apiServer": {}}]}]);
    let mut control = two_nodes([firewall(rules), api_server("192.0.2.2")]);
    let six = "2001:db8::2";
    assert!(!opens(&control.view(), "192.0.2.2") && opens(&control.view(), six));
    let view = apply(&mut control, node("n2", &["192.0.2.2", six], "10.2.0.0/24"));
    assert!(!opens(&view, six), "the Node's other address");
    let view = apply(&mut control, published("n2", &[SECOND]));
    assert!(!opens(&view, SECOND), "a published one");
    assert!(opens(&view, "192.0.2.1"), "another node");
    let view = apply(&mut control, node("n2", &["192.0.2.2"], "10.2.0.0/24"));
    assert!(opens(&view, six) && !opens(&view, SECOND));
    let view = apply(&mut control, api_server("192.0.2.1"));
    assert!(opens(&view, "192.0.2.2") && opens(&view, SECOND) && !opens(&view, "192.0.2.1"));
}
