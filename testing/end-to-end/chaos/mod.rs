//! Faults at random moments, while denied pods try all the time and a connection goes on.
//!
//! The switch is killed under a flood, during ADD, DEL and changes of policies; it is stopped and
//! continued, runs out of file descriptors and of disk, finds its saved state damaged, loses the
//! API server, and its wall clock jumps by an hour. Through all of it the server must receive nothing from the stranger, and the friend's
//! connection must go on with every byte once the switch is back. With either enforcer.
//!
//! `PODGATE_CHAOS_SECONDS`, `PODGATE_CHAOS_SEED` and `PODGATE_TEST_FLOW_OFFLOAD` choose length, order and mode; `scripts/chaos` sets
//! them. The wall clock is the whole machine's, and no namespace has one of its own, so libfaketime
//! stands between the switch and its clock.

mod faults;

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use fastrand::Rng;
use serde_json::{Value, json};
use testkit::{Namespace, RawSender, TempDir, packet, requires};

use crate::cluster_node::{BLOCKED, PATIENCE};
use crate::foreign::AnyPod;
use crate::hostile::mac;
use crate::storm::Raise;
use crate::{ClusterNode, requires_the_machine};
use faults::{FAULTS, SmallDisk, Stage};

/// Debian's libfaketime.
const FAKETIME: &str = if cfg!(target_arch = "aarch64") {
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1"
} else {
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1"
};

/// Ports the server receives on.
const TCP: u16 = 7000;
const UDP: u16 = 7001;

/// Lets the friend in to the server, and pods of another role that changes all the time.
fn policy(other: u64) -> Value {
    let from = |role: &str| json!({"podSelector": {"matchLabels": {"role": role}}});
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": "server", "namespace": "default"},
        "spec": {"podSelector": {"matchLabels": {"role": "server"}},
            "ingress": [{"from": [from("friend"), from(&format!("nobody-{other}"))]}]}})
}

/// Bytes received by the server, and connections tried by the stranger.
#[derive(Default)]
struct Counts {
    stop: AtomicBool,
    /// From the friend and from others.
    friends: AtomicU64,
    strangers: AtomicU64,
    attempts: AtomicU64,
}

impl Counts {
    fn receives(&self, from: IpAddr, friend: &[IpAddr]) {
        let counter = if friend.contains(&from) { &self.friends } else { &self.strangers };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Acquire)
    }
}

/// Counts every connection and datagram that reaches the server, by sender.
fn serve(server: &Namespace, at: IpAddr, friend: &[IpAddr], counts: &Counts) {
    server.enter(|| {
        let listener = TcpListener::bind((at, TCP)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let socket = UdpSocket::bind((at, UDP)).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let mut buffer = [0; 64];
        while counts.goes_on() {
            if let Ok((_, from)) = listener.accept() {
                counts.receives(from.ip(), friend);
            }
            match socket.recv_from(&mut buffer) {
                Ok((_, from)) => counts.receives(from.ip(), friend),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock) => {}
                Err(error) => panic!("receive: {error}"),
            }
        }
    });
}

