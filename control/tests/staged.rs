//! Staged policies: what is enforced is as if they were not there, and what is staged as if they were enforced.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::common::generate::{Edit, POLICIES, edits};
use crate::common::{
    TCP, apply, control, ingress, key, object, pod, policy, reference_of, same_answers,
};
use control::model::Stage;
use control::{Control, PodView, Scope, View};

/// The rules that would be in force if staged policies were enforced.
fn staged(view: &View) -> View {
    let pods = view.pods.iter().map(|(key, pod)| {
        let [to_pod, from_pod] = match &pod.staged {
            Some(staged) => staged.clone(),
            None => [pod.to_pod.clone(), pod.from_pod.clone()],
        };
        (key.clone(), Arc::new(PodView { to_pod, from_pod, ..PodView::clone(pod) }))
    });
    View { pods: Arc::new(pods.collect()), ..view.clone() }
}

/// The verdicts about x/a, enforced and staged.
fn verdicts(control: &Control) -> [bool; 2] {
    let view = control.view();
    [&view, &Arc::new(staged(&view))].map(|view| ingress(view, "10.0.0.2", "x/a", TCP, 80).0)
}

fn annotated(mut value: Value, annotations: Value) -> Value {
    value["metadata"]["annotations"] = annotations;
    value
}

#[test]
fn a_policy_is_staged_by_its_own_annotation_its_namespaces_or_the_default() {
    let closed = || policy("x/p", json!({"podSelector": {}}));
    let pod = || pod("x/a", "10.0.0.1", json!({}));
    let namespace = |stage: &str| {
        let value = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "x"}});
        annotated(value, json!({"podgate.io/stage": stage}))
    };
    let stage = |stage: &str| json!({"podgate.io/stage": stage});
    let mut control = control([pod(), annotated(closed(), stage("staged"))]);
    assert_eq!(verdicts(&control), [true, false]);
    let mut then = |value: Value| {
        control.apply(object(value));
        control.commit();
        verdicts(&control)
    };
    assert_eq!(then(closed()), [false, false]);
    assert_eq!(then(namespace("staged")), [true, false]);
    assert_eq!(then(annotated(closed(), stage("enforced"))), [false, false]);
    assert_eq!(then(namespace("enforced")), [false, false]);
    assert!(control.view().pods[&key("x/a")].staged.is_none(), "nothing is staged");

    let mut control = Control::new(Scope::All);
    control.stage_policies(Stage::Staged);
    for value in [pod(), closed()] {
        control.apply(object(value));
    }
    control.commit();
    assert_eq!(verdicts(&control), [true, false]);
    control.apply(object(annotated(closed(), stage("enforced"))));
    control.commit();
    assert_eq!(verdicts(&control), [false, false]);
}

#[test]
fn the_next_version_of_a_policy_replaces_it_among_the_staged_ones() {
    let ports = |port: u16| json!({"podSelector": {}, "ingress": [{"ports": [{"port": port}]}]});
    let next = annotated(policy("x/next", ports(80)), json!({"podgate.io/stages": "p"}));
    let mut control =
        control([pod("x/a", "10.0.0.1", json!({})), policy("x/p", ports(81)), next.clone()]);
    assert_eq!(verdicts(&control), [false, true]);
    let view = staged(&control.view());
    assert!(!ingress(&view, "10.0.0.2", "x/a", TCP, 81).0, "the rule of the former version");
    // It selects no pod any more: nothing isolates them.
    let mut elsewhere = next;
    elsewhere["spec"] = json!({"podSelector": {"matchLabels": {"app": "other"}}});
    control.apply(object(elsewhere));
    control.commit();
    assert!(ingress(&staged(&control.view()), "10.0.0.2", "x/a", TCP, 81).0);
}

