//! A connection between pods of two nodes is opened while both nodes learn of its denial, in
//! either order. What is sent once both have it never arrives.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::{Namespace, TempDir};

use crate::cluster_node::ClusterNode;
use crate::lan::Lan;
use crate::pod::Pod;
use crate::requires_the_machine;
use crate::storm::Raise;

/// Races in each mode.
const ROUNDS: u64 = 20;
/// Time between two datagrams, or writes, of a sender.
const PACE: Duration = Duration::from_millis(1);
const SERVICE: [&str; 2] = ["10.96.0.20", "fd60::20"];
/// The service's port, and its endpoint's.
const PORT: u16 = 7000;

/// One end of the connection, with the bytes it has received.
#[derive(Default)]
struct Received {
    count: AtomicU64,
    /// When the last that arrived was sent, in nanoseconds of the round.
    sent_last: AtomicU64,
}

impl Received {
    fn note(&self, stamp: [u8; 8]) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.sent_last.fetch_max(u64::from_be_bytes(stamp), Ordering::Relaxed);
    }
}

/// A round, as all its threads see it.
struct Race {
    began: Instant,
    stop: AtomicBool,
    /// Bytes that the server and the client have received.
    ends: [Received; 2],
}

impl Race {
    fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Sends the time again and again, and notes the times that come, until the end of the round. A server
    /// sends what it has to say whether it is asked again or not.
    fn datagrams(&self, end: usize, socket: &UdpSocket, mut peer: Option<SocketAddr>) {
        socket.set_read_timeout(Some(PACE)).unwrap();
        let mut stamp = [0; 8];
        while !self.is_over() {
            if let Some(peer) = peer {
                // Errors of a closed receiver or a denial that is told are expected.
                let _ = socket.send_to(&self.now().to_be_bytes(), peer);
            }
            while let Ok((8, from)) = socket.recv_from(&mut stamp) {
                peer.get_or_insert(from);
                self.ends[end].note(stamp);
            }
        }
    }

    /// The same over TCP.
    fn stream(&self, end: usize, mut stream: TcpStream) {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PACE)).unwrap();
        stream.set_write_timeout(Some(PACE)).unwrap();
        let (mut stamp, mut filled) = ([0; 8], 0);
        while !self.is_over() {
            let _ = stream.write(&self.now().to_be_bytes());
            while let Ok(count @ 1..) = stream.read(&mut stamp[filled..]) {
                filled = (filled + count) % 8;
                if filled == 0 {
                    self.ends[end].note(stamp);
                }
            }
        }
    }

    fn serve(&self, namespace: &Namespace, is_tcp: bool) {
        let any = SocketAddr::new("::".parse().unwrap(), PORT);
        if !is_tcp {
            let socket = namespace.enter(|| UdpSocket::bind(any).unwrap());
            return self.datagrams(0, &socket, None);
        }
        let listener = namespace.enter(|| TcpListener::bind(any).unwrap());
        listener.set_nonblocking(true).unwrap();
        while !self.is_over() {
            if let Ok((stream, _)) = listener.accept() {
                stream.set_nonblocking(false).unwrap();
                return self.stream(0, stream);
            }
            std::thread::sleep(PACE);
        }
    }

    fn open(&self, namespace: &Namespace, to: SocketAddr, is_tcp: bool) {
        if !is_tcp {
            let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            let socket = namespace.enter(|| UdpSocket::bind(any).unwrap());
            return self.datagrams(1, &socket, Some(to));
        }
        let limit = Duration::from_millis(500);
        if let Ok(stream) = namespace.enter(|| TcpStream::connect_timeout(&to, limit)) {
            self.stream(1, stream);
        }
    }
}

/// Closes a pod in these directions.
fn isolated(name: &str, pod: &str, directions: &[&str]) -> Value {
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"podSelector": {"matchLabels": {"role": pod}}, "policyTypes": directions}})
}

/// A service in front of a pod, in both families.
fn serve_by_service(lan: &Lan, pod: &Pod<'_>) {
    for (name, family, at, pod) in
        [("four", "IPv4", SERVICE[0], pod.v4()), ("six", "IPv6", SERVICE[1], pod.v6())]
    {
        let name = format!("race-{name}");
        let metadata = json!({"name": name, "namespace": "default",
            "labels": {"kubernetes.io/service-name": name}});
        let ports = |port: &str| json!([{"name": "u", "protocol": "UDP", port: PORT}, {"name": "t", port: PORT}]);
        lan.write(
            &format!("{name}-slice"),
            &json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "addressType": family, "metadata": metadata, "ports": ports("port"),
                "endpoints": [{"addresses": [pod], "conditions": {"ready": true}}]}),
        );
        lan.apply(
            &name,
            &json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata,
                "spec": {"clusterIPs": [at], "ports": ports("port")}}),
        );
    }
}

