//! Against an API server double that speaks real HTTP: lists, watches and their troubles.

mod double;

use std::time::Duration;

use control::api_server::{Access, Event, Pace, connect, watch};
use control::{Control, Scope};
use double::{Double, Step, event, node, policy};
use tokio::sync::mpsc;

const PACE: Pace = Pace {
    first: Duration::from_millis(5),
    most: Duration::from_millis(50),
    absent: Duration::from_millis(20),
};

/// Feeds a control from the double until `done` says so; what was told on the way.
fn follow(double: &Double, control: &mut Control, done: impl Fn(&Control, &[Event]) -> bool) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let kubeconfig = double.kubeconfig();
        let connection = connect(&Access::Kubeconfig(kubeconfig)).await.unwrap();
        let (sender, mut receiver) = mpsc::channel(64);
        let tasks = watch(&connection.client, PACE, &sender);
        let mut told = Vec::new();
        while !done(control, &told) {
            let event = tokio::time::timeout(Duration::from_secs(30), receiver.recv()).await;
            let event = event.unwrap_or_else(|_| panic!("waited in vain after {told:#?}")).unwrap();
            told.push(event.clone());
            control.handle(event);
        }
        drop(tasks);
    });
}

fn synced(told: &[Event]) -> bool {
    told.contains(&Event::Synced)
}

fn nodes(control: &mut Control) -> Vec<String> {
    control.commit();
    control.view().nodes.keys().map(ToString::to_string).collect()
}

#[test]
fn lists_are_streamed_and_watches_follow() {
    let double = Double::new(vec![(
        "nodes",
        vec![
            Step::Stream(vec![event("ADDED", node("n1", 3)), event("END", node("", 5))]),
            Step::Stream(vec![event("ADDED", node("n2", 6)), event("BOOKMARK", node("", 9))]),
            Step::Stream(vec![event("DELETED", node("n1", 10))]),
        ],
    )]);
    let mut control = Control::new(Scope::All);
    follow(&double, &mut control, |_, told| {
        synced(told) && told.iter().any(|event| matches!(event, Event::Delete(_)))
    });
    assert_eq!(nodes(&mut control), ["n2"]);
    let asked = double.asked("nodes");
    assert!(asked[0].contains("sendInitialEvents=true"), "{asked:?}");
    assert!(asked[0].contains("resourceVersionMatch=NotOlderThan"), "{asked:?}");
    assert!(asked[1].contains("resourceVersion=5"), "{asked:?}");
    assert!(asked[2].contains("resourceVersion=9"), "from the bookmark: {asked:?}");
}

#[test]
fn an_expired_version_lists_again_and_what_went_meanwhile_is_gone() {
    let list = |name: &str, version| {
        Step::Stream(vec![event("ADDED", node(name, 1)), event("END", node("", version))])
    };
    let double = Double::new(vec![(
        "nodes",
        vec![list("old", 5), Step::Expired, list("newer", 20), Step::Status(410), list("new", 30)],
    )]);
    let mut control = Control::new(Scope::All);
    follow(&double, &mut control, |_, told| {
        let lists = told.iter().filter(|it| matches!(it, Event::Resync(control::Kind::Node, ..)));
        synced(told) && lists.count() == 3
    });
    assert_eq!(nodes(&mut control), ["new"]);
}

#[test]
fn dropped_connections_errors_and_slow_bodies_lose_nothing() {
    let double = Double::new(vec![(
        "nodes",
        vec![
            Step::Status(500),
            Step::Cut(vec![event("ADDED", node("half", 1))]),
            Step::Status(504),
            Step::Slow(vec![event("ADDED", node("n1", 3)), event("END", node("", 5))]),
            Step::Cut(vec![event("ADDED", node("n2", 6))]),
            Step::Stream(vec![event("ADDED", node("n3", 7))]),
        ],
    )]);
    let mut control = Control::new(Scope::All);
    follow(&double, &mut control, |_, told| {
        synced(told) && told.iter().filter(|it| matches!(it, Event::Apply(..))).count() == 2
    });
    assert_eq!(nodes(&mut control), ["n1", "n2", "n3"], "half a list is no list");
    assert!(double.asked("nodes")[5].contains("resourceVersion=6"), "resumed after the cut");
}

#[test]
fn an_older_server_is_listed_by_pages() {
    let double = Double::new(vec![(
        "nodes",
        vec![
            Step::NoStreaming,
            Step::Page(vec![node("n1", 1)], "token/1"),
            Step::Page(vec![node("n2", 1)], ""),
            Step::Stream(vec![event("ADDED", node("n3", 9))]),
        ],
    )]);
    let mut control = Control::new(Scope::All);
    follow(&double, &mut control, |_, told| {
        synced(told) && told.iter().any(|event| matches!(event, Event::Apply(..)))
    });
    assert_eq!(nodes(&mut control), ["n1", "n2", "n3"]);
    assert!(double.asked("nodes")[2].contains("continue=token%2F1"));
}

#[test]
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
        let connected = of(|it| if let Event::Connected(kind) = it { Some(*kind) } else { None });
        assert!(absent < 2, "told once, not at each look: {told:#?}");
        synced(told) && (absent, lists, connected) == (1, 2, 1)
    });
    assert!(double.asked("clusternetworkpolicies").len() >= 3);
}

#[test]
fn nothing_is_synced_before_every_kind_is() {
    let double = Double::new(vec![("networkpolicies", vec![Step::Status(500); 400])]);
    let mut control = Control::new(Scope::All);
    follow(&double, &mut control, |_, told| {
        assert!(!synced(told), "policies are not known yet: pods would look open");
        told.iter().filter(|event| matches!(event, Event::Trouble(..))).count() > 5
    });
}

#[test]
fn malformed_objects_are_told_and_the_last_valid_version_stays() {
    let mut bad = policy("p", 6);
    bad["spec"]["ingress"] = serde_json::json!([{"from": [{"ipBlock": {"cidr": "nowhere"}}]}]);
    let double = Double::new(vec![(
        "networkpolicies",
        vec![
            Step::Stream(vec![event("ADDED", policy("p", 3)), event("END", policy("", 5))]),
            Step::Stream(vec![
                "{half".into(),
                event("MODIFIED", bad),
                event("BOOKMARK", policy("", 8)),
            ]),
            Step::Stream(vec![event("ADDED", policy("q", 9))]),
        ],
    )]);
    let mut control = Control::new(Scope::All);
    follow(&double, &mut control, |_, told| {
        let count = |is: fn(&Event) -> bool| told.iter().filter(|event| is(event)).count();
        let applied = count(|event| matches!(event, Event::Apply(..)));
        let lines = count(|event| matches!(event, Event::Fault(_)));
        let faults = count(|event| matches!(event, Event::Apply(_, faults) if !faults.is_empty()));
        assert!(applied < 2 || (lines, faults) == (1, 1), "half a line, a bad network: {told:#?}");
        synced(told) && applied == 2
    });
    let asked = double.asked("networkpolicies");
    assert!(asked[2].contains("resourceVersion=8"), "it went on after them: {asked:?}");
}
