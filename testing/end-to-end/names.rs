//! Domain names of policies: which connections a DNS answer opens, for which pod and how long.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use linux_net::in_namespace;
use serde_json::{Value, json};
use testkit::{Namespace, Process};

use crate::clients::curl;
use crate::cluster_node::{BLOCKED, ClusterNode, PATIENCE, text};
use crate::lan::Lan;
use crate::pod::Pod;
use crate::requires_the_machine;
use crate::servers::dnsmasq;

/// Names `n0` to `n39` below this one have an address each.
const ZONE: &str = "names.test";
const NAMES: u8 = 40;
const DIRECT: [&str; 2] = ["--masquerade", "direct"];
/// Timeout of a connection that must not open.
const SHORTLY: Duration = Duration::from_millis(700);

fn address(n: u8) -> IpAddr {
    Ipv4Addr::new(198, 51, 100, 100 + n).into()
}

fn name(n: u8) -> String {
    format!("n{n}.{ZONE}")
}

/// Clients may ask resolvers, and reach what the names stand for on port 80.
fn policy() -> Value {
    let port =
        |protocol: &str, number: u16| json!({protocol: {"destinationPort": {"number": number}}});
    json!({"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
        "metadata": {"name": "names"},
        "spec": {"tier": "Admin", "priority": 1,
            "subject": {"pods": {"namespaceSelector": {},
                "podSelector": {"matchLabels": {"role": "client"}}}},
            "egress": [
                {"action": "Accept", "to": [{"pods": {"namespaceSelector": {},
                    "podSelector": {"matchLabels": {"role": "resolver"}}}}],
                 "protocols": [port("udp", 53), port("tcp", 53)]},
                {"action": "Accept", "to": [{"domainNames": [format!("*.{ZONE}")]}],
                 "protocols": [port("tcp", 80)]},
                {"action": "Deny", "to": [{"networks": ["0.0.0.0/0", "::/0"]}]}]}})
}

/// dnsmasq with the names, and `other.test` beside them.
fn serve_names(namespace: &Namespace) -> Process {
    let known = (0..NAMES).map(|n| format!("--address=/{}/{}", name(n), address(n)));
    let other = ["--address=/other.test/198.51.100.90".to_owned()];
    let own = [format!("--address=/own.{ZONE}/192.0.2.2")];
    let alias = [
        format!("--cname=alias.{ZONE},n39.{ZONE}"),
        format!("--host-record=n39.{ZONE},{}", address(39)),
    ];
    let arguments: Vec<String> = known.chain(other).chain(own).chain(alias).collect();
    dnsmasq(namespace, &arguments.iter().map(String::as_str).collect::<Vec<_>>())
}

