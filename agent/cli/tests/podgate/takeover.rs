//! A start that waits for the end of another switch.

use std::fs::{self, File};
use std::process::Command;

use testkit::TempDir;

#[test]
fn unusable_manifests_are_reported_while_the_other_switch_goes_on() {
    let folder = TempDir::new("takeover");
    let path = |name: &str| folder.path().join(name);
    fs::create_dir(path("state")).unwrap();
    let other = File::create(path("state/lock")).unwrap();
    other.lock().unwrap();
    fs::write(path("broken.yaml"), "kind: {").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_podgate"));
    command.args(["run", "--node-name", "n", "--listen", "127.0.0.1:0", "--takeover-wait", "5s"]);
    for (option, name) in
        [("--state-dir", "state"), ("--socket", "socket"), ("--manifests", "broken.yaml")]
    {
        command.arg(option).arg(path(name));
    }
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("broken.yaml") && !said.contains("waiting for its end"), "{said}");
}
