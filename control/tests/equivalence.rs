//! Views agree with the reference on every connection, after every step of any history.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::common::generate::{Edit, NAMESPACES, OTHERS, PODS, edits, pod_addresses};
use crate::common::reference::{Cluster, Connection, addresses, is_peer_at_all};
use crate::common::{ICMP, SCTP, TCP, UDP, acl, apply, key, object, reference_of, same_answers};
use control::objects::{Read, read};
use control::{Control, Kind, Object, ObjectRef, Scope, View};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Value, json};

/// Every address that means anything in the universe of the generator, and some that do not.
fn everybody() -> Vec<IpAddr> {
    let pods = NAMESPACES.iter().flat_map(|namespace| {
        PODS.iter().flat_map(|name| {
            [false, true].into_iter().flat_map(|it| pod_addresses(namespace, name, it))
        })
    });
    pods.chain(OTHERS.map(str::to_owned)).map(|text| text.parse().unwrap()).collect()
}

/// The view holds exactly the pods it should, and each ACL says what the reference says.
fn agree(cluster: &Cluster, view: &View, is_local: impl Fn(&str) -> bool) {
    let expected: Vec<_> = cluster
        .pods
        .values()
        .filter(|pod| is_peer_at_all(pod) && !addresses(pod).is_empty())
        .filter(|pod| is_local(pod.spec.as_ref().unwrap().node_name.as_deref().unwrap()))
        .collect();
    assert_eq!(view.pods.len(), expected.len());
    let kinds = [TCP, UDP, SCTP].into_iter().flat_map(|it| [53, 80, 8080].map(|port| (it, port)));
    let kinds: Vec<(u8, u16)> = kinds.chain([(ICMP, 0)]).collect();
    for pod in expected {
        let name = key(&format!(
            "{}/{}",
            pod.metadata.namespace.as_deref().unwrap(),
            pod.metadata.name.as_deref().unwrap()
        ));
        let seen = &view.pods[&name];
        assert_eq!(seen.addresses, addresses(pod));
        for own in &seen.addresses {
            for peer in everybody() {
                for (protocol, port) in kinds.iter().copied() {
                    let connection = Connection { peer, protocol, port };
                    let (ingress, by) = acl(view, &seen.to_pod, peer, *own, protocol, port);
                    let meant = cluster.permits(pod, true, connection);
                    assert_eq!(ingress, meant, "{name} from {connection:?} by {by}");
                    let (egress, by) = acl(view, &seen.from_pod, *own, peer, protocol, port);
                    let meant = cluster.permits(pod, false, connection);
                    assert_eq!(egress, meant, "{name} to {connection:?} by {by}");
                }
            }
        }
    }
}

