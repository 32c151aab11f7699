//! Nodes and pods that claim what is another one's: what stands, and what `status` says.

use std::net::IpAddr;

use control::{Control, Kind, Object, ObjectRef, Scope};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::common::{TCP, control, ingress, key, object, pod, policy};

const OWN: &str = "192.0.2.1";
const THEIRS: &str = "192.0.2.2";

struct Node {
    name: &'static str,
    addresses: &'static [&'static str],
    network: &'static str,
    ready: bool,
    created: u32,
}

impl Node {
    fn of(name: &'static str, addresses: &'static [&'static str], network: &'static str) -> Self {
        Self { name, addresses, network, ready: true, created: 0 }
    }

    fn value(&self) -> Value {
        let address = |it| json!({"type": "InternalIP", "address": it});
        let addresses: Vec<Value> = self.addresses.iter().map(address).collect();
        let ready = if self.ready { "True" } else { "Unknown" };
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.name,
                "creationTimestamp": format!("2026-01-01T00:00:{:02}Z", self.created)},
            "spec": {"podCIDRs": [self.network]},
            "status": {"addresses": addresses, "conditions": [{"type": "Ready", "status": ready}]}})
    }
}

fn apply(control: &mut Control, node: &Node) {
    control.apply(object(node.value()));
    control.commit();
}

fn delete(control: &mut Control, kind: Kind, namespace: Option<&str>, name: &str) {
    let namespace = namespace.map(Into::into);
    control.delete(&ObjectRef { kind, namespace, name: name.into() });
    control.commit();
}

/// The node that has an address.
fn holders(control: &Control, address: &str) -> Vec<String> {
    let address: IpAddr = address.parse().unwrap();
    let view = control.view();
    let holders = view.nodes.iter().filter(|(_, node)| node.addresses.contains(&address));
    holders.map(|(name, _)| name.to_string()).collect()
}

fn faults(control: &Control) -> Vec<String> {
    control.claim_faults().map(|fault| fault.to_string()).collect()
}

#[test]
fn an_address_of_two_nodes_is_the_ready_ones_and_else_the_one_that_had_it() {
    let mut control = Control::new(Scope::Node("n1".into()));
    apply(&mut control, &Node::of("n1", &[OWN], "10.1.1.0/24"));
    let mut n2 = Node { created: 9, ..Node::of("n2", &[THEIRS], "10.1.2.0/24") };
    apply(&mut control, &n2);
    // It is older, and its name comes first.
    let mut evil = Node::of("a0", &["192.0.2.9", THEIRS, OWN], "10.1.9.0/24");
    apply(&mut control, &evil);
    assert_eq!(holders(&control, THEIRS), ["n2"]);
    assert_eq!(holders(&control, OWN), ["n1"]);
    assert_eq!(holders(&control, "192.0.2.9"), ["a0"]);
    let refused = [
        "Node a0: status.addresses: 192.0.2.2 is an address of Node n2; it is ignored",
        "Node a0: status.addresses: 192.0.2.1 is an address of Node n1; it is ignored",
    ];
    assert_eq!(faults(&control), refused);
    // A list that names it first changes nothing.
    let n1 = Node::of("n1", &[OWN], "10.1.1.0/24");
    let listed = [&evil, &n2, &n1].map(|node| object(node.value()));
    control.resync_kind(Kind::Node, listed.to_vec());
    control.commit();
    assert_eq!(faults(&control), refused);
    // A node that does not answer keeps it only where nobody else who answers has it.
    n2.ready = false;
    apply(&mut control, &n2);
    assert_eq!(holders(&control, THEIRS), ["a0"]);
    assert_eq!(
        faults(&control)[1],
        "Node n2: status.addresses: 192.0.2.2 is an address of Node a0; it is ignored"
    );
    evil.ready = false;
    apply(&mut control, &evil);
    assert_eq!(holders(&control, THEIRS), ["n2"]);
    // This node's are its own, whatever others say about themselves.
    evil.ready = true;
    apply(&mut control, &Node { ready: false, ..n1 });
    apply(&mut control, &evil);
    assert_eq!(holders(&control, OWN), ["n1"]);
    delete(&mut control, Kind::Node, None, "n2");
    assert_eq!(holders(&control, THEIRS), ["a0"]);
    delete(&mut control, Kind::Node, None, "a0");
    assert!(faults(&control).is_empty());
}

