//! Mistakes that earlier systems made, one test each, named for what it prevents.

use std::net::IpAddr;
use std::sync::Arc;

use crate::common::{
    ICMP, SCTP, TCP, UDP, acl, control, egress, faulty, ingress, key, object, pod, policy,
    reference_of, with_ports,
};
use control::model::Protocol;
use control::{Control, Kind, ObjectRef, PodAcl, Scope};
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
fn a_label_change_brings_new_policies_and_takes_old_ones() {
    let closed = |label: &str| json!({"podSelector": {"matchLabels": {"app": label}}});
    let mut control = control([
        pod("x/a", "10.0.0.1", json!({"app": "1"})),
        policy("x/p1", closed("1")),
        policy("x/p2", closed("2")),
    ]);
    let by = |control: &Control| ingress(&control.view(), "192.0.2.9", "x/a", TCP, 80).1;
    assert_eq!(&*by(&control), "default-deny of NetworkPolicy x/p1");
    control.apply(object(pod("x/a", "10.0.0.1", json!({"app": "2"}))));
    control.commit();
    assert_eq!(&*by(&control), "default-deny of NetworkPolicy x/p2");
    control.apply(object(pod("x/a", "10.0.0.1", json!({}))));
    control.commit();
    assert_eq!(&*by(&control), "default-allow");
}

