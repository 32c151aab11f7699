//! Domain names as peers: their sets follow the addresses that DNS gives to each pod.

use std::net::IpAddr;
use std::sync::Arc;

use crate::common::{TCP, control, egress, key, object, pod};
use acl::Action;
use control::{Control, PodAcl, View};
use domain_names::Change;
use proptest::prelude::*;
use serde_json::{Value, json};
use session_rules::{Connection, Scope, Table, Transport};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn change(pod: &str, name: &str, open: &[&str], lingering: &[&str]) -> Change<control::PodKey> {
    let addresses = |list: &[&str]| list.iter().map(|it| ip(it)).collect();
    Change {
        pod: key(pod),
        name: name.into(),
        open: addresses(open),
        lingering: addresses(lingering),
    }
}

fn policy(egress: Value) -> Value {
    json!({"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
        "metadata": {"name": "names"}, "spec": {"tier": "Admin", "priority": 1,
            "subject": {"namespaces": {}}, "egress": egress}})
}

/// Names are accepted on port 443, and everything else outside is denied.
fn names(list: &[&str]) -> Value {
    policy(json!([
        {"action": "Accept", "to": [{"domainNames": list}],
         "protocols": [{"tcp": {"destinationPort": {"number": 443}}}]},
        {"action": "Deny", "to": [{"networks": ["0.0.0.0/0", "::/0"]}]},
    ]))
}

fn two_pods(list: &[&str]) -> Control {
    control([pod("x/a", "10.0.0.1", json!({})), pod("x/b", "10.0.0.2", json!({})), names(list)])
}

fn opens(view: &View, pod: &str, to: &str) -> bool {
    egress(view, pod, to, TCP, 443).0
}

/// The same for a connection that is open.
fn stays(view: &View, pod: &str, to: &str) -> bool {
    let live = View { addresses: Arc::clone(&view.live_addresses), ..view.clone() };
    opens(&live, pod, to)
}

#[test]
fn a_name_opens_what_dns_said_to_this_pod() {
    let mut control = two_pods(&["www.example.org", "*.example.net"]);
    let names: Vec<String> =
        control.view().pods[&key("x/a")].names.iter().map(ToString::to_string).collect();
    assert_eq!(names, ["*.example.net", "www.example.org"]);
    assert!(!opens(&control.view(), "x/a", "192.0.2.1"));
    let compiled = control.figures().compiled;
    control.set_names(&[
        change("x/a", "www.example.org", &["192.0.2.1", "2001:db8::1"], &[]),
        change("x/a", "a.b.example.net", &["192.0.2.2"], &[]),
        change("x/a", "example.net", &["192.0.2.3"], &[]),
    ]);
    let view = control.commit().unwrap();
    for (to, expected) in
        [("192.0.2.1", true), ("2001:db8::1", true), ("192.0.2.2", true), ("192.0.2.3", false)]
    {
        assert_eq!(opens(&view, "x/a", to), expected, "{to}");
        assert!(!opens(&view, "x/b", to), "another pod");
    }
    assert!(!egress(&view, "x/a", "192.0.2.1", TCP, 80).0, "another port");
    assert!(control.figures().compiled > compiled);
    // Another address of the same names is no new identity: nothing is compiled.
    let compiled = control.figures().compiled;
    control.set_names(&[change("x/a", "www.example.org", &["192.0.2.1", "192.0.2.9"], &[])]);
    let view = control.commit().unwrap();
    assert!(opens(&view, "x/a", "192.0.2.9") && !opens(&view, "x/a", "2001:db8::1"));
    assert_eq!(control.figures().compiled, compiled);
}

#[test]
fn an_expired_address_keeps_connections_and_opens_none() {
    let mut control = two_pods(&["www.example.org"]);
    control.set_names(&[change("x/a", "www.example.org", &["192.0.2.1"], &[])]);
    control.commit();
    control.set_names(&[change("x/a", "www.example.org", &["192.0.2.2"], &["192.0.2.1"])]);
    let view = control.commit().unwrap();
    assert!(!opens(&view, "x/a", "192.0.2.1") && opens(&view, "x/a", "192.0.2.2"));
    assert!(stays(&view, "x/a", "192.0.2.1") && stays(&view, "x/a", "192.0.2.2"));
    assert!(!stays(&view, "x/b", "192.0.2.1"));
    // A denial that is written later holds for it all the same.
    control.apply(object(policy(json!([
        {"action": "Deny", "to": [{"networks": ["192.0.2.0/24"]}]},
        {"action": "Accept", "to": [{"domainNames": ["www.example.org"]}]},
    ]))));
    let view = control.commit().unwrap();
    assert!(!stays(&view, "x/a", "192.0.2.1"));
    control.apply(object(names(&["www.example.org"])));
    control.commit();
    control.set_names(&[change("x/a", "www.example.org", &[], &[])]);
    let view = control.commit().unwrap();
    assert!(!stays(&view, "x/a", "192.0.2.1") && !opens(&view, "x/a", "192.0.2.2"));
}

