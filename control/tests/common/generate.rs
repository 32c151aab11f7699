//! Random clusters and edits, from a universe small enough that things meet.

use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use serde_json::{Value, json};

pub(crate) const NAMESPACES: [&str; 3] = ["x", "y", "z"];
pub(crate) const PODS: [&str; 3] = ["a", "b", "c"];
pub(crate) const POLICIES: [&str; 3] = ["p", "q", "r"];

pub(crate) const CLUSTER_POLICIES: [&str; 3] = ["c", "d", "e"];
pub(crate) const NODES: [&str; 2] = ["n1", "n2"];
pub(crate) const FIREWALLS: [&str; 2] = ["f", "g"];
/// Addresses that are no pod's; some are a node's or in a network that a policy may name.
pub(crate) const OTHERS: [&str; 7] = [
    "192.0.2.1",
    "192.0.2.2",
    "192.0.2.11",
    "2001:db8::1",
    "198.51.100.7",
    "203.0.113.9",
    "10.0.2.200",
];
const SLICES: [(&str, &str); 3] = [("default", "k-1"), ("default", "k-2"), ("x", "k-1")];

/// One thing that happens to the cluster.
#[derive(Clone, Debug)]
pub(crate) enum Edit {
    /// An object is added or replaced.
    Apply(Value),
    /// The object of this kind, namespace and name goes.
    Delete(&'static str, &'static str, &'static str),
}

pub(crate) fn edits(length: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Edit>> {
    vec(edit(), length)
}

fn edit() -> impl Strategy<Value = Edit> {
    prop_oneof![
        6 => pod().prop_map(Edit::Apply),
        2 => namespace().prop_map(Edit::Apply),
        6 => policy().prop_map(Edit::Apply),
        3 => cluster_policy().prop_map(Edit::Apply),
        2 => admin_policy().prop_map(Edit::Apply),
        2 => firewall().prop_map(Edit::Apply),
        1 => node().prop_map(Edit::Apply),
        1 => api_server().prop_map(Edit::Apply),
        1 => select(&FIREWALLS).prop_map(|n| Edit::Delete("ClusterEgressFirewall", "", n)),
        1 => select(&SLICES).prop_map(|(s, n)| Edit::Delete("EndpointSlice", s, n)),
        1 => select(&NODES).prop_map(|n| Edit::Delete("Node", "", n)),
        1 => select(&CLUSTER_POLICIES).prop_map(|n| Edit::Delete("ClusterNetworkPolicy", "", n)),
        1 => select(&CLUSTER_POLICIES).prop_map(|n| Edit::Delete("AdminNetworkPolicy", "", n)),
        1 => Just(Edit::Delete("BaselineAdminNetworkPolicy", "", "default")),
        1 => (select(&NAMESPACES), select(&PODS)).prop_map(|(s, n)| Edit::Delete("Pod", s, n)),
        1 => select(&NAMESPACES).prop_map(|n| Edit::Delete("Namespace", "", n)),
        1 => (select(&NAMESPACES), select(&POLICIES))
            .prop_map(|(s, n)| Edit::Delete("NetworkPolicy", s, n)),
    ]
}

fn labels() -> impl Strategy<Value = Value> {
    btree_map(select(&["app", "tier"]), select(&["1", "2"]), 0..3).prop_map(|map| json!(map))
}

fn namespace() -> impl Strategy<Value = Value> {
    (select(&NAMESPACES), labels()).prop_map(|(name, labels)| {
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    })
}

/// The addresses a pod may have: two of each family for each of them, none shared.
pub(crate) fn pod_addresses(namespace: &str, name: &str, second: bool) -> [String; 2] {
    let net = NAMESPACES.iter().position(|it| *it == namespace).unwrap();
    let host = 2 * PODS.iter().position(|it| *it == name).unwrap() + usize::from(second) + 1;
    [format!("10.0.{net}.{host}"), format!("fd00:{net}::{host}")]
}

fn pod() -> impl Strategy<Value = Value> {
    let node = select(&["n1", "n2"]);
    let ports =
        vec((select(&["http", "dns"]), select(&["TCP", "UDP"]), select(&[53, 80, 8080])), 0..3);
    let state = prop_oneof![8 => Just("Running"), 1 => Just("Succeeded"), 1 => Just("Failed")];
    let host_network = prop::bool::weighted(0.1);
    let which = (select(&NAMESPACES), select(&PODS));
    (which, node, labels(), ports, any::<bool>(), 0..4usize, state, host_network).prop_map(
        |((namespace, name), node, labels, ports, second, families, phase, host_network)| {
            let ports: Vec<Value> = ports
                .into_iter()
                .map(|(name, protocol, number)| {
                    json!({"name": name, "protocol": protocol, "containerPort": number})
                })
                .collect();
            let addresses = match host_network {
                true => ["192.0.2.1".to_owned(), "2001:db8::1".to_owned()],
                false => pod_addresses(namespace, name, second),
            };
            // None, the first, the second, both.
            let ips: Vec<Value> = (addresses.iter().enumerate())
                .filter(|(index, _)| families >> index & 1 == 1)
                .map(|(_, ip)| json!({"ip": ip}))
                .collect();
            json!({"apiVersion": "v1", "kind": "Pod",
                "metadata": {"namespace": namespace, "name": name, "labels": labels},
                "spec": {"nodeName": node, "hostNetwork": host_network,
                         "containers": [{"name": "c", "ports": ports}]},
                "status": {"phase": phase, "podIPs": ips}})
        },
    )
}

fn selector() -> impl Strategy<Value = Value> {
    let expression = (select(&["app", "tier"]), 0..4usize, subsequence(&["1", "2"], 1..3))
        .prop_map(|(key, operator, values)| {
            let operator = ["In", "NotIn", "Exists", "DoesNotExist"][operator];
            match operator {
                "In" | "NotIn" => json!({"key": key, "operator": operator, "values": values}),
                _ => json!({"key": key, "operator": operator}),
            }
        });
    let exact = btree_map(select(&["app", "tier"]), select(&["1", "2"]), 0..2);
    (option::of(exact), vec(expression, 0..2)).prop_map(|(exact, expressions)| {
        let mut selector = json!({});
        if let Some(exact) = exact {
            selector["matchLabels"] = json!(exact);
        }
        if !expressions.is_empty() {
            selector["matchExpressions"] = json!(expressions);
        }
        selector
    })
}

fn block() -> impl Strategy<Value = Value> {
    let choices = [
        ("0.0.0.0/0", vec!["10.0.0.0/16", "10.0.1.0/24", "198.51.100.0/24"]),
        ("10.0.0.0/16", vec!["10.0.0.0/24", "10.0.0.1/32", "10.0.1.0/30"]),
        ("::/0", vec!["fd00::/16", "fd00:1::/32"]),
        ("fd00::/16", vec!["fd00:0::1/128"]),
        ("198.51.100.7/32", vec![]),
    ];
    select(choices.to_vec()).prop_flat_map(|(cidr, except)| {
        let most = except.len();
        subsequence(except, 0..=most).prop_map(move |except| match except.is_empty() {
            true => json!({"ipBlock": {"cidr": cidr}}),
            false => json!({"ipBlock": {"cidr": cidr, "except": except}}),
        })
    })
}

fn peer() -> impl Strategy<Value = Value> {
    prop_oneof![
        selector().prop_map(|pods| json!({"podSelector": pods})),
        selector().prop_map(|namespaces| json!({"namespaceSelector": namespaces})),
        (selector(), selector()).prop_map(|(namespaces, pods)| {
            json!({"namespaceSelector": namespaces, "podSelector": pods})
        }),
        block(),
    ]
}

fn port() -> impl Strategy<Value = Value> {
    let protocol = option::of(select(&["TCP", "UDP", "SCTP"]));
    let port = prop_oneof![
        Just(json!({})),
        select(&[53, 80, 8080]).prop_map(|port| json!({"port": port})),
        Just(json!({"port": 50, "endPort": 80})),
        select(&["http", "dns", "nowhere"]).prop_map(|name| json!({"port": name})),
    ];
    (protocol, port).prop_map(|(protocol, mut port)| {
        if let Some(protocol) = protocol {
            port["protocol"] = json!(protocol);
        }
        port
    })
}

fn rules(from_or_to: &'static str) -> impl Strategy<Value = Value> {
    let rule = (option::of(vec(peer(), 0..3)), option::of(vec(port(), 0..3))).prop_map(
        move |(peers, ports)| {
            let mut rule = json!({});
            if let Some(peers) = peers {
                rule[from_or_to] = json!(peers);
            }
            if let Some(ports) = ports {
                rule["ports"] = json!(ports);
            }
            rule
        },
    );
    vec(rule, 0..3).prop_map(|rules| json!(rules))
}

fn policy() -> impl Strategy<Value = Value> {
    let types = option::of(subsequence(&["Ingress", "Egress"], 0..3));
    let which = (select(&NAMESPACES), select(&POLICIES));
    let rules = (option::of(rules("from")), option::of(rules("to")));
    (which, selector(), types, rules).prop_map(
        |((namespace, name), pods, types, (ingress, egress))| {
            let mut spec = json!({"podSelector": pods});
            for (field, value) in [
                ("policyTypes", types.map(|it| json!(it))),
                ("ingress", ingress),
                ("egress", egress),
            ] {
                if let Some(value) = value {
                    spec[field] = value;
                }
            }
            json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
                "metadata": {"namespace": namespace, "name": name}, "spec": spec})
        },
    )
}

