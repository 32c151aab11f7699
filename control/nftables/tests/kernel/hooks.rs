//! Decisions of the base chains beside policies: each rule is tested by a packet that it alone stops.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, UdpSocket};
use std::time::Duration;

use control::Control;
use nftables::{Enforcer, Renderer, Site};
use serde_json::{Value, json};
use testkit::packet::{
    Packet, arp_announcement, arp_probe, icmp, icmp_error, neighbour_advertisement, ping, pong,
    tcp, udp,
};

use crate::common::{control, object, pod, policy};
use crate::lab::{Lab, Network, until_forgotten};

pub(crate) const A: &str = "10.0.0.1";
pub(crate) const B: &str = "10.0.0.2";
pub(crate) const WORLD: &str = "198.51.100.7";
pub(crate) const WORLD_V6: &str = "2001:db8::7";
/// Addresses of the node: that of its object, and one that its kernel has besides.
pub(crate) const NODE: &str = "192.0.2.1";
pub(crate) const BRIDGE: &str = "172.17.0.1";

pub(crate) struct Case {
    pub(crate) lab: Lab,
    pub(crate) control: Control,
    pub(crate) state: (Renderer, Enforcer),
}

impl Case {
    /// Pods a and b, whose rules are not in force yet.
    pub(crate) fn new(network: Network) -> Self {
        let end = |name: &str, list: &[&str]| {
            (name.to_owned(), list.iter().map(|it| it.parse::<IpAddr>().unwrap()).collect())
        };
        let ends = [
            end("x/a", &[A, "fd00::1"]),
            end("x/b", &[B, "fd00::2"]),
            end("world", &[WORLD, WORLD_V6]),
        ];
        let lab = Lab::new(network, &ends);
        let dual = |name: &str, v4: &str, v6: &str| {
            let mut it = pod(name, v4, json!({}));
            it["status"]["podIPs"] = json!([{"ip": v4}, {"ip": v6}]);
            it
        };
        let mut control = control([dual("x/a", A, "fd00::1"), dual("x/b", B, "fd00::2")]);
        control.list_peer_sets();
        control.commit();
        Self { lab, control, state: Default::default() }
    }

    pub(crate) fn enforce(&mut self) {
        self.enforce_with(|_| {});
    }

    pub(crate) fn enforce_with(&mut self, change: impl FnOnce(&mut Site)) {
        let view = self.control.view();
        let mut site = self.lab.site(&view);
        change(&mut site);
        let (renderer, enforcer) = &mut self.state;
        let ruleset = renderer.render(&view, &site);
        self.lab.node.enter(|| enforcer.set(ruleset)).unwrap();
    }

    pub(crate) fn apply(&mut self, value: Value) {
        self.control.apply(object(value));
        self.control.commit();
    }

    /// Returns whether all, or none, of these packets arrive.
    #[track_caller]
    pub(crate) fn expect(&self, arrive: bool, from: &str, to: &str, packets: &[Packet]) {
        for packet in packets {
            let network = self.lab.network;
            let mut arrived = self.lab.arrives(from, to, packet);
            if arrive && !arrived {
                // On a busy machine a packet may be late.
                std::thread::sleep(Duration::from_secs(1));
                arrived = self.lab.has_arrived(to, packet);
            }
            assert_eq!(arrived, arrive, "{network:?} {from} {packet:?}");
        }
    }
}

pub(crate) fn to_port(from: &str, to: &str, port: u16) -> Packet {
    let end = |address: &str, port| std::net::SocketAddr::new(address.parse().unwrap(), port);
    udp(&end(from, 1000).to_string(), &end(to, port).to_string()).payload(b"x")
}

/// Between a pod and an address that is not a pod, in both directions.
#[test]
fn tags_pass_in_neither_direction() {
    testkit::requires_root!();
    let mut case = Case::new(Network::Bridged);
    let tagged = |from: &str, to: &str| {
        let packet = || to_port(from, to, 53);
        [packet().vlan(0), packet().service_vlan(0), packet().vlan(5)]
    };
    let ways = [
        ("x/a", "world", tagged(A, WORLD)),
        ("x/a", "world", tagged("fd00::1", WORLD_V6)),
        ("world", "x/a", tagged(WORLD, A)),
        ("world", "x/a", tagged(WORLD_V6, "fd00::1")),
    ];
    ways.iter().for_each(|(from, to, packets)| case.expect(true, from, to, &packets[..2]));
    case.enforce();
    ways.iter().for_each(|(from, to, packets)| case.expect(false, from, to, packets));
    case.expect(true, "x/a", "world", &[to_port(A, WORLD, 53)]);
}

