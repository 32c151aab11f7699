//! Processes of a node itself, outside of any pod, ask services at all addresses.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;

use linux_net::in_namespace;
use serde_json::{Value, json};
use testkit::{Namespace, Process};

use crate::cluster_node::{BLOCKED, PATIENCE};
use crate::lan::{FAR, Lan};
use crate::requires_the_machine;

/// Answers each client with its address: TCP and UDP, both families.
const MIRROR: &str = "
import socket, threading
tcp = socket.create_server(('::', 8080), family=socket.AF_INET6, dualstack_ipv6=True)
udp = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
udp.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
udp.bind(('::', 8053))
def datagrams():
    while True:
        _, who = udp.recvfrom(100)
        udp.sendto(who[0].encode(), who)
threading.Thread(target=datagrams, daemon=True).start()
print('listening', flush=True)
while True:
    stream, who = tcp.accept()
    stream.sendall(who[0].encode())
    stream.close()
";

pub(crate) fn mirror(namespace: &Namespace) -> Process {
    let server = namespace.spawn(["python3", "-c", MIRROR]);
    server.wait_for_line("listening", PATIENCE);
    server
}

/// The source address that the mirror at `to` sees of a process in this namespace.
pub(crate) fn seen_as(namespace: &Path, to: &str) -> std::io::Result<String> {
    let to: SocketAddr = to.parse().unwrap();
    let mut stream =
        in_namespace(namespace, || TcpStream::connect_timeout(&to, BLOCKED)).unwrap()?;
    stream.set_read_timeout(Some(BLOCKED))?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text.trim_start_matches("::ffff:").to_owned())
}

/// The same with a datagram.
pub(crate) fn seen_as_by_datagram(namespace: &Path, to: &str) -> std::io::Result<String> {
    let to: SocketAddr = to.parse().unwrap();
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = in_namespace(namespace, || UdpSocket::bind(any)).unwrap()?;
    socket.set_read_timeout(Some(BLOCKED))?;
    socket.connect(to)?;
    socket.send(b"who am I?")?;
    let mut bytes = [0; 100];
    let length = socket.recv(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes[..length]).trim_start_matches("::ffff:").to_owned())
}

/// A service whose endpoints are these addresses on `node`.
pub(crate) fn apply(lan: &Lan, name: &str, node: &str, endpoints: &[String], spec: Value) {
    let metadata = json!({"name": name, "namespace": "default",
        "labels": {"kubernetes.io/service-name": name}});
    for (v6, family) in [(false, "IPv4"), (true, "IPv6")] {
        let of_family = endpoints.iter().filter(|it| it.contains(':') == v6);
        let list: Vec<Value> = of_family
            .map(|it| json!({"addresses": [it], "nodeName": node, "conditions": {"ready": true}}))
            .collect();
        let mut metadata = metadata.clone();
        metadata["name"] = format!("{name}-{}", family.to_lowercase()).into();
        let ports: Vec<Value> = spec["ports"].as_array().unwrap().iter().map(|port| {
            json!({"name": port["name"], "port": port["targetPort"], "protocol": port["protocol"]})
        }).collect();
        lan.write(
            &format!("slice-{name}-{family}"),
            &json!({"kind": "EndpointSlice",
            "apiVersion": "discovery.k8s.io/v1", "addressType": family, "metadata": metadata,
            "endpoints": list, "ports": ports}),
        );
    }
    let mut service = json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata,
        "spec": spec, "status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.8"}]}}});
    if name != "web" {
        service["status"] = json!({});
    }
    lan.apply(&format!("service-{name}"), &service);
}

const EXTERNAL_IPS: [&str; 2] = ["--external-ips", "203.0.113.0/24,2001:db8:99::/64,192.0.2.1"];

/// The last of its external addresses is a node's, which it does not get.
fn web(lan: &Lan, node: &str, endpoints: &[String]) {
    apply(
        lan,
        "web",
        node,
        endpoints,
        json!({
        "type": "LoadBalancer", "clusterIPs": ["10.96.0.10"],
        "externalIPs": ["203.0.113.7", "2001:db8:99::7", "192.0.2.1"],
        "ports": [
            {"name": "http", "port": 80, "targetPort": 8080, "nodePort": 30080, "protocol": "TCP"},
            {"name": "dns", "port": 53, "targetPort": 8053, "nodePort": 30053, "protocol": "UDP"},
        ]}),
    );
}

