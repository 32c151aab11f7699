//! What the objects of one tenant cost, counted.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use crate::common::{
    TCP, acl, control, egress, ingress, key, object, pod, policy, reference_of, with_ports,
};
use acl::Table;
use control::objects::{Read, read};
use control::{Control, Object, PodAcl, View};
use serde_json::{Value, json};

/// Pods of one namespace, which are local.
fn pods(count: u32) -> impl Iterator<Item = Value> {
    (0..count).map(|n| {
        let [.., c, d] = n.to_be_bytes();
        pod(&format!("x/p{n}"), &format!("10.0.{c}.{d}"), json!({"app": "db"}))
    })
}

fn of_blocks(peers: u32, ports: u32) -> Value {
    let peers: Vec<Value> = (0..peers)
        .map(|n| {
            let [_, a, b, c] = n.to_be_bytes();
            json!({"ipBlock": {"cidr": format!("{}.{b}.{c}.0/24", a + 20)}})
        })
        .collect();
    let ports: Vec<Value> = (0..ports).map(|n| json!({"port": 2 * n + 1})).collect();
    policy(
        "x/big",
        json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": [{"to": peers, "ports": ports}]}),
    )
}

fn table(view: &View, pod: &str) -> Arc<Table> {
    match &view.pods[&key(pod)].from_pod {
        PodAcl::Table(table) => Arc::clone(table),
        other => panic!("{other:?}"),
    }
}

#[test]
fn peers_and_ports_of_a_rule_add_up() {
    let view = control(pods(2).chain([of_blocks(1000, 1000)])).view();
    let table = table(&view, "x/p0");
    // One for each interval of ports, and the isolation.
    assert_eq!(table.rules().len(), 1001);
    let sets: BTreeSet<_> = table
        .rules()
        .iter()
        .map(|rule| rule.destination)
        .collect::<Vec<_>>()
        .into_iter()
        .map(|end| format!("{end:?}"))
        .collect();
    assert_eq!(sets.len(), 2, "one set of peers, and any: {sets:?}");
    assert_eq!(view.addresses.identities().count(), 2, "in the set, and in none");
    assert_eq!(
        egress(&view, "x/p0", "20.1.7.9", TCP, 7),
        (true, "NetworkPolicy x/big egress[0]".into())
    );
    assert!(!egress(&view, "x/p0", "20.1.7.9", TCP, 8).0);
    assert!(!egress(&view, "x/p0", "21.1.7.9", TCP, 7).0);
}

#[test]
fn pods_of_the_same_policies_share_one_table() {
    let named = |n: u32| {
        let ports = json!([{"name": format!("port-{n}"), "containerPort": 80}]);
        with_ports(&format!("x/q{n}"), &format!("10.1.0.{n}"), json!({"app": "db"}), ports)
    };
    let control = control(pods(100).chain((1..50).map(named)).chain([of_blocks(100, 100)]));
    let (view, first) = (control.view(), table(&control.view(), "x/p0"));
    for n in 1..100 {
        assert!(Arc::ptr_eq(&first, &table(&view, &format!("x/p{n}"))));
    }
    assert!(Arc::ptr_eq(&first, &table(&view, "x/q7")), "no rule is about its ports");
    assert_eq!(control.figures().compiled, 1);
}

/// The peers of one rule, of every kind, with exceptions in each other.
#[test]
fn a_union_holds_what_its_peers_hold() {
    let peers = json!([
        {"podSelector": {"matchLabels": {"app": "web"}}},
        {"namespaceSelector": {"matchLabels": {"team": "a"}}, "podSelector": {"matchExpressions": [
            {"key": "tier", "operator": "Exists"}]}},
        {"namespaceSelector": {"matchLabels": {"team": "b"}}},
        {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.2.0.0/16"]}},
        {"ipBlock": {"cidr": "10.2.3.0/24"}},
    ]);
    let namespace = |name: &str, team: &str| {
        json!({"apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": name, "labels": {"team": team}}})
    };
    let rule = json!({"from": peers, "ports": [{"port": 80}, {"port": 81}, {"port": "http"}]});
    let mut control = control([
        namespace("a", "a"),
        namespace("b", "b"),
        namespace("c", "c"),
        with_ports("x/db", "192.0.2.1", json!({}), json!([{"name": "http", "containerPort": 9}])),
        pod("x/web", "192.0.2.2", json!({"app": "web"})),
        pod("x/other", "192.0.2.3", json!({"app": "other"})),
        pod("a/tiered", "192.0.2.4", json!({"tier": "1"})),
        pod("a/other", "192.0.2.5", json!({"app": "web"})),
        pod("b/any", "192.0.2.6", json!({})),
        pod("c/tiered", "192.0.2.7", json!({"tier": "1"})),
        policy("x/p", json!({"podSelector": {}, "ingress": [rule]})),
    ]);
    let may = |control: &Control, from: &str, port: u16| {
        let (view, own) = (control.view(), IpAddr::from([192, 0, 2, 1]));
        acl(&view, &view.pods[&key("x/db")].to_pod, from.parse().unwrap(), own, TCP, port).0
    };
    let open = ["192.0.2.2", "192.0.2.4", "192.0.2.6", "10.1.2.3", "10.2.3.4"];
    let closed = ["192.0.2.3", "192.0.2.5", "192.0.2.7", "10.2.4.4", "11.0.0.1"];
    for port in [80, 81, 9] {
        assert!(open.iter().all(|from| may(&control, from, port)), "{port}");
        assert!(!closed.iter().any(|from| may(&control, from, port)), "{port}");
    }
    assert!(!may(&control, "10.1.2.3", 82));
    // Pods and namespaces come and go in it.
    control.apply(object(pod("x/other", "192.0.2.3", json!({"app": "web"}))));
    control.apply(object(pod("a/tiered", "192.0.2.4", json!({}))));
    control.apply(object(namespace("b", "c")));
    control.apply(object(namespace("c", "a")));
    control.commit();
    let open = ["192.0.2.2", "192.0.2.3", "192.0.2.7"];
    let closed = ["192.0.2.4", "192.0.2.5", "192.0.2.6"];
    assert!(open.iter().all(|from| may(&control, from, 80)));
    assert!(!closed.iter().any(|from| may(&control, from, 80)));
}

