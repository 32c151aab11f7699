//! Objects from an API server: outages, restarts in them, and what may decide when.

use std::path::Path;
use std::time::Duration;

use control::api_server::Access;
use local_api::Verdict;
use serde_json::{Value, json};
use testkit::api_server::ApiServer;

use crate::kernel::Kernel;
use crate::node::{Node, NodeFiles, Pod, until};
use crate::{API, DB, WEB, syn};

pub(crate) fn cluster(server: &ApiServer) {
    server.apply(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"},
        "spec": {"podCIDRs": ["10.1.0.0/24"]},
        "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}}));
    server.apply(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}}));
    ["db", "web", "api"].into_iter().for_each(|name| server.apply(pod(name)));
}

fn pod(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {"role": name}},
        "spec": {"nodeName": "node-a", "containers": []}})
}

/// Lets only pods of this role in to `db`.
pub(crate) fn policy(role: &str) -> Value {
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": "db", "namespace": "default"},
        "spec": {"podSelector": {"matchLabels": {"role": "db"}},
            "ingress": [{"from": [{"podSelector": {"matchLabels": {"role": role}}}]}]}})
}

pub(crate) fn start(files: &NodeFiles, server: &ApiServer, kernel: Kernel) -> Node {
    let access = Access::Kubeconfig(server.kubeconfig());
    Node::start_on(files, kernel, |config| {
        config.manifests.clear();
        config.api_server = Some(access);
        config.attach_timeout = Duration::from_secs(60);
    })
}

pub(crate) fn ready(node: &Node) -> bool {
    node.http("GET /readyz HTTP/1.1").0 == 200
}

pub(crate) fn in_force(node: &Node, what: impl Fn(&agent::run::Status) -> bool) {
    until(|| {
        let status = node.status();
        status.generation == status.generation_in_force && what(&status)
    });
}

/// The connection is refused by the policy.
fn refused(node: &Node, from: &Pod, source: &str, port: u16) {
    from.send(&syn(source, DB, port));
    let denied = node.wait_for_event(|event| event.to.port == Some(port));
    assert_eq!((denied.verdict, denied.reason.as_str()), (Verdict::Dropped, "policy-denied"));
}

fn watch(node: &Node, kind: &str) -> Option<agent::run::WatchStatus> {
    node.status().source.watches.into_iter().find(|watch| watch.kind == kind)
}

#[test]
fn the_api_server_decides_as_manifests_do() {
    let server = ApiServer::new();
    cluster(&server);
    let files = NodeFiles::new("api-server");
    let node = start(&files, &server, Kernel::default());
    until(|| ready(&node));
    let (db, web, api) = (node.attach("db", DB), node.attach("web", WEB), node.attach("api", API));
    web.send(&syn(WEB, DB, 80));
    db.expects(&syn(WEB, DB, 80), DB);

    server.apply(policy("api"));
    in_force(&node, |status| status.objects.contains_key("NetworkPolicy"));
    refused(&node, &web, WEB, 81);
    api.send(&syn(API, DB, 82));
    db.expects(&syn(API, DB, 82), DB);

    // A rule that cannot be read permits nothing; its fault is reported until it is mended.
    let mut bad = policy("web");
    bad["spec"]["ingress"][0]["from"][0]["podSelector"]["matchLabels"]["role"] = json!(7);
    server.apply(bad);
    until(|| !node.status().faults.is_empty());
    let fault = node.status().faults[0].clone();
    assert!(fault.starts_with("NetworkPolicy default/db: spec.ingress[0]"), "{fault}");
    refused(&node, &web, WEB, 83);
    server.apply(policy("web"));
    in_force(&node, |status| status.faults.is_empty());
    web.send(&syn(WEB, DB, 84));
    db.expects(&syn(WEB, DB, 84), DB);
    refused(&node, &api, API, 85);

    // Versions are forgotten and the policy goes meanwhile: everything is listed again.
    let asked = server.asked("networkpolicies").len();
    server.forget_history();
    server.delete("networkpolicies", Some("default"), "db");
    until(|| server.asked("networkpolicies").len() > asked);
    in_force(&node, |status| !status.objects.contains_key("NetworkPolicy"));
    api.send(&syn(API, DB, 86));
    db.expects(&syn(API, DB, 86), DB);

    until(|| node.status().source.state == "in-sync");
    let source = node.status().source;
    assert_eq!(source.kind, "api-server");
    assert_eq!(source.place, format!("http://{}", server.address()));
    assert!(source.synced && source.last_event.is_some() && source.retries == 0);
    let metrics = node.http("GET /metrics HTTP/1.1").1;
    for line in [
        "podgate_source_synced 1\n",
        "podgate_watch_up{kind=\"Pod\"} 1\n",
        "podgate_watch_retries_total{kind=\"Pod\"} 0\n",
        "podgate_objects{kind=\"Pod\"} 3\n",
        "podgate_api_response_duration_seconds_bucket{kind=\"Pod\",le=\"+Inf\"} ",
    ] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
    assert!(node.status().to_string().contains("Source:     API server http://127.0.0.1:"));
}

