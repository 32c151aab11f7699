//! The node's own addresses, and what its kernel sends.

use super::*;

/// A pod whose outbound ACL denies a network and permits the rest.
pub(super) fn denied(network: &str) -> Parts {
    let denied = Rule::new(Action::Deny, "denied");
    ruled(network, [denied, Rule::new(Action::Permit, "the rest").as_default()])
}

/// A pod that is isolated but for a network.
fn permitted(network: &str) -> Parts {
    let permitted = Rule::new(Action::Permit, "permitted");
    ruled(network, [permitted, Rule::new(Action::Deny, "default-deny").as_default()])
}

/// A pod whose outbound ACL has a rule for a network, and one for the rest.
fn ruled(network: &str, [of_network, rest]: [Rule; 2]) -> Parts {
    let mut parts = parts();
    let mut sets = AddressMapBuilder::default();
    sets.add(PeerSetId(1), [Block { net: network.parse().unwrap(), except: vec![] }]);
    let map = Arc::new(sets.build());
    let rules = [of_network.destination(End::Set(PeerSetId(1))), rest];
    let table = AclBinding::Table(Arc::new(Table::compile(rules.into(), &map)));
    parts.ports[usize::from(POD)].as_mut().unwrap().from_pod = table;
    parts.addresses = map;
    parts
}

/// The pod opens connections to some, and none to others, one by one and where packets come one vector.
fn opens(mut rig: Rig, from: &str, allowed: &[&str], denied: &[&str]) {
    for (list, outcome) in [(allowed, "policy-allowed"), (denied, "policy-denied")] {
        for to in list {
            ends(&mut rig, POD, tcp(from, to).syn(), outcome);
        }
    }
    let again = |to: &&str| tcp(from, to).syn().tcp_header(|tcp| tcp.source_port = 9).build();
    let found = rig.send_all(POD, allowed.iter().chain(denied).map(again).collect());
    let refused = found.iter().filter(|end| **end == Outcome::PolicyDenied).count();
    assert_eq!(refused, denied.len(), "{denied:?}");
}

#[test]
fn a_cluster_node_is_denied_at_whatever_address_it_has() {
    for (network, from, reached, not) in [
        (
            "192.0.2.1/32",
            "10.1.0.2:5",
            &["192.0.2.1:22", "10.1.0.1:22", "172.17.0.1:22"][..],
            &["192.0.2.2:22", "10.2.0.1:22"][..],
        ),
        ("192.0.2.2/32", "10.1.0.2:5", &["192.0.2.2:22", "10.2.0.1:22"], &["10.1.0.1:22"]),
        (
            "2001:db8::1/128",
            "[fd01::2]:5",
            &["[2001:db8::1]:22", "[fd01::1]:22"],
            &["[fd02::1]:22"],
        ),
        ("2001:db8::3/128", "[fd01::2]:5", &["[fd03::1]:22"], &["[fd03::2]:22"]),
        // And at the address that the denial names.
        ("10.1.0.1/32", "10.1.0.2:5", &["10.1.0.1:22"], &["192.0.2.1:22", "172.17.0.1:22"]),
        ("172.17.0.1/32", "10.1.0.2:5", &["172.17.0.1:22"], &["192.0.2.1:22"]),
    ] {
        opens(Rig::new(denied(network)), from, not, reached);
    }
}

#[test]
fn a_permission_is_one_for_the_address_in_the_packet() {
    for (network, from, reached, not) in [
        ("10.1.0.1/32", "10.1.0.2:5", &["10.1.0.1:22"][..], &["192.0.2.1:22", "172.17.0.1:22"][..]),
        ("172.17.0.0/24", "10.1.0.2:5", &["172.17.0.1:22"], &["192.0.2.1:22"]),
        ("10.2.0.0/24", "10.1.0.2:5", &["10.2.0.1:22"], &["192.0.2.2:22"]),
        ("fd03::/64", "[fd01::2]:5", &["[fd03::1]:22"], &["[2001:db8::3]:22"]),
    ] {
        opens(Rig::new(permitted(network)), from, reached, not);
    }
}

#[test]
fn a_denial_reaches_connections_to_every_address_of_a_cluster_node() {
    let mut rig = rig();
    ends(&mut rig, POD, tcp("10.1.0.2:5", "10.2.0.1:22").syn(), "policy-allowed");
    rig.publish(Parts { generation: 2, ..denied("192.0.2.2/32") });
    ends(&mut rig, POD, tcp("10.1.0.2:5", "10.2.0.1:22").data(b"x"), "policy-denied");
}

