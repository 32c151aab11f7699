//! The switch writes conditions of policies and Events at the API server.

use std::time::Duration;

use serde_json::{Value, json};
use testkit::api_server::ApiServer;

use crate::api_server::{cluster, policy, ready, start};
use crate::kernel::Kernel;
use crate::node::{Node, NodeFiles, until};
use crate::{DB, WEB, syn};

/// The condition of this type in the status of a cluster-wide policy; null if it has none.
fn condition(server: &ApiServer, plural: &str, name: &str, kind: &str) -> Value {
    let object = server.object(plural, None, name).unwrap();
    let mut all = object["status"]["conditions"].as_array().into_iter().flatten();
    all.find(|condition| condition["type"] == kind).cloned().unwrap_or_default()
}

#[test]
fn the_status_of_cluster_policies_says_what_is_enforced() {
    let server = ApiServer::new();
    cluster(&server);
    let policy = |generation: u32, peer: Value| {
        json!({"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
            "metadata": {"name": "names", "generation": generation},
            "spec": {"tier": "Admin", "priority": 1, "subject": {"namespaces": {}},
                "egress": [{"action": "Accept", "to": [peer]}]}})
    };
    server.apply(policy(1, json!({"domainNames": ["example"]})));
    server.apply(json!({"apiVersion": "podgate.io/v1alpha1", "kind": "ClusterEgressFirewall",
        "metadata": {"name": "api", "generation": 7},
        "spec": {"egress": [{"action": "Deny", "to": [{"apiServer": {}}]}]}}));
    server.apply(json!({"apiVersion": "policy.networking.k8s.io/v1alpha1",
        "kind": "BaselineAdminNetworkPolicy", "metadata": {"name": "default", "generation": 3},
        "spec": {"subject": {"namespaces": {}},
            "ingress": [{"action": "Allow", "from": [{"namespaces": {}}]}]}}));
    let files = NodeFiles::new("reports");
    let node = start(&files, &server, Kernel::default());
    let condition =
        |plural: &str, name: &str| condition(&server, plural, name, "podgate.io/Accepted");
    until(|| condition("clusternetworkpolicies", "names")["status"] == "False");
    let said = condition("clusternetworkpolicies", "names");
    assert_eq!(said["reason"], "Invalid");
    assert_eq!(said["observedGeneration"], 1);
    assert!(said["message"].as_str().unwrap().starts_with("spec.egress[0].to[0].domainNames"));
    until(|| condition("clusteregressfirewalls", "api")["status"] == "True");
    assert_eq!(condition("clusteregressfirewalls", "api")["observedGeneration"], 7);
    until(|| condition("baselineadminnetworkpolicies", "default")["status"] == "True");
    let faults = node.status().faults;
    assert!(faults[0].starts_with("ClusterNetworkPolicy names: spec.egress[0].to[0].domainNames"));

    // A condition that has been written is not written again, nor by the next process.
    let patches = || {
        let asked = server.asked("clusternetworkpolicies");
        asked.iter().filter(|it| it.starts_with("PATCH") && it.contains("=podgate&")).count()
    };
    let kernel = node.stop();
    let before = patches();
    assert_eq!(before, 1);
    let node = start(&files, &server, kernel);
    until(|| ready(&node));
    server.apply(policy(2, json!({"domainNames": ["example.org"]})));
    until(|| condition("clusternetworkpolicies", "names")["status"] == "True");
    assert_eq!((patches(), node.status().faults.len()), (before + 1, 0));
    assert_eq!(node.status().source.report_error, None);
}

