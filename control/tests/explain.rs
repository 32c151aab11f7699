//! Explanations name what decides, in words.

use crate::common::{control, key};
use control::Control;
use control::model::Direction;
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

#[test]
fn all_that_select_are_named_in_their_order() {
    let shop = shop();
    let ingress = shop.selecting(&key("shop/db"), Direction::Ingress);
    assert_eq!(ingress, ["ClusterNetworkPolicy no-jobs", "NetworkPolicy shop/db"]);
    assert_eq!(shop.selecting(&key("shop/db"), Direction::Egress), Vec::<String>::new());
    assert_eq!(shop.selecting(&key("shop/none"), Direction::Ingress), Vec::<String>::new());
}

#[test]
fn a_walkthrough_lists_each_rule_in_words() {
    let walk = shop().walkthrough(&key("shop/db")).unwrap();
    let words: Vec<String> = walk
        .ingress
        .iter()
        .map(|it| format!("{} {} [{}] {}", it.permits, it.peer, it.pods.join(" "), it.ports))
        .collect();
    assert_eq!(
        words,
        [
            "true its own node n1 [] everything",
            "false pods app=job in any namespace [shop/job] everything",
            "true pods app=web in namespace shop [shop/web] TCP 6379",
            "true 192.0.2.0/24 except 192.0.2.128/25 [] everything",
            "false any peer [] everything",
        ]
    );
    assert!(walk.egress.is_empty(), "it may go anywhere");
}

#[test]
fn a_peer_that_selects_no_pod_is_marked() {
    let mut objects = shop();
    objects.apply(
        match control::objects::read(json!({"apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy", "metadata": {"namespace": "shop", "name": "typo"},
        "spec": {"podSelector": {"matchLabels": {"app": "job"}},
            "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "wbe"}}}]}]}}))
        {
            control::objects::Read::Object(object, _) => object,
            other => panic!("{other:?}"),
        },
    );
    objects.commit();
    let walk = objects.walkthrough(&key("shop/job")).unwrap();
    let marked = walk.ingress.iter().filter(|it| it.selects_nothing);
    let marked: Vec<&str> = marked.map(|it| it.peer.as_str()).collect();
    assert_eq!(marked, ["pods app=wbe in namespace shop"]);
}
