//! Every fixture replayed: the verdicts must be the expected ones, line by line.

use std::path::Path;
use std::process::{Command, Output};

use std::fmt::Write;

use dataplane::capture::Reader;
use dataplane::wire::{self, Role, protocol};
use pcap_fixtures::{Fixture, compare};
use serde_json::{Value, json};
use testkit::TempDir;

fn replay(manifests: &Path, node: &str, capture: &Path, more: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_podgate"))
        .arg("replay")
        .arg("--manifests")
        .arg(manifests)
        .args(["--node", node])
        .arg("--pcap")
        .arg(capture)
        .args(more)
        .output()
        .expect("the binary runs")
}

#[test]
fn verdicts_are_as_expected() {
    let mut failures = String::new();
    for fixture in Fixture::all().expect("fixtures are complete") {
        let more = fixture.arguments.iter().map(String::as_str);
        let more: Vec<&str> = more.chain(["-o", "json"]).collect();
        let output = replay(&fixture.manifests, &fixture.node, &fixture.capture, &more);
        let errors = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() || !errors.is_empty() {
            failures += &format!("{}: {}\n{errors}", fixture.name, output.status);
        }
        if let Err(report) = compare(&fixture.expected, &String::from_utf8_lossy(&output.stdout)) {
            failures += &format!("{}:\n{report}", fixture.name);
        }
    }
    assert!(failures.is_empty(), "{failures}");
}

/// Probes ask all endpoints of a service, the graph chooses one: in these captures all endpoints
/// agree, so both must say the same.
#[test]
fn probes_say_of_services_what_the_graph_does() {
    let mut asked = 0;
    let all = Fixture::all().expect("fixtures are complete");
    for fixture in all.iter().filter(|it| it.name.ends_with("services")) {
        let lines = fixture.expected.lines().map(|line| serde_json::from_str(line).expect("JSON"));
        let records = Reader::open(&fixture.capture).expect("a capture");
        let mut cases = String::new();
        for (line, record) in lines.zip(records) {
            let line: Value = line;
            let Ok(headers) = wire::parse(&record.expect("whole").data) else { continue };
            let name = match headers.flow.protocol {
                protocol::TCP => "TCP",
                protocol::UDP => "UDP",
                protocol::SCTP => "SCTP",
                _ => continue,
            };
            let follows = ["session", "related", "spoofed-address", "no-session"];
            if headers.role != Role::Opens || follows.iter().any(|it| line["reason"] == *it) {
                continue;
            }
            let from = match line["in"].as_str() {
                Some("uplink") | None => json!(headers.flow.source.to_ip()),
                Some(pod) => json!(pod),
            };
            let expect = if line["verdict"] == "forward" { "allow" } else { "deny" };
            let case = json!({"from": from, "to": headers.flow.destination.to_ip(),
                "protocol": name, "port": headers.flow.destination_port, "expect": expect});
            // Writing to a string does not fail.
            let _ = writeln!(cases, "{case}");
            asked += 1;
        }
        let folder = TempDir::new("fixtures-probe");
        let file = folder.path().join("cases.json");
        std::fs::write(&file, cases).expect("room");
        let mut probe = Command::new(env!("CARGO_BIN_EXE_podgate"));
        probe.args(["policy", "probe", "--manifests"]).arg(&fixture.manifests);
        probe.args(&fixture.arguments);
        let output = probe.arg("--cases").arg(&file).output().expect("the binary runs");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{}: {said}", fixture.name);
    }
    assert!(asked > 30, "{asked}");
}
