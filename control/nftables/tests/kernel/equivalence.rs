//! The kernel decides about random connections of random clusters as the reference and the compiled
//! tables of the switch do, after histories of changes.

use std::net::IpAddr;

use control::{Control, Scope, View};
use nftables::{Enforcer, Renderer};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use crate::common::generate::{NAMESPACES, OTHERS, PODS, edits, pod_addresses};
use crate::common::reference::{Cluster, Connection, addresses, is_peer_at_all};
use crate::common::{ICMP, SCTP, TCP, UDP, apply, egress_at, ingress_at};
use crate::lab::{Lab, Network, Question};

const KINDS: [(u8, u16); 10] = [
    (TCP, 53),
    (TCP, 80),
    (TCP, 8080),
    (UDP, 53),
    (UDP, 80),
    (UDP, 8080),
    (SCTP, 53),
    (SCTP, 80),
    (SCTP, 8080),
    (ICMP, 0),
];

fn ends() -> Vec<(String, Vec<IpAddr>)> {
    let parse = |text: &str| text.parse::<IpAddr>().unwrap();
    let pods =
        NAMESPACES.iter().flat_map(|namespace| PODS.iter().map(move |name| (namespace, name)));
    let pods = pods.map(|(namespace, name)| {
        let both = [false, true].into_iter().flat_map(|it| pod_addresses(namespace, name, it));
        (format!("{namespace}/{name}"), both.map(|it| parse(&it)).collect())
    });
    let world = ("world".to_owned(), OTHERS.map(parse).to_vec());
    pods.chain([world]).collect()
}

/// Returns whether the reference permits the connection at both ends.
fn permits(cluster: &Cluster, question: &Question) -> bool {
    let pod = |address: IpAddr| {
        let is_it = |pod: &&k8s_openapi::api::core::v1::Pod| {
            is_peer_at_all(pod) && addresses(pod).contains(&address)
        };
        cluster.pods.values().find(is_it)
    };
    let Question { from, to, protocol, port } = *question;
    pod(from).is_none_or(|pod| cluster.permits(pod, false, Connection { peer: to, protocol, port }))
        && pod(to)
            .is_none_or(|pod| cluster.permits(pod, true, Connection { peer: from, protocol, port }))
}

/// Returns whether the AF_XDP switch's tables permit the connection at both ends.
fn tables_permit(view: &View, question: &Question) -> bool {
    let Question { from, to, protocol, port } = *question;
    egress_at(view, from, to, protocol, port) && ingress_at(view, from, to, protocol, port)
}

/// Random questions between ends that have the addresses.
fn questions(view: &View, ends: &[(String, Vec<IpAddr>)], count: usize) -> Vec<Question> {
    let has = |(name, address): &(&String, &IpAddr)| {
        let pod = view.pods.iter().find(|(key, _)| key.to_string() == **name);
        pod.is_none_or(|(_, pod)| pod.addresses.contains(address))
    };
    let all = ends.iter().flat_map(|(name, addresses)| addresses.iter().map(move |it| (name, it)));
    let all: Vec<(&String, &IpAddr)> = all.filter(has).collect();
    let is_pod = |name: &str| view.pods.keys().any(|key| key.to_string() == name);
    let mut questions = Vec::new();
    while questions.len() < count {
        let (source, from) = all[fastrand::usize(..all.len())];
        let (destination, to) = all[fastrand::usize(..all.len())];
        let meets = is_pod(source) || is_pod(destination) || fastrand::u8(..) < 16;
        if source != destination && from.is_ipv4() == to.is_ipv4() && meets {
            let (protocol, port) = KINDS[fastrand::usize(..KINDS.len())];
            questions.push(Question { from: *from, to: *to, protocol, port });
        }
    }
    questions
}

/// Connections go to endpoints, or to services in front of them, which the kernel translates.
fn run(network: Network, services: bool, histories: usize, steps: usize, count: usize) {
    testkit::requires_root!();
    testkit::requires!(testkit::has_program("nft"), "nft is not installed");
    fastrand::seed(network as u64 + 1);
    let ends = ends();
    let mut lab = Lab::new(network, &ends);
    if services {
        lab.serve(&[53, 80, 8080]);
    }
    let mut runner = TestRunner::deterministic();
    let (mut asked, mut allowed) = (0, 0);
    for _ in 0..histories {
        let history = edits(10..40).new_tree(&mut runner).unwrap().current();
        let mut cluster = Cluster::default();
        let mut control = Control::new(Scope::All);
        control.list_peer_sets();
        control.commit();
        let mut state = (Renderer::default(), Enforcer::default());
        lab.enforce(&mut state, &control.view());
        for edits in history.chunks(history.len().div_ceil(steps)) {
            for edit in edits {
                cluster.apply(edit);
                apply(&mut control, edit);
                control.commit();
                lab.enforce(&mut state, &control.view());
            }
            let view = control.view();
            let questions = questions(&view, &ends, count);
            let arrived = lab.ask(&questions, |question| permits(&cluster, question));
            for question in &questions {
                assert_eq!(
                    tables_permit(&view, question),
                    permits(&cluster, question),
                    "{question:?}\n{history:#?}"
                );
                assert_eq!(
                    arrived.contains(question),
                    permits(&cluster, question),
                    "{question:?}\n{history:#?}\n{}",
                    lab.node.exec(["nft", "list", "ruleset"])
                );
            }
            asked += questions.len();
            allowed += arrived.len();
        }
        assert_eq!(state.1.written_whole(), 1, "every later change was a difference");
    }
    // Both answers come up often enough to mean something.
    assert!(allowed > asked / 10 && allowed < asked * 9 / 10, "{allowed} of {asked}");
}

#[test]
fn routed_interfaces() {
    run(Network::Routed, false, 12, 3, 400);
}

#[test]
fn ports_of_a_bridge() {
    run(Network::Bridged, false, 8, 3, 400);
}

#[test]
fn services_count_by_the_endpoint_that_they_are_translated_to() {
    run(Network::Routed, true, 6, 3, 400);
}
