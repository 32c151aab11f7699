//! Services: connections that look different at their two ends.

mod datagrams;
mod outside;
mod processes;

use std::collections::BTreeMap;
use std::sync::Arc;

use acl::{Action, AddressMap, PortRange, Rule, Table};
use dataplane::services::{Backend, Backends, Entry, Scope, ServicePort, Services};
use dataplane::wire::{self, protocol};
use dataplane::{AclBinding, Outcome, Parts, Peer, Routes, Underlay};
use testkit::packet::{icmp_error, ping, sctp, tcp, udp};

use crate::nodes::rig::{Rig, assert_is, host, ip, left_open, pod, uplink};

const CLIENT: u16 = 0;
const SERVER: u16 = 1;
const OTHER: u16 = 2;
const HOST: u16 = 3;
const UPLINK: u16 = 4;
const NODE: &str = "192.0.2.1";

fn backends(list: &[(&str, u16)]) -> Backends {
    let backend =
        |(address, port): &(&str, u16)| Backend { address: ip(address).into(), port: *port };
    Backends::new(list.iter().map(backend).collect())
}

/// The same backends for everybody.
fn service(list: &[(&str, u16)]) -> ServicePort {
    let all = backends(list);
    ServicePort {
        name: "default/web:http".into(),
        internal: all.clone(),
        any: all.clone(),
        external: all,
        affinity_s: None,
    }
}

fn parts(services: Services) -> Parts {
    let mac = |n| [2, 0, 0, 0, 0, n];
    Parts {
        generation: 1,
        ports: vec![
            pod("default/client", &["10.1.0.2", "fd01::2"]),
            pod("default/server", &["10.1.0.3", "fd01::3"]),
            pod("default/other", &["10.1.0.4", "fd01::4"]),
            host(),
            uplink(mac(1), mac(2), 1500),
        ],
        node_addresses: vec![ip(NODE), ip("2001:db8::1")],
        local_networks: vec!["10.1.0.0/24".parse().unwrap(), "fd01::/64".parse().unwrap()],
        services: Arc::new(services),
        underlay: Underlay::Routed,
        routes: Arc::new(Routes::new(vec![Peer {
            name: "node2".to_owned(),
            addresses: vec![ip("192.0.2.2").into()],
            networks: vec!["10.2.0.0/24".parse().unwrap()],
            endpoint: ip("192.0.2.2").into(),
            next_hop: Some(mac(3)),
            ..Peer::default()
        }])),
        ..Parts::default()
    }
}

/// `address:port` leads to the service by its cluster address.
fn cluster(at: &[(&str, u8, u16)], port: ServicePort) -> Services {
    let port = Arc::new(port);
    let mut services = Services::default();
    for (address, protocol, number) in at {
        let entry = Entry { port: Arc::clone(&port), scope: Scope::Cluster };
        services.add(ip(address).into(), *protocol, *number, entry);
        services.claim(ip(address).into());
    }
    services
}

/// A table without a rule permits nothing.
fn denies_everything() -> AclBinding {
    AclBinding::Table(Arc::new(Table::compile([].into(), &Arc::new(AddressMap::default()))))
}

