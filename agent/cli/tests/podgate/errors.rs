//! Errors on stderr: each line begins with the program's name, once, and names a file.

use std::process::Command;

#[test]
fn an_error_names_the_program_once() {
    let missing = "/nowhere/of/it";
    let cases: &[&[&str]] = &[
        &["status", "--socket", missing],
        &["show", "ports", "--socket", missing],
        &["observe", "--socket", missing],
        &["trace", "show", "--socket", missing],
        &["top", "--socket", missing],
        &["capture", "db", "--socket", missing],
        &["replay", "--manifests", missing, "--node", "node1", "--pcap", missing],
        &["policy", "probe", "--manifests", missing, "--protocol", "TCP", "--port", "80"],
        &["policy", "explain", "a/b", "c/d", "--port", "80", "--manifests", missing],
        &["policy", "walkthrough", "a/b", "--manifests", missing],
        &["policy", "test", "--manifests", missing, "cases.yaml"],
        &["policy", "diff", missing, missing],
        &["policy", "lint", missing],
        &["policy", "picture", "--manifests", missing],
        &["policy", "suggest", "--manifests", missing, "--observed", missing],
        &["run", "--node", "node1", "--manifests", missing, "--config", missing],
    ];
    for case in cases {
        let output = Command::new(env!("CARGO_BIN_EXE_podgate")).args(*case).output();
        let output = output.expect("the program runs");
        let errors = String::from_utf8_lossy(&output.stderr);
        // No: nothing runs there. Unusable: the input.
        let expected = if case.contains(&"--socket") { 1 } else { 2 };
        assert_eq!(output.status.code(), Some(expected), "{case:?}: {errors}");
        assert!(!errors.is_empty(), "{case:?}");
        for line in errors.lines() {
            let rest = line.strip_prefix("podgate: ");
            assert!(rest.is_some_and(|rest| !rest.contains("podgate: ")), "{case:?}: {errors}");
            assert!(line.contains("/nowhere/of/") || line.contains(".yaml"), "{case:?}: {errors}");
        }
    }
}

#[test]
fn kubectl_podgate_names_the_address_that_it_could_not_reach() {
    let folder = testkit::TempDir::new("unreachable");
    let plugin = folder.path().join("kubectl-podgate");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_podgate"), &plugin).unwrap();
    let config = folder.path().join("config");
    // Nothing listens at port 1.
    let text = "{apiVersion: v1, kind: Config, current-context: c, users: [{name: u, user: {}}], \
                clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}], \
                contexts: [{name: c, context: {cluster: c, user: u}}]}";
    std::fs::write(&config, text).unwrap();
    for command in [&["status"][..], &["explain", "db"], &["wait", "networkpolicy/db"]] {
        let mut plugin = Command::new(&plugin);
        let output = plugin.args(command).arg("--kubeconfig").arg(&config).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{command:?}: {errors}");
        assert!(errors.contains("http://127.0.0.1:1"), "{command:?}: {errors}");
    }
}
