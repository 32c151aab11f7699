//! Networks between nodes whose host firewalls deny everything: the switch's tunnels, those of a
//! VXLAN device of the kernel as flannel makes it, and routes as kindnet sets them.

use std::io::ErrorKind;
use std::net::{IpAddr, TcpStream, UdpSocket};
use std::time::Duration;

use serde_json::json;
use testkit::{Namespace, TempDir, packet};

use crate::cluster_node::{ClusterNode, PATIENCE};
use crate::foreign::Foreign;
use crate::host_firewall::{connect, echoes, is_denied, is_silent, serve, serve_datagrams};
use crate::lan::{Lan, ip};
use crate::nftables::ONLY_CLIENT;
use crate::requires_the_machine;

const NODES: [[&str; 2]; 2] = [["192.0.2.1", "2001:db8::1"], ["192.0.2.2", "2001:db8::2"]];
const WORLD: [&str; 2] = ["192.0.2.9", "2001:db8::9"];
/// Where pods serve.
const WEB: u16 = 8080;

/// Connects the pod networks of both nodes as flannel does: a VXLAN device for each family, with an
/// entry for the other node.
fn connect_by_flannel(lan: &Lan) {
    for (at, node) in lan.nodes.iter().enumerate() {
        let namespace = &node.namespace;
        let (own, other) = (at + 1, 2 - at);
        let (own_pods, pods) = (76 + own, 76 + other);
        let local = NODES[at];
        let remote = NODES[1 - at];
        for (v6, device) in [(0, "flannel.1"), (1, "flannel-v6.1")] {
            let mac = |number: usize| format!("02:00:00:00:0{v6}:0{number}");
            let (own_mac, mac) = (mac(own), mac(other));
            let tunnel = format!("id {} local {} dev eth0 dstport 8472", v6 + 1, local[v6]);
            ip(namespace, &format!("link add {device} mtu 1430 type vxlan {tunnel} nolearning"));
            ip(namespace, &format!("link set {device} address {own_mac} up"));
            let remote = remote[v6];
            let words = format!("fdb add {mac} dev {device} dst {remote} self permanent");
            namespace.exec(std::iter::once("bridge").chain(words.split(' ')));
            let (own, gateway, network) = match v6 {
                0 => (format!("10.{own_pods}.0.0/32"), format!("10.{pods}.0.0"), "10.P.0.0/24"),
                _ => (format!("fd{own_pods}::/128"), format!("fd{pods}::"), "fdP::/64"),
            };
            let network = network.replace('P', &pods.to_string());
            let nodad = if v6 == 1 { " nodad" } else { "" };
            ip(namespace, &format!("address add {own} dev {device}{nodad}"));
            ip(namespace, &format!("route add {network} via {gateway} dev {device} onlink"));
            ip(namespace, &format!("neigh add {gateway} lladdr {mac} dev {device} nud permanent"));
        }
    }
}

/// The same as kindnet does: a route for each node.
fn connect_by_routes(lan: &Lan) {
    for (at, node) in lan.nodes.iter().enumerate() {
        let (pods, [v4, v6]) = (78 - at, NODES[1 - at]);
        ip(&node.namespace, &format!("route add 10.{pods}.0.0/24 via {v4}"));
        ip(&node.namespace, &format!("route add fd{pods}::/64 via {v6}"));
    }
}

/// Settings of a pod of either network.
struct Ends<'a> {
    web: [IpAddr; 2],
    client: &'a Namespace,
    other: &'a Namespace,
}

impl Ends<'_> {
    /// Returns whether connections open, over IPv4 and IPv6.
    fn opens(&self, from: &Namespace) -> bool {
        self.web.iter().all(|to| connect(from, &to.to_string(), WEB).is_ok())
    }

    /// Returns whether they do not.
    fn are_denied(&self, from: &Namespace) -> [bool; 2] {
        self.web.map(|to| is_denied(from, &to.to_string(), WEB))
    }
}

/// Enforces a policy across both nodes, then makes the mistake on them.
fn mistake(lan: &Lan, ends: &Ends<'_>, tunnels: bool) {
    let [one, _] = &lan.nodes[..] else { panic!("two nodes") };
    let inside = || lan.nodes.iter().map(|node| &node.namespace);
    for namespace in inside().chain([&lan.world]) {
        [22, 80, 6443].iter().for_each(|port| serve(namespace, *port));
        serve_datagrams(namespace, 53);
    }
    one.eventually("pods of both nodes reach each other", || {
        [ends.client, ends.other].iter().all(|it| ends.are_denied(it) == [false; 2]).then_some(())
    });
    lan.apply("policy", &serde_json::from_str(ONLY_CLIENT).unwrap());
    one.eventually("the policy is in force", || {
        (ends.are_denied(ends.other) == [true; 2]).then_some(())
    });
    assert!(ends.opens(ends.client));
    let streams = ends.web.map(|to| connect(ends.client, &to.to_string(), WEB).unwrap());
    let [mut v4, mut v6]: [TcpStream; 2] = streams;
    assert!(echoes(&mut v4) && echoes(&mut v6));

    let everywhere = json!([{"networks": ["0.0.0.0/0", "::/0"]}]);
    let deny = |end: &str| json!([{"action": "Deny", end: everywhere}]);
    lan.apply(
        "firewall",
        &json!({"apiVersion": "podgate.io/v1alpha1", "kind": "ClusterHostFirewall",
            "metadata": {"name": "mistake"}, "spec": {"ingress": deny("from"), "egress": deny("to")}}),
    );
    let is_closed = |node: &ClusterNode, to: &str| {
        is_denied(&lan.world, to, 80) && is_denied(&node.namespace, WORLD[0], 80)
    };
    for (node, addresses) in lan.nodes.iter().zip(NODES) {
        node.eventually("the firewall is in force", || is_closed(node, addresses[0]).then_some(()));
    }
    let before = lan.datagrams();
    for _ in 0..3 {
        assert!(ends.opens(ends.client), "new connections of pods");
        assert!(echoes(&mut v4) && echoes(&mut v6), "open connections of pods");
        assert_eq!(ends.are_denied(ends.other), [true; 2], "the policy");
    }
    assert_eq!(lan.datagrams() > before + 20, tunnels, "packets were in tunnels");
    for (own, addresses) in inside().zip(NODES) {
        assert!(addresses.iter().all(|to| connect(&lan.world, to, 22).is_ok()), "ssh");
        assert!(WORLD.iter().all(|to| connect(own, to, 6443).is_ok()), "the API server");
    }
    // Denied connections wait for their timeout, so they are tried at once.
    let world = &lan.world;
    std::thread::scope(|scope| {
        for (own, addresses) in inside().zip(NODES) {
            let ways = addresses.map(|to| (world, to, &[80][..]));
            for (from, to, ports) in
                ways.into_iter().chain(WORLD.map(|to| (own, to, &[22, 80][..])))
            {
                scope.spawn(move || {
                    assert!(ports.iter().all(|port| is_denied(from, to, *port)), "{to}");
                    assert!(is_silent(from, to, 53) && !from.pings(to), "{to}");
                });
            }
        }
    });
    assert!(is_denied(&one.namespace, NODES[1][0], 80), "the other node");
}

