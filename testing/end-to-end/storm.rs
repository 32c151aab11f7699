//! Policies change all the time, some about the pods that talk and most about others, while
//! connections are opened as fast as the machine can, a stream runs, and a pod that is never let
//! in never stops to try.
//!
//! A packet lost or leaked by a swap of tables shows in four places: a connection that fails,
//! one that must not be, drops by reason, and frames that a pod's kernel or the switch sent and the
//! other one never got. All of them must be right to the last packet.
//!
//! With flow offload the same holds for what the kernel forwards: each frame that a pod's kernel has
//! sent was counted by a program or by the switch, and each that one of these has forwarded was
//! counted by the receiving pod's kernel. Connections that last go from one to the other and back
//! with every snapshot that concerns them.
//!
//! `scripts/soak` runs the same for a million connections.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::Namespace;
use testkit::api_server::ApiServer;
use testkit::storm::{self, Caller, Calls};

use crate::cluster_node::{PATIENCE, flow_offload};
use crate::pod::Pod;
use crate::{ClusterNode, requires_the_machine};

/// Overrides the number of connections, [`CONNECTIONS`].
const VARIABLE: &str = "PODGATE_STORM_CONNECTIONS";
const CONNECTIONS: u64 = 20_000;
/// Snapshots that must have been published meanwhile.
const SNAPSHOTS: u64 = 100;
/// Changes a second that are made.
const RATE: u32 = 1250;
/// Ports the server listens on.
const PORTS: std::ops::Range<u16> = 7000..7004;

/// A policy about pods of this role.
fn policy(name: &str, role: &str, spec: Value) -> Value {
    let mut policy = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"podSelector": {"matchLabels": {"role": role}}}});
    for (field, value) in spec.as_object().expect("fields") {
        policy["spec"][field] = value.clone();
    }
    policy
}

fn from(role: &str) -> Value {
    json!({"from": [{"podSelector": {"matchLabels": {"role": role}}}],
        "ports": [{"protocol": "TCP", "port": PORTS.start, "endPort": PORTS.end - 1}]})
}

/// Changes the cluster for the `n`th time. The client may always reach the server, and the
/// stranger never.
fn change(server: &ApiServer, n: u64) {
    let round = n / 5;
    let flips = round.is_multiple_of(2);
    match n % 5 {
        // Tables of pods without traffic.
        0 | 1 => {
            let name = if n.is_multiple_of(5) { "other" } else { "another" };
            let port = 1000 + round % 1000;
            let rule = json!({"ports": [{"protocol": "TCP", "port": port}]});
            server.apply(policy(name, name, json!({"ingress": [rule]})));
        }
        // The server's own table, beside what lets the client in.
        2 => {
            let rules = if flips { json!([from("nobody")]) } else { json!([]) };
            server.apply(policy("server-too", "server", json!({"ingress": rules})));
        }
        // The client's.
        3 => {
            let last = PORTS.end + (round % 100) as u16;
            let rule =
                json!({"ports": [{"protocol": "TCP", "port": PORTS.start, "endPort": last}]});
            let egress = json!({"policyTypes": ["Egress"], "egress": [rule]});
            server.apply(policy("client", "client", egress));
        }
        // Who is a client: one more pod elsewhere, and one less.
        _ => {
            let name = "client-elsewhere";
            let object = json!({"apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": name, "namespace": "default", "labels": {"role": "client"}},
                "spec": {"nodeName": "node7", "containers": [{"name": "c", "image": "x"}]},
                "status": {"podIPs": [{"ip": format!("10.99.0.{}", round % 250 + 1)}]}});
            match flips {
                true => server.apply(object),
                false => server.delete("pods", Some("default"), name),
            }
        }
    }
}

/// TCP segments that a namespace's kernel sent to those who did not answer.
fn segments(namespace: &Namespace) -> u64 {
    let text = namespace.exec(["cat", "/proc/net/snmp"]);
    let mut lines = text.lines().filter(|line| line.starts_with("Tcp:"));
    let names = lines.next().unwrap().split(' ');
    let values: BTreeMap<_, _> = names.zip(lines.next().unwrap().split(' ')).collect();
    let value = |name: &str| values[name].parse::<u64>().unwrap();
    // Retransmitted bytes are not counted as sent.
    value("OutSegs") + value("RetransSegs")
}

/// Frames on their way between a pod and the switch: those that one says it sent, less those that
/// the other one says it got, both ways.
fn under_way(node: &ClusterNode, pod: &Pod<'_>) -> [i64; 2] {
    let interface = |what: &str| -> i64 {
        let path = format!("/sys/class/net/eth0/statistics/{what}");
        pod.namespace.exec(["cat", &path]).trim().parse().unwrap()
    };
    let port = |what: &str| of_port(node, pod, what) as i64;
    [interface("tx_packets") - port("received"), port("sent") - interface("rx_packets")]
}