#[test]
fn a_policy_that_comes_later_knows_the_names() {
    let mut control = two_pods(&["www.example.org"]);
    control.set_names(&[change("x/a", "www.example.org", &["192.0.2.1"], &[])]);
    control.commit();
    control.apply(object(names(&["*.example.org"])));
    assert!(opens(&control.commit().unwrap(), "x/a", "192.0.2.1"));
    control.apply(object(names(&["*.example.com"])));
    let view = control.commit().unwrap();
    assert!(!opens(&view, "x/a", "192.0.2.1") && !stays(&view, "x/a", "192.0.2.1"));
}

#[test]
fn the_clusters_own_addresses_are_nobodys_name() {
    let mut control = control([
        pod("x/a", "10.0.0.1", json!({})),
        names(&["*.example.org"]),
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"},
            "spec": {"podCIDRs": ["10.0.0.0/24"]},
            "status": {"addresses": [{"type": "InternalIP", "address": "198.51.100.1"}]}}),
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s", "namespace": "x"},
            "spec": {"clusterIP": "10.96.0.1", "externalIPs": ["198.51.100.9"],
                "ports": [{"port": 443}]}}),
        pod("x/far", "203.0.113.5", json!({})),
    ]);
    let own = [
        "10.0.0.1",
        "10.0.0.200",
        "198.51.100.1",
        "10.96.0.1",
        "198.51.100.9",
        "203.0.113.5",
        "127.0.0.1",
        "169.254.169.254",
        "224.0.0.1",
        "0.0.0.0",
        "255.255.255.255",
        "::1",
        "fe80::1",
        "ff02::1",
        "::ffff:10.96.0.1",
        "::10.96.0.1",
    ];
    let ignored = control.set_names(&[change("x/a", "evil.example.org", &own, &[])]);
    assert_eq!(ignored, own.map(ip));
    control.commit();
    for address in own {
        assert!(!opens(&control.view(), "x/a", address), "{address}");
    }
    // One that becomes a node's, or a pod's, counts no longer.
    control.set_names(&[change("x/a", "www.example.org", &["192.0.2.1", "192.0.2.2"], &[])]);
    assert!(opens(&control.commit().unwrap(), "x/a", "192.0.2.1"));
    control.apply(object(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n2"},
        "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}})));
    control.apply(object(pod("x/new", "192.0.2.2", json!({}))));
    let view = control.commit().unwrap();
    assert!(!opens(&view, "x/a", "192.0.2.1") && !opens(&view, "x/a", "192.0.2.2"));
    // This node's that are in no object, such as those of a docker0.
    control.set_names(&[change("x/a", "www.example.org", &["172.17.0.1"], &[])]);
    assert!(opens(&control.commit().unwrap(), "x/a", "172.17.0.1"));
    control.set_node_addresses(vec![ip("172.17.0.1")]);
    assert!(!opens(&control.commit().unwrap(), "x/a", "172.17.0.1"));
    // The same for a load balancer's, and the API server's endpoints.
    control.set_names(&[change("x/a", "www.example.org", &["192.0.2.3", "192.0.2.4"], &[])]);
    let view = control.commit().unwrap();
    assert!(opens(&view, "x/a", "192.0.2.3") && opens(&view, "x/a", "192.0.2.4"));
    control.apply(object(json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "balanced", "namespace": "x"},
        "spec": {"type": "LoadBalancer", "clusterIP": "10.96.0.2", "ports": [{"port": 443}]},
        "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.3"}]}}})));
    assert!(!opens(&control.commit().unwrap(), "x/a", "192.0.2.3"));
    control.apply(object(json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": "kubernetes", "namespace": "default",
            "labels": {"kubernetes.io/service-name": "kubernetes"}},
        "addressType": "IPv4", "endpoints": [{"addresses": ["192.0.2.4"]}]})));
    assert!(!opens(&control.commit().unwrap(), "x/a", "192.0.2.4"));
}

/// The rules by which the API server network proxy decides.
#[test]
fn session_rules_allow_what_names_stand_for_now() {
    let mut control = two_pods(&["www.example.org"]);
    let allows = |control: &Control, pod: &str, to: &str, port| {
        let connection = Connection {
            scope: Scope::Local(pod.into()),
            transport: Transport::Tcp,
            local: (ip("10.0.0.1"), 40_000),
            remote: (ip(to), port),
        };
        let table = Table::compile(control.session_rules());
        let rule = table.lookup(&connection).expect("a rule about every address");
        rule.action == session_rules::Action::Allow
    };
    assert!(!allows(&control, "x/a", "192.0.2.1", 443));
    let own = "10.0.0.2";
    control.set_names(&[change("x/a", "www.example.org", &["192.0.2.1", own], &["192.0.2.2"])]);
    control.commit();
    assert!(allows(&control, "x/a", "192.0.2.1", 443));
    assert!(!allows(&control, "x/a", "192.0.2.1", 80), "another port");
    assert!(!allows(&control, "x/b", "192.0.2.1", 443), "another pod");
    assert!(!allows(&control, "x/a", "192.0.2.2", 443), "an expired address");
    assert!(!allows(&control, "x/a", own, 443), "an address of the cluster itself");
    control.set_names(&[change("x/a", "www.example.org", &[], &["192.0.2.1"])]);
    control.commit();
    assert!(!allows(&control, "x/a", "192.0.2.1", 443), "expired");
}