/// The denials of a node: a folder of its own beside the manifests that all share.
struct Denials<'a> {
    node: &'a ClusterNode,
    folder: &'a TempDir,
}

impl Denials<'_> {
    fn set(&self, denials: &[Value]) {
        let next = self.folder.path().join(".denials");
        let list = json!({"apiVersion": "v1", "kind": "List", "items": denials});
        std::fs::write(&next, list.to_string()).unwrap();
        std::fs::rename(next, self.folder.path().join("denials.yaml")).unwrap();
    }

    /// Waits until so many are in force.
    fn wait(&self, count: usize) {
        self.node.eventually("the denials", || {
            let status = self.node.status();
            let known = status["objects"]["NetworkPolicy"].as_u64().unwrap_or_default();
            let is_in_force = status["generation"] == status["generation_in_force"];
            (known == count as u64 && is_in_force).then_some(())
        });
    }
}

/// The order of a round: which end learns first, how long before the other, and when the client begins.
fn race(mode: &str, seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut lan = Lan::start(&["--flow-offload", mode]);
    let folders = [TempDir::new("denials"), TempDir::new("denials")];
    for (node, folder) in lan.nodes.iter_mut().zip(&folders) {
        let own = folder.path().to_str().unwrap();
        assert!(node.stop_switch().success());
        node.set_arguments(&["--uplink", "eth0", "--flow-offload", mode, "--manifests", own]);
        node.start_switch();
    }
    let pods = [lan.nodes[0].pod("one", "one"), lan.nodes[1].pod("two", "two")];
    serve_by_service(&lan, &pods[1]);
    let denials = [0, 1].map(|n| Denials { node: &lan.nodes[n], folder: &folders[n] });
    let (mut opened, mut shut_out) = (0, 0);
    // Time until a denial is in force, by the round before: the connection begins within twice as long.
    let mut takes = Duration::from_millis(50);
    for round in 0.. {
        if round >= ROUNDS && opened > 0 && shut_out > 0 {
            break;
        }
        assert!(round < 5 * ROUNDS, "{opened} {shut_out}: there was no race");
        // The service leads to the second pod; without it either is the server.
        let (by_service, is_tcp, is_v6) = (rng.bool(), rng.bool(), rng.bool());
        let server = if by_service { 1 } else { rng.usize(..2) };
        let to: IpAddr = match (by_service, is_v6) {
            (true, _) => SERVICE[usize::from(is_v6)].parse().unwrap(),
            (false, true) => pods[server].v6(),
            (false, false) => pods[server].v4(),
        };
        let roles = ["one", "two"];
        let closed = |name, pod: usize| isolated(name, roles[pod], &["Ingress", "Egress"]);
        // One end alone, as far as the direction of the connection goes, or both.
        let wanted = match rng.u8(..3) {
            0 => vec![isolated("a", roles[server], &["Ingress"])],
            1 => vec![isolated("a", roles[1 - server], &["Egress"])],
            _ => vec![closed("a", 0), closed("b", 1)],
        };
        let (first, apart) = (rng.usize(..2), Duration::from_micros(rng.u64(..20_000)));
        let begins = takes.mul_f64(2.0 * rng.f64());
        let race =
            Race { began: Instant::now(), stop: AtomicBool::new(false), ends: Default::default() };
        let (race, pods, denials, wanted) = (&race, &pods, &denials, &wanted);
        let denied_at = std::thread::scope(|scope| {
            let _stopping = Raise(&race.stop);
            scope.spawn(move || race.serve(&pods[server].namespace, is_tcp));
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(20) + begins);
                race.open(&pods[1 - server].namespace, SocketAddr::new(to, PORT), is_tcp);
            });
            std::thread::sleep(Duration::from_millis(40));
            let written = Instant::now();
            denials[first].set(wanted);
            std::thread::sleep(apart);
            denials[1 - first].set(wanted);
            denials.iter().for_each(|it| it.wait(wanted.len()));
            let denied_at = race.now();
            takes = written.elapsed();
            std::thread::sleep(Duration::from_millis(400));
            denied_at
        });
        for (end, received) in ["server", "client"].iter().zip(&race.ends) {
            let last = received.sent_last.load(Ordering::Relaxed);
            assert!(
                last <= denied_at,
                "{mode} {seed} {round}: the {end} got what was sent {} µs after the denial; {to}, \
                 tcp {is_tcp}, {wanted:?}",
                (last - denied_at) / 1000
            );
        }
        match race.ends[0].count.load(Ordering::Relaxed) {
            0 => shut_out += 1,
            _ => opened += 1,
        }
        denials.iter().for_each(|it| it.set(&[]));
        denials.iter().for_each(|it| it.wait(0));
    }
    println!("{mode}: {opened} connections were open before the denial, {shut_out} were not");
}

#[test]
fn nothing_passes_once_both_ends_have_a_denial() {
    requires_the_machine!();
    for mode in ["on", "off"] {
        race(mode, 0x5eed);
    }
}
