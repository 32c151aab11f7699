//! Flow offload: programs in the kernel forward what the switch has allowed, and nothing longer than
//! it allows it.

mod checksums;
mod following;
mod handshake;
mod host;
mod questions;
mod services;
mod sharing;
mod short;
mod uplink;

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::net::sockopt;
use serde_json::Value;
use testkit::Namespace;

use crate::cluster_node::{BLOCKED, PATIENCE};
use crate::pod::Pod;
use crate::policies::nothing_in;
use crate::storm::Raise;
use crate::{ClusterNode, requires_the_machine};

const ON: [&str; 2] = ["--flow-offload", "on"];

fn connect_to_redis(client: &Pod<'_>, server: IpAddr) -> TcpStream {
    let connect = || TcpStream::connect_timeout(&SocketAddr::new(server, 6379), PATIENCE);
    let stream = client.namespace.enter(connect).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// The status of flow offload.
fn offload(node: &ClusterNode) -> Value {
    node.status()["flow_offload"].clone()
}

fn forwarded(node: &ClusterNode) -> u64 {
    offload(node)["packets"].as_u64().unwrap()
}

fn bytes(node: &ClusterNode) -> u64 {
    offload(node)["bytes"].as_u64().unwrap()
}

fn connections(node: &ClusterNode) -> u64 {
    offload(node)["connections"].as_u64().unwrap()
}

/// TCP segments that a pod's kernel got, of both families.
fn arrived(pod: &Pod<'_>) -> u64 {
    let text = pod.namespace.exec(["cat", "/proc/net/snmp"]);
    let mut lines = text.lines().filter(|line| line.starts_with("Tcp:"));
    let place = lines.next().unwrap().split(' ').position(|name| name == "InSegs").unwrap();
    lines.next().unwrap().split(' ').nth(place).unwrap().parse().unwrap()
}

/// The same once those that are under way have arrived.
fn settled(pod: &Pod<'_>) -> u64 {
    testkit::eventually("silence", || {
        let before = arrived(pod);
        std::thread::sleep(Duration::from_millis(50));
        (arrived(pod) == before).then_some(before)
    })
}

/// A stream of datagrams that carry the moment at which they were sent.
struct Stream {
    began: Instant,
    /// The latest such moment among those that have arrived, in nanoseconds since the beginning.
    last: AtomicU64,
}

impl Stream {
    fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    fn last(&self) -> u64 {
        self.last.load(Ordering::Relaxed)
    }

    /// Checks for a moment that nothing arrives that was sent from now on. What is under way still does, however
    /// long a busy machine keeps it.
    fn assert_silence(&self, what: &str) {
        let begin = self.now();
        std::thread::sleep(Duration::from_millis(300));
        let last = self.last();
        assert!(last <= begin, "{what}: sent {} µs after the denial", (last - begin) / 1000);
    }
}

/// Streams to an address of a pod, as fast as the kernel can, for as long as `work` takes.
fn while_streaming<T>(
    from: &Pod<'_>,
    (to, address): (&Pod<'_>, IpAddr),
    work: impl FnOnce(&Stream) -> T,
) -> T {
    let stop = AtomicBool::new(false);
    let stream = Stream { began: Instant::now(), last: AtomicU64::new(0) };
    let at = SocketAddr::new(address, 9999);
    let receiver = to.namespace.enter(|| UdpSocket::bind(at).unwrap());
    receiver.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    sockopt::set_socket_recv_buffer_size_force(&receiver, 8 << 20).unwrap();
    std::thread::scope(|scope| {
        let _stopping = Raise(&stop);
        let inside: &Namespace = &from.namespace;
        let (stop, stream) = (&stop, &stream);
        scope.spawn(move || {
            inside.enter(|| {
                let any: SocketAddr = match address {
                    IpAddr::V4(_) => "0.0.0.0:0".parse().unwrap(),
                    IpAddr::V6(_) => "[::]:0".parse().unwrap(),
                };
                let socket = UdpSocket::bind(any).unwrap();
                socket.connect(at).unwrap();
                while !stop.load(Ordering::Relaxed) {
                    // Errors of a full queue are expected.
                    let _ = socket.send(&stream.now().to_be_bytes());
                }
            });
        });
        scope.spawn(move || {
            let mut sent = [0; 8];
            while !stop.load(Ordering::Relaxed) {
                if let Ok(8) = receiver.recv(&mut sent) {
                    stream.last.fetch_max(u64::from_be_bytes(sent), Ordering::Relaxed);
                }
            }
        });
        work(stream)
    })
}

fn iperf3(client: &Pod<'_>, server: &Pod<'_>, to: IpAddr, options: &[&str]) -> f64 {
    let listener = server.namespace.spawn(["iperf3", "-s", "-1", "--forceflush"]);
    listener.wait_for_line("Server listening", PATIENCE);
    let to = to.to_string();
    let command = [&["iperf3", "-J", "-t", "2", "-c", &to], options].concat();
    let result: Value = serde_json::from_str(&client.namespace.exec(command)).unwrap();
    let end = &result["end"];
    let received = if options.contains(&"-u") { &end["sum"] } else { &end["sum_received"] };
    received["bytes"].as_f64().unwrap_or_else(|| panic!("{result}"))
}

#[test]
fn streams_take_the_kernels_way_in_both_families() {
    requires_the_machine!("iperf3");
    let node = ClusterNode::start(&ON);
    let (client, server) = (node.pod("client", "client"), node.pod("server", "server"));
    for to in [server.v4(), server.v6()] {
        for options in [&[][..], &["-R"], &["-u", "-b", "50M"]] {
            let before = bytes(&node);
            let received = iperf3(&client, &server, to, options);
            let by_kernel = (bytes(&node) - before) as f64;
            assert!(by_kernel > received / 2.0, "{to} {options:?}: {by_kernel} of {received}");
        }
    }
    let status = node.status();
    let ports = status["ports"].as_array().unwrap();
    let port = ports.iter().find(|port| port["name"] == "default/client").unwrap();
    assert_eq!(port["mode"], "flow offload");
    assert_eq!(status["flow_offload"]["no_port"], 0);
    // Connections that have ended are no longer forwarded.
    node.eventually("the end of TCP's entries", || (connections(&node) <= 2).then_some(()));
}

#[test]
fn a_service_is_translated_by_the_kernel() {
    requires_the_machine!("iperf3");
    let node = ClusterNode::start(&ON);
    let (client, server) = (node.pod("client", "client"), node.pod("server", "server"));
    for (n, (service, backend)) in
        [("10.96.0.10", server.v4()), ("fd60::10", server.v6())].into_iter().enumerate()
    {
        let family = if backend.is_ipv4() { "IPv4" } else { "IPv6" };
        node.apply(
            &format!("service{n}"),
            &format!(
                "
apiVersion: v1
kind: Service
metadata: {{name: web{n}, namespace: default}}
spec:
  clusterIP: \"{service}\"
  clusterIPs: [\"{service}\"]
  ports: [{{name: any, port: 5201}}, {{name: udp, port: 5201, protocol: UDP}}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
addressType: {family}
metadata: {{name: web{n}, namespace: default, labels: {{kubernetes.io/service-name: web{n}}}}}
endpoints: [{{addresses: [\"{backend}\"], conditions: {{ready: true}}}}]
ports: [{{name: any, port: 5201}}, {{name: udp, port: 5201, protocol: UDP}}]
"
            ),
        );
        for options in [&[][..], &["-R"], &["-u", "-b", "50M"]] {
            let before = bytes(&node);
            let received = iperf3(&client, &server, service.parse().unwrap(), options);
            let by_kernel = (bytes(&node) - before) as f64;
            assert!(by_kernel > received / 2.0, "{service} {options:?}: {by_kernel} of {received}");
        }
    }
}

/// Once the snapshot is in force, nothing arrives that is sent.
#[test]
fn a_denial_holds_from_the_next_packet_of_a_stream_at_full_speed() {
    requires_the_machine!();
    let node = ClusterNode::start(&ON);
    let (client, server) = (node.pod("client", "client"), node.pod("server", "server"));
    for round in 0..6 {
        let to = if round % 2 == 0 { server.v4() } else { server.v6() };
        while_streaming(&client, (&server, to), |stream| {
            let before = forwarded(&node);
            node.eventually("the kernel's way", || {
                (forwarded(&node) > before + 1000).then_some(())
            });
            // A change that concerns neither end leaves the stream where it is.
            let stale = || offload(&node)["punted"]["old-generation"].as_u64().unwrap();
            let old = stale();
            node.apply("elsewhere", &nothing_in("nobody"));
            assert_eq!(stale(), old, "a change elsewhere sends nothing to the switch");
            node.withdraw("elsewhere");
            node.apply("policy", &nothing_in("server"));
            stream.assert_silence(&format!("round {round}"));
            let then = stream.now();
            node.withdraw("policy");
            node.eventually("packets again", || (stream.last() > then).then_some(()));
        });
    }
    assert!(
        node.verdicts(&["--verdict", "dropped"]).iter().any(|it| it["reason"] == "policy-denied")
    );
}

/// One question to a redis server over a connection.
fn asks(connection: &mut TcpStream) -> std::io::Result<()> {
    connection.write_all(b"PING\r\n")?;
    let mut answer = [0; 7];
    connection.read_exact(&mut answer)?;
    assert_eq!(&answer, b"+PONG\r\n");
    Ok(())
}

/// Waits until the kernel forwards a connection.
fn wait_for_offload(node: &ClusterNode, connection: &mut TcpStream) {
    node.eventually("the kernel's way", || {
        let before = forwarded(node);
        asks(connection).unwrap();
        (forwarded(node) > before).then_some(())
    });
}

#[test]
fn connections_outlive_the_switch_for_the_grace_alone() {
    requires_the_machine!("redis-server");
    let with_grace = |grace| [&ON[..], &["--flow-offload-grace", grace]].concat();
    let mut node = ClusterNode::start(&with_grace("1h"));
    // Pods without the node borrowed, which is restarted.
    let (client, server) = (Namespace::new("client"), Namespace::new("server"));
    let address = |node: &ClusterNode, name: &str, namespace: &Namespace| -> IpAddr {
        node.write(
            &format!("pod-{name}"),
            &format!(
                "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: default, labels: \
                 {{role: {name}}}}}, spec: {{nodeName: node1, containers: [{{name: c, image: x}}]}}}}"
            ),
        );
        let output = node.plugin("ADD", name, namespace);
        let result: Value = serde_json::from_slice(&output.stdout).unwrap();
        let address = result["ips"][0]["address"].as_str().unwrap_or_else(|| panic!("{result}"));
        address.split('/').next().unwrap().parse().unwrap()
    };
    address(&node, "client", &client);
    let to = SocketAddr::new(address(&node, "server", &server), 6379);
    let redis = "redis-server --bind * -::* --protected-mode no --save  --daemonize no";
    let redis = server.spawn(redis.split(' '));
    redis.wait_for_line("Ready to accept connections", PATIENCE);
    let connect = |patience| client.enter(|| TcpStream::connect_timeout(&to, patience));
    let mut connection = connect(PATIENCE).unwrap();
    connection.set_read_timeout(Some(PATIENCE)).unwrap();
    wait_for_offload(&node, &mut connection);
    node.kill_switch();
    for _ in 0..200 {
        asks(&mut connection).unwrap();
    }
    // Templates open some for a moment.
    node.eventually("new connections wait for the switch", || connect(BLOCKED).err());
    // The next one takes over without a break, also from one that ends in order.
    node.start_switch();
    wait_for_offload(&node, &mut connection);
    assert!(node.stop_switch().success());
    asks(&mut connection).unwrap();
    node.set_arguments(&with_grace("1s"));
    node.start_switch();
    wait_for_offload(&node, &mut connection);
    node.kill_switch();
    connection.set_read_timeout(Some(BLOCKED)).unwrap();
    node.eventually("the end of the grace", || asks(&mut connection).err());
    // What was not answered is sent again by the client's kernel.
    node.start_switch();
    connection.set_read_timeout(Some(PATIENCE)).unwrap();
    connection.read_exact(&mut [0; 7]).unwrap();
    wait_for_offload(&node, &mut connection);
    for (name, namespace) in [("client", &client), ("server", &server)] {
        assert!(node.plugin("DEL", name, namespace).status.success());
    }
}

/// Without its program a pod is cut off until it has it again.
#[test]
fn a_program_that_is_taken_off_comes_back() {
    requires_the_machine!("ping");
    let node = ClusterNode::start(&ON);
    let (a, b) = (node.pod("a", "a"), node.pod("b", "b"));
    assert!(a.pings(b.v4()));
    let path = format!("/sys/class/net/{}/ifindex", a.host_interface);
    let index: u32 = node.namespace.exec(["cat", &path]).trim().parse().unwrap();
    node.namespace.enter(|| {
        flow_offload::recognize_programs([index]);
        flow_offload::Kernel::release(index);
    });
    node.eventually("the loss", || (node.status()["ports_lost"].as_u64() > Some(0)).then_some(()));
    node.eventually("the program", || a.pings(b.v4()).then_some(()));
}

#[test]
fn a_punt_link_that_is_deleted_is_made_anew() {
    requires_the_machine!("ping");
    let node = ClusterNode::start(&ON);
    let (a, b) = (node.pod("a", "a"), node.pod("b", "b"));
    assert!(a.pings(b.v4()));
    node.namespace.exec(["ip", "link", "delete", "podgate-pods"]);
    node.eventually("the punt link", || {
        let is_there = node.namespace.try_exec(["ip", "link", "show", "podgate-pods"]);
        (is_there.status.success() && a.pings(b.v4())).then_some(())
    });
    assert_eq!(offload(&node)["state"], "on");
}

/// Whichever mode the switch was in before, the pods go on.
#[test]
fn modes_change_with_a_restart() {
    requires_the_machine!("ping");
    let mut node = ClusterNode::start(&[]);
    let (a, b) = (Namespace::new("a"), Namespace::new("b"));
    let mut addresses = Vec::new();
    for (name, namespace) in [("a", &a), ("b", &b)] {
        node.write(
            &format!("pod-{name}"),
            &format!(
                "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: default}}, \
                 spec: {{nodeName: node1, containers: [{{name: c, image: x}}]}}}}"
            ),
        );
        let output = node.plugin("ADD", name, namespace);
        let result: Value = serde_json::from_slice(&output.stdout).unwrap();
        let address = result["ips"][0]["address"].as_str().unwrap().to_owned();
        addresses.push(address.split('/').next().unwrap().to_owned());
    }
    let pings = || a.pings(&addresses[1]);
    assert!(pings());
    for mode in ["on", "off", "on"] {
        node.kill_switch();
        node.set_arguments(&["--flow-offload", mode]);
        node.start_switch();
        assert!(pings(), "{mode}");
        assert_eq!(offload(&node)["state"], mode);
        // Connections of the node that an earlier switch allowed end with the next one.
        let filters = ["tc", "filter", "show", "dev", "podgate-host", "egress"];
        let filters = node.namespace.exec(filters);
        assert_eq!(filters.matches("podgate:from_host").count(), usize::from(mode == "on"));
    }
    for (name, namespace) in [("a", &a), ("b", &b)] {
        assert!(node.plugin("DEL", name, namespace).status.success());
    }
}
