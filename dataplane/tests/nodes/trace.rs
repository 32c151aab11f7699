//! Following packets through the graph.

use std::sync::Arc;

use acl::{Action, AddressMap, PortRange, Rule, Table};
use dataplane::graph::Node;
use dataplane::graph::trace::{End, Filter, Saw, Tracing, Way};
use dataplane::services::{Backend, Backends, Entry, ServicePort, Services, Way as Access};
use dataplane::wire::protocol;
use dataplane::{Gate, Outcome, Parts, Verdict};
use testkit::packet::{arp_request, cut, tcp, udp};

use crate::rig::{Rig, host, ip, pod};

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
    ports[1].as_mut().unwrap().to_pod = Gate::Table(Arc::new(table));
    let backend = Backend { address: ip("10.1.0.3").into(), port: 8080 };
    let port = ServicePort { internal: Backends::new(vec![backend]), ..ServicePort::default() };
    let mut services = Services::default();
    let entry = Entry { port: Arc::new(port), way: Access::Cluster };
    services.add(ip("10.96.0.1").into(), protocol::TCP, 80, entry);
    Parts { generation, ports, addresses: map, services: Arc::new(services), ..Parts::default() }
}

fn follow(rig: &mut Rig, filter: Filter, most: u32) -> Arc<Tracing> {
    let tracing = Arc::new(Tracing::new(filter, most));
    rig.follow(Some(Arc::clone(&tracing)));
    tracing
}

fn ways(tracing: &Tracing) -> Vec<Way> {
    std::iter::from_fn(|| tracing.take()).collect()
}

fn only(tracing: &Tracing) -> Way {
    let mut ways = ways(tracing);
    assert_eq!(ways.len(), 1, "{ways:?}");
    ways.remove(0)
}

fn nodes(way: &Way) -> Vec<Node> {
    way.steps.iter().map(|step| step.node).collect()
}

fn outcome(way: &Way) -> Outcome {
    match &way.end {
        End::Done { outcome, .. } => *outcome,
        End::Waits => panic!("it waits: {way:?}"),
    }
}

#[test]
fn each_node_tells_what_it_decided() {
    let mut rig = Rig::new(parts(1, 8080));
    let tracing = follow(&mut rig, Filter::default(), 100);
    rig.send(0, tcp("10.1.0.2:4000", "10.96.0.1:80").syn().build());
    let way = only(&tracing);
    use Node::{AntiSpoofing, Open, Parse, Policy, Rewrite, Service, Session};
    assert_eq!(nodes(&way), [Parse, AntiSpoofing, Session, Service, Policy, Open, Rewrite]);
    for (step, next) in way.steps.iter().zip(&way.steps[1..]) {
        assert_eq!(step.next, Some(next.node));
    }
    assert_eq!((way.in_port.as_deref(), way.vector), (Some("default/client"), 1));
    let Saw::Session { seen: None, .. } = &way.steps[2].saw else { panic!("{way:?}") };
    let Saw::Service { asked, given: Some(given) } = &way.steps[3].saw else { panic!("{way:?}") };
    assert_eq!((asked.destination_port, given.destination_port), (80, 8080));
    let Saw::Policy { exit: Some(exit), judged: Some(judged) } = &way.steps[4].saw else {
        panic!("{way:?}")
    };
    assert_eq!(exit.port.as_deref(), Some("default/server"));
    let (from, to) = (judged.from_pod.as_ref().unwrap(), judged.to_pod.as_ref().unwrap());
    assert!(from.permits && from.rule.is_none() && &*from.pod == "default/client");
    let rule = (0, Arc::from("NetworkPolicy default/server ingress[0]"));
    assert_eq!((to.permits, to.rule.clone()), (true, Some(rule)));
    let Saw::Open { made: Some(made) } = &way.steps[5].saw else { panic!("{way:?}") };
    assert_eq!((made.forward, made.views.receiver), (true, *given));
    let Saw::Rewrite { to: Some(to), ttl: 63, .. } = &way.steps[6].saw else { panic!("{way:?}") };
    assert_eq!(to.destination.to_ip(), ip("10.1.0.3"));
    let End::Done { outcome, out_port, answered } = &way.end else { panic!("{way:?}") };
    let end = (*outcome, out_port.as_deref(), *answered);
    assert_eq!(end, (Outcome::PolicyAllowed, Some("default/server"), false));

    // The answer finds the session, from its other side.
    rig.send(1, tcp("10.1.0.3:8080", "10.1.0.2:4000").syn_ack().build());
    let way = only(&tracing);
    assert_eq!(nodes(&way), [Parse, AntiSpoofing, Session, Rewrite]);
    let Saw::Session { seen: Some(seen), judged: None } = &way.steps[2].saw else {
        panic!("{way:?}")
    };
    assert!(!seen.forward && seen.current && seen.views.is_translated());
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
        let way = only(&tracing);
        let Saw::Session { seen: Some(seen), judged: Some(judged) } = &way.steps[2].saw else {
            panic!("{way:?}")
        };
        assert!(!seen.current);
        assert_eq!((judged.outcome == Outcome::PolicyDenied), (expected == Outcome::PolicyDenied));
        assert_eq!(outcome(&way), expected);
        if expected == Outcome::PolicyDenied {
            assert_eq!(judged.by, ["default-deny of NetworkPolicy default/server".into()]);
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
    let way = only(&tracing);
    assert_eq!((outcome(&way), way.vector), (Outcome::PolicyDenied, 3));
    rig.send_all(0, vec![to(81), to(81), to(81)]);
    assert_eq!((ways(&tracing).len(), tracing.is_over(), tracing.taken()), (1, true, 2));
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
    let ways = ways(&tracing);
    assert_eq!((nodes(&ways[0]), outcome(&ways[0])), (vec![Node::Parse], Outcome::Truncated));
    assert!(matches!(ways[0].steps[0].saw, Saw::Headers(None)));
    assert_eq!(nodes(&ways[1]), [Node::Parse, Node::Neighbour]);
    assert_eq!(outcome(&ways[1]), Outcome::ArpReply);
}