#[test]
fn no_port_of_a_bridge_claims_a_pods_address() {
    testkit::requires_root!();
    let mut case = Case::new(Network::Bridged);
    case.enforce();
    for (claims, by, sender, heard) in [
        (A, "x/a", "world", true),
        (B, "x/a", "world", false),
        (A, "world", "x/b", false),
        (WORLD, "world", "x/b", true),
    ] {
        let frame = arp_announcement(claims).from_mac(case.lab.mac(by)).build();
        assert_eq!(case.lab.hears(by, sender, &frame), heard, "{by} says {claims} is its own");
    }
    let probe = arp_probe(A).from_mac(case.lab.mac("x/a")).build();
    assert!(case.lab.hears("x/a", "world", &probe));
    // An advertisement from an address of its own, about another one.
    let advertises = |from: &str, target: &str| {
        let target: std::net::Ipv6Addr = target.parse().unwrap();
        let option = [2, 1, 2, 0, 0, 0, 0, 9];
        let body = [&target.octets()[..], &option].concat();
        icmp(from, "ff02::1", 136, 0).rest([0x20, 0, 0, 0]).payload(&body).ttl(255)
    };
    case.expect(true, "x/a", "world", &[advertises("fd00::1", "fd00::1")]);
    case.expect(false, "x/a", "world", &[advertises("fd00::1", "fd00::2")]);
    case.expect(false, "x/a", "world", &[advertises("fe80::1", "fd00::2")]);
    case.expect(false, "world", "x/b", &[advertises(WORLD_V6, "fd00::1")]);
    case.expect(true, "world", "x/b", &[advertises(WORLD_V6, WORLD_V6)]);
    case.expect(true, "world", "x/b", &[neighbour_advertisement(WORLD_V6, "ff02::1")]);
}

/// A pod that claims to be the gateway gets no packets.
#[test]
fn no_port_of_a_bridge_claims_the_gateways_address() {
    testkit::requires_root!();
    let mut case = Case::new(Network::Bridged);
    let gateways = ["fe80::1", "fd00::ff"].map(|it| it.parse().unwrap());
    case.enforce_with(|site| site.bridge_addresses = gateways.into());
    let advertises = |from: &str, target: &str| {
        let target: std::net::Ipv6Addr = target.parse().unwrap();
        let body = [&target.octets()[..], &[2, 1, 2, 6, 0, 0, 0, 1]].concat();
        icmp(from, "ff02::1", 136, 0).rest([0x20, 0, 0, 0]).payload(&body).ttl(255)
    };
    let asks = |from: &str| testkit::packet::neighbour_solicitation(from, "fd00::2");
    for gateway in ["fe80::1", "fd00::ff"] {
        case.expect(false, "x/a", "x/b", &[advertises("fd00::1", gateway)]);
        case.expect(false, "x/a", "x/b", &[advertises("fe80::a", gateway)]);
        case.expect(false, "x/a", "x/b", &[advertises(gateway, gateway), asks(gateway)]);
    }
    case.expect(true, "x/a", "x/b", &[advertises("fe80::a", "fe80::a"), asks("fe80::a")]);
}

