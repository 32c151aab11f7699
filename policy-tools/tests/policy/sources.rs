//! A live cluster as input, alone and below files; standard YAML that is none.

use std::fs;

use policy_tools::input::Manifests;
use policy_tools::policy::diff::{Change, compare};
use policy_tools::policy::lint::lint;
use serde_json::json;
use testkit::TempDir;
use testkit::api_server::ApiServer;

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
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let faults = Manifests::load_over(&[folder.path().to_owned()], None).unwrap_err();
    let [fault] = &faults[..] else { panic!("{faults:?}") };
    assert!(fault.contains("pipe.yaml") && fault.contains("no regular file"), "{fault}");
}

#[test]
fn files_on_top_of_a_live_cluster_replace_its_objects() {
    let server = server();
    let kubeconfig = server.kubeconfig();
    let live = Manifests::load_over(&[], Some(&kubeconfig)).unwrap();
    assert_eq!(live.objects.len(), 3);
    let folder = TempDir::new("sources");
    let file = folder.path().join("db.json");
    fs::write(&file, policy(22).to_string()).unwrap();
    let whole = Manifests::load_over(std::slice::from_ref(&file), Some(&kubeconfig)).unwrap();
    assert_eq!(whole.objects.len(), 3);
    let found = compare(live, whole).unwrap();
    let changes: Vec<_> = found.differences.iter().map(|it| (it.change, it.ports)).collect();
    assert_eq!(changes, [(Change::Opened, Some((22, 22))), (Change::Closed, Some((5432, 5432)))]);
    // Alone, the policy selects nobody; in the cluster it does.
    let alone = lint(std::slice::from_ref(&file), None).unwrap();
    assert!(alone.iter().any(|it| it.code == "selects-no-pod"), "{alone:?}");
    assert_eq!(lint(&[file], Some(&kubeconfig)).unwrap(), []);
}

#[test]
fn a_cluster_that_cannot_be_reached_is_named_with_the_cause() {
    let mut server = server();
    let kubeconfig = server.kubeconfig();
    let address = server.address();
    server.go_away();
    let faults = Manifests::load_over(&[], Some(&kubeconfig)).unwrap_err();
    assert!(faults[0].contains(&address.to_string()), "{faults:?}");
    assert!(faults[0].contains("refused"), "{faults:?}");
    let faults = Manifests::load_over(&[], Some("/nowhere/kubeconfig".as_ref())).unwrap_err();
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
    // A file that is broken is a fault wherever it is.
    fs::write(folder.path().join("broken.yaml"), "kind: [").unwrap();
    assert!(Manifests::load(&[folder.path().to_path_buf()]).is_err());
}
