//! `--render`: charts and kustomizations by the user's programs.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use testkit::TempDir;

fn file(folder: &Path, name: &str, text: &str) {
    let path = folder.join(name);
    fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    fs::write(path, text).expect("a file");
}

/// A program in `bin` that prints a policy for one port, or fails.
fn program(folder: &Path, name: &str, script: &str) {
    let path = format!("bin/{name}");
    file(folder, &path, &format!("#!/bin/sh\n{script}\n"));
    fs::set_permissions(folder.join(path), fs::Permissions::from_mode(0o755)).expect("a mode");
}

fn db(port: u16) -> String {
    format!(
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: db, namespace: shop}}\nspec: \
         {{podSelector: {{matchLabels: {{app: db}}}}, ingress: [{{ports: [{{port: {port}}}]}}]}}\n"
    )
}

/// The exit code, and what was printed on stdout and stderr; programs of `bin` alone are there.
fn run(folder: &Path, arguments: &str) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_podgate"))
        .arg("policy")
        .args(arguments.split_whitespace())
        .current_dir(folder)
        .env("PATH", folder.join("bin"))
        .output()
        .expect("the binary runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// A chart, and a base with an overlay that changes it.
fn folder() -> TempDir {
    let folder = TempDir::new("render");
    let at = folder.path();
    file(at, "chart/Chart.yaml", "apiVersion: v2\nname: shop\n");
    file(at, "chart/templates/db.yaml", "{{ if .Values.on }}\nkind: [\n");
    file(at, "app/base/kustomization.yaml", "resources: [db.yaml, pod.yaml]\n");
    let pod =
        "apiVersion: v1\nkind: Pod\nmetadata: {name: db, namespace: shop, labels: {app: db}}\n";
    file(at, "app/base/pod.yaml", pod);
    file(at, "app/base/db.yaml", &db(1));
    let overlay = "resources: [../base]\npatches: [{path: patch.yaml}]\n";
    file(at, "app/prod/kustomization.yaml", overlay);
    file(at, "app/prod/patch.yaml", &db(2));
    let cases = "- {from: internet, to: shop/app=db, port: 5432, expect: deny}\n";
    file(at, "cases.yaml", cases);
    fs::create_dir_all(at.join("bin")).expect("a folder");
    folder
}

#[test]
fn what_programs_make_is_read_in_the_place_of_what_they_make_it_of() {
    let folder = folder();
    let at = folder.path();
    let printed = |port| {
        format!(
            "cat() {{ while read -r line; do echo \"$line\"; done; }}\ncat <<'END'\n{}END",
            db(port)
        )
    };
    program(at, "helm", &format!("[ \"$*\" = 'template chart' ] || exit 3\n{}", printed(5432)));
    program(
        at,
        "kubectl",
        &format!("[ \"$*\" = 'kustomize app/prod' ] || exit 3\n{}", printed(5432)),
    );
    for what in ["chart", "app"] {
        let (code, out, errors) = run(at, &format!("prove --render --manifests {what} cases.yaml"));
        assert_eq!(code, Some(1), "{what}: {errors}");
        assert!(out.contains("by NetworkPolicy shop/db ingress[0]"), "{out}");
        assert_eq!(errors, "", "{what}");
    }
    // The base as it stands, and what the overlay makes of it.
    let (code, out, errors) = run(at, "diff --render app/base app");
    assert_eq!(code, Some(1), "{errors}");
    assert!(out.contains("TCP 5432 from") && out.contains("TCP 1 from"), "{out}");
    let (code, out, errors) = run(at, "lint --render app");
    assert_eq!(code, Some(0), "{out}{errors}");
    // `kustomize` where `kubectl` is not there.
    fs::remove_file(at.join("bin/kubectl")).expect("a file");
    program(
        at,
        "kustomize",
        &format!("[ \"$*\" = 'build app/prod' ] || exit 3\n{}", printed(5432)),
    );
    let (code, _, errors) = run(at, "prove --render --manifests app cases.yaml");
    assert_eq!((code, errors.as_str()), (Some(1), ""));
}

#[test]
fn a_program_that_is_missing_or_fails_is_named() {
    let folder = folder();
    let at = folder.path();
    let (code, _, errors) = run(at, "prove --render --manifests chart cases.yaml");
    assert_eq!(code, Some(2));
    assert!(errors.starts_with("podgate: chart: --render: helm cannot be run: "), "{errors}");
    program(at, "kubectl", "echo 'no such field' >&2; exit 1");
    let (code, _, errors) = run(at, "prove --render --manifests app cases.yaml");
    assert_eq!(code, Some(2));
    assert!(errors.starts_with("podgate: app/prod: --render: kubectl: no such field"), "{errors}");
}

#[test]
fn base_and_overlay_in_one_folder_are_named_as_the_cause_of_a_fault() {
    let folder = folder();
    for command in
        ["diff app/base app", "diff app app/base", "prove --manifests app cases.yaml", "lint app"]
    {
        let (code, out, errors) = run(folder.path(), command);
        assert_eq!(code, Some(2), "{command}");
        let said = format!("{out}{errors}");
        assert!(said.contains("base and overlay are read as they stand"), "{command}: {said}");
        assert!(said.contains("kubectl kustomize app/prod"), "{command}: {said}");
    }
}