fn node() -> impl Strategy<Value = Value> {
    (select(&NODES), labels(), any::<bool>()).prop_map(|(name, labels, second)| {
        let host = if name == "n1" { 1 } else { 2 } + if second { 10 } else { 0 };
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels},
            "status": {"addresses": [
                {"type": "InternalIP", "address": format!("192.0.2.{host}")},
                {"type": "InternalIP", "address": format!("2001:db8::{host}")},
                {"type": "Hostname", "address": name}]}})
    })
}

/// Actions of cluster network policies.
const ACTIONS: &[&str] = &["Accept", "Deny", "Pass"];

fn cluster_policy() -> impl Strategy<Value = Value> {
    let subject = prop_oneof![
        selector().prop_map(|namespaces| json!({"namespaces": namespaces})),
        pods_of_namespaces(),
    ];
    let rules = (vec(cluster_rule(true, ACTIONS), 0..3), vec(cluster_rule(false, ACTIONS), 0..3));
    let head = (select(&CLUSTER_POLICIES), select(&["Admin", "Baseline"]), 0..3u16);
    (head, subject, rules).prop_map(|((name, tier, priority), subject, (ingress, egress))| {
        json!({"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
            "metadata": {"name": name},
            "spec": {"tier": tier, "priority": priority, "subject": subject,
                     "ingress": ingress, "egress": egress}})
    })
}

