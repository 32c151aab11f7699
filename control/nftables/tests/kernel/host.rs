//! Host firewalls, and policies of host-network pods, on a node in a namespace, with a host
//! outside.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use control::{Control, Scope};
use nftables::{Enforcer, Failsafe, HOST_TABLES, host_ruleset};
use serde_json::{Value, json};
use testkit::{Namespace, RawSender, packet};

use crate::common::{faulty, object, reference_of};

pub(crate) const NODE: &str = "192.0.2.1";
pub(crate) const OUTSIDE: &str = "192.0.2.9";
pub(crate) const BLOCKED: Duration = Duration::from_millis(300);

/// The ports that a mistake must not close, and others.
const FAILSAFE_IN: [u16; 3] = [22, 6443, 10250];
const OTHERS: [u16; 2] = [80, 8080];

pub(crate) struct Hosts {
    pub(crate) node: Namespace,
    pub(crate) outside: Namespace,
    pub(crate) control: Control,
    pub(crate) enforcer: Enforcer,
}

impl Hosts {
    pub(crate) fn new() -> Self {
        let (node, outside) = (Namespace::new("hostfw"), Namespace::new("outside"));
        let inside = outside.name();
        node.exec([
            "ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", inside,
        ]);
        for (namespace, v4, v6) in [(&node, NODE, "fd00::1"), (&outside, OUTSIDE, "fd00::9")] {
            let [v4, v6] = [format!("{v4}/24"), format!("{v6}/64")];
            namespace.exec(["ip", "address", "add", v4.as_str(), "dev", "eth0"]);
            namespace.exec(["ip", "address", "add", v6.as_str(), "dev", "eth0", "nodad"]);
            namespace.exec(["ip", "link", "set", "eth0", "up"]);
        }
        for namespace in [&node, &outside] {
            for port in FAILSAFE_IN.into_iter().chain(OTHERS) {
                echo(namespace, port);
            }
        }
        let mut control = Control::new(Scope::Node("n1".into()));
        control.apply(object(json!({"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": "n1", "labels": {"role": "edge"}},
            "status": {"addresses": [{"type": "InternalIP", "address": NODE}]}})));
        control.commit();
        Self { node, outside, control, enforcer: Enforcer::new(HOST_TABLES) }
    }

    pub(crate) fn enforce(&mut self, firewalls: &[Value]) {
        self.control.resync_kind(control::Kind::ClusterHostFirewall, Vec::new());
        for (index, spec) in firewalls.iter().enumerate() {
            let name = format!("f{index}");
            self.control.apply(object(json!({"apiVersion": "podgate.io/v1alpha1",
                "kind": "ClusterHostFirewall", "metadata": {"name": name}, "spec": spec})));
        }
        self.commit();
    }

    pub(crate) fn commit(&mut self) {
        self.control.commit();
        let ruleset = host_ruleset(&self.control.view(), &Failsafe::default());
        let enforcer = &mut self.enforcer;
        self.node
            .enter(|| match ruleset.is_empty() {
                true => enforcer.remove(),
                false => enforcer.set(ruleset),
            })
            .unwrap();
    }

    pub(crate) fn apply(&mut self, value: Value) {
        self.control.apply(object(value));
        self.commit();
    }

    pub(crate) fn comes_in(&self, port: u16) -> bool {
        connect(&self.outside, NODE, port).is_ok()
    }

    pub(crate) fn goes_out(&self, port: u16) -> bool {
        connect(&self.node, OUTSIDE, port).is_ok()
    }
}

pub(crate) fn echo(namespace: &Namespace, port: u16) {
    let listener = namespace
        .enter(|| TcpListener::bind(SocketAddr::new("::".parse().unwrap(), port)).unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let (mut stream, mut bytes) = (stream, [0; 64]);
                while let Ok(count @ 1..) = stream.read(&mut bytes) {
                    let _ = stream.write_all(&bytes[..count]);
                }
            });
        }
    });
}

