//! Documents show of a running switch exactly what it prints.

use std::fs;
use std::process::Command;

use testkit::documents::{blocks, repository};
use testkit::packet;

use crate::node::{Node, NodeFiles, cluster, until};
use crate::{API, DB, WEB, syn};

/// Admits only pods with role `api` to `db`, at redis' port.
const POLICY: &str = "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db, namespace: default}
spec:
  podSelector: {matchLabels: {role: db}}
  policyTypes: [Ingress]
  ingress:
  - from: [{podSelector: {matchLabels: {role: api}}}]
    ports: [{port: 6379}]
";

/// A time as the commands print it: `2026-11-21T03:03:35.781Z`.
const TIME: usize = 24;

/// The text with other times and without what depends on the workers' pace.
fn comparable(text: &str) -> String {
    let mut found = String::new();
    for line in text.lines() {
        let ends = |at: usize| line.as_bytes().get(at + TIME - 1) == Some(&b'Z');
        let time = (0..line.len()).find(|at| ends(*at) && line[*at..].starts_with("20"));
        let line =
            time.map_or(line.to_owned(), |at| format!("{}TIME{}", &line[..at], &line[at + TIME..]));
        let counted = line.find(" (worker ").unwrap_or(line.len());
        found += &line[..counted];
        found.push('\n');
    }
    found
}

#[test]
fn samples_of_a_running_switch_are_what_it_prints() {
    let files = NodeFiles::new("documents");
    files.manifest("cluster.yaml", &cluster(&["db", "web", "api", "frontend"]));
    files.manifest("policy.yaml", POLICY);
    let node = Node::start(&files);
    let (_db, web) = (node.attach("db", DB), node.attach("web", WEB));
    let (_api, frontend) = (node.attach("api", API), node.attach("frontend", "10.1.0.5"));
    until(|| node.status().generation_in_force == node.status().generation);
    frontend.send(&packet::tcp("10.1.0.5:43962", "10.1.0.2:6379").syn());
    node.wait_for_event(|event| event.from.pod.as_deref() == Some("default/frontend"));
    let run = |command: &str| {
        // A stream has no end.
        let command = command.replace(" --follow", "");
        let binary = env!("CARGO_BIN_EXE_podgate");
        let script = command.replacen("podgate", "exec \"$PODGATE\"", 1);
        let output = Command::new("sh")
            .args(["-c", &script])
            .env("PODGATE", binary)
            .env("PODGATE_SOCKET", files.socket())
            .output()
            .unwrap();
        assert!(output.status.success(), "{command}: {output:?}");
        comparable(&String::from_utf8(output.stdout).unwrap())
    };
    let mut count = 0;
    for (page, commands) in [
        ("run.md", ["podgate show session-rules", "podgate observe"]),
        ("trace.md", ["podgate trace", "podgate trace"]),
    ] {
        let text = fs::read_to_string(repository().join("docs").join(page)).unwrap();
        let shown = blocks(&text, "# ").into_iter().flatten();
        for shown in shown.filter(|it| commands.iter().any(|name| it.command.starts_with(name))) {
            count += 1;
            let expected = comparable(&shown.output);
            let mut printed = run(&shown.command);
            if shown.command == "podgate trace show" {
                web.send(&syn(WEB, DB, 6379));
                until(|| {
                    printed = run(&shown.command);
                    printed.contains("1 of 50 packets")
                });
            }
            assert_eq!(printed, expected, "{page}: {}", shown.command);
        }
    }
    assert_eq!(count, 5);
}
