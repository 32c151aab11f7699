//! Requests after failures: soon enough, and not all the time.

use std::time::{Duration, Instant};

use control::api_server::{Access, Event, Pace, connect, watch};
use control::{Control, Scope};
use tokio::sync::mpsc;

use super::{LONG, follow_at, nodes, synced};
use crate::double::still::Still;
use crate::double::{Double, Step, both_ways, event, node};

both_ways! {
    no_answer_is_asked_for_all_the_time,
    after_an_outage_the_first_answer_wakes_every_kind,
    kinds_that_are_refused_when_the_api_server_comes_back_are_served_soon_after,
    every_kind_is_listed_once_the_api_server_answers_after_whatever_it_answered_before,
    an_expired_version_is_listed_at_once_as_status_and_as_event_also_after_an_outage,
}

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

/// Requests for each kind in the first minute, on a clock of its own.
fn asked_in_a_minute(
    script: impl Fn(&str, usize) -> Option<Step> + Clone + Send + 'static,
) -> [usize; control::Kind::ALL.len()] {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let server = Still::new(script);
        let (sender, mut receiver) = mpsc::channel(64);
        let _tasks = watch(&server.client(), Pace::default(), &sender);
        tokio::spawn(async move { while receiver.recv().await.is_some() {} });
        tokio::time::sleep(Duration::from_secs(60)).await;
        control::Kind::ALL.map(|kind| server.asked(kind.plural()))
    })
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

#[test]
fn versions_that_expire_again_and_again_and_lists_that_break_off_are_not_retried_all_the_time() {
    let list = || Step::Stream(vec![event("END", node("", 5))]);
    let half = || Step::Cut(vec![event("ADDED", node("half", 1))]);
    for steps in [
        [list(), Step::Expired],
        [list(), Step::Status(410)],
        [half(), half()],
        [Step::Expired, Step::Expired],
    ] {
        let each = asked_in_a_minute({
            let steps = steps.clone();
            move |resource, number| (resource == "nodes").then(|| steps[number % 2].clone())
        });
        let of_nodes = control::Kind::ALL.iter().position(|it| *it == control::Kind::Node);
        let asked = each[of_nodes.unwrap()];
        assert!((4..=120).contains(&asked), "{steps:?}: {asked}");
    }
}
