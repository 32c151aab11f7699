//! Replies to denied connections, with real clients: `--denied-reply` and its annotation.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use serde_json::{Value, json};
use testkit::{Namespace, TempDir};

use crate::cluster_node::{ClusterNode, PATIENCE};
use crate::foreign::Foreign;
use crate::lan::Lan;
use crate::pod::Pod;
use crate::requires_the_machine;

/// Denies all connections to the database.
fn closed() -> String {
    let spec = json!({"podSelector": {"matchLabels": {"role": "db"}}, "policyTypes": ["Ingress"]});
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": "closed", "namespace": "default"}, "spec": spec})
    .to_string()
}

/// Denies all connections of the client.
fn silent() -> String {
    let client = json!({"matchLabels": {"role": "client"}});
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": "silent", "namespace": "default"},
        "spec": {"podSelector": client, "policyTypes": ["Egress"]}})
    .to_string()
}

fn namespace(reply: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata":
        {"name": "default", "annotations": {"podgate.io/denied-reply": reply}}})
}

/// The result of a TCP connection.
fn dial(from: &Pod<'_>, to: IpAddr) -> Option<ErrorKind> {
    from.try_connect(to, 6379).err().map(|error| error.kind())
}

/// The result of a question over UDP.
fn ask(from: &Namespace, to: IpAddr) -> ErrorKind {
    let socket = || {
        let local: IpAddr = if to.is_ipv4() { [0, 0, 0, 0].into() } else { [0; 16].into() };
        let socket = UdpSocket::bind((local, 0))?;
        socket.connect((to, 53))?;
        Ok::<_, std::io::Error>(socket)
    };
    let socket = linux_net::in_namespace(from.path(), socket).unwrap().unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.send(b"question").unwrap();
    socket.recv(&mut [0; 16]).expect_err("nobody answers").kind()
}

#[test]
fn a_denied_client_is_told_at_once() {
    requires_the_machine!();
    let node = ClusterNode::start(&["--denied-reply", "reject"]);
    let (db, client) = (node.pod("db", "db"), node.pod("client", "client"));
    // Nothing listens there: what answers is not the pod's kernel, which takes nothing in.
    node.apply("policy", &closed());
    for to in [db.v4(), db.v6()] {
        assert_eq!(dial(&client, to), Some(ErrorKind::ConnectionRefused));
    }
    assert_eq!(ask(&client.namespace, db.v4()), ErrorKind::HostUnreachable);
    let prohibited = ask(&client.namespace, db.v6());
    assert_eq!(prohibited, ErrorKind::PermissionDenied, "EACCES, as RFC 4443 code 1 is reported");
    let denied = node.verdicts(&["--verdict", "dropped", "--from-pod", "default/client"]);
    let last = denied.last().expect("a verdict");
    assert_eq!(last["reason"], "policy-denied");
    assert_eq!(last["by"][0], "default-deny of NetworkPolicy default/closed");
    // The namespace decides about its own pods' policies.
    node.apply("namespace", &namespace("drop").to_string());
    assert_eq!(dial(&client, db.v4()), Some(ErrorKind::TimedOut));
    node.apply("namespace", &namespace("reject").to_string());
    assert_eq!(dial(&client, db.v4()), Some(ErrorKind::ConnectionRefused));
    // Its fault keeps it silent, and closes no pod.
    node.apply("namespace", &namespace("Reject").to_string());
    assert_eq!(dial(&client, db.v4()), Some(ErrorKind::TimedOut));
    assert!(node.status()["faults"].to_string().contains("podgate.io/denied-reply"));
    node.withdraw("policy");
    assert_eq!(dial(&client, db.v4()), Some(ErrorKind::ConnectionRefused), "by the pod's kernel");
}