#[test]
fn a_connection_to_a_service_reaches_a_pod_and_is_answered_by_the_service() {
    for (client, vip, server, vip_ip, server_ip) in [
        ("10.1.0.2:4000", "10.96.0.1:80", "10.1.0.3:8080", "10.96.0.1", "10.1.0.3"),
        ("[fd01::2]:4000", "[fd60::1]:80", "[fd01::3]:8080", "fd60::1", "fd01::3"),
    ] {
        let at = [
            (vip_ip, protocol::TCP, 80),
            (vip_ip, protocol::UDP, 80),
            (vip_ip, protocol::SCTP, 80),
        ];
        let mut rig = Rig::new(parts(cluster(&at, service(&[(server_ip, 8080)]))));
        let there = rig.pass(CLIENT, tcp(client, vip).syn().build(), SERVER);
        assert_is(&there, &tcp(client, server).syn().build());
        let back = rig.pass(SERVER, tcp(server, client).syn_ack().build(), CLIENT);
        assert_is(&back, &tcp(vip, client).syn_ack().build());
        let there = rig.pass(CLIENT, tcp(client, vip).data(b"GET /").build(), SERVER);
        assert_is(&there, &tcp(client, server).data(b"GET /").build());
        // A checksum that was left unfinished covers other addresses in the end.
        let there = rig.pass(CLIENT, left_open(tcp(client, vip).data(b"GET /1").build()), SERVER);
        assert_is(&there, &tcp(client, server).data(b"GET /1").build());
        let back = rig.pass(SERVER, left_open(tcp(server, client).data(b"200 ").build()), CLIENT);
        assert_is(&back, &tcp(vip, client).data(b"200 ").build());
        let there = rig.pass(CLIENT, udp(client, vip).payload(b"question").build(), SERVER);
        assert_is(&there, &udp(client, server).payload(b"question").build());
        let back = rig.pass(SERVER, udp(server, client).payload(b"answer").build(), CLIENT);
        assert_is(&back, &udp(vip, client).payload(b"answer").build());
        let there = rig.pass(CLIENT, sctp(client, vip, 1).build(), SERVER);
        assert_is(&there, &sctp(client, server, 1).build());
        assert_eq!(rig.sessions().used(), 3);
    }
}

#[test]
fn policies_judge_the_pod_behind_the_service() {
    let map = Arc::new(AddressMap::default());
    let rules = vec![
        Rule::new(Action::Permit, "8080")
            .protocol(protocol::TCP)
            .destination_ports(PortRange::one(8080)),
        Rule::new(Action::Deny, "the rest"),
    ];
    let table = AclBinding::Table(Arc::new(Table::compile(rules.into(), &map)));
    let at = [("10.96.0.1", protocol::TCP, 80), ("10.96.0.1", protocol::TCP, 81)];
    let with = |port, generation| {
        let mut parts = parts(cluster(&at, service(&[("10.1.0.3", port)])));
        parts.generation = generation;
        parts.ports[usize::from(SERVER)].as_mut().unwrap().to_pod = table.clone();
        parts
    };
    let syn = || tcp("10.1.0.2:4000", "10.96.0.1:80").syn().build();
    let mut rig = Rig::new(with(8080, 1));
    assert_eq!(rig.send(CLIENT, syn()), Outcome::PolicyAllowed);
    let mut rig = Rig::new(with(80, 1));
    assert_eq!(rig.send(CLIENT, syn()), Outcome::PolicyDenied);
    assert_eq!(rig.sessions().used(), 0);
    // A new deny ends the connection at its next packet, through the service as well.
    let mut rig = Rig::new(with(8080, 1));
    rig.send(CLIENT, syn());
    let mut denied = with(8080, 2);
    denied.ports[usize::from(SERVER)].as_mut().unwrap().to_pod = AclBinding::Table(Arc::new(
        Table::compile(vec![Rule::new(Action::Deny, "all")].into(), &map),
    ));
    rig.publish(denied);
    let data = tcp("10.1.0.2:4000", "10.96.0.1:80").data(b"x").build();
    assert_eq!(rig.send(CLIENT, data), Outcome::PolicyDenied);
    let (found, _) = rig.sessions().iter().next().expect("what it was is known");
    assert!(found.state().is_refused());
}

#[test]
fn connections_spread_over_the_backends_and_stay_where_they_are() {
    let list = [("10.1.0.3", 80), ("10.1.0.4", 80)];
    let mut rig = Rig::new(parts(cluster(&[("10.96.0.1", protocol::TCP, 80)], service(&list))));
    let mut places = BTreeMap::new();
    for port in 4000..4100 {
        let client = format!("10.1.0.2:{port}");
        rig.send(CLIENT, tcp(&client, "10.96.0.1:80").syn().build());
        let place = [SERVER, OTHER].into_iter().find(|place| rig.receive(*place).is_some());
        places.insert(client, place.expect("one of both"));
    }
    let at_server = places.values().filter(|place| **place == SERVER).count();
    assert!((20..80).contains(&at_server), "{at_server} of 100");
    for (client, place) in places {
        rig.pass(CLIENT, tcp(&client, "10.96.0.1:80").data(b"x").build(), place);
    }
}

