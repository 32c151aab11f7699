//! `podgate policy explain`, `walkthrough`, `test`, `diff` and `lint` from the outside: what they
//! print and with which code they end.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use testkit::TempDir;

/// A workload, the database that it uses, and the policy of that.
pub(crate) const SHOP: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec: {template: {metadata: {labels: {app: web}}}}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, namespace: shop}
spec: {template: {metadata: {labels: {app: db}}}}
---
apiVersion: v1
kind: Service
metadata: {name: db, namespace: shop}
spec: {selector: {app: db}, ports: [{port: 5432}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db, namespace: shop}
spec:
  podSelector: {matchLabels: {app: db}}
  ingress:
  - from: [{podSelector: {matchLabels: {app: web}}}]
    ports: [{port: 5432}]
";

/// A folder of files, and `podgate policy` run inside it.
pub(crate) struct Folder(pub(crate) TempDir);

impl Folder {
    pub(crate) fn new(files: &[(&str, &str)]) -> Self {
        let folder = TempDir::new("policy-command");
        for (name, text) in files {
            let path: PathBuf = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Self(folder)
    }

    /// The exit code, and what was printed on stdout and stderr; standard input is `shop.yaml`.
    pub(crate) fn run(&self, arguments: &str) -> (i32, String, String) {
        self.run_on("shop.yaml", arguments)
    }

    pub(crate) fn run_on(&self, stdin: &str, arguments: &str) -> (i32, String, String) {
        let output = Command::new(env!("CARGO_BIN_EXE_podgate"))
            .arg("policy")
            .args(arguments.split_whitespace())
            .current_dir(self.0.path())
            .stdin(fs::File::open(self.0.path().join(stdin)).unwrap())
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    }
}

#[test]
fn explain_gives_the_switchs_answer_to_services_and_to_the_own_cluster_node() {
    let folder = Folder::new(&[("shop.yaml", SHOP)]);
    let explain =
        |arguments: &str| folder.run(&format!("explain {arguments} --manifests shop.yaml -o json"));
    let (code, out, _) = explain("shop/web service/shop/db --port 5432");
    let answer: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &answer["verdict"]), (0, &json!("allow")), "{out}");
    assert_eq!(answer["by"], json!(["NetworkPolicy shop/db ingress[0]"]));
    assert_eq!(answer["ingress"]["selecting"], json!(["NetworkPolicy shop/db"]));
    assert_eq!(answer["connections"][0]["to"], "shop/db");
    let (code, out, _) = explain("node/(unscheduled) shop/db --port 1");
    assert_eq!(code, 0, "{out}");
    let (code, out, _) = folder.run("explain shop/db shop/web --port 1 --manifests -");
    assert!(code == 0 && out.contains("no policy selects it for ingress"), "{out}");
    let (code, out, _) = folder.run("explain shop/web shop/db --port 1 --manifests shop.yaml");
    assert_eq!(code, 1);
    let by = "default-deny of NetworkPolicy shop/db";
    assert!(
        out.starts_with(&format!("The connection may not be opened: policy-denied, by {by}\n")),
        "{out}"
    );
    // An address that a case names is never one that a pod without an address gets.
    let (_, out, _) = explain("10.244.0.2 shop/db --port 5432");
    let answer: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&answer["verdict"], &answer["egress"]), (&json!("deny"), &Value::Null), "{out}");
    let (code, out, errors) = explain("shop/ghost shop/db");
    assert_eq!((code, out.as_str()), (2, ""));
    assert_eq!(errors, "podgate: Pod shop/ghost is not in the manifests\n");
}

#[test]
fn walkthrough_lists_the_own_cluster_node_and_peers_that_select_nothing() {
    let folder = Folder::new(&[(
        "shop.yaml",
        &SHOP.replace(
            "[{podSelector: {matchLabels: {app: web}}}]",
            "[{podSelector: {matchLabels: {app: wbe}}}]",
        ),
    )]);
    let (code, out, _) = folder.run("walkthrough shop/db --manifests shop.yaml");
    assert_eq!(code, 0);
    assert!(out.contains("allow everything from its own node"), "{out}");
    assert!(out.contains("now: selects no pod"), "{out}");
}

