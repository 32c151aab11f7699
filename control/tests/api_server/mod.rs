//! Against an API server double that speaks real HTTP: lists, watches and their troubles.

mod definitions;
mod retries;

use std::time::Duration;

use crate::double::{Double, Odd, Step, both_ways, event, node, policy};
use control::api_server::{Access, Event, Pace, connect, watch};
use control::{Control, Scope};
use tokio::sync::mpsc;

both_ways! {
    lists_are_streamed_and_watches_follow,
    an_expired_version_lists_again_and_what_went_meanwhile_is_gone,
    dropped_connections_errors_and_slow_bodies_lose_nothing,
    the_status_of_an_error_counts_whatever_its_body_is,
    an_older_server_is_listed_by_pages,
    a_part_of_a_list_is_not_current,
    nothing_is_synced_before_every_kind_is,
    malformed_objects_are_reported_with_what_could_be_read,
    an_event_that_cannot_be_decoded_has_its_kind_listed_again_at_once,
    a_streaming_list_that_ends_with_an_error_is_repeated_by_pages_at_once,
    a_watch_is_current_only_after_a_list_an_event_or_a_bookmark,
    a_watch_whose_version_expired_is_not_current_until_it_is_listed_again,
}

const PACE: Pace = Pace {
    // No request is given up, which would take a step of the double's script.
    answer: Duration::from_secs(60),
    first: Duration::from_millis(5),
    most: Duration::from_millis(50),
    outage: Duration::from_millis(50),
    absent: Duration::from_millis(20),
    hold: Duration::from_millis(200),
};

/// Feeds a control from the double until `done` says so.
fn follow(double: &Double, control: &mut Control, done: impl Fn(&Control, &[Event]) -> bool) {
    follow_at(PACE, double, control, done);
}

