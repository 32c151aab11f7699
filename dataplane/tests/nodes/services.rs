//! Services: connections that look different at their two ends.

use std::collections::BTreeMap;
use std::sync::Arc;

use acl::{Action, AddressMap, AddressMapBuilder, Block, End, PeerSetId, PortRange, Rule, Table};
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

fn node_port() -> Services {
    let local = backends(&[("10.1.0.3", 8080)]);
    let all = backends(&[("10.2.0.9", 8080)]);
    let mut services = Services::default();
    let port = |external: &Backends| {
        Arc::new(ServicePort {
            external: external.clone(),
            any: all.clone(),
            ..ServicePort::default()
        })
    };
    services.add_node_port(false, protocol::TCP, 30_001, port(&local));
    services.add_node_port(false, protocol::TCP, 30_002, port(&all));
    let entry = Entry { port: port(&local), scope: Scope::External };
    services.add(ip("203.0.113.7").into(), protocol::TCP, 80, entry);
    services
}

#[test]
fn a_client_outside_reaches_a_local_pod_as_itself_and_is_answered_the_way_it_came() {
    for at in ["192.0.2.1:30001", "203.0.113.7:80"] {
        let mut rig = Rig::new(parts(node_port()));
        let client = "198.51.100.9:5000";
        let mac = [2, 9, 9, 9, 9, 9];
        let there = rig.pass(UPLINK, tcp(client, at).syn().from_mac(mac).build(), SERVER);
        assert_is(&there, &tcp(client, "10.1.0.3:8080").syn().build());
        let back = rig.pass(SERVER, tcp("10.1.0.3:8080", client).syn_ack().build(), UPLINK);
        assert_is(&back, &tcp(at, client).syn_ack().build());
        assert_eq!((&back[..6], &back[6..12]), (&mac[..], &[2, 0, 0, 0, 0, 1][..]));
    }
}

#[test]
fn external_traffic_policy_local_holds_for_other_cluster_nodes_processes() {
    // The endpoints elsewhere are for pods alone, on whatever node.
    let mut rig = Rig::new(parts(node_port()));
    let at = "192.0.2.1:30001";
    let there = rig.pass(UPLINK, tcp("192.0.2.2:5000", at).syn().build(), SERVER);
    assert_is(&there, &tcp("192.0.2.2:5000", "10.1.0.3:8080").syn().build());
    let there = rig.pass(CLIENT, tcp("10.1.0.2:5000", at).syn().build(), UPLINK);
    assert_is(&there, &tcp("10.1.0.2:5000", "10.2.0.9:8080").syn().build());
    let mut services = Services::default();
    let nowhere = ServicePort { external: Backends::default(), ..service(&[("10.2.0.9", 8080)]) };
    services.add_node_port(false, protocol::TCP, 30_003, Arc::new(nowhere));
    let mut rig = Rig::new(parts(services));
    let syn = |from: &str| tcp(from, "192.0.2.1:30003").syn().build();
    assert_eq!(rig.send(UPLINK, syn("192.0.2.2:5000")), Outcome::NoEndpoint);
    assert_eq!(rig.send(UPLINK, syn("10.2.0.5:5000")), Outcome::NoPolicy, "a pod");
}

#[test]
fn a_load_balancer_address_admits_the_source_ranges_of_its_service_alone() {
    let restricted = |ranges: &[&str]| {
        let mut services = node_port();
        let ranges = ranges.iter().map(|net| net.parse().unwrap()).collect();
        services.restrict(ip("203.0.113.7").into(), protocol::TCP, 80, ranges);
        parts(services)
    };
    let (client, other) = ("198.51.100.9:5000", "198.51.101.9:5000");
    let mut rig = Rig::new(restricted(&["198.51.100.0/24", "2001:db8:9::/48"]));
    let syn = |from: &str| tcp(from, "203.0.113.7:80").syn().build();
    let there = rig.pass(UPLINK, syn(client), SERVER);
    assert_is(&there, &tcp(client, "10.1.0.3:8080").syn().build());
    assert_eq!(rig.send(UPLINK, syn(other)), Outcome::SourceNotAdmitted);
    // Node ports are not restricted.
    rig.pass(UPLINK, tcp(other, "192.0.2.1:30001").syn().build(), SERVER);
    // A live connection whose client is not admitted any more ends at its next packet.
    rig.publish(Parts { generation: 2, ..restricted(&["198.51.101.0/24"]) });
    let data = tcp(client, "203.0.113.7:80").data(b"GET /").build();
    assert_eq!(rig.send(UPLINK, data), Outcome::NoSession);
    rig.pass(UPLINK, syn(other), SERVER);
}

