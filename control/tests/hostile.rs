//! Nothing that an object contains crashes the pipeline or opens a pod.

use crate::common::{TCP, ingress, key, object, same_answers};
use control::objects::{Read, read};
use control::{Control, Object, PodAcl, Scope};
use proptest::prelude::*;
use serde_json::{Value, json};

fn seeds() -> Vec<Value> {
    vec![
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"namespace": "x", "name": "p", "labels": {"a": "b"}},
            "spec": {"podSelector": {"matchLabels": {"app": "db"}, "matchExpressions":
                    [{"key": "app", "operator": "In", "values": ["db"]}]},
                "policyTypes": ["Ingress", "Egress"],
                "ingress": [{"from": [{"podSelector": {}}, {"namespaceSelector": {}},
                    {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}],
                    "ports": [{"port": 80, "endPort": 90, "protocol": "TCP"}, {"port": "http"}]}],
                "egress": [{"to": [{"podSelector": {}}], "ports": [{"protocol": "UDP"}]}]}}),
        json!({"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
            "metadata": {"name": "c"},
            "spec": {"tier": "Admin", "priority": 5, "subject": {"pods": {
                    "namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "db"}}}},
                "ingress": [{"action": "Pass", "from": [{"namespaces": {}}],
                    "protocols": [{"tcp": {"destinationPort": {"number": 80}}},
                        {"destinationNamedPort": "http"}]},
                    {"action": "Deny", "from": [{"namespaces": {}}]}],
                "egress": [{"action": "Deny", "to": [{"networks": ["10.0.0.0/8"]}, {"nodes": {}}],
                    "protocols": [{"udp": {"destinationPort": {"range": {"start": 1, "end": 9}}}}]}]}}),
        json!({"apiVersion": "podgate.io/v1alpha1", "kind": "ClusterEgressFirewall",
            "metadata": {"name": "f", "generation": 3},
            "spec": {"subject": {"namespaces": {"matchLabels": {"a": "b"}}},
                "egress": [{"action": "Allow", "to": [{"apiServer": {}}, {"nodes": {}}]},
                    {"action": "Deny", "to": [{"networks": ["10.0.0.0/8"]}]}]},
            "status": {"conditions": [{"type": "podgate.io/Accepted", "status": "True"}]}}),
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "x", "name": "q",
                "labels": {"app": "web"}, "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"nodeName": "n1", "hostNetwork": false, "containers": [{"name": "c", "ports": [
                {"name": "http", "containerPort": 80, "protocol": "TCP"}]}]},
            "status": {"phase": "Running", "podIPs": [{"ip": "10.0.0.2"}, {"ip": "fd00::2"}]}}),
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "labels": {"a": "b"}},
            "spec": {"podCIDRs": ["10.0.0.0/24"]},
            "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}}),
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "x", "name": "s"},
            "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 80, "targetPort": "http"}]}}),
        json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"namespace": "x", "name": "s"},
            "endpoints": [{"addresses": ["10.0.0.2"], "conditions": {"ready": true}}],
            "ports": [{"port": 80, "protocol": "TCP"}]}),
    ]
}

fn junk() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        prop::sample::select(vec![
            "",
            "0",
            "-1",
            "65536",
            "10.0.0.0/99",
            "::/0",
            "::ffff:1.2.3.4",
            "Deny",
            "Egress",
            "http",
            "x\u{0}y",
            "9999999999999999999999",
        ])
        .prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        let name = prop::sample::select(vec!["port", "cidr", "key", "matchLabels", "number", "x"]);
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map(name, inner, 0..3).prop_map(|map| json!(map)),
        ]
    })
}

/// Every place in a value, as JSON pointers.
fn places(value: &Value, at: String, all: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(name, inner)| places(inner, format!("{at}/{name}"), all));
        }
        Value::Array(items) => {
            let each = items.iter().enumerate();
            each.for_each(|(index, inner)| places(inner, format!("{at}/{index}"), all));
        }
        _ => {}
    }
    all.push(at);
}

/// One of these values with junk at some places below the pointers given, and where.
fn damaged(
    seeds: Vec<Value>,
    below: &'static [&'static str],
) -> impl Strategy<Value = (Value, Vec<String>)> {
    let damage = prop::collection::vec((any::<prop::sample::Index>(), junk()), 1..4);
    (prop::sample::select(seeds), damage).prop_map(|(mut value, damage)| {
        let mut touched = Vec::new();
        for (index, junk) in damage {
            let mut all = Vec::new();
            places(&value, String::new(), &mut all);
            all.retain(|place| below.iter().any(|below| place.starts_with(below)));
            let place = index.get(&all).clone();
            *value.pointer_mut(&place).unwrap() = junk;
            touched.push(place);
        }
        (value, touched)
    })
}

fn db() -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "x", "name": "db", "labels": {"app": "db"}},
        "spec": {"nodeName": "n1"}, "status": {"podIPs": [{"ip": "10.0.0.1"}]}})
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damaged_objects_crash_nothing((value, _) in damaged(seeds(), &[""])) {
        let mut control = Control::new(Scope::All);
        control.apply(object(db()));
        if let Read::Object(object, _) = read(value) {
            let reference = object.reference();
            control.apply(object);
            control.commit();
            for pod in control.view().pods.keys() {
                prop_assert!(control.walkthrough(pod).is_some());
            }
            control.session_rules();
            control.delete(&reference);
            control.commit();
        }
    }

    #[test]
    fn a_damaged_policy_closes_what_it_selects_at_least(
        (value, touched) in damaged(seeds()[..1].to_vec(), &["/spec/ingress", "/spec/egress"])
    ) {
        let Read::Object(Object::NetworkPolicy(policy), faults) = read(value) else { panic!() };
        let mut control = Control::new(Scope::All);
        control.apply(object(db()));
        control.apply(Object::NetworkPolicy(policy));
        control.commit();
        let view = control.view();
        let db = &view.pods[&key("x/db")];
        prop_assert!(matches!((&db.to_pod, &db.from_pod), (PodAcl::Table(_), PodAcl::Table(_))));
        if !faults.is_empty() && touched.iter().all(|place| place.starts_with("/spec/ingress/0")) {
            // The only rule could not be read.
            prop_assert!(!ingress(&view, "10.0.0.9", "x/db", TCP, 80).0);
        }
    }

    #[test]
    fn a_damaged_update_counts_as_on_a_cluster_node_that_starts_with_it(
        (value, _) in damaged(seeds(), &[""])
    ) {
        let is_another_node = value["kind"] == "Node" && value["metadata"]["name"] != "n1";
        let Read::Object(damaged, _) = read(value) else { return Ok(()) };
        // Of two Nodes with one address, the one that had it keeps it.
        prop_assume!(!is_another_node);
        let mut running = Control::new(Scope::All);
        let mut fresh = Control::new(Scope::All);
        let all = || seeds().into_iter().chain([db()]).map(object);
        all().for_each(|it| running.apply(it));
        running.commit();
        running.apply(damaged.clone());
        running.commit();
        let reference = damaged.reference();
        fresh.apply(damaged);
        all().filter(|it| it.reference() != reference).for_each(|it| fresh.apply(it));
        fresh.commit();
        prop_assert!(same_answers(&running.view(), &fresh.view()));
    }
}
