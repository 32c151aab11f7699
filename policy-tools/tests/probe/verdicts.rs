//! Answers of probes about pods, nodes and addresses.

use std::sync::LazyLock;

use proptest::prelude::*;

use super::{Cluster, node, pod, policy, text};

fn two_nodes() -> String {
    node("n1", "192.168.0.1", "10.1.1.0/24") + &node("n2", "192.168.0.2", "10.1.2.0/24")
}

/// `db` and `web` on the first node, `app` on the second; `app` may reach `db` on 6379.
fn redis() -> String {
    two_nodes()
        + &pod("a/db", "role: db", "n1", "10.1.1.10", "")
        + &pod("a/web", "role: web", "n1", "10.1.1.11", "")
        + &pod("a/app", "role: app", "n2", "10.1.2.10", "")
        + &policy(
            "db",
            "podSelector: {matchLabels: {role: db}}, ingress: [{from: [{podSelector: \
             {matchLabels: {role: app}}}], ports: [{port: 6379}]}]",
        )
}

#[test]
fn the_redis_case() {
    Cluster::new(&redis()).says(&[
        "a/app a/db TCP 6379: allow policy-allowed | NetworkPolicy a/db ingress[0]",
        "a/app a/db TCP 6380: deny policy-denied | default-deny of NetworkPolicy a/db",
        "a/app a/db UDP 6379: deny policy-denied | default-deny of NetworkPolicy a/db",
        "a/app a/db SCTP 6379: deny policy-denied | default-deny of NetworkPolicy a/db",
        "a/app a/db ICMP: deny policy-denied | default-deny of NetworkPolicy a/db",
        "a/web a/db TCP 6379: deny policy-denied | default-deny of NetworkPolicy a/db",
        "a/db a/app TCP 6379: allow policy-allowed | default-allow",
        "a/db a/web SCTP 9: allow policy-allowed | default-allow",
        "a/web a/app ICMP: allow policy-allowed | default-allow",
        "a/db a/db TCP 1: allow same-pod",
    ]);
}

#[test]
fn cluster_nodes_and_addresses() {
    let manifests = redis()
        + &pod("a/proxy", "role: app", "n2", "192.168.0.2", "hostNetwork: true")
        + &policy(
            "web",
            "podSelector: {matchLabels: {role: web}}, ingress: [{from: [{ipBlock: \
             {cidr: 203.0.113.0/24, except: [203.0.113.128/25]}}]}]",
        );
    Cluster::new(&manifests).says(&[
        // The pod's own node is always let in, another one is not.
        "node/n1 a/db TCP 6379: allow own-node",
        "node/n2 a/db TCP 6379: deny policy-denied | default-deny of NetworkPolicy a/db",
        // A pod on the host network is its node, and no selector means it.
        "a/proxy a/db TCP 6379: deny policy-denied | default-deny of NetworkPolicy a/db",
        "a/proxy a/app TCP 80: allow own-node",
        "a/app a/proxy TCP 80: allow policy-allowed | default-allow",
        "a/proxy node/n2 TCP 80: allow same-node",
        "node/n1 a/proxy TCP 80: allow no-policy",
        "192.168.0.1 192.168.0.2 TCP 80: allow no-policy",
        // An address means whoever has it.
        "10.1.2.10 10.1.1.10 TCP 6379: allow policy-allowed | NetworkPolicy a/db ingress[0]",
        "192.168.0.1 a/db TCP 1: allow own-node",
        "203.0.113.9 a/web TCP 80: allow policy-allowed | NetworkPolicy a/web ingress[0]",
        "203.0.113.200 a/web TCP 80: deny policy-denied | default-deny of NetworkPolicy a/web",
        "a/db 203.0.113.9 TCP 443: allow policy-allowed | default-allow",
        "203.0.113.9 203.0.113.10 TCP 443: allow no-policy",
        // The address is unassigned.
        "a/db 10.1.1.99 TCP 1: deny no-route",
        "a/db 10.1.2.99 TCP 1: deny no-route",
        "a/db 224.0.0.1 UDP 1: deny multicast",
        "127.0.0.1 a/app TCP 1: deny martian",
        "a/db fd00::1 TCP 1: deny no-common-family",
    ]);
}

