//! `podgate policy probe` from the outside: what it prints and with which code it ends.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use testkit::TempDir;
use testkit::manifests::{pod, policy};

/// Exit code and output of a run.
struct Ran {
    code: Option<i32>,
    out: String,
    errors: String,
}

/// Runs a probe over these manifests with these arguments and this on stdin.
fn probe(manifests: &str, arguments: &[&str], stdin: &str) -> Ran {
    let folder = TempDir::new("probe-command");
    let file = folder.path().join("cluster.yaml");
    fs::write(&file, manifests).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_podgate"))
        .args(["policy", "probe", "--manifests"])
        .arg(&file)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Nobody reads it where arguments are refused; then writing fails, and that is fine.
    let _unread = child.stdin.take().unwrap().write_all(stdin.as_bytes());
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { code: output.status.code(), out: text(output.stdout), errors: text(output.stderr) }
}

fn manifests() -> String {
    pod("a/app", "role: app", "", "", "")
        + &pod("a/db", "role: db", "", "", "")
        + &pod("a/web", "role: web", "", "", "")
        + &policy(
            "db",
            "podSelector: {matchLabels: {role: db}}, ingress: [{from: [{podSelector: \
             {matchLabels: {role: app}}}], ports: [{port: 6379}]}]",
        )
}

fn case(from: &str, expect: &str) -> Value {
    json!({"from": from, "to": "a/db", "protocol": "TCP", "port": 6379, "expect": expect, "id": [1]})
}

#[test]
fn json_lines_in_order_with_the_cases_fields() {
    let cases = json!([case("a/web", "deny"), case("a/app", "allow")]).to_string();
    let ran = probe(&manifests(), &["--cases", "-", "-o", "json"], &cases);
    assert_eq!((ran.code, ran.errors.as_str()), (Some(0), ""));
    let lines: Vec<Value> =
        ran.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let denied = json!({"from": "a/web", "to": "a/db", "protocol": "TCP", "port": 6379,
        "expect": "deny", "id": [1], "verdict": "deny", "reason": "policy-denied",
        "by": ["default-deny of NetworkPolicy a/db"]});
    let allowed = json!({"from": "a/app", "to": "a/db", "protocol": "TCP", "port": 6379,
        "expect": "allow", "id": [1], "verdict": "allow", "reason": "policy-allowed",
        "by": ["NetworkPolicy a/db ingress[0]"]});
    assert_eq!(lines, [denied, allowed]);
}

#[test]
fn a_failed_expectation_is_marked_and_ends_with_one() {
    let cases = format!("{}\n{}\n", case("a/web", "allow"), case("a/app", "allow"));
    let ran = probe(&manifests(), &["--cases", "-"], &cases);
    assert_eq!((ran.code, ran.errors.as_str()), (Some(1), ""));
    assert!(ran.out.contains("\nFAILED, expected allow  a/web"), "{}", ran.out);
    assert!(ran.out.ends_with("\n2 asked, 2 with an expectation, 1 failed\n"), "{}", ran.out);
    let ran = probe(&manifests(), &["--cases", "-", "-o", "json"], &cases);
    assert_eq!((ran.code, ran.out.lines().count()), (Some(1), 2));
}

#[test]
fn a_file_of_cases() {
    let folder = TempDir::new("probe-cases");
    let file = folder.path().join("cases.yaml");
    fs::write(&file, "from: a/app\nto: a/db\nprotocol: TCP\nport: 6379\n").unwrap();
    let ran = probe(&manifests(), &["--cases", file.to_str().unwrap()], "");
    assert_eq!(ran.code, Some(0), "{}", ran.errors);
    let ran = probe(&manifests(), &["--cases", "/nonexistent/cases.yaml"], "");
    assert_eq!(ran.code, Some(2));
    assert!(ran.errors.contains("/nonexistent/cases.yaml: cannot be read"), "{}", ran.errors);
}

#[test]
fn a_file_of_cases_has_a_greatest_length() {
    let folder = TempDir::new("probe-long");
    let file = folder.path().join("cases.yaml");
    fs::File::create(&file).unwrap().set_len((16 << 20) + 1).unwrap();
    let ran = probe(&manifests(), &["--cases", file.to_str().unwrap()], "");
    assert_eq!(ran.code, Some(2));
    let said = "cases.yaml: cannot be read: is longer than 16777216 bytes";
    assert!(ran.errors.contains(said), "{}", ran.errors);
}

#[test]
fn the_grid() {
    let ran = probe(&manifests(), &["--port", "6379"], "");
    assert_eq!((ran.code, ran.errors.as_str()), (Some(0), ""));
    assert_eq!(
        ran.out.lines().collect::<Vec<_>>(),
        [
            "TCP 6379: may the pod of a row open a connection to the pod of a column? (. yes, X no)",
            "          1 2 3",
            "1  a/app  . . .",
            "2  a/db   . . .",
            "3  a/web  . X .",
        ]
    );
    let ran = probe(&manifests(), &["--protocol", "icmp", "-o", "json"], "");
    let lines: Vec<Value> =
        ran.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 9);
    let denied = lines.iter().filter(|line| line["verdict"] == "deny").count();
    assert_eq!(denied, 2, "nobody else may ping db");
    assert_eq!(lines[1]["to"], "a/db");
    assert!(lines.iter().all(|line| line.get("port").is_none()));
}

