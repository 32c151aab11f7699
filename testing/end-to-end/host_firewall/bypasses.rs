//! Ways around a host firewall that denies one host outside: other addresses of the node, services of
//! the switch, broadcast and multicast, extension headers and fragments, forged sources.

use std::net::{Ipv6Addr, SocketAddrV6, UdpSocket};

use serde_json::{Value, json};
use testkit::packet::{self, Packet};
use testkit::{Namespace, RawSender};

use super::{Hosts, NODE, OUTSIDE, WEB, is_denied, serve};
use crate::lan::ip;
use crate::requires_the_machine;

/// Addresses of the node that its object does not list.
const UNLISTED: [&str; 2] = ["172.17.0.1", "203.0.113.22"];
/// Services in front of the web servers of the node, of the outside host, and of a pod.
const SERVICE: &str = "10.96.0.80";
const SERVICE_OUTSIDE: &str = "10.96.0.81";
const SERVICE_POD: &str = "10.96.0.82";
const NODE_PORT: u16 = 30080;

fn service(
    name: &str,
    cluster_ip: &str,
    (endpoint, port): (&str, u16),
    spec: &Value,
) -> [Value; 2] {
    let metadata = json!({"name": name, "namespace": "default",
        "labels": {"kubernetes.io/service-name": name}});
    let mut service = json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata,
        "spec": {"clusterIPs": [cluster_ip], "clusterIP": cluster_ip, "ports": [{"port": WEB}]}});
    for (field, value) in spec.as_object().unwrap() {
        service["spec"][field] = value.clone();
    }
    let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "addressType": "IPv4", "metadata": metadata, "ports": [{"port": port}],
        "endpoints": [{"addresses": [endpoint], "conditions": {"ready": true}}]});
    [service, slice]
}

/// Datagrams that the processes of a namespace have received, of both families.
fn datagrams(namespace: &Namespace) -> u64 {
    let v4 = namespace.exec(["cat", "/proc/net/snmp"]);
    let mut lines = v4.lines().filter(|line| line.starts_with("Udp:"));
    let place = lines.next().unwrap().split(' ').position(|name| name == "InDatagrams").unwrap();
    let v4: u64 = lines.next().unwrap().split(' ').nth(place).unwrap().parse().unwrap();
    let v6 = namespace.exec(["cat", "/proc/net/snmp6"]);
    let v6 = v6.lines().find_map(|line| line.strip_prefix("Udp6InDatagrams")).unwrap();
    v4 + v6.trim().parse::<u64>().unwrap()
}

/// The MAC address and the link-local address of the node's link.
fn link_of(node: &Namespace) -> ([u8; 6], Ipv6Addr) {
    let mac = node.exec(["cat", "/sys/class/net/eth0/address"]);
    let mut bytes = mac.trim().split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap());
    let addresses =
        node.exec(["ip", "-6", "-o", "address", "show", "dev", "eth0", "scope", "link"]);
    let local = addresses.split_whitespace().find(|word| word.starts_with("fe80")).unwrap();
    let local = local.split('/').next().unwrap().parse().unwrap();
    (std::array::from_fn(|_| bytes.next().unwrap()), local)
}

impl Hosts {
    /// Sends a datagram from outside; whether a process of the node got it.
    fn casts(&self, to: &str) -> bool {
        let before = datagrams(&self.node.namespace);
        let any = if to.contains(':') { "[::]:0" } else { "0.0.0.0:0" };
        let socket = self.outside.enter(|| UdpSocket::bind(any).unwrap());
        socket.set_broadcast(true).unwrap();
        let scope = self.outside.exec(["cat", "/sys/class/net/eth0/ifindex"]);
        let sent = match to.parse::<Ipv6Addr>() {
            Ok(to) => {
                socket.send_to(b"x", SocketAddrV6::new(to, 53, 0, scope.trim().parse().unwrap()))
            }
            Err(_) => socket.send_to(b"x", (to, 53)),
        };
        assert_eq!(sent.unwrap(), 1, "{to}");
        self.comes(before)
    }

    /// Returns whether a process of the node gets a datagram more than so many.
    fn comes(&self, before: u64) -> bool {
        (0..15).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(20));
            datagrams(&self.node.namespace) > before
        })
    }

    /// Sends frames from outside that make one datagram for the name server; whether that got it.
    fn frames(&self, sender: &RawSender, frames: &[Vec<u8>]) -> bool {
        let before = datagrams(&self.node.namespace);
        frames.iter().for_each(|frame| sender.send(frame).unwrap());
        self.comes(before)
    }
}