/// Tries to reach the server without a pause.
fn intrude(stranger: &Namespace, servers: &[IpAddr], counts: &Counts) {
    stranger.enter(|| {
        let sockets = ["0.0.0.0:0", "[::]:0"].map(|any| UdpSocket::bind(any).unwrap());
        while counts.goes_on() {
            for server in servers {
                // While the switch is down, the pod's kernel may refuse to send.
                let _ = sockets[usize::from(server.is_ipv6())].send_to(b"x", (*server, UDP));
                let to = SocketAddr::new(*server, TCP);
                let _ = TcpStream::connect_timeout(&to, Duration::from_millis(10));
                counts.attempts.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
}

/// Sends denied packets of ever new flows, a few thousand a second.
fn flood(pod: &AnyPod<'_>, server: IpAddr, counts: &Counts) {
    let me = pod.v4();
    let AnyPod::Ours(pod) = pod else {
        return pod.namespace().enter(|| {
            while counts.goes_on() {
                for _ in 0..32 {
                    let socket = UdpSocket::bind((me, 0)).unwrap();
                    let _ = socket.send_to(b"x", (server, UDP));
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        });
    };
    let own = mac(pod);
    pod.namespace.enter(|| {
        let sender = RawSender::open("eth0").unwrap();
        for n in 0_u32.. {
            if !counts.goes_on() {
                return;
            }
            let from = format!("{me}:{}", 1024 + n % 60_000);
            let to = format!("{server}:{}", TCP + (n % 2) as u16);
            let _ = sender.send(&packet::tcp(&from, &to).syn().from_mac(own).build());
            if n.is_multiple_of(32) {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    });
}

/// A connection of the friend that must outlive everything, with the next number to send.
struct Call {
    client: TcpStream,
    server: TcpStream,
    number: u64,
}

impl Call {
    fn open(client: &Namespace, server: &Namespace, at: IpAddr) -> Self {
        let address = SocketAddr::new(at, 7002);
        let listener = server.enter(|| TcpListener::bind(address).unwrap());
        let client = client.enter(|| TcpStream::connect_timeout(&address, PATIENCE).unwrap());
        let (server, _) = listener.accept().unwrap();
        for stream in [&client, &server] {
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.set_nodelay(true).unwrap();
        }
        Self { client, server, number: 0 }
    }

    /// Sends something that may be lost on the way until the switch is back.
    fn say(&mut self) {
        self.number += 1;
        self.client.write_all(&self.number.to_be_bytes()).unwrap();
    }

    /// Every number sent so far arrives, in order.
    #[track_caller]
    fn catch_up(&mut self, from: u64, after: &str) {
        for wanted in from + 1..=self.number {
            let mut bytes = [0; 8];
            let read = self.server.read_exact(&mut bytes);
            assert!(read.is_ok(), "the connection ended after {after}: {read:?}");
            assert_eq!(u64::from_be_bytes(bytes), wanted, "after {after}");
        }
    }
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

#[test]
fn faults_open_nothing_and_connections_outlive_them() {
    requires_the_machine!("mount", "umount");
    requires!(Path::new(FAKETIME).exists(), "libfaketime is not installed");
    endure("afxdp");
}

#[test]
fn faults_open_nothing_and_connections_outlive_them_with_nftables() {
    requires_the_machine!("mount", "umount", "nft", "/usr/lib/cni/ptp");
    endure("nftables");
}

fn endure(enforcer: &'static str) {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let seed = variable("PODGATE_CHAOS_SEED").unwrap_or(now.as_nanos() as u64);
    let length = Duration::from_secs(variable("PODGATE_CHAOS_SECONDS").unwrap_or(20));
    eprintln!("PODGATE_CHAOS_SEED={seed}");
    let mut rng = Rng::with_seed(seed);

    let is_afxdp = enforcer == "afxdp";
    let more: &[&str] = if is_afxdp { &["--attach-timeout", "3s"] } else { &[] };
    let arguments = [&["--enforcer", enforcer, "--sessions", "4096"], more].concat();
    let mut node = ClusterNode::with_api_server(&arguments);
    let forwarding = ["net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"];
    node.namespace.exec(["sysctl", "-qw"].into_iter().chain(forwarding));
    node.kill_switch();
    if is_afxdp {
        node.fake_clock(FAKETIME);
    }
    let disk = SmallDisk::mount(&node.state_dir());
    node.api_server().apply(policy(0));
    node.start_switch();
    let leases = TempDir::new("ipam");
    let node = &node;
    let pod = |name: &str| AnyPod::attach(node, enforcer, leases.path(), name);
    let [server, friend, stranger, flooder] = ["server", "friend", "stranger", "flooder"].map(pod);
    let stage = Stage { node, disk: &disk, enforcer, leases: leases.path() };
    let connect = |port: u16| {
        let to = SocketAddr::new(server.v4(), port);
        friend.namespace().enter(|| TcpStream::connect_timeout(&to, BLOCKED)).ok()
    };
    node.eventually("the friend's pod reaches the server's", || {
        let _listener = server.namespace().enter(|| TcpListener::bind((server.v4(), TCP)).unwrap());
        connect(TCP).map(drop)
    });
    let mut call = Call::open(friend.namespace(), server.namespace(), server.v4());

    let counts = Counts::default();
    std::thread::scope(|scope| {
        let _stopping = Raise(&counts.stop);
        for at in server.addresses() {
            let (server, friend) = (server.namespace(), friend.addresses());
            let counts = &counts;
            scope.spawn(move || serve(server, *at, friend, counts));
        }
        scope.spawn(|| intrude(stranger.namespace(), server.addresses(), &counts));
        scope.spawn(|| flood(&flooder, server.v4(), &counts));

        let began = Instant::now();
        let mut order: Vec<usize> = Vec::new();
        while began.elapsed() < length || !order.is_empty() {
            if order.is_empty() {
                // libfaketime would be in nft too, where it finds no semaphore.
                order = (0..FAULTS.len() - usize::from(!is_afxdp)).collect();
                rng.shuffle(&mut order);
            }
            let (name, fault) = FAULTS[order.pop().expect("not empty")];
            let before = call.number;
            call.say();
            fault(&stage, &mut rng);
            call.say();
            call.catch_up(before, name);
            node.eventually(name, || node.is_well().then_some(()));
            // Allowed connections still open, and denied ones never did.
            let reaches = || connect(TCP).map(drop);
            node.eventually(&format!("a new connection after {name}"), reaches);
            let strangers = counts.strangers.load(Ordering::Relaxed);
            assert_eq!(strangers, 0, "{name} opened what is denied (seed {seed})");
            eprintln!("{:5.1} s: {name}", began.elapsed().as_secs_f64());
        }
        // The server's thread counts the last of them a moment later.
        node.eventually("the count of the friend's connections", || {
            (counts.friends.load(Ordering::Relaxed) >= FAULTS.len() as u64).then_some(())
        });
        // The last process has been asked for a moment only.
        let denied = ["--verdict", "dropped", "--from-pod", "default/stranger"];
        node.eventually("the stranger's packets to reach the switch", || {
            (!node.verdicts(&denied).is_empty()).then_some(())
        });
    });
    let attempts = counts.attempts.load(Ordering::Relaxed);
    assert!(attempts > 100, "the stranger tried {attempts} times");
    assert_eq!(counts.strangers.load(Ordering::Relaxed), 0, "seed {seed}");
}