/// Neighbour discovery and listener reports carry no data: pods that may not talk do not talk by them.
#[test]
fn what_hosts_send_on_a_link_is_no_tunnel() {
    testkit::requires_root!();
    const GROUP: &str = "ff02::1:ff00:2";
    let solicits = |from: &str| icmp(from, "fd00::2", 135, 0).payload(&target("fd00::2")).ttl(255);
    fn target(address: &str) -> Vec<u8> {
        address.parse::<std::net::Ipv6Addr>().unwrap().octets().to_vec()
    }
    for network in [Network::Bridged, Network::Routed] {
        let mut case = Case::new(network);
        case.apply(policy(
            "x/closed",
            json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}),
        ));
        let data = [7; 900];
        let mut tunnels = Vec::new();
        for kind in [130, 131, 132, 133, 135, 136, 143] {
            for (to, hops) in
                [("fd00::2", 64), ("fd00::2", 255), ("ff02::1", 255), (GROUP, 255), (GROUP, 1)]
            {
                let body = [&target("fd00::2")[..], &data].concat();
                tunnels.push(icmp("fd00::1", to, kind, 0).payload(&body).ttl(hops));
            }
            // Short ones, as a router would pass them on.
            tunnels.push(icmp("fd00::1", "fd00::2", kind, 0).payload(&target("fd00::2")).ttl(64));
        }
        case.enforce();
        case.expect(false, "x/a", "x/b", &tunnels);
        for kind in [130, 131, 132, 133, 135, 136, 143] {
            let out = icmp("fd00::1", WORLD_V6, kind, 0).payload(&data).ttl(255);
            case.expect(false, "x/a", "world", &[out]);
            let out = icmp("fd00::1", WORLD_V6, kind, 0).payload(&target("fd00::2")).ttl(64);
            case.expect(false, "x/a", "world", &[out]);
        }
        // Neighbours find each other all the same.
        if network == Network::Bridged {
            let found = neighbour_advertisement("fd00::1", "fd00::2");
            case.expect(true, "x/a", "x/b", &[solicits("fd00::1"), found]);
            let asked = testkit::packet::neighbour_solicitation("fd00::1", "fd00::2");
            case.expect(true, "x/a", "x/b", &[asked]);
        }
    }
}

#[test]
fn on_a_bridge_of_pods_alone_nobody_else_sends() {
    testkit::requires_root!();
    let mut case = Case::new(Network::Bridged);
    let [v4, v6] = [to_port(WORLD, B, 53), to_port(WORLD_V6, "fd00::2", 53)];
    case.enforce();
    case.expect(true, "world", "x/b", &[v4.clone(), v6.clone()]);
    case.enforce_with(|site| site.pod_bridges = ["cni0".to_owned()].into());
    case.expect(false, "world", "x/b", &[v4, v6]);
    case.expect(true, "x/a", "x/b", &[to_port(A, B, 53), to_port("fd00::1", "fd00::2", 53)]);
}

/// A route to a pod's interface that is not the pod network's.
#[test]
fn an_interface_gets_what_is_for_its_pods_addresses_alone() {
    testkit::requires_root!();
    let mut case = Case::new(Network::Routed);
    let stranger = "192.0.2.99";
    case.lab.node.exec(["ip", "route", "add", stranger, "dev", "veth1"]);
    let mac = "02:00:00:00:01:01";
    let neighbour = ["neigh", "add", stranger, "dev", "veth1", "lladdr", mac, "nud", "permanent"];
    case.lab.node.exec(["ip"].into_iter().chain(neighbour));
    case.expect(true, "world", "x/b", &[to_port(WORLD, stranger, 53)]);
    case.enforce();
    case.expect(false, "world", "x/b", &[to_port(WORLD, stranger, 53)]);
    case.expect(true, "world", "x/b", &[to_port(WORLD, B, 53)]);
}

#[test]
fn what_conntrack_does_not_take_for_a_connection_is_dropped() {
    testkit::requires_root!();
    for network in [Network::Routed, Network::Bridged] {
        let mut case = Case::new(network);
        // No replies without a question, no errors about nothing, no other questions of ICMP.
        let nothing = to_port(B, A, 9999);
        let stray = [
            pong(A, B, 9, 1),
            pong("fd00::1", "fd00::2", 9, 1),
            icmp_error(A, B, 3, 3, &nothing),
            icmp(A, B, 13, 0).rest([0, 9, 0, 1]).payload(&[0; 12]),
            icmp("fd00::1", "fd00::2", 139, 0).payload(&[0; 24]),
        ];
        case.enforce();
        case.expect(false, "x/a", "x/b", &stray);
        case.expect(true, "x/a", "x/b", &[ping(A, B, 7, 1), ping("fd00::1", "fd00::2", 7, 1)]);
        // Packets that another program takes out of conntrack's sight.
        let chain = "chain c { type filter hook prerouting priority -301; udp dport 77 notrack; }";
        case.lab.node.exec(["nft", &format!("table inet other {{ {chain}; }}")]);
        let packets = |port| [to_port(A, B, port), to_port("fd00::1", "fd00::2", port)];
        case.expect(false, "x/a", "x/b", &packets(77));
        case.expect(true, "x/a", "x/b", &packets(78));
    }
}