#[test]
fn both_directions_on_two_cluster_nodes() {
    let manifests = redis()
        + &policy(
            "app",
            "podSelector: {matchLabels: {role: app}}, policyTypes: [Egress], egress: [{to: \
             [{podSelector: {}}], ports: [{port: 6379}, {port: 53, protocol: UDP}]}]",
        );
    Cluster::new(&manifests).says(&[
        "a/app a/db TCP 6379: allow policy-allowed | NetworkPolicy a/app egress[0] | \
         NetworkPolicy a/db ingress[0]",
        "a/app a/db UDP 53: deny policy-denied | default-deny of NetworkPolicy a/db",
        "a/app a/web UDP 53: allow policy-allowed | NetworkPolicy a/app egress[0]",
        "a/app a/web TCP 80: deny policy-denied | default-deny of NetworkPolicy a/app",
        "a/app 203.0.113.9 TCP 6379: deny policy-denied | default-deny of NetworkPolicy a/app",
        "a/app node/n2 UDP 53: deny policy-denied | default-deny of NetworkPolicy a/app",
        "a/web a/app TCP 80: allow policy-allowed | default-allow",
    ]);
}

#[test]
fn a_port_name_means_what_the_target_makes_of_it() {
    let http = |port: u16| {
        format!("containers: [{{name: c, ports: [{{name: http, containerPort: {port}}}]}}]")
    };
    let manifests = two_nodes()
        + &pod("a/one", "role: web", "n1", "10.1.1.10", &http(8080))
        + &pod("a/two", "role: web", "n2", "10.1.2.10", &http(9090))
        + &pod("a/bare", "role: web", "n2", "10.1.2.11", "")
        + &pod("a/x", "", "n1", "10.1.1.11", "")
        + &policy(
            "web",
            "podSelector: {matchLabels: {role: web}}, ingress: [{ports: [{port: http}]}]",
        );
    Cluster::new(&manifests).says(&[
        "a/x a/one TCP http: allow policy-allowed | NetworkPolicy a/web ingress[0]",
        "a/x a/two TCP http: allow policy-allowed | NetworkPolicy a/web ingress[0]",
        "a/x a/one TCP 8080: allow policy-allowed | NetworkPolicy a/web ingress[0]",
        "a/x a/one TCP 9090: deny policy-denied | default-deny of NetworkPolicy a/web",
        "a/x a/two TCP 8080: deny policy-denied | default-deny of NetworkPolicy a/web",
        "a/x 10.1.2.10 TCP http: allow policy-allowed | NetworkPolicy a/web ingress[0]",
        "a/x a/bare TCP http: deny unknown-port-name",
        "a/x a/one UDP http: deny unknown-port-name",
        "a/x node/n1 TCP http: deny unknown-port-name",
        "a/x 203.0.113.9 TCP http: deny unknown-port-name",
    ]);
}

#[test]
fn every_common_family_must_be_allowed() {
    let manifests = pod("a/x", "", "n1", "10.1.1.10 fd00::10", "")
        + &pod("a/y", "role: y", "n2", "10.1.2.10 fd00::20", "")
        + &pod("a/six", "role: y", "n2", "fd00::21", "")
        + &pod("a/four", "", "n1", "10.1.1.11", "")
        + &policy(
            "y",
            "podSelector: {matchLabels: {role: y}}, ingress: [{from: [{ipBlock: {cidr: 0.0.0.0/0}}]}]",
        );
    Cluster::new(&manifests).says(&[
        "a/x a/y TCP 80: deny families-differ: IPv4 policy-allowed, IPv6 policy-denied | \
         default-deny of NetworkPolicy a/y",
        "a/x a/six TCP 80: deny policy-denied | default-deny of NetworkPolicy a/y",
        "a/four a/y ICMP: allow policy-allowed | NetworkPolicy a/y ingress[0]",
        "a/four a/six TCP 80: deny no-common-family",
        "a/y a/x ICMP: allow policy-allowed | default-allow",
        "a/six a/x SCTP 9: allow policy-allowed | default-allow",
        "fd00::10 fd00::20 UDP 1: deny policy-denied | default-deny of NetworkPolicy a/y",
    ]);
}

