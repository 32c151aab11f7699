//! Pods on the host network: which rules they have, and where these are enforced.

use std::sync::Arc;

use crate::common::{TCP, control, ingress, key, object, pod, policy, reference_of};
use control::model::Protocol;
use control::{Control, Scope};
use serde_json::json;

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