#[test]
fn of_nodes_that_are_listed_at_once_the_first_created_one_has_an_address() {
    let older = Node::of("z", &[THEIRS], "10.1.1.0/24");
    let newer = Node { created: 1, ..Node::of("a", &[THEIRS], "10.1.2.0/24") };
    for listed in [[&older, &newer], [&newer, &older]] {
        let mut control = Control::new(Scope::All);
        control.resync(listed.map(|node| object(node.value())).to_vec());
        control.commit();
        assert_eq!(holders(&control, THEIRS), ["z"]);
    }
}

#[test]
fn a_node_has_no_network_and_no_address_in_a_network_of_another_one() {
    let mut control = Control::new(Scope::Node("n1".into()));
    apply(&mut control, &Node::of("n1", &[OWN], "10.1.1.0/24"));
    apply(&mut control, &Node::of("n2", &[THEIRS, "10.1.2.1"], "10.1.2.0/24"));
    for (network, theirs) in [("10.1.0.0/16", 2), ("10.1.2.128/25", 1), ("10.1.2.0/24", 1)] {
        let evil = Node { ready: true, ..Node::of("a0", &["192.0.2.9", "10.1.2.7"], "") };
        let mut value = Node { network, ..evil }.value();
        value["spec"]["podCIDRs"] = json!([network, "10.1.9.0/24"]);
        control.apply(object(value));
        control.commit();
        let view = control.view();
        assert_eq!(view.nodes["a0"].pod_cidrs, ["10.1.9.0/24".parse().unwrap()], "{theirs}");
        assert_eq!(view.nodes["a0"].addresses, ["192.0.2.9".parse::<IpAddr>().unwrap()]);
        assert_eq!(view.nodes["n2"].addresses.len(), 2, "its own network holds its own address");
        let faults = faults(&control);
        assert!(faults[0].contains("10.1.2.7 is in the pod network of Node n2"), "{faults:?}");
        assert!(faults[1].contains(network) && faults[1].contains("of Node n"), "{faults:?}");
    }
}

fn claim(address: &str, role: &str, node: &str, more: Value) -> Value {
    let mut pod = pod("default/claim", address, json!({"role": role}));
    pod["spec"]["nodeName"] = node.into();
    for (field, value) in more.as_object().unwrap() {
        pod["metadata"][field] = value.clone();
    }
    pod
}