#[test]
fn a_port_name_of_any_peer_is_a_rule_for_each_number() {
    let named = |name: &str, address: &str, labels: Value, number: u16| {
        with_ports(name, address, labels, json!([{"name": "http", "containerPort": number}]))
    };
    let peers = json!([{"podSelector": {"matchLabels": {"app": "web"}}},
        {"podSelector": {"matchLabels": {"app": "db"}}}, {"ipBlock": {"cidr": "10.9.0.0/16"}}]);
    let rule = json!({"to": peers, "ports": [{"port": "http"}, {"port": 53, "protocol": "UDP"}]});
    let view = control([
        pod("x/from", "10.0.0.1", json!({})),
        named("x/web", "10.0.0.2", json!({"app": "web"}), 80),
        named("x/db", "10.0.0.3", json!({"app": "db"}), 81),
        named("x/other", "10.0.0.4", json!({"app": "other"}), 82),
        named("y/in", "10.9.0.5", json!({}), 83),
        policy(
            "x/p",
            json!({"podSelector": {"matchExpressions": [
            {"key": "app", "operator": "DoesNotExist"}]},
            "policyTypes": ["Egress"], "egress": [rule]}),
        ),
    ])
    .view();
    let may = |to: &str, port: u16| egress(&view, "x/from", to, TCP, port).0;
    assert!(may("x/web", 80) && may("x/db", 81) && may("10.9.0.5", 83));
    assert!(!may("x/web", 81) && !may("x/db", 80) && !may("x/other", 82) && !may("10.9.0.6", 83));
    // UDP, three numbers, and the isolation.
    assert_eq!(table(&view, "x/from").rules().len(), 5);
}

/// Each rule's peers are a set of their own, and every address is in all of them.
#[test]
fn a_policy_of_more_peer_sets_than_the_bound_permits_nothing_and_says_so() {
    let of_sets = |name: &str, count: u32| {
        let rule = |n: u32| {
            let [_, a, b, c] = n.to_be_bytes();
            json!({"from": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": [format!("9.{a}.{b}.{c}/32")]}}]})
        };
        let rules: Vec<Value> = (0..count).map(rule).collect();
        policy(name, json!({"podSelector": {"matchLabels": {"app": name[2..]}}, "ingress": rules}))
    };
    let names = |count: u32| {
        let ports: Vec<Value> = (0..count).map(|n| json!({"port": format!("a{n}")})).collect();
        let spec =
            json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": [{"ports": ports}]});
        policy("x/names", spec)
    };
    for value in [of_sets("x/many", 1025), names(1025)] {
        let (object, faults) = match read(value) {
            Read::Object(object, faults) => (object, faults),
            other => panic!("{other:?}"),
        };
        let [fault] = &faults[..] else { panic!("{faults:?}") };
        assert_eq!(fault.field, "spec");
        assert!(fault.problem.contains("more than 1024 peer sets"), "{fault}");
        let Object::NetworkPolicy(policy) = object else { panic!() };
        let rules = policy.ingress.iter().chain(&policy.egress).flatten().count();
        assert_eq!(rules, 0, "it isolates, and permits nothing");
    }
    // The same peers are one set, however many rules have them.
    let rules: Vec<Value> =
        (1..5000).map(|n| json!({"from": [{"podSelector": {}}], "ports": [{"port": n}]})).collect();
    object(policy("x/same", json!({"podSelector": {}, "ingress": rules})));
    let view = control([
        pod("x/few", "10.0.0.1", json!({"app": "few"})),
        pod("x/other", "10.0.0.2", json!({})),
        of_sets("x/few", 64),
        names(64),
    ])
    .view();
    assert!(ingress(&view, "9.0.0.63", "x/few", TCP, 80).0);
    assert!(view.addresses.identities().count() <= 66);
}

#[test]
fn a_service_of_more_endpoints_than_the_bound_has_none_and_says_so() {
    let service = |name: &str, ports: u16| {
        let ports: Vec<Value> = (1..=ports)
            .map(|n| json!({"name": format!("p{n}"), "port": n, "targetPort": n}))
            .collect();
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "x", "name": name},
            "spec": {"clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"], "ports": ports}})
    };
    let slice = |name: &str, ports: u16, count: u32| {
        let endpoints: Vec<Value> = (0..count)
            .map(|n| {
                let [.., c, d] = n.to_be_bytes();
                json!({"addresses": [format!("10.1.{c}.{d}")], "conditions": {"ready": true}})
            })
            .collect();
        let ports: Vec<Value> =
            (1..=ports).map(|n| json!({"name": format!("p{n}"), "port": n})).collect();
        json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"namespace": "x", "name": name, "labels": {"kubernetes.io/service-name": name}},
            "endpoints": endpoints, "ports": ports})
    };
    let mut control = control([
        service("large", 1000),
        slice("large", 1000, 300),
        service("other", 10),
        slice("other", 10, 300),
    ]);
    let endpoints = |control: &Control, name: &str| {
        let view = control.view();
        let service = view.services.values().find(|it| &*it.service.key.name == name).unwrap();
        service.endpoints.iter().map(Vec::len).sum::<usize>()
    };
    assert_eq!((endpoints(&control, "large"), endpoints(&control, "other")), (0, 3000));
    let said: Vec<String> = control.service_faults().collect();
    assert_eq!(
        said,
        [
            "Service x/large: spec.ports: 300000 endpoints over all ports, more than 262144: none is used"
        ]
    );
    control.apply(object(slice("large", 1000, 200)));
    control.commit();
    assert_eq!(endpoints(&control, "large"), 200_000);
    assert_eq!(control.service_faults().count(), 0);
}