/// A pod that may not reach another one hands it no data in an error about somebody else's connection, which
/// the receiver's kernel puts into the socket's error queue.
#[test]
fn errors_come_from_the_ends_of_a_connection_alone() {
    testkit::requires_root!();
    let data = [7; 400];
    let error = |from: &str, question: &Packet| {
        let to = if from.contains(':') { "fd00::2" } else { B };
        let kind = if from.contains(':') { 1 } else { 3 };
        icmp(from, to, kind, 3).payload(&question.clone().payload(&data).internet_packet())
    };
    for network in [Network::Routed, Network::Bridged] {
        let mut case = Case::new(network);
        case.apply(policy("x/closed", json!({"podSelector": {}, "policyTypes": ["Ingress"]})));
        case.enforce();
        for (stranger, b, world) in [(A, B, WORLD), ("fd00::1", "fd00::2", WORLD_V6)] {
            let question = to_port(b, world, 53);
            case.expect(true, "x/b", "world", std::slice::from_ref(&question));
            case.expect(false, "x/a", "x/b", &[to_port(stranger, b, 1000)]);
            case.expect(false, "x/a", "x/b", &[error(stranger, &question)]);
            case.expect(true, "world", "x/b", &[error(world, &question)]);
            // An error about its own connection.
            let answer = udp(&question_ends(world, 53), &question_ends(b, 1000)).payload(b"y");
            case.expect(true, "world", "x/b", std::slice::from_ref(&answer));
            let refused = icmp(b, world, if b == B { 3 } else { 1 }, 3);
            let refused = refused.payload(&answer.internet_packet());
            case.expect(true, "x/b", "world", &[refused]);
        }
    }
}

pub(crate) fn question_ends(address: &str, port: u16) -> String {
    std::net::SocketAddr::new(address.parse().unwrap(), port).to_string()
}

/// It does not forward its own packets.
#[test]
fn nobody_sends_with_the_cluster_nodes_address() {
    testkit::requires_root!();
    for network in [Network::Routed, Network::Bridged] {
        let mut case = Case::new(network);
        case.lab.node.exec(["ip", "link", "set", "lo", "up"]);
        case.lab.node.exec(["ip", "address", "add", "2001:db8::1/128", "dev", "lo", "nodad"]);
        let forged = to_port("2001:db8::1", "fd00::2", 53);
        case.expect(true, "world", "x/b", std::slice::from_ref(&forged));
        case.enforce();
        case.expect(false, "world", "x/b", &[forged]);
        case.expect(true, "world", "x/b", &[to_port(WORLD_V6, "fd00::2", 53)]);
    }
}

