//! Commands beside a running switch.

use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use testkit::packet;

use crate::node::{Node, NodeFiles, POLICY, cluster, until};
use crate::{API, DB, WEB, syn};

fn podgate(files: &NodeFiles, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_podgate"));
    command.args(arguments).env("PODGATE_SOCKET", files.socket());
    command
}

fn run(files: &NodeFiles, arguments: &[&str]) -> Output {
    podgate(files, arguments).output().unwrap()
}

fn lines(output: &Output) -> Vec<Value> {
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn sessions_are_chosen_ordered_and_limited() {
    let files = NodeFiles::new("sessions");
    files.manifest("cluster.yaml", &cluster(&["db", "web", "api"]));
    let node = Node::start_with(&files, |config| config.session_accounting = true);
    let (db, web, api) = (node.attach("db", DB), node.attach("web", WEB), node.attach("api", API));
    web.send(&syn(WEB, DB, 80));
    db.expects(&syn(WEB, DB, 80), DB);
    let question = packet::udp("10.1.0.4:5000", "10.1.0.2:53").payload(&[7; 500]);
    api.send(&question);
    db.expects(&question, DB);
    let show = |arguments: &[&str]| run(&files, &[&["show", "sessions"], arguments].concat());
    until(|| lines(&show(&["-o", "json"])).iter().all(|it| it["packets"] == 1));
    let found = lines(&show(&["--filter", "to=default/*", "--sort", "bytes", "-o", "json"]));
    assert_eq!(found.len(), 2, "{found:?}");
    let (udp, tcp) = (&found[0], &found[1]);
    assert_eq!((&udp["protocol"], &tcp["protocol"]), (&json!("UDP"), &json!("TCP")));
    assert_eq!((&udp["state"], &tcp["state"]), (&json!("unanswered"), &json!("half-open")));
    assert_eq!(udp["bytes"], 14 + 20 + 8 + 500);
    for session in &found {
        let seconds = |field: &str| session[field].as_u64().unwrap();
        assert!(seconds("age_s") < 60 && seconds("idle_s") <= seconds("age_s"), "{session}");
        assert!(seconds("expires_s") + seconds("idle_s") == 30, "{session}");
    }
    let chosen = |arguments: &[&str]| lines(&show(&[arguments, &["-o", "json"]].concat())).len();
    assert_eq!(chosen(&["--filter", "from_address=10.1.0.4/32"]), 1);
    assert_eq!(chosen(&["--filter", "bytes>100", "--filter", "to-port!=53"]), 0);
    let limited = show(&["--limit", "1"]);
    let said = String::from_utf8_lossy(&limited.stderr);
    assert_eq!(said, "podgate: 1 more rows; --limit 1 is in force\n");
    let refused = show(&["--filter", "colour=red"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("colour: no such column"));
    assert_eq!(show(&["--filter", "bytes>many"]).status.code(), Some(2));
    // Numbers of the configuration are numbers.
    let config =
        lines(&run(&files, &["show", "config", "--filter", "option=sessions", "-o", "json"]));
    assert_eq!(config, [json!({"option": "sessions", "value": 4096})]);
}

#[test]
fn without_accounting_sessions_have_no_counters() {
    let files = NodeFiles::new("no-accounting");
    files.manifest("cluster.yaml", &cluster(&["db", "web"]));
    let node = Node::start(&files);
    let (db, web) = (node.attach("db", DB), node.attach("web", WEB));
    web.send(&syn(WEB, DB, 80));
    db.expects(&syn(WEB, DB, 80), DB);
    let found = lines(&run(&files, &["show", "sessions", "-o", "json"]));
    assert_eq!((&found[0]["packets"], &found[0]["bytes"]), (&Value::Null, &Value::Null));
    assert!(found[0]["age_s"].is_u64());
}

#[test]
fn policies_are_suggested_out_of_what_the_running_switch_saw() {
    let files = NodeFiles::new("suggest-live");
    files.manifest("cluster.yaml", &cluster(&["db", "web", "api"]));
    files.manifest("policy.yaml", POLICY);
    let node = Node::start(&files);
    let (db, web, api) = (node.attach("db", DB), node.attach("web", WEB), node.attach("api", API));
    api.send(&syn(API, DB, 6379));
    db.expects(&syn(API, DB, 6379), DB);
    web.send(&syn(WEB, DB, 22));
    node.wait_for_event(|event| event.to.port == Some(22));
    let manifests = files.manifests();
    let arguments =
        ["policy", "suggest", "--manifests", &manifests, "--observed", "live", "-o", "json"];
    let suggested = run(&files, &arguments);
    assert_eq!(suggested.status.code(), Some(0), "{suggested:?}");
    let found = &lines(&suggested)[0];
    let flow = |from: &str, port: u16| json!({"from": from, "to": "default/db", "protocol": "TCP", "port": port});
    assert_eq!(found["allowed"], json!([flow("default/api", 6379)]));
    assert_eq!(found["denied"][0]["port"], 22);
    // What is decided from now on counts too.
    let command = podgate(&files, &[&arguments[..], &["--for", "3s"]].concat())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut port = 7000;
    let mut command = command;
    while command.try_wait().unwrap().is_none() {
        port += 1;
        api.send(&syn(API, DB, port));
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    let followed = command.wait_with_output().unwrap();
    let allowed = lines(&followed)[0]["allowed"].as_array().unwrap().len();
    assert!(allowed > 1, "{followed:?}");
    // A file cannot be followed, and a switch that is not there is named.
    let refused = run(
        &files,
        &["policy", "suggest", "--manifests", &manifests, "--observed", "-", "--for", "1s"],
    );
    assert_eq!(refused.status.code(), Some(2));
    let nowhere = [&arguments[..], &["--socket", "/nowhere"]].concat();
    let refused = run(&files, &nowhere);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("there is no socket /nowhere"));
}

#[test]
fn top_goes_on_with_the_next_switch() {
    let files = NodeFiles::new("top");
    files.manifest("cluster.yaml", &cluster(&["db"]));
    let node = Node::start(&files);
    let mut top = podgate(&files, &["top", "--interval", "50ms", "-o", "json", "--count", "60"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut rates = BufReader::new(top.stdout.take().unwrap()).lines();
    let mut next = || -> Value { serde_json::from_str(&rates.next().unwrap().unwrap()).unwrap() };
    assert_eq!(next()["node"], "node-a");
    let kernel = node.stop();
    let mut said = BufReader::new(top.stderr.take().unwrap()).lines();
    let mut message = || said.next().unwrap().unwrap();
    assert_eq!(message(), "podgate: the switch has ended; waiting for another one");
    let node = Node::start_on(&files, kernel, |_| ());
    assert_eq!(message(), "podgate: connected again");
    let (db, after) = (node.attach("db", DB), DB);
    db.send(&packet::ping(after, "10.2.0.9", 1, 1));
    // Rates are those of the new switch: nothing is below zero, and its port appears.
    while !next()["ports"].as_array().unwrap().iter().any(|port| port["name"] == "default/db") {}
    top.kill().unwrap();
    top.wait().unwrap();
}