#[test]
fn nothing_is_decided_before_everything_was_told() {
    let server = ApiServer::new();
    cluster(&server);
    server.apply(policy("api"));
    server.forbid("networkpolicies", true);
    let files = NodeFiles::new("half-told");
    let node = start(&files, &server, Kernel::default());
    until(|| watch(&node, "NetworkPolicy").is_some_and(|watch| watch.state == "failing"));
    until(|| watch(&node, "Pod").is_some_and(|watch| watch.state == "watching"));
    let (code, why) = node.http("GET /readyz HTTP/1.1");
    assert_eq!((code, why.as_str()), (503, "the API server's objects are not all listed yet\n"));
    let status = node.status();
    assert!(status.to_string().contains("everything is closed"), "{status}");
    assert!(status.to_string().contains("watch of NetworkPolicy"), "{status}");
    let waiting = node.attach_in_background("db", DB);
    until(|| !node.status().waiting.is_empty());
    assert_eq!(
        node.status().waiting[0].reason,
        "the API server, whose objects are not all listed yet"
    );
    server.forbid("networkpolicies", false);
    waiting.join().unwrap().unwrap();
    assert!(ready(&node));
    let web = node.attach("web", WEB);
    refused(&node, &web, WEB, 80);
    let retries = watch(&node, "NetworkPolicy").unwrap().retries;
    assert!(retries > 0 && node.status().source.retries >= retries);
}

#[test]
fn the_last_state_stays_in_force_without_the_api_server_also_over_a_restart() {
    let mut server = ApiServer::new();
    cluster(&server);
    server.apply(policy("api"));
    let files = NodeFiles::new("outage");
    let node = start(&files, &server, Kernel::default());
    until(|| ready(&node));
    let (db, web, api) = (node.attach("db", DB), node.attach("web", WEB), node.attach("api", API));
    refused(&node, &web, WEB, 80);

    server.go_away();
    until(|| node.status().source.state == "failing");
    refused(&node, &web, WEB, 81);
    api.send(&syn(API, DB, 82));
    db.expects(&syn(API, DB, 82), DB);
    assert!(ready(&node), "what is known still decides");

    // It ends and starts again, and nobody can tell it anything.
    let kernel = node.stop();
    let node = start(&files, &server, kernel);
    assert!(ready(&node), "the saved state decides");
    let source = node.status().source;
    assert!(!source.synced && source.restored_from.is_some(), "{source:?}");
    let (db, web, api) =
        (node.taken_up("db", DB), node.taken_up("web", WEB), node.taken_up("api", API));
    refused(&node, &web, WEB, 83);
    api.send(&syn(API, DB, 84));
    db.expects(&syn(API, DB, 84), DB);

    // Meanwhile the policy changed; what was saved counts until everything is told anew.
    server.apply(policy("web"));
    server.forget_history();
    server.come_back();
    in_force(&node, |status| status.source.synced);
    web.send(&syn(WEB, DB, 85));
    db.expects(&syn(WEB, DB, 85), DB);
    refused(&node, &api, API, 86);
    let before = node.status().generation;
    server.apply(policy("api"));
    in_force(&node, |status| status.generation > before);
    refused(&node, &web, WEB, 87);
}

