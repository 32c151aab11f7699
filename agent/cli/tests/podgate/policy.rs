//! `podgate policy explain`, `walkthrough`, `test`, `diff` and `lint` from the outside: what they
//! print and with which code they end.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use testkit::TempDir;

const SHOP: &str = "
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
pub(crate) struct Folder(TempDir);

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

    fn run_on(&self, stdin: &str, arguments: &str) -> (i32, String, String) {
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
    assert_eq!(
        folder.run("lint shop.yaml --strict"),
        (0, "0 warnings, 0 errors\n".into(), String::new())
    );
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
        "lint FILE --strict",
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
        out.starts_with("stdin:23:12: warning: NetworkPolicy shop/db: the peer selects"),
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

#[test]
fn help_of_probe_names_cluster_wide_policies() {
    let folder = Folder::new(&[("shop.yaml", SHOP)]);
    for flag in ["-h", "--help"] {
        let (_, help, _) = folder.run(&format!("probe {flag}"));
        assert!(help.contains("clusternetworkpolicy,clusteregressfirewall"), "{help}");
    }
}

/// Runs a command line of a pipeline in a repository, with this build's `podgate` first in PATH.
fn shell(folder: &Path, line: &str) -> (i32, String) {
    let binary = Path::new(env!("CARGO_BIN_EXE_podgate")).parent().unwrap();
    let path = format!("{}:{}", binary.display(), std::env::var("PATH").unwrap());
    let output = Command::new("bash")
        .args(["-c", line])
        .current_dir(folder)
        .envs([("PATH", path.as_str()), ("BASE", "main")])
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(text).unwrap())
}

#[test]
fn the_examples_of_pipelines_find_what_opens() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/examples");
    let folder = TempDir::new("pipeline");
    let root = folder.path();
    let setup = "mkdir deploy && cp -r \"$0\"/applications/{cluster,forum,monitoring,shop} deploy/ && cp \
                 \"$0\"/applications/cases.yaml . && git init -q -b main && git add . && git -c \
                 user.name=t -c user.email=t@example.com commit -q -m first";
    let copied =
        Command::new("bash").args(["-c", setup]).arg(&examples).current_dir(root).status().unwrap();
    assert!(copied.success());

    // The commands of both files, by the name of their step.
    let read = |name: &str| fs::read_to_string(examples.join("ci").join(name)).unwrap();
    let workflow = read("github-workflow.yaml");
    let hooks = read("pre-commit-config.yaml");
    let steps = workflow.lines().filter_map(|it| it.trim().strip_prefix("run: podgate-policy"));
    let entries = hooks.lines().filter_map(|it| it.trim().strip_prefix("entry: podgate-policy"));
    let lines: Vec<String> =
        steps.chain(entries).map(|line| format!("podgate policy{line}")).collect();
    assert_eq!(lines.len(), 6, "{lines:?}");
    for line in &lines {
        let (code, said) = shell(root, line);
        assert_eq!(code, 0, "{line}: {said}");
    }
    let comment = fs::read_to_string(root.join("diff.md")).unwrap();
    assert_eq!(comment, "**Policies:** 0 opened, 0 closed, 0 decided by another rule\n");

    // One opened port: a comment, and no commit.
    let file = root.join("deploy/shop/policies.yaml");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(
        &file,
        text.replacen("- port: postgres\n", "- port: postgres\n        - port: 22\n", 1),
    )
    .unwrap();
    let codes: Vec<i32> = lines.iter().map(|line| shell(root, line).0).collect();
    // Lint finds in both that no container has the port.
    assert_eq!(codes, [1, 0, 0, 1, 0, 1]);
    let comment = fs::read_to_string(root.join("diff.md")).unwrap();
    let opened = "| shop-data/orders-db | TCP 22 | shop/checkout, shop/cleanup | default-deny of \
                  NetworkPolicy shop-data/orders-db | NetworkPolicy shop-data/orders-db ingress[0] |";
    assert!(comment.contains(opened), "{comment}");
}

#[test]
fn names_are_asked_about_with_the_addresses_that_are_given() {
    let names = SHOP.to_owned()
        + "---
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: outside}
spec:
  tier: Admin
  priority: 1
  subject: {namespaces: {}}
  egress:
  - action: Accept
    to: [{domainNames: [api.example.com]}]
    protocols: [{tcp: {destinationPort: {number: 443}}}]
  - action: Deny
    to: [{networks: [0.0.0.0/0]}]
