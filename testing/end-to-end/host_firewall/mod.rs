//! Firewalls for the node itself, and policies of its pods on the host network, by the running
//! switch with either enforcer: clients and servers on the node and on a host outside, where the
//! API server is too.

mod bypasses;
mod echo;

use std::io::ErrorKind;
use std::net::{IpAddr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::{Namespace, TempDir};

use crate::cluster_node::{ClusterNode, PODGATE};
use crate::foreign::AnyPod;
use crate::requires_the_machine;
use echo::answered;
pub(crate) use echo::{connect, echoes, has_ended, is_denied, is_silent, serve, serve_datagrams};

/// Timeout of a client whose connection a firewall denies.
const BLOCKED: Duration = Duration::from_millis(400);
const NODE: [&str; 2] = ["192.0.2.1", "2001:db8::1"];
const OUTSIDE: [&str; 2] = ["192.0.2.9", "2001:db8::9"];
/// Where the node's own web server is.
const WEB: u16 = 80;

/// A node and a host outside, each with servers.
struct Hosts {
    node: ClusterNode,
    outside: Namespace,
    /// Where pods of another plugin have their addresses from.
    leases: TempDir,
    enforcer: &'static str,
}

impl Hosts {
    fn start(enforcer: &'static str, arguments: &[&str]) -> Self {
        let (namespace, outside) = (Namespace::new("node"), Namespace::new("outside"));
        let inside = outside.name();
        let pair = ["link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", inside];
        namespace.exec(["ip"].into_iter().chain(pair));
        for (namespace, addresses) in [(&namespace, NODE), (&outside, OUTSIDE)] {
            for address in addresses {
                let prefix = if address.contains(':') { 64 } else { 24 };
                let address = format!("{address}/{prefix}");
                // Otherwise the address is tentative for a second.
                let more = if address.contains(':') { &["nodad"][..] } else { &[] };
                let add = ["ip", "address", "add", address.as_str(), "dev", "eth0"];
                namespace.exec(add.into_iter().chain(more.iter().copied()));
            }
            namespace.exec(["ip", "link", "set", "eth0", "up"]);
            [22, 6443, 10250, WEB, 8080].iter().for_each(|port| serve(namespace, *port));
        }
        [68, 546, 53].iter().for_each(|port| serve_datagrams(&namespace, *port));
        [67, 547, 53].iter().for_each(|port| serve_datagrams(&outside, *port));
        let arguments = [&["--enforcer", enforcer], arguments].concat();
        let place = (outside.path().to_owned(), OUTSIDE[0].parse().unwrap());
        let node = ClusterNode::with_api_server_at(namespace, place, &arguments);
        let addresses = NODE.map(|it| json!({"type": "InternalIP", "address": it}));
        node.api_server().apply(json!({"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": "node1", "labels": {"role": "edge"}},
            "spec": {"podCIDRs": ["10.77.0.0/24", "fd77::/64"]}, "status": {"addresses": addresses}}));
        node.namespace.exec(["sysctl", "-qw", "net.ipv4.ip_forward=1"]);
        Self { node, outside, leases: TempDir::new("ipam"), enforcer }
    }

    /// A pod of the network that the enforcer is for: its namespace and IPv4 address.
    fn pod(&self, name: &str) -> (AnyPod<'_>, IpAddr) {
        let pod = AnyPod::attach(&self.node, self.enforcer, self.leases.path(), name);
        let address = pod.v4();
        (pod, address)
    }

    fn firewall(&self, name: &str, spec: Value) {
        self.node.api_server().apply(json!({"apiVersion": "podgate.io/v1alpha1",
            "kind": "ClusterHostFirewall", "metadata": {"name": name, "generation": 1},
            "spec": spec}));
    }

    fn comes_in(&self, port: u16) -> bool {
        NODE.iter().all(|to| connect(&self.outside, to, port).is_ok())
    }

    fn goes_out(&self, port: u16) -> bool {
        OUTSIDE.iter().all(|to| connect(&self.node.namespace, to, port).is_ok())
    }

    /// Returns whether nothing from outside reaches this port, over IPv4 and IPv6.
    fn keeps_out(&self, port: u16) -> bool {
        NODE.iter().all(|to| is_denied(&self.outside, to, port))
    }

    /// Waits until connections from outside to this port open, or do not.
    fn until(&self, port: u16, opens: bool) -> Duration {
        let began = Instant::now();
        self.node.eventually("the firewall is in force, or gone", || {
            (is_denied(&self.outside, NODE[0], port) != opens).then_some(())
        });
        began.elapsed()
    }

    /// A mistake leaves the failsafe ports open in both directions, and nothing else.
    fn only_failsafe_ports_live(&self) {
        let (inside, outside) = (&self.node.namespace, &self.outside);
        for port in [22, 6443, 10250] {
            assert!(self.comes_in(port), "in {port}");
            assert!(port == 22 || self.goes_out(port), "out {port}");
        }
        for (from, to, port) in [
            (outside, NODE[0], 68),
            (outside, NODE[1], 546),
            (inside, OUTSIDE[0], 67),
            (inside, OUTSIDE[1], 547),
        ] {
            assert!(answered(from, to, port).is_ok(), "UDP to {to}, {port}");
        }
        // Denied connections wait for their timeout, so they are tried at once.
        std::thread::scope(|scope| {
            for (from, both, ports) in
                [(outside, NODE, &[WEB, 8080][..]), (inside, OUTSIDE, &[22, WEB, 8080])]
            {
                for to in both {
                    for port in ports {
                        scope.spawn(move || assert!(is_denied(from, to, *port), "{to}, {port}"));
                    }
                    scope.spawn(move || assert!(is_silent(from, to, 53), "UDP to {to}"));
                    scope.spawn(move || assert!(!from.pings(to), "ping {to}"));
                }
            }
        });
        // Loopback, and what the node says to itself.
        for to in ["127.0.0.1", "::1", NODE[0], NODE[1]] {
            assert!(connect(inside, to, WEB).is_ok(), "{to}");
        }
    }

    fn everything_lives(&self) {
        for port in [22, 6443, 10250, WEB, 8080] {
            assert!(self.comes_in(port) && self.goes_out(port), "{port}");
        }
        for to in 0..2 {
            assert!(answered(&self.outside, NODE[to], 53).is_ok());
            assert!(answered(&self.node.namespace, OUTSIDE[to], 53).is_ok());
        }
        assert!(self.outside.pings(NODE[0]) && self.node.namespace.pings(OUTSIDE[1]));
    }

    /// Names of the kernel's tables about the node itself.
    fn tables(&self) -> usize {
        self.node.namespace.exec(["nft", "list", "tables"]).matches("podgate-host-").count()
    }
}