pub(crate) fn connect(from: &Namespace, to: &str, port: u16) -> std::io::Result<TcpStream> {
    let to = SocketAddr::new(to.parse::<IpAddr>().unwrap(), port);
    let stream = from.enter(|| TcpStream::connect_timeout(&to, BLOCKED))?;
    stream.set_read_timeout(Some(BLOCKED))?;
    Ok(stream)
}

pub(crate) fn answers(stream: &mut TcpStream) -> bool {
    stream.write_all(b"x").is_ok() && stream.read_exact(&mut [0]).is_ok()
}

pub(crate) fn deny_all() -> Value {
    let everywhere = json!([{"networks": ["0.0.0.0/0", "::/0"]}]);
    json!({"ingress": [{"action": "Deny", "from": everywhere}],
           "egress": [{"action": "Deny", "to": everywhere}]})
}

#[test]
fn a_mistake_leaves_the_failsafe_ports_and_is_undone() {
    testkit::requires_root!();
    testkit::requires!(testkit::has_program("nft"), "nft is not installed");
    let mut hosts = Hosts::new();
    let all = || FAILSAFE_IN.into_iter().chain(OTHERS);
    assert!(all().all(|port| hosts.comes_in(port) && hosts.goes_out(port)));
    let mut live = connect(&hosts.outside, NODE, 8080).unwrap();
    let mut ssh = connect(&hosts.outside, NODE, 22).unwrap();
    assert!(answers(&mut live) && answers(&mut ssh));

    hosts.enforce(&[deny_all()]);
    for port in all() {
        assert_eq!(hosts.comes_in(port), FAILSAFE_IN.contains(&port), "{port}");
        assert_eq!(hosts.goes_out(port), [6443, 10250].contains(&port), "{port}");
        assert!(connect(&hosts.node, "127.0.0.1", port).is_ok(), "loopback {port}");
        assert!(connect(&hosts.node, NODE, port).is_ok(), "its own address {port}");
    }
    assert!(!answers(&mut live) && answers(&mut ssh), "live connections");
    assert!(!hosts.outside.pings(NODE) && !hosts.node.pings(OUTSIDE));
    assert!(!hosts.outside.pings("fd00::1"));
    for namespace in [&hosts.node, &hosts.outside] {
        namespace.exec(["ip", "-6", "neigh", "flush", "dev", "eth0"]);
    }
    assert!(connect(&hosts.outside, "fd00::1", 22).is_ok(), "IPv6 and its neighbour discovery");
    assert!(connect(&hosts.node, "fd00::9", 6443).is_ok());
    assert!(connect(&hosts.outside, "fd00::1", 80).is_err());

    // Said twice.
    let mut twice = deny_all();
    twice["failsafePorts"] = json!("Closed");
    hosts.enforce(&[deny_all(), twice]);
    assert!(all().all(|port| !hosts.comes_in(port) && !hosts.goes_out(port)));
    assert!(!answers(&mut ssh));
    assert!(connect(&hosts.node, "127.0.0.1", 22).is_ok(), "loopback");

    hosts.enforce(&[]);
    assert!(all().all(|port| hosts.comes_in(port) && hosts.goes_out(port)));
    assert_eq!(hosts.node.exec(["nft", "list", "ruleset"]), "");
}