/// Dropped packets by reason, without what no pod is harmed by.
fn drops(node: &ClusterNode) -> BTreeMap<String, u64> {
    let lines = node.podgate(&["show", "errors", "-o", "json"]);
    let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let dropped = lines.filter(|line| line["verdict"] == "drop" && line["reason"] != "multicast");
    let count = |line: Value| {
        let packets = line["packets"].as_u64().unwrap();
        (line["reason"].as_str().unwrap().to_owned(), packets)
    };
    dropped.map(count).collect()
}

fn of_port(node: &ClusterNode, pod: &Pod<'_>, what: &str) -> u64 {
    let status = node.status();
    let mut ports = status["ports"].as_array().unwrap().iter();
    let port = ports.find(|port| port["name"] == pod.key().as_str()).unwrap();
    port[what].as_u64().unwrap()
}

/// Ends the others' work also when the one who holds it panics.
pub(crate) struct Raise<'f>(pub(crate) &'f AtomicBool);

impl Drop for Raise<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Sends numbers over one connection and waits for each to come back, until `stop`; how many came.
fn ask_on(target: &SocketAddr, stop: &AtomicBool) -> u64 {
    let mut stream = TcpStream::connect_timeout(target, PATIENCE).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut answers = 0_u64;
    while !stop.load(Ordering::Acquire) {
        stream.write_all(&answers.to_be_bytes()).unwrap();
        let mut number = [0; 8];
        stream.read_exact(&mut number).expect("a connection that lasts goes on");
        assert_eq!(u64::from_be_bytes(number), answers);
        answers += 1;
    }
    answers
}

/// Changes the cluster [`RATE`] times a second until enough happened; how often.
fn make_changes(node: &ClusterNode, wanted: u64, ended: &AtomicU64, failed: &AtomicBool) -> u64 {
    let published = || node.metric("podgate_generation") as u64;
    let (before, began) = (published(), Instant::now());
    let mut progress = (0, Instant::now());
    for n in 0.. {
        change(&node.api_server(), n);
        let due = began + n as u32 * Duration::from_secs(1) / RATE;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        if n % 200 == 0 {
            let ended = ended.load(Ordering::Relaxed);
            let enough = ended >= wanted && published() - before >= SNAPSHOTS;
            if enough || failed.load(Ordering::Relaxed) {
                return n;
            }
            if ended > progress.0 || published() > before + SNAPSHOTS {
                progress = (ended, Instant::now());
            }
            assert!(progress.1.elapsed() < PATIENCE, "{ended} connections, and no more");
        }
    }
    unreachable!("numbers do not end")
}

#[test]
fn nothing_is_lost_or_let_through_while_snapshots_are_swapped() {
    requires_the_machine!("iperf3");
    storm(&[]);
}

#[test]
fn nor_where_workers_take_them_over_one_after_the_other() {
    requires_the_machine!("iperf3");
    storm(&["--workers", "2"]);
}