fn deny_all() -> Value {
    let everywhere = json!([{"networks": ["0.0.0.0/0", "::/0"]}]);
    json!({"nodes": {"matchLabels": {"role": "edge"}},
        "ingress": [{"action": "Deny", "from": everywhere}],
        "egress": [{"action": "Deny", "to": everywhere}]})
}

/// A mistake, from the object that makes it to the deletion that undoes it.
fn mistake(enforcer: &'static str) {
    let hosts = Hosts::start(enforcer, &[]);
    let node = &hosts.node;
    let (web, web_address) = hosts.pod("web");
    serve(web.namespace(), 8080);
    let (client, _) = hosts.pod("client");
    let reaches = |to: &str, port: u16| connect(client.namespace(), to, port).is_ok();
    let web_address = web_address.to_string();
    node.eventually("pods reach each other", || {
        (!is_denied(client.namespace(), &web_address, 8080)).then_some(())
    });
    hosts.everything_lives();
    assert!(reaches(NODE[0], WEB));
    let from_outside = [(22, true), (8080, false)]
        .map(|(port, lives)| (connect(&hosts.outside, NODE[0], port).unwrap(), lives));
    let own = [(6443, true), (WEB, false)]
        .map(|(port, lives)| (connect(&node.namespace, OUTSIDE[1], port).unwrap(), lives));
    let mut streams: Vec<(TcpStream, bool)> = from_outside.into_iter().chain(own).collect();
    assert!(streams.iter_mut().all(|(stream, _)| echoes(stream)));

    let written = Instant::now();
    hosts.firewall("mistake", deny_all());
    hosts.until(WEB, false);
    println!("{enforcer}: closed {:?} after the object was written", written.elapsed());
    hosts.only_failsafe_ports_live();
    for (stream, lives) in &mut streams {
        let is_right = if *lives { echoes(stream) } else { has_ended(stream) };
        assert!(is_right, "{enforcer}: {stream:?}");
    }
    // Errors about connections: nothing listens at this port over IPv6.
    let refused = answered(&hosts.outside, NODE[1], 68).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "{refused}");
    // The firewall applies to connections to the node, and not to forwarded ones.
    assert!(reaches(&web_address, 8080) && reaches(NODE[0], 10250));
    assert!(is_denied(client.namespace(), NODE[0], WEB));
    let by = "ClusterHostFirewall mistake ingress[0]";
    node.eventually("the denial is observed", || {
        let denied = node.verdicts(&["--verdict", "drop"]);
        let is_it =
            |it: &Value| it["by"][0] == by && it["to"]["ip"] == NODE[0] && it["to"]["port"] == WEB;
        denied.iter().any(is_it).then_some(())
    });
    node.eventually("the status says that it is enforced", || {
        let object = node.api_server().object("clusterhostfirewalls", None, "mistake")?;
        let condition = &object["status"]["conditions"][0];
        (condition["type"] == "podgate.io/Accepted" && condition["status"] == "True").then_some(())
    });

    // The rules outlive the process, and the next one reaches the API server through them.
    node.kill_switch();
    hosts.only_failsafe_ports_live();
    node.start_switch();
    node.eventually("the source is in sync", || {
        (node.status()["source"]["state"] == "in-sync").then_some(())
    });
    hosts.only_failsafe_ports_live();

    // Said twice, of what comes in.
    let mut sure = deny_all();
    sure["failsafePorts"] = json!("Closed");
    sure.as_object_mut().unwrap().remove("egress");
    hosts.firewall("sure", sure);
    hosts.until(22, false);
    for port in [22, 6443, 10250] {
        assert!(hosts.keeps_out(port), "{port}");
    }
    assert!(hosts.goes_out(6443) && hosts.goes_out(10250));
    assert!(OUTSIDE.iter().all(|to| is_denied(&node.namespace, to, 22)));
    assert!(is_silent(&hosts.outside, NODE[0], 68));
    assert!(has_ended(&mut streams[0].0), "ssh");
    assert!(connect(&node.namespace, "127.0.0.1", 22).is_ok());
    node.api_server().delete("clusterhostfirewalls", None, "sure");
    hosts.until(22, true);
    hosts.only_failsafe_ports_live();

    // Undone.
    let deleted = Instant::now();
    node.api_server().delete("clusterhostfirewalls", None, "mistake");
    hosts.until(WEB, true);
    println!("{enforcer}: open {:?} after the object was deleted", deleted.elapsed());
    hosts.everything_lives();
    node.eventually("the tables are gone", || (hosts.tables() == 0).then_some(()));

    // The rules outlive the switch; uninstall removes them.
    hosts.firewall("mistake", deny_all());
    hosts.until(WEB, false);
    drop((web, client));
    assert!(node.stop_switch().success());
    hosts.only_failsafe_ports_live();
    let folder = hosts.leases.path().to_str().unwrap();
    let state = node.state_dir();
    node.namespace.exec([
        PODGATE,
        "uninstall",
        "--state-dir",
        state.to_str().unwrap(),
        "--configuration-folder",
        folder,
        "--plugin-folder",
        folder,
    ]);
    assert_eq!(hosts.tables(), 0);
    hosts.everything_lives();
}

