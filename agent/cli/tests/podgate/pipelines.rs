//! The examples of pipelines: what they find, and with which code they end.

use std::fs;
use std::path::Path;
use std::process::Command;

use testkit::TempDir;

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
