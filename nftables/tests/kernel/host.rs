//! Host firewalls on a cluster node in a namespace, with a host outside.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use control::{Control, Scope};
use nftables::{Enforcer, Failsafe, HOST_TABLES, host_ruleset};
use serde_json::{Value, json};
use testkit::Namespace;

use crate::common::object;

const NODE: &str = "192.0.2.1";
const OUTSIDE: &str = "192.0.2.9";
const BLOCKED: Duration = Duration::from_millis(300);

/// The ports that a mistake must not close, and others.
const FAILSAFE_IN: [u16; 3] = [22, 6443, 10250];
const OTHERS: [u16; 2] = [80, 8080];

struct Hosts {
    node: Namespace,
    outside: Namespace,
    control: Control,
    enforcer: Enforcer,
}

impl Hosts {
    fn new() -> Self {
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

    fn enforce(&mut self, firewalls: &[Value]) {
        self.control.resync_kind(control::Kind::ClusterHostFirewall, Vec::new());
        for (index, spec) in firewalls.iter().enumerate() {
            let name = format!("f{index}");
            self.control.apply(object(json!({"apiVersion": "podgate.io/v1alpha1",
                "kind": "ClusterHostFirewall", "metadata": {"name": name}, "spec": spec})));
        }
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

    fn comes_in(&self, port: u16) -> bool {
        connect(&self.outside, NODE, port).is_ok()
    }

    fn goes_out(&self, port: u16) -> bool {
        connect(&self.node, OUTSIDE, port).is_ok()
    }

    fn pings(&self, from: &Namespace, to: &str) -> bool {
        from.try_exec(["ping", "-c", "1", "-W", "1", to]).status.success()
    }
}

fn echo(namespace: &Namespace, port: u16) {
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

fn connect(from: &Namespace, to: &str, port: u16) -> std::io::Result<TcpStream> {
    let to = SocketAddr::new(to.parse::<IpAddr>().unwrap(), port);
    let stream = from.enter(|| TcpStream::connect_timeout(&to, BLOCKED))?;
    stream.set_read_timeout(Some(BLOCKED))?;
    Ok(stream)
}

fn answers(stream: &mut TcpStream) -> bool {
    stream.write_all(b"x").is_ok() && stream.read_exact(&mut [0]).is_ok()
}

fn deny_all() -> Value {
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
    assert!(!hosts.pings(&hosts.outside, NODE) && !hosts.pings(&hosts.node, OUTSIDE));
    assert!(!hosts.pings(&hosts.outside, "fd00::1"));
    assert!(connect(&hosts.outside, "fd00::1", 22).is_ok(), "IPv6 and its neighbour discovery");
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
    // The host outside becomes a cluster node.
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