#[test]
fn no_pod_has_an_address_of_another_node_or_in_its_network() {
    let on = |name: &str, address: &str, role: &str, node: &str| {
        let mut pod = pod(name, address, json!({"role": role}));
        pod["spec"]["nodeName"] = node.into();
        pod["metadata"]["creationTimestamp"] = json!("2026-02-01T00:00:00Z");
        pod
    };
    let from_web = json!({"podSelector": {"matchLabels": {"role": "db"}},
        "ingress": [{"from": [{"podSelector": {"matchLabels": {"role": "web"}}}]}]});
    let nodes = [
        Node::of("n1", &[OWN], "10.1.1.0/24").value(),
        Node::of("n2", &[THEIRS], "10.1.2.0/24").value(),
    ];
    let mut control = control([
        on("default/web", "10.1.1.2", "web", "n1"),
        on("default/db", "10.1.1.3", "db", "n1"),
        on("default/evil", "10.1.2.2", "evil", "n2"),
        policy("default/db", from_web),
    ]);
    // The nodes come after pods that are there already.
    let early =
        claim("10.1.1.2", "evil", "n2", json!({"creationTimestamp": "2026-01-01T00:00:00Z"}));
    control.apply(object(early));
    control.commit();
    control.apply(object(nodes[0].clone()));
    control.apply(object(nodes[1].clone()));
    control.commit();
    let opens =
        |control: &Control, from: &str| ingress(&control.view(), from, "default/db", TCP, 80).0;
    assert!(opens(&control, "10.1.1.2") && !opens(&control, "10.1.2.2"));
    let fault = |what: &str| format!("Pod default/claim: status.podIPs: {what}; it is ignored");
    assert_eq!(faults(&control), [fault("10.1.1.2 is in the pod network of Node n1")]);
    for (address, problem) in [
        ("10.1.1.9", Some("10.1.1.9 is in the pod network of Node n1")),
        (OWN, Some("192.0.2.1 is an address of Node n1")),
        (THEIRS, Some("192.0.2.2 is an address of Node n2")),
        ("10.1.2.9", None),
        ("192.0.2.254", None),
    ] {
        control.apply(object(claim(address, "web", "n2", json!({}))));
        control.commit();
        assert_eq!(opens(&control, address), problem.is_none(), "{address}");
        assert_eq!(faults(&control), problem.map(fault).into_iter().collect::<Vec<_>>());
    }
    // A pod without a node has no kubelet that could lie.
    let mut nowhere = claim("10.1.1.9", "web", "", json!({}));
    nowhere["spec"].as_object_mut().unwrap().remove("nodeName");
    control.apply(object(nowhere));
    control.commit();
    assert!(opens(&control, "10.1.1.9"));
    // What stands does not depend on the order: the node that had the network goes, and comes
    // again.
    control.apply(object(claim("10.1.1.9", "web", "n2", json!({}))));
    control.commit();
    assert!(!opens(&control, "10.1.1.9"));
    delete(&mut control, Kind::Node, None, "n1");
    assert!(opens(&control, "10.1.1.9"));
    control.apply(object(nodes[0].clone()));
    control.commit();
    assert!(!opens(&control, "10.1.1.9"));
    let key = key("default/claim");
    control.bind_address(key, None, vec!["10.1.1.9".parse().unwrap()]);
    control.commit();
    assert!(opens(&control, "10.1.1.9"), "the runtime's word");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// One node at most has an address or a network, and a claim that nobody else makes stands.
    #[test]
    fn whatever_nodes_claim_is_one_nodes(
        steps in prop::collection::vec((0..4usize, 0..5u8, 0..5u8, any::<bool>(), any::<bool>()), 1..24),
    ) {
        let mut control = Control::new(Scope::All);
        let mut all = [(); 4].map(|()| None);
        for (node, first, second, ready, exists) in steps {
            let name = ["a", "b", "c", "d"][node];
            if !exists {
                all[node] = None;
                delete(&mut control, Kind::Node, None, name);
                continue;
            }
            let networks = ["10.0.0.0/8", "10.1.0.0/16", "10.1.1.0/24", "10.2.0.0/16", "10.3.0.0/16"];
            let mut value = Node { ready, ..Node::of(name, &[], networks[usize::from(first)]) }.value();
            let address = |n| json!({"type": "InternalIP", "address": format!("192.0.2.{n}")});
            value["status"]["addresses"] = json!([address(first), address(second)]);
            all[node] = Some([first, second]);
            control.apply(object(value));
            control.commit();
            for n in 0..5u8 {
                let claimants = all.iter().flatten().filter(|it| it.contains(&n)).count();
                let found = holders(&control, &format!("192.0.2.{n}")).len();
                prop_assert_eq!(found, claimants.min(1));
            }
            let view = control.view();
            let nets: Vec<_> = view.nodes.values().flat_map(|node| &node.pod_cidrs).collect();
            for (n, net) in nets.iter().enumerate() {
                prop_assert!(nets.iter().skip(n + 1).all(|it| !it.contains(*net) && !net.contains(*it)));
            }
            // From the objects alone each claim is somebody's as well.
            let objects: Vec<Object> = control.objects().collect();
            prop_assert_eq!(objects.len(), all.iter().flatten().count());
        }
    }
}