/// During an upgrade versions may disagree: the holder of the lease writes, the other one waits.
#[test]
fn the_status_of_cluster_policies_has_one_writer() {
    let server = ApiServer::new();
    cluster(&server);
    let policy = |generation: u32| {
        json!({"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
            "metadata": {"name": "all", "generation": generation},
            "spec": {"tier": "Admin", "priority": 1, "subject": {"namespaces": {}},
                "egress": [{"action": "Accept", "to": [{"namespaces": {}}]}]}})
    };
    server.apply(policy(1));
    server.apply(json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "podgate-status", "namespace": "kube-system"},
        "spec": {"holderIdentity": "node-z", "leaseDurationSeconds": 3600,
            "renewTime": "2026-01-01T00:00:00.000000Z"}}));
    let files = NodeFiles::new("one-writer");
    let node = start(&files, &server, Kernel::default());
    let patches = || {
        let asked = server.asked("clusternetworkpolicies");
        asked.iter().filter(|it| it.starts_with("PATCH")).count()
    };
    until(|| server.asked("leases").iter().any(|it| it.starts_with("GET")));
    let mut bad = self::policy("web");
    bad["spec"]["podSelector"] = json!(7);
    server.apply(bad);
    until(|| !node.status().faults.is_empty());
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(patches(), 0, "another node holds the lease");
    assert!(server.objects("events").is_empty());
    assert_eq!(node.status().source.report_error, None);

    // It ends and gives the lease up: the next difference is written here.
    server.delete("leases", Some("kube-system"), "podgate-status");
    let mut generation = 1;
    until(|| {
        generation += 1;
        server.apply(policy(generation));
        std::thread::sleep(Duration::from_millis(500));
        patches() > 0
    });
    let lease = server.object("leases", Some("kube-system"), "podgate-status").unwrap();
    assert_eq!(lease["spec"]["holderIdentity"], "node-a");
}