#[test]
fn a_client_outside_reaches_a_pod_elsewhere_as_the_cluster_node() {
    let mut rig = Rig::new(parts(node_port()));
    let client = "198.51.100.9:5000";
    let syn = tcp(client, "192.0.2.1:30002").syn().from_mac([2, 9, 9, 9, 9, 9]).build();
    let there = rig.pass(UPLINK, syn, UPLINK);
    let seen = wire::parse(&there).unwrap().flow;
    assert_eq!(seen.source.to_ip(), ip(NODE));
    assert!(seen.source_port >= 49_152);
    assert_eq!(there[..6], [2, 0, 0, 0, 0, 3], "the other node's");
    let own = format!("{NODE}:{}", seen.source_port);
    assert_is(&there, &tcp(&own, "10.2.0.9:8080").syn().build());
    let back = rig.pass(UPLINK, tcp("10.2.0.9:8080", &own).syn_ack().build(), UPLINK);
    assert_is(&back, &tcp("192.0.2.1:30002", client).syn_ack().build());
    assert_eq!(back[..6], [2, 9, 9, 9, 9, 9]);
    // Inside the cluster the same port leads to all endpoints, as the client itself.
    let there = rig.pass(CLIENT, tcp("10.1.0.2:4000", "192.0.2.1:30001").syn().build(), UPLINK);
    assert_is(&there, &tcp("10.1.0.2:4000", "10.2.0.9:8080").syn().build());
}

/// Cluster-wide egress firewalls decide where services lead clients outside, pods aside.
#[test]
fn a_client_outside_is_led_nowhere_that_a_firewall_for_all_denies() {
    let mut services = node_port();
    for (port, at) in
        [(30_022, (NODE, 22)), (30_023, ("192.0.2.2", 22)), (30_024, ("203.0.113.9", 22))]
    {
        services.add_node_port(false, protocol::TCP, port, Arc::new(service(&[at])));
    }
    let deny = |networks: &[&str]| {
        let mut sets = AddressMapBuilder::default();
        let nets = networks.iter().map(|network| network.parse().unwrap());
        sets.add(PeerSetId(1), nets.map(|net| Block { net, except: vec![] }));
        let map = Arc::new(sets.build());
        let denied = Rule::new(Action::Deny, "ClusterEgressFirewall f egress[0]");
        let denied = denied.destination(End::Set(PeerSetId(1)));
        let rest = Rule::new(Action::Permit, "default-allow").as_default();
        let table = Table::compile([denied, rest].into(), &map);
        Parts { outside: Some(Arc::new(table)), addresses: map, ..parts(services.clone()) }
    };
    let mut rig = Rig::new(deny(&["198.51.100.0/24"]));
    let syn = |from: &str, port: u16| tcp(from, &format!("{NODE}:{port}")).syn().build();
    let client = "198.51.100.9:5000";
    let opens = |port| if port == 30_001 { Outcome::PolicyAllowed } else { Outcome::NoPolicy };
    for port in [30_001, 30_002, 30_022, 30_023, 30_024] {
        assert_eq!(rig.send(UPLINK, syn(client, port)), opens(port), "{port}");
    }
    // Live connections end with the next packet; pods are no business of it.
    let denied = ["192.0.2.1/32", "192.0.2.2/32", "203.0.113.9/32", "10.0.0.0/8"];
    rig.publish(Parts { generation: 2, ..deny(&denied) });
    for (port, is_pod) in
        [(30_001, true), (30_002, true), (30_022, false), (30_023, false), (30_024, false)]
    {
        let data = tcp(client, &format!("{NODE}:{port}")).data(b"x").build();
        let live = if is_pod { Outcome::Session } else { Outcome::PolicyDenied };
        assert_eq!(rig.send(UPLINK, data), live, "{port}");
        let new = if is_pod { opens(port) } else { Outcome::PolicyDenied };
        assert_eq!(rig.send(UPLINK, syn("198.51.100.9:6000", port)), new, "{port}");
    }
    // A pod has its own policies.
    let own = tcp("10.1.0.2:4000", &format!("{NODE}:30023")).syn().build();
    assert_eq!(rig.send(CLIENT, own), Outcome::PolicyAllowed);
}