#[test]
fn a_damaged_state_is_not_used_and_everything_stays_closed() {
    refuses_state("damaged", |saved| {
        let mut bytes = std::fs::read(saved).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(saved, bytes).unwrap();
    });
}

#[test]
fn a_state_of_another_format_is_not_used_and_everything_stays_closed() {
    refuses_state("format", |saved| {
        let text = std::fs::read_to_string(saved).unwrap();
        std::fs::write(saved, text.replacen("podgate-state 1", "podgate-state 2", 1)).unwrap();
    });
}

/// A start with saved objects that `spoil` has changed, and without the API server.
fn refuses_state(label: &str, spoil: impl Fn(&Path)) {
    let mut server = ApiServer::new();
    cluster(&server);
    let files = NodeFiles::new(label);
    let node = start(&files, &server, Kernel::default());
    until(|| ready(&node));
    let _pods = (node.attach("db", DB), node.attach("web", WEB));
    until(|| node.status().source.saved.is_some());
    server.go_away();
    let kernel = node.stop();
    spoil(&files.path("state/cluster-state"));
    let node = start(&files, &server, kernel);
    assert!(!ready(&node));
    let status = node.status();
    let why = status.source.restore_error.clone().unwrap();
    assert!(why.contains("cluster-state"), "{why}");
    assert!(status.to_string().contains("saved state not used"), "{status}");
    assert!(status.ports.iter().filter(|port| port.name != "host").all(|port| port.closed));
    let web = node.taken_up("web", WEB);
    web.send(&syn(WEB, DB, 80));
    let cut = node.wait_for_event(|event| event.verdict == Verdict::Dropped);
    assert_eq!(cut.from.pod.as_deref(), Some("default/web"));
    server.come_back();
    until(|| ready(&node));
    in_force(&node, |status| status.ports.iter().all(|port| !port.closed));
    web.send(&syn(WEB, DB, 81));
    node.taken_up("db", DB).expects(&syn(WEB, DB, 81), DB);
}

#[test]
fn a_kind_that_is_not_installed_holds_nothing_up() {
    let server = ApiServer::new();
    cluster(&server);
    server.uninstall("clusternetworkpolicies", true);
    let files = NodeFiles::new("not-installed");
    let node = start(&files, &server, Kernel::default());
    until(|| ready(&node));
    assert_eq!(watch(&node, "ClusterNetworkPolicy").unwrap().state, "not-installed");
    assert_eq!(node.status().source.state, "in-sync");
    let metrics = node.http("GET /metrics HTTP/1.1").1;
    assert!(metrics.contains("podgate_watch_installed{kind=\"ClusterNetworkPolicy\"} 0\n"));
}

/// The series that `PodgateWatchDown` of `deploy/monitoring/alerts.yaml` watches, all the time.
#[test]
fn a_version_that_cannot_be_read_keeps_its_denials_and_shows_first() {
    let server = ApiServer::new();
    cluster(&server);
    let denial = |field: &str| {
        json!({"apiVersion": "policy.networking.k8s.io/v1alpha1", "kind": "AdminNetworkPolicy",
            "metadata": {"name": "closed"}, "spec": {"priority": 1, "subject": {"namespaces": {}},
                field: [{"action": "Deny", "from": [{"namespaces": {}}]}]}})
    };
    server.apply(denial("ingress"));
    let files = NodeFiles::new("unreadable-version");
    let node = start(&files, &server, Kernel::default());
    until(|| ready(&node));
    let (_db, web) = (node.attach("db", DB), node.attach("web", WEB));
    refused(&node, &web, WEB, 80);
    // What was called ingress has another name in the version that comes.
    server.apply(denial("inbound"));
    server.serve_in("adminnetworkpolicies", "v9");
    let said = "watch of AdminNetworkPolicy, ";
    let why = "is served in policy.networking.k8s.io/v9 only, which cannot be read: \
               AdminNetworkPolicy closed: spec.inbound: unknown field";
    let is_said = |it: &String| it.starts_with(said) && it.ends_with(why);
    // Behind the policies that it leaves closed.
    let shows = || node.status().attention().iter().take(2).any(is_said);
    until(shows);
    for _ in 0..50 {
        assert!(shows(), "{:?}", node.status().attention());
        let metrics = node.http("GET /metrics HTTP/1.1").1;
        for (series, value) in [("watch_up", 0), ("watch_installed", 1)] {
            let line = format!("podgate_{series}{{kind=\"AdminNetworkPolicy\"}} {value}\n");
            assert!(metrics.contains(&line), "{metrics}");
        }
        std::thread::sleep(Duration::from_millis(40));
    }
    refused(&node, &web, WEB, 81);
    assert_eq!(node.status().source.state, "failing");
}