fn follow_at(
    pace: Pace,
    double: &Double,
    control: &mut Control,
    done: impl Fn(&Control, &[Event]) -> bool,
) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let kubeconfig = double.kubeconfig();
        let connection = connect(&Access::Kubeconfig(kubeconfig)).await.unwrap();
        let (sender, mut receiver) = mpsc::channel(64);
        let tasks = watch(&connection.client, pace, &sender);
        let mut told = Vec::new();
        while !done(control, &told) {
            let event = tokio::time::timeout(Duration::from_secs(60), receiver.recv()).await;
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

fn dropped_connections_errors_and_slow_bodies_lose_nothing() {
    let double = Double::new(vec![(
        "nodes",
        vec![
            Step::Drop,
            Step::Cut(vec![event("ADDED", node("half", 1))]),
            Step::Status(504),
            Step::Page(vec![node("n1", 3)], ""),
            Step::Cut(vec![event("ADDED", node("n2", 9))]),
            Step::Slow(vec![event("ADDED", node("n3", 10))]),
        ],
    )]);
    let mut control = Control::new(Scope::All);
    follow(&double, &mut control, |_, told| {
        synced(told) && told.iter().filter(|it| matches!(it, Event::Apply(..))).count() == 2
    });
    assert_eq!(nodes(&mut control), ["n1", "n2", "n3"], "half a list is no list");
    let asked = double.asked("nodes");
    assert!(asked[1].contains("sendInitialEvents") && asked[2].ends_with("limit=500"), "{asked:?}");
    assert!(asked[5].contains("resourceVersion=9"), "resumed after the cut");
}

fn the_status_of_an_error_counts_whatever_its_body_is() {
    for odd in [Odd::Endless, Odd::Long, Odd::Hangs] {
        let list = |name: &str, version| {
            Step::Stream(vec![event("ADDED", node(name, 1)), event("END", node("", version))])
        };
        let steps = vec![list("old", 5), Step::Odd(503, odd), Step::Odd(410, odd), list("new", 20)];
        let double = Double::new(vec![("nodes", steps)]);
        let mut control = Control::new(Scope::All);
        follow(&double, &mut control, |_, told| {
            let lists = |it: &&Event| matches!(it, Event::Resync(control::Kind::Node, ..));
            let is_over = synced(told) && told.iter().filter(lists).count() == 2;
            let problem = told.iter().find_map(|event| match event {
                Event::Trouble(control::Kind::Node, text) => Some(text),
                _ => None,
            });
            if is_over {
                let text = problem.expect("503 is reported");
                assert!(text.starts_with("503"), "{odd:?}: {text:.80}");
                assert!(text.len() < 2000, "{odd:?}: {} bytes for the log", text.len());
            }
            is_over
        });
        assert_eq!(nodes(&mut control), ["new"], "{odd:?}: 410 has it listed again");
    }
}

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

fn a_part_of_a_list_is_not_current() {
    let part = || Step::Page(vec![node("n1", 1)], "token/1");
    let double = Double::new(vec![(
        "nodes",
        vec![
            Step::NoStreaming,
            part(),
            Step::Status(500),
            part(),
            Step::Page(vec![node("n2", 1)], ""),
        ],
    )]);
    follow(&double, &mut Control::new(Scope::All), |_, told| {
        let place = |is: &dyn Fn(&Event) -> bool| told.iter().position(is);
        let current = place(&|event| *event == Event::Current(control::Kind::Node));
        let listed = place(&|event| matches!(event, Event::Resync(control::Kind::Node, ..)));
        assert!(current.is_none() || listed < current && listed.is_some(), "{told:?}");
        current.is_some()
    });
}

fn nothing_is_synced_before_every_kind_is() {
    let double = Double::new(vec![("networkpolicies", vec![Step::Status(500); 400])]);
    let mut control = Control::new(Scope::All);
    follow(&double, &mut control, |_, told| {
        assert!(!synced(told), "policies are not known yet: pods would look open");
        told.iter().filter(|event| matches!(event, Event::Trouble(..))).count() > 5
    });
}

fn malformed_objects_are_reported_with_what_could_be_read() {
    let mut bad = policy("p", 6);
    bad["spec"]["ingress"] = serde_json::json!([{"from": [{"ipBlock": {"cidr": "nowhere"}}]}]);
    let double = Double::new(vec![(
        "networkpolicies",
        vec![
            Step::Stream(vec![event("ADDED", policy("p", 3)), event("END", policy("", 5))]),
            Step::Stream(vec![event("MODIFIED", bad), event("BOOKMARK", policy("", 8))]),
            Step::Stream(vec![event("ADDED", policy("q", 9))]),
        ],
    )]);
    let mut control = Control::new(Scope::All);
    follow(&double, &mut control, |_, told| {
        let count = |is: fn(&Event) -> bool| told.iter().filter(|event| is(event)).count();
        let applied = count(|event| matches!(event, Event::Apply(..)));
        let faults = count(|event| matches!(event, Event::Apply(_, faults) if !faults.is_empty()));
        assert!(applied < 2 || faults == 1, "a bad network: {told:#?}");
        synced(told) && applied == 2
    });
    let asked = double.asked("networkpolicies");
    assert!(asked[2].contains("resourceVersion=8"), "it went on after them: {asked:?}");
}

/// Its object is unknown: it may be a denial.
fn an_event_that_cannot_be_decoded_has_its_kind_listed_again_at_once() {
    let undecodable = [
        "{half".to_owned(),
        "[]".to_owned(),
        r#"{"type":"WHAT","object":{}}"#.to_owned(),
        event("ADDED", node("no-policy", 6)),
        r#"{"type":"MODIFIED","object":{"metadata":{"resourceVersion":"7"}}}"#.to_owned(),
    ];
    for line in undecodable {
        let list = |name: &str, version: u32| {
            Step::Stream(vec![event("ADDED", policy(name, 3)), event("END", policy("", version))])
        };
        let double = Double::new(vec![(
            "networkpolicies",
            vec![list("old", 5), Step::Stream(vec![line.clone()]), list("new", 8)],
        )]);
        let mut control = Control::new(Scope::All);
        let mut shown = false;
        let kind = control::Kind::NetworkPolicy;
        follow_at(LONG, &double, &mut control, |_, told| {
            let lists = told.iter().filter(|it| matches!(it, Event::Resync(of, ..) if *of == kind));
            synced(told) && lists.count() == 2 && told.contains(&Event::Current(kind)) && {
                let is_shown = |it: &Event| matches!(it, Event::Trouble(of, _) if *of == kind);
                assert!(told.iter().any(is_shown), "{line}: {told:#?}");
                true
            }
        });
        shown |= double.asked("networkpolicies")[2].contains("sendInitialEvents");
        assert!(shown, "{line}");
    }
}

/// As behind an etcd without RequestWatchProgress.
fn a_streaming_list_that_ends_with_an_error_is_repeated_by_pages_at_once() {
    let status = |code: u16| serde_json::json!({"kind": "Status", "code": code, "message": "no"});
    for failed in [
        Step::Stream(vec![event("ERROR", status(500))]),
        Step::Stream(vec![event("ERROR", status(403))]),
        Step::Status(500),
        Step::Stream(vec![]),
        Step::Stream(vec!["{half".to_owned()]),
        Step::Cut(vec![event("ADDED", node("half", 1))]),
    ] {
        let double = Double::new(vec![("nodes", vec![failed, Step::Page(vec![node("a", 3)], "")])]);
        let mut control = Control::new(Scope::All);
        follow_at(LONG, &double, &mut control, |_, told| synced(told));
        assert_eq!(nodes(&mut control), ["a"]);
        assert!(double.asked("nodes")[1].ends_with("limit=500"));
    }
}

/// Waits that would outlast the test, but for one kind at a time.
const LONG: Pace = Pace {
    answer: Duration::from_secs(60),
    first: Duration::from_secs(3600),
    most: Duration::from_secs(3600),
    outage: Duration::from_millis(30),
    absent: Duration::from_secs(3600),
    hold: Duration::from_secs(3600),
};

fn a_watch_is_current_only_after_a_list_an_event_or_a_bookmark() {
    let list = Step::Stream(vec![event("ADDED", node("a", 1)), event("END", node("", 5))]);
    let double = Double::new(vec![(
        "nodes",
        vec![
            list,
            Step::Drop,
            Step::Stream(vec![]),
            Step::Stream(vec![event("BOOKMARK", node("", 9))]),
        ],
    )]);
    let mut control = Control::new(Scope::All);
    let is_of_nodes = |event: &&Event| {
        matches!(
            event,
            Event::Answered(control::Kind::Node)
                | Event::Current(control::Kind::Node)
                | Event::Trouble(control::Kind::Node, _)
        )
    };
    follow(&double, &mut control, |_, told| {
        let told: Vec<&Event> = told.iter().filter(is_of_nodes).collect();
        let names = told.iter().map(|event| match event {
            Event::Answered(_) => "answered",
            Event::Current(_) => "current",
            _ => "trouble",
        });
        let names: Vec<&str> = names.collect();
        let expected = ["answered", "current", "trouble", "answered", "current"];
        assert!(expected.starts_with(&names), "{names:?}");
        if names.len() == expected.len() {
            assert!(double.asked("nodes").len() >= 4, "current with its bookmark, not before");
        }
        names.len() == expected.len()
    });
}

fn a_watch_whose_version_expired_is_not_current_until_it_is_listed_again() {
    let list = |version| Step::Stream(vec![event("END", node("", version))]);
    for expired in [Step::Expired, Step::Status(410)] {
        let double = Double::new(vec![("nodes", vec![list(5), expired, list(20)])]);
        let mut control = Control::new(Scope::All);
        follow_at(LONG, &double, &mut control, |_, told| {
            let names: Vec<&str> = told
                .iter()
                .filter_map(|event| match event {
                    Event::Answered(control::Kind::Node) => Some("answered"),
                    Event::Current(control::Kind::Node) => Some("current"),
                    _ => None,
                })
                .collect();
            let expected = ["answered", "current", "answered", "current"];
            assert!(expected.starts_with(&names), "{names:?}");
            names.len() == expected.len()
        });
    }
}