/// Neighbour discovery passes any firewall, and carries no other data.
#[test]
fn neighbour_discovery_is_no_way_around() {
    testkit::requires_root!();
    testkit::requires!(testkit::has_program("nft"), "nft is not installed");
    let mut hosts = Hosts::new();
    hosts.enforce(&[deny_all()]);
    let mac = |namespace: &Namespace| {
        let text = namespace.exec(["cat", "/sys/class/net/eth0/address"]);
        let mut bytes = text.trim().split(':').map(|it| u8::from_str_radix(it, 16).unwrap());
        std::array::from_fn(|_| bytes.next().unwrap())
    };
    let (own, to) = (mac(&hosts.outside), mac(&hosts.node));
    let sender = hosts.outside.enter(|| RawSender::open("eth0").unwrap());
    let received = || {
        let text = hosts.node.exec(["cat", "/proc/net/snmp6"]);
        let line = text.lines().find_map(|line| line.strip_prefix("Icmp6InMsgs")).unwrap();
        line.trim().parse::<u64>().unwrap()
    };
    let arrives = |kind: u8, hops: u8, length: usize| {
        let packet =
            packet::icmp("fd00::9", "fd00::1", kind, 0).payload(&vec![7; length]).ttl(hops);
        let before = received();
        sender.send(&packet.from_mac(own).to_mac(to).build()).unwrap();
        testkit::transit(Duration::from_millis(30));
        received() > before
    };
    for kind in [130, 131, 132, 133, 134, 135, 136, 137, 143] {
        for hops in [64, 1, 255] {
            let is_discovery = (133..=137).contains(&kind);
            let short = (hops == 255) == is_discovery && hops != 64;
            assert_eq!(arrives(kind, hops, 24), short, "type {kind}, hop limit {hops}");
            let solicits = matches!(kind, 133 | 135 | 136);
            assert!(!(solicits && arrives(kind, hops, 900)), "type {kind}: data");
        }
    }
    assert!(connect(&hosts.outside, "fd00::1", 22).is_ok(), "neighbours find each other");
}

#[test]
fn rules_are_about_networks_nodes_and_ports_of_the_selected_nodes() {
    testkit::requires_root!();
    testkit::requires!(testkit::has_program("nft"), "nft is not installed");
    let mut hosts = Hosts::new();
    let tcp = |port: u16| json!([{"tcp": {"destinationPort": {"number": port}}}]);
    let everywhere = json!([{"networks": ["0.0.0.0/0", "::/0"]}]);
    let nobody = json!({"nodes": {"matchLabels": {"role": "core"}},
        "ingress": [{"action": "Deny", "from": everywhere}]});
    hosts.enforce(&[nobody]);
    assert!(hosts.comes_in(80));
    assert_eq!(hosts.node.exec(["nft", "list", "ruleset"]), "", "another node's");
    let edge = json!({"nodes": {"matchLabels": {"role": "edge"}}, "ingress": [
        {"action": "Allow", "from": [{"networks": ["192.0.2.8/29"]}], "protocols": tcp(80)},
        {"action": "Allow", "from": [{"nodes": {}}], "protocols": tcp(8080)},
        {"action": "Deny", "from": everywhere}]});
    hosts.enforce(std::slice::from_ref(&edge));
    assert!(hosts.comes_in(80) && !hosts.comes_in(8080));
    assert!(hosts.goes_out(80), "nothing is said about egress, replies to it come in");
    // The host outside becomes a node.
    hosts.control.apply(object(json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "n2"},
        "status": {"addresses": [{"type": "InternalIP", "address": OUTSIDE}]}})));
    hosts.enforce(std::slice::from_ref(&edge));
    assert!(hosts.comes_in(80) && hosts.comes_in(8080));
    // Every firewall must permit.
    let other =
        json!({"ingress": [{"action": "Deny", "from": [{"nodes": {}}], "protocols": tcp(80)}]});
    hosts.enforce(&[edge, other]);
    assert!(!hosts.comes_in(80) && hosts.comes_in(8080));
}

