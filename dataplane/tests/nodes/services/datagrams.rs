//! Flows of UDP that are older than what their addresses mean: the next datagram opens another one.

use std::sync::Arc;

use dataplane::services::Services;
use dataplane::wire::{self, protocol};
use dataplane::{Outcome, Parts, Peer, Routes};
use testkit::packet::{tcp, udp};

use super::{CLIENT, HOST, NODE, OTHER, SERVER, UPLINK, cluster, parts, service};
use crate::nodes::rig::{Rig, assert_is, ip};

const FLOW: &str = "10.1.0.2:4000";

fn host_port(pod: &str) -> Services {
    let mut services = Services::default();
    services.add_node_port(false, protocol::UDP, 8125, Arc::new(service(&[(pod, 8080)])));
    services
}

/// Publishes these services.
fn change(rig: &mut Rig, generation: u64, services: Services) {
    rig.publish(Parts { generation, ..parts(services) });
}

#[test]
fn a_flow_older_than_its_service_reaches_it() {
    let vip = "10.96.0.1:80";
    let of_vip = |pod: &str| cluster(&[("10.96.0.1", protocol::UDP, 80)], service(&[(pod, 8080)]));
    let datagram = |to: &str| udp(FLOW, to).payload(b"x").build();
    let mut rig = Rig::new(parts(Services::default()));
    rig.pass(CLIENT, datagram(vip), HOST);
    change(&mut rig, 2, of_vip("10.1.0.3"));
    let there = rig.pass(CLIENT, datagram(vip), SERVER);
    assert_is(&there, &udp(FLOW, "10.1.0.3:8080").payload(b"x").build());
    // It moves, goes, and comes back.
    change(&mut rig, 3, of_vip("10.1.0.4"));
    rig.pass(CLIENT, datagram(vip), OTHER);
    change(&mut rig, 4, Services::default());
    rig.pass(CLIENT, datagram(vip), HOST);
    change(&mut rig, 5, of_vip("10.1.0.4"));
    rig.pass(CLIENT, datagram(vip), OTHER);
    assert_eq!(rig.sessions().used(), 1);
    // A port that the service does not have.
    assert_eq!(rig.send(CLIENT, datagram("10.96.0.1:81")), Outcome::NoEndpoint);
}

#[test]
fn a_flow_outlives_the_pod_behind_its_host_port() {
    let at = format!("{NODE}:8125");
    let datagram = || udp(FLOW, &at).payload(b"x").build();
    let mut rig = Rig::new(parts(host_port("10.1.0.3")));
    rig.pass(CLIENT, datagram(), SERVER);
    change(&mut rig, 2, Services::default());
    rig.pass(CLIENT, datagram(), HOST);
    change(&mut rig, 3, host_port("10.1.0.4"));
    rig.pass(CLIENT, datagram(), OTHER);
    // Of a client outside too, and of one that has heard of the node itself.
    let client = "198.51.100.9:5000";
    let question = || udp(client, &at).payload(b"x").build();
    change(&mut rig, 4, Services::default());
    rig.pass(UPLINK, question(), HOST);
    change(&mut rig, 5, host_port("10.1.0.3"));
    rig.pass(UPLINK, question(), SERVER);
    rig.pass(SERVER, udp("10.1.0.3:8080", client).payload(b"y").build(), UPLINK);
    change(&mut rig, 6, host_port("10.1.0.4"));
    rig.pass(UPLINK, question(), OTHER);
}

#[test]
fn what_changes_nothing_about_a_flow_leaves_its_session_alone() {
    let services = || {
        let at = [("10.96.0.1", protocol::UDP, 80)];
        let mut services = cluster(&at, service(&[("10.1.0.2", 8080), ("10.1.0.3", 8080)]));
        // A pod that reaches itself by the node's address.
        let own = Arc::new(service(&[("10.1.0.2", 8080)]));
        services.add_node_port(false, protocol::UDP, 30_001, own);
        services
    };
    let masquerade = |generation| Parts {
        generation,
        masquerade: true,
        translation_ports: Some(61_000..=61_999),
        ..parts(services())
    };
    let mut rig = Rig::new(masquerade(1));
    let flows = ["10.96.0.1:80", "10.1.0.3:9", "10.2.0.9:9", "198.51.100.9:9", "192.0.2.1:30001"];
    for generation in 2..5 {
        for to in flows {
            rig.send(CLIENT, udp(FLOW, to).payload(b"x").build());
        }
        rig.publish(masquerade(generation));
        for to in flows {
            let outcome = rig.send(CLIENT, udp(FLOW, to).payload(b"x").build());
            assert_eq!(outcome, Outcome::Session, "{to}");
        }
    }
}

/// A datagram that a policy denies now opens nothing, and what it was is over.
#[test]
fn a_flow_that_is_decided_anew_may_be_denied() {
    let vip = "10.96.0.1:80";
    let mut rig = Rig::new(parts(Services::default()));
    let datagram = || udp(FLOW, vip).payload(b"x").build();
    rig.pass(CLIENT, datagram(), HOST);
    let at = [("10.96.0.1", protocol::UDP, 80)];
    let mut closed = parts(cluster(&at, service(&[("10.1.0.3", 8080)])));
    closed.generation = 2;
    closed.ports[usize::from(SERVER)].as_mut().unwrap().to_pod = super::denies_everything();
    rig.publish(closed);
    assert_eq!(rig.send(CLIENT, datagram()), Outcome::PolicyDenied);
    assert_eq!(rig.sessions().used(), 0);
}

/// A node that joins, or leaves: its pods are routed, and the world is masqueraded.
#[test]
fn a_flow_follows_its_route() {
    let masquerade = |generation, networks: &[&str]| {
        let peer = Peer {
            name: "node2".to_owned(),
            addresses: vec![ip("192.0.2.2").into()],
            networks: networks.iter().map(|net| net.parse().unwrap()).collect(),
            endpoint: ip("192.0.2.2").into(),
            next_hop: Some([2, 0, 0, 0, 0, 3]),
            ..Peer::default()
        };
        Parts {
            generation,
            masquerade: true,
            translation_ports: Some(61_000..=61_999),
            routes: Arc::new(Routes::new(vec![peer])),
            ..parts(Services::default())
        }
    };
    let mut rig = Rig::new(masquerade(1, &[]));
    let source = |rig: &mut Rig| {
        let there = rig.pass(CLIENT, udp(FLOW, "10.2.0.9:9").payload(b"x").build(), UPLINK);
        wire::parse(&there).unwrap().flow.source.to_ip()
    };
    assert_eq!(source(&mut rig), ip(NODE));
    rig.publish(masquerade(2, &["10.2.0.0/24"]));
    assert_eq!(source(&mut rig), ip("10.1.0.2"));
    rig.publish(masquerade(3, &[]));
    assert_eq!(source(&mut rig), ip(NODE));
    assert_eq!(rig.sessions().used(), 1);
}

/// A client of TCP notices by itself.
#[test]
fn connections_stay_where_they_are() {
    let vip = "10.96.0.1:80";
    let of_vip = |pod: &str| cluster(&[("10.96.0.1", protocol::TCP, 80)], service(&[(pod, 8080)]));
    let mut rig = Rig::new(parts(of_vip("10.1.0.3")));
    rig.pass(CLIENT, tcp(FLOW, vip).syn().build(), SERVER);
    for (generation, services) in [(2, of_vip("10.1.0.4")), (3, Services::default())] {
        change(&mut rig, generation, services);
        rig.pass(CLIENT, tcp(FLOW, vip).data(b"x").build(), SERVER);
    }
}
