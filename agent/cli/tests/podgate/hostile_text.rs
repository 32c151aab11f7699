//! Text from outside: whatever a switch answers or manifests hold, nothing that a terminal acts on
//! is printed.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use testkit::TempDir;

/// Sequences of C0 and C1, a return to the line's begin, a new line, and marks of bidirectional
/// text.
const HOSTILE: &str = "\u{1b}[31mred\u{9b}2J\u{7f}\rFORGED\nFORGED\u{202e}\u{2028}\0";

/// Runs a command to its end, and checks what it prints; a forged line begins with `FORGED`.
fn check(command: &mut Command) -> String {
    let shown = format!("{command:?}");
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8(text).unwrap();
    let acts =
        |it: char| it.is_control() && !"\n\t".contains(it) || "\u{202e}\u{2028}".contains(it);
    assert!(!text.contains(acts), "{shown}: {text:?}");
    assert!(!text.contains("\nFORGED"), "{shown}: {text:?}");
    text
}

fn podgate() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_podgate"));
    command.env("NO_COLOR", "1");
    command
}

/// Answers each request with lines, and ends its connection.
fn serve(listener: &UnixListener, lines: &[Value]) {
    for stream in listener.incoming() {
        let mut stream = stream.unwrap();
        let mut request = String::new();
        BufReader::new(stream.try_clone().unwrap()).read_line(&mut request).unwrap();
        for line in lines {
            // A command may have seen enough.
            let _ = writeln!(stream, "{line}");
        }
    }
}

fn ask(socket: &Path, commands: &[&str], lines: &[Value]) -> String {
    let (listener, lines) = (UnixListener::bind(socket).unwrap(), lines.to_vec());
    // It ends with the tests.
    std::thread::spawn(move || serve(&listener, &lines));
    let each = commands
        .iter()
        .map(|command| check(podgate().args(command.split(' ')).arg("--socket").arg(socket)));
    let text = each.collect();
    std::fs::remove_file(socket).unwrap();
    text
}

#[test]
fn nothing_that_a_switch_answers_acts_on_the_terminal() {
    let folder = TempDir::new("hostile-text");
    let socket = folder.path().join("s");
    let all = [
        "status",
        "status -o json",
        "observe",
        "observe -o json",
        "observe -o dict",
        "observe -o jsonpb",
        "show sessions",
        "show sessions -o json",
        "show names",
        "top --count 1",
        "trace show",
        "trace show -o json",
        "trace add 5",
        "trace clear",
        "policy staged",
        "capture default/db --count 1",
        "rotate-key",
    ];
    let refusal = json!({"error": {"kind": "bad-request", "message": HOSTILE}});
    let text = ask(&socket, &all, &[refusal]);
    assert!(text.matches('\u{fffd}').count() >= all.len(), "{text}");
    // What they do not expect is printed as an error.
    ask(&socket, &all, &[json!({"result": {HOSTILE: [HOSTILE]}})]);
    // Some tables are text, of several lines.
    let others: Vec<&str> = all.into_iter().filter(|it| !it.starts_with("show")).collect();
    ask(&socket, &others, &[json!({"result": HOSTILE})]);
    let table =
        json!({"columns": [HOSTILE, "b"], "rows": [[HOSTILE, [HOSTILE]], [1, {HOSTILE: HOSTILE}]]});
    let shows = ["show sessions", "show names", "show sessions -o json", "policy staged"];
    ask(&socket, &shows, &[json!({"result": table})]);
    let verdict = json!({"time": "2026-11-21T02:25:35.123Z", "node": HOSTILE, "verdict": "dropped",
        "reason": "policy-denied", "by": [HOSTILE], "from": {"pod": HOSTILE, "port": 4100},
        "to": {"pod": "shop/db", "port": 22}, "protocol": "TCP",
        "process": {"pid": 1, "command": HOSTILE}});
    let (lost, notice) = (json!({"result": {"lost": 3}}), json!({"result": {"notice": HOSTILE}}));
    let observe = ["observe", "observe -o json", "observe -o dict", "observe -o jsonpb"];
    let text = ask(&socket, &observe, &[lost, notice, json!({"result": verdict})]);
    assert!(text.contains("[1]"), "the verdict is shown: {text}");
}