#[test]
fn rules_are_about_pods_and_the_api_server_too() {
    testkit::requires_root!();
    testkit::requires!(testkit::has_program("nft"), "nft is not installed");
    let mut hosts = Hosts::new();
    let firewall = |direction: &str, end: &str, peer: Value| {
        let mut spec = json!({"nodes": {}});
        spec[direction] = json!([{"action": "Deny"}]);
        spec[direction][0][end] = json!([peer]);
        spec
    };
    let pods =
        json!({"pods": {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "a"}}}});
    hosts.enforce(&[firewall("ingress", "from", pods.clone())]);
    assert!(hosts.comes_in(80));
    // The outside host's address becomes a pod's, of any node.
    let pod = |label: &str| {
        json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"namespace": "x", "name": "p", "labels": {"app": label}},
            "spec": {"nodeName": "n2", "containers": [{"name": "c"}]},
            "status": {"podIPs": [{"ip": OUTSIDE}]}})
    };
    hosts.apply(pod("a"));
    assert!(!hosts.comes_in(80) && hosts.goes_out(80) && hosts.comes_in(22));
    hosts.apply(pod("b"));
    assert!(hosts.comes_in(80));
    let namespaces = json!({"namespaces": {"matchLabels": {"kubernetes.io/metadata.name": "x"}}});
    hosts.enforce(&[firewall("egress", "to", namespaces)]);
    assert!(!hosts.goes_out(80) && hosts.comes_in(80) && hosts.goes_out(6443));
    hosts.enforce(&[firewall("egress", "to", json!({"apiServer": {}}))]);
    assert!(hosts.goes_out(80));
    let labels = json!({"kubernetes.io/service-name": "kubernetes"});
    hosts.apply(json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"namespace": "default", "name": "kubernetes", "labels": labels},
        "addressType": "IPv4", "endpoints": [{"addresses": [OUTSIDE]}],
        "ports": [{"name": "https", "port": 6443}]}));
    assert!(!hosts.goes_out(80) && hosts.goes_out(6443));
}

#[test]
fn a_node_that_cannot_be_read_is_selected_by_every_firewall() {
    testkit::requires_root!();
    testkit::requires!(testkit::has_program("nft"), "nft is not installed");
    let mut hosts = Hosts::new();
    let deny = |nodes: Value| {
        json!({"nodes": nodes, "ingress":
            [{"action": "Deny", "from": [{"networks": ["0.0.0.0/0"]}]}]})
    };
    let others = json!({"matchLabels": {"role": "core"}});
    hosts.enforce(&[deny(others.clone())]);
    assert!(hosts.comes_in(80));
    hosts.control.apply(faulty(json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "n1", "labels": {"role": "edge"}},
        "status": {"addresses": [{"type": "InternalIP", "address": "nowhere"}]}})));
    hosts.commit();
    assert!(!hosts.comes_in(80) && hosts.comes_in(22));
    // Without an object, by those without labels alone.
    hosts.control.delete(&reference_of("Node", "", "n1"));
    hosts.commit();
    assert!(hosts.comes_in(80));
    hosts.enforce(&[deny(json!({}))]);
    assert!(!hosts.comes_in(80));
}

/// The kernel follows 16 chains in a row at most.
#[test]
fn any_number_of_firewalls_must_permit() {
    testkit::requires_root!();
    testkit::requires!(testkit::has_program("nft"), "nft is not installed");
    let mut hosts = Hosts::new();
    let tcp = |port: u16| json!([{"tcp": {"destinationPort": {"number": port}}}]);
    let rule = |action: &str, port: u16| json!({"action": action, "from": [{"networks": ["192.0.2.0/24"]}], "protocols": tcp(port)});
    let about = |n: u16| {
        let rules: Vec<Value> = (1..=20).map(|port| rule("Allow", 1000 * n + port)).collect();
        json!({"ingress": rules, "failsafePorts": if n.is_multiple_of(2) { "Open" } else { "Closed" }})
    };
    let mut firewalls: Vec<Value> = (0..60).map(about).collect();
    hosts.enforce(&firewalls);
    assert!(hosts.comes_in(80) && hosts.comes_in(8080));
    firewalls[59]["ingress"][19] = rule("Deny", 80);
    firewalls[58]["ingress"][19] = rule("Deny", 22);
    hosts.enforce(&firewalls);
    assert!(!hosts.comes_in(80) && hosts.comes_in(8080) && hosts.comes_in(22));
    assert!(hosts.goes_out(80));
    assert_eq!(hosts.enforcer.written_whole(), 1, "the change was a difference");
}