#[test]
fn the_next_version_replaces_no_policy_of_another_kind() {
    let rules = |port: u16| {
        json!([{"action": "Deny", "from": [{"namespaces": {}}],
            "ports": [{"portNumber": {"port": port}}]}])
    };
    let admin = |name: &str, port: u16| {
        json!({"apiVersion": "policy.networking.k8s.io/v1alpha1", "kind": "AdminNetworkPolicy",
            "metadata": {"name": name}, "spec": {"priority": 1, "subject": {"namespaces": {}},
                "ingress": rules(port)}})
    };
    let newer = json!({"apiVersion": "policy.networking.k8s.io/v1alpha2",
        "kind": "ClusterNetworkPolicy", "metadata": {"name": "p"},
        "spec": {"tier": "Admin", "priority": 2, "subject": {"namespaces": {}},
            "ingress": [{"action": "Deny", "from": [{"namespaces": {}}]}]}});
    let next = annotated(admin("next", 81), json!({"podgate.io/stages": "p"}));
    let pods = [pod("x/a", "10.0.0.1", json!({})), pod("x/b", "10.0.0.2", json!({}))];
    let mut control = control(pods.into_iter().chain([admin("p", 80), newer, next]));
    assert_eq!(verdicts(&control), [false, false], "of that name is another kind's, too");
    control.delete(&reference_of("ClusterNetworkPolicy", "", "p"));
    control.commit();
    assert_eq!(verdicts(&control), [false, true]);
}

/// The objects of a history that are there at its end.
fn objects(history: &[Edit]) -> BTreeMap<(String, String, String), Value> {
    let mut objects = BTreeMap::new();
    for edit in history {
        match edit {
            Edit::Apply(value) => {
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                let metadata = &value["metadata"];
                let id =
                    (text(&value["kind"]), text(&metadata["namespace"]), text(&metadata["name"]));
                objects.insert(id, value.clone());
            }
            Edit::Delete(kind, namespace, name) => {
                objects.remove(&((*kind).into(), (*namespace).into(), (*name).into()));
            }
        }
    }
    objects
}

proptest! {
    #[test]
    fn both_views_are_those_of_clusters_without_annotations(
        history in edits(1..30),
        stages in vec(0..8_usize, 30),
    ) {
        let history: Vec<Edit> = history
            .into_iter()
            .zip(stages)
            .map(|(edit, stage)| match edit {
                Edit::Apply(value) => {
                    let kind = value["kind"].as_str().unwrap_or_default();
                    let name = POLICIES[stage % POLICIES.len()];
                    let annotations = match stage {
                        0..=2 => json!({"podgate.io/stage": "staged"}),
                        3 => json!({"podgate.io/stage": "enforced"}),
                        4 if kind == "NetworkPolicy" => json!({"podgate.io/stages": name}),
                        _ => json!({}),
                    };
                    let may_have = kind.contains("Polic") || kind.contains("Firewall") || kind == "Namespace";
                    Edit::Apply(if may_have { annotated(value, annotations) } else { value })
                }
                delete => delete,
            })
            .collect();
        let mut after = Control::new(Scope::All);
        for edit in &history {
            apply(&mut after, edit);
            after.commit();
        }
        let objects = objects(&history);
        let annotation = |value: &Value, name: &str| {
            value["metadata"]["annotations"][name].as_str().map(str::to_owned)
        };
        let is_policy = |kind: &str| kind.contains("Polic") || kind.contains("Firewall");
        let is_staged = |(kind, namespace, _): &(String, String, String), value: &Value| {
            let id = ("Namespace".to_owned(), String::new(), namespace.clone());
            let of_namespace =
                objects.get(&id).filter(|_| kind == "NetworkPolicy").and_then(|it| annotation(it, "podgate.io/stage"));
            let own = annotation(value, "podgate.io/stage").or(of_namespace);
            is_policy(kind)
                && (annotation(value, "podgate.io/stages").is_some() || own.as_deref() == Some("staged"))
        };
        let is_replaced = |(kind, namespace, name): &(String, String, String)| {
            objects.iter().any(|((other_kind, other_namespace, other), value)| {
                (other_kind, other_namespace) == (kind, namespace)
                    && other != name
                    && annotation(value, "podgate.io/stages").as_ref() == Some(name)
            })
        };
        let plain = |value: &Value| annotated(value.clone(), json!({}));
        let enforced = objects.iter().filter(|(id, value)| !is_staged(id, value)).map(|(_, it)| plain(it));
        let all = objects.iter().filter(|(id, _)| !is_replaced(id)).map(|(_, it)| plain(it));
        prop_assert!(same_answers(&after.view(), &control(enforced).view()), "enforced");
        prop_assert!(same_answers(&staged(&after.view()), &control(all).view()), "staged");
    }
}