#[test]
fn nothing_from_the_uplink_is_of_this_cluster_node_or_a_pod() {
    let with_host = parts();
    let mut without = parts();
    without.ports[usize::from(HOST)] = None;
    for parts in [with_host, without] {
        for underlay in [Underlay::Overlay(OVERLAY), Underlay::Routed, Underlay::Plain] {
            let mut rig = Rig::new(Parts { underlay, ..parts.clone() });
            for (source, to) in [
                ("192.0.2.1:5", "10.1.0.2:80"),
                ("10.1.0.1:5", "10.1.0.2:80"),
                ("172.17.0.1:5", "10.1.0.2:80"),
                ("10.1.0.3:5", "10.1.0.2:80"),
                // An address of its pod network that no pod has now.
                ("10.1.0.77:5", "10.1.0.2:80"),
                ("[2001:db8::1]:5", "[fd01::2]:80"),
                ("[fd01::3]:5", "[fd01::2]:80"),
                ("[fd01::77]:5", "[fd01::2]:80"),
            ] {
                ends(&mut rig, UPLINK, tcp(source, to).syn(), "spoofed-address");
                ends(&mut rig, UPLINK, tcp(source, to).syn().vlan(0), "spoofed-address");
            }
            ends(&mut rig, UPLINK, tcp("198.51.100.1:5", "10.1.0.2:80").syn(), "policy-allowed");
        }
    }
}

#[test]
fn the_kernel_speaks_for_no_pod() {
    for underlay in [Underlay::Overlay(OVERLAY), Underlay::Routed] {
        let mut rig = Rig::new(Parts { underlay, ..parts() });
        for (source, to) in [
            ("10.1.0.3:5", "10.1.0.2:80"),
            ("10.2.0.3:5", "10.1.0.2:80"),
            ("10.1.0.77:5", "10.1.0.2:80"),
            ("[fd03::3]:5", "[fd01::2]:80"),
        ] {
            ends(&mut rig, HOST, tcp(source, to).syn(), "spoofed-address");
        }
        ends(&mut rig, HOST, tcp("10.1.0.1:5", "10.1.0.2:80").syn(), "own-node");
        ends(&mut rig, HOST, tcp("198.51.100.1:5", "10.1.0.2:80").syn(), "policy-allowed");
    }
}

#[test]
fn without_a_host_port_nobody_is_led_elsewhere_by_the_cluster_nodes_addresses() {
    let mut parts = parts();
    parts.ports[usize::from(HOST)] = None;
    for underlay in [Underlay::Overlay(OVERLAY), Underlay::Plain] {
        let mut rig = Rig::new(Parts { underlay, ..parts.clone() });
        for to in ["192.0.2.1:22", "10.1.0.1:22", "172.17.0.1:22"] {
            ends(&mut rig, POD, tcp("10.1.0.2:5", to).syn(), "no-route");
        }
    }
}

#[test]
fn what_a_cluster_node_sends_on_for_a_service_leaves_under_its_address() {
    let service = |backend: &str| {
        let backends = Backends::new(vec![Backend { address: ip(backend).into(), port: 8080 }]);
        let port = ServicePort {
            internal: backends.clone(),
            any: backends.clone(),
            external: backends,
            ..ServicePort::default()
        };
        let mut services = Services::default();
        services.add_node_port(false, protocol::TCP, 30080, Arc::new(port));
        Arc::new(services)
    };
    let syn = tcp("10.2.0.2:5", "192.0.2.1:30080").syn();
    // On the client's own node, and on a third one.
    for (backend, third) in [("10.2.0.9", "192.0.2.2"), ("10.3.0.9", "192.0.2.3")] {
        let mut rig = Rig::new(Parts { services: service(backend), ..parts() });
        let left = rig.pass(UPLINK, tunnel(2, &syn.build()).build(), UPLINK);
        let outer = wire::parse(&left).unwrap();
        assert_eq!(outer.flow.destination.to_ip(), ip(third));
        let inner = wire::parse(&left[50..]).unwrap().flow;
        assert_eq!(inner.source.to_ip(), ip("192.0.2.1"), "under the node's address");
        assert_eq!(inner.destination.to_ip(), ip(backend));
        let from = third.rsplit('.').next().unwrap().parse().unwrap();
        let answer = tcp(&format!("{backend}:8080"), &format!("192.0.2.1:{}", inner.source_port));
        let back = rig.pass(UPLINK, tunnel(from, &answer.syn_ack().build()).build(), UPLINK);
        assert_eq!(wire::parse(&back).unwrap().flow.destination.to_ip(), ip("192.0.2.2"));
        assert_is(&back[50..], &tcp("192.0.2.1:30080", "10.2.0.2:5").syn_ack().build());
    }
    // On this one the endpoint sees the client.
    let mut rig = Rig::new(Parts { services: service("10.1.0.2"), ..parts() });
    let there = rig.pass(UPLINK, tunnel(2, &syn.build()).build(), POD);
    assert_is(&there, &tcp("10.2.0.2:5", "10.1.0.2:8080").syn().build());
}

#[test]
fn errors_towards_the_kernel_come_from_no_address_of_its_own() {
    let mut parts = parts();
    parts.ports[usize::from(POD)].as_mut().unwrap().mtu = 1000;
    let own = [&parts.node_addresses[..], &parts.more_node_addresses].concat();
    let mut rig = Rig::new(parts);
    for (from, to) in [("192.0.2.1:5", "10.1.0.2:53"), ("[2001:db8::1]:5", "[fd01::2]:53")] {
        assert_eq!(rig.send(HOST, udp(from, to).payload(&[1; 1200]).build()), Outcome::TooBig);
        let error = rig.receive(HOST).expect("the kernel is told");
        let source = wire::parse(&error).unwrap().flow.source.to_ip();
        assert!(!own.contains(&source), "{source} would be a martian");
    }
}
