//! Policies from an API server, and pods while it is away.

use serde_json::{Value, json};

use crate::{ClusterNode, requires_the_machine};

/// Lets only pods of this role in to `db`.
pub(crate) fn policy(role: &str) -> Value {
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": "db", "namespace": "default"},
        "spec": {"podSelector": {"matchLabels": {"role": "db"}},
            "ingress": [{"from": [{"podSelector": {"matchLabels": {"role": role}}}]}]}})
}

#[test]
fn policies_of_the_api_server_hold_while_it_is_away_and_over_a_restart() {
    requires_the_machine!("ping");
    let node = ClusterNode::with_api_server(&[]);
    let pods = ["db", "a", "b"].map(|name| node.pod(name, name));
    let ping = |from: usize, to: usize| pods[from].pings(pods[to].v4());
    let apply = |node: &ClusterNode, object: Value| {
        let before = node.status()["generation"].as_u64().unwrap();
        node.api_server().apply(object);
        node.eventually("the policy", || {
            (node.status()["generation_in_force"].as_u64().unwrap() > before).then_some(())
        });
    };
    assert!(ping(1, 0) && ping(2, 0));
    apply(&node, policy("a"));
    assert!(ping(1, 0) && !ping(2, 0));
    node.eventually("the state to be saved", || {
        let saved = node.status()["source"]["saved"].as_str().map(str::to_owned);
        let known = node.status()["source"]["last_event"].as_str().map(str::to_owned);
        (saved > known).then_some(())
    });

    node.api_server().go_away();
    node.eventually("the outage to be noticed", || {
        (node.status()["source"]["state"] == "failing").then_some(())
    });
    assert!(ping(1, 0) && !ping(2, 0), "the last state stays in force");
    node.kill_switch();
    assert!(!ping(1, 0) && !ping(1, 2), "nobody forwards");
    node.start_switch();
    let source = node.status()["source"].clone();
    assert!(source["restored_from"].is_string() && source["synced"] == false, "{source}");
    assert!(ping(1, 0) && !ping(2, 0), "also over a restart");

    // It comes back with other policies and without its history.
    node.api_server().apply(policy("b"));
    node.api_server().forget_history();
    node.api_server().come_back();
    node.eventually("the return to be in force", || {
        (node.status()["source"]["state"] == "in-sync").then_some(())
    });
    assert!(!ping(1, 0) && ping(2, 0));
    // While it runs, its history is forgotten: 410.
    let asked = node.api_server().asked("networkpolicies").len();
    node.api_server().forget_history();
    node.eventually("another list", || {
        (node.api_server().asked("networkpolicies").len() > asked).then_some(())
    });
    apply(&node, policy("a"));
    assert!(ping(1, 0) && !ping(2, 0));
    assert!(node.metric("podgate_watch_retries_total{kind=\"NetworkPolicy\"}") >= 1.0);
    assert!(node.metric("podgate_source_synced") == 1.0);
}
