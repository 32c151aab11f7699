//! Pods by way of PodgateAddresses: one switch watches all pods and writes them, the others read these objects.

use std::time::Duration;

use serde_json::{Value, json};

use crate::cluster_node::ClusterNode;
use crate::lan::Lan;
use crate::requires_the_machine;

/// Timeout of a takeover, of a fallback and of the return from one: the last may begin 45 s later.
const PATIENCE: Duration = Duration::from_secs(180);

/// All pods may open connections to pods whose role is `db`, and to no others.
fn policy() -> Value {
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": "to-db", "namespace": "default"},
        "spec": {"podSelector": {"matchLabels": {"role": "client"}}, "policyTypes": ["Egress"],
            "egress": [{"to": [{"podSelector": {"matchLabels": {"role": "db"}}}]}]}})
}

/// Returns the aggregate's part of `status`.
fn aggregate(node: &ClusterNode) -> Value {
    node.status()["source"]["aggregate"].clone()
}

/// Waits until the aggregate has this role for the node.
fn until_role(node: &ClusterNode, role: &str) -> Value {
    node.eventually_within(PATIENCE, role, || {
        Some(aggregate(node)).filter(|aggregate| aggregate["role"] == role)
    })
}

/// The node with this role, once there is one.
fn node_of<'a>(lan: &'a Lan, role: &str) -> &'a ClusterNode {
    lan.nodes[0].eventually_within(PATIENCE, role, || {
        lan.nodes.iter().find(|node| aggregate(node)["role"] == role)
    })
}

#[test]
fn switches_enforce_what_one_of_them_writes_while_writers_end_and_objects_are_spoiled() {
    requires_the_machine!("ping");
    let lan = Lan::aggregated();
    let [writer, standby] = ["writing", "standby"].map(|role| node_of(&lan, role));
    let reader = node_of(&lan, "reading");
    let server = || reader.api_server();
    let target = standby.pod("target", "other");
    let relabel = |role: &str| {
        server().apply(json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "target", "namespace": "default", "labels": {"role": role}},
            "spec": {"nodeName": standby.name(), "containers": [{"name": "c", "image": "x"}]},
            "status": {"phase": "Running", "podIPs": target.addresses.iter()
                .map(|ip| json!({"ip": ip.to_string()})).collect::<Vec<_>>()}}));
    };
    server().apply(policy());
    let [near, far] =
        [(reader, "near"), (writer, "far")].map(|(node, name)| node.pod(name, "client"));
    let reaches = |from: &crate::pod::Pod<'_>, expected: bool| {
        let node = from.node();
        node.eventually(if expected { "an answer" } else { "a denial" }, || {
            (from.pings(target.v4()) == expected).then_some(())
        });
    };

    // The reader knows the pod of another node, its labels and what became of them, from the objects alone.
    for (role, is_open) in [("db", true), ("other", false), ("db", true)] {
        relabel(role);
        reaches(&near, is_open);
    }
    let read = aggregate(reader);
    assert_eq!(
        (&read["role"], &read["writer"]),
        (&"reading".into(), &writer.name().into()),
        "{read}"
    );
    assert!(read["resource_version"].is_string() && read["age_ms"].is_u64(), "{read}");
    let own = format!("nodeName%3D{}", reader.name());
    assert!(server().asked("pods").iter().any(|path| path.contains(&own)));

    // The writer is killed: the standby goes on, with the same numbers.
    writer.kill_switch();
    until_role(standby, "writing");
    relabel("other");
    reaches(&near, false);
    relabel("db");
    reaches(&near, true);
    reader.eventually_within(PATIENCE, "objects of the other writer", || {
        let now = aggregate(reader);
        let goes_on = now["sequence"].as_u64() > read["sequence"].as_u64();
        (now["writer"] == standby.name().as_str() && goes_on).then_some(())
    });
    // The one that comes back reads what the others write, once these have their seats.
    until_role(reader, "standby");
    writer.start_switch();
    until_role(writer, "reading");
    reaches(&far, true);
    relabel("other");
    reaches(&far, false);

    // Forged objects allow nothing, and are made anew.
    let address = target.v4().to_string();
    let forged = format!("0 target {} {address} 5 ", standby.name());
    let objects = server().objects("podgateaddresses");
    for mut object in objects {
        let part = if object["spec"]["page"].is_null() { "log" } else { "page" };
        let lines = if part == "page" { "pods" } else { "changes" };
        object["spec"][part][lines] = json!([forged]);
        object["spec"][part]["sets"] = json!(["default  role=db   "]);
        let sequence = object["spec"][part]["sequence"].as_u64().unwrap();
        object["spec"][part]["sequence"] = json!(sequence + 1);
        server().apply(object);
    }
    for _ in 0..3 {
        assert!(!far.pings(target.v4()), "what does not add up is not enforced");
    }
    until_role(writer, "reading");
    relabel("db");
    reaches(&far, true);

    // Without the kind, each switch watches all pods by itself and says why.
    server().delete_definition("podgateaddresses");
    let late = until_role(writer, "watching");
    assert!(late["reason"].as_str().is_some_and(|reason| reason.contains("404")), "{late}");
    assert!(writer.podgate(&["status"]).contains("PodgateAddresses: "));
    relabel("other");
    reaches(&far, false);
    server().uninstall("podgateaddresses", false);
    let back = until_role(writer, "reading");
    assert!(back["reason"].is_null(), "{back}");
    relabel("db");
    reaches(&far, true);
}