/// Between a pod and processes of its node, at an address that its object does not name.
#[test]
fn a_pods_rules_count_towards_its_own_cluster_node() {
    testkit::requires_root!();
    let mut case = Case::new(Network::Routed);
    let node = &case.lab.node;
    node.exec(["ip", "link", "set", "lo", "up"]);
    node.exec(["ip", "address", "add", &format!("{BRIDGE}/32"), "dev", "lo"]);
    let server = node.enter(|| UdpSocket::bind((BRIDGE, 53)).unwrap());
    server.set_nonblocking(true).unwrap();
    case.apply(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"},
        "status": {"addresses": [{"type": "InternalIP", "address": NODE},
            {"type": "InternalIP", "address": "2001:db8::1"}]}}));
    case.enforce_with(|site| site.node = Some("n1".into()));
    let question = to_port(A, BRIDGE, 53);
    let asks = |case: &Case| {
        case.lab.send_frame("x/a", "x/b", &question);
        testkit::transit(Duration::from_millis(30));
        server.recv_from(&mut [0; 8]).ok().map(|(_, from)| from)
    };
    let hears = |case: &Case, peer| {
        case.lab.received("x/a");
        // The kernel reports a packet that a rule drops.
        let _ = server.send_to(b"answer", peer);
        testkit::transit(Duration::from_millis(30));
        let is_it = |packet: &Vec<u8>| packet.ends_with(b"answer");
        case.lab.received("x/a").iter().any(is_it)
    };
    let peer = asks(&case).expect("nothing is denied");
    assert!(hears(&case, peer));
    for cidr in ["192.0.2.0/24", "172.17.0.0/16", "198.51.100.0/24"] {
        let egress = json!([{"to": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": [cidr]}}]}]);
        let spec = json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": egress});
        case.apply(policy("x/e", spec));
        case.enforce_with(|site| site.node = Some("n1".into()));
        // A permission is one for the address in the packet.
        let permits = cidr != "172.17.0.0/16";
        assert_eq!(asks(&case).is_some(), permits, "without {cidr}");
        assert_eq!(hears(&case, peer), permits, "without {cidr}");
    }
    for (network, permits) in [
        ("192.0.2.1/32", false),
        ("172.17.0.1/32", false),
        ("198.51.100.0/24", true),
        ("::/0", true),
    ] {
        case.apply(json!({"apiVersion": "policy.networking.k8s.io/v1alpha2",
            "kind": "ClusterNetworkPolicy", "metadata": {"name": "c"},
            "spec": {"tier": "Admin", "priority": 1, "subject": {"namespaces": {}},
                "egress": [{"action": "Deny", "to": [{"networks": [network]}]}]}}));
        case.enforce_with(|site| site.node = Some("n1".into()));
        assert_eq!(asks(&case).is_some(), permits, "denied {network}");
        assert_eq!(hears(&case, peer), permits, "denied {network}");
    }
}

/// Nor does the node open a connection that conntrack has forgotten.
#[test]
fn a_connection_that_conntrack_forgot_is_the_pods() {
    testkit::requires_root!();
    let mut case = Case::new(Network::Routed);
    let node = &case.lab.node;
    node.exec(["ip", "link", "set", "lo", "up"]);
    node.exec(["ip", "address", "add", &format!("{BRIDGE}/32"), "dev", "lo"]);
    let server = node.enter(|| TcpListener::bind((BRIDGE, 53)).unwrap());
    let denies = |cidr: &str| {
        let egress = json!([{"to": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": [cidr]}}]}]);
        policy("x/e", json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": egress}))
    };
    case.apply(denies("198.51.100.0/24"));
    case.enforce();
    case.lab.node.exec(["sysctl", "-qw", "net.netfilter.nf_conntrack_tcp_timeout_established=1"]);
    let send = |case: &Case, at: [u32; 2], flags: fn(Packet) -> Packet| {
        let packet = flags(tcp(&format!("{A}:1000"), &format!("{BRIDGE}:53")));
        let packet = packet.tcp_header(|tcp| {
            [tcp.sequence_number, tcp.acknowledgment_number] = at;
        });
        case.lab.send_frame("x/a", "x/b", &packet);
        testkit::transit(Duration::from_millis(30));
    };
    let heard =
        |case: &Case| case.lab.received("x/a").into_iter().rfind(|it| it.starts_with(&[0x45]));
    send(&case, [100, 0], Packet::syn);
    let accepted = heard(&case).expect("it is accepted");
    let begin = u32::from_be_bytes(accepted[24..28].try_into().unwrap()).wrapping_add(1);
    send(&case, [101, begin], Packet::ack);
    let (mut stream, _) = server.accept().unwrap();
    stream.set_nonblocking(true).unwrap();
    let mut says = |case: &Case, text: &str| {
        stream.write_all(text.as_bytes()).unwrap();
        testkit::transit(Duration::from_millis(30));
        heard(case).is_some_and(|it| it.ends_with(text.as_bytes()))
    };
    until_forgotten(&case.lab.node);
    assert!(says(&case, "news"), "it is permitted");
    let end = begin.wrapping_add(4);
    send(&case, [101, end], |packet| packet.data(b"abc"));
    case.apply(denies("172.17.0.0/16"));
    case.enforce();
    until_forgotten(&case.lab.node);
    assert!(!says(&case, "more"), "the node");
    send(&case, [104, end], |packet| packet.data(b"def"));
    let mut bytes = [0; 8];
    assert_eq!(stream.read(&mut bytes).unwrap(), 3);
    assert_eq!(&bytes[..3], b"abc", "the pod");
}
