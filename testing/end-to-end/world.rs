//! Services beside the world: endpoints outside, connections that are older or newer than what
//! their addresses mean.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::path::Path;

use linux_net::in_namespace;
use serde_json::{Value, json};
use testkit::Namespace;

use crate::cluster_node::{BLOCKED, PATIENCE};
use crate::lan::Lan;
use crate::own_processes::{apply, mirror, seen_as, seen_as_by_datagram};
use crate::requires_the_machine;
use crate::several_nodes::{apply_service, service};

const SERVICES: [&str; 2] = ["--service-networks", "10.96.0.0/12"];
const WORLD: &str = "192.0.2.9";

/// A service of TCP and UDP at 10.96.0.10, and at node ports 30080 and 30053.
fn web() -> Value {
    json!({"type": "NodePort", "clusterIPs": ["10.96.0.10"], "ports": [
        {"name": "http", "port": 80, "targetPort": 8080, "nodePort": 30080, "protocol": "TCP"},
        {"name": "dns", "port": 53, "targetPort": 8053, "nodePort": 30053, "protocol": "UDP"},
    ]})
}

/// As those of a managed control plane.
#[test]
fn an_endpoint_outside_is_reached_by_every_client_at_every_address() {
    requires_the_machine!("python3", "nft");
    for masquerade in ["kernel", "direct"] {
        let lan = Lan::start(&[&SERVICES[..], &["--masquerade", masquerade]].concat());
        let [one, two] = &lan.nodes[..] else { panic!("two nodes") };
        let pod = one.pod("pod", "pod");
        let _mirror = mirror(&lan.world);
        apply(&lan, "web", "outside", &[WORLD.to_owned()], web());
        let clients = [one.namespace.path(), pod.namespace.path(), lan.world.path()];
        for (n, client) in clients.into_iter().enumerate() {
            // The endpoint itself, as a client: the kernel forwards no packet to where it came from.
            if n == 2 && masquerade == "kernel" {
                continue;
            }
            let addresses = ["10.96.0.10", "192.0.2.1", "192.0.2.2"];
            let ports = [("80", "53"), ("30080", "30053"), ("30080", "30053")];
            // No route leads to cluster addresses from outside.
            let skipped = usize::from(n == 2);
            for (address, (tcp, udp)) in addresses.iter().zip(ports).skip(skipped) {
                let of = format!("{masquerade}, client {n} to {address}");
                let seen = seen_as(client, &format!("{address}:{tcp}"));
                assert!(matches!(seen.as_deref(), Ok("192.0.2.1" | "192.0.2.2")), "{of}: {seen:?}");
                let datagram = seen_as_by_datagram(client, &format!("{address}:{udp}"));
                assert_eq!(datagram.unwrap(), seen.unwrap(), "{of}");
            }
        }
        assert!(one.is_well() && two.is_well());
    }
}

/// The address that the mirror outside sees of a client that uses these source ports.
fn seen_from_ports(client: &Namespace, tcp: u16, udp: u16) -> String {
    let script = format!(
        "import socket
s = socket.create_connection(('{WORLD}', 8080), 5, source_address=('', {tcp}))
print(s.recv(99).decode().replace('::ffff:', ''))
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
u.bind(('', {udp}))
u.settimeout(5)
u.sendto(b'who', ('{WORLD}', 8053))
print(u.recv(99).decode().replace('::ffff:', ''))"
    );
    client.exec(["python3", "-c", &script])
}

/// Their answers are no requests to the service.
#[test]
fn connections_from_a_services_port_get_their_answers() {
    requires_the_machine!("python3", "nft");
    let lan = Lan::start(&[]);
    let one = &lan.nodes[0];
    let (server, client) = (one.pod("web", "web"), one.pod("client", "client"));
    let _mirrors = [mirror(&server.namespace), mirror(&lan.world)];
    apply(&lan, "web", "node1", &[server.v4().to_string()], web());
    assert!(seen_as(lan.world.path(), "192.0.2.1:30080").is_ok());
    for client in [&one.namespace, &client.namespace] {
        assert_eq!(seen_from_ports(client, 30080, 30053), "192.0.2.1\n192.0.2.1\n");
    }
    assert!(seen_as(lan.world.path(), "192.0.2.1:30080").is_ok());
}

/// A socket that sends to an address, over and over.
fn sender(client: &Path, to: &str) -> UdpSocket {
    let socket = in_namespace(client, || UdpSocket::bind("0.0.0.0:0")).unwrap().unwrap();
    socket.set_read_timeout(Some(BLOCKED)).unwrap();
    socket.connect(to).unwrap();
    socket
}

#[test]
fn datagrams_follow_services_that_come_and_go() {
    requires_the_machine!("python3", "nft");
    let lan = Lan::start(&SERVICES);
    let [one, two] = &lan.nodes[..] else { panic!("two nodes") };
    let (server, near) = (one.pod("web", "web"), one.pod("near", "near"));
    let far = two.pod("far", "far");
    let _mirror = mirror(&server.namespace);
    let senders = [
        (near.namespace.path(), "10.96.0.10:53"),
        (near.namespace.path(), "192.0.2.1:30053"),
        (far.namespace.path(), "192.0.2.1:30053"),
        (one.namespace.path(), "192.0.2.1:30053"),
        (lan.world.path(), "192.0.2.1:30053"),
    ];
    let senders = senders.map(|(client, to)| (sender(client, to), to));
    // Nothing listens there, which the sender may be told.
    senders.iter().for_each(|(socket, _)| drop(socket.send(b"x")));
    for round in 0..2 {
        apply(&lan, "web", "node1", &[server.v4().to_string()], web());
        for (n, (socket, to)) in senders.iter().enumerate() {
            one.eventually(&format!("round {round}, sender {n} to {to}"), || {
                let _ = socket.send(b"who");
                socket.recv(&mut [0; 99]).ok()
            });
        }
        let mut without = web();
        without["ports"] =
            json!([{"name": "dns", "port": 54, "targetPort": 8053, "protocol": "UDP"}]);
        apply(&lan, "web", "node1", &[server.v4().to_string()], without);
        senders.iter().for_each(|(socket, _)| drop(socket.send(b"x")));
    }
}

/// Whether redis answers on an open connection.
fn answers(stream: &mut TcpStream) -> bool {
    let mut answer = [0; 7];
    let asked = stream.write_all(b"PING\r\n").and_then(|()| stream.read_exact(&mut answer));
    asked.is_ok() && answer == *b"+PONG\r\n"
}

#[test]
fn connections_from_outside_go_on_while_their_node_port_is_gone() {
    requires_the_machine!("redis-server");
    let lan = Lan::start(&[]);
    let one = &lan.nodes[0];
    let server = one.pod("db", "db");
    let _redis = server.serve_redis();
    let spec = json!({"type": "NodePort"});
    apply_service(&lan, &server, "node1", &spec);
    let to: SocketAddr = "192.0.2.1:30379".parse().unwrap();
    let connect = || TcpStream::connect_timeout(&to, PATIENCE);
    let mut stream = lan.world.enter(connect).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    assert!(answers(&mut stream));
    for _ in 0..2 {
        let ports = json!([{"port": 6380, "targetPort": 6379}]);
        lan.apply(
            "service",
            &json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "db", "namespace": "default"},
            "spec": {"clusterIPs": ["10.96.0.10"], "ports": ports}}),
        );
        assert!(answers(&mut stream), "without a node port");
        let [service, _] = service(&server, "node1", &spec);
        lan.apply("service", &service);
        assert!(answers(&mut stream), "with it again");
    }
}
