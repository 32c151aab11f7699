//! Faults at random moments, while denied pods try all the time and a connection goes on.
//!
//! The switch is killed under a flood, during ADD, DEL and changes of policies; it is stopped and
//! continued, runs out of file descriptors and of disk, finds its saved state damaged, loses the
//! API server, and its wall clock jumps by an hour. Through all of it the server must receive nothing from the stranger, and the friend's
//! connection must go on with every byte once the switch is back.
//!
//! `PODGATE_CHAOS_SECONDS` and `PODGATE_CHAOS_SEED` choose length and order; `scripts/chaos` sets
//! them. The wall clock is the whole machine's, and no namespace has one of its own, so libfaketime
//! stands between the switch and its clock.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use fastrand::Rng;
use rustix::process::{Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};
use serde_json::{Value, json};
use testkit::{Namespace, RawSender, packet, requires};

use crate::cluster_node::PATIENCE;
use crate::hostile::mac;
use crate::pod::Pod;
use crate::storm::Raise;
use crate::{ClusterNode, requires_the_machine};

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
fn flood(pod: &Pod<'_>, server: IpAddr, counts: &Counts) {
    let (own, me) = (mac(pod), pod.v4());
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

/// A tmpfs in place of a folder, small enough to be filled.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: &Path) -> Self {
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=6m,mode=700", "podgate-chaos"])
            .arg(at)
            .status();
        assert!(mount.unwrap().success());
        Self(at.to_owned())
    }

    /// Leaves no block free.
    fn fill(&self) {
        let mut file = std::fs::File::create(self.0.join("filler")).unwrap();
        while file.write_all(&[1; 4096]).is_ok() {}
    }

    fn free(&self) {
        std::fs::remove_file(self.0.join("filler")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

fn pause(rng: &mut Rng, most_ms: u64) {
    std::thread::sleep(Duration::from_millis(rng.u64(..=most_ms)));
}

/// Kills the switch while `work` runs, and starts it again.
fn kill_during(node: &ClusterNode, rng: &mut Rng, work: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let working = scope.spawn(work);
        pause(rng, 150);
        kill_process(node.switch_id(), Signal::KILL).unwrap();
        working.join().unwrap();
    });
    node.kill_switch();
    node.start_switch();
}

fn set_file_limit(node: &ClusterNode, current: Option<u64>) {
    // The switch inherited the hard limit.
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let limit = Rlimit { current: current.or(maximum), maximum };
    prlimit(Some(node.switch_id()), Resource::Nofile, limit).unwrap();
}

/// A fault, injected into the node.
type Fault = fn(&ClusterNode, &SmallDisk, &mut Rng);

const FAULTS: [(&str, Fault); 10] = [
    ("kill -9", |node, _, rng| kill_during(node, rng, || {})),
    ("kill -9 during changes of policies", |node, _, rng| {
        let first = rng.u64(..1 << 32);
        kill_during(node, rng, || {
            (0..200).for_each(|n| node.api_server().apply(policy(first + n)));
        });
    }),
    ("kill -9 during ADD", |node, _, rng| {
        let namespace = Namespace::new("brief");
        node.api_server().apply(brief());
        // Whether it succeeds is open.
        kill_during(node, rng, || drop(node.plugin("ADD", "brief", &namespace)));
        assert!(node.plugin("DEL", "brief", &namespace).status.success());
    }),
    ("kill -9 during DEL", |node, _, rng| {
        let namespace = Namespace::new("brief");
        node.api_server().apply(brief());
        assert!(node.plugin("ADD", "brief", &namespace).status.success());
        kill_during(node, rng, || {
            assert!(node.plugin("DEL", "brief", &namespace).status.success());
        });
        assert!(node.plugin("DEL", "brief", &namespace).status.success());
    }),
    ("SIGSTOP", |node, _, rng| {
        kill_process(node.switch_id(), Signal::STOP).unwrap();
        pause(rng, 1500);
        kill_process(node.switch_id(), Signal::CONT).unwrap();
    }),
    ("an outage of the API server with a restart", |node, _, rng| {
        node.eventually("a saved state", || {
            node.status()["source"]["saved"].is_string().then_some(())
        });
        node.api_server().go_away();
        pause(rng, 300);
        node.kill_switch();
        node.start_switch();
        node.api_server().come_back();
        node.api_server().apply(policy(rng.u64(..)));
    }),
    ("a damaged saved state", |node, _, rng| {
        node.kill_switch();
        let path = node.state_dir().join("cluster-state");
        if let Ok(mut bytes) = std::fs::read(&path) {
            let at = rng.usize(..bytes.len());
            bytes[at] ^= 1 << rng.u8(..8);
            std::fs::write(&path, bytes).unwrap();
        }
        node.start_switch();
    }),
    ("no file descriptor left", |node, _, rng| {
        let namespace = Namespace::new("brief");
        node.api_server().apply(brief());
        set_file_limit(node, Some(8));
        std::thread::scope(|scope| {
            // Whether it succeeds is open.
            let adding = scope.spawn(|| drop(node.plugin("ADD", "brief", &namespace)));
            node.api_server().apply(policy(rng.u64(..)));
            pause(rng, 1500);
            set_file_limit(node, None);
            adding.join().unwrap();
        });
        assert!(node.plugin("DEL", "brief", &namespace).status.success());
    }),
    ("a full state disk with a restart", |node, disk, rng| {
        disk.fill();
        node.api_server().apply(policy(rng.u64(..)));
        pause(rng, 300);
        node.kill_switch();
        node.start_switch();
        disk.free();
    }),
    ("a jump of the wall clock", |node, _, rng| {
        let ahead = *rng.choice(&[-HOUR, 0, HOUR]).expect("not empty");
        node.set_clock(ahead);
        node.api_server().apply(policy(rng.u64(..)));
        node.eventually("an event at the new time", || {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
            let event = node.metric("podgate_source_last_event_timestamp_seconds");
            let wrong = event - (now.as_secs_f64() + ahead as f64);
            (wrong.abs() < HOUR as f64 / 2.0).then_some(())
        });
    }),
];