#[test]
fn services_are_reached_at_node_ports_and_external_addresses() {
    requires_the_machine!("python3", "nft");
    let lan = Lan::start(&EXTERNAL_IPS);
    let [one, two] = &lan.nodes[..] else { panic!("two nodes") };
    let pod = one.pod("web", "web");
    let _mirror = mirror(&pod.namespace);
    web(&lan, "node1", &pod.addresses.iter().map(ToString::to_string).collect::<Vec<_>>());
    // The client is seen as the node, so a default-deny policy admits it.
    lan.apply(
        "policy",
        &json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": "nobody", "namespace": "default"},
        "spec": {"podSelector": {}, "policyTypes": ["Ingress"]}}),
    );
    let here = one.namespace.path();
    for to in ["192.0.2.1:30080", "203.0.113.7:80", "203.0.113.8:80"] {
        assert_eq!(seen_as(here, to).unwrap(), "192.0.2.1", "{to}");
    }
    for to in ["[2001:db8::1]:30080", "[2001:db8:99::7]:80"] {
        assert_eq!(seen_as(here, to).unwrap(), "2001:db8::1", "{to}");
    }
    for to in ["192.0.2.1:30053", "203.0.113.7:53"] {
        assert_eq!(seen_as_by_datagram(here, to).unwrap(), "192.0.2.1", "{to}");
    }
    assert_eq!(seen_as_by_datagram(here, "[2001:db8::1]:30053").unwrap(), "2001:db8::1");
    // The pod's own node alone is let in, also through another one's.
    let there = two.namespace.path();
    assert!(seen_as(there, "192.0.2.2:30080").is_err());
    lan.write(
        "policy",
        &json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": "nobody", "namespace": "default"},
        "spec": {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{
            "from": [{"ipBlock": {"cidr": "192.0.2.2/32"}}]}]}}),
    );
    // The other node has no pods: nothing changes there.
    let seen = one.eventually("the policy", || seen_as(there, "192.0.2.2:30080").ok());
    assert_eq!(seen, "192.0.2.2");
    assert_eq!(seen_as(there, "203.0.113.7:80").unwrap(), "192.0.2.2");
    // Addresses that are not a service's stay as they were.
    let refused = |to: &str| seen_as(here, to).unwrap_err().kind();
    assert_eq!(refused("127.0.0.1:30080"), std::io::ErrorKind::ConnectionRefused);
    assert_eq!(refused("192.0.2.1:30081"), std::io::ErrorKind::ConnectionRefused);
    assert_eq!(refused("192.0.2.1:80"), std::io::ErrorKind::ConnectionRefused);
    let status = one.podgate(&["status"]);
    assert!(
        status.contains("spec.externalIPs[2]: 192.0.2.1 is an address of Node node1"),
        "{status}"
    );
    let own = in_namespace(here, || TcpListener::bind("192.0.2.1:2222").unwrap()).unwrap();
    let answer = std::thread::spawn(move || own.accept().unwrap().0.write_all(b"own").unwrap());
    assert_eq!(seen_as(here, "192.0.2.1:2222").unwrap(), "own");
    answer.join().unwrap();
    let sessions = one.podgate(&["show", "sessions"]);
    assert!(sessions.contains("169.254.1.2:30080"), "{sessions}");
}

/// Without the option a Service takes no other address. A Service with the API server's address does not keep the
/// node's processes from reaching it.
#[test]
fn no_service_takes_the_api_servers_place() {
    requires_the_machine!("python3", "nft");
    for arguments in [&[][..], &["--external-ips", "0.0.0.0/0"]] {
        let lan = Lan::start(arguments);
        let one = &lan.nodes[0];
        let pod = one.pod("web", "web");
        let _mirror = mirror(&pod.namespace);
        let addresses = [pod.v4().to_string()];
        let metadata = json!({"name": "kubernetes", "namespace": "default",
            "labels": {"kubernetes.io/service-name": "kubernetes"}});
        lan.apply(
            "kubernetes",
            &json!({"apiVersion": "v1", "kind": "Service",
            "metadata": metadata, "spec": {"clusterIPs": ["10.96.0.1"], "ports": [{"port": 443}]}}),
        );
        lan.apply(
            "kubernetes-1",
            &json!({"apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice", "addressType": "IPv4", "metadata": metadata,
            "endpoints": [{"addresses": [FAR], "conditions": {"ready": true}}],
            "ports": [{"port": 6443}]}),
        );
        let server = in_namespace(lan.world.path(), || TcpListener::bind((FAR, 6443)).unwrap());
        let server = server.unwrap();
        std::thread::spawn(move || {
            for stream in server.incoming().flatten() {
                let _ = { stream }.write_all(b"the API server");
            }
        });
        apply(
            &lan,
            "thief",
            "node1",
            &addresses,
            json!({
            "clusterIPs": ["10.96.0.66"], "externalIPs": [FAR],
            "ports": [{"name": "http", "port": 6443, "targetPort": 8080, "protocol": "TCP"}]}),
        );
        // By its status, which others write, it gets the address.
        let metadata = json!({"name": "thief", "namespace": "default"});
        lan.apply(
            "service-thief",
            &json!({"apiVersion": "v1", "kind": "Service",
            "metadata": metadata, "status": {"loadBalancer": {"ingress": [{"ip": FAR}]}},
            "spec": {"type": "LoadBalancer", "clusterIPs": ["10.96.0.66"], "externalIPs": [FAR],
                "ports": [{"name": "http", "port": 6443, "targetPort": 8080}]}}),
        );
        let api_server = format!("{FAR}:6443");
        assert_eq!(seen_as(one.namespace.path(), &api_server).unwrap(), "the API server");
    }
}

