//! Live connections of the node itself: denied ones stop in both directions, forgotten ones do not turn round.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};

use serde_json::json;
use testkit::Namespace;

use crate::host::{BLOCKED, Hosts, NODE, OUTSIDE, answers, connect, deny_all, host_pod};
use crate::lab::until_forgotten;

/// Both ends of a connection, on the node and outside, and the socket that took it.
struct Live {
    node: TcpStream,
    outside: TcpStream,
    _listener: TcpListener,
}

impl Live {
    fn open(hosts: &Hosts, comes_in: bool, address: &str, port: u16) -> Self {
        let (from, to) = match comes_in {
            true => (&hosts.outside, &hosts.node),
            false => (&hosts.node, &hosts.outside),
        };
        let at = SocketAddr::new(address.parse().unwrap(), port);
        let listener = to.enter(|| TcpListener::bind(at).unwrap());
        // The first attempt may fail while the neighbour of a new interface is resolved.
        let near = (0..20).find_map(|_| connect(from, address, port).ok()).unwrap();
        let (far, _) = listener.accept().unwrap();
        far.set_read_timeout(Some(BLOCKED)).unwrap();
        let (node, outside) = if comes_in { (far, near) } else { (near, far) };
        Self { node, outside, _listener: listener }
    }

    /// Returns whether a byte of the node's arrives, and one from outside.
    fn arrives(&mut self, outside_first: bool) -> [bool; 2] {
        let crosses = |from: &mut TcpStream, to: &mut TcpStream| {
            from.write_all(b"x").is_ok() && to.read_exact(&mut [0]).is_ok()
        };
        let Self { node, outside, .. } = self;
        let first = outside_first.then(|| crosses(outside, node));
        let there = crosses(node, outside);
        [there, first.unwrap_or_else(|| crosses(outside, node))]
    }
}

/// Also where conntrack would see a connection for the first time by what the other end sends: no
/// earlier rules made the kernel track connections.
#[test]
fn a_denial_stops_what_comes_back_as_well() {
    testkit::requires_root!();
    testkit::requires!(testkit::has_program("nft"), "nft is not installed");
    const DENIED: u16 = 9000;
    const PERMITTED: u16 = 9100;
    let range = json!({"destinationPort": {"range": {"start": DENIED, "end": PERMITTED - 1}}});
    let denies = |direction: &str, peers: &str| {
        let mut spec = json!({});
        spec[direction] =
            json!([{"action": "Deny", "protocols": [{"tcp": range}, {"udp": range}]}]);
        spec[direction][0][peers] = json!([{"networks": ["0.0.0.0/0", "::/0"]}]);
        spec
    };
    let elsewhere = json!({"ingress": [{"action": "Deny",
        "from": [{"networks": ["198.51.100.0/24"]}]}]});
    for (tracked, comes_in) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut hosts = Hosts::new();
        if tracked {
            hosts.enforce(std::slice::from_ref(&elsewhere));
        }
        let addresses = if comes_in { [NODE, "fd00::1"] } else { [OUTSIDE, "fd00::9"] };
        let ways = addresses.into_iter().flat_map(|it| [(it, true), (it, false)]).zip(0..);
        let both = ways.flat_map(|(way, n)| [(way, DENIED + n), (way, PERMITTED + n)]);
        let mut live: Vec<(Live, bool, u16)> = both
            .map(|((address, outside_first), port)| {
                (Live::open(&hosts, comes_in, address, port), outside_first, port)
            })
            .collect();
        assert!(live.iter_mut().all(|(it, first, _)| it.arrives(*first) == [true; 2]));
        let datagrams = |from: &Namespace, at: (&str, u16), to: (&str, u16)| {
            let socket = from.enter(|| UdpSocket::bind(at).unwrap());
            socket.connect(to).unwrap();
            socket.set_read_timeout(Some(BLOCKED)).unwrap();
            socket
        };
        let (near, far) = ((NODE, 7000), (OUTSIDE, DENIED));
        let node = datagrams(&hosts.node, near, far);
        let outside = datagrams(&hosts.outside, far, near);
        node.send(b"x").unwrap();
        assert!(outside.recv(&mut [0]).is_ok());

        let spec = if comes_in { denies("ingress", "from") } else { denies("egress", "to") };
        hosts.enforce(&[spec]);
        for _ in 0..2 {
            for (it, outside_first, port) in &mut live {
                let wanted = [*port >= PERMITTED; 2];
                let arrives = it.arrives(*outside_first);
                assert_eq!(arrives, wanted, "{tracked} {comes_in} {outside_first} {port}");
            }
            outside.send(b"x").unwrap();
            assert_eq!(node.recv(&mut [0]).is_ok(), comes_in, "a datagram, {tracked}");
            // The kernel reports a packet that a rule drops.
            let _ = node.send(b"x");
            assert_eq!(outside.recv(&mut [0]).is_ok(), comes_in, "a datagram, {tracked}");
        }
    }
}

/// A pod on the host network that sends first after the policy came.
#[test]
fn a_policy_of_a_host_network_pod_stops_what_it_answers() {
    testkit::requires_root!();
    testkit::requires!(testkit::has_program("nft"), "nft is not installed");
    for outside_first in [false, true] {
        let mut hosts = Hosts::new();
        hosts.control.enforce_host_network();
        hosts.apply(host_pod("a", json!({"app": "a"}), json!([{"containerPort": 9000}])));
        let mut live = Live::open(&hosts, true, NODE, 9000);
        let mut other = Live::open(&hosts, true, NODE, 9001);
        assert_eq!(live.arrives(outside_first), [true; 2]);
        hosts.apply(json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"namespace": "x", "name": "p"}, "spec": {"podSelector": {}}}));
        for _ in 0..2 {
            assert_eq!(live.arrives(outside_first), [false; 2]);
            assert_eq!(other.arrives(outside_first), [true; 2]);
        }
    }
}

/// A peer can have conntrack forget a connection, by a reset that a rule drops for one.
#[test]
fn a_connection_that_conntrack_forgot_is_not_the_cluster_nodes() {
    testkit::requires_root!();
    testkit::requires!(testkit::has_program("nft"), "nft is not installed");
    let mut hosts = Hosts::new();
    let deny = |cidr: &str| {
        json!({"ingress": [{"action": "Deny", "from": [{"networks": [cidr]}],
            "protocols": [{"tcp": {"destinationPort": {"number": 9000}}}]}]})
    };
    hosts.enforce(&[deny("198.51.100.0/24")]);
    hosts.node.exec(["sysctl", "-qw", "net.netfilter.nf_conntrack_tcp_timeout_established=1"]);
    let mut live = [9000, 9001].map(|port| Live::open(&hosts, true, NODE, port));
    let mut ssh = connect(&hosts.outside, NODE, 22).unwrap();
    assert!(live.iter_mut().all(|it| it.arrives(false) == [true; 2]) && answers(&mut ssh));
    until_forgotten(&hosts.node);
    assert!(live.iter_mut().all(|it| it.arrives(false) == [true; 2]), "both ways are permitted");
    until_forgotten(&hosts.node);
    hosts.enforce(&[deny("192.0.2.0/24")]);
    let [denied, other] = &mut live;
    assert_eq!(denied.arrives(false), [false; 2]);
    assert_eq!(other.arrives(false), [true; 2]);
    // After it was taken up in the middle.
    hosts.enforce(&[deny_all()]);
    assert_eq!(other.arrives(false), [false; 2]);
    // A failsafe port stays open.
    until_forgotten(&hosts.node);
    assert!(answers(&mut ssh));
}
