//! A saved state of another cluster.

use local_api::Verdict;
use serde_json::{Value, json};
use testkit::api_server::ApiServer;

use crate::api_server::{cluster, in_force, ready, start};
use crate::kernel::Kernel;
use crate::node::{Node, NodeFiles, until};
use crate::{DB, WEB, syn};

/// The cluster's own namespace, with this UID.
fn kube_system(uid: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": "kube-system", "uid": uid}})
}

/// Starts a switch of cluster `first` with a connection from `web` to `db`, and ends it.
fn leave_state(files: &NodeFiles, server: &ApiServer) -> Kernel {
    cluster(server);
    server.apply(kube_system("first"));
    let node = start(files, server, Kernel::default());
    until(|| ready(&node));
    let (db, web) = (node.attach("db", DB), node.attach("web", WEB));
    web.send(&syn(WEB, DB, 80));
    db.expects(&syn(WEB, DB, 80), DB);
    until(|| node.status().source.saved.is_some());
    assert_eq!(node.status().sessions.used, 1);
    node.stop()
}

/// Saves an address of a domain name for `web`, as a switch does.
fn leave_name(files: &NodeFiles) {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let head = json!({"saved_at": now.as_secs()});
    let name = json!({"pod": {"namespace": "default", "name": "web"}, "name": "www.example.org",
        "address": "192.0.2.80", "left_s": 3600});
    std::fs::write(files.path("state/names"), format!("{head}\n{name}\n")).unwrap();
}

fn knows_name(node: &Node) -> bool {
    node.show("names").unwrap().contains("192.0.2.80")
}

/// No address of a domain name is left, neither in memory nor on disk.
fn name_is_gone(files: &NodeFiles, node: &Node) -> bool {
    let saved = std::fs::read_to_string(files.path("state/names")).unwrap();
    !knows_name(node) && !saved.contains("192.0.2.80")
}

/// Everything is closed, and `status` says why.
fn refused_state(node: &Node) {
    let status = node.status();
    let why = status.source.restore_error.clone().unwrap();
    assert!(why.contains("another cluster") && why.contains("'first'"), "{why}");
    assert!(status.to_string().contains("saved state not used"), "{status}");
    assert!(status.ports.iter().filter(|port| port.name != "host").all(|port| port.closed));
    assert!(!status.objects.contains_key("Pod"), "{:?}", status.objects);
}

#[test]
fn a_saved_state_of_another_cluster_is_refused_at_the_start() {
    let server = ApiServer::new();
    let files = NodeFiles::new("other-cluster");
    let kernel = leave_state(&files, &server);

    // The same cluster again: state and connections continue, before everything is listed.
    server.forbid("endpointslices", true);
    let node = start(&files, &server, kernel);
    let status = node.status();
    assert!(status.source.restored_from.is_some() && status.sessions.used == 1, "{status}");
    let kernel = node.stop();

    server.apply(kube_system("second"));
    let node = start(&files, &server, kernel);
    assert!(!ready(&node));
    refused_state(&node);
    assert_eq!(node.status().sessions.used, 0);
    let web = node.taken_up("web", WEB);
    web.send(&syn(WEB, DB, 81));
    let cut = node.wait_for_event(|event| event.to.port == Some(81));
    assert_eq!((cut.verdict, cut.reason.as_str()), (Verdict::Dropped, "closed"));

    // From here on the state is that of the second cluster.
    server.forbid("endpointslices", false);
    until(|| ready(&node));
    until(|| node.status().source.saved.is_some());
    let node = start(&files, &server, node.stop());
    assert!(node.status().source.restored_from.is_some());
}

#[test]
fn a_saved_state_of_another_cluster_ends_when_the_api_server_answers() {
    let mut server = ApiServer::new();
    let files = NodeFiles::new("other-cluster-late");
    let kernel = leave_state(&files, &server);
    leave_name(&files);
    server.go_away();
    let node = start(&files, &server, kernel);
    assert!(ready(&node), "the saved state decides");
    assert!(knows_name(&node));
    let (db, web) = (node.taken_up("db", DB), node.taken_up("web", WEB));
    web.send(&syn(WEB, DB, 81));
    db.expects(&syn(WEB, DB, 81), DB);

    server.apply(kube_system("second"));
    server.forget_history();
    server.forbid("endpointslices", true);
    server.come_back();
    in_force(&node, |status| status.source.restore_error.is_some());
    refused_state(&node);
    until(|| node.status().sessions.used == 0);
    until(|| name_is_gone(&files, &node));
    assert!(!ready(&node));
    server.forbid("endpointslices", false);
    until(|| ready(&node));
    web.send(&syn(WEB, DB, 82));
    db.expects(&syn(WEB, DB, 82), DB);
}

#[test]
fn what_is_left_of_another_cluster_ends_when_its_identity_is_known_late() {
    let server = ApiServer::new();
    let files = NodeFiles::new("other-cluster-last");
    let kernel = leave_state(&files, &server);
    leave_name(&files);
    server.withhold_identity(true);
    server.apply(kube_system("second"));
    let node = start(&files, &server, kernel);
    until(|| node.status().source.synced);
    let (db, web) = (node.taken_up("db", DB), node.taken_up("web", WEB));
    assert!(node.status().sessions.used == 1 && knows_name(&node), "all that is not an object");

    server.withhold_identity(false);
    in_force(&node, |status| status.source.restore_error.is_some());
    until(|| node.status().sessions.used == 0);
    until(|| name_is_gone(&files, &node));
    assert!(ready(&node), "the objects are the second cluster's");
    web.send(&syn(WEB, DB, 82));
    db.expects(&syn(WEB, DB, 82), DB);
}