#[test]
fn a_client_with_affinity_stays_with_its_backend() {
    let list: Vec<(&str, u16)> = vec![("10.1.0.3", 80), ("10.1.0.4", 80)];
    let kept = |list: &[(&str, u16)]| ServicePort { affinity_s: Some(60), ..service(list) };
    let at = [("10.96.0.1", protocol::TCP, 80)];
    let mut rig = Rig::new(parts(cluster(&at, kept(&list))));
    let place = |rig: &mut Rig, port: u16| {
        let client = format!("10.1.0.2:{port}");
        assert_eq!(
            rig.send(CLIENT, tcp(&client, "10.96.0.1:80").syn().build()),
            Outcome::PolicyAllowed
        );
        [SERVER, OTHER].into_iter().find(|place| rig.receive(*place).is_some()).unwrap()
    };
    let first = place(&mut rig, 4000);
    assert!((4001..4050).all(|port| place(&mut rig, port) == first));
    // Its backend goes; it gets the other one, and keeps that when the first one comes back.
    let left = list.iter().filter(|(address, _)| (*address == "10.1.0.3") != (first == SERVER));
    let left: Vec<_> = left.copied().collect();
    rig.publish(Parts { generation: 2, ..parts(cluster(&at, kept(&left))) });
    let second = place(&mut rig, 4050);
    assert_ne!(second, first);
    rig.publish(Parts { generation: 3, ..parts(cluster(&at, kept(&list))) });
    assert!((4051..4100).all(|port| place(&mut rig, port) == second));
}

#[test]
fn a_client_is_given_a_backend_anew_when_its_affinity_is_over() {
    let port =
        ServicePort { affinity_s: Some(60), ..service(&[("10.1.0.3", 8080), ("10.1.0.4", 8080)]) };
    let mut services = Services::default();
    let entry = Entry { port: Arc::new(port), scope: Scope::External };
    services.add(ip("203.0.113.7").into(), protocol::TCP, 80, entry);
    let mut rig = Rig::new(parts(services));
    let place = |rig: &mut Rig, client: usize, port: u16| {
        let client = format!("198.51.100.{client}:{port}");
        rig.send(UPLINK, tcp(&client, "203.0.113.7:80").syn().build());
        [SERVER, OTHER].into_iter().find(|place| rig.receive(*place).is_some()).unwrap()
    };
    let first: Vec<u16> = (1..=24).map(|client| place(&mut rig, client, 4000)).collect();
    rig.now_s += 60;
    let kept: Vec<u16> = (1..=24).map(|client| place(&mut rig, client, 4001)).collect();
    assert_eq!(kept, first);
    rig.now_s += 61;
    let anew: Vec<u16> = (1..=24).map(|client| place(&mut rig, client, 4002)).collect();
    assert_ne!(anew, first, "its time is over");
}

#[test]
fn a_pod_reaches_itself_through_its_service() {
    let at = [("10.96.0.1", protocol::TCP, 80)];
    let mut rig = Rig::new(parts(cluster(&at, service(&[("10.1.0.2", 8080)]))));
    let there = rig.pass(CLIENT, tcp("10.1.0.2:4000", "10.96.0.1:80").syn().build(), CLIENT);
    assert_is(&there, &tcp("10.96.0.1:4000", "10.1.0.2:8080").syn().build());
    let back = rig.pass(CLIENT, tcp("10.1.0.2:8080", "10.96.0.1:4000").syn_ack().build(), CLIENT);
    assert_is(&back, &tcp("10.96.0.1:80", "10.1.0.2:4000").syn_ack().build());
}