/// The ways in that reach the node, by name.
fn ways_in(hosts: &Hosts, served: bool) -> Vec<String> {
    let (mac, local) = link_of(&hosts.node.namespace);
    let gateway = ["10.77.0.1"];
    let all = NODE.into_iter().chain(UNLISTED).chain(gateway.into_iter().filter(|_| served));
    let mut targets: Vec<(&str, u16)> = all.map(|to| (to, WEB)).collect();
    if served {
        targets.extend([(NODE[0], NODE_PORT), (UNLISTED[1], NODE_PORT), (SERVICE, WEB)]);
    }
    let open = |(to, port): &(&str, u16)| !is_denied(&hosts.outside, to, *port);
    let mut ways: Vec<String> =
        targets.iter().filter(|to| open(to)).map(|(to, port)| format!("{to}:{port}")).collect();
    let casts = ["192.0.2.255", "255.255.255.255", "224.0.0.1", "ff02::1", &local.to_string()];
    ways.extend(casts.iter().filter(|to| hosts.casts(to)).map(ToString::to_string));
    let sender = hosts.outside.enter(|| RawSender::open("eth0").unwrap());
    let four =
        |payload: &[u8]| packet::udp("192.0.2.9:4000", "192.0.2.1:53").payload(payload).to_mac(mac);
    let six = |payload: &[u8]| {
        packet::udp("[2001:db8::9]:4000", "[2001:db8::1]:53").payload(payload).to_mac(mac)
    };
    let long = [7; 600];
    let padding = [1, 4, 0, 0, 0, 0];
    let one = |packet: Packet| vec![packet.build()];
    let frames: [(&str, Vec<Vec<u8>>); 7] = [
        ("IPv4", one(four(b"x"))),
        ("IPv4 with options", one(four(b"x").ip_options(&[1, 1, 1, 0]))),
        ("IPv4 in fragments", four(&long).ip_id(7).fragments(256)),
        ("IPv6", one(six(b"x"))),
        ("IPv6 with hop-by-hop options", one(six(b"x").extension(0, &padding))),
        (
            "IPv6 with destination options",
            one(six(b"x").extension(60, &padding).extension(60, &padding)),
        ),
        ("IPv6 in fragments", six(&long).ip_id(8).fragments(256)),
    ];
    let arrived = frames.iter().filter(|(_, frames)| hosts.frames(&sender, frames));
    ways.extend(arrived.map(|(name, _)| (*name).to_owned()));
    ways
}

/// The ways out that reach the host outside.
fn ways_out(hosts: &Hosts, served: bool) -> Vec<String> {
    let mapped = format!("::ffff:{}", OUTSIDE[0]);
    let mut targets = vec![OUTSIDE[0], OUTSIDE[1], &mapped];
    targets.extend([SERVICE_OUTSIDE, SERVICE_POD].iter().filter(|_| served));
    let open = |to: &&&str| !is_denied(&hosts.node.namespace, to, WEB);
    targets.iter().filter(open).map(ToString::to_string).collect()
}

fn bypasses(enforcer: &'static str, arguments: &[&str]) {
    let hosts = Hosts::start(enforcer, arguments);
    let (node, served) = (&hosts.node, enforcer == "afxdp");
    for command in [
        "link add docker0 type bridge",
        "link set docker0 up",
        "address add 172.17.0.1/16 dev docker0",
        "address add 203.0.113.22/24 dev eth0",
    ] {
        ip(&node.namespace, command);
    }
    ip(&hosts.outside, &format!("route add default via {}", NODE[0]));
    let node_port = json!({"type": "NodePort", "ports": [{"port": WEB, "nodePort": NODE_PORT}]});
    let (web, web_address) = hosts.pod("web");
    serve(web.namespace(), 8080);
    for object in [
        service("web", SERVICE, (NODE[0], WEB), &node_port),
        service("outside", SERVICE_OUTSIDE, (OUTSIDE[0], WEB), &json!({})),
        service("pod", SERVICE_POD, (&web_address.to_string(), 8080), &json!({})),
    ]
    .into_iter()
    .flatten()
    {
        node.api_server().apply(object);
    }
    if served {
        node.eventually("the node port", || {
            (!is_denied(&hosts.outside, NODE[0], NODE_PORT)).then_some(())
        });
        node.eventually("the pod's service", || {
            (!is_denied(&node.namespace, SERVICE_POD, WEB)).then_some(())
        });
    }
    let musts = [
        "192.0.2.1:80",
        "2001:db8::1:80",
        "172.17.0.1:80",
        "192.0.2.255",
        "ff02::1",
        "IPv4 in fragments",
        "IPv6 in fragments",
        "IPv6 with destination options",
    ];
    node.eventually("the ways in", || {
        let open = ways_in(&hosts, served);
        println!("{enforcer}: {open:?}");
        musts.iter().all(|must| open.iter().any(|way| way == must)).then_some(())
    });
    let denied = |network: &str| json!([{"networks": ["192.0.2.9/32", "2001:db8::9/128", "fe80::/10", network]}]);
    hosts.firewall(
        "outside",
        json!({"ingress": [{"action": "Deny", "from": denied("192.0.2.8/32")}],
            "egress": [{"action": "Deny", "to": denied("10.77.0.0/24")}]}),
    );
    hosts.until(WEB, false);
    let open = [ways_in(&hosts, served), ways_out(&hosts, served)];
    assert_eq!(open, [Vec::<String>::new(), Vec::new()], "{enforcer}");
    // A pod that comes now is known: nothing keeps the API server away. One that forges a source which no rule
    // is about reaches the node neither.
    let (pod, _) = hosts.pod("forger");
    let inside = pod.namespace();
    let gateway = inside.exec(["ip", "neigh", "show", "dev", "eth0"]);
    let sender = inside.enter(|| RawSender::open("eth0").unwrap());
    let forged = packet::udp("203.0.113.50:4000", "192.0.2.1:53").payload(b"x");
    let mac = gateway.split_whitespace().skip_while(|word| *word != "lladdr").nth(1);
    let mac = mac.map(|mac| {
        let mut bytes = mac.split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap());
        std::array::from_fn(|_| bytes.next().unwrap())
    });
    let forged = mac.map_or(forged.clone(), |mac| forged.to_mac(mac));
    assert!(!hosts.frames(&sender, &[forged.build()]), "a forged source");
}

#[test]
fn no_way_leads_around_a_host_firewall() {
    requires_the_machine!("nft");
    for mode in ["on", "off"] {
        let services = ["--service-networks", "10.96.0.0/12"];
        bypasses("afxdp", &[&["--uplink", "eth0", "--flow-offload", mode][..], &services].concat());
    }
}

#[test]
fn no_way_leads_around_a_host_firewall_with_nftables() {
    requires_the_machine!("nft", "/usr/lib/cni/ptp");
    bypasses("nftables", &[]);
}
