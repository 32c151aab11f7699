//! Every fixture replayed: the verdicts must be the expected ones, line by line.

use std::path::Path;
use std::process::{Command, Output};

use pcap_fixtures::{Fixture, compare};

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