fn objects(cluster: &Cluster) -> Vec<Object> {
    let value = |kind: Kind, it: serde_json::Value| {
        let mut it = it;
        it["kind"] = kind.name().into();
        it["apiVersion"] = kind.api_version().into();
        object(it)
    };
    fn json(it: &impl serde::Serialize) -> serde_json::Value {
        serde_json::to_value(it).unwrap()
    }
    let namespaces = cluster.namespaces.values().map(|it| value(Kind::Namespace, json(it)));
    let pods = cluster.pods.values().map(|it| value(Kind::Pod, json(it)));
    let policies = cluster.policies.values().map(|it| value(Kind::NetworkPolicy, json(it)));
    let nodes = cluster.nodes.values().map(|it| value(Kind::Node, json(it)));
    let cluster_policies = cluster.cluster_policies.values().map(|it| object(it.clone()));
    let others = cluster.firewalls.values().chain(cluster.services.values());
    let others = others.chain(cluster.slices.values()).map(|it| object(it.clone()));
    namespaces
        .chain(pods)
        .chain(policies)
        .chain(nodes)
        .chain(cluster_policies)
        .chain(others)
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn after_every_step_of_any_history(history in edits(1..24)) {
        let mut cluster = Cluster::default();
        let mut all = Control::new(Scope::All);
        let mut one = Control::new(Scope::Node("n1".into()));
        for edit in &history {
            cluster.apply(edit);
            for control in [&mut all, &mut one] {
                apply(control, edit);
                control.commit();
            }
            agree(&cluster, &all.view(), |_| true);
            agree(&cluster, &one.view(), |node| node == "n1");
            let mut counts = BTreeMap::new();
            all.objects().for_each(|it| *counts.entry(it.kind()).or_default() += 1);
            prop_assert_eq!(all.counts(), counts);
        }
        // From nothing, all at once.
        let mut fresh = Control::new(Scope::All);
        fresh.resync(objects(&cluster));
        fresh.commit();
        agree(&cluster, &fresh.view(), |_| true);
        // A resync to what is there already changes nothing.
        fresh.resync(objects(&cluster));
        prop_assert!(fresh.commit().is_none());
        // A resync to nothing removes everything.
        all.resync(Vec::new());
        all.commit();
        prop_assert!(all.view().pods.is_empty());
    }

    #[test]
    fn many_edits_in_one_commit_are_the_same_as_one_by_one(
        before in edits(1..20), batch in edits(1..12)
    ) {
        let mut cluster = Cluster::default();
        let mut control = Control::new(Scope::Node("n1".into()));
        for edits in [&before, &batch] {
            for edit in edits {
                cluster.apply(edit);
                apply(&mut control, edit);
            }
            control.commit();
            agree(&cluster, &control.view(), |node| node == "n1");
        }
    }

    #[test]
    fn what_is_enforced_depends_on_the_objects_as_they_are_now(
        history in edits(1..24), spoilt in vec((any::<Index>(), any::<Index>(), junk()), 1..8)
    ) {
        let mut history = history;
        for (which, place, junk) in spoilt {
            let edit = which.index(history.len());
            if let Edit::Apply(value) = &mut history[edit] {
                spoil(value, &place, junk);
            }
        }
        let mut running = Control::new(Scope::All);
        let mut now: BTreeMap<ObjectRef, Object> = BTreeMap::new();
        for edit in &history {
            match edit {
                Edit::Apply(value) => {
                    // Spoilt, it may not even be an object.
                    let Read::Object(object, _) = read(value.clone()) else { continue };
                    now.insert(object.reference(), object.clone());
                    running.apply(object);
                }
                Edit::Delete(kind, namespace, name) => {
                    let reference = reference_of(kind, namespace, name);
                    now.remove(&reference);
                    running.delete(&reference);
                }
            }
            running.commit();
            let mut fresh = Control::new(Scope::All);
            // In another order than they came.
            fresh.resync(now.values().rev().cloned().collect());
            fresh.commit();
            prop_assert!(same_answers(&running.view(), &fresh.view()));
        }
    }
}

/// Puts junk at some place of an object's labels, spec or status.
fn spoil(value: &mut Value, place: &Index, junk: Value) {
    let mut all = Vec::new();
    for part in ["/metadata/labels", "/spec", "/status", "/endpoints"] {
        if let Some(inside) = value.pointer(part) {
            places(inside, part.to_owned(), &mut all);
        }
    }
    if !all.is_empty()
        && let Some(spot) = value.pointer_mut(place.get::<String>(&all))
    {
        *spot = junk;
    }
}

fn places(value: &Value, at: String, all: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(name, it)| {
                places(it, format!("{at}/{}", name.replace('/', "~1")), all)
            });
        }
        Value::Array(items) => {
            items
                .iter()
                .enumerate()
                .for_each(|(index, it)| places(it, format!("{at}/{index}"), all));
        }
        _ => {}
    }
    all.push(at);
}

fn junk() -> impl Strategy<Value = Value> {
    select(vec![
        json!(7),
        json!(null),
        json!("nowhere"),
        json!([{}]),
        json!({"x": 1}),
        json!([{"domainNames": ["example.org"]}]),
    ])
}
