//! Against an API server double that speaks real HTTP: lists, watches and their troubles.

use std::time::{Duration, Instant};

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
    a_kind_that_is_not_installed_is_gone_on_without_and_found_later,
    nothing_is_synced_before_every_kind_is,
    malformed_objects_are_reported_with_what_could_be_read,
    an_event_that_cannot_be_decoded_has_its_kind_listed_again_at_once,
    a_streaming_list_that_ends_with_an_error_is_repeated_by_pages_at_once,
    after_an_outage_the_first_answer_wakes_every_kind,
    kinds_that_are_refused_when_the_api_server_comes_back_are_served_soon_after,
    every_kind_is_listed_once_the_api_server_answers_after_whatever_it_answered_before,
    no_answer_is_asked_for_all_the_time,
    an_expired_version_is_listed_at_once_as_status_and_as_event_also_after_an_outage,
    versions_that_expire_again_and_again_and_lists_that_break_off_are_not_retried_all_the_time,
    a_watch_is_current_only_after_a_list_an_event_or_a_bookmark,
    a_watch_whose_version_expired_is_not_current_until_it_is_listed_again,
    a_kind_of_every_cluster_that_is_not_found_is_reported,
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

/// What it was about is unknown: it may be a denial.
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

fn after_an_outage_the_first_answer_wakes_every_kind() {
    let list = |version| Step::Stream(vec![event("END", node("", version))]);
    let scripts = control::Kind::ALL.map(|kind| (kind.plural(), vec![Step::Drop, list(5)]));
    let double = Double::new(scripts.to_vec());
    let mut control = Control::new(Scope::All);
    follow_at(LONG, &double, &mut control, |_, told| synced(told));
}

/// As an API server that has not loaded its roles yet.
fn kinds_that_are_refused_when_the_api_server_comes_back_are_served_soon_after() {
    let list = |version| Step::Stream(vec![event("END", node("", version))]);
    let scripts = control::Kind::ALL.map(|kind| {
        let refused = vec![Step::Drop, Step::Drop, Step::Status(403), Step::Status(403)];
        (kind.plural(), [refused, vec![list(5), list(5)]].concat())
    });
    let double = Double::new(scripts.to_vec());
    let mut control = Control::new(Scope::All);
    follow_at(LONG, &double, &mut control, |_, told| synced(told));
}

/// Answers to every kind while the API server comes back; waits of their own would outlast the test.
fn every_kind_is_listed_once_the_api_server_answers_after_whatever_it_answered_before() {
    for (before, times) in [
        (Step::Expired, 12),
        (Step::Status(410), 12),
        (Step::Status(401), 4),
        (Step::Status(403), 4),
        (Step::Status(503), 4),
        (Step::Cut(vec![]), 4),
        (Step::Silence, 1),
    ] {
        let pace = match before {
            Step::Silence => Pace { answer: Duration::from_millis(300), ..LONG },
            _ => LONG,
        };
        let steps = [vec![before; times], vec![Step::Page(vec![], ""); 3]].concat();
        let scripts = control::Kind::ALL.map(|kind| (kind.plural(), steps.clone()));
        let double = Double::new(scripts.to_vec());
        let mut control = Control::new(Scope::All);
        follow_at(pace, &double, &mut control, |_, told| synced(told));
    }
}

