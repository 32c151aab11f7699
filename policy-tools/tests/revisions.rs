//! Revisions of git as input. The folder of the process is the repository, so this is a test alone.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use policy_tools::input::Manifests;
use policy_tools::policy::diff::{Change, compare};
use testkit::TempDir;

fn git(folder: &Path, arguments: &[&str]) {
    let identity = ["-c", "user.name=t", "-c", "user.email=t@example.com"];
    let output = Command::new("git").args(identity).args(arguments).current_dir(folder).output();
    let output = output.expect("git can be run");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn policy(port: u16) -> String {
    format!(
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: db, namespace: \
         shop}}\nspec: {{podSelector: {{matchLabels: {{app: db}}}}, ingress: [{{ports: [{{port: \
         {port}}}]}}]}}\n"
    )
}

#[test]
fn a_revision_is_compared_with_the_files() {
    let folder = TempDir::new("revisions");
    let root = folder.path();
    fs::create_dir_all(root.join("deploy/db")).unwrap();
    let pod =
        "apiVersion: v1\nkind: Pod\nmetadata: {name: db, namespace: shop, labels: {app: db}}\n";
    fs::write(root.join("deploy/pod.yaml"), pod).unwrap();
    fs::write(root.join("deploy/db/policy.yaml"), policy(5432)).unwrap();
    fs::write(root.join("deploy/README.md"), "no manifest").unwrap();
    git(root, &["init", "-q", "-b", "main"]);
    git(root, &["add", "."]);
    git(root, &["commit", "-q", "-m", "first"]);
    fs::write(root.join("deploy/db/policy.yaml"), policy(22)).unwrap();
    git(root, &["commit", "-q", "-a", "-m", "second"]);
    std::env::set_current_dir(root).unwrap();

    let load = |path: &str| Manifests::load(&[PathBuf::from(path)]);
    let (old, new) = (load("HEAD~1:deploy/").unwrap(), load("deploy").unwrap());
    let changes: Vec<_> =
        compare(old, new).unwrap().differences.iter().map(|it| (it.change, it.ports)).collect();
    assert_eq!(changes, [(Change::Opened, Some((22, 22))), (Change::Closed, Some((5432, 5432)))]);
    assert_eq!(load("HEAD:deploy/db/policy.yaml").unwrap().objects.len(), 1);
    assert_eq!(load("HEAD:").unwrap().objects.len(), 2);

    let unknown = load("nowhere:deploy").unwrap_err();
    assert!(unknown[0].starts_with("nowhere:deploy: git: "), "{unknown:?}");
    // Faults name the revision, not the folder that it was written to.
    fs::write(root.join("deploy/db/policy.yaml"), "kind: NetworkPolicy\n").unwrap();
    git(root, &["commit", "-q", "-a", "-m", "third"]);
    let faults = load("HEAD:deploy").unwrap_err();
    assert!(faults[0].starts_with("HEAD:deploy/db/policy.yaml: document 1"), "{faults:?}");
}