/// An echo server on port 80 of every address of a namespace.
struct Echo {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Echo {
    fn start(namespace: &Path) -> Self {
        let listener =
            in_namespace(namespace, || TcpListener::bind("0.0.0.0:80")).unwrap().unwrap();
        listener.set_nonblocking(true).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stops = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut streams: Vec<TcpStream> = Vec::new();
            while !stops.load(Ordering::Acquire) {
                if let Ok((stream, _)) = listener.accept() {
                    stream.set_nonblocking(true).unwrap();
                    streams.push(stream);
                }
                for stream in &mut streams {
                    let mut bytes = [0; 512];
                    if let Ok(count @ 1..) = stream.read(&mut bytes) {
                        let is_http = bytes.starts_with(b"GET ");
                        let page = &b"HTTP/1.0 200 OK\r\nContent-Length: 4\r\n\r\npage"[..];
                        let _ = stream.write_all(if is_http { page } else { &bytes[..count] });
                    }
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.thread.take().map(JoinHandle::join);
    }
}

/// A question for the IPv4 addresses of a name.
fn question(id: u16, name: &str) -> Vec<u8> {
    let mut message = id.to_be_bytes().to_vec();
    message.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in name.split('.') {
        message.push(label.len() as u8);
        message.extend(label.bytes());
    }
    message.extend([0, 0, 1, 0, 1]);
    message
}

/// The answer to a question, with one address.
fn answer(question: &[u8], to: IpAddr) -> Vec<u8> {
    let IpAddr::V4(v4) = to else { panic!("one of IPv4") };
    let mut message = question.to_vec();
    message[2..4].copy_from_slice(&[0x81, 0x80]);
    message[7] = 1;
    message.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
    message.extend(v4.octets());
    message
}

fn udp(namespace: &Namespace, at: &str) -> UdpSocket {
    let socket = in_namespace(namespace.path(), || UdpSocket::bind(at)).unwrap().unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// Asks by UDP; the address at the end of the answer, and how long it took.
fn resolve(
    socket: &UdpSocket,
    resolver: IpAddr,
    id: u16,
    name: &str,
) -> Option<(IpAddr, Duration)> {
    let began = Instant::now();
    socket.send_to(&question(id, name), SocketAddr::new(resolver, 53)).ok()?;
    let mut bytes = [0; 1500];
    let (count, _) = socket.recv_from(&mut bytes).ok()?;
    let last: [u8; 4] = bytes[..count].last_chunk().copied()?;
    Some((Ipv4Addr::from(last).into(), began.elapsed()))
}

/// A connection that has to open.
fn connect(pod: &Pod<'_>, to: IpAddr) -> Option<TcpStream> {
    pod.connect(to, 80).ok()
}

/// A connection that may not open yet.
fn try_connect(pod: &Pod<'_>, to: IpAddr) -> Option<TcpStream> {
    pod.try_connect(to, 80).ok()
}

fn is_refused(pod: &Pod<'_>, to: IpAddr) -> bool {
    let connect = || TcpStream::connect_timeout(&SocketAddr::new(to, 80), SHORTLY);
    in_namespace(pod.namespace.path(), connect).unwrap().is_err()
}

/// Returns whether a connection goes on, which it has to.
fn echoes(stream: &TcpStream) -> bool {
    echoes_within(stream, PATIENCE)
}

fn echoes_within(mut stream: &TcpStream, patience: Duration) -> bool {
    let mut bytes = [0; 4];
    stream.set_read_timeout(Some(patience)).unwrap();
    stream.write_all(b"ping").is_ok() && stream.read_exact(&mut bytes).is_ok() && bytes == *b"ping"
}

/// Rows of `podgate show names` with this address.
fn shown(node: &ClusterNode, address: IpAddr) -> Vec<Value> {
    let lines = node.podgate(&["show", "names", "-o", "json"]);
    let rows = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    rows.filter(|row| row["address"] == address.to_string()).collect()
}

fn world(lan: &Lan) -> Echo {
    for n in (0..NAMES).map(address).chain(["198.51.100.90".parse().unwrap()]) {
        lan.world.exec(["ip", "address", "add", &format!("{n}/32"), "dev", "lo"]);
    }
    Echo::start(lan.world.path())
}

/// Warms the way to the world up: the first packet of all waits for a neighbour.
fn warm(node: &ClusterNode, free: &Pod<'_>) {
    node.eventually("the world", || try_connect(free, address(0)));
}

#[test]
fn the_first_connection_after_an_answer_succeeds_and_none_before_it() {
    requires_the_machine!("dnsmasq", "dig", "curl");
    // However busy the machine is, an answer is held until its addresses are in force.
    let held = ["--dns-max-hold", "10m", "--dns-min-ttl", "5m"];
    let lan = Lan::start(&[&DIRECT[..], &held].concat());
    let _echo = world(&lan);
    let node = &lan.nodes[0];
    let (client, free) = (node.pod("client", "client"), node.pod("free", "free"));
    // One resolver here and one on the other node.
    let (here, there) =
        (node.pod("dns-here", "resolver"), lan.nodes[1].pod("dns-there", "resolver"));
    let _servers = [&here, &there].map(|pod| serve_names(&pod.namespace));
    lan.apply("policy", &policy());
    warm(node, &free);
    let socket = udp(&client.namespace, "0.0.0.0:0");
    assert!(is_refused(&client, address(0)), "not asked yet");
    let denied = || node.metric("podgate_packets_total{reason=\"policy-denied\",verdict=\"drop\"}");
    // Once a later question is answered, the connection's packet is counted.
    resolve(&socket, here.v4(), 99, "other.test").unwrap();
    let before = denied();
    let mut taken = Vec::new();
    for n in 0..30 {
        let resolver = [&here, &there][usize::from(n % 2)];
        let (found, time) = resolve(&socket, resolver.v4(), 100 + u16::from(n), &name(n)).unwrap();
        assert_eq!(found, address(n));
        assert!(connect(&client, found).is_some(), "the first connection, try {n}");
        taken.push(time);
    }
    assert_eq!(denied(), before, "not one packet was denied");
    let others = udp(&free.namespace, "0.0.0.0:0");
    let plain = (0..30).map(|n| resolve(&others, here.v4(), 7, &name(n)).unwrap().1).collect();
    let again = (0..30).map(|n| resolve(&socket, here.v4(), 8, &name(n)).unwrap().1).collect();
    for (what, mut times) in [("new", taken), ("known", again), ("without names", plain)] {
        times.sort();
        println!(
            "answer, {what}: p50 {:?}, p99 {:?}",
            times[times.len() / 2],
            times[times.len() - 1]
        );
    }
    // Shown, and named in the stream of verdicts.
    let rows = shown(node, address(3));
    assert_eq!(rows.len(), 1, "{rows:?}");
    assert_eq!((&rows[0]["pod"], &rows[0]["name"]), (&json!("default/client"), &json!(name(3))));
    assert_eq!(
        (&rows[0]["state"], &rows[0]["by"]),
        (&json!("open"), &json!("ClusterNetworkPolicy names egress[1]"))
    );
    node.eventually("the name in a verdict", || {
        try_connect(&client, address(3))?;
        let verdicts =
            node.verdicts(&["--from-pod", "default/client", "--to-ip", &address(3).to_string()]);
        verdicts.iter().any(|it| it["to"]["name"] == name(3).as_str()).then_some(())
    });
    // Names that no policy has, and addresses of the cluster itself, open nothing.
    let (found, _) = resolve(&socket, here.v4(), 9, "other.test").unwrap();
    assert!(is_refused(&client, found));
    let (found, _) = resolve(&socket, here.v4(), 9, &format!("own.{ZONE}")).unwrap();
    assert!(is_refused(&client, found));
    assert_eq!(shown(node, found)[0]["state"], "ignored");
    assert!(node.metric("podgate_dns_addresses_ignored_total") >= 1.0);
    // The client's answer opens nothing for another pod.
    let second = node.pod("second", "client");
    assert!(is_refused(&second, address(0)));
    // By TCP, by an alias, and as people do it.
    let dig = |options: &[&str]| {
        let at = format!("@{}", here.v4());
        let output = client
            .namespace
            .try_exec([&["dig", &at, "+short", "+time=2", "+tries=1"], options].concat());
        text(&output.stdout)
    };
    assert!(dig(&["+tcp", &name(31), "A"]).contains(&address(31).to_string()));
    assert!(connect(&client, address(31)).is_some());
    assert!(dig(&[&format!("alias.{ZONE}"), "A"]).contains(&address(39).to_string()));
    let page = curl(&client.namespace, &address(39).to_string(), 80, "/");
    assert_eq!(page.as_deref(), Some("page"));
    // A restart keeps the table, also after a kill.
    let stream = connect(&client, address(5)).unwrap();
    node.eventually("the file", || {
        let saved = std::fs::read_to_string(node.state_dir().join("names")).ok()?;
        saved.contains(&address(31).to_string()).then_some(())
    });
    node.kill_switch();
    node.start_switch();
    assert!(echoes(&stream), "a connection");
    node.eventually("a new connection", || try_connect(&client, address(6)));
    assert!(is_refused(&client, address(38)), "never asked");
}

#[test]
fn spoofed_answers_open_nothing() {
    requires_the_machine!("dnsmasq");
    let lan = Lan::start(&[&DIRECT[..], &["--dns-max-hold", "10m"]].concat());
    let _echo = world(&lan);
    let node = &lan.nodes[0];
    let (client, free) = (node.pod("client", "client"), node.pod("free", "free"));
    let (resolver, evil) = (node.pod("dns", "resolver"), node.pod("evil", "evil"));
    lan.apply("policy", &policy());
    warm(node, &free);
    let at = udp(&resolver.namespace, "0.0.0.0:53");
    let port = "0.0.0.0:34000";
    let socket = udp(&client.namespace, port);
    let asked = question(7, "n1.NAMES.test");
    let to = SocketAddr::new(resolver.v4(), 53);
    socket.send_to(&asked, to).unwrap();
    let mut bytes = [0; 512];
    let (count, from) = at.recv_from(&mut bytes).unwrap();
    assert_eq!((&bytes[..count], from.port()), (&asked[..], 34000));
    // Each question goes to an address of its own, which the policy permits as a resolver.
    let spoofed = [
        answer(&question(8, "n1.NAMES.test"), address(1)),
        answer(&question(7, "n1.names.test"), address(2)),
        answer(&question(7, "n2.NAMES.test"), address(3)),
    ];
    for message in &spoofed {
        at.send_to(message, from).unwrap();
        socket.recv_from(&mut bytes).unwrap();
    }
    // To another port of the client's, to one that asked nothing, and from another pod.
    let second = udp(&client.namespace, "0.0.0.0:34001");
    second.send_to(b"no question", to).unwrap();
    let (_, other) = at.recv_from(&mut bytes).unwrap();
    at.send_to(&answer(&asked, address(4)), other).unwrap();
    second.recv_from(&mut bytes).unwrap();
    let liar = udp(&evil.namespace, "0.0.0.0:53");
    liar.send_to(&answer(&asked, address(5)), from).unwrap();
    // Answering itself: what the pod sends as its own resolver.
    let own = udp(&client.namespace, "0.0.0.0:53");
    own.send_to(&answer(&asked, address(6)), SocketAddr::new(client.v4(), 34000)).unwrap();
    own.send_to(&answer(&asked, address(6)), to).unwrap();
    for n in 1..=6 {
        assert!(is_refused(&client, address(n)), "spoofed answer {n}");
        assert!(shown(node, address(n)).is_empty());
    }
    // The true one still counts, and counts once.
    at.send_to(&answer(&asked, address(7)), from).unwrap();
    while shown(node, address(7)).is_empty() {
        socket.recv_from(&mut bytes).unwrap();
    }
    assert!(connect(&client, address(7)).is_some());
    at.send_to(&answer(&asked, address(8)), from).unwrap();
    socket.recv_from(&mut bytes).unwrap();
    assert!(is_refused(&client, address(8)));
}

#[test]
fn an_address_that_expires_keeps_its_connections_alone() {
    requires_the_machine!("dnsmasq");
    let lan = Lan::start(&[&DIRECT[..], &["--dns-min-ttl", "1s"]].concat());
    let _echo = world(&lan);
    let node = &lan.nodes[0];
    let (client, free) = (node.pod("client", "client"), node.pod("free", "free"));
    let resolver = node.pod("dns", "resolver");
    let _server = serve_names(&resolver.namespace);
    lan.apply("policy", &policy());
    warm(node, &free);
    let socket = udp(&client.namespace, "0.0.0.0:0");
    // dnsmasq's own names have a TTL of 0: five seconds with what is added.
    let (found, stream) = node.eventually("a connection before that", || {
        let (found, _) = resolve(&socket, resolver.v4(), 7, &name(1))?;
        Some((found, try_connect(&client, found)?))
    });
    assert!(echoes(&stream));
    node.eventually("expiry", || {
        shown(node, found).iter().any(|row| row["state"] == "lingering").then_some(())
    });
    assert!(is_refused(&client, found), "expired");
    assert!(echoes(&stream), "the connection lives");
    // Also through a pass over the connections, which finds it, and a restart.
    std::thread::sleep(Duration::from_secs(6));
    assert!(echoes(&stream) && is_refused(&client, found));
    node.kill_switch();
    node.start_switch();
    assert!(echoes(&stream) && is_refused(&client, found));
    // A denial ends it all the same.
    let mut denied = policy();
    denied["spec"]["egress"].as_array_mut().unwrap().remove(1);
    lan.write("policy", &denied);
    node.eventually("the denial", || (!echoes_within(&stream, BLOCKED)).then_some(()));
    // The other node has no pod that it is about.
    lan.write("policy", &policy());
    socket.set_read_timeout(Some(BLOCKED)).unwrap();
    node.eventually("the names again", || {
        let (found, _) = resolve(&socket, resolver.v4(), 8, &name(1))?;
        try_connect(&client, found)
    });
}