/// An AdminNetworkPolicy or BaselineAdminNetworkPolicy, which spell actions and ports in their own way.
fn admin_policy() -> impl Strategy<Value = Value> {
    cluster_policy().prop_map(|mut policy| {
        let is_admin = policy["spec"]["tier"] == "Admin";
        policy["apiVersion"] = json!("policy.networking.k8s.io/v1alpha1");
        let spec = policy["spec"].as_object_mut().unwrap();
        spec.remove("tier");
        let rules = spec.iter_mut().filter(|(field, _)| field.ends_with("gress"));
        for rule in rules.flat_map(|(_, rules)| rules.as_array_mut().unwrap()) {
            let rule = rule.as_object_mut().unwrap();
            let action = match rule["action"].as_str().unwrap() {
                "Deny" => "Deny",
                "Pass" if is_admin => "Pass",
                _ => "Allow",
            };
            rule.insert("action".into(), json!(action));
            if let Some(protocols) = rule.remove("protocols") {
                let ports = protocols.as_array().unwrap().iter().map(admin_port);
                rule.insert("ports".into(), ports.collect());
            }
        }
        if is_admin {
            policy["kind"] = json!("AdminNetworkPolicy");
        } else {
            spec.remove("priority");
            policy["kind"] = json!("BaselineAdminNetworkPolicy");
            policy["metadata"]["name"] = json!("default");
        }
        policy
    })
}

fn admin_port(protocol: &Value) -> Value {
    let (name, value) = protocol.as_object().unwrap().iter().next().unwrap();
    if name == "destinationNamedPort" {
        return json!({"namedPort": value});
    }
    let port = &value["destinationPort"];
    // Where it is absent, it is TCP.
    let protocol = Some(name.to_uppercase()).filter(|it| it != "TCP");
    let (field, mut port) = match (port.get("number"), port.get("range")) {
        (Some(number), _) => ("portNumber", json!({"port": number})),
        (_, Some(range)) => ("portRange", range.clone()),
        _ => ("portRange", json!({"start": 1, "end": 65535})),
    };
    if let Some(protocol) = protocol {
        port["protocol"] = json!(protocol);
    }
    json!({field: port})
}

fn pods_of_namespaces() -> impl Strategy<Value = Value> {
    (selector(), selector()).prop_map(|(namespaces, pods)| {
        json!({"pods": {"namespaceSelector": namespaces, "podSelector": pods}})
    })
}