/// The kernel drops what seems to come from itself.
#[test]
fn the_cluster_node_reaches_itself_through_a_service() {
    let at = [("10.96.0.1", protocol::TCP, 443)];
    let mut rig = Rig::new(parts(cluster(&at, service(&[(NODE, 6443)]))));
    let client = format!("{NODE}:4000");
    let there = rig.pass(HOST, tcp(&client, "10.96.0.1:443").syn().build(), HOST);
    assert_is(&there, &tcp("10.96.0.1:4000", "192.0.2.1:6443").syn().build());
    let back = rig.pass(HOST, tcp("192.0.2.1:6443", "10.96.0.1:4000").syn_ack().build(), HOST);
    assert_is(&back, &tcp("10.96.0.1:443", &client).syn_ack().build());
    // A pod stays who it is.
    let there = rig.pass(CLIENT, tcp("10.1.0.2:4000", "10.96.0.1:443").syn().build(), HOST);
    assert_is(&there, &tcp("10.1.0.2:4000", "192.0.2.1:6443").syn().build());
}

/// One port of a client, used for a service and for the pod behind it: the pod must be able to
/// tell both connections apart, and each must be answered by whom it was for.
#[test]
fn a_port_used_for_a_service_and_for_its_pod_makes_two_connections() {
    let at = [("10.96.0.1", protocol::UDP, 53)];
    let mut rig = Rig::new(parts(cluster(&at, service(&[("10.1.0.3", 53)]))));
    let (client, vip, pod) = ("10.1.0.2:4000", "10.96.0.1:53", "10.1.0.3:53");
    rig.pass(CLIENT, udp(client, vip).payload(b"1").build(), SERVER);
    let direct = rig.pass(CLIENT, udp(client, pod).payload(b"2").build(), SERVER);
    let seen = wire::parse(&direct).unwrap().flow;
    assert_ne!(seen.source_port, 4000);
    let back = udp(pod, &format!("10.1.0.2:{}", seen.source_port)).payload(b"b").build();
    assert_is(&rig.pass(SERVER, back, CLIENT), &udp(pod, client).payload(b"b").build());
    let back = rig.pass(SERVER, udp(pod, client).payload(b"a").build(), CLIENT);
    assert_is(&back, &udp(vip, client).payload(b"a").build());
}

#[test]
fn a_service_without_endpoints_refuses_at_once() {
    let at = [("10.96.0.1", protocol::TCP, 80), ("10.96.0.1", protocol::UDP, 80)];
    let mut rig = Rig::new(parts(cluster(&at, service(&[]))));
    let (client, vip) = ("10.1.0.2:4000", "10.96.0.1:80");
    let syn = tcp(client, vip).syn().build();
    let sent = wire::parse(&syn).unwrap();
    assert_eq!(rig.send(CLIENT, syn), Outcome::NoEndpoint);
    let reset = wire::parse(&rig.receive(CLIENT).expect("a reset")).unwrap();
    assert_eq!(reset.flow, sent.flow.reversed());
    assert_eq!(reset.tcp_flags, wire::tcp_flags::RST | wire::tcp_flags::ACK);
    assert_eq!(rig.send(CLIENT, udp(client, vip).payload(b"x").build()), Outcome::NoEndpoint);
    let error = rig.receive(CLIENT).expect("an error");
    let headers = wire::parse(&error).unwrap();
    assert_eq!(
        (headers.flow.source, headers.flow.protocol),
        (sent.flow.destination, protocol::ICMP)
    );
    // A port that the service does not have, and what no service has at all.
    assert_eq!(rig.send(CLIENT, tcp(client, "10.96.0.1:81").syn().build()), Outcome::NoEndpoint);
    assert!(rig.receive(CLIENT).is_some());
    // What only follows is not answered.
    assert_eq!(rig.send(CLIENT, tcp(client, vip).data(b"x").build()), Outcome::NoSession);
    assert!(rig.receive(CLIENT).is_none());
    assert_eq!(rig.sessions().used(), 0);
}