#[test]
fn the_switchs_tunnels_live_through_a_mistake() {
    requires_the_machine!("nft", "ping");
    let lan = Lan::start(&["--underlay", "vxlan"]);
    lan.count_datagrams(4789);
    let [one, two] = &lan.nodes[..] else { panic!("two nodes") };
    let (client, other) = (one.pod("client", "client"), one.pod("other", "other"));
    let web = two.pod("web", "web");
    serve(&web.namespace, WEB);
    let ends =
        Ends { web: [web.v4(), web.v6()], client: &client.namespace, other: &other.namespace };
    mistake(&lan, &ends, true);
}

/// With pods of another CNI plugin, and what connects both nodes' pods.
fn foreign(plugin: &str, connect_nodes: fn(&Lan), tunnels: bool) {
    let lan = Lan::with_nftables();
    lan.count_datagrams(8472);
    let leases = [TempDir::new("ipam"), TempDir::new("ipam")];
    let pod = |at: usize, name: &str| {
        let node: &ClusterNode = &lan.nodes[at];
        let pod = Foreign::new(node, plugin, leases[at].path(), name);
        lan.write(name, &pod.object(json!({"role": name})));
        pod
    };
    for node in &lan.nodes {
        let forwarding = ["net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"];
        node.namespace.exec(["sysctl", "-qw"].into_iter().chain(forwarding));
    }
    let (client, other, web) = (pod(0, "client"), pod(0, "other"), pod(1, "web"));
    connect_nodes(&lan);
    serve(&web.namespace, WEB);
    let ends = Ends {
        web: [web.address(false), web.address(true)],
        client: &client.namespace,
        other: &other.namespace,
    };
    mistake(&lan, &ends, tunnels);
    if tunnels {
        forge(&lan, &other, &client);
    }
}

/// A pod says by the tunnel of its node what another node's pod would say.
fn forge(lan: &Lan, attacker: &Foreign, victim: &Foreign) {
    let server = victim.namespace.enter(|| UdpSocket::bind("0.0.0.0:9").unwrap());
    server.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let mac = |text: &str| {
        let mut bytes = text.split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap());
        std::array::from_fn(|_| bytes.next().unwrap())
    };
    let inner = packet::udp("10.78.0.99:5", &format!("{}:9", victim.address(false)));
    let inner = inner.payload(b"x").to_mac(mac("02:00:00:00:00:01")).build();
    let wrapped = [&[8, 0, 0, 0, 0, 0, 1, 0][..], &inner].concat();
    let socket = attacker.namespace.enter(|| UdpSocket::bind("0.0.0.0:0").unwrap());
    for to in [NODES[0][0], "10.77.0.1", "10.77.0.0"] {
        // The kernel may report that nothing takes it.
        let _ = socket.send_to(&wrapped, (to, 8472));
        assert!(server.recv(&mut [0; 8]).is_err(), "{to}");
    }
    // Nor does a process of a node, to this one's kernel or another's.
    for node in &lan.nodes {
        let socket = node.namespace.enter(|| UdpSocket::bind("0.0.0.0:0").unwrap());
        let sent = socket.send_to(&wrapped, (NODES[0][0], 8472)).map_err(|error| error.kind());
        assert_eq!(sent, Err(ErrorKind::PermissionDenied));
    }
    // The underlay is trusted: from a host of it, the forged packet is one.
    let socket = lan.world.enter(|| UdpSocket::bind("0.0.0.0:0").unwrap());
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.send_to(&wrapped, (NODES[0][0], 8472)).unwrap();
    assert!(server.recv(&mut [0; 8]).is_ok());
}

#[test]
fn flannels_tunnels_are_policed_and_live_through_a_mistake() {
    requires_the_machine!("nft", "ping", "bridge", "/usr/lib/cni/bridge");
    foreign("flannel", connect_by_flannel, true);
}

#[test]
fn kindnets_routes_are_policed_and_live_through_a_mistake() {
    requires_the_machine!("nft", "ping", "/usr/lib/cni/ptp");
    foreign("ptp", connect_by_routes, false);
}
