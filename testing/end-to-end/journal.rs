//! The journal: real connections, decided again by other policies.

use std::process::{Command, Output};
use std::time::{Duration, SystemTime};

use observe::time::utc_seconds;
use serde_json::{Value, json};

use crate::cluster_node::{ClusterNode, PODGATE, text};
use crate::requires_the_machine;

/// Admits clients of this role to the database.
fn admits(role: &str) -> String {
    let from = json!([{"podSelector": {"matchLabels": {"role": role}}}]);
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": "db", "namespace": "default"},
        "spec": {"podSelector": {"matchLabels": {"role": "db"}}, "ingress": [{"from": from}]}})
    .to_string()
}

fn replay(node: &ClusterNode, arguments: &[&str]) -> Output {
    let mut command = Command::new(PODGATE);
    command.args(["policy", "replay-journal", "--since", "1h", "--journal"]);
    command.arg(node.state_dir().join("journal")).arg("--with").arg(node.manifests());
    command.args(arguments).output().unwrap()
}

/// Output of `replay-journal` about the database at a time.
fn at(node: &ClusterNode, time: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(PODGATE);
    command.args(["policy", "replay-journal", "--at", time, "--of", "default/db", "--journal"]);
    command.arg(node.state_dir().join("journal")).args(arguments).output().unwrap()
}

#[test]
fn past_connections_are_decided_again_by_other_policies() {
    requires_the_machine!();
    let begin = utc_seconds(SystemTime::now());
    let node = ClusterNode::start(&["--journal", "16MB"]);
    let (db, web, job) = (node.pod("db", "db"), node.pod("web", "web"), node.pod("job", "job"));
    let _redis = db.serve_redis();
    node.apply("policy", &admits("web"));
    web.connect(db.v4(), 6379).unwrap();
    job.try_connect(db.v4(), 6379).unwrap_err();
    // Written at the end too; the next process continues the hour.
    node.stop_switch();
    let changed = utc_seconds(SystemTime::now() + Duration::from_secs(1));
    node.start_switch();
    let status = node.status();
    assert!(status["journal"]["bytes"].as_u64() > Some(0), "of the process before: {status}");
    web.connect(db.v4(), 6379).unwrap();
    assert!(node.metric("podgate_journal_lost_total") == 0.0);
    node.stop_switch();
    let same = replay(&node, &[]);
    assert_eq!(same.status.code(), Some(0), "{same:?}");
    assert!(text(&same.stdout).contains("2 of 2 kinds of connections"), "{same:?}");
    node.write("policy", &admits("job"));
    let other = replay(&node, &["-o", "json"]);
    assert_eq!(other.status.code(), Some(1), "{other:?}");
    let lines = text(&other.stdout);
    let rows: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let row = |from: &str| rows.iter().find(|row| row["from"] == from).expect("a row");
    assert_eq!(rows.len(), 2, "{lines}");
    let (denied, allowed) = (row("default/web"), row("default/job"));
    assert_eq!((&denied["was"], &denied["would"]), (&json!("allow"), &json!("deny")));
    assert_eq!((&denied["connections"], &denied["port"]), (&json!(2), &json!(6379)), "{lines}");
    assert_eq!((&allowed["was"], &allowed["would"]), (&json!("deny"), &json!("allow")));
    assert_eq!(allowed["by"], json!(["NetworkPolicy default/db ingress[0]"]));
    let shown = text(&replay(&node, &[]).stdout);
    let line = "default/web to default/db TCP 6379  (2 connections, last ";
    assert!(shown.contains("Would be denied:\n  ") && shown.contains(line), "{shown}");
    // The rules of that time, and the connections that they admitted.
    let past = at(&node, &changed, &[]);
    assert_eq!(past.status.code(), Some(0), "{past:?}");
    let shown = text(&past.stdout);
    assert!(
        shown.contains("NetworkPolicy default/db ingress[0]") && shown.contains("default/web"),
        "{shown}"
    );
    assert!(shown.contains("Connections of the hour"), "{shown}");
    assert!(shown.contains("policy-denied DROPPED"), "{shown}");
    let early = at(&node, &begin, &[]);
    assert_eq!(early.status.code(), Some(2));
    assert!(text(&early.stderr).contains("their history begins later"), "{early:?}");
    // Policies are suggested for the recorded connections.
    let mut suggest = Command::new(PODGATE);
    suggest.args(["policy", "suggest", "-o", "json", "--manifests"]).arg(node.manifests());
    let suggested =
        suggest.arg("--journal").arg(node.state_dir().join("journal")).output().unwrap();
    let suggested: Value = serde_json::from_slice(&suggested.stdout).expect("a suggestion");
    assert_eq!(suggested["allowed"][0]["from"], "default/web", "{suggested}");
    // A folder that is not a journal is reported.
    std::fs::write(node.state_dir().join("journal/2026-11-25T09.json"), "x").unwrap();
    let mut damaged = Command::new(PODGATE);
    damaged.args(["policy", "replay-journal", "--journal"]);
    damaged.arg(node.state_dir().join("journal")).arg("--with").arg(node.manifests());
    let damaged = damaged.output().unwrap();
    assert_eq!(damaged.status.code(), Some(2));
    assert!(text(&damaged.stderr).contains("2026-11-25T09.json: line 1"), "{damaged:?}");
}

/// The present hour is written with the first connections, then each minute.
#[test]
fn a_killed_switch_loses_at_most_the_last_minute() {
    requires_the_machine!();
    let node = ClusterNode::start(&["--journal", "16MB"]);
    let (db, web) = (node.pod("db", "db"), node.pod("web", "web"));
    let _redis = db.serve_redis();
    node.apply("policy", &admits("web"));
    web.connect(db.v4(), 6379).unwrap();
    let folder = node.state_dir().join("journal");
    let is_written = || {
        let entries = std::fs::read_dir(&folder).ok()?.flatten();
        let mut names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.any(|name| name.ends_with(".json.gz")).then_some(())
    };
    testkit::eventually("an hour is written", is_written);
    web.connect(db.v4(), 6379).unwrap();
    node.kill_switch();
    node.start_switch();
    web.connect(db.v4(), 6379).unwrap();
    node.stop_switch();
    node.write("policy", &admits("job"));
    let replayed = replay(&node, &["-o", "json"]);
    let row: Value = serde_json::from_str(text(&replayed.stdout).trim()).expect("one row");
    assert_eq!((&row["from"], &row["would"]), (&json!("default/web"), &json!("deny")));
    // That of before, perhaps the one that the kill cut off, and the one after it.
    let connections = row["connections"].as_u64().unwrap();
    assert!((2..=3).contains(&connections), "{row}");
    assert!(replayed.stderr.is_empty(), "{replayed:?}");
}
