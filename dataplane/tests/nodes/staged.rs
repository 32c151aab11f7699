//! Connections about which staged ACLs decide otherwise.

use std::sync::Arc;

use acl::{Action, AddressMap, PortRange, Rule, Table};
use dataplane::services::{Backend, Backends, Entry, Scope, ServicePort, Services};
use dataplane::session::Tuples;
use dataplane::wire::protocol;
use dataplane::{
    AclBinding, Outcome, Parts, Snapshot, StagedAcls, StagedDecision, staged_difference_of_session,
};
use testkit::packet::{tcp, udp};

use crate::nodes::rig::{Rig, host, ip, pod};

const CLIENT: u16 = 0;
const SERVER: u16 = 1;

fn table(action: Action, origin: &str) -> AclBinding {
    let rules = [
        Rule::new(action, origin).protocol(protocol::TCP).destination_ports(PortRange::one(80)),
        Rule::new(Action::Permit, "the rest"),
    ];
    AclBinding::Table(Arc::new(Table::compile(rules.into(), &Arc::new(AddressMap::default()))))
}

/// A client, and a server with these ACLs for what comes to it, behind a service as well.
fn parts(generation: u64, enforced: AclBinding, staged: Option<AclBinding>) -> Parts {
    let mut ports =
        vec![pod("default/client", &["10.1.0.2"]), pod("default/server", &["10.1.0.3"]), host()];
    let server = ports[1].as_mut().unwrap();
    server.to_pod = enforced;
    server.staged =
        staged.map(|to_pod| Arc::new(StagedAcls { to_pod, from_pod: AclBinding::Open }));
    let backend = Backend { address: ip("10.1.0.3").into(), port: 80 };
    let port = ServicePort { internal: Backends::new(vec![backend]), ..ServicePort::default() };
    let mut services = Services::default();
    services.claim(ip("10.96.0.1").into());
    let entry = Entry { port: Arc::new(port), scope: Scope::Cluster };
    services.add(ip("10.96.0.1").into(), protocol::TCP, 8080, entry);
    Parts {
        generation,
        ports,
        node_addresses: vec![ip("192.0.2.1")],
        local_networks: vec!["10.1.0.0/24".parse().unwrap()],
        services: Arc::new(services),
        ..Parts::default()
    }
}

fn decision(outcome: Outcome, by: &str) -> StagedDecision {
    StagedDecision { outcome, by: vec![by.into()] }
}

#[test]
fn what_staged_acls_would_deny_passes_and_is_reported_once() {
    let staged = table(Action::Deny, "NetworkPolicy default/next ingress[0]");
    let mut rig = Rig::new(parts(1, AclBinding::Open, Some(staged)));
    let would = decision(Outcome::PolicyDenied, "NetworkPolicy default/next ingress[0]");
    let syn = |port: u16, to: &str| tcp(&format!("10.1.0.2:{port}"), to).syn().build();
    assert_eq!(rig.send(CLIENT, syn(4000, "10.1.0.3:80")), Outcome::PolicyAllowed);
    assert_eq!(rig.take_differences(), [(Outcome::PolicyAllowed, would.clone())]);
    rig.receive(SERVER).expect("it is not enforced");
    rig.pass(SERVER, tcp("10.1.0.3:80", "10.1.0.2:4000").syn_ack().build(), CLIENT);
    rig.pass(CLIENT, tcp("10.1.0.2:4000", "10.1.0.3:80").ack().build(), SERVER);
    assert_eq!(rig.take_differences(), [], "of a connection that is open");
    // By the service's address, one of a vector; and what both permit.
    let vector = vec![
        syn(4001, "10.1.0.3:81"),
        syn(4002, "10.96.0.1:8080"),
        udp("10.1.0.2:4003", "10.1.0.3:80").payload(b"x").build(),
    ];
    assert_eq!(rig.send_all(CLIENT, vector), [Outcome::PolicyAllowed; 3]);
    assert_eq!(rig.take_differences(), [(Outcome::PolicyAllowed, would)]);
}

#[test]
fn what_staged_acls_would_open_stays_denied_and_is_reported() {
    let enforced = table(Action::Deny, "NetworkPolicy default/server ingress[0]");
    let staged = table(Action::Permit, "NetworkPolicy default/next ingress[0]");
    let mut rig = Rig::new(parts(1, enforced.clone(), Some(staged)));
    let syn = tcp("10.1.0.2:4000", "10.1.0.3:80").syn().build();
    assert_eq!(rig.send(CLIENT, syn.clone()), Outcome::PolicyDenied);
    let would = decision(Outcome::PolicyAllowed, "NetworkPolicy default/next ingress[0]");
    assert_eq!(rig.take_differences(), [(Outcome::PolicyDenied, would)]);
    assert!(rig.receive(SERVER).is_none());
    let open = decision(Outcome::PolicyAllowed, "default-allow");
    rig.publish(parts(2, enforced.clone(), Some(AclBinding::Open)));
    assert_eq!(rig.send(CLIENT, syn.clone()), Outcome::PolicyDenied);
    assert_eq!(rig.take_differences(), [(Outcome::PolicyDenied, open)]);
    rig.publish(parts(3, enforced, None));
    assert_eq!(rig.send(CLIENT, syn), Outcome::PolicyDenied);
    assert_eq!(rig.take_differences(), []);
}

#[test]
fn open_connections_are_compared_by_the_tuple_that_policies_see() {
    let mut rig = Rig::new(parts(1, AclBinding::Open, None));
    for (n, to) in ["10.1.0.3:80", "10.1.0.3:81", "10.96.0.1:8080"].into_iter().enumerate() {
        rig.send(CLIENT, tcp(&format!("10.1.0.2:{}", 4000 + n), to).syn().build());
    }
    let staged = table(Action::Deny, "NetworkPolicy default/next ingress[0]");
    let snapshot = Snapshot::new(parts(2, AclBinding::Open, Some(staged)));
    let tuples: Vec<Tuples> = rig.sessions().iter().map(|(_, tuples)| tuples).collect();
    assert_eq!(tuples.len(), 3);
    let differ: Vec<_> =
        tuples.iter().filter_map(|it| staged_difference_of_session(&snapshot, it)).collect();
    let would = decision(Outcome::PolicyDenied, "NetworkPolicy default/next ingress[0]");
    assert_eq!(differ, [would.clone(), would]);
}