#[test]
fn a_firewall_allows_names_within_what_others_allow() {
    let firewall = json!({"apiVersion": "podgate.io/v1alpha1", "kind": "ClusterEgressFirewall",
        "metadata": {"name": "f"}, "spec": {"egress": [
            {"action": "Allow", "to": [{"domainNames": ["www.example.org"]}]},
            {"action": "Deny", "to": [{"networks": ["0.0.0.0/0"]}]}]}});
    let inner = policy(json!([
        {"action": "Accept", "to": [{"networks": ["192.0.2.0/25"]}, {"domainNames": ["*.example.org"]}],
         "protocols": [{"tcp": {"destinationPort": {"number": 443}}}]},
        {"action": "Deny", "to": [{"networks": ["0.0.0.0/0"]}]},
    ]));
    let mut control = control([pod("x/a", "10.0.0.1", json!({})), firewall, inner]);
    control.set_names(&[
        change("x/a", "www.example.org", &["192.0.2.1", "192.0.2.200"], &[]),
        change("x/a", "other.example.org", &["192.0.2.2"], &[]),
    ]);
    let view = control.commit().unwrap();
    assert!(opens(&view, "x/a", "192.0.2.1") && opens(&view, "x/a", "192.0.2.200"));
    assert!(!opens(&view, "x/a", "192.0.2.2"), "the firewall denies it");
    assert!(!egress(&view, "x/a", "192.0.2.200", TCP, 80).0);
}

#[test]
fn rules_in_words_name_them() {
    let control = two_pods(&["*.example.org"]);
    let walkthrough = control.walkthrough(&key("x/a")).unwrap();
    assert_eq!(walkthrough.egress[0].peer, "*.example.org (as DNS answers the pod)");
    let view = control.view();
    let PodAcl::Table(table) = &view.pods[&key("x/a")].from_pod else { panic!("no table") };
    assert_eq!(table.rules()[0].action, Action::Permit);
}

proptest! {
    /// Whatever happened before, what is open is what the names have now.
    #[test]
    fn history_does_not_matter(
        steps in prop::collection::vec((0..2_u8, 0..3_u8, prop::collection::btree_set(0..6_u8, 0..4), any::<bool>(), 0..4_u8), 1..25),
    ) {
        let patterns = [&["*.example.org"][..], &["n1.example.org"], &["n0.example.org", "n2.example.org"], &["other.org"]];
        let mut control = two_pods(patterns[0]);
        let mut known: std::collections::BTreeMap<(u8, u8), (Vec<String>, Vec<String>)> = Default::default();
        let mut list = patterns[0];
        for (pod, name, addresses, lingers, pattern) in steps {
            let addresses: Vec<String> = addresses.iter().map(|n| format!("192.0.2.{n}")).collect();
            let (open, lingering) = addresses.split_at(if lingers { addresses.len() / 2 } else { addresses.len() });
            known.insert((pod, name), (open.to_vec(), lingering.to_vec()));
            let all = |list: &[String]| list.iter().map(|it| ip(it)).collect();
            control.set_names(&[Change {
                pod: key(["x/a", "x/b"][usize::from(pod)]),
                name: format!("n{name}.example.org").into(),
                open: all(open),
                lingering: all(lingering),
            }]);
            if list != patterns[usize::from(pattern)] {
                list = patterns[usize::from(pattern)];
                control.apply(object(names(list)));
            }
            control.commit();
            let view = control.view();
            for (at, pod) in ["x/a", "x/b"].iter().enumerate() {
                for n in 0..6 {
                    let address = format!("192.0.2.{n}");
                    let holds = |live: bool| known.iter().any(|((of, name), (open, lingering))| {
                        let name = format!("n{name}.example.org");
                        let meant = list.iter().any(|it| it.parse::<domain_names::DomainPattern>().unwrap().matches(&name));
                        usize::from(*of) == at && meant
                            && (open.contains(&address) || live && lingering.contains(&address))
                    });
                    prop_assert_eq!(opens(&view, pod, &address), holds(false), "{} {}", pod, &address);
                    prop_assert_eq!(stays(&view, pod, &address), holds(true), "{} {}", pod, &address);
                }
            }
        }
    }
}