#[test]
fn a_start_from_the_saved_state_does_not_wait_for_the_slowest_kind() {
    let server = ApiServer::new();
    cluster(&server);
    let files = NodeFiles::new("slowest");
    let node = start(&files, &server, Kernel::default());
    until(|| ready(&node));
    let _pods = (node.attach("db", DB), node.attach("web", WEB));
    until(|| node.status().source.saved.is_some());
    let kernel = node.stop();
    // A new denial, while another kind is refused for good.
    server.apply(policy("api"));
    server.forbid("endpointslices", true);
    let node = start(&files, &server, kernel);
    in_force(&node, |status| status.objects.contains_key("NetworkPolicy"));
    let web = node.taken_up("web", WEB);
    refused(&node, &web, WEB, 80);
    let source = node.status().source;
    assert!(!source.synced && source.state == "failing", "{source:?}");
    server.forbid("endpointslices", false);
    until(|| node.status().source.state == "in-sync");
}

/// `control/tests/outages.rs` tests the delay, by a clock of its own.
#[test]
fn a_new_denial_is_in_force_after_an_outage() {
    for by_status in [false, true] {
        let mut server = ApiServer::new();
        cluster(&server);
        server.expire_by_status(by_status);
        let files = NodeFiles::new(&format!("after-outage-{by_status}"));
        let node = start(&files, &server, Kernel::default());
        until(|| ready(&node));
        let (_db, web) = (node.attach("db", DB), node.attach("web", WEB));
        server.go_away();
        until(|| node.status().source.state == "failing");
        server.apply(policy("api"));
        server.forget_history();
        server.come_back();
        in_force(&node, |status| status.objects.contains_key("NetworkPolicy"));
        refused(&node, &web, WEB, 80);
    }
}

#[test]
fn a_node_publishes_its_other_addresses_and_anothers_claims_are_reported() {
    let server = ApiServer::new();
    cluster(&server);
    let uid = "0a1b2c3d-0000-0000-0000-000000000001";
    server.apply(json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "node-a", "uid": uid}, "spec": {"podCIDRs": ["10.1.0.0/24"]},
        "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}}));
    let files = NodeFiles::new("node-addresses");
    let kernel = Kernel::default();
    for own in ["192.0.2.1", "172.17.0.1", "169.254.7.7"] {
        kernel.add_address(own.parse().unwrap());
    }
    let node = start(&files, &server, kernel.clone());
    let published = || server.object("nodeaddresses", None, "node-a");
    let addresses = || published().map(|it| it["spec"]["addresses"].clone());
    until(|| addresses() == Some(json!(["172.17.0.1"])));
    let owner = published().unwrap()["metadata"]["ownerReferences"][0].clone();
    assert_eq!((&owner["kind"], &owner["uid"]), (&json!("Node"), &json!(uid)));
    kernel.add_address("2001:db8::5".parse().unwrap());
    until(|| addresses() == Some(json!(["172.17.0.1", "2001:db8::5"])));
    // Another node's claims are ignored, reported and counted.
    server.apply(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-b"},
        "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.2"}]}}));
    server.apply(json!({"apiVersion": "podgate.io/v1alpha1", "kind": "NodeAddresses",
        "metadata": {"name": "node-b"}, "spec": {"addresses": ["192.0.2.1", "172.17.0.1"]}}));
    until(|| !node.status().faults.is_empty());
    let claim = "NodeAddresses node-b: spec.addresses[0]: 192.0.2.1 is an address of Node node-a; \
                 it is ignored";
    assert_eq!(node.status().faults, [claim]);
    let metrics = node.http("GET /metrics HTTP/1.1").1;
    assert!(metrics.contains("podgate_policy_faults 1\n"), "{metrics}");
}
