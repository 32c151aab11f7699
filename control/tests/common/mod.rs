//! Questions put to views, shared by the tests of this crate.
#![allow(dead_code, reason = "the tests of nftables use a part")]

pub(crate) mod generate;
pub(crate) mod reference;

use std::net::IpAddr;
use std::sync::Arc;

use acl::{Action, Address, Key, linear};
use control::objects::{Read, read};
use control::{Control, Kind, Object, ObjectRef, PodAcl, PodKey, PodView, Scope, View};
use serde_json::{Value, json};

/// IP protocol numbers.
pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(crate) const SCTP: u8 = 132;
pub(crate) const ICMP: u8 = 1;

/// One object, which must be fine.
pub(crate) fn object(value: Value) -> Object {
    match read(value) {
        Read::Object(object, faults) => {
            assert_eq!(faults, []);
            object
        }
        other => panic!("{other:?}"),
    }
}

/// One object, which must have faults.
pub(crate) fn faulty(value: Value) -> Object {
    match read(value) {
        Read::Object(object, faults) => {
            assert_ne!(faults, []);
            object
        }
        other => panic!("{other:?}"),
    }
}

pub(crate) fn key(text: &str) -> PodKey {
    let (namespace, name) = text.split_once('/').unwrap();
    PodKey { namespace: namespace.into(), name: name.into() }
}

/// A control in which these objects were committed.
pub(crate) fn control(objects: impl IntoIterator<Item = Value>) -> Control {
    let mut control = Control::new(Scope::All);
    objects.into_iter().for_each(|value| control.apply(object(value)));
    control.commit();
    control
}

/// Carries out one edit of a generated history.
pub(crate) fn apply(control: &mut Control, edit: &generate::Edit) {
    match edit {
        generate::Edit::Apply(value) => control.apply(object(value.clone())),
        generate::Edit::Delete(kind, namespace, name) => {
            control.delete(&reference_of(kind, namespace, name));
        }
    }
}

/// Verdict between a pod and a peer in one direction, and the rule that gives it.
/// The compiled table and the linear scan must say the same.
pub(crate) fn acl(
    view: &View,
    acl: &PodAcl,
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    port: u16,
) -> (bool, Arc<str>) {
    let PodAcl::Table(table) = acl else { return (true, "default-allow".into()) };
    let (source, destination) = (Address::from(source), Address::from(destination));
    let key = Key {
        source,
        destination,
        source_identity: view.addresses.lookup(source),
        destination_identity: view.addresses.lookup(destination),
        protocol,
        source_port: if protocol == ICMP { 8 } else { 40_000 },
        destination_port: if protocol == ICMP { 0 } else { port },
        ..Key::default()
    };
    let found = table.lookup(&key);
    assert_eq!(found, linear::lookup(table.rules(), &view.addresses, &key), "{key:?}");
    let rule = &table.rules()[found.expect("a lookup always finds a rule")];
    (rule.action == Action::Permit, rule.origin.to_string().into())
}

/// Whether the pod `to` lets `from` in, and by whom.
pub(crate) fn ingress(
    view: &View,
    from: &str,
    to: &str,
    protocol: u8,
    port: u16,
) -> (bool, Arc<str>) {
    let pod = &view.pods[&key(to)];
    let from = address(view, from, pod.addresses[0]);
    acl(view, &pod.to_pod, from, pod.addresses[0], protocol, port)
}

/// Whether the pod `from` may go to `to`, and by whom.
pub(crate) fn egress(
    view: &View,
    from: &str,
    to: &str,
    protocol: u8,
    port: u16,
) -> (bool, Arc<str>) {
    let pod = &view.pods[&key(from)];
    let to = address(view, to, pod.addresses[0]);
    acl(view, &pod.from_pod, pod.addresses[0], to, protocol, port)
}

/// Whether two views hold the same pods, and say the same of every connection between their
/// addresses and some others.
pub(crate) fn same_answers(a: &View, b: &View) -> bool {
    let keys = |view: &View| -> Vec<_> {
        view.pods.iter().map(|(key, pod)| (key.clone(), pod.addresses.clone())).collect()
    };
    let others = ["192.0.2.1", "192.0.2.11", "198.51.100.7", "203.0.113.9", "2001:db8::1"];
    let others = others.map(|text| text.parse::<IpAddr>().unwrap());
    let peers = a.pods.values().flat_map(|pod| pod.addresses.clone()).chain(others);
    let peers: Vec<IpAddr> = peers.collect();
    let kinds = [(TCP, 53), (TCP, 80), (TCP, 8080), (UDP, 53), (SCTP, 80), (ICMP, 0)];
    keys(a) == keys(b)
        && a.nodes == b.nodes
        && a.services == b.services
        && a.pods.iter().zip(b.pods.values()).all(|((_, one), other)| {
            one.addresses.iter().all(|own| {
                peers.iter().filter(|peer| peer.is_ipv4() == own.is_ipv4()).all(|peer| {
                    kinds.iter().all(|(protocol, port)| {
                        let to = |view, pod: &PodView| {
                            acl(view, &pod.to_pod, *peer, *own, *protocol, *port)
                        };
                        let from = |view, pod: &PodView| {
                            acl(view, &pod.from_pod, *own, *peer, *protocol, *port)
                        };
                        to(a, one) == to(b, other) && from(a, one) == from(b, other)
                    })
                })
            })
        })
}

/// `ns/pod` or an address.
fn address(view: &View, text: &str, like: IpAddr) -> IpAddr {
    match text.parse() {
        Ok(address) => address,
        Err(_) => *view.pods[&key(text)]
            .addresses
            .iter()
            .find(|address| address.is_ipv4() == like.is_ipv4())
            .unwrap(),
    }
}

/// Whether the pod at `to`, if there is one, lets `from` in.
pub(crate) fn ingress_at(view: &View, from: IpAddr, to: IpAddr, protocol: u8, port: u16) -> bool {
    at(view, to).is_none_or(|pod| acl(view, &pod.to_pod, from, to, protocol, port).0)
}

/// Whether the pod at `from`, if there is one, may go to `to`.
pub(crate) fn egress_at(view: &View, from: IpAddr, to: IpAddr, protocol: u8, port: u16) -> bool {
    at(view, from).is_none_or(|pod| acl(view, &pod.from_pod, from, to, protocol, port).0)
}

fn at(view: &View, address: IpAddr) -> Option<&Arc<PodView>> {
    view.pods.values().find(|pod| pod.addresses.contains(&address))
}

/// A running pod on `n1`.
pub(crate) fn pod(name: &str, address: &str, labels: Value) -> Value {
    with_ports(name, address, labels, json!([]))
}

/// The same with container ports.
pub(crate) fn with_ports(name: &str, address: &str, labels: Value, ports: Value) -> Value {
    let (namespace, name) = name.split_once('/').unwrap();
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name, "labels": labels},
        "spec": {"nodeName": "n1", "containers": [{"name": "c", "ports": ports}]},
        "status": {"phase": "Running", "podIPs": [{"ip": address}]}})
}

/// A NetworkPolicy.
pub(crate) fn policy(name: &str, spec: Value) -> Value {
    let (namespace, name) = name.split_once('/').unwrap();
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"namespace": namespace, "name": name}, "spec": spec})
}

pub(crate) fn reference_of(kind: &str, namespace: &str, name: &str) -> ObjectRef {
    let kind = Kind::ALL.into_iter().find(|it| it.name() == kind).unwrap();
    let namespace = kind.is_namespaced().then(|| namespace.into());
    ObjectRef { kind, namespace, name: name.into() }
}