#[test]
fn nothing_that_manifests_hold_acts_on_the_terminal() {
    let folder = TempDir::new("hostile-manifests");
    let manifests = folder.path().join("m\u{1b}[31m");
    std::fs::create_dir(&manifests).unwrap();
    let named = |kind: &str, version: &str, name: &str, rest: Value| {
        let mut object = json!({"apiVersion": version, "kind": kind,
            "metadata": {"name": name, "namespace": "shop", "labels": {"a": HOSTILE, HOSTILE: "b"},
                "annotations": {HOSTILE: HOSTILE, "podgate.io/stage": HOSTILE}}});
        object.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        object
    };
    let pod = |name: &str| {
        named(
            "Pod",
            "v1",
            name,
            json!({
        "spec": {"containers": [{"name": "c", "ports": [{"name": HOSTILE, "containerPort": 80}]}]},
        "status": {"podIPs": [{"ip": "10.0.0.1"}]}}),
        )
    };
    let policy = |name: &str, port: &str| {
        named(
            "NetworkPolicy",
            "networking.k8s.io/v1",
            name,
            json!({
        "spec": {"podSelector": {"matchLabels": {"a": HOSTILE}}, "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}], "ports": [{"port": port}]}]}}),
        )
    };
    let fine = [pod("web"), policy("db", "web")];
    let faulty = [pod(HOSTILE), policy(HOSTILE, HOSTILE), named(HOSTILE, HOSTILE, "x", json!({}))];
    for (n, objects) in [&fine[..], &faulty[..]].into_iter().enumerate() {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        std::fs::write(manifests.join("all\u{9b}.json"), list.to_string()).unwrap();
        let cases = folder.path().join("cases.json");
        let case = json!([{"from": HOSTILE, "to": "shop/web", "protocol": "TCP", "port": 80, "expect": "allow"}]);
        std::fs::write(&cases, case.to_string()).unwrap();
        let cases = cases.to_str().unwrap();
        let run = |arguments: &[&str]| {
            let mut command = podgate();
            for argument in arguments {
                match *argument {
                    "MANIFESTS" => command.arg(&manifests),
                    other => command.arg(other),
                };
            }
            check(&mut command)
        };
        let probe = ["policy", "probe", "--manifests", "MANIFESTS", "--protocol", "TCP", "--port"];
        let text = run(&[&probe[..], &["80"]].concat());
        assert!(!text.is_empty(), "{n}");
        run(&["policy", "probe", "--manifests", "MANIFESTS", "--cases", cases]);
        run(&["policy", "probe", "--manifests", "MANIFESTS", "--cases", cases, "-o", "json"]);
        run(&["policy", "test", "--manifests", "MANIFESTS", cases]);
        run(&["policy", "prove", "--manifests", "MANIFESTS", cases]);
        run(&[
            "policy",
            "explain",
            "shop/web",
            "shop/web",
            "--port",
            "80",
            "--manifests",
            "MANIFESTS",
        ]);
        run(&["policy", "walkthrough", "shop/web", "--manifests", "MANIFESTS"]);
        run(&["policy", "lint", "MANIFESTS"]);
        run(&["policy", "diff", "MANIFESTS", "MANIFESTS"]);
        for format in ["svg", "html", "dot", "mermaid"] {
            run(&["policy", "picture", "--manifests", "MANIFESTS", "-o", format]);
        }
        run(&["show", "session-rules", "--manifests", "MANIFESTS", "--pod", "shop/web"]);
        run(&["replay", "--manifests", "MANIFESTS", "--node", "n", "--pcap", "none"]);
    }
}