/// The kernel's rules see the switch's address in the place of the client's, and that of the service in the
/// place of the endpoint's.
#[test]
fn no_service_leads_around_the_firewalls_of_the_cluster_node_itself() {
    let mut services =
        cluster(&[("10.96.0.1", protocol::TCP, 443)], service(&[("203.0.113.9", 443)]));
    let pod = Entry { port: Arc::new(service(&[("10.1.0.3", 8080)])), scope: Scope::Cluster };
    services.add(ip("10.96.0.2").into(), protocol::TCP, 80, pod);
    services.add_node_port(false, protocol::TCP, 30_022, Arc::new(service(&[(NODE, 22)])));
    let with = |generation: u64, from: &str, to: &[&str]| {
        let mut sets = AddressMapBuilder::default();
        let block = |network: &str| Block { net: network.parse().unwrap(), except: vec![] };
        sets.add(PeerSetId(1), [block(from)]);
        sets.add(PeerSetId(2), to.iter().map(|network| block(network)));
        let map = Arc::new(sets.build());
        let table = |denied: Rule| {
            let rest = Rule::new(Action::Permit, "default-allow").as_default();
            AclBinding::Table(Arc::new(Table::compile([denied, rest].into(), &map)))
        };
        let mut parts =
            Parts { generation, addresses: Arc::clone(&map), ..parts(services.clone()) };
        let host = parts.ports[usize::from(HOST)].as_mut().unwrap();
        let denied = || Rule::new(Action::Deny, "ClusterHostFirewall f ingress[0]");
        host.to_pod = table(denied().source(End::Set(PeerSetId(1))));
        host.from_pod = table(denied().destination(End::Set(PeerSetId(2))));
        parts.switch_addresses = vec![ip("169.254.1.2")];
        parts
    };
    let mut rig = Rig::new(with(1, "192.0.2.77/32", &[]));
    let node = |to: &str, port: u16| tcp(&format!("{NODE}:{port}"), to);
    let client = |port: u16| tcp(&format!("198.51.100.9:{port}"), &format!("{NODE}:30022"));
    assert_eq!(rig.send(UPLINK, client(5000).syn().build()), Outcome::NoPolicy);
    let answer = tcp(&format!("{NODE}:30022"), "198.51.100.9:5000").data(b"x");
    let error = icmp_error("198.51.100.9", NODE, 3, 3, &answer).build();
    assert_eq!(rig.send(UPLINK, error.clone()), Outcome::Related);
    for (to, outcome) in [("10.96.0.1:443", Outcome::NoPolicy), ("10.96.0.2:80", Outcome::OwnNode)]
    {
        assert_eq!(rig.send(HOST, node(to, 4000).syn().build()), outcome, "{to}");
    }
    // Live connections end with the next packet, and none opens.
    rig.publish(with(2, "198.51.100.0/24", &["203.0.113.0/24", "10.1.0.0/24"]));
    assert_eq!(rig.send(UPLINK, error), Outcome::PolicyDenied, "errors too");
    for (port, kind) in [(5000, "live"), (6000, "new")] {
        let packet = if port == 5000 { client(port).data(b"x") } else { client(port).syn() };
        assert_eq!(rig.send(UPLINK, packet.build()), Outcome::PolicyDenied, "{kind}");
        for to in ["10.96.0.1:443", "10.96.0.2:80"] {
            let at = port - 1000;
            let packet = if at == 4000 { node(to, at).data(b"x") } else { node(to, at).syn() };
            assert_eq!(rig.send(HOST, packet.build()), Outcome::PolicyDenied, "{kind} {to}");
        }
    }
    // Others, and connections without a service, which the kernel's rules see as they are.
    let other = tcp("198.51.101.9:5000", "192.0.2.1:30022").syn().build();
    assert_eq!(rig.send(UPLINK, other), Outcome::NoPolicy);
    assert_eq!(rig.send(HOST, node("10.1.0.3:8080", 4002).syn().build()), Outcome::OwnNode);
    // What is permitted again goes on.
    rig.publish(with(3, "192.0.2.77/32", &[]));
    assert_eq!(rig.send(UPLINK, client(5000).data(b"x").build()), Outcome::Session);
}

#[test]
fn a_client_outside_reaches_the_cluster_node_itself_by_a_node_port() {
    let mut services = Services::default();
    for (v6, node) in [(false, NODE), (true, "2001:db8::1")] {
        let own = Arc::new(service(&[(node, 6443)]));
        services.add_node_port(v6, protocol::TCP, 30_443, own);
    }
    let switch_addresses = ["169.254.1.2", "fd70::1"].map(ip).to_vec();
    let mut rig = Rig::new(Parts { switch_addresses, ..parts(services) });
    let mac = [2, 9, 9, 9, 9, 9];
    for (client, at, seen, node) in [
        ("198.51.100.9:5000", "192.0.2.1:30443", "169.254.1.2:5000", "192.0.2.1:6443"),
        ("[2001:db8:9::9]:5000", "[2001:db8::1]:30443", "[fd70::1]:5000", "[2001:db8::1]:6443"),
    ] {
        let there = rig.pass(UPLINK, tcp(client, at).syn().from_mac(mac).build(), HOST);
        assert_is(&there, &tcp(seen, node).syn().build());
        let back = rig.pass(HOST, tcp(node, seen).syn_ack().build(), UPLINK);
        assert_is(&back, &tcp(at, client).syn_ack().build());
        assert_eq!(back[..6], mac);
    }
}