/// An external address may be one that a node has.
#[test]
fn other_ports_of_an_external_address_are_whose_they_were() {
    let web = Arc::new(service(&[("10.1.0.3", 8080)]));
    let mut services = Services::default();
    for external in [NODE, "192.0.2.2", "203.0.113.7"] {
        let entry = Entry { port: Arc::clone(&web), scope: Scope::External };
        services.add(ip(external).into(), protocol::TCP, 80, entry);
    }
    let mut rig = Rig::new(parts(services));
    let syn = |to: &str| tcp("10.1.0.2:4000", to).syn().build();
    for (external, port) in [(NODE, HOST), ("192.0.2.2", UPLINK), ("203.0.113.7", HOST)] {
        let there = rig.pass(CLIENT, syn(&format!("{external}:80")), SERVER);
        assert_eq!(wire::parse(&there).unwrap().flow.destination_port, 8080);
        let to = format!("{external}:10250");
        assert_is(&rig.pass(CLIENT, syn(&to), port), &syn(&to));
        rig.pass(CLIENT, ping("10.1.0.2", external, 7, 1).build(), port);
    }
}

#[test]
fn datagrams_move_on_when_their_endpoint_goes_and_connections_stay() {
    let at = [("10.96.0.1", protocol::UDP, 53), ("10.96.0.1", protocol::TCP, 53)];
    let mut rig = Rig::new(parts(cluster(&at, service(&[("10.1.0.3", 53)]))));
    let (client, vip) = ("10.1.0.2:4000", "10.96.0.1:53");
    rig.pass(CLIENT, udp(client, vip).payload(b"1").build(), SERVER);
    rig.pass(CLIENT, tcp(client, vip).syn().build(), SERVER);
    rig.publish(Parts { generation: 2, ..parts(cluster(&at, service(&[("10.1.0.4", 53)]))) });
    rig.pass(CLIENT, udp(client, vip).payload(b"2").build(), OTHER);
    rig.pass(CLIENT, tcp(client, vip).data(b"x").build(), SERVER);
    rig.publish(Parts { generation: 3, ..parts(Services::default()) });
    rig.pass(CLIENT, tcp(client, vip).data(b"x").build(), SERVER);
}

#[test]
fn errors_about_translated_packets_reach_whoever_sent_them() {
    let at = [("10.96.0.1", protocol::UDP, 53)];
    let mut rig = Rig::new(parts(cluster(&at, service(&[("10.1.0.3", 5353)]))));
    let (client, vip, server) = ("10.1.0.2:4000", "10.96.0.1:53", "10.1.0.3:5353");
    rig.pass(CLIENT, udp(client, vip).payload(b"question").build(), SERVER);
    let at_server = udp(client, server).payload(b"question");
    let error = icmp_error("10.1.0.3", "10.1.0.2", 3, 3, &at_server).build();
    let told = rig.pass(SERVER, error, CLIENT);
    let sent = udp(client, vip).payload(b"question");
    assert_is(&told, &icmp_error("10.96.0.1", "10.1.0.2", 3, 3, &sent).build());
    // The client's port is closed by the time the answer comes.
    rig.pass(SERVER, udp(server, client).payload(b"answer").build(), CLIENT);
    let at_client = udp(vip, client).payload(b"answer");
    let told =
        rig.pass(CLIENT, icmp_error("10.1.0.2", "10.96.0.1", 3, 3, &at_client).build(), SERVER);
    let answer = udp(server, client).payload(b"answer");
    assert_is(&told, &icmp_error("10.1.0.2", "10.1.0.3", 3, 3, &answer).build());
}

#[test]
fn fragments_of_a_translated_datagram_are_translated_too() {
    let at = [("10.96.0.1", protocol::UDP, 53)];
    let mut rig = Rig::new(parts(cluster(&at, service(&[("10.1.0.3", 5353)]))));
    let sent = udp("10.1.0.2:4000", "10.96.0.1:53").payload(&[7; 300]).ip_id(9);
    let wanted = udp("10.1.0.2:4000", "10.1.0.3:5353").payload(&[7; 300]).ip_id(9);
    let outcomes = rig.send_all(CLIENT, sent.fragments(104));
    assert_eq!(outcomes, [Outcome::PolicyAllowed, Outcome::Fragment, Outcome::Fragment]);
    for fragment in wanted.fragments(104) {
        assert_is(&rig.receive(SERVER).expect("all fragments"), &fragment);
    }
}
