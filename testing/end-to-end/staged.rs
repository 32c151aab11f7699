//! Staged policies, with real clients: they are not enforced, and their changes are shown.

use std::io::{Read, Write};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use crate::cluster_node::{ClusterNode, PODGATE, text};
use crate::requires_the_machine;

/// Admits clients of this role to the database.
fn admits(name: &str, role: &str, annotations: Value) -> String {
    let from = json!([{"podSelector": {"matchLabels": {"role": role}}}]);
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": "default", "annotations": annotations},
        "spec": {"podSelector": {"matchLabels": {"role": "db"}}, "ingress": [{"from": from}]}})
    .to_string()
}

/// The rows of `podgate policy staged`, and its exit code.
fn staged(node: &ClusterNode, arguments: &[&str]) -> (Vec<Value>, Option<i32>) {
    let mut command = Command::new(PODGATE);
    command.args(["policy", "staged", "-o", "json", "--socket"]).arg(node.path("podgate.sock"));
    let output = command.args(arguments).output().unwrap();
    let rows = text(&output.stdout);
    let rows = rows.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    (rows, output.status.code())
}

/// Runs `podgate policy promote` over the node's manifests.
fn promote(node: &ClusterNode, name: &str, quiet_for: &str) -> Output {
    let mut command = Command::new(PODGATE);
    command.args(["policy", "promote", name, "--quiet-for", quiet_for, "--manifests"]);
    command.arg(node.manifests()).arg("--socket").arg(node.socket()).output().unwrap()
}

