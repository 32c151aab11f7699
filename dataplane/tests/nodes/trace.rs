//! Following packets through the graph.

use std::sync::Arc;

use acl::{Action, AddressMap, PortRange, Rule, Table};
use dataplane::graph::Node;
use dataplane::graph::trace::{End, Filter, Finding, PacketTrace, Tracing};
use dataplane::services::{Backend, Backends, Entry, Scope, ServicePort, Services};
use dataplane::wire::protocol;
use dataplane::{AclBinding, Outcome, Parts, Verdict};
use testkit::packet::{arp_request, cut, tcp, udp};

use crate::nodes::rig::{Rig, host, ip, pod};

/// A client and a server that takes TCP on port 8080 only, also as service 10.96.0.1:80.
fn parts(generation: u64, allowed: u16) -> Parts {
    let map = Arc::new(AddressMap::default());
    let rules = vec![
        Rule::new(Action::Permit, "NetworkPolicy default/server ingress[0]")
            .protocol(protocol::TCP)
            .destination_ports(PortRange::one(allowed)),
        Rule::new(Action::Deny, "default-deny of NetworkPolicy default/server"),
    ];
    let table = Table::compile(rules.into(), &map);
    let mut ports =
        vec![pod("default/client", &["10.1.0.2"]), pod("default/server", &["10.1.0.3"]), host()];
    ports[1].as_mut().unwrap().to_pod = AclBinding::Table(Arc::new(table));
    let backend = Backend { address: ip("10.1.0.3").into(), port: 8080 };
    let port = ServicePort { internal: Backends::new(vec![backend]), ..ServicePort::default() };
    let mut services = Services::default();
    let entry = Entry { port: Arc::new(port), scope: Scope::Cluster };
    services.add(ip("10.96.0.1").into(), protocol::TCP, 80, entry);
    Parts { generation, ports, addresses: map, services: Arc::new(services), ..Parts::default() }
}

fn follow(rig: &mut Rig, filter: Filter, most: u32) -> Arc<Tracing> {
    let tracing = Arc::new(Tracing::new(filter, most));
    rig.follow(Some(Arc::clone(&tracing)));
    tracing
}

fn traces(tracing: &Tracing) -> Vec<PacketTrace> {
    std::iter::from_fn(|| tracing.take()).collect()
}

fn only(tracing: &Tracing) -> PacketTrace {
    let mut traces = traces(tracing);
    assert_eq!(traces.len(), 1, "{traces:?}");
    traces.remove(0)
}

fn nodes(trace: &PacketTrace) -> Vec<Node> {
    trace.steps.iter().map(|step| step.node).collect()
}

fn outcome(trace: &PacketTrace) -> Outcome {
    match &trace.end {
        End::Done { outcome, .. } => *outcome,
        End::Waits => panic!("it waits: {trace:?}"),
    }
}

#[test]
fn each_node_tells_what_it_decided() {
    let mut rig = Rig::new(parts(1, 8080));
    let tracing = follow(&mut rig, Filter::default(), 100);
    rig.send(0, tcp("10.1.0.2:4000", "10.96.0.1:80").syn().build());
    let trace = only(&tracing);
    use Node::{AntiSpoofing, Open, Parse, Policy, Rewrite, Service, Session};
    assert_eq!(nodes(&trace), [Parse, AntiSpoofing, Session, Service, Policy, Open, Rewrite]);
    for (step, next) in trace.steps.iter().zip(&trace.steps[1..]) {
        assert_eq!(step.next, Some(next.node));
    }
    assert_eq!((trace.in_port.as_deref(), trace.vector), (Some("default/client"), 1));
    let Finding::Session { seen: None, .. } = &trace.steps[2].finding else { panic!("{trace:?}") };
    let Finding::Service { asked, given: Some(given) } = &trace.steps[3].finding else {
        panic!("{trace:?}")
    };
    assert_eq!((asked.destination_port, given.destination_port), (80, 8080));
    let Finding::Policy { exit: Some(exit), evaluation: Some(evaluation) } =
        &trace.steps[4].finding
    else {
        panic!("{trace:?}")
    };
    assert_eq!(exit.port.as_deref(), Some("default/server"));
    let (from, to) = (evaluation.from_pod.as_ref().unwrap(), evaluation.to_pod.as_ref().unwrap());
    assert!(from.permits && from.rule.is_none() && &*from.pod == "default/client");
    let rule = (0, "NetworkPolicy default/server ingress[0]".into());
    assert_eq!((to.permits, to.rule.clone()), (true, Some(rule)));
    let Finding::Open { made: Some(made) } = &trace.steps[5].finding else { panic!("{trace:?}") };
    assert_eq!((made.forward, made.tuples.responder), (true, *given));
    let Finding::Rewrite { to: Some(to), ttl: 63, .. } = &trace.steps[6].finding else {
        panic!("{trace:?}")
    };
    assert_eq!(to.destination.to_ip(), ip("10.1.0.3"));
    let End::Done { outcome, out_port, answered } = &trace.end else { panic!("{trace:?}") };
    let end = (*outcome, out_port.as_deref(), *answered);
    assert_eq!(end, (Outcome::PolicyAllowed, Some("default/server"), false));

    // The answer finds the session, from its other side.
    rig.send(1, tcp("10.1.0.3:8080", "10.1.0.2:4000").syn_ack().build());
    let trace = only(&tracing);
    assert_eq!(nodes(&trace), [Parse, AntiSpoofing, Session, Rewrite]);
    let Finding::Session { seen: Some(seen), evaluation: None } = &trace.steps[2].finding else {
        panic!("{trace:?}")
    };
    assert!(!seen.forward && seen.current && seen.tuples.is_translated());
}

