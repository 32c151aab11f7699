//! Explanations name what decides, in words.

mod common;

use common::{ICMP, TCP, control, key};
use control::Control;
use control::explain::Endpoint;
use serde_json::{Value, json};

fn pod(name: &str, address: &str, app: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "shop", "name": name, "labels": {"app": app}},
        "spec": {"nodeName": "n1"},
        "status": {"podIPs": [{"ip": address}]}})
}

fn shop() -> Control {
    control([
        pod("db", "10.0.0.1", "db"),
        pod("web", "10.0.0.2", "web"),
        pod("job", "10.0.0.3", "job"),
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"namespace": "shop", "name": "db"},
            "spec": {"podSelector": {"matchLabels": {"app": "db"}}, "ingress": [
                {"from": [{"podSelector": {"matchLabels": {"app": "web"}}}],
                 "ports": [{"port": 6379}]},
                {"from": [{"ipBlock": {"cidr": "192.0.2.0/24", "except": ["192.0.2.128/25"]}}]}]}}),
        json!({"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
            "metadata": {"name": "no-jobs"}, "spec": {"tier": "Admin", "priority": 5,
                "subject": {"namespaces": {}}, "ingress": [{"action": "Deny", "from": [
                    {"pods": {"namespaceSelector": {}, "podSelector": {
                        "matchLabels": {"app": "job"}}}}]}]}}),
    ])
}

fn pod_end(name: &str) -> Endpoint {
    Endpoint::Pod(key(name))
}

#[test]
fn the_deciding_rule_and_all_that_select_are_named() {
    let shop = shop();
    let explain = |from: &Endpoint, protocol, port| {
        shop.explain(from, &pod_end("shop/db"), protocol, port).unwrap()
    };
    let web = explain(&pod_end("shop/web"), TCP, 6379);
    let ingress = web.ingress.unwrap();
    assert!(web.permits && ingress.permits);
    assert_eq!(&*ingress.by, "NetworkPolicy shop/db ingress[0]");
    assert_eq!(ingress.selecting, ["ClusterNetworkPolicy no-jobs", "NetworkPolicy shop/db"]);
    assert_eq!(&*web.egress.unwrap().by, "default-allow");
    let job = explain(&pod_end("shop/job"), TCP, 6379);
    assert_eq!(
        (job.permits, &*job.ingress.unwrap().by),
        (false, "ClusterNetworkPolicy no-jobs ingress[0]")
    );
    let outside = explain(&Endpoint::Address("192.0.2.1".parse().unwrap()), ICMP, 0);
    assert_eq!((outside.permits, outside.egress), (true, None));
    let excepted = explain(&Endpoint::Address("192.0.2.200".parse().unwrap()), TCP, 6379);
    assert_eq!(&*excepted.ingress.unwrap().by, "default-deny of NetworkPolicy shop/db");
}

#[test]
fn a_pod_to_itself_needs_no_policy_and_an_unknown_pod_is_an_error() {
    let shop = shop();
    assert!(shop.explain(&pod_end("shop/db"), &pod_end("shop/db"), TCP, 1).unwrap().permits);
    let unknown = shop.explain(&pod_end("shop/none"), &pod_end("shop/db"), TCP, 1).unwrap_err();
    assert!(unknown.contains("shop/none"), "{unknown}");
    let other = Endpoint::Address("2001:db8::1".parse().unwrap());
    assert!(shop.explain(&other, &pod_end("shop/db"), TCP, 1).is_err());
}

#[test]
fn a_walkthrough_tells_each_rule_in_words() {
    let walk = shop().walkthrough(&key("shop/db")).unwrap();
    let words: Vec<String> = walk
        .ingress
        .iter()
        .map(|it| format!("{} {} [{}] {}", it.permits, it.peer, it.pods.join(" "), it.ports))
        .collect();
    assert_eq!(
        words,
        [
            "false pods app=job in any namespace [shop/job] everything",
            "true pods app=web in namespace shop [shop/web] TCP 6379",
            "true 192.0.2.0/24 except 192.0.2.128/25 [] everything",
            "false anybody [] everything",
        ]
    );
    assert!(walk.egress.is_empty(), "it may go anywhere");
}