#[test]
fn test_ends_with_what_its_cases_come_to() {
    let folder = Folder::new(&[
        ("shop.yaml", SHOP),
        ("good.yaml", "- {from: shop/app=web, to: service/shop/db, port: 5432, expect: allow}\n"),
        ("bad.yaml", "- {name: b, from: internet, to: shop/app=db, port: 5432, expect: allow}\n"),
        ("typo.yaml", "- {from: shop/web, to: shop/db, port: 1, expct: deny}\n"),
        ("empty.yaml", "[]\n"),
    ]);
    let (code, out, _) = folder.run("test --manifests shop.yaml good.yaml");
    assert_eq!(code, 0, "{out}");
    assert!(out.ends_with("1 case, 0 failed\n"), "{out}");
    let (code, out, _) = folder.run("test --manifests shop.yaml good.yaml bad.yaml -o json");
    let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(code, 1);
    assert_eq!([&lines[0]["holds"], &lines[1]["holds"]], [true, false]);
    let (code, out, _) = folder.run("test --manifests shop.yaml bad.yaml -o github");
    assert!(code == 1 && out.starts_with("::error file=bad.yaml,line=1,title=b::"), "{out}");
    for unusable in ["typo.yaml", "empty.yaml", "missing.yaml"] {
        let (code, out, errors) = folder.run(&format!("test --manifests shop.yaml {unusable}"));
        assert_eq!((code, out.as_str()), (2, ""), "{errors}");
        assert!(errors.starts_with(&format!("podgate: {unusable}: ")), "{errors}");
    }
}

#[test]
fn diff_ends_with_what_opens() {
    let opened = SHOP.replace("port: 5432}]\n", "port: 5432}, {port: 22}]\n");
    assert_ne!(opened, SHOP);
    let folder =
        Folder::new(&[("shop.yaml", SHOP), ("old/all.yaml", SHOP), ("new/all.yaml", &opened)]);
    let (code, out, _) = folder.run("diff old new");
    assert_eq!(code, 1, "{out}");
    assert!(out.starts_with("Opened:\n  shop/db TCP 22 from shop/web\n"), "{out}");
    assert_eq!(folder.run("diff new old").0, 0, "what closes fails only where it is to");
    assert_eq!(folder.run("diff new old --fail-on any").0, 1);
    assert_eq!(folder.run("diff old new --fail-on never").0, 0);
    let (code, out, _) = folder.run("diff old new -o json");
    let all: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &all["opened"][0]["ports"]), (1, &json!([22, 22])));
    let (_, out, _) = folder.run("diff old new -o markdown");
    assert!(out.contains("| shop/db | TCP 22 | shop/web |"), "{out}");
    assert_eq!(folder.run("diff old missing").0, 2);
}

#[test]
fn lint_fails_only_where_it_is_strict_or_nothing_can_be_read() {
    let mistake = SHOP.replace("from: [{podSelector: {matchLabels: {app: web}}}]", "from: []");
    let folder = Folder::new(&[
        ("shop.yaml", SHOP),
        ("mistake.yaml", &mistake),
        ("broken.yaml", "kind: [\n"),
    ]);
    let summary = "0 warnings, 0 errors\n".to_owned();
    assert_eq!(folder.run("lint shop.yaml"), (0, summary, String::new()));
    // Workloads that no policy selects are noted there, and do not count.
    let (code, out, errors) = folder.run("lint shop.yaml --strict");
    let note = "Deployment shop/web: no policy selects its pods";
    assert!(code == 0 && out.contains(note) && out.contains(" 0 errors"), "{out}{errors}");
    let (code, out, _) = folder.run("lint mistake.yaml");
    assert_eq!(code, 0);
    assert!(out.starts_with("mistake.yaml:23:11: warning: NetworkPolicy shop/db: "), "{out}");
    assert!(out.contains("[opens-to-all]"), "{out}");
    assert_eq!(folder.run("lint mistake.yaml --strict").0, 1);
    let (code, out, errors) = folder.run("lint broken.yaml");
    assert_eq!((code, out.as_str()), (2, ""), "{errors}");
    assert!(errors.contains("broken.yaml"), "{errors}");
}

/// A verdict of `podgate observe -o json`.
const SEEN: &str = r#"{"time":"2026-11-21T02:25:35Z","node":"n","verdict":"forward","reason":"policy-allowed","from":{"pod":"shop/web","ip":"10.1.0.3","port":4100},"to":{"pod":"shop/db","ip":"10.1.0.2","port":5432},"protocol":"TCP"}
"#;