/// The end that waits learns of it when the other one sends.
#[test]
fn a_denial_resets_both_ends_of_a_live_connection() {
    requires_the_machine!();
    let node = ClusterNode::start(&["--denied-reply", "reject"]);
    let (db, client) = (node.pod("db", "db"), node.pod("client", "client"));
    for (index, server_sends) in [false, true].into_iter().enumerate() {
        let listening = SocketAddr::new(db.v4(), 6379 + index as u16);
        let listen = || TcpListener::bind(listening).unwrap();
        let listener = linux_net::in_namespace(db.namespace.path(), listen).unwrap();
        let mut near = client.connect(listening.ip(), listening.port()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        let mut byte = [0];
        // Long enough for the kernel to forward it where flows are offloaded.
        for _ in 0..50 {
            near.write_all(b"x").unwrap();
            far.read_exact(&mut byte).unwrap();
            far.write_all(b"y").unwrap();
            near.read_exact(&mut byte).unwrap();
        }
        let (sender, waiting) =
            if server_sends { (&mut far, &mut near) } else { (&mut near, &mut far) };
        waiting.set_read_timeout(Some(PATIENCE)).unwrap();
        sender.set_read_timeout(Some(PATIENCE)).unwrap();
        node.apply("policy", &closed());
        // A late acknowledgement may have been the denied packet already.
        let reset = sender.write_all(b"z").and_then(|()| sender.read(&mut byte));
        assert_eq!(reset.unwrap_err().kind(), ErrorKind::ConnectionReset);
        assert_eq!(waiting.read(&mut byte).unwrap_err().kind(), ErrorKind::ConnectionReset);
        node.withdraw("policy");
    }
}

#[test]
fn a_client_on_another_cluster_node_is_told_too() {
    requires_the_machine!();
    for underlay in ["vxlan", "routed"] {
        let lan = Lan::start(&["--underlay", underlay, "--denied-reply", "reject"]);
        let (client, db) = (lan.nodes[0].pod("client", "client"), lan.nodes[1].pod("db", "db"));
        lan.apply("policy", &serde_json::from_str(&closed()).unwrap());
        assert_eq!(dial(&client, db.v4()), Some(ErrorKind::ConnectionRefused), "{underlay}");
        let unreachable = ask(&client.namespace, db.v4());
        assert_eq!(unreachable, ErrorKind::HostUnreachable, "{underlay}");
    }
}

#[test]
fn nftables_replies_as_the_switch_does() {
    requires_the_machine!("nft", "/usr/lib/cni/bridge", "/usr/lib/cni/ptp");
    ["ptp", "bridge"].into_iter().for_each(nftables_replies);
}

fn nftables_replies(plugin: &str) {
    let node = ClusterNode::start(&["--enforcer", "nftables", "--denied-reply", "reject"]);
    let folder = TempDir::new("ipam");
    let forwarding = ["net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"];
    node.namespace.exec(["sysctl", "-qw"].into_iter().chain(forwarding));
    let pod = |name: &str| Foreign::new(&node, plugin, folder.path(), name);
    let (db, client) = (pod("db"), pod("client"));
    db.serve();
    for (pod, role) in [(&db, "db"), (&client, "client")] {
        node.write(&pod.name, &pod.object(json!({"role": role})).to_string());
    }
    let dial = |v6: bool| {
        let to = SocketAddr::new(db.address(v6), 8080);
        let connect = || TcpStream::connect_timeout(&to, PATIENCE);
        linux_net::in_namespace(client.namespace.path(), connect).unwrap()
    };
    node.eventually("the pods are open", || dial(false).ok());
    // Behind a service, as kube-proxy translates it.
    let service: IpAddr = "10.96.0.1".parse().unwrap();
    let translate = format!("ip daddr {service} dnat to {}", db.address(false));
    for command in [
        "add table ip proxy",
        "add chain ip proxy pre { type nat hook prerouting priority dstnat; }",
        &format!("add rule ip proxy pre {translate}"),
    ] {
        node.namespace.exec(["nft", command]);
    }
    let listeners = [false, true].map(|v6| {
        let at = SocketAddr::new(db.address(v6), 6379);
        linux_net::in_namespace(db.namespace.path(), || TcpListener::bind(at).unwrap()).unwrap()
    });
    let pair = |to: IpAddr| {
        let connect = || TcpStream::connect_timeout(&SocketAddr::new(to, 6379), PATIENCE).unwrap();
        let near = linux_net::in_namespace(client.namespace.path(), connect).unwrap();
        let (far, _) = listeners[usize::from(to.is_ipv6())].accept().unwrap();
        (near, far)
    };
    let addresses = [db.address(false), db.address(true), service];
    // Two connections of each address: the client sends on the first, the server on the second.
    let connections = addresses.map(|to| [(to, pair(to)), (to, pair(to))]);
    let (_idle, mut probing) = pair(db.address(false));
    node.write("policy", &closed());
    node.eventually("the denial is in force", || {
        (dial(false).err()?.kind() == ErrorKind::ConnectionRefused).then_some(())
    });
    assert_eq!(dial(true).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    assert_eq!(ask(&client.namespace, db.address(false)), ErrorKind::HostUnreachable);
    // Both ends are reset whichever one sends; bytes sent after the policy are not delivered.
    for [(to, (near, far)), (_, (near_2, far_2))] in connections {
        for (mut sender, mut other) in [(near, far), (far_2, near_2)] {
            sender.write_all(b"x").unwrap();
            let from = sender.local_addr().unwrap();
            assert_eq!(told(&mut sender), ErrorKind::ConnectionReset, "{plugin} {to}, {from} sent");
            assert_eq!(told(&mut other), ErrorKind::ConnectionReset, "{plugin} {to}, {from} sent");
        }
    }
    // An end that only waits is told by its own keepalive probe.
    keep_alive(&probing);
    assert_eq!(told(&mut probing), ErrorKind::ConnectionReset);
    // Nor does a process of the node wait on when its pod may no longer reach it.
    let route = client.namespace.exec(["ip", "-j", "route", "get", "198.51.100.1"]);
    let route: Value = serde_json::from_str(&route).unwrap();
    let at = SocketAddr::new(route[0]["gateway"].as_str().unwrap().parse().unwrap(), 6379);
    let listen = || TcpListener::bind(at).unwrap();
    let listener = linux_net::in_namespace(node.namespace.path(), listen).unwrap();
    let connect = || TcpStream::connect_timeout(&at, PATIENCE);
    let dial = || linux_net::in_namespace(client.namespace.path(), connect).unwrap();
    let pair = || (dial().unwrap(), listener.accept().unwrap().0);
    let ((near, far), (near_2, far_2)) = (pair(), pair());
    node.write("silent", &silent());
    node.eventually("the denial is in force", || {
        (dial().err()?.kind() == ErrorKind::ConnectionRefused).then_some(())
    });
    for (mut sender, mut other) in [(near, far), (far_2, near_2)] {
        sender.write_all(b"x").unwrap();
        assert_eq!(told(&mut sender), ErrorKind::ConnectionReset, "{at}");
        assert_eq!(told(&mut other), ErrorKind::ConnectionReset, "{at}");
    }
}

/// The error by which a waiting end learns that its connection has ended.
fn told(end: &mut TcpStream) -> ErrorKind {
    end.set_read_timeout(Some(PATIENCE)).unwrap();
    end.read(&mut [0]).unwrap_err().kind()
}

/// Lets the kernel probe an idle connection after a second.
fn keep_alive(end: &TcpStream) {
    rustix::net::sockopt::set_tcp_keepidle(end, Duration::from_secs(1)).unwrap();
    rustix::net::sockopt::set_tcp_keepintvl(end, Duration::from_secs(1)).unwrap();
    rustix::net::sockopt::set_socket_keepalive(end, true).unwrap();
}