#[test]
fn a_connection_of_an_older_snapshot_is_seen_to_be_judged_again() {
    let mut rig = Rig::new(parts(1, 8080));
    rig.send(0, tcp("10.1.0.2:4000", "10.1.0.3:8080").syn().build());
    let tracing = follow(&mut rig, Filter::default(), 100);
    let data = || tcp("10.1.0.2:4000", "10.1.0.3:8080").data(b"x").build();
    for (generation, allowed, expected) in
        [(2, 8080, Outcome::Session), (3, 80, Outcome::PolicyDenied)]
    {
        rig.publish(parts(generation, allowed));
        assert_eq!(rig.send(0, data()), expected);
        let trace = only(&tracing);
        let Finding::Session { seen: Some(seen), evaluation: Some(evaluation) } =
            &trace.steps[2].finding
        else {
            panic!("{trace:?}")
        };
        assert!(!seen.current);
        assert_eq!(
            (evaluation.outcome == Outcome::PolicyDenied),
            (expected == Outcome::PolicyDenied)
        );
        assert_eq!(outcome(&trace), expected);
        if expected == Outcome::PolicyDenied {
            assert_eq!(evaluation.by, ["default-deny of NetworkPolicy default/server".into()]);
        }
    }
}

#[test]
fn only_what_matches_is_followed_and_only_so_many() {
    let mut rig = Rig::new(parts(1, 8080));
    let to = |port: u16| tcp("10.1.0.2:4000", &format!("10.1.0.3:{port}")).syn().build();
    let filter = Filter { verdict: Some(Verdict::Drop), port: Some(81), ..Filter::default() };
    let tracing = follow(&mut rig, filter, 2);
    rig.send_all(0, vec![to(8080), to(80), to(81)]);
    let trace = only(&tracing);
    assert_eq!((outcome(&trace), trace.vector), (Outcome::PolicyDenied, 3));
    rig.send_all(0, vec![to(81), to(81), to(81)]);
    assert_eq!((traces(&tracing).len(), tracing.is_over(), tracing.taken()), (1, true, 2));
    rig.send(0, to(81));
    assert!(tracing.take().is_none());
    assert_eq!(Arc::strong_count(&tracing), 1, "the worker still holds the trace");
}

#[test]
fn what_cannot_be_read_is_followed_to_its_end() {
    let mut rig = Rig::new(parts(1, 8080));
    let tracing = follow(&mut rig, Filter::default(), 100);
    rig.send(0, cut(udp("10.1.0.2:1", "10.1.0.3:2").build(), 30));
    rig.send(0, arp_request("10.1.0.2", "10.1.0.1").build());
    let traces = traces(&tracing);
    assert_eq!((nodes(&traces[0]), outcome(&traces[0])), (vec![Node::Parse], Outcome::Truncated));
    assert!(matches!(traces[0].steps[0].finding, Finding::Headers(None)));
    assert_eq!(nodes(&traces[1]), [Node::Parse, Node::Neighbour]);
    assert_eq!(outcome(&traces[1]), Outcome::ArpReply);
}