/// Requests in a minute, of each kind, where one answer is all that a list or watch gets. The pace is 25
/// times the usual one.
fn no_answer_is_asked_for_all_the_time() {
    const MINUTE: Duration = Duration::from_millis(2400);
    let pace = Pace {
        answer: Duration::from_millis(1500),
        first: Duration::from_millis(10),
        most: Duration::from_millis(1200),
        outage: Duration::from_millis(40),
        absent: Duration::from_millis(800),
        hold: MINUTE,
    };
    let error = |code: u16| {
        let status = serde_json::json!({"kind": "Status", "code": code, "message": "no"});
        Step::Stream(vec![event("ERROR", status)])
    };
    let listed = || event("END", node("", 5));
    let mut answers: Vec<Step> = [400, 401, 403, 404, 409, 410, 422, 429, 500, 502, 503, 504]
        .into_iter()
        .flat_map(|code| [Step::Status(code), error(code)])
        .collect();
    answers.extend([
        Step::Expired,
        Step::Drop,
        Step::Silence,
        Step::NoStreaming,
        Step::Stream(vec![]),
        Step::Stream(vec!["{half".to_owned()]),
        Step::Stream(vec![r#"{"type":"WHAT"}"#.to_owned()]),
        Step::Stream(vec![listed()]),
        Step::Cut(vec![]),
        Step::Cut(vec![listed()]),
        Step::Page(vec![], ""),
        Step::Page(vec![], "more"),
    ]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let started = Instant::now();
        let mut running = Vec::new();
        for answer in answers {
            let steps = vec![answer.clone(); 500];
            let scripts = control::Kind::ALL.map(|kind| (kind.plural(), steps.clone()));
            let double = Double::new(scripts.to_vec());
            let connection = connect(&Access::Kubeconfig(double.kubeconfig())).await.unwrap();
            let (sender, mut receiver) = mpsc::channel(64);
            let tasks = watch(&connection.client, pace, &sender);
            tokio::spawn(async move { while receiver.recv().await.is_some() {} });
            running.push((answer, double, tasks));
        }
        // A busy machine starts so many connections late: every server has been asked first.
        let asked = |double: &Double| control::Kind::ALL.map(|it| double.asked(it.plural()).len());
        while !running.iter().all(|(_, double, _)| asked(double).iter().any(|it| *it > 0)) {
            assert!(started.elapsed() < Duration::from_secs(60), "some server is never asked");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        tokio::time::sleep(MINUTE).await;
        for (answer, double, _tasks) in running {
            let each = asked(&double);
            let minutes = started.elapsed().div_duration_f64(MINUTE);
            let most = each.into_iter().max().unwrap();
            let allowed = 60.0 * minutes.max(1.0);
            assert!(
                most as f64 <= allowed,
                "{answer:?}: {each:?} requests in {minutes:.1} minutes"
            );
        }
    });
}

fn an_expired_version_is_listed_at_once_as_status_and_as_event_also_after_an_outage() {
    let list = |name: &str, version| {
        Step::Stream(vec![event("ADDED", node(name, 1)), event("END", node("", version))])
    };
    for expired in [Step::Expired, Step::Status(410)] {
        let double = Double::new(vec![(
            "nodes",
            vec![list("old", 5), Step::Drop, expired, list("new", 20)],
        )]);
        let mut control = Control::new(Scope::All);
        follow_at(LONG, &double, &mut control, |control, told| {
            let lists = |it: &&Event| matches!(it, Event::Resync(control::Kind::Node, ..));
            synced(told) && control.counts().len() == 1 && told.iter().filter(lists).count() == 2
        });
        assert_eq!(nodes(&mut control), ["new"]);
    }
}

fn versions_that_expire_again_and_again_and_lists_that_break_off_are_not_retried_all_the_time() {
    let list = || Step::Stream(vec![event("END", node("", 5))]);
    let half = || Step::Cut(vec![event("ADDED", node("half", 1))]);
    for steps in [
        (0..200).flat_map(|_| [list(), Step::Expired]).collect::<Vec<_>>(),
        (0..200).flat_map(|_| [list(), Step::Status(410)]).collect(),
        (0..200).map(|_| half()).collect(),
        (0..200).map(|_| Step::Expired).collect(),
    ] {
        let double = Double::new(vec![("nodes", steps)]);
        let (first, outage) = (Duration::from_millis(100), Duration::from_millis(400));
        let pace = Pace { first, outage, most: LONG.most, ..PACE };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let connection = connect(&Access::Kubeconfig(double.kubeconfig())).await.unwrap();
            let (sender, mut receiver) = mpsc::channel(64);
            let tasks = watch(&connection.client, pace, &sender);
            tokio::spawn(async move { while receiver.recv().await.is_some() {} });
            let began = Instant::now();
            // Some requests, and what comes in a second.
            let asked = || double.asked("nodes").len();
            while asked() < 2 || began.elapsed() < Duration::from_secs(1) {
                assert!(began.elapsed() < Duration::from_secs(60), "{} requests", asked());
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            let asked = asked() as f64;
            let rate = asked / began.elapsed().as_secs_f64();
            assert!(rate < 20.0, "{asked} requests, {rate} a second");
            drop(tasks);
        });
    }
}

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

/// Of a kind that every API server has, 404 is a failure like others: what comes is not known.
fn a_kind_of_every_cluster_that_is_not_found_is_reported() {
    let list = Step::Stream(vec![event("END", node("", 5))]);
    let double = Double::new(vec![("networkpolicies", vec![list, Step::Status(404)])]);
    follow(&double, &mut Control::new(Scope::All), |_, told| {
        told.iter().any(|event| matches!(event, Event::Trouble(control::Kind::NetworkPolicy, _)))
    });
}