/// The API server's service or some of its endpoints, or a slice that is none of its.
fn api_server() -> impl Strategy<Value = Value> {
    let addresses = || subsequence(&["192.0.2.1", "198.51.100.7", "10.0.2.200", "10.0.0.1"], 0..3);
    let service = addresses().prop_map(|ips| {
        json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"namespace": "default", "name": "kubernetes"},
            "spec": {"clusterIPs": ips, "ports": [{"port": 443}]}})
    });
    let of = select(&["kubernetes", "kubernetes", "other"]);
    let slice = (select(&SLICES), of, addresses(), any::<bool>()).prop_map(
        |((namespace, name), of, ips, ready)| {
            json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "addressType": "IPv4",
                "metadata": {"namespace": namespace, "name": name,
                    "labels": {"kubernetes.io/service-name": of}},
                "endpoints": [{"addresses": ips, "conditions": {"ready": ready}}]})
        },
    );
    prop_oneof![service, slice]
}

fn firewall() -> impl Strategy<Value = Value> {
    let subject = prop_oneof![
        Just(json!(null)),
        selector().prop_map(|namespaces| json!({"namespaces": namespaces})),
        pods_of_namespaces(),
    ];
    let api_server = (select(&["Allow", "Deny"]), any::<bool>()).prop_map(|(action, limited)| {
        let mut rule = json!({"action": action, "to": [{"apiServer": {}}]});
        if limited {
            rule["protocols"] = json!([{"tcp": {"destinationPort": {"number": 80}}}]);
        }
        rule
    });
    let actions = &["Allow", "Allow", "Deny"];
    let rule = prop_oneof![3 => cluster_rule(false, actions), 1 => api_server];
    let nodes = prop_oneof![2 => Just(None), 1 => selector().prop_map(Some)];
    (select(&FIREWALLS), subject, nodes, vec(rule, 1..4)).prop_map(
        |(name, mut subject, nodes, egress)| {
            if let Some(nodes) = nodes {
                if subject.is_null() {
                    subject = json!({});
                }
                subject["nodes"] = nodes;
            }
            json!({"apiVersion": "podgate.io/v1alpha1", "kind": "ClusterEgressFirewall",
            "metadata": {"name": name}, "spec": {"subject": subject, "egress": egress}})
        },
    )
}

fn cluster_rule(is_ingress: bool, actions: &'static [&'static str]) -> BoxedStrategy<Value> {
    let action = select(actions);
    let pods = prop_oneof![
        selector().prop_map(|namespaces| json!({"namespaces": namespaces})),
        pods_of_namespaces(),
    ];
    let networks = ["10.0.0.0/16", "10.0.1.0/30", "::/0", "198.51.100.0/24", "192.0.2.0/24"];
    let elsewhere = prop_oneof![
        subsequence(networks.to_vec(), 1..3).prop_map(|networks| json!({"networks": networks})),
        selector().prop_map(|nodes| json!({"nodes": nodes})),
    ];
    let number = select(&[53, 80, 8080]).prop_map(|it| json!({"destinationPort": {"number": it}}));
    let port = prop_oneof![
        Just(json!({})),
        number,
        Just(json!({"destinationPort": {"range": {"start": 50, "end": 80}}})),
    ];
    let protocol = (select(&["tcp", "udp", "sctp"]), port).prop_map(|(it, port)| json!({it: port}));
    let named =
        select(&["http", "dns", "nowhere"]).prop_map(|name| json!({"destinationNamedPort": name}));
    let from_or_to = if is_ingress { "from" } else { "to" };
    let make = move |action: &str, peers: Vec<Value>, protocols: Option<Vec<Value>>| {
        let mut rule = json!({"action": action, from_or_to: peers});
        if let Some(protocols) = protocols {
            rule["protocols"] = json!(protocols);
        }
        rule
    };
    let pods = pods.boxed();
    let among_pods = (
        action.clone(),
        vec(pods.clone(), 1..3),
        option::of(vec(prop_oneof![protocol.clone(), named], 1..3)),
    )
        .prop_map(move |(action, peers, protocols)| make(action, peers, protocols));
    if is_ingress {
        return among_pods.boxed();
    }
    let anywhere =
        (action, vec(prop_oneof![pods, elsewhere], 1..3), option::of(vec(protocol, 1..3)))
            .prop_map(move |(action, peers, protocols)| make(action, peers, protocols));
    prop_oneof![among_pods, anywhere].boxed()
}