#[test]
fn short_of_memory_new_policies_of_the_greediest_namespace_permit_nothing() {
    let open = |name: &str, ports: u32| {
        let ports: Vec<Value> = (1..=ports).map(|n| json!({"port": 2 * n})).collect();
        policy(name, json!({"podSelector": {}, "ingress": [{"ports": ports}]}))
    };
    let pods = ["x", "y"].map(|name| pod(&format!("{name}/a"), "10.0.0.1", json!({})));
    let mut pods = pods.to_vec();
    pods[1]["status"]["podIPs"][0]["ip"] = json!("10.0.0.2");
    let mut control = control(pods.into_iter().chain([open("x/first", 100), open("y/first", 10)]));
    let may = |control: &Control, to: &str, port: u16| {
        ingress(&control.view(), "192.0.2.1", to, TCP, port).0
    };
    control.set_memory_short(true);
    control.apply(object(open("x/second", 200)));
    control.apply(object(open("y/second", 20)));
    control.commit();
    assert!(may(&control, "x/a", 200), "what is in force stays");
    assert!(!may(&control, "x/a", 202), "x has the largest policies");
    assert!(may(&control, "y/a", 40));
    let said: Vec<String> = control.withheld_faults().collect();
    assert!(
        matches!(&said[..], [one] if one.starts_with("NetworkPolicy x/second: spec: permits nothing"))
    );
    // A smaller one is taken, and one that goes is forgotten.
    control.apply(object(open("x/first", 50)));
    control.commit();
    assert!(!may(&control, "x/a", 102) && may(&control, "x/a", 100));
    control.set_memory_short(false);
    control.commit();
    assert!(may(&control, "x/a", 202) && control.withheld_faults().count() == 0);
    control.set_memory_short(true);
    control.apply(object(open("x/second", 300)));
    control.delete(&reference_of("NetworkPolicy", "x", "second"));
    control.set_memory_short(false);
    control.commit();
    assert!(!may(&control, "x/a", 202) && control.withheld_faults().count() == 0);
}

#[test]
fn rules_for_sockets_are_bounded_by_pod() {
    let control = control([
        pod("x/p0", "10.0.0.1", json!({})),
        of_blocks(400, 400),
        pod("y/p", "10.0.0.2", json!({})),
        policy(
            "y/p",
            json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": [
            {"to": [{"ipBlock": {"cidr": "20.0.0.0/8"}}], "ports": [{"port": 80}]}]}),
        ),
    ]);
    let source = control.session_rule_source(None);
    let of = |name: &str| -> Vec<String> {
        let rules = source.of_pods().filter(|(pod, _)| pod.to_string() == name);
        rules.map(|(_, rule)| rule.to_string()).collect()
    };
    let closed = "any <-> any deny [default-deny: more than 32768 session rules for one pod]";
    assert_eq!(
        of("x/p0"),
        [format!("local x/p0 tcp {closed}"), format!("local x/p0 udp {closed}")]
    );
    assert_eq!(of("y/p").len(), 3, "TCP at the network, and a denial of each: {:?}", of("y/p"));
}