/// Answers a request with the number of bytes that it names; the kernel chooses the source address.
const ECHO: &str = "
import socket
udp = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
udp.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
udp.bind(('::', 8054))
print('listening', flush=True)
while True:
    text, who = udp.recvfrom(100)
    try:
        udp.sendto(b'x' * int(text), who)
    except OSError:
        pass
";

/// The length of the answer to a datagram from this namespace; an answer from another address than
/// the one that was asked does not count.
fn answered(namespace: &Namespace, to: SocketAddr, wanted: usize) -> Option<usize> {
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = in_namespace(namespace.path(), || UdpSocket::bind(any)).unwrap().unwrap();
    socket.set_read_timeout(Some(BLOCKED)).unwrap();
    socket.connect(to).unwrap();
    socket.send(wanted.to_string().as_bytes()).unwrap();
    socket.recv(&mut [0; 4096]).ok()
}

#[test]
fn servers_bound_to_any_address_answer_from_the_one_that_was_asked_at_any_length() {
    requires_the_machine!("python3");
    for underlay in ["vxlan", "routed"] {
        let lan = Lan::start(&["--underlay", underlay]);
        let [one, two] = &lan.nodes[..] else { panic!("two nodes") };
        let server = one.namespace.spawn(["python3", "-c", ECHO]);
        server.wait_for_line("listening", PATIENCE);
        let (near, far) = (one.pod("near", "near"), two.pod("far", "far"));
        // Over a routed underlay the question does not come by the switch, and the answer goes by it.
        let pods = [&near, &far].into_iter().take(if underlay == "vxlan" { 2 } else { 1 });
        for pod in pods {
            for to in ["192.0.2.1:8054", "[2001:db8::1]:8054"] {
                let to: SocketAddr = to.parse().unwrap();
                let name = &pod.name;
                assert_eq!(answered(&pod.namespace, to, 10), Some(10), "{underlay} {name} {to}");
                // Longer than pods' packets: the kernel finds out, and sends fragments.
                one.eventually("a long answer", || answered(&pod.namespace, to, 1440));
            }
        }
    }
}

#[test]
fn endpoints_may_be_the_cluster_node_itself() {
    requires_the_machine!("python3", "nft");
    let lan = Lan::start(&["--service-networks", "10.96.0.0/12"]);
    let [one, two] = &lan.nodes[..] else { panic!("two nodes") };
    let _mirror = mirror(&one.namespace);
    apply(
        &lan,
        "api",
        "node1",
        &["192.0.2.1".to_owned()],
        json!({"type": "NodePort", "clusterIPs": ["10.96.0.20"],
        "ports": [{"port": 443, "targetPort": 8080, "nodePort": 30443, "protocol": "TCP"}]}),
    );
    let here = one.namespace.path();
    assert_eq!(seen_as(here, "10.96.0.20:443").unwrap(), "10.96.0.20");
    assert_eq!(seen_as(here, "192.0.2.1:30443").unwrap(), "169.254.1.2");
    assert!(seen_as(two.namespace.path(), "10.96.0.20:443").is_ok());
    // Clients outside, by this node and by the other one.
    let outside = lan.world.path();
    assert_eq!(seen_as(outside, "192.0.2.1:30443").unwrap(), "169.254.1.2");
    assert_eq!(seen_as(outside, "192.0.2.2:30443").unwrap(), "192.0.2.2");
}

/// Sends an SCTP INIT; the kernel here may have no SCTP sockets.
const SCTP_CLIENT: &str = "
import socket, struct
s = socket.socket(socket.AF_INET, socket.SOCK_RAW, 132)
init = struct.pack('>BBHIIHHI', 1, 0, 20, 7, 65536, 1, 1, 7)
s.sendto(struct.pack('>HHII', 40000, 30132, 0, 0) + init, ('192.0.2.1', 0))
";
const SCTP_SERVER: &str = "
import socket, struct
s = socket.socket(socket.AF_INET, socket.SOCK_RAW, 132)
print('listening', flush=True)
packet, who = s.recvfrom(100)
print('from', who[0], struct.unpack('>HH', packet[20:24]), packet[32], flush=True)
";

