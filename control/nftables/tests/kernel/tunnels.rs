//! Tunnels of the kernel: neither pods nor processes send to their ports.

use std::time::Duration;

use serde_json::json;
use testkit::packet::{Packet, udp};

use crate::hooks::{A, B, Case, NODE, WORLD, WORLD_V6, question_ends, to_port};
use crate::lab::Network;

/// A VXLAN device of the kernel accepts packets from any sender and trusts their inner source address: so no
/// pod, here or on another node, sends to its port.
#[test]
fn no_pod_speaks_to_the_tunnels_of_a_node() {
    testkit::requires_root!();
    let mut case = Case::new(Network::Routed);
    let mac = "02:00:00:00:09:09";
    for command in [
        "link set lo up",
        "address add 192.0.2.1/32 dev lo",
        "address add 10.0.0.254/32 dev lo",
        "link add flannel.1 type vxlan id 1 local 192.0.2.1 dstport 8472 nolearning",
        &format!("link set flannel.1 address {mac} up"),
        "route add 10.9.0.0/24 dev flannel.1",
    ] {
        case.lab.node.exec(std::iter::once("ip").chain(command.split(' ')));
    }
    for (name, networks) in
        [("n1", ["10.0.0.0/24", "fd00::/64"]), ("n2", ["10.9.0.0/24", "fd09::/64"])]
    {
        case.apply(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
            "spec": {"podCIDRs": networks}}));
    }
    let forged = to_port("10.9.0.9", B, 53);
    let inner = forged.clone().to_mac([2, 0, 0, 0, 9, 9]).build();
    let header = [8, 0, 0, 0, 0, 0, 1, 0];
    let wrapped = |from: &str, to: &str| {
        let outer = udp(&question_ends(from, 5000), &question_ends(to, 8472));
        outer.payload(&[&header[..], &inner].concat())
    };
    let tunnels = |case: &mut Case, ports: &[u16]| {
        let ports = ports.iter().copied().collect();
        case.enforce_with(|site| {
            site.node = Some("n1".into());
            site.tunnel_ports = ports;
        });
    };
    let arrives = |case: &Case, by: &str, packet: &Packet| {
        case.lab.received("x/b");
        case.lab.send_frame(by, "x/b", packet);
        testkit::transit(Duration::from_millis(60));
        case.lab.has_arrived("x/b", &forged)
    };
    tunnels(&mut case, &[]);
    assert!(arrives(&case, "x/a", &wrapped(A, NODE)), "the attack is one");
    tunnels(&mut case, &[8472]);
    for to in [NODE, "10.0.0.254"] {
        assert!(!arrives(&case, "x/a", &wrapped(A, to)), "to {to}");
        // A pod of another node, whose packet comes through the tunnel or a route.
        assert!(!arrives(&case, "world", &wrapped("10.9.0.7", to)), "from elsewhere to {to}");
    }
    // Nor does it leave for another node, whose kernel takes it for one of this node; pods have that port.
    case.expect(false, "x/a", "world", &[to_port(A, WORLD, 8472)]);
    case.expect(true, "x/a", "x/b", &[to_port(A, B, 8472), to_port("fd00::1", "fd00::2", 8472)]);
    case.expect(true, "x/a", "world", &[to_port(A, WORLD, 8473)]);
    // The other node's kernel.
    assert!(arrives(&case, "world", &wrapped(WORLD, NODE)), "tunnels go on");
}

/// Nor does a process of the host network: what it says by the tunnel has its own address.
#[test]
fn no_process_speaks_to_the_tunnels_of_a_node_itself() {
    testkit::requires_root!();
    let mut case = Case::new(Network::Routed);
    let mac = "02:00:00:00:09:09";
    let gateways = [("10.9.0.1", "10.9.0.0/24"), ("fd09::1", "fd09::/64")];
    let node = |words: &str| case.lab.node.exec(words.split(' '));
    node("ip link set lo up");
    node("ip address add 192.0.2.1/32 dev lo");
    node("ip address add 2001:db8::1/128 dev lo nodad");
    node("ip link add flannel.1 mtu 1430 type vxlan id 1 local 192.0.2.1 dstport 8472 nolearning");
    node("ip link set flannel.1 up");
    node(&format!("bridge fdb add {mac} dev flannel.1 dst {WORLD} self permanent"));
    for (gateway, network) in gateways {
        node(&format!("ip neigh add {gateway} lladdr {mac} dev flannel.1 nud permanent"));
        node(&format!("ip route add {network} via {gateway} dev flannel.1 onlink"));
    }
    case.enforce_with(|site| {
        site.node = Some("n1".into());
        site.tunnel_ports = [8472].into();
    });
    let send = |to: &str, port: u16, text: &[u8]| {
        case.lab.node.enter(|| {
            let local = if to.contains(':') { "[::]:0" } else { "0.0.0.0:0" };
            let socket = std::net::UdpSocket::bind(local).unwrap();
            socket.send_to(text, (to, port)).map_err(|error| error.kind())
        })
    };
    let denied = Err(std::io::ErrorKind::PermissionDenied);
    for to in [WORLD, NODE, "127.0.0.1", "::1", WORLD_V6] {
        assert_eq!(send(to, 8472, b"forged"), denied, "{to}");
        assert_eq!(send(to, 8473, b"another port"), Ok(12), "{to}");
    }
    // The tunnel goes on, for processes and for what the kernel sends.
    for (gateway, _) in gateways {
        case.lab.received("world");
        assert_eq!(send(gateway, 5, gateway.as_bytes()), Ok(gateway.len()));
        testkit::eventually("the tunnel's packet", || {
            let received = case.lab.received("world");
            received.iter().any(|it| holds(it, gateway.as_bytes())).then_some(())
        });
    }
}

fn holds(packet: &[u8], text: &[u8]) -> bool {
    packet.windows(text.len()).any(|it| it == text)
}
