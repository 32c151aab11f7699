//! Policies on real traffic.

use std::io::{Read, Write};

use serde_json::Value;

use crate::{ClusterNode, requires_the_machine};

const ONLY_BACKENDS: &str = "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db-allow, namespace: default}
spec:
  podSelector: {matchLabels: {role: db}}
  policyTypes: [Ingress]
  ingress:
  - from: [{podSelector: {matchLabels: {role: backend}}}]
    ports: [{protocol: TCP, port: 6379}]
";

/// A policy under which nothing may connect to the pods with a role.
pub(crate) fn nothing_in(role: &str) -> String {
    format!(
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n\
         metadata: {{name: nothing-in-{role}, namespace: default}}\n\
         spec: {{podSelector: {{matchLabels: {{role: {role}}}}}, policyTypes: [Ingress]}}\n"
    )
}

#[test]
fn only_backends_may_reach_the_database() {
    requires_the_machine!("redis-server", "redis-cli");
    let node = ClusterNode::start(&[]);
    let (db, frontend) = (node.pod("db", "db"), node.pod("frontend", "frontend"));
    let (one, two) = (node.pod("backend1", "backend"), node.pod("backend2", "backend"));
    let _server = db.serve_redis();
    assert!([&frontend, &one, &two].into_iter().all(|pod| pod.asks_redis(&db)));

    node.apply("policy", ONLY_BACKENDS);
    assert!(one.asks_redis(&db) && two.asks_redis(&db));
    assert!(frontend.is_kept_from_redis(&db));
    let denied = node.verdicts(&["--verdict", "dropped", "--from-pod", "default/frontend"]);
    let last = denied.last().expect("a verdict about frontend");
    assert_eq!(last["reason"], "policy-denied");
    assert_eq!(last["by"][0], "default-deny of NetworkPolicy default/db-allow");
    assert_eq!(last["to"]["pod"], "default/db");
    assert_eq!(last["to"]["port"], 6379);
    assert!(!one.pings(db.v4()), "the policy names TCP 6379 and nothing else");

    node.withdraw("policy");
    assert!(frontend.asks_redis(&db));
}

/// The log has a line for each policy that comes, changes and goes, and one when that is in force.
#[test]
fn the_log_names_policies_and_their_moment() {
    requires_the_machine!();
    let node = ClusterNode::start(&["--log-format", "json"]);
    let _db = node.pod("db", "db");
    node.apply("policy", ONLY_BACKENDS);
    node.apply("policy", &ONLY_BACKENDS.replace("6379", "6380"));
    node.withdraw("policy");
    let about = || -> Option<Vec<Value>> {
        let lines = node.log().into_iter().filter_map(|it| serde_json::from_str(&it).ok());
        let lines: Vec<Value> = lines.filter(|it: &Value| it["policy"] == "db-allow").collect();
        (lines.last()?["message"] == "policy out of force").then_some(lines)
    };
    let lines = node.eventually("the log of the policy", about);
    let messages: Vec<_> = lines.iter().map(|it| it["message"].as_str().unwrap()).collect();
    let [added, changed] = ["policy added", "policy changed"];
    let [force, removed, out] = ["policy in force", "policy removed", "policy out of force"];
    assert_eq!(messages, [added, force, changed, force, removed, out]);
    for line in &lines {
        assert_eq!(line["level"], "INFO");
        assert_eq!(line["kind"], "NetworkPolicy");
        assert_eq!(line["namespace"], "default");
    }
    let generations = lines.iter().filter_map(|it| it["generation"].as_u64());
    assert!(generations.is_sorted_by(|one, next| one < next), "{lines:?}");
    assert!(lines[1]["milliseconds"].is_u64(), "{lines:?}");
    let broken = ONLY_BACKENDS.replace("db-allow", "broken").replace("{role: db}", "{role: [db]}");
    node.apply("policy", &broken);
    let fault = node.eventually("the log of the fault", || {
        let mut lines = node.log().into_iter().filter_map(|it| serde_json::from_str(&it).ok());
        lines.find(|it: &Value| it["policy"] == "broken" && it["level"] == "WARN")
    });
    assert_eq!([&fault["kind"], &fault["namespace"]], ["NetworkPolicy", "default"]);
    assert!(fault["message"].as_str().unwrap().contains("spec.podSelector"), "{fault}");
}

#[test]
fn a_new_deny_reaches_connections_that_live() {
    requires_the_machine!("redis-server");
    let node = ClusterNode::start(&[]);
    let (db, backend) = (node.pod("db", "db"), node.pod("backend", "backend"));
    let _server = db.serve_redis();
    let mut connection = backend.connect(db.v4(), 6379).unwrap();
    let mut ask = || -> std::io::Result<[u8; 7]> {
        connection.write_all(b"PING\r\n")?;
        let mut answer = [0; 7];
        connection.read_exact(&mut answer)?;
        Ok(answer)
    };
    assert_eq!(&ask().unwrap(), b"+PONG\r\n");
    node.apply("other", &nothing_in("x"));
    assert_eq!(&ask().unwrap(), b"+PONG\r\n", "a change elsewhere ends no connection");
    node.apply("policy", &nothing_in("db"));
    assert!(ask().is_err(), "the connection ends with its permission");
}

#[test]
fn the_pods_own_cluster_node_is_always_let_in() {
    requires_the_machine!("redis-server", "redis-cli");
    let node = ClusterNode::start(&[]);
    node.apply("policy", &nothing_in("db"));
    let (db, other) = (node.pod("db", "db"), node.pod("other", "other"));
    let _server = db.serve_redis();
    assert!(other.is_kept_from_redis(&db));
    let address = db.v4().to_string();
    let answer = node.namespace.exec(["timeout", "5", "redis-cli", "-h", &address, "ping"]);
    assert_eq!(answer.trim(), "PONG");
    assert!(db.pings("10.77.0.1".parse().unwrap()), "a pod reaches its node");
}

/// A pod that no peer may reach is tried all the time while it is attached.
#[test]
fn a_new_pod_is_never_open() {
    requires_the_machine!();
    let node = ClusterNode::start(&[]);
    node.apply("policy", &nothing_in("closed"));
    let caller = node.pod("caller", "closed");
    let stop = std::sync::atomic::AtomicBool::new(false);
    // The address that the next pod will get.
    let next = "10.77.0.3".parse().unwrap();
    std::thread::scope(|scope| {
        let calls = scope.spawn(|| {
            let mut calls = 0;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let listening = std::net::SocketAddr::new(next, 80);
                let brief = std::time::Duration::from_millis(20);
                let call = || std::net::TcpStream::connect_timeout(&listening, brief);
                let path = caller.namespace.path();
                let result = linux_net::in_namespace(path, call).unwrap();
                // A refusal would be an answer of the pod's kernel: it was reached.
                let error = result.expect_err("the pod must not be reached");
                assert_ne!(error.kind(), std::io::ErrorKind::ConnectionRefused);
                calls += 1;
            }
            calls
        });
        let pod = node.pod("closed", "closed");
        assert_eq!(pod.v4(), next);
        std::thread::sleep(std::time::Duration::from_millis(200));
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(calls.join().unwrap() > 0);
        assert!(
            pod.try_connect(caller.v4(), 80)
                .is_err_and(|error| { error.kind() != std::io::ErrorKind::ConnectionRefused })
        );
    });
}