#[test]
fn a_recreated_pod_keeps_nothing_of_its_predecessor() {
    let mut control = Control::new(Scope::Node("n1".into()));
    let spec = json!({"podSelector": {"matchLabels": {"app": "db"}},
        "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "web"}}}]}]});
    control.apply(object(policy("x/p", spec)));
    control.apply(object(pod("x/db", "10.0.0.1", json!({"app": "db"}))));
    control.bind_address(key("x/web"), None, vec!["10.0.0.2".parse().unwrap()]);
    control.apply(object(pod("x/web", "10.0.0.2", json!({"app": "web"}))));
    control.commit();
    assert!(ingress(&control.view(), "10.0.0.2", "x/db", TCP, 80).0);
    // Deleted and made again: other labels, another address.
    control.unbind(&key("x/web"));
    control.delete(&ObjectRef { kind: Kind::Pod, namespace: Some("x".into()), name: "web".into() });
    control.commit();
    assert!(!ingress(&control.view(), "10.0.0.2", "x/db", TCP, 80).0);
    control.bind_address(key("x/web"), None, vec!["10.0.0.3".parse().unwrap()]);
    control.apply(object(pod("x/web", "10.0.0.9", json!({}))));
    let view = control.commit().unwrap();
    assert_eq!(view.pods[&key("x/web")].addresses, ["10.0.0.3".parse::<IpAddr>().unwrap()]);
    for address in ["10.0.0.2", "10.0.0.3", "10.0.0.9"] {
        assert!(!ingress(&view, address, "x/db", TCP, 80).0, "{address}");
    }
}

/// The switch ends connections by these reports.
#[test]
fn addresses_that_change_their_pod_are_told_once() {
    let made = |name: &str, address: &str, uid: &str| {
        let mut pod = pod(name, address, json!({}));
        pod["metadata"]["uid"] = json!(uid);
        object(pod)
    };
    let reference =
        |name: &str| ObjectRef { kind: Kind::Pod, namespace: Some("x".into()), name: name.into() };
    let mut control = Control::new(Scope::Node("n1".into()));
    let departed = |control: &mut Control| {
        let view = control.commit();
        let departed: Vec<String> =
            control.take_departed().iter().map(|address| address.to_string()).collect();
        assert!(departed.is_empty() || view.is_some(), "a view for them");
        departed
    };
    control.apply(made("x/a", "10.0.0.1", "1"));
    control.apply(made("x/b", "10.0.0.2", "1"));
    assert!(departed(&mut control).is_empty(), "they have just come");
    // The same pod, told again.
    control.apply(made("x/a", "10.0.0.1", "1"));
    assert!(departed(&mut control).is_empty());
    // Another one of that name and address, whose predecessor's end was missed.
    control.apply(made("x/a", "10.0.0.1", "2"));
    assert_eq!(departed(&mut control), ["10.0.0.1"]);
    assert!(departed(&mut control).is_empty());
    // Another address; and the end.
    control.apply(made("x/b", "10.0.0.3", "1"));
    assert_eq!(departed(&mut control), ["10.0.0.2"]);
    control.delete(&reference("b"));
    assert_eq!(departed(&mut control), ["10.0.0.3"]);
    // A pod that has finished has its address no longer; nor has one that was bound to another.
    let mut finished = pod("x/a", "10.0.0.1", json!({}));
    finished["metadata"]["uid"] = json!("2");
    finished["status"]["phase"] = json!("Succeeded");
    control.apply(object(finished));
    assert_eq!(departed(&mut control), ["10.0.0.1"]);
    control.apply(made("x/c", "10.0.0.4", "1"));
    control.bind_address(key("x/c"), None, vec!["10.0.0.5".parse().unwrap()]);
    assert_eq!(departed(&mut control), ["10.0.0.4"]);
}

#[test]
fn a_pod_made_again_under_its_name_is_not_judged_as_its_predecessor() {
    let made = |uid: &str, labels: Value| {
        let mut pod = pod("x/web", "10.0.0.2", labels);
        pod["metadata"]["uid"] = json!(uid);
        pod
    };
    let spec = json!({"podSelector": {"matchLabels": {"app": "db"}},
        "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "web"}}}]}]});
    let mut control = Control::new(Scope::Node("n1".into()));
    control.apply(object(policy("x/p", spec)));
    control.apply(object(pod("x/db", "10.0.0.1", json!({"app": "db"}))));
    control.apply(object(made("1", json!({"app": "web"}))));
    // The new one is attached before its object is told.
    control.bind_address(key("x/web"), Some("2"), vec!["10.0.0.3".parse().unwrap()]);
    control.commit();
    assert!(control.is_namesake(&key("x/web")));
    let view = control.view();
    assert!(!view.pods.contains_key(&key("x/web")), "it has no ACLs yet");
    assert!(!ingress(&view, "10.0.0.3", "x/db", TCP, 80).0, "nor its predecessor's place");
    control.apply(object(made("2", json!({}))));
    control.commit();
    let view = control.view();
    assert!(view.pods.contains_key(&key("x/web")) && !control.is_namesake(&key("x/web")));
    assert!(!ingress(&view, "10.0.0.3", "x/db", TCP, 80).0);
    // Its successor's object is told before it is detached.
    control.apply(object(made("3", json!({"app": "web"}))));
    control.commit();
    assert!(!control.view().pods.contains_key(&key("x/web")));
    assert!(!ingress(&control.view(), "10.0.0.3", "x/db", TCP, 80).0);
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
fn a_resync_that_leaves_a_pod_out_removes_it() {
    let spec = json!({"podSelector": {"matchLabels": {"app": "db"}},
        "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "web"}}}]}]});
    let db = pod("x/db", "10.0.0.1", json!({"app": "db"}));
    let web = pod("x/web", "10.0.0.2", json!({"app": "web"}));
    let policy = policy("x/p", spec);
    let mut control = control([db.clone(), web, policy.clone()]);
    control.resync(vec![object(db), object(policy)]);
    let view = control.commit().unwrap();
    assert_eq!(view.pods.len(), 1);
    assert!(!ingress(&view, "10.0.0.2", "x/db", TCP, 80).0);
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
fn a_finished_pod_is_no_peer_and_its_address_can_be_anothers() {
    let spec = json!({"podSelector": {"matchLabels": {"app": "db"}},
        "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "job"}}}]}]});
    let mut control = control([
        pod("x/db", "10.0.0.1", json!({"app": "db"})),
        pod("x/job", "10.0.0.2", json!({"app": "job"})),
        policy("x/p", spec),
    ]);
    assert!(ingress(&control.view(), "10.0.0.2", "x/db", TCP, 80).0);
    let mut done = pod("x/job", "10.0.0.2", json!({"app": "job"}));
    done["status"]["phase"] = json!("Succeeded");
    control.apply(object(done));
    control.apply(object(pod("x/other", "10.0.0.2", json!({}))));
    let view = control.commit().unwrap();
    assert!(!ingress(&view, "10.0.0.2", "x/db", TCP, 80).0);
    assert!(!view.pods.contains_key(&key("x/job")));
}

#[test]
fn host_network_pods_are_neither_selected_nor_matched_by_selectors() {
    let mut host = pod("x/host", "192.0.2.1", json!({"app": "web"}));
    host["spec"]["hostNetwork"] = json!(true);
    let spec = json!({"podSelector": {}, "ingress": [
        {"from": [{"podSelector": {}}], "ports": [{"port": 80}]},
        {"from": [{"ipBlock": {"cidr": "192.0.2.0/24"}}], "ports": [{"port": 443}]}]});
    let control = control([host, pod("x/a", "10.0.0.1", json!({})), policy("x/p", spec)]);
    let view = control.view();
    assert!(!view.pods.contains_key(&key("x/host")));
    assert!(!ingress(&view, "192.0.2.1", "x/a", TCP, 80).0);
    assert!(ingress(&view, "192.0.2.1", "x/a", TCP, 443).0);
}

#[test]
fn egress_of_host_network_pods_is_enforced_at_their_sockets() {
    let mut host = pod("x/host", "192.0.2.1", json!({"app": "web"}));
    host["spec"] = json!({"nodeName": "n1", "hostNetwork": true, "containers": [{"name": "c"}]});
    let named = json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": [
        {"to": [{"podSelector": {"matchLabels": {"app": "db"}}}], "ports": [{"port": "sql"}]}]});
    let mut control = Control::new(Scope::Node("n1".into()));
    control.enforce_host_network();
    control.enforce_host_sockets(control::Failsafe::default());
    [host.clone(), policy("x/p", named)].into_iter().for_each(|it| control.apply(object(it)));
    control.commit();
    assert!(control.host_network_faults().is_empty(), "{:?}", control.host_network_faults());
    let rules = |control: &Control| -> Vec<String> {
        control.session_rules().iter().map(ToString::to_string).collect()
    };
    let default_deny = "any <-> any deny [default-deny of NetworkPolicy x/p]";
    let closed =
        [format!("local x/host tcp {default_deny}"), format!("local x/host udp {default_deny}")];
    assert_eq!(rules(&control), closed);
    // A pod that has the port's name comes later.
    let mut db = pod("x/db", "10.0.0.7", json!({"app": "db"}));
    db["spec"]["containers"] =
        json!([{"name": "c", "ports": [{"name": "sql", "containerPort": 5432}]}]);
    control.apply(object(db));
    control.commit();
    let allowed =
        "local x/host tcp any <-> 10.0.0.7/32 port 5432 allow [NetworkPolicy x/p egress[0]]";
    assert!(rules(&control).iter().any(|it| it == allowed), "{:?}", rules(&control));
    let view = control.view();
    // Something else changes nothing here.
    control.apply(object(pod("x/a", "10.0.0.1", json!({}))));
    control.commit();
    assert!(Arc::ptr_eq(&control.view().host_sockets, &view.host_sockets));
    host["status"]["phase"] = json!("Succeeded");
    control.apply(object(host));
    control.commit();
    assert!(
        control.view().host_sockets.is_empty()
            && rules(&control).iter().all(|it| !it.contains("host"))
    );
}

#[test]
fn ingress_of_host_network_pods_is_enforced_at_their_sockets() {
    let mut host = pod("x/host", "192.0.2.1", json!({"app": "web"}));
    host["spec"] = json!({"nodeName": "n1", "hostNetwork": true, "containers": [{"name": "c",
        "ports": [{"name": "web", "containerPort": 9100}, {"containerPort": 38412, "protocol": "SCTP"}]}]});
    let spec = json!({"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [
        {"from": [{"podSelector": {"matchLabels": {"app": "client"}}}], "ports": [{"port": "web"}]}]});
    let mut control = Control::new(Scope::Node("n1".into()));
    control.enforce_host_network();
    control.enforce_host_sockets(control::Failsafe::default());
    let client = pod("x/client", "10.0.0.7", json!({"app": "client"}));
    [host, client, policy("x/p", spec)].into_iter().for_each(|it| control.apply(object(it)));
    control.commit();
    assert!(control.host_network_faults().is_empty(), "{:?}", control.host_network_faults());
    let source = control.session_rule_source(None);
    let accepted = |protocol: &str| -> Vec<String> {
        let rules = source.accepted();
        assert!(rules.iter().all(|(pod, _)| **pod == key("x/host")));
        let rules = rules.iter().map(|(_, rule)| rule.to_string());
        rules.filter(|it| it.starts_with(&format!("global {protocol}"))).collect()
    };
    // Where the pod listens is not asked, but the failsafe ports stay open.
    let denied = |ports: &str| {
        format!("global tcp any ports {ports} <-> any deny [default-deny of NetworkPolicy x/p]")
    };
    let allowed =
        "global tcp any port 9100 <-> 10.0.0.7/32 allow [NetworkPolicy x/p ingress[0]]".to_owned();
    let ranges = ["0-21", "23-6442", "6444-10249", "10251-65535"].map(denied);
    assert_eq!(accepted("tcp"), [&ranges[..], &[allowed]].concat());
    assert_eq!(accepted("udp").len(), 3, "{:?}", accepted("udp"));
    // The rules are about this pod's sockets, not about the node's address.
    let of_addresses = control.session_rules();
    assert!(of_addresses.iter().all(|it| it.local.net.is_some()), "{of_addresses:?}");
    // Programs do not know SCTP.
    let view = control.view();
    let [only] = &*view.host_pods else { panic!("{:?}", view.host_pods) };
    assert_eq!(*only.ports, [(Protocol::Sctp, 38412)]);
}

#[test]
fn host_network_pods_have_rules_at_their_ports_where_that_is_wanted() {
    let mut host = pod("x/host", "192.0.2.1", json!({"app": "web"}));
    host["spec"] = json!({"nodeName": "n1", "hostNetwork": true, "containers": [{"name": "c",
        "ports": [{"containerPort": 9100}, {"containerPort": 53, "protocol": "UDP"}]}]});
    let mut elsewhere = host.clone();
    elsewhere["metadata"]["name"] = json!("elsewhere");
    elsewhere["spec"]["nodeName"] = json!("n2");
    let none = policy("x/p", json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}));
    let mut control = Control::new(Scope::Node("n1".into()));
    let all = [host.clone(), elsewhere, none];
    all.into_iter().for_each(|value| control.apply(object(value)));
    control.commit();
    assert!(control.view().host_pods.is_empty() && control.host_network_faults().is_empty());
    control.enforce_host_network();
    control.commit();
    let view = control.view();
    let [only] = &*view.host_pods else { panic!("{:?}", view.host_pods) };
    assert_eq!(only.key, key("x/host"));
    assert_eq!(*only.ports, [(Protocol::Tcp, 9100), (Protocol::Udp, 53)]);
    assert_eq!(only.ingress[0].origin.to_string(), "default-deny of NetworkPolicy x/p");
    assert!(view.pods.is_empty(), "no port of the switch is its own");
    let faults: Vec<String> =
        control.host_network_faults().iter().map(ToString::to_string).collect();
    assert_eq!(faults.len(), 1, "{faults:?}");
    assert!(faults[0].contains("egress of NetworkPolicy x/p is not enforced"), "{faults:?}");
    assert!(view.host_sockets.is_empty());
    // Something else changes nothing here.
    control.apply(object(pod("x/a", "10.0.0.1", json!({}))));
    control.commit();
    assert!(Arc::ptr_eq(&control.view().host_pods, &view.host_pods));
    // No port is the pod's.
    host["spec"]["containers"][0]["ports"] = json!([]);
    control.apply(object(host));
    control.commit();
    assert!(control.view().host_pods.is_empty());
    assert_eq!(control.host_network_faults().len(), 2);
    control.delete(&reference_of("NetworkPolicy", "x", "p"));
    control.commit();
    assert!(control.host_network_faults().is_empty());
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
fn a_pod_bound_before_its_object_waits_and_is_then_judged_at_once() {
    let mut control = Control::new(Scope::Node("n1".into()));
    control.apply(object(policy("x/p", json!({"podSelector": {}}))));
    control.bind_address(key("x/a"), None, vec!["10.0.0.1".parse().unwrap()]);
    assert!(control.commit().is_none_or(|view| view.pods.is_empty()));
    let mut early = pod("x/a", "10.0.0.1", json!({}));
    early["status"] = json!({"phase": "Pending"});
    control.apply(object(early));
    let view = control.commit().unwrap();
    assert!(!ingress(&view, "192.0.2.9", "x/a", TCP, 80).0);
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

#[test]
fn an_address_that_two_pods_claim_is_the_later_ones() {
    let spec = json!({"podSelector": {"matchLabels": {"app": "db"}},
        "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "web"}}}]}]});
    let claiming = |name: &str, app: &str, created: &str| {
        let mut pod = pod(name, "10.0.0.2", json!({"app": app}));
        pod["metadata"]["creationTimestamp"] = json!(created);
        pod
    };
    let db = pod("x/db", "10.0.0.1", json!({"app": "db"}));
    let old = claiming("x/old", "web", "2026-01-01T00:00:00Z");
    let new = claiming("x/new", "other", "2026-01-02T00:00:00Z");
    for order in [[&old, &new], [&new, &old]] {
        let objects = [&db, order[0], order[1]].map(Clone::clone);
        let mut control = control(objects.into_iter().chain([policy("x/p", spec.clone())]));
        assert!(!ingress(&control.view(), "10.0.0.2", "x/db", TCP, 80).0);
        // The one that was bound here is the one that is here.
        control.bind_address(key("x/old"), None, vec!["10.0.0.2".parse().unwrap()]);
        control.commit();
        assert!(ingress(&control.view(), "10.0.0.2", "x/db", TCP, 80).0);
    }
}