#[test]
fn sctp_is_led_to_the_switch_too() {
    requires_the_machine!("python3", "nft");
    let lan = Lan::start(&[]);
    let one = &lan.nodes[0];
    let pod = one.pod("sctp", "sctp");
    let server = pod.namespace.spawn(["python3", "-c", SCTP_SERVER]);
    server.wait_for_line("listening", PATIENCE);
    apply(
        &lan,
        "sctp",
        "node1",
        &[pod.v4().to_string()],
        json!({"type": "NodePort", "clusterIPs": ["10.96.0.30"],
        "ports": [{"port": 1, "targetPort": 9132, "nodePort": 30132, "protocol": "SCTP"}]}),
    );
    one.namespace.exec(["python3", "-c", SCTP_CLIENT]);
    server.wait_for_line("from 192.0.2.1 (40000, 9132) 1", PATIENCE);
}

#[test]
fn what_stays_when_the_switch_ends_leads_nowhere_wrong() {
    requires_the_machine!("python3", "nft");
    let lan = Lan::start(&EXTERNAL_IPS);
    let pod = std::mem::ManuallyDrop::new(lan.nodes[0].pod("web", "web"));
    let (pods, addresses) = (pod.namespace.path().to_owned(), pod.addresses.clone());
    let name = pod.namespace.name().to_owned();
    web(&lan, "node1", &addresses.iter().map(ToString::to_string).collect::<Vec<_>>());
    let here = lan.nodes[0].namespace.path().to_owned();
    let listener = in_namespace(&pods, || TcpListener::bind("0.0.0.0:8080").unwrap()).unwrap();
    let to = "192.0.2.1:30080".parse().unwrap();
    let mut client =
        in_namespace(&here, || TcpStream::connect_timeout(&to, PATIENCE).unwrap()).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    let table = |lan: &Lan| {
        let list = ["nft", "list", "table", "inet", "podgate-services"];
        lan.nodes[0].namespace.exec(list)
    };
    // An orderly end: new connections are the kernel's, those that are open wait.
    assert!(lan.nodes[0].stop_switch().success());
    assert!(!table(&lan).contains("elements"), "{}", table(&lan));
    let refused = seen_as(&here, "192.0.2.1:30080").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    client.write_all(b"one").unwrap();
    lan.nodes[0].start_switch();
    // A kill: they wait as well, and a restart makes the table anew.
    lan.nodes[0].kill_switch();
    assert!(table(&lan).contains("30080"));
    client.write_all(b"two").unwrap();
    lan.nodes[0].start_switch();
    let mut bytes = [0; 6];
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    server.read_exact(&mut bytes).expect("the connection goes on");
    assert_eq!(&bytes, b"onetwo");
    drop((server, client, listener));
    let deleted = std::process::Command::new("ip").args(["netns", "delete", &name]).status();
    assert!(deleted.unwrap().success());
}

/// Whoever reloads a firewall flushes the whole ruleset; others clean up routes.
#[test]
fn what_somebody_flushes_is_restored() {
    requires_the_machine!("python3", "nft", "ip");
    let lan = Lan::start(&EXTERNAL_IPS);
    let one = &lan.nodes[0];
    let pod = one.pod("web", "web");
    let _mirror = mirror(&pod.namespace);
    web(&lan, "node1", &pod.addresses.iter().map(ToString::to_string).collect::<Vec<_>>());
    let here = one.namespace.path();
    let direct = format!("{}:8080", pod.v4());
    assert!(seen_as(here, "192.0.2.1:30080").is_ok() && seen_as(here, &direct).is_ok());
    one.namespace.exec(["nft", "flush", "ruleset"]);
    one.eventually("the redirects", || seen_as(here, "192.0.2.1:30080").ok());
    one.namespace.exec(["nft", "flush", "chain", "inet", "podgate-services", "output"]);
    one.eventually("the redirects' rules", || seen_as(here, "192.0.2.1:30080").ok());
    let table = || one.namespace.exec(["nft", "list", "table", "inet", "podgate"]);
    one.eventually("the masquerading", || table().contains("masquerade").then_some(()));
    one.namespace.exec(["ip", "route", "flush", "dev", "podgate-host"]);
    one.eventually("the routes", || seen_as(here, &direct).ok());
    one.namespace.exec(["ip", "address", "flush", "dev", "podgate-host"]);
    one.eventually("the addresses", || seen_as(here, &direct).ok());
    one.namespace.exec(["ip", "link", "delete", "podgate-host"]);
    one.eventually("the host port", || seen_as(here, &direct).ok());
    assert!(one.is_well());
}
