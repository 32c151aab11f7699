//! A live cluster as input, alone and below files; standard YAML that is none.

use std::fs;
use std::path::{Path, PathBuf};

use policy_tools::input::{Manifests, Reading};
use policy_tools::policy::diff::{Change, compare};
use policy_tools::policy::lint::{LintOptions, Linted, lint};
use serde_json::json;
use testkit::TempDir;
use testkit::api_server::ApiServer;

use super::deployment;

/// A server with two pods of a Deployment and a policy.
fn server() -> ApiServer {
    let server = ApiServer::new();
    let pod = |name: &str, app: &str| {
        json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "shop", "labels": {"app": app}},
            "spec": {"nodeName": "n"}, "status": {"podIPs": [{"ip": if app == "web" { "10.1.0.3" } else { "10.1.0.4" }}]}})
    };
    server.apply(pod("web", "web"));
    server.apply(pod("db", "db"));
    server.apply(policy(5432));
    server
}

/// Files on top of a live cluster.
fn over(paths: &[PathBuf], kubeconfig: &Path) -> Result<Manifests, Vec<String>> {
    Manifests::load_over(paths, Some(kubeconfig), &Reading::default())
}

fn policy(port: u16) -> serde_json::Value {
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": "db", "namespace": "shop"},
        "spec": {"podSelector": {"matchLabels": {"app": "db"}},
            "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "web"}}}], "ports": [{"port": port}]}]}})
}

#[test]
fn a_fifo_in_a_folder_is_a_fault_and_holds_nothing_up() {
    let folder = TempDir::new("fifo");
    fs::write(folder.path().join("policy.json"), policy(1).to_string()).unwrap();
    let fifo = folder.path().join("pipe.yaml");
    testkit::make_fifo(&fifo);
    let faults = Manifests::load(&[folder.path().to_owned()]).unwrap_err();
    let [fault] = &faults[..] else { panic!("{faults:?}") };
    assert!(fault.contains("pipe.yaml") && fault.contains("no regular file"), "{fault}");
}

#[test]
fn files_on_top_of_a_live_cluster_replace_its_objects() {
    let server = server();
    let kubeconfig = server.kubeconfig();
    let live = over(&[], &kubeconfig).unwrap();
    assert_eq!(live.objects.len(), 3);
    let folder = TempDir::new("sources");
    let file = folder.path().join("db.json");
    fs::write(&file, policy(22).to_string()).unwrap();
    let whole = over(std::slice::from_ref(&file), &kubeconfig).unwrap();
    assert_eq!(whole.objects.len(), 3);
    let found = compare(live, whole).unwrap();
    let changes: Vec<_> = found.differences.iter().map(|it| (it.change, it.ports)).collect();
    assert_eq!(changes, [(Change::Opened, Some((22, 22))), (Change::Closed, Some((5432, 5432)))]);
    // The file's other pod is not selected; a pod of the cluster is.
    let beside = folder.path().join("web.yaml");
    fs::write(&beside, deployment("shop", "web", "")).unwrap();
    let alone = lint(&[file.clone(), beside], &LintOptions::default()).unwrap().findings;
    assert!(alone.iter().any(|it| it.code == "selects-no-pod"), "{alone:?}");
    assert_eq!(
        lint(&[file], &LintOptions { cluster: Some(&kubeconfig), ..LintOptions::default() })
            .unwrap(),
        Linted::default()
    );
}

#[test]
fn a_cluster_that_cannot_be_reached_is_named_with_the_cause() {
    let mut server = server();
    let kubeconfig = server.kubeconfig();
    let address = server.address();
    server.go_away();
    let faults = over(&[], &kubeconfig).unwrap_err();
    assert!(faults[0].contains(&address.to_string()), "{faults:?}");
    assert!(faults[0].contains("refused"), "{faults:?}");
    let faults = over(&[], Path::new("/nowhere/kubeconfig")).unwrap_err();
    assert!(faults[0].contains("/nowhere/kubeconfig"), "{faults:?}");
}

#[test]
fn a_template_of_a_chart_is_skipped_inside_a_folder_and_a_fault_by_name() {
    let folder = TempDir::new("sources");
    let template = folder.path().join("template.yaml");
    fs::write(folder.path().join("policy.json"), policy(1).to_string()).unwrap();
    fs::write(
        &template,
        "{{- if .Values.on }}\nkind: Pod\nmetadata: {name: {{ .Values.name }}\n{{- end }}\n",
    )
    .unwrap();
    let found = Manifests::load(&[folder.path().to_path_buf()]).unwrap();
    let note = format!("{}: skipped: a template of a chart; render it first", template.display());
    assert_eq!(found.skipped, [note]);
    assert!(Manifests::load(&[template]).is_err());
    // So is data that is not even JSON; a manifest that is broken is a fault wherever it is.
    fs::write(folder.path().join("ratings.json"), "{rating: 1}\n{rating: 2}\n").unwrap();
    let found = Manifests::load(&[folder.path().to_path_buf()]).unwrap();
    let data = folder.path().join("ratings.json");
    assert_eq!(found.skipped[0], format!("{}: skipped: no Kubernetes object", data.display()));
    assert!(Manifests::load(&[data]).is_err());
    fs::write(folder.path().join("broken.yaml"), "kind: [").unwrap();
    assert!(Manifests::load(&[folder.path().to_path_buf()]).is_err());
}

/// Writes files below a folder.
fn files(folder: &TempDir, files: &[(&str, &str)]) {
    for (name, text) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
}

const NETWORK_POLICY: &str = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n";

#[test]
fn a_chart_is_left_out_and_the_command_that_renders_it_is_named() {
    let folder = TempDir::new("sources");
    let quoted = NETWORK_POLICY.to_owned()
        + "metadata: {name: \"{{ .Release.Name }}\"}\nspec: {podSelector: {}}\n";
    files(
        &folder,
        &[
            ("shop/Chart.yaml", "apiVersion: v2\nname: shop\nversion: 0.1.0\n"),
            ("shop/values.yaml", "on: true\n"),
            ("shop/templates/pod.yaml", "{{- if .Values.on }}\nkind: Pod\n{{- end }}\n"),
            ("shop/templates/policy.yaml", &quoted),
            ("shop/charts/db/Chart.yaml", "apiVersion: v2\nname: db\n"),
            ("shop/charts/db/templates/policy.yaml", &quoted),
        ],
    );
    let chart = folder.path().join("shop");
    let (at, shown) = (chart.join("Chart.yaml"), chart.display());
    let note = format!(
        "{}: skipped: a Helm chart; use --render, or run `helm template {shown} > all.yaml` and read all.yaml",
        at.display()
    );
    for path in [chart.clone(), folder.path().to_path_buf(), chart.join("templates")] {
        let nothing = format!("{}: holds no objects", path.display());
        assert_eq!(
            Manifests::load(std::slice::from_ref(&path)).unwrap_err(),
            [nothing, note.clone()]
        );
        let said = lint(std::slice::from_ref(&path), &LintOptions::default()).unwrap_err();
        assert_eq!(said.last(), Some(&note), "{said:?}");
    }
    // Beside a chart, objects count.
    fs::write(folder.path().join("policy.json"), policy(1).to_string()).unwrap();
    let found = Manifests::load(&[folder.path().to_path_buf()]).unwrap();
    assert_eq!((found.objects.len(), found.skipped), (1, vec![note]));
}

#[test]
fn a_kustomization_that_changes_objects_is_named_with_the_command() {
    let folder = TempDir::new("sources");
    let policy = |spec: &str| NETWORK_POLICY.to_owned() + "metadata: {name: web}\n" + spec;
    files(
        &folder,
        &[
            ("base/kustomization.yaml", "resources: [policy.yaml]\n"),
            ("base/policy.yaml", &policy("spec: {podSelector: {}}\n")),
            (
                "prod/kustomization.yml",
                "kind: Kustomization\nresources: [../base]\npatches: [{path: patch.yaml}]\n",
            ),
            ("prod/patch.yaml", &policy("spec: {podSelector: {}, ingress: [{}]}\n")),
        ],
    );
    let path = |name: &str| folder.path().join(name);
    let load = |name: &str| Manifests::load(&[path(name)]);
    let note = |cause: &str| {
        format!(
            "{}: a kustomization is not applied, {cause}; use --render, or run `kubectl kustomize {} > all.yaml` and \
             read all.yaml",
            path("prod/kustomization.yml").display(),
            path("prod").display()
        )
    };
    assert_eq!(load("base").unwrap().skipped, Vec::<String>::new(), "its files are what it makes");
    assert_eq!(load("prod").unwrap().skipped, [note("it is read as it stands")]);
    let faults = load("").unwrap_err();
    assert!(faults[0].contains("differs from document 1 of"), "{faults:?}");
    let both = note("base and overlay are read as they stand");
    assert_eq!(faults[1..], *std::slice::from_ref(&both));
    let found = lint(&[path("")], &LintOptions::default()).unwrap().findings;
    let said: Vec<String> = found.iter().map(|it| format!("{}: {}", it.file, it.message)).collect();
    assert!(said.contains(&both), "{said:?}");
    // Without a patch of the same object, both may be read, with the note.
    fs::write(path("prod/kustomization.yml"), "resources: [../base]\nnamespace: prod\n").unwrap();
    fs::remove_file(path("prod/patch.yaml")).unwrap();
    assert_eq!(load("").unwrap().skipped, std::slice::from_ref(&both));
    let linted = lint(&[path("")], &LintOptions::default()).unwrap();
    assert_eq!(linted, Linted { notes: vec![both], ..Linted::default() });
    fs::write(path("prod/kustomization.yml"), "resources: [../base]\n").unwrap();
    assert_eq!(load("").unwrap().skipped, Vec::<String>::new());
}

#[test]
fn lists_of_a_kind_are_read_and_checked_as_their_items_are() {
    let folder = TempDir::new("sources");
    let list = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicyList\nitems:\n\
                - metadata: {name: web, namespace: shop}\n  spec: {podSelector: {matchLabels: {app: wbe}}}\n\
                ---\napiVersion: policy.networking.k8s.io/v1alpha1\nkind: AdminNetworkPolicyList\n\
                items:\n- metadata: {name: all}\n  spec: {priority: 1, subject: {namespaces: {}}}\n\
                ---\napiVersion: apps/v1\nkind: DeploymentList\nitems:\n\
                - metadata: {name: web, namespace: shop}\n  spec: {template: {metadata: {labels: \
                {app: web}}}}\n";
    files(&folder, &[("lists.yaml", list)]);
    let found = Manifests::load(&[folder.path().to_path_buf()]).unwrap();
    let names: Vec<String> =
        found.objects.iter().map(|object| object.reference().to_string()).collect();
    assert_eq!(names, ["NetworkPolicy shop/web", "AdminNetworkPolicy all", "Pod shop/web"]);
    let found = lint(&[folder.path().to_path_buf()], &LintOptions::default()).unwrap().findings;
    let said = |it: &policy_tools::policy::lint::Finding| {
        format!("{}:{} {} {}", it.line, it.column, it.object, it.code)
    };
    let said: Vec<String> = found.iter().map(said).collect();
    assert_eq!(said, ["5:23 NetworkPolicy shop/web selects-no-pod"]);
}