";
    let cases = "- {from: shop/app=web, to: api.example.com, port: 443, expect: allow}\n\
                 - {from: shop/app=web, to: api.example.com, port: 80, expect: deny}\n";
    let folder = Folder::new(&[("shop.yaml", &names), ("cases.yaml", cases)]);
    let resolve = "--resolve api.example.com=192.0.2.7 --resolve api.example.com=192.0.2.8";
    let explain = |arguments: &str| {
        folder.run(&format!("explain shop/web api.example.com --manifests shop.yaml {arguments}"))
    };
    let (code, out, _) = explain(&format!("--port 443 {resolve}"));
    assert_eq!(code, 0, "{out}");
    assert!(out.contains("by ClusterNetworkPolicy outside egress[0]"), "{out}");
    assert!(out.contains("192.0.2.8: allow"), "{out}");
    assert_eq!(explain(&format!("--port 80 {resolve}")).0, 1);
    let (code, _, said) = explain("--port 443");
    assert_eq!(code, 2);
    assert!(said.contains("api.example.com has no address"), "{said}");
    assert_eq!(explain("--port 443 --resolve api.example.com=nowhere").0, 2);
    let (code, out, _) = folder.run(&format!("test --manifests shop.yaml cases.yaml {resolve}"));
    assert_eq!(code, 0, "{out}");
    let probe = format!("probe --manifests shop.yaml --cases - -o json {resolve}");
    fs::write(
        folder.0.path().join("question"),
        r#"{"from": "shop/web", "to": "api.example.com", "protocol": "TCP", "port": 443, "expect": "allow"}"#,
    )
    .unwrap();
    let (code, out, _) = folder.run_on("question", &probe);
    let answer: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &answer["reason"]), (0, &json!("policy-allowed")), "{out}");
    let own = "explain shop/web api.example.com --manifests shop.yaml --port 443 \
               --resolve api.example.com=169.254.169.254";
    let (code, _, said) = folder.run(own);
    assert_eq!(code, 1);
    assert!(said.contains("169.254.169.254: an address of the cluster or a special one"), "{said}");
}

#[test]
fn the_kinds_of_v1alpha1_count_in_every_offline_command() {
    let policies = SHOP.to_owned()
        + "---
apiVersion: policy.networking.k8s.io/v1alpha1
kind: AdminNetworkPolicy
metadata: {name: monitoring}
spec:
  priority: 10
  subject: {namespaces: {}}
  ingress:
  - name: metrics
    action: Allow
    from: [{namespaces: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}]
    ports: [{portNumber: {protocol: TCP, port: 9187}}]
  - action: Pass
    from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: web}}}}]
    ports: [{portRange: {protocol: TCP, start: 5000, end: 6000}}]
  - action: Deny
    from: [{namespaces: {matchLabels: {kubernetes.io/metadata.name: shop}}}]
    ports: [{portRange: {start: 9000, end: 10000}}]
---
apiVersion: policy.networking.k8s.io/v1alpha1
kind: BaselineAdminNetworkPolicy
metadata: {name: default}
spec:
  subject: {namespaces: {}}
  ingress:
  - action: Deny
    from: [{namespaces: {}}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: scraper, namespace: monitoring}
spec: {template: {metadata: {labels: {app: scraper}}}}
";
    let cases = "\
- {from: monitoring/app=scraper, to: shop/app=db, port: 9187, expect: allow}
- {from: monitoring/app=scraper, to: shop/app=db, port: 5432, expect: deny}
- {from: shop/app=web, to: shop/app=db, port: 5432, expect: allow}
- {from: shop/app=web, to: shop/app=db, port: 5433, expect: deny}
- {from: shop/app=db, to: shop/app=web, port: 9000, expect: deny}
- {from: shop/app=db, to: shop/app=web, port: 80, expect: deny}
- {from: internet, to: shop/app=web, port: 80, expect: allow}
- {from: any-pod, to: shop/app=web, port: 80, expect: deny}
";
    let statements = "- {name: no pod reaches the web, from: any-pod, to: shop/app=web, protocol: TCP, \
                      port: 80, expect: deny}\n";
    let folder = Folder::new(&[
        ("shop.yaml", SHOP),
        ("all.yaml", &policies),
        ("cases.yaml", cases),
        ("statements.yaml", statements),
    ]);
    let (code, out, errors) = folder.run("test --manifests all.yaml cases.yaml");
    assert_eq!(code, 0, "{out}{errors}");
    let by = |connection: &str| {
        let (_, out, errors) =
            folder.run(&format!("explain {connection} --manifests all.yaml -o json"));
        let answer: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{errors}"));
        answer["by"].clone()
    };
    let admin = by("monitoring/scraper shop/db --port 9187");
    assert_eq!(admin, json!(["AdminNetworkPolicy monitoring ingress[0]"]));
    let base = by("shop/db shop/web --port 80");
    assert_eq!(base, json!(["BaselineAdminNetworkPolicy default ingress[0]"]));
    let (code, out, errors) = folder.run("prove --manifests all.yaml statements.yaml");
    assert_eq!(code, 0, "{out}{errors}");
    let (code, out, errors) = folder.run("diff all.yaml shop.yaml");
    assert_eq!(code, 1, "{out}{errors}");
    assert!(out.contains("BaselineAdminNetworkPolicy default ingress[0]"), "{out}");
    let (code, out, errors) = folder.run("lint all.yaml --strict");
    assert_eq!(code, 0, "{out}{errors}");
    // What the schema forbids makes the set unusable, as with a ClusterNetworkPolicy.
    let wrong = policies.replace("action: Allow", "action: Accept");
    fs::write(folder.0.path().join("all.yaml"), wrong).unwrap();
    let (code, _, errors) = folder.run("test --manifests all.yaml cases.yaml");
    assert_eq!(code, 2);
    let fault = "(AdminNetworkPolicy monitoring): spec.ingress[0].action: is none of";
    assert!(errors.contains(fault), "{errors}");
}
