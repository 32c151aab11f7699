//! Pods that come, go, are made again, and pass their addresses on.

use std::net::IpAddr;

use crate::common::{TCP, control, ingress, key, object, pod, policy};
use control::{Control, Kind, ObjectRef, Scope};
use serde_json::{Value, json};

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
    // The same pod, applied again.
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
    // The new one is attached before its object is applied.
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
    // Its successor's object is applied before it is detached.
    control.apply(object(made("3", json!({"app": "web"}))));
    control.commit();
    assert!(!control.view().pods.contains_key(&key("x/web")));
    assert!(!ingress(&control.view(), "10.0.0.3", "x/db", TCP, 80).0);
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
fn an_address_that_two_pods_claim_is_the_earlier_ones_until_that_is_deleted() {
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
    let mut going = old.clone();
    going["metadata"]["deletionTimestamp"] = json!("2026-01-02T00:00:00Z");
    let fault = "Pod x/new: status.podIPs: 10.0.0.2 is an address of Pod x/old; it is ignored";
    for order in [[&old, &new], [&new, &old]] {
        let objects = [&db, order[0], order[1]].map(Clone::clone);
        let control = control(objects.into_iter().chain([policy("x/p", spec.clone())]));
        assert!(ingress(&control.view(), "10.0.0.2", "x/db", TCP, 80).0);
        let faults: Vec<String> = control.claim_faults().map(|it| it.to_string()).collect();
        assert_eq!(faults, [fault]);
    }
    for order in [[&going, &new], [&new, &going]] {
        let objects = [&db, order[0], order[1]].map(Clone::clone);
        let mut control = control(objects.into_iter().chain([policy("x/p", spec.clone())]));
        assert!(!ingress(&control.view(), "10.0.0.2", "x/db", TCP, 80).0);
        assert_eq!(control.claim_faults().count(), 0, "one leaves it to the other");
        // The one that was bound here is the one that is here.
        control.bind_address(key("x/old"), None, vec!["10.0.0.2".parse().unwrap()]);
        control.commit();
        assert!(ingress(&control.view(), "10.0.0.2", "x/db", TCP, 80).0);
    }
}
