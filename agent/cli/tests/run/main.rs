//! The whole running switch, over ports that the tests hold in their hands: the real local API,
//! HTTP, manifests in a folder, workers in threads. No root, no kernel interfaces.

mod api_server;
mod attach;
mod commands;
mod documents;
mod hubble;
mod kernel;
mod looking;
mod node;
mod other_cluster;
mod page;
mod remote;
mod reports;
mod services;
mod trouble;
mod uplink;

use local_api::Verdict;
use testkit::packet::{self, Packet};

use node::{Node, NodeFiles, POLICY, cluster, until};

const DB: &str = "10.1.0.2";
const WEB: &str = "10.1.0.3";
const API: &str = "10.1.0.4";

fn syn(from: &str, to: &str, port: u16) -> Packet {
    packet::tcp(&format!("{from}:40000"), &format!("{to}:{port}")).syn()
}

#[test]
fn pods_policies_and_verdicts() {
    let files = NodeFiles::new("whole");
    files.manifest("cluster.yaml", &cluster(&["db", "web", "api"]));
    let node = Node::start(&files);
    let (db, web, api) = (node.attach("db", DB), node.attach("web", WEB), node.attach("api", API));

    web.send(&syn(WEB, DB, 6379));
    db.expects(&syn(WEB, DB, 6379), DB);

    // A policy dropped into the folder, that lets only `api` in.
    let before = node.status().generation;
    files.manifest("policy.yaml", POLICY);
    until(|| node.status().generation_in_force > before);
    web.send(&syn(WEB, DB, 6380));
    let denied = node.wait_for_event(|event| event.to.port == Some(6380));
    assert_eq!(denied.verdict, Verdict::Dropped);
    assert_eq!(denied.reason, "policy-denied");
    let page = node.http("GET /metrics HTTP/1.1").1;
    let counted = "podgate_policy_denied_packets_total{policy=\"";
    let policy = denied.by[0].policies_in_words();
    assert!(page.contains(&format!("{counted}{policy}\"}} 1\n")), "{policy} in {page}");
    assert_eq!(denied.from.pod.as_deref(), Some("default/web"));
    assert_eq!(denied.to.pod.as_deref(), Some("default/db"));
    assert!(
        denied.by.iter().any(|by| by.to_string().contains("NetworkPolicy default/db")),
        "{denied:?}"
    );
    // The connection of before is evaluated again at its next packet.
    web.send(&packet::tcp("10.1.0.3:40000", "10.1.0.2:6379").data(b"x"));
    let cut = node
        .wait_for_event(|event| event.to.port == Some(6379) && event.verdict == Verdict::Dropped);
    assert_eq!(cut.from.pod.as_deref(), Some("default/web"));
    api.send(&syn(API, DB, 6379));
    db.expects(&syn(API, DB, 6379), DB);

    // A broken file changes nothing and is told.
    files.manifest("policy.yaml", "kind: [");
    until(|| !node.status().faults.is_empty());
    let status = node.status();
    assert!(status.faults[0].contains("policy.yaml"), "{:?}", status.faults);
    web.send(&syn(WEB, DB, 6381));
    node.wait_for_event(|event| event.to.port == Some(6381) && event.verdict == Verdict::Dropped);

    // Without the policy everything passes again.
    files.remove("policy.yaml");
    until(|| node.status().faults.is_empty());
    until(|| node.status().generation_in_force == node.status().generation);
    web.send(&syn(WEB, DB, 6382));
    db.expects(&syn(WEB, DB, 6382), DB);

    let status = node.status();
    assert!(status.ready && status.problems.is_empty());
    let names: Vec<&str> = status.ports.iter().map(|port| port.name.as_str()).collect();
    assert_eq!(names, ["host", "default/api", "default/db", "default/web"]);
    assert!(status.ports.iter().all(|port| port.mode == "memory" && !port.closed));
    assert_eq!(status.objects["Pod"], 3);
    let text = status.to_string();
    assert!(text.contains("default/db") && text.contains("memory"), "{text}");
}