#[test]
fn a_mistake_leaves_the_failsafe_ports_and_is_undone() {
    requires_the_machine!("nft", "ping");
    mistake("afxdp");
}

#[test]
fn a_mistake_leaves_the_failsafe_ports_and_is_undone_with_nftables() {
    requires_the_machine!("nft", "ping", "/usr/lib/cni/ptp");
    mistake("nftables");
}

/// Policies of a pod on the host network that serves two of the node's ports.
fn host_network(enforcer: &'static str) {
    let hosts = Hosts::start(enforcer, &["--host-network-policies", "on"]);
    let node = &hosts.node;
    let exporter = |ports: Value| {
        json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "exporter", "namespace": "monitoring", "labels": {"app": "exporter"}},
            "spec": {"nodeName": "node1", "hostNetwork": true,
                "containers": [{"name": "c", "image": "x", "ports": ports}]},
            "status": {"phase": "Running", "podIPs": [{"ip": NODE[0]}]}})
    };
    let ports = json!([{"name": "web", "containerPort": WEB},
        {"containerPort": 53, "protocol": "UDP"}, {"containerPort": 22}]);
    node.api_server().apply(exporter(ports));
    let (client, _) = hosts.pod("client");
    let policy = |spec: Value| {
        node.api_server()
            .apply(json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"name": "exporter", "namespace": "monitoring"}, "spec": spec}));
    };
    let is_let_in = || !is_denied(client.namespace(), NODE[0], WEB);
    node.eventually("the pod reaches its node", || is_let_in().then_some(()));
    hosts.everything_lives();
    let mut live = connect(&hosts.outside, NODE[0], WEB).unwrap();
    assert!(echoes(&mut live));
    let selector = json!({"matchLabels": {"app": "exporter"}});
    policy(json!({"podSelector": selector, "policyTypes": ["Ingress"]}));
    hosts.until(WEB, false);
    assert!(hosts.keeps_out(WEB) && is_silent(&hosts.outside, NODE[1], 53));
    assert!(has_ended(&mut live) && !is_let_in());
    // Other ports are not the pod's, and one of its own is a failsafe port.
    assert!(hosts.comes_in(8080) && hosts.comes_in(22) && hosts.outside.pings(NODE[0]));
    assert!(hosts.goes_out(WEB) && connect(&node.namespace, NODE[0], WEB).is_ok());
    // By name of a port, from an address outside and from pods.
    let from = json!([{"ipBlock": {"cidr": format!("{}/32", OUTSIDE[0])}},
        {"namespaceSelector": {}, "podSelector": {"matchLabels": {"role": "client"}}}]);
    policy(json!({"podSelector": selector, "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": from, "ports": [{"port": "web"}]}]}));
    hosts.until(WEB, true);
    node.eventually("the pod is let in", || is_let_in().then_some(()));
    assert!(is_denied(&hosts.outside, NODE[1], WEB), "another address");
    assert!(is_silent(&hosts.outside, NODE[0], 53), "another port");
    node.eventually("the open connection goes on", || (!has_ended(&mut live)).then_some(()));
    let fault = "egress of NetworkPolicy monitoring/exporter is not enforced";
    node.eventually("the status says what is not enforced", || {
        let status = node.status();
        let faults = status["faults"].as_array().unwrap();
        faults.iter().any(|it| it.as_str().unwrap().contains(fault)).then_some(())
    });
    assert!(hosts.goes_out(8080), "egress is the node's");
    let by = "default-deny of NetworkPolicy monitoring/exporter";
    node.eventually("denials are observed", || {
        let denied = node.verdicts(&["--verdict", "drop"]);
        let is_it = |it: &Value| it["by"][0] == by && it["to"]["port"] == WEB;
        denied.iter().any(is_it).then_some(())
    });
    // A pod that declares no port cannot be distinguished from its node.
    node.api_server().apply(exporter(json!([])));
    node.eventually("the ports are the node's", || {
        (!is_denied(&hosts.outside, NODE[1], WEB)).then_some(())
    });
    let status = node.status()["faults"].to_string();
    assert!(status.contains("ingress of NetworkPolicy monitoring/exporter"), "{status}");
    node.api_server().apply(exporter(json!([{"containerPort": WEB}])));
    node.eventually("the port is closed", || is_denied(&hosts.outside, NODE[1], WEB).then_some(()));
    node.api_server().delete("networkpolicies", Some("monitoring"), "exporter");
    node.eventually("the tables are gone", || (hosts.tables() == 0).then_some(()));
    hosts.everything_lives();
    assert!(node.status()["faults"].as_array().unwrap().is_empty());
}

#[test]
fn policies_hold_for_host_network_pods_at_their_ports() {
    requires_the_machine!("nft", "ping");
    host_network("afxdp");
}

#[test]
fn policies_hold_for_host_network_pods_at_their_ports_with_nftables() {
    requires_the_machine!("nft", "ping", "/usr/lib/cni/ptp");
    host_network("nftables");
}