#[test]
fn columns_of_a_large_grid_are_numbered() {
    let many: String = (0..12).map(|n| pod(&format!("a/p{n:02}"), "", "", "", "")).collect();
    let ran = probe(&many, &["--protocol", "UDP", "--port", "dns"], "");
    let lines: Vec<&str> = ran.out.lines().collect();
    assert_eq!(lines[1], "                             1 1 1");
    assert_eq!(lines[2], "           1 2 3 4 5 6 7 8 9 0 1 2");
    assert_eq!(lines[14], format!("12  a/p11  {}", ["X"; 12].join(" ")));
}

#[test]
fn unusable_cases_end_with_two_and_are_all_named() {
    let cases = r#"[{"from": "a/ghost", "to": "service/a/s", "protocol": "TCP", "port": 1},
                    {"from": "node/n", "to": "a/db", "protocol": "ICMP"}]"#;
    let ran = probe(&manifests(), &["--cases", "-", "-o", "json"], cases);
    assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""));
    assert_eq!(
        ran.errors.lines().collect::<Vec<_>>(),
        [
            "podgate: stdin: case 1: from: Pod a/ghost is not in the manifests",
            "podgate: stdin: case 1: to: Service a/s is not in the manifests",
            "podgate: stdin: case 2: from: Node n is not in the manifests",
        ]
    );
    let cases = r#"{"from": "a/db", "to": "a/db", "protocol": "HTTP", "port": 70000}"#;
    let ran = probe(&manifests(), &["--cases", "-"], cases);
    assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""));
    assert!(ran.errors.contains("case 1: protocol: \"HTTP\" is none of TCP"), "{}", ran.errors);
    assert!(ran.errors.contains("case 1: port: 70000 is not a port number"), "{}", ran.errors);
    for garbage in ["", "{", "\u{0}", "[[]]", "- - -"] {
        let ran = probe(&manifests(), &["--cases", "-"], garbage);
        assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""), "{garbage:?}: {}", ran.errors);
        assert!(ran.errors.starts_with("podgate: stdin: "), "{garbage:?}: {}", ran.errors);
    }
}

#[test]
fn faulty_manifests_give_no_verdicts() {
    let broken =
        manifests() + &policy("bad", "podSelector: {}, ingress: [{from: [{ipBlock: {cidr: x}}]}]");
    for arguments in [&["--port", "1"][..], &["--cases", "-"]] {
        let ran = probe(&broken, arguments, &case("a/app", "allow").to_string());
        assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""));
        let named = ["cluster.yaml: document 5", "NetworkPolicy a/bad", "spec.ingress[0].from[0]"];
        for part in named {
            assert!(ran.errors.contains(part), "{part:?} is missing in: {}", ran.errors);
        }
    }
    for nothing in ["", "# nothing\n", "kind: [\n"] {
        let ran = probe(nothing, &[], "");
        assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""), "{nothing:?}");
        assert!(ran.errors.contains("cluster.yaml: "), "{}", ran.errors);
    }
}

#[test]
fn unusable_arguments_end_with_two() {
    let wrong: [&[&str]; 5] = [
        &["--port", "0"],
        &["--protocol", "HTTP"],
        &["--cases", "-", "--port", "80"],
        &["-o", "xml"],
        &["--manifests", "/nonexistent"],
    ];
    for arguments in wrong {
        let ran = probe(&manifests(), arguments, "");
        assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""), "{arguments:?}: {}", ran.errors);
        assert_ne!(ran.errors, "");
    }
}

#[test]
fn objects_of_other_kinds_are_counted() {
    let other = "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\n---\napiVersion: v1\n\
                 kind: ServiceAccount\nmetadata: {name: s}\n";
    let text = manifests() + other;
    let ran = probe(&text, &[], "");
    assert_eq!(ran.code, Some(0));
    let usual = "podgate: skipped objects of other kinds: 1 Deployment\n";
    assert_eq!(ran.errors, usual, "no policy depends on service accounts");
    let of_kind = "podgate: skipped objects of other kinds: 1 ServiceAccount\n";
    assert_eq!(probe(&text, &["-v"], "").errors, format!("{usual}{of_kind}"));
}

#[test]
fn a_reader_that_goes_away_changes_no_verdict() {
    let folder = TempDir::new("probe-pipe");
    let (file, cases) = (folder.path().join("cluster.yaml"), folder.path().join("cases.json"));
    fs::write(&file, manifests()).unwrap();
    let failing = case("a/web", "allow").to_string();
    fs::write(&cases, failing.repeat(5_000)).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_podgate"))
        .args(["policy", "probe", "-o", "json", "--manifests"])
        .arg(&file)
        .arg("--cases")
        .arg(&cases)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(1));
}
