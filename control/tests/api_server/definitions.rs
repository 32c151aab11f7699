//! Kinds that are not installed, are uninstalled, or are served in another version.

use std::time::{Duration, Instant};

use control::api_server::{Access, Event, Pace, connect, watch};
use control::{Control, Scope};
use tokio::sync::mpsc;

use super::{LONG, PACE, follow, synced};
use crate::double::{Double, Step, both_ways, event, node};

both_ways! {
    a_kind_that_is_not_installed_is_gone_on_without_and_found_later,
    a_kind_of_every_cluster_that_is_not_found_is_reported,
}

fn a_kind_that_is_not_installed_is_gone_on_without_and_found_later() {
    let double = Double::new(vec![(
        "clusternetworkpolicies",
        vec![Step::Status(404), Step::Status(404), Step::Stream(vec![event("END", node("", 5))])],
    )]);
    let mut control = Control::new(Scope::All);
    let kind = control::Kind::ClusterNetworkPolicy;
    follow(&double, &mut control, |_, told| {
        let of = |is: fn(&Event) -> Option<control::Kind>| {
            told.iter().filter(|event| is(event) == Some(kind)).count()
        };
        let lists = of(|it| if let Event::Resync(kind, ..) = it { Some(*kind) } else { None });
        let absent = of(|it| if let Event::Absent(kind) = it { Some(*kind) } else { None });
        let current = of(|it| if let Event::Current(kind) = it { Some(*kind) } else { None });
        assert!(absent < 2, "told once, not at each look: {told:#?}");
        // Nothing counts any more after a while, then everything that is listed.
        synced(told) && absent == 1 && (1..=2).contains(&lists) && current == 1
    });
    assert!(double.asked("clusternetworkpolicies").len() >= 3);
}

/// Two firewalls of which `a` is deleted with its kind in place, and then the kind. The time from then on until the
/// switch gives `b` up, if that is waited for; a deletion counts without that `hold`.
fn delete_definition(hold: Duration, is_awaited: bool) -> Option<Duration> {
    let server = testkit::api_server::ApiServer::new();
    let firewall = |name: &str| {
        serde_json::json!({"apiVersion": "podgate.io/v1alpha1", "kind": "ClusterEgressFirewall",
            "metadata": {"name": name}, "spec": {"egress": [
                {"action": "Deny", "to": [{"nodes": {}}]}]}})
    };
    ["a", "b"].into_iter().for_each(|name| server.apply(firewall(name)));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let connection = connect(&Access::Kubeconfig(server.kubeconfig())).await.unwrap();
        let (sender, mut receiver) = mpsc::channel(64);
        let tasks = watch(&connection.client, Pace { hold, ..PACE }, &sender);
        let mut next = async || {
            let event = tokio::time::timeout(Duration::from_secs(60), receiver.recv()).await;
            event.expect("an event in time").unwrap()
        };
        while next().await != Event::Synced {}
        let plural = "clusteregressfirewalls";
        // One is deleted and the kind stays, so the deletion is meant.
        server.delete(plural, None, "a");
        let a = control::ObjectRef {
            kind: control::Kind::ClusterEgressFirewall,
            namespace: None,
            name: "a".into(),
        };
        while next().await != Event::Delete(a.clone()) {}
        if !is_awaited {
            return None;
        }
        let began = Instant::now();
        server.delete_definition(plural);
        let b = control::ObjectRef { name: "b".into(), ..a };
        loop {
            let gone = match next().await {
                Event::Delete(reference) => reference == b,
                Event::Resync(kind, objects, _) => kind == b.kind && objects.is_empty(),
                _ => false,
            };
            if gone {
                break;
            }
        }
        drop(tasks);
        Some(began.elapsed())
    })
}

#[test]
fn objects_of_a_kind_whose_definition_is_deleted_stay_for_a_while() {
    delete_definition(LONG.hold, false);
    let hold = Duration::from_secs(2);
    let stayed = delete_definition(hold, true).unwrap();
    assert!(stayed >= hold, "too early: {stayed:?}");
}