/// In seconds.
const HOUR: i64 = 3600;

/// A pod that comes and goes.
fn brief() -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "brief", "namespace": "default", "labels": {"role": "brief"}},
        "spec": {"nodeName": "node1", "containers": [{"name": "c", "image": "x"}]}})
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

#[test]
fn faults_open_nothing_and_connections_outlive_them() {
    requires_the_machine!("mount", "umount");
    requires!(Path::new(FAKETIME).exists(), "libfaketime is not installed");
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let seed = variable("PODGATE_CHAOS_SEED").unwrap_or(now.as_nanos() as u64);
    let length = Duration::from_secs(variable("PODGATE_CHAOS_SECONDS").unwrap_or(20));
    eprintln!("PODGATE_CHAOS_SEED={seed}");
    let mut rng = Rng::with_seed(seed);

    let mut node = ClusterNode::with_api_server(&["--sessions", "4096", "--attach-timeout", "3s"]);
    node.kill_switch();
    node.fake_clock(FAKETIME);
    let disk = SmallDisk::mount(&node.state_dir());
    node.api_server().apply(policy(0));
    node.start_switch();
    let (server, friend) = (node.pod("server", "server"), node.pod("friend", "friend"));
    let (stranger, flooder) = (node.pod("stranger", "stranger"), node.pod("flooder", "flooder"));
    let mut call = Call::open(&friend.namespace, &server.namespace, server.v4());

    let counts = Counts::default();
    std::thread::scope(|scope| {
        let _stopping = Raise(&counts.stop);
        for at in &server.addresses {
            let (server, friend) = (&server.namespace, &friend.addresses);
            let counts = &counts;
            scope.spawn(move || serve(server, *at, friend, counts));
        }
        scope.spawn(|| intrude(&stranger.namespace, &server.addresses, &counts));
        scope.spawn(|| flood(&flooder, server.v4(), &counts));

        let began = Instant::now();
        let mut order: Vec<usize> = Vec::new();
        while began.elapsed() < length || !order.is_empty() {
            if order.is_empty() {
                order = (0..FAULTS.len()).collect();
                rng.shuffle(&mut order);
            }
            let (name, fault) = FAULTS[order.pop().expect("not empty")];
            let before = call.number;
            call.say();
            fault(&node, &disk, &mut rng);
            call.say();
            call.catch_up(before, name);
            node.eventually(name, || (node.is_well()).then_some(()));
            // What is allowed still opens, and what is denied never did.
            let reaches = || friend.connect(server.v4(), TCP).ok().map(drop);
            node.eventually(&format!("a new connection after {name}"), reaches);
            let strangers = counts.strangers.load(Ordering::Relaxed);
            assert_eq!(strangers, 0, "{name} opened what is denied (seed {seed})");
            eprintln!("{:5.1} s: {name}", began.elapsed().as_secs_f64());
        }
        // The server's thread counts the last of them a moment later.
        node.eventually("the count of the friend's connections", || {
            (counts.friends.load(Ordering::Relaxed) >= FAULTS.len() as u64).then_some(())
        });
    });
    let attempts = counts.attempts.load(Ordering::Relaxed);
    assert!(attempts > 100, "the stranger tried {attempts} times");
    assert_eq!(counts.strangers.load(Ordering::Relaxed), 0, "seed {seed}");
    let denied = node.verdicts(&["--verdict", "dropped", "--from-pod", "default/stranger"]);
    assert!(!denied.is_empty(), "the stranger's packets reached the switch");
}