#[test]
fn the_status_of_cluster_policies_says_where_they_are_in_force() {
    let server = ApiServer::new();
    cluster(&server);
    let policy = |generation: u32, stage: &str| {
        let known = server.object("clusternetworkpolicies", None, "db");
        let status = known.map(|it| it["status"].clone());
        server.apply(json!({"apiVersion": "policy.networking.k8s.io/v1alpha2",
            "kind": "ClusterNetworkPolicy", "status": status,
            "metadata": {"name": "db", "generation": generation,
                "annotations": {"podgate.io/stage": stage}},
            "spec": {"tier": "Admin", "priority": 1,
                "subject": {"pods": {"namespaceSelector": {},
                    "podSelector": {"matchLabels": {"role": "db"}}}},
                "ingress": [{"action": "Deny", "from": [{"namespaces": {}}]}]}}));
    };
    let other_node = |generation: u32| {
        server.apply(json!({"apiVersion": "podgate.io/v1alpha1", "kind": "NodePolicies",
            "metadata": {"name": "node-b"}, "spec": {"renewTime": "2026-11-25T00:00:00Z",
                "inForce": {"ClusterNetworkPolicy db": generation},
                "staged": {"ClusterNetworkPolicy db":
                    {"deny": 2, "allow": 0, "since": "2026-11-25T00:00:00Z"}}}}));
    };
    let said = |kind: &str| {
        let condition =
            condition(&server, "clusternetworkpolicies", "db", &format!("podgate.io/{kind}"));
        let text = |field: &str| condition[field].as_str().unwrap_or_default().to_owned();
        [text("status"), text("reason"), text("message")].join(" ")
    };
    policy(1, "staged");
    let files = NodeFiles::new("everywhere");
    let node = start(&files, &server, Kernel::default());
    until(|| said("InForce") == "False Staged staged, not enforced; evaluated on 1 of 1 nodes");
    until(|| said("Staged") == "True WouldChangeNothing would change no connection so far");
    let own = server.object("nodepolicies", None, "node-a").unwrap();
    assert_eq!(own["spec"]["inForce"], json!({"ClusterNetworkPolicy db": 1}));

    // A connection here, and two that another node counts.
    other_node(1);
    let (db, web) = (node.attach("db", DB), node.attach("web", WEB));
    web.send(&syn(WEB, DB, 80));
    db.expects(&syn(WEB, DB, 80), DB);
    until(|| said("Staged").starts_with("True WouldChange would deny "));
    until(|| {
        let own = server.object("nodepolicies", None, "node-a").unwrap();
        own["spec"]["staged"]["ClusterNetworkPolicy db"]["deny"] == 1
    });

    // Enforced; the other node is late, and then not.
    server.apply(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-b"}}));
    policy(2, "enforced");
    until(|| said("InForce") == "False NodesLate in force on 1 of 2 nodes (node-b: generation 1)");
    until(|| said("Staged") == "False Enforced enforced");
    other_node(2);
    until(|| said("InForce") == "True AllNodes in force on 2 of 2 nodes");
    assert!(said("Accepted").starts_with("True Enforced"), "one condition leaves the others");
    assert_eq!(node.status().source.report_error, None);
}

#[test]
fn a_staged_policy_of_a_namespace_gets_an_event_that_sums_up_all_nodes() {
    let server = ApiServer::new();
    cluster(&server);
    let mut staged = policy("api");
    staged["metadata"]["annotations"] = json!({"podgate.io/stage": "staged"});
    staged["metadata"]["uid"] = json!("u-3");
    server.apply(staged);
    server.apply(json!({"apiVersion": "podgate.io/v1alpha1", "kind": "NodePolicies",
        "metadata": {"name": "node-b"}, "spec": {"renewTime": "2026-11-25T00:00:00Z", "staged": {
            "NetworkPolicy default/db": {"deny": 12, "allow": 3, "since": "2026-11-25T00:00:00Z"},
            "NetworkPolicy default/gone": {"deny": 1, "allow": 0, "since": "x"}}}}));
    let files = NodeFiles::new("staged-event");
    let node = start(&files, &server, Kernel::default());
    until(|| !server.objects("events").is_empty());
    let events = server.objects("events");
    assert_eq!(events.len(), 1, "{events:?}");
    for (field, expected) in [
        ("type", json!("Normal")),
        ("reason", json!("Staged")),
        ("message", json!("would deny 12 and open 3 connections since 2026-11-25T00:00:00Z")),
    ] {
        assert_eq!(events[0][field], expected, "{events:?}");
    }
    assert_eq!(events[0]["involvedObject"]["uid"], "u-3");
    assert_eq!(node.status().source.report_error, None);
}

#[test]
fn the_status_of_a_firewall_names_the_addresses_that_its_rules_stand_for() {
    let server = ApiServer::new();
    cluster(&server);
    let node = |name: &str, address: &str| {
        server.apply(json!({"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "labels": {"pool": name}},
            "status": {"addresses": [{"type": "InternalIP", "address": address}]}}));
    };
    node("node-b", "192.0.2.22");
    server.apply(json!({"apiVersion": "podgate.io/v1alpha1", "kind": "ClusterEgressFirewall",
        "metadata": {"name": "nodes", "generation": 1},
        "spec": {"egress": [
            {"action": "Deny", "to": [{"networks": ["203.0.113.0/24"]}]},
            {"action": "Deny", "to": [{"nodes": {"matchLabels": {"pool": "node-b"}}}]},
            {"action": "Deny", "to": [{"nodes": {"matchLabels": {"pool": "none"}}}]}]}}));
    let files = NodeFiles::new("resolved");
    let switch = start(&files, &server, Kernel::default());
    let condition = || condition(&server, "clusteregressfirewalls", "nodes", "podgate.io/Resolved");
    until(|| condition()["message"] == "egress[1]: 192.0.2.22; egress[2]: no address");
    assert_eq!(
        (&condition()["status"], &condition()["reason"]),
        (&json!("False"), &json!("NoAddress"))
    );
    assert_eq!(switch.status().source.report_error, None);
}

/// A cluster whose definitions are older than its switches lacks the sums, and nothing else.
#[test]
fn without_the_definition_of_what_nodes_publish_the_rest_goes_on() {
    let server = ApiServer::new();
    cluster(&server);
    server.uninstall("nodepolicies", true);
    server.apply(json!({"apiVersion": "podgate.io/v1alpha1", "kind": "ClusterEgressFirewall",
        "metadata": {"name": "api", "generation": 7},
        "spec": {"egress": [{"action": "Deny", "to": [{"apiServer": {}}]}]}}));
    let files = NodeFiles::new("no-definition");
    let node = start(&files, &server, Kernel::default());
    let condition = |kind| condition(&server, "clusteregressfirewalls", "api", kind);
    let lists = || server.asked("nodepolicies").iter().filter(|it| it.starts_with("GET")).count();
    until(|| condition("podgate.io/Accepted")["status"] == "True" && lists() > 0);
    assert_eq!(condition("podgate.io/InForce"), Value::Null);
    assert_eq!(node.status().source.report_error, None);
}

#[test]
fn a_faulty_policy_gets_an_event_once() {
    let server = ApiServer::new();
    cluster(&server);
    let faulty = |role: Value| {
        let mut bad = policy("web");
        bad["metadata"]["uid"] = json!("u-1");
        bad["spec"]["ingress"][0]["from"][0]["podSelector"]["matchLabels"]["role"] = role;
        bad
    };
    server.apply(faulty(json!(7)));
    server.apply(json!({"apiVersion": "podgate.io/v1alpha1", "kind": "ClusterEgressFirewall",
        "metadata": {"name": "far", "uid": "u-2"},
        "spec": {"egress": [{"action": "Deny", "to": [{"networks": ["10.0.0.0/33"]}]}]}}));
    let files = NodeFiles::new("events");
    let node = start(&files, &server, Kernel::default());
    let events = || server.objects("events");
    until(|| events().len() == 2);
    let of = |uid: &str| {
        let is_it = |event: &Value| event["involvedObject"]["uid"] == uid;
        events().into_iter().filter(is_it).collect::<Vec<_>>()
    };
    let event = of("u-1").remove(0);
    for (field, expected) in [
        ("type", json!("Warning")),
        ("reason", json!("InvalidPolicy")),
        ("count", json!(1)),
        ("source", json!({"component": "podgate", "host": "node-a"})),
    ] {
        assert_eq!(event[field], expected, "{event}");
    }
    let object = &event["involvedObject"];
    assert_eq!(
        (&object["kind"], &object["namespace"], &object["name"]),
        (&json!("NetworkPolicy"), &json!("default"), &json!("db"))
    );
    assert_eq!(event["metadata"]["namespace"], "default");
    let message = event["message"].as_str().unwrap();
    assert!(message.starts_with("spec.ingress[0].from[0].podSelector"), "{message}");
    // An object without a namespace has its Events in default.
    assert_eq!(of("u-2")[0]["metadata"]["namespace"], "default");

    // A change elsewhere in the object repeats nothing; neither does another writer.
    let written = || server.asked("events").iter().filter(|it| !it.starts_with("GET")).count();
    let before = written();
    let mut labelled = faulty(json!(7));
    labelled["metadata"]["labels"] = json!({"a": "b"});
    server.apply(labelled);
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!((written(), events().len()), (before, 2));
    let node = start(&files, &server, node.stop());
    until(|| written() > before + 1);
    assert_eq!(events().len(), 2, "an Event that is there is repeated");
    assert_eq!(node.status().source.report_error, None);
}

#[test]
fn a_node_whose_switch_is_ready_loses_its_taint_and_becomes_available() {
    let server = ApiServer::new();
    cluster(&server);
    let mut object = server.object("nodes", None, "node-a").unwrap();
    let other = json!({"key": "dedicated", "value": "db", "effect": "NoSchedule"});
    let own = |effect: &str| json!({"key": "podgate.io/not-ready", "effect": effect});
    object["spec"]["taints"] = json!([own("NoSchedule"), other, own("NoExecute")]);
    object["status"]["conditions"] = json!([{"type": "Ready", "status": "True"},
        {"type": "NetworkUnavailable", "status": "True", "reason": "Waiting"}]);
    server.apply(object.clone());
    let node = || server.object("nodes", None, "node-a").unwrap();
    // Without the option nothing of it is touched.
    let files = NodeFiles::new("readiness");
    let quiet = start(&files, &server, Kernel::default());
    until(|| ready(&quiet));
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(node()["spec"]["taints"].as_array().unwrap().len(), 3);
    let kernel = quiet.stop();
    let access = control::api_server::Access::Kubeconfig(server.kubeconfig());
    let switch = Node::start_on(&files, kernel, |config| {
        config.manifests.clear();
        config.api_server = Some(access);
        config.node_readiness = true;
    });
    until(|| node()["spec"]["taints"] == json!([other]));
    let conditions = node()["status"]["conditions"].clone();
    assert_eq!(conditions[0], json!({"type": "Ready", "status": "True"}));
    assert_eq!(
        (&conditions[1]["type"], &conditions[1]["status"], &conditions[1]["reason"]),
        (&json!("NetworkUnavailable"), &json!("False"), &json!("PodgateIsReady"))
    );
    assert!(ready(&switch));
    let patches = || server.asked("nodes").iter().filter(|it| it.starts_with("PATCH")).count();
    assert_eq!(patches(), 2, "one of the status, one of the taints");
}
