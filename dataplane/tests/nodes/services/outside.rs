//! Connections with clients and servers outside of the cluster.

use std::sync::Arc;

use acl::{Action, AddressMapBuilder, Block, End, PeerSetId, Rule, Table};
use dataplane::services::{Backends, Entry, Scope, ServicePort, Services};
use dataplane::wire::{self, Flow, protocol};
use dataplane::{AclBinding, Outcome, Parts};
use testkit::packet::{icmp_error, ping, tcp, udp};

use super::{CLIENT, HOST, NODE, SERVER, UPLINK, backends, cluster, parts, service};
use crate::nodes::rig::{Rig, assert_is, ip};

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

/// Another router took over, or the client has another interface.
#[test]
fn answers_go_where_the_newest_packet_came_from() {
    let (near, far) = ("192.0.2.1:30001", "192.0.2.1:30002");
    let client = "198.51.100.9:5000";
    let macs = [[2, 9, 9, 9, 9, 9], [2, 9, 9, 9, 9, 8], [2, 9, 9, 9, 9, 7]];
    let mut rig = Rig::new(parts(node_port()));
    for at in [near, far] {
        let egress = if at == near { SERVER } else { UPLINK };
        let mut seen = String::new();
        for (n, mac) in macs.into_iter().enumerate() {
            let packet = if n == 0 { tcp(client, at).syn() } else { tcp(client, at).data(b"x") };
            let there = rig.pass(UPLINK, packet.from_mac(mac).build(), egress);
            let Flow { source, source_port, .. } = wire::parse(&there).unwrap().flow;
            seen = format!("{}:{source_port}", source.to_ip());
            let (from, server) =
                if at == near { (SERVER, "10.1.0.3:8080") } else { (UPLINK, "10.2.0.9:8080") };
            let back = rig.pass(from, tcp(server, &seen).data(b"y").build(), UPLINK);
            assert_eq!(back[..6], mac, "{at}");
            // Under the next snapshot too.
            rig.publish(Parts { generation: n as u64 + 2, ..parts(node_port()) });
        }
        assert_ne!(seen, "");
    }
    // What the kernel sends under the client's address moves nothing.
    let data = tcp(client, near).data(b"x").from_mac([2, 7, 7, 7, 7, 7]).build();
    rig.pass(HOST, data, SERVER);
    let back = rig.pass(SERVER, tcp("10.1.0.3:8080", client).data(b"y").build(), UPLINK);
    assert_eq!(back[..6], macs[2]);
}

#[test]
fn external_traffic_policy_local_holds_for_other_cluster_nodes() {
    // The endpoints elsewhere are for this node's own pods alone.
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
    assert_eq!(rig.send(UPLINK, syn("10.2.0.5:5000")), Outcome::NoEndpoint, "a pod");
    assert_eq!(rig.send(CLIENT, syn("10.1.0.2:5000")), Outcome::PolicyAllowed, "a pod here");
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
    // A router on the way to the client: the endpoint's node takes nothing of others from here.
    let left = tcp("192.0.2.1:30002", client).data(b"long");
    let told = rig.pass(UPLINK, icmp_error("198.51.100.1", NODE, 3, 4, &left).build(), UPLINK);
    let sent = tcp("10.2.0.9:8080", &own).data(b"long");
    assert_is(&told, &icmp_error(NODE, "10.2.0.9", 3, 4, &sent).build());
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

/// An endpoint that is no pod's and no node's, as a managed control plane has.
#[test]
fn a_client_outside_reaches_an_endpoint_outside() {
    let mut services = Services::default();
    let endpoint = Arc::new(service(&[("203.0.113.9", 443)]));
    services.add_node_port(false, protocol::TCP, 30_443, endpoint);
    let switch_addresses = vec![ip("169.254.1.2")];
    let kernel = Parts { switch_addresses, ..parts(services) };
    let (client, server, at) = ("198.51.100.9:5000", "203.0.113.9:443", "192.0.2.1:30443");
    let mac = [2, 9, 9, 9, 9, 9];
    let syn = tcp(client, at).syn().from_mac(mac).build();
    // The kernel drops what seems to come from itself, and masquerades what comes from the switch.
    let mut rig = Rig::new(kernel.clone());
    let there = rig.pass(UPLINK, syn.clone(), HOST);
    assert_is(&there, &tcp("169.254.1.2:5000", server).syn().build());
    let back = rig.pass(HOST, tcp(server, "169.254.1.2:5000").syn_ack().build(), UPLINK);
    assert_is(&back, &tcp(at, client).syn_ack().build());
    assert_eq!(back[..6], mac);
    let translation_ports = Some(61_000..=61_999);
    let mut rig = Rig::new(Parts { masquerade: true, translation_ports, ..kernel });
    let there = rig.pass(UPLINK, syn, UPLINK);
    let own = format!("{NODE}:{}", wire::parse(&there).unwrap().flow.source_port);
    assert_is(&there, &tcp(&own, server).syn().build());
    let back = rig.pass(UPLINK, tcp(server, &own).syn_ack().build(), UPLINK);
    assert_is(&back, &tcp(at, client).syn_ack().build());
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
    // Inside the cluster sources are not translated.
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
