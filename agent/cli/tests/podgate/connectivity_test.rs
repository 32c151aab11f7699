//! `podgate connectivity-test` as a process, with temporary switches (as root).

use std::process::Command;

use serde_json::Value;

const PODGATE: &str = env!("CARGO_BIN_EXE_podgate");

fn plugin() -> std::path::PathBuf {
    testkit::workspace_binary(PODGATE, "plugin", "podgate-cni")
}

/// Runs it until it passes, and returns its rows; nothing of it may be left.
fn passes(arguments: &[&str]) -> Vec<Value> {
    let mut command = Command::new(PODGATE);
    command.args(["connectivity-test", "-o", "json", "--plugin"]).arg(plugin()).args(arguments);
    let child = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let id = child.id();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    let folder = format!("/run/podgate-connectivity-test.{id}");
    assert!(!std::path::Path::new(&folder).exists(), "{folder} is left");
    let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(rows.iter().all(|row| row["expected"] == row["found"]), "{text}");
    let count = |found: &str| rows.iter().filter(|row| row["found"] == found).count();
    assert!(count("connects") >= 10 && count("blocked") >= 10, "{text}");
    assert!(rows.iter().any(|row| row["protocol"] == "TCP live"), "{text}");
    rows
}

#[test]
fn a_switch_that_works_passes_and_leaves_nothing() {
    testkit::requires_root!();
    testkit::requires!(testkit::has_program("/usr/lib/cni/host-local"), "needs host-local");
    passes(&[]);
}

#[test]
fn two_nodes_whose_connections_pass_a_tunnel_do_as_well() {
    testkit::requires_root!();
    testkit::requires!(testkit::has_program("/usr/lib/cni/host-local"), "needs host-local");
    let rows = passes(&["--nodes", "2"]);
    let opens = |from: &str, to: &str, protocol: &str| {
        rows.iter().any(|row| {
            row["found"] == "connects"
                && row["from"] == from
                && row["to"] == to
                && row["protocol"] == protocol
        })
    };
    assert!(opens("client", "server", "TCP") && opens("server", "other", "TCP"));
    assert!(opens("client", "server", "UDP"));
}

#[test]
fn without_a_plugin_it_cannot_be_tried() {
    let mut command = Command::new(PODGATE);
    let output = command.args(["connectivity-test", "--plugin", "/nowhere/podgate-cni"]).output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("/nowhere/podgate-cni"), "{text}");
}