#[test]
fn pods_with_nothing_but_labels() {
    let manifests = pod("a/db", "role: db", "", "", "")
        + &pod("a/app", "role: app", "", "", "")
        + &pod("a/far", "role: app", "n9", "", "")
        + &pod("a/h", "role: app", "n9", "", "hostNetwork: true")
        + &pod("a/hh", "", "", "", "hostNetwork: true")
        + &policy(
            "db",
            "podSelector: {matchLabels: {role: db}}, ingress: [{from: [{podSelector: \
             {matchLabels: {role: app}}}]}], policyTypes: [Ingress, Egress], egress: [{to: \
             [{ipBlock: {cidr: 0.0.0.0/0, except: [10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16]}}]}]",
        );
    Cluster::new(&manifests).says(&[
        "a/app a/db TCP 1: allow policy-allowed | NetworkPolicy a/db ingress[0]",
        "a/far a/db TCP 1: allow policy-allowed | NetworkPolicy a/db ingress[0]",
        "a/h a/db TCP 1: deny policy-denied | default-deny of NetworkPolicy a/db",
        "a/hh a/db TCP 1: deny policy-denied | default-deny of NetworkPolicy a/db",
        "a/db 203.0.113.1 TCP 1: allow policy-allowed | NetworkPolicy a/db egress[0]",
        "a/db a/far TCP 1: deny policy-denied | default-deny of NetworkPolicy a/db",
        "a/db a/h TCP 1: deny policy-denied | default-deny of NetworkPolicy a/db",
        "node/n9 a/far TCP 1: allow own-node",
    ]);
}

#[test]
fn finished_pods_and_contested_addresses_open_nothing() {
    let done =
        pod("a/done", "", "n1", "10.1.1.1", "").replace("status: {", "status: {phase: Failed, ");
    let manifests = done
        + &pod("a/heir", "", "n1", "10.1.1.1", "")
        + &pod("a/p", "", "n1", "10.1.1.2", "")
        + &pod("a/q", "", "n2", "10.1.1.2", "");
    let mut cluster = Cluster::new(&manifests);
    assert_eq!(cluster.0.contested(), ["10.1.1.2 is claimed by Pod a/p and Pod a/q"]);
    assert_eq!(cluster.0.pods().len(), 3);
    cluster.says(&[
        "a/done a/heir TCP 1: deny pod-finished",
        "a/heir a/done TCP 1: deny pod-finished",
        "203.0.113.1 10.1.1.1 TCP 1: allow policy-allowed | default-allow",
        "a/heir a/p TCP 1: deny address-conflict",
        "a/q a/heir TCP 1: deny address-conflict",
    ]);
}

#[test]
fn more_questions_than_a_batch_holds() {
    let mut cluster = Cluster::new(&redis());
    let questions = ["a/app a/db TCP 6379", "a/web a/db TCP 6379", "a/db a/app TCP 6379"];
    let many: Vec<&str> = questions.iter().cycle().take(9_000).copied().collect();
    let answers = cluster.answers(&many);
    let first: Vec<String> = answers[..3].iter().map(text).collect();
    assert!(answers.chunks(3).all(|some| some.iter().map(text).collect::<Vec<_>>() == first));
    assert_eq!(first[1], "deny policy-denied | default-deny of NetworkPolicy a/db");
}

const QUESTIONS: [&str; 12] = [
    "a/app a/db TCP 6379",
    "a/db a/app TCP 6379",
    "a/app a/db UDP 53",
    "a/db a/app UDP 53",
    "a/web a/db ICMP",
    "a/db a/web ICMP",
    "a/web a/db SCTP 7",
    "a/db a/web SCTP 7",
    "node/n2 a/db TCP 6379",
    "a/db node/n2 TCP 6379",
    "203.0.113.1 a/db TCP 6379",
    "a/db 203.0.113.1 TCP 6379",
];

/// The answer to each question asked alone.
static ALONE: LazyLock<Vec<String>> = LazyLock::new(|| {
    let alone = QUESTIONS.iter().map(|question| Cluster::new(&redis()).answers(&[question]));
    alone.map(|answers| text(&answers[0])).collect()
});

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    /// No question's connection lets another question's packet through.
    #[test]
    fn answers_do_not_depend_on_what_was_asked_before(
        order in proptest::collection::vec(0..QUESTIONS.len(), 1..60), one_by_one in any::<bool>()
    ) {
        let mut cluster = Cluster::new(&redis());
        let questions: Vec<&str> = order.iter().map(|n| QUESTIONS[*n]).collect();
        let answers = match one_by_one {
            true => questions.iter().flat_map(|question| cluster.answers(&[*question])).collect(),
            false => cluster.answers(&questions),
        };
        for (n, answer) in order.iter().zip(answers) {
            prop_assert_eq!(&text(&answer), &ALONE[*n]);
        }
    }
}