#[test]
fn pods_leave_for_the_world_as_the_cluster_node() {
    let masquerade = Parts {
        masquerade: true,
        translation_ports: Some(61_000..=61_003),
        ..parts(Services::default())
    };
    let mut rig = Rig::new(masquerade);
    let server = "198.51.100.9:443";
    let mut ports = Vec::new();
    for n in 0..3 {
        let client = format!("10.1.0.2:{}", 4000 + n);
        let there = rig.pass(CLIENT, tcp(&client, server).syn().build(), UPLINK);
        let seen = wire::parse(&there).unwrap().flow;
        assert_eq!(seen.source.to_ip(), ip(NODE));
        assert!((61_000..=61_003).contains(&seen.source_port));
        assert!(!ports.contains(&seen.source_port));
        ports.push(seen.source_port);
        let own = format!("{NODE}:{}", seen.source_port);
        let back = rig.pass(UPLINK, tcp(server, &own).syn_ack().build(), CLIENT);
        assert_is(&back, &tcp(server, &client).syn_ack().build());
    }
    // Other servers have ports of their own; pings have identifiers.
    let there = rig.pass(CLIENT, ping("10.1.0.2", "198.51.100.9", 7, 1).build(), UPLINK);
    assert_eq!(wire::parse(&there).unwrap().flow.source.to_ip(), ip(NODE));
    let others = (0..40)
        .map(|n| rig.send(CLIENT, tcp(&format!("10.1.0.2:{}", 5000 + n), server).syn().build()));
    let refused = others.filter(|outcome| *outcome == Outcome::NoTranslationPort).count();
    assert!(refused >= 39, "four ports were there for 43 connections: {refused} refused");
    while rig.receive(UPLINK).is_some() {}
    // Inside the cluster nobody is hidden.
    let there = rig.pass(CLIENT, tcp("10.1.0.2:4000", "10.2.0.9:80").syn().build(), UPLINK);
    assert_is(&there, &tcp("10.1.0.2:4000", "10.2.0.9:80").syn().build());
    assert_eq!(rig.send(HOST, udp("192.0.2.1:53", "10.1.0.2:53").build()), Outcome::OwnNode);
}

/// A reset may be forged: the ends decide by its sequence number, and the switch by what they send next.
#[test]
fn a_forged_reset_and_syn_break_no_translated_connection() {
    let masquerade = Parts {
        masquerade: true,
        translation_ports: Some(61_000..=61_999),
        ..parts(Services::default())
    };
    let mut rig = Rig::new(masquerade);
    let (client, server) = ("10.1.0.2:4000", "198.51.100.9:443");
    let there = rig.pass(CLIENT, tcp(client, server).syn().build(), UPLINK);
    let own = format!("{NODE}:{}", wire::parse(&there).unwrap().flow.source_port);
    rig.pass(UPLINK, tcp(server, &own).syn_ack().build(), CLIENT);
    rig.pass(CLIENT, tcp(client, server).ack().build(), UPLINK);
    for round in 0..3 {
        let reset = rig.pass(UPLINK, tcp(server, &own).rst().build(), CLIENT);
        assert_is(&reset, &tcp(server, client).rst().build());
        if round > 0 {
            let syn = rig.pass(CLIENT, tcp(client, server).syn().build(), UPLINK);
            assert_is(&syn, &tcp(&own, server).syn().build());
        }
        // The server acknowledges what it has, or goes on.
        let back = rig.pass(UPLINK, tcp(server, &own).ack().build(), CLIENT);
        assert_is(&back, &tcp(server, client).ack().build());
        rig.wait(3600);
        let there = rig.pass(CLIENT, tcp(client, server).ack().build(), UPLINK);
        assert_is(&there, &tcp(&own, server).ack().build());
    }
    // A server that has accepted the reset answers the SYN: another connection, on the same port.
    rig.pass(CLIENT, tcp(client, server).rst().build(), UPLINK);
    rig.pass(CLIENT, tcp(client, server).syn().build(), UPLINK);
    rig.pass(UPLINK, tcp(server, &own).syn_ack().build(), CLIENT);
    rig.wait(31);
    assert_eq!(rig.send(CLIENT, tcp(client, server).ack().build()), Outcome::NoSession);
}