/// A kind whose version goes is read in the one that is served instead; while that cannot be read,
/// what is known stays in force, and it is said.
#[test]
fn a_version_that_goes_opens_nothing() {
    use control::Kind;
    for (kind, head) in [
        (Kind::ClusterNetworkPolicy, serde_json::json!({"tier": "Admin", "priority": 1})),
        (Kind::AdminNetworkPolicy, serde_json::json!({"priority": 1})),
        (Kind::ClusterEgressFirewall, serde_json::json!({})),
    ] {
        version_that_goes(kind, &head);
    }
}

fn version_that_goes(kind: control::Kind, head: &serde_json::Value) {
    let server = testkit::api_server::ApiServer::new();
    let plural = kind.plural();
    let (group, own) = kind.api_version().split_once('/').unwrap();
    let policy = |name: &str, rules: &str| {
        let mut policy = serde_json::json!({"apiVersion": kind.api_version(), "kind": kind.name(),
            "metadata": {"name": name}, "spec": head});
        policy["spec"]["subject"] = serde_json::json!({"namespaces": {}});
        let denial = serde_json::json!({"action": "Deny", "to": [{"nodes": {}}]});
        policy["spec"]["egress"] = serde_json::json!([denial]);
        policy["spec"][rules] = serde_json::json!([denial]);
        policy
    };
    server.apply(policy("a", "egress"));
    let names = |objects: &[control::Object]| -> Vec<String> {
        objects.iter().map(|it| it.reference().name.to_string()).collect()
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let connection = connect(&Access::Kubeconfig(server.kubeconfig())).await.unwrap();
        let (sender, mut receiver) = mpsc::channel(64);
        let hold = Duration::from_secs(2);
        let tasks = watch(&connection.client, Pace { hold, ..PACE }, &sender);
        let mut next = async || match receiver.recv().await.unwrap() {
            Event::Resync(of, objects, _) if of == kind => {
                assert!(names(&objects).contains(&"a".to_owned()), "{objects:?}");
                Some(Ok(names(&objects)))
            }
            Event::Absent(of) if of == kind => panic!("it is served"),
            Event::Delete(reference) => panic!("{reference} is there"),
            Event::Trouble(of, problem) if of == kind => Some(Err(problem)),
            Event::Current(of) | Event::Answered(of) if of == kind => Some(Ok(Vec::new())),
            _ => None,
        };
        while next().await != Some(Ok(vec!["a".to_owned()])) {}
        server.serve_in(plural, "v1beta1");
        server.apply(policy("b", "egress"));
        while next().await != Some(Ok(vec!["a".to_owned(), "b".to_owned()])) {}
        // Rules have another name in this one, say.
        server.apply(policy("c", "outgoing"));
        server.serve_in(plural, "v9");
        let said = format!(
            "is served in {group}/v9 only, which cannot be read: {} c: spec.outgoing",
            kind.name()
        );
        loop {
            if let Some(Err(problem)) = next().await
                && problem.starts_with(&said)
            {
                break;
            }
        }
        // For longer than the objects of a kind that is uninstalled stay; it does not even seem to
        // be answered.
        let until = tokio::time::Instant::now() + 2 * hold;
        while let Ok(event) = tokio::time::timeout_at(until, next()).await {
            assert!(!matches!(event, Some(Ok(_))), "{event:?}");
        }
        server.serve_in(plural, own);
        server.delete(plural, None, "c");
        while next().await != Some(Ok(vec!["a".to_owned(), "b".to_owned()])) {}
        drop(tasks);
    });
}

/// For a kind that every API server has, 404 is a failure like others: its objects are not known.
fn a_kind_of_every_cluster_that_is_not_found_is_reported() {
    let list = Step::Stream(vec![event("END", node("", 5))]);
    let double = Double::new(vec![("networkpolicies", vec![list, Step::Status(404)])]);
    follow(&double, &mut Control::new(Scope::All), |_, told| {
        told.iter().any(|event| matches!(event, Event::Trouble(control::Kind::NetworkPolicy, _)))
    });
}