pub(crate) fn host_pod(name: &str, labels: Value, ports: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "x", "name": name, "labels": labels},
        "spec": {"nodeName": "n1", "hostNetwork": true, "containers": [{"name": "c", "ports": ports}]},
        "status": {"podIPs": [{"ip": NODE}]}})
}

#[test]
fn policies_hold_for_host_network_pods_at_the_ports_that_they_declare() {
    testkit::requires_root!();
    testkit::requires!(testkit::has_program("nft"), "nft is not installed");
    let mut hosts = Hosts::new();
    let ports = json!([{"containerPort": 80}, {"containerPort": 6443}]);
    hosts.apply(host_pod("a", json!({"app": "a"}), ports));
    let policy = |name: &str, spec: Value| {
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"namespace": "x", "name": name}, "spec": spec})
    };
    let none = |app: &str| json!({"podSelector": {"matchLabels": {"app": app}}, "policyTypes": ["Ingress", "Egress"]});
    hosts.apply(policy("p", none("a")));
    assert!(hosts.comes_in(80), "it is not wanted");
    assert_eq!(hosts.control.host_network_faults(), []);
    hosts.control.enforce_host_network();
    hosts.commit();
    assert!(!hosts.comes_in(80) && hosts.comes_in(8080) && hosts.goes_out(80));
    assert!(hosts.comes_in(6443), "a failsafe port");
    let faults: Vec<String> =
        hosts.control.host_network_faults().iter().map(ToString::to_string).collect();
    assert_eq!(faults.len(), 1, "{faults:?}");
    assert!(faults[0].contains("Pod x/a") && faults[0].contains("egress of NetworkPolicy x/p"));
    let from = |cidr: &str| {
        let rules = json!([{"from": [{"ipBlock": {"cidr": cidr}}], "ports": [{"port": 80}]}]);
        json!({"podSelector": {"matchLabels": {"app": "a"}}, "ingress": rules})
    };
    hosts.apply(policy("p", from("192.0.2.8/29")));
    assert!(hosts.comes_in(80));
    hosts.apply(policy("p", from("192.0.2.16/28")));
    assert!(!hosts.comes_in(80));
    hosts.apply(policy("p", from("192.0.2.8/29")));
    // Two pods with the same port: both must permit.
    hosts.apply(host_pod("b", json!({"app": "b"}), json!([{"containerPort": 80}])));
    assert!(hosts.comes_in(80));
    hosts.apply(policy("q", none("b")));
    assert!(!hosts.comes_in(80));
    let mut finished = host_pod("b", json!({"app": "b"}), json!([{"containerPort": 80}]));
    finished["status"]["phase"] = json!("Succeeded");
    hosts.apply(finished);
    assert!(hosts.comes_in(80));
    // A firewall for the node and the pod's policies.
    hosts.apply(json!({"apiVersion": "podgate.io/v1alpha1", "kind": "ClusterHostFirewall",
        "metadata": {"name": "f"}, "spec": {"ingress": [{"action": "Deny",
            "from": [{"networks": ["192.0.2.9/32"]}],
            "protocols": [{"tcp": {"destinationPort": {"number": 8080}}}]}]}}));
    assert!(hosts.comes_in(80) && !hosts.comes_in(8080));
    // A pod that cannot be read is closed at the ports that can be.
    let mut broken = host_pod("a", json!({"app": "other"}), json!([{"containerPort": 80}]));
    broken["status"]["podIPs"] = json!([{"ip": "nowhere"}]);
    hosts.control.apply(faulty(broken));
    hosts.commit();
    assert!(!hosts.comes_in(80) && hosts.comes_in(22));
    // One of another node is none of this one's.
    let mut elsewhere = host_pod("a", json!({"app": "a"}), json!([{"containerPort": 80}]));
    elsewhere["spec"]["nodeName"] = json!("n2");
    hosts.apply(elsewhere);
    hosts.apply(policy("p", none("a")));
    assert!(hosts.comes_in(80));
}