#[test]
fn every_command_reads_manifests_from_standard_input_as_from_a_file() {
    let case = "- {from: shop/web, to: shop/db, protocol: TCP, port: 5432, expect: allow}\n";
    let folder = Folder::new(&[("shop.yaml", SHOP), ("cases.yaml", case), ("seen.json", SEEN)]);
    for arguments in [
        "probe --manifests FILE --port 5432 -o json",
        "probe --manifests FILE --cases cases.yaml",
        "explain shop/web shop/db --port 5432 --manifests FILE",
        "walkthrough shop/db --manifests FILE",
        "test --manifests FILE cases.yaml",
        "lint FILE",
        "diff FILE shop.yaml",
        "diff shop.yaml FILE",
        "picture --manifests FILE -o svg",
        "suggest --manifests FILE --observed seen.json",
    ] {
        let of_file = folder.run(&arguments.replace("FILE", "shop.yaml"));
        assert_eq!(of_file.0, 0, "{arguments}: {of_file:?}");
        assert_eq!(folder.run(&arguments.replace("FILE", "-")), of_file, "{arguments}");
    }
    // What else is read from there, alone.
    assert_eq!(folder.run_on("cases.yaml", "test --manifests shop.yaml -").0, 0);
    assert_eq!(folder.run_on("cases.yaml", "probe --manifests shop.yaml --cases -").0, 0);
    assert_eq!(folder.run_on("seen.json", "suggest --manifests shop.yaml --observed -").0, 0);
    for both in [
        "test --manifests - -",
        "probe --manifests - --cases -",
        "suggest --manifests - --observed -",
        "diff - -",
    ] {
        let (code, _, errors) = folder.run(both);
        assert_eq!((code, errors.as_str()), (2, "podgate: stdin: can be read once\n"), "{both}");
    }
}

#[test]
fn lint_names_places_of_standard_input_and_says_nothing_of_libraries() {
    let folder = Folder::new(&[
        ("mistake.yaml", &SHOP.replace("app: web}}}]", "app: wbe}}}]")),
        ("twice.yaml", "kind: Pod\napiVersion: v1\nkind: Pod\n"),
        ("alias.yaml", "kind: *nothing\n"),
        ("open.yaml", "kind: [\n"),
    ]);
    let (code, out, _) = folder.run_on("mistake.yaml", "lint - --strict");
    assert_eq!(code, 1);
    assert!(
        out.contains("\nstdin:23:12: warning: NetworkPolicy shop/db: the peer selects"),
        "{out}"
    );
    assert!(out.ends_with("1 warning, 0 errors\n"), "{out}");
    for (file, says) in [
        ("twice.yaml", "is no YAML: \"kind\" is given twice (line 3, column 1)"),
        ("alias.yaml", "is no YAML: an alias refers to no anchor (line 1, column 7)"),
        ("open.yaml", "is no YAML: "),
    ] {
        for arguments in ["lint -", "probe --manifests -", "test --manifests mistake.yaml -"] {
            let (code, _, errors) = folder.run_on(file, arguments);
            assert_eq!(code, 2, "{arguments} {file}: {errors}");
            assert!(errors.contains(says), "{arguments} {file}: {errors}");
            for word in ["Options", "DuplicateKeyPolicy", "saphyr", "Error"] {
                assert!(!errors.contains(word), "{arguments} {file}: {errors}");
            }
        }
    }
}

/// Names of fields in lower case, joined by `_`.
fn assert_spelling(value: &Value, at: &str) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let is_fine =
                    name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
                assert!(is_fine, "{at}: {name}");
                assert_spelling(value, &format!("{at}.{name}"));
            }
        }
        Value::Array(list) => list.iter().for_each(|it| assert_spelling(it, at)),
        _ => {}
    }
}

#[test]
fn fields_of_json_are_spelt_alike() {
    let mistake = SHOP.replace("ports: [{port: 5432}]\n", "ports: [{port: 5432}, {port: sql}]\n");
    let case = "- {from: shop/web, to: shop/db, protocol: TCP, port: 5432, expect: allow}\n";
    let folder = Folder::new(&[
        ("shop.yaml", SHOP),
        ("mistake.yaml", &mistake),
        ("cases.yaml", case),
        ("seen.json", SEEN),
    ]);
    for arguments in [
        "probe --manifests shop.yaml --port 5432",
        "probe --manifests shop.yaml --cases cases.yaml",
        "explain shop/web service/shop/db --port 5432 --manifests shop.yaml",
        "walkthrough shop/db --manifests mistake.yaml",
        "test --manifests shop.yaml cases.yaml",
        "lint mistake.yaml",
        "diff shop.yaml mistake.yaml",
    ] {
        let (_, out, errors) = folder.run(&format!("{arguments} -o json"));
        assert!(!out.is_empty(), "{arguments}: {errors}");
        for line in out.lines() {
            assert_spelling(&serde_json::from_str(line).unwrap(), arguments);
        }
    }
    // Policies are Kubernetes' own objects; the rest is ours.
    let (_, out, _) = folder.run("suggest --manifests shop.yaml --observed seen.json -o json");
    let mut suggested: Value = serde_json::from_str(&out).unwrap();
    assert!(suggested["policies"].take().is_array());
    assert_spelling(&suggested, "suggest");
}
