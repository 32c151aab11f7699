//! Host firewalls decide about connections that services lead to and from a node's own processes.

use std::net::IpAddr;

use acl::{Key, Table};
use control::{Control, PodAcl, Scope};
use serde_json::{Value, json};

use crate::common::{TCP, UDP, object};

fn firewall(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "podgate.io/v1alpha1", "kind": "ClusterHostFirewall",
        "metadata": {"name": name}, "spec": spec})
}

fn node(name: &str, role: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"role": role}},
        "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}})
}

fn apply(control: &mut Control, value: Value) {
    control.apply(object(value));
    control.commit();
}

/// Whether both directions permit a connection with this peer; `None` without rules.
fn permits(control: &Control, peer: &str, protocol: u8, port: u16) -> [Option<bool>; 2] {
    permits_at("n1", control, peer, protocol, port)
}

fn permits_at(
    node: &str,
    control: &Control,
    peer: &str,
    protocol: u8,
    port: u16,
) -> [Option<bool>; 2] {
    let view = control.view();
    let (own, peer): (IpAddr, IpAddr) = ("192.0.2.1".parse().unwrap(), peer.parse().unwrap());
    let asked = |acl: &PodAcl, from: IpAddr, to: IpAddr| {
        let PodAcl::Table(table) = acl else { return None };
        let (source, destination) = (from.into(), to.into());
        let key = Key {
            source,
            destination,
            source_identity: view.addresses.lookup(source),
            destination_identity: view.addresses.lookup(destination),
            protocol,
            source_port: 40_000,
            destination_port: port,
            ..Key::default()
        };
        let table: &Table = table;
        Some(table.lookup(&key).is_some_and(|rule| table.permits(rule as u32)))
    };
    let Some([ingress, egress]) = view.host_services.get(node) else { return [None, None] };
    [asked(ingress, peer, own), asked(egress, own, peer)]
}

#[test]
fn every_firewall_of_the_node_must_permit_and_failsafe_ports_stay_open() {
    let mut control = Control::new(Scope::Node("n1".into()));
    let peer = |network: &str| json!([{"networks": [network]}]);
    let web = json!([{"tcp": {"destinationPort": {"number": 80}}}]);
    let all = json!([{"networks": ["0.0.0.0/0", "::/0"]}]);
    apply(&mut control, node("n1", "core"));
    apply(
        &mut control,
        firewall(
            "edge",
            json!({"nodes": {"matchLabels": {"role": "edge"}},
            "ingress": [{"action": "Allow", "from": peer("198.51.100.0/24"), "protocols": web},
                {"action": "Deny", "from": all}],
            "egress": [{"action": "Deny", "to": peer("203.0.113.0/24")}]}),
        ),
    );
    let of = |control: &Control, peer: &str, port: u16| permits(control, peer, TCP, port);
    assert_eq!(of(&control, "198.51.100.9", 80), [None, None], "another node's");
    apply(&mut control, node("n1", "edge"));
    assert_eq!(of(&control, "198.51.100.9", 80), [Some(true), Some(true)]);
    assert_eq!(of(&control, "198.51.100.9", 81), [Some(false), Some(true)]);
    assert_eq!(of(&control, "203.0.113.9", 80), [Some(false), Some(false)]);
    assert_eq!(of(&control, "203.0.113.9", 22), [Some(true), Some(false)]);
    assert_eq!(of(&control, "203.0.113.9", 6443), [Some(true), Some(true)]);
    assert_eq!(permits(&control, "203.0.113.9", UDP, 68), [Some(true), Some(false)]);
    apply(
        &mut control,
        firewall(
            "other",
            json!({"failsafePorts": "Closed",
            "ingress": [{"action": "Deny", "from": peer("198.51.100.8/31")}]}),
        ),
    );
    assert_eq!(of(&control, "198.51.100.9", 80), [Some(false), Some(true)]);
    assert_eq!(of(&control, "198.51.100.7", 80), [Some(true), Some(true)]);
    assert_eq!(of(&control, "198.51.100.9", 22), [Some(false), Some(true)], "closed by its object");
    assert_eq!(of(&control, "203.0.113.9", 22), [Some(true), Some(false)]);
}

#[test]
fn with_all_nodes_in_scope_each_has_the_rules_of_its_own_firewalls() {
    let mut control = Control::new(Scope::All);
    for (name, role) in [("n1", "edge"), ("n2", "core"), ("n3", "edge")] {
        apply(&mut control, node(name, role));
    }
    let deny = |network: &str| json!([{"action": "Deny", "from": [{"networks": [network]}]}]);
    let edge =
        json!({"nodes": {"matchLabels": {"role": "edge"}}, "ingress": deny("198.51.100.0/24")});
    apply(&mut control, firewall("edge", edge));
    let of = |control: &Control, peer: &str| {
        ["n1", "n2", "n3"].map(|node| permits_at(node, control, peer, TCP, 80)[0])
    };
    assert_eq!(of(&control, "198.51.100.9"), [Some(false), None, Some(false)]);
    apply(&mut control, firewall("all", json!({"ingress": deny("203.0.113.0/24")})));
    assert_eq!(of(&control, "198.51.100.9"), [Some(false), Some(true), Some(false)]);
    assert_eq!(of(&control, "203.0.113.9"), [Some(false); 3]);
    let before = control.view();
    apply(&mut control, node("n3", "core"));
    assert_eq!(of(&control, "198.51.100.9"), [Some(false), Some(true), Some(true)]);
    let services = &before.host_services;
    assert_eq!(services.len(), 3, "an earlier view keeps its own");
}