fn storm(arguments: &[&str]) {
    let wanted = std::env::var(VARIABLE).map_or(CONNECTIONS, |text| text.parse().unwrap());
    let node = ClusterNode::with_api_server(arguments);
    let let_in = policy("server", "server", json!({"ingress": [from("client")]}));
    node.api_server().apply(let_in);
    let (client, server) = (node.pod("client", "client"), node.pod("server", "server"));
    let stranger = node.pod("stranger", "stranger");
    let _others = [node.pod("other", "other"), node.pod("another", "another")];
    let (sender, receiver) = (node.pod("sender", "sender"), node.pod("receiver", "receiver"));
    // Few ports, so that each is used again and again.
    client.namespace.exec(["sysctl", "-qw", "net.ipv4.ip_local_port_range=20000 27999"]);
    let listener = receiver.namespace.spawn(["iperf3", "-s", "-1", "--forceflush"]);
    listener.wait_for_line("Server listening", PATIENCE);
    let to = receiver.v4().to_string();
    // No more in flight than a port's ring holds while its worker is kept from the processor.
    let stream = ["iperf3", "-t", "86400", "-b", "200M", "-w", "96K", "--forceflush", "-c", &to];
    let stream = sender.namespace.spawn(stream);
    stream.wait_for_line("connected to", PATIENCE);

    let targets: Vec<SocketAddr> =
        PORTS.flat_map(|port| server.addresses.iter().map(move |it| (*it, port).into())).collect();
    let [stop, stop_server, failed] = [const { AtomicBool::new(false) }; 3];
    let ended = AtomicU64::new(0);
    let published = || node.metric("podgate_generation");
    let streamed = || of_port(&node, &receiver, "sent_bytes");
    let (ready, wait) = mpsc::channel();
    let (published_before, streamed_before) = (published(), streamed());
    // Packets sent during the attachment are not counted by both.
    let before = [&client, &server].map(|pod| {
        let quiet = || Some(under_way(&node, pod)).filter(|it| *it == under_way(&node, pod));
        node.eventually("silence", quiet)
    });
    let (calls, knocks, lasting, accepted, changes, took) = std::thread::scope(|scope| {
        let stopping_server = Raise(&stop_server);
        let stopping = Raise(&stop);
        let caller = |at_once, patience| Caller { targets: targets.clone(), at_once, patience };
        let (patient, hasty) = (caller(32, PATIENCE), caller(20, Duration::from_millis(20)));
        let (targets, stop, stop_server) = (&targets, &stop, &stop_server);
        let (ended, failed) = (&ended, &failed);
        let (inside, tell) = (&server.namespace, move || ready.send(()).unwrap());
        let server =
            scope.spawn(move || inside.enter(|| storm::answer(targets, tell, stop_server)));
        wait.recv().unwrap();
        let began = Instant::now();
        let inside = &client.namespace;
        let client = scope.spawn(move || {
            let goes_on = |calls: &Calls| {
                ended.store(calls.ended(), Ordering::Relaxed);
                failed.store(calls.ended() > calls.answered, Ordering::Relaxed);
                !stop.load(Ordering::Acquire)
            };
            inside.enter(|| patient.run(goes_on))
        });
        let lasting =
            targets.iter().map(|target| scope.spawn(move || inside.enter(|| ask_on(target, stop))));
        let lasting: Vec<_> = lasting.collect();
        let inside = &stranger.namespace;
        let stranger =
            scope.spawn(move || inside.enter(|| hasty.run(|_| !stop.load(Ordering::Acquire))));
        let changes = make_changes(&node, wanted, ended, failed);
        let took = began.elapsed().as_secs_f64();
        drop(stopping);
        let (calls, knocks) = (client.join().unwrap(), stranger.join().unwrap());
        let lasting: Vec<u64> = lasting.into_iter().map(|it| it.join().unwrap()).collect();
        drop(stopping_server);
        (calls, knocks, lasting, server.join().unwrap(), changes, took)
    });
    let published = published() - published_before;
    println!(
        "{} connections in {took:.1} s, {:.0} a second\n\
         {published} snapshots of {changes} changes, {:.0} a second\n\
         {} connections denied\n\
         {} answers over {} connections that last\n\
         {:.0} Mbit/s streamed beside them",
        calls.answered,
        calls.answered as f64 / took,
        published / took,
        knocks.silent,
        lasting.iter().sum::<u64>(),
        lasting.len(),
        (streamed() - streamed_before) as f64 * 8e-6 / took,
    );

    // No connection failed.
    assert_eq!((calls.silent, &calls.failed), (0, &BTreeMap::new()));
    // None was opened that must not be: a refusal would be an answer of the server's kernel.
    assert_eq!((knocks.answered, &knocks.failed), (0, &BTreeMap::new()));
    assert!(knocks.silent > 0);
    assert!(accepted.keys().all(|from| client.addresses.contains(from)), "{accepted:?}");
    assert_eq!(accepted.values().sum::<u64>(), calls.answered + lasting.len() as u64);
    assert!(lasting.iter().all(|answers| *answers > 10), "{lasting:?}");
    // Nothing was lost: between kernels and switch, in the rings, and for any reason but the policy.
    let deadline = Instant::now() + PATIENCE;
    loop {
        let now = [&client, &server].map(|pod| under_way(&node, pod));
        if now == before {
            break;
        }
        let status = || node.podgate(&["status"]);
        assert!(Instant::now() < deadline, "{before:?} became {now:?}\n{}", status());
        std::thread::sleep(Duration::from_millis(50));
    }
    for pod in [&client, &server, &sender, &receiver] {
        let lost = ["missed", "refused"].map(|what| of_port(&node, pod, what));
        assert_eq!(lost, [0, 0], "{}", pod.name);
    }
    if flow_offload() {
        let status = &node.status()["flow_offload"];
        let of = |what: &str| status[what].as_u64().unwrap();
        assert_eq!(["missed", "no_port"].map(of), [0, 0], "{status}");
        assert!(of("packets") > 1000, "the kernel forwards: {status}");
        let stale = status["punted"]["old-generation"].as_u64().unwrap();
        assert!(stale > 0, "and gives back what a snapshot concerns: {status}");
    }
    let knocked = segments(&stranger.namespace);
    node.eventually("all denials", || {
        let denied = knocked - of_port(&node, &stranger, "missed");
        (drops(&node) == BTreeMap::from([("policy-denied".to_owned(), denied)])).then_some(())
    });
    drop(stream);
}