#[test]
fn a_staged_policy_that_changes_nothing_is_promoted() {
    requires_the_machine!();
    let node = ClusterNode::start(&[]);
    let (db, web) = (node.pod("db", "db"), node.pod("web", "web"));
    let _redis = db.serve_redis();
    node.apply("policy", &admits("db", "web", json!({"podgate.io/stage": "staged"})));
    web.connect(db.v4(), 6379).unwrap();
    let table = |what: &str| node.podgate(&["show", what, "-o", "json"]);
    node.eventually("it is staged", || {
        table("policies").contains(r#""state":"staged""#).then_some(())
    });
    let early = promote(&node, "default/db", "1h");
    assert_eq!(early.status.code(), Some(1));
    assert!(text(&early.stderr).contains("for less than 1h"), "{early:?}");
    let promoted = node.eventually("it was quiet for a second", || {
        let promoted = promote(&node, "default/db", "1s");
        promoted.status.success().then_some(promoted)
    });
    // The output is the enforced policy.
    let manifest = text(&promoted.stdout);
    assert!(!manifest.contains("annotations"), "{manifest}");
    node.apply("policy", &manifest);
    web.connect(db.v4(), 6379).unwrap();
    let policies = table("policies");
    assert!(policies.contains(r#""state":"in-force""#), "{policies}");
    let again = promote(&node, "default/db", "1s");
    assert!(text(&again.stderr).contains("it is not staged"), "{again:?}");
    assert_eq!(promote(&node, "default/other", "1s").status.code(), Some(2));
}

#[test]
fn nftables_names_what_it_does_not_evaluate() {
    requires_the_machine!();
    let node = ClusterNode::start(&["--enforcer", "nftables"]);
    node.apply("policy", &admits("db", "cache", json!({"podgate.io/stage": "staged"})));
    let faults = node.eventually("the policy is named", || {
        let faults = node.status()["faults"].to_string();
        faults.contains("podgate.io/stage").then_some(faults)
    });
    assert!(faults.contains("nftables evaluates no staged policy"), "{faults}");
    let refused = promote(&node, "default/db", "1s");
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert_eq!(staged(&node, &[]), (vec![], Some(2)));
    let mut run = Command::new(PODGATE);
    let both = run.args(["run", "--enforcer", "nftables", "--stage-all"]).output().unwrap();
    assert_eq!(both.status.code(), Some(2));
    assert!(text(&both.stderr).contains("stage-all: goes with enforcer afxdp"), "{both:?}");
}

#[test]
fn connections_that_open_while_a_policy_is_staged_count_once() {
    requires_the_machine!();
    let node = ClusterNode::start(&[]);
    let (db, web) = (node.pod("db", "db"), node.pod("web", "web"));
    let _redis = db.serve_redis();
    let is_staged = AtomicBool::new(false);
    let open = std::thread::scope(|scope| {
        let connections = scope.spawn(|| {
            let mut open = Vec::new();
            while !is_staged.load(Ordering::Relaxed) && open.len() < 700 {
                open.push(web.connect(db.v4(), 6379).unwrap());
            }
            open.push(web.connect(db.v4(), 6379).unwrap());
            open
        });
        node.apply("policy", &admits("db", "cache", json!({"podgate.io/stage": "staged"})));
        node.eventually("the first are compared", || staged(&node, &[]).0.into_iter().next());
        is_staged.store(true, Ordering::Relaxed);
        connections.join().unwrap()
    });
    node.eventually("all are compared", || {
        let (rows, _) = staged(&node, &[]);
        let [row] = &rows[..] else { return None };
        let (compared, open) = (row["connections"].as_u64().unwrap(), open.len() as u64);
        assert!(compared <= open, "{open} and {row}");
        // Verdicts that come faster than they can be handed on are lost, and counted.
        let lost = node.status()["verdicts_lost"].as_u64().unwrap();
        (compared + lost >= open).then_some(())
    });
}

#[test]
fn a_staged_policy_denies_nothing_and_its_denials_are_shown() {
    requires_the_machine!();
    let node = ClusterNode::start(&[]);
    let (db, web) = (node.pod("db", "db"), node.pod("web", "web"));
    let _redis = db.serve_redis();
    // Over before the policy comes: nothing would become of it.
    drop(web.connect(db.v4(), 6379).unwrap());
    node.eventually("both ends have closed it", || {
        let sessions = node.podgate(&["show", "sessions", "-o", "json"]);
        sessions.contains(r#""state":"ended""#).then_some(())
    });
    // Open before the policy comes.
    let mut live = web.connect(db.v4(), 6379).unwrap();
    assert_eq!(staged(&node, &[]), (vec![], Some(0)));
    node.apply("policy", &admits("db", "cache", json!({"podgate.io/stage": "staged"})));
    let row = node.eventually("the open connection is compared", || {
        let (rows, code) = staged(&node, &[]);
        assert_eq!(code, Some(i32::from(!rows.is_empty())));
        rows.into_iter().next()
    });
    assert_eq!((&row["would"], &row["connections"]), (&json!("deny"), &json!(1)), "{row}");
    assert_eq!((&row["from"], &row["to"]), (&json!("default/web"), &json!("default/db")));
    assert_eq!((&row["protocol"], &row["port"]), (&json!("TCP"), &json!(6379)));
    assert_eq!(row["by"], "default-deny of NetworkPolicy default/db");
    live.write_all(b"PING\r\n").unwrap();
    live.read_exact(&mut [0; 7]).expect("it goes on");
    // And one that opens now.
    web.connect(db.v4(), 6379).expect("nothing of it is enforced");
    let rows = node.eventually("the new connection is compared", || {
        let (rows, _) = staged(&node, &["default/db", "--since", "10m"]);
        (rows.first()?["connections"] == 2).then_some(rows)
    });
    assert_eq!(rows.len(), 1);
    assert_eq!(staged(&node, &["default/other"]), (vec![], Some(0)));
    assert_eq!(staged(&node, &["--since", "yesterday"]).1, Some(2));
    assert_eq!(node.verdicts(&["--staged", "--policy", "default/db"]).len(), 2);
    let shown = node.verdicts(&["--staged"]);
    let [event] = &shown[1..] else { panic!("{shown:?}") };
    assert_eq!(
        (&event["verdict"], &event["reason"]),
        (&json!("forward"), &json!("policy-allowed"))
    );
    assert_eq!(event["staged"]["verdict"], "drop");
    assert_eq!(event["staged"]["by"], json!(["default-deny of NetworkPolicy default/db"]));
    assert!(node.verdicts(&[]).iter().all(|event| event["staged"].is_null()));
    let metric =
        r#"podgate_staged_connections_total{policy="NetworkPolicy default/db",would="deny"}"#;
    assert_eq!(node.metric(metric), 2.0);
    assert!(node.log().iter().any(|line| line.contains("policy staged, not enforced")));
    // The changes are an objection to enforcing it.
    let refused = promote(&node, "default/db", "1d");
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(refused.stdout.is_empty() && text(&refused.stderr).contains("default/web"));
    // Enforced, it says what it said; there is nothing to be shown any more.
    node.apply("policy", &admits("db", "cache", json!({})));
    web.try_connect(db.v4(), 6379).unwrap_err();
    assert_eq!(staged(&node, &[]), (vec![], Some(0)));
}

#[test]
fn the_next_version_of_a_policy_shows_what_it_would_open() {
    requires_the_machine!();
    let node = ClusterNode::start(&[]);
    let (db, web, cache) =
        (node.pod("db", "db"), node.pod("web", "web"), node.pod("cache", "cache"));
    let _redis = db.serve_redis();
    node.apply("policy", &admits("db", "cache", json!({})));
    node.apply("next", &admits("db-next", "web", json!({"podgate.io/stages": "db"})));
    cache.connect(db.v6(), 6379).unwrap();
    web.try_connect(db.v6(), 6379).unwrap_err();
    let rows = node.eventually("both connections are compared", || {
        let (rows, _) = staged(&node, &[]);
        (rows.len() == 2).then_some(rows)
    });
    let row = |from: &str| rows.iter().find(|row| row["from"] == from).expect("a row");
    assert_eq!(row("default/cache")["would"], "deny");
    assert_eq!(row("default/web")["would"], "allow");
    assert_eq!(row("default/web")["by"], "NetworkPolicy default/db-next ingress[0]");
}

#[test]
fn a_first_rollout_enforces_nothing_but_what_says_so() {
    requires_the_machine!();
    let node = ClusterNode::start(&["--stage-all"]);
    let (db, web) = (node.pod("db", "db"), node.pod("web", "web"));
    let _redis = db.serve_redis();
    node.apply("policy", &admits("db", "cache", json!({})));
    web.connect(db.v4(), 6379).unwrap();
    node.eventually("it is shown", || (staged(&node, &[]).1 == Some(1)).then_some(()));
    // An unknown stage is a fault, and the policy is enforced.
    node.apply("policy", &admits("db", "cache", json!({"podgate.io/stage": "Staged"})));
    web.try_connect(db.v4(), 6379).unwrap_err();
    assert!(node.status()["faults"].to_string().contains("podgate.io/stage"));
    node.apply("policy", &admits("db", "web", json!({"podgate.io/stage": "enforced"})));
    web.connect(db.v4(), 6379).unwrap();
}

#[test]
fn a_namespace_stages_its_policies_but_for_those_that_say_otherwise() {
    requires_the_machine!();
    let node = ClusterNode::start(&[]);
    let (db, web) = (node.pod("db", "db"), node.pod("web", "web"));
    let _redis = db.serve_redis();
    let namespace = |stage: &str| {
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata":
            {"name": "default", "annotations": {"podgate.io/stage": stage}}})
        .to_string()
    };
    node.apply("policy", &admits("db", "cache", json!({})));
    web.try_connect(db.v4(), 6379).unwrap_err();
    node.apply("namespace", &namespace("staged"));
    web.connect(db.v4(), 6379).expect("nothing of it is enforced");
    node.eventually("it is shown", || (staged(&node, &["default/db"]).1 == Some(1)).then_some(()));
    node.apply("policy", &admits("db", "cache", json!({"podgate.io/stage": "enforced"})));
    web.try_connect(db.v4(), 6379).unwrap_err();
    node.apply("policy", &admits("db", "cache", json!({})));
    node.apply("namespace", &namespace("enforced"));
    web.try_connect(db.v4(), 6379).unwrap_err();
    // A slip in it enforces.
    node.write("namespace", &namespace("stagde"));
    node.eventually("it is a fault", || {
        node.status()["faults"].to_string().contains("podgate.io/stage").then_some(())
    });
    web.try_connect(db.v4(), 6379).unwrap_err();
}
