//! `podgate run --enforcer nftables` on pods that the standard plugins `bridge` and `ptp` made.

use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::net::sockopt;
use serde_json::{Value, json};
use testkit::{Namespace, Process, TempDir};

use crate::cluster_node::{ClusterNode, PATIENCE, PODGATE, text};
use crate::foreign::Foreign;
use crate::host_firewall::{echoes, has_ended};
use crate::requires_the_machine;

/// Timeout of a client whose connection the policy denies.
const BLOCKED: Duration = Duration::from_millis(700);

fn open(from: &Namespace, to: IpAddr, port: u16, patience: Duration) -> std::io::Result<TcpStream> {
    from.enter(|| TcpStream::connect_timeout(&SocketAddr::new(to, port), patience))
}

/// Returns whether a TCP connection opens that has to, however busy the machine is.
fn connects(from: &Namespace, to: IpAddr, port: u16) -> bool {
    open(from, to, port, PATIENCE).is_ok()
}

/// Returns whether a TCP connection does not open.
fn is_denied(from: &Namespace, to: IpAddr, port: u16) -> bool {
    open(from, to, port, BLOCKED).is_err()
}

pub(crate) const ONLY_CLIENT: &str = r#"{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
    "metadata": {"name": "web", "namespace": "default"},
    "spec": {"podSelector": {"matchLabels": {"role": "web"}}, "policyTypes": ["Ingress"],
        "ingress": [{"from": [{"podSelector": {"matchLabels": {"role": "client"}}}],
                     "ports": [{"port": 8080}, {"port": 9000, "endPort": 9001, "protocol": "UDP"}]}]}}"#;
/// A virtual address of `web`.
const SERVICE: &str = "10.96.0.1";

/// A stream of datagrams, a thousand a second, and the moment at which the last one arrived.
struct Stream {
    ended: AtomicBool,
    sent: AtomicU64,
    received: AtomicU64,
    last_us: AtomicU64,
    began: Instant,
}

impl Stream {
    fn new() -> Self {
        let zero = AtomicU64::default;
        let (sent, received, last_us) = (zero(), zero(), zero());
        Self { ended: AtomicBool::new(false), sent, received, last_us, began: Instant::now() }
    }

    /// Streams to an address that leads to `port` of `to`.
    fn run(&self, from: &Foreign, address: SocketAddr, to: &Foreign, port: u16) {
        let receiver = linux_net::in_namespace(to.namespace.path(), || {
            UdpSocket::bind(("0.0.0.0", port)).unwrap()
        });
        let sender = linux_net::in_namespace(from.namespace.path(), || {
            UdpSocket::bind("0.0.0.0:0").unwrap()
        });
        let (receiver, sender) = (receiver.unwrap(), sender.unwrap());
        receiver.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        // Room for what arrives while a busy machine keeps the receiver waiting.
        sockopt::set_socket_recv_buffer_size_force(&receiver, 8 << 20).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !self.ended.load(Ordering::Relaxed) {
                    if sender.send_to(b"x", address).is_ok() {
                        self.sent.fetch_add(1, Ordering::Relaxed);
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            while !self.ended.load(Ordering::Relaxed) {
                if receiver.recv(&mut [0; 16]).is_ok() {
                    self.received.fetch_add(1, Ordering::Relaxed);
                    let now = self.began.elapsed().as_micros() as u64;
                    self.last_us.store(now, Ordering::Relaxed);
                }
            }
        });
    }
}

impl Stream {
    /// Datagrams that were sent and have not arrived.
    fn missing(&self) -> u64 {
        let received = self.received.load(Ordering::Relaxed);
        self.sent.load(Ordering::Relaxed).saturating_sub(received)
    }

    /// Waits until none of many datagrams arrives any more; how long after this moment the last one did.
    fn end(&self, node: &ClusterNode, since: Instant) -> Duration {
        let mut before = self.missing();
        let mut received = u64::MAX;
        let mut quiet = || {
            let now = self.received.load(Ordering::Relaxed);
            if now != received {
                (received, before) = (now, self.missing());
            }
            self.missing() > before + 500
        };
        node.eventually("the stream ends", || quiet().then_some(()));
        self.ended.store(true, Ordering::Relaxed);
        let last = self.began + Duration::from_micros(self.last_us.load(Ordering::Relaxed));
        last.saturating_duration_since(since)
    }
}

fn police(plugin: &str) {
    let node = ClusterNode::start(&["--enforcer", "nftables"]);
    let folder = TempDir::new("ipam");
    node.namespace.exec([
        "sysctl",
        "-qw",
        "net.ipv4.ip_forward=1",
        "net.ipv6.conf.all.forwarding=1",
    ]);
    let pod = |name: &str| Foreign::new(&node, plugin, folder.path(), name);
    let (web, client, other) = (pod("web"), pod("client"), pod("other"));
    let interfaces = node.namespace.exec(["ip", "-o", "link"]);
    web.serve();
    // The Node's networks are closed for pods that are not known.
    node.eventually("a pod that is not known yet is closed", || {
        is_denied(&client.namespace, web.address(false), 8080).then_some(())
    });
    for (pod, role) in [(&web, "web"), (&client, "client"), (&other, "other")] {
        node.write(&pod.name, &pod.object(json!({"role": role})).to_string());
    }
    let all_up = |node: &ClusterNode| {
        node.eventually("every pod's interface is found", || {
            let status = node.status();
            let ports = status["ports"].as_array().unwrap();
            let open = ports.iter().filter(|port| port["closed"] == false).count();
            (open == 3).then_some(())
        });
    };
    all_up(&node);
    for v6 in [false, true] {
        node.eventually("the other pod is let in", || {
            (!is_denied(&other.namespace, web.address(v6), 8080)).then_some(())
        });
    }
    node.apply("policy", ONLY_CLIENT);
    let check = |node: &ClusterNode| {
        for v6 in [false, true] {
            let to = web.address(v6);
            assert!(connects(&client.namespace, to, 8080), "{plugin} {v6}");
            assert!(is_denied(&other.namespace, to, 8080), "{plugin} {v6}");
            assert!(connects(&node.namespace, to, 8080), "{plugin} {v6}: the node itself");
        }
    };
    check(&node);
    let decided = "default-deny of NetworkPolicy default/web";
    node.eventually("the denials are observed with the deciding policy", || {
        let denied =
            node.verdicts(&["--verdict", "drop", "--from-pod", &other.name, "--to-pod", &web.name]);
        let is_it = |v6: bool| {
            denied.iter().any(|it| {
                let to: Option<IpAddr> = it["to"]["ip"].as_str().and_then(|it| it.parse().ok());
                to == Some(web.address(v6)) && it["to"]["port"] == 8080 && it["by"][0] == decided
            })
        };
        (is_it(false) && is_it(true)).then_some(())
    });
    let status = node.podgate(&["status"]);
    assert!(status.contains("nftables") && !status.contains("is down"), "{status}");
    // Services are seen as their endpoints: what kube-proxy does.
    let to = format!("{}:8080", web.address(false));
    node.namespace.exec(["nft", "add table ip proxy"]);
    node.namespace
        .exec(["nft", "add chain ip proxy pre { type nat hook prerouting priority dstnat; }"]);
    let translate = |protocol: &str, port: u16, to: &str| {
        let rule = format!("ip daddr {SERVICE} {protocol} dport {port} dnat to {to}");
        node.namespace.exec(["nft", &format!("add rule ip proxy pre {rule}")]);
    };
    translate("tcp", 80, &to);
    translate("udp", 9999, &format!("{}:9001", web.address(false)));
    let service: IpAddr = SERVICE.parse().unwrap();
    assert!(connects(&client.namespace, service, 80), "{plugin}: service");
    assert!(is_denied(&other.namespace, service, 80), "{plugin}: service");

    // A denial under streams, one of them to the service, and a killed process.
    let (stream, served) = (Stream::new(), Stream::new());
    let mut live = open(&client.namespace, service, 80, PATIENCE).unwrap();
    let direct = SocketAddr::new(web.address(false), 9000);
    std::thread::scope(|scope| {
        scope.spawn(|| stream.run(&client, direct, &web, 9000));
        scope.spawn(|| served.run(&client, SocketAddr::new(service, 9999), &web, 9001));
        let flowing = |node: &ClusterNode| {
            let received =
                || [&stream, &served].map(|stream| stream.received.load(Ordering::Relaxed));
            let before = received();
            node.eventually("the streams flow", || {
                received().iter().zip(before).all(|(now, before)| *now > before + 50).then_some(())
            });
        };
        assert!(echoes(&mut live));
        flowing(&node);
        node.kill_switch();
        flowing(&node);
        check(&node);
        node.start_switch();
        all_up(&node);
        flowing(&node);
        // Those under way are received a little later.
        node.eventually("all datagrams but two at most", || (stream.missing() <= 2).then_some(()));
        let denied = Instant::now();
        node.write("policy", &ONLY_CLIENT.replace("\"client\"", "\"nobody\""));
        for (what, stream) in [("the pod", &stream), ("its service", &served)] {
            let after = stream.end(&node, denied);
            println!("{plugin}: last packet to {what} {after:?} after the policy was written");
        }
    });
    assert!(has_ended(&mut live), "{plugin}: a connection to the service that was open");
    assert!(is_denied(&client.namespace, web.address(false), 8080));
    // The pods' network is as its plugin made it.
    assert_eq!(node.namespace.exec(["ip", "-o", "link"]), interfaces);
    assert!(node.stop_switch().success());
    assert!(is_denied(&other.namespace, web.address(false), 8080), "{plugin}: the rules stay");
    node.namespace.exec(["nft", "delete table ip proxy"]);
    let folder = folder.path().to_str().unwrap();
    let state = node.state_dir();
    let places = ["--configuration-folder", folder, "--plugin-folder", folder];
    let command = [&[PODGATE, "uninstall", "--state-dir", state.to_str().unwrap()], &places[..]];
    node.namespace.exec(command.concat());
    assert_eq!(node.namespace.exec(["nft", "list", "ruleset"]), "");
    assert!(connects(&other.namespace, web.address(false), 8080), "{plugin}: uninstalled");
}

#[test]
fn pods_of_the_bridge_plugin_are_policed() {
    requires_the_machine!("nft", "/usr/lib/cni/bridge");
    police("bridge");
}

#[test]
fn pods_of_the_ptp_plugin_are_policed() {
    requires_the_machine!("nft", "/usr/lib/cni/ptp");
    police("ptp");
}

/// Where no network of the Node and no option covers its addresses, a pod's own object closes it.
#[test]
fn a_pod_outside_of_the_known_networks_is_closed_with_its_object() {
    requires_the_machine!("nft", "/usr/lib/cni/ptp");
    let node = ClusterNode::start(&["--enforcer", "nftables"]);
    let elsewhere = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node1"},
        "spec": {"podCIDRs": ["10.99.0.0/24"]}});
    node.apply("node1", &elsewhere.to_string());
    node.namespace.exec(["sysctl", "-qw", "net.ipv4.ip_forward=1"]);
    let folder = TempDir::new("ipam");
    let [web, other] = ["web", "other"].map(|it| Foreign::new(&node, "ptp", folder.path(), it));
    node.apply("other", &other.object(json!({"role": "other"})).to_string());
    node.apply("policy", ONLY_CLIENT);
    let stream = Stream::new();
    let to = SocketAddr::new(web.address(false), 9000);
    std::thread::scope(|scope| {
        scope.spawn(|| stream.run(&other, to, &web, 9000));
        node.eventually("the pod is open", || {
            (stream.received.load(Ordering::Relaxed) > 100).then_some(())
        });
        let written = Instant::now();
        node.write("web", &web.object(json!({"role": "web"})).to_string());
        let after = stream.end(&node, written);
        println!("closed {after:?} after the pod's object was written");
    });
    // The next one is closed before it is known.
    let networks = elsewhere.to_string().replace("10.99.0.0/24", "10.77.0.0/24");
    node.apply("node1", &networks);
    let late = Foreign::new(&node, "ptp", folder.path(), "late");
    late.serve();
    assert!(is_denied(&other.namespace, late.address(false), 8080));
}

#[test]
fn iperf3_stops_when_it_is_denied() {
    requires_the_machine!("nft", "/usr/lib/cni/bridge", "iperf3", "ping");
    let node = ClusterNode::start(&["--enforcer", "nftables"]);
    let folder = TempDir::new("ipam");
    let server = Foreign::new(&node, "bridge", folder.path(), "server");
    let client = Foreign::new(&node, "bridge", folder.path(), "client");
    node.write("server", &server.object(json!({"role": "web"})).to_string());
    node.write("client", &client.object(json!({"role": "client"})).to_string());
    // A connection that tries whether the server is there would keep it from the next one.
    let listener = server.namespace.spawn(["iperf3", "-s", "-p", "8080", "--forceflush"]);
    listener.wait_for_line("Server listening", PATIENCE);
    let to = server.address(false).to_string();
    node.eventually("the way to the server", || client.namespace.pings(&to).then_some(()));
    let _client: Process =
        client.namespace.spawn(["iperf3", "-c", to.as_str(), "-p", "8080", "-t", "60"]);
    let received = || -> u64 {
        let path = "/sys/class/net/eth0/statistics/rx_bytes";
        server.namespace.exec(["cat", path]).trim().parse().unwrap()
    };
    node.eventually("gigabits flow", || (received() > 50_000_000).then_some(()));
    let written = Instant::now();
    node.write("policy", &ONLY_CLIENT.replace("\"client\"", "\"nobody\""));
    let (mut last, mut at) = (received(), Instant::now());
    node.eventually("the transfer stops", || {
        let now = received();
        // Neighbours still ask for each other's addresses.
        if now > last + 10_000 {
            (last, at) = (now, Instant::now());
        }
        (at.elapsed() > Duration::from_secs(2)).then_some(())
    });
    println!("iperf3: last byte {:?} after the policy was written", at - written);
}

/// The metric of a pod's port, with its labels.
fn port_up(pod: &str, interface: &str) -> String {
    let labels = format!("namespace=\"default\",pod=\"{pod}\",port=\"default/{pod}\"");
    format!("podgate_port_up{{interface=\"{interface}\",{labels}}}")
}

#[test]
fn status_explain_probe_and_the_saved_state_are_as_with_the_switch() {
    requires_the_machine!("nft", "/usr/lib/cni/bridge");
    let node = ClusterNode::with_api_server(&["--enforcer", "nftables"]);
    let forwarding = ["sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"];
    node.namespace.exec(forwarding);
    let folder = TempDir::new("ipam");
    let pods = ["web", "client", "other"].map(|name| {
        let pod = Foreign::new(&node, "bridge", folder.path(), name);
        node.api_server().apply(pod.object(json!({"role": name})));
        pod.serve();
        pod
    });
    let [web, client, other] = &pods;
    node.eventually("pods reach each other", || {
        let all = [(client, web), (other, web), (web, client)];
        all.iter().all(|(a, b)| !is_denied(&a.namespace, b.address(true), 8080)).then_some(())
    });
    node.api_server().apply(serde_json::from_str(ONLY_CLIENT).unwrap());
    let denied = || is_denied(&other.namespace, web.address(false), 8080);
    node.eventually("the policy is in force", || denied().then_some(()));

    let status = node.status();
    for pod in &pods {
        let name = format!("default/{}", pod.name);
        let port = status["ports"].as_array().unwrap().iter().find(|it| it["name"] == *name);
        let port = port.unwrap_or_else(|| panic!("{status}"));
        assert_eq!((&port["mode"], &port["closed"]), (&json!("nftables"), &json!(false)));
        assert_eq!(port["addresses"].as_array().unwrap().len(), 2);
        assert_eq!(node.metric(&port_up(&pod.name, port["interface"].as_str().unwrap())), 1.0);
    }
    // A pod of macvlan, for example: no interface leads to its address.
    let mut hidden = other.object(json!({"role": "hidden"}));
    hidden["metadata"]["name"] = json!("hidden");
    hidden["status"]["podIPs"] = json!([{"ip": "198.51.100.1"}]);
    node.api_server().apply(hidden);
    node.eventually("the pod is known", || {
        (node.metric("podgate_objects{kind=\"Pod\"}") == 4.0).then_some(())
    });
    assert_eq!(node.metric(&port_up("hidden", "")), 0.0);
    node.api_server().delete("pods", Some("default"), "hidden");
    let kernel = status["kernel"].as_array().unwrap();
    assert!(kernel.iter().any(|it| it["part"] == "nftables" && it["in_sync"] == true), "{status}");
    assert_eq!(status["source"]["state"], "in-sync");
    assert_eq!(node.metric("podgate_objects{kind=\"NetworkPolicy\"}"), 1.0);

    // The rules in force, as `kubectl podgate explain` has them too.
    let tables = node.podgate(&["show", "tables", "--filter", "pod=default/web", "-o", "json"]);
    let rows: Vec<Value> = tables.lines().map(|it| serde_json::from_str(it).unwrap()).collect();
    let of = |direction: &str| -> Vec<&str> {
        let rows = rows.iter().filter(|row| row["direction"] == direction);
        rows.map(|row| row["by"].as_str().unwrap()).collect()
    };
    let rule = "NetworkPolicy default/web ingress[0]";
    assert_eq!(
        of("ingress"),
        [rule, rule, "default-deny of NetworkPolicy default/web"],
        "{tables}"
    );
    assert_eq!(of("egress"), ["default-allow"]);
    assert!(rows[0]["match"].as_str().unwrap().contains("default/client"), "{tables}");

    // The offline commands about this cluster say what connections say.
    let kubeconfig = node.api_server().kubeconfig();
    let kubeconfig = kubeconfig.to_str().unwrap();
    for from in &pods {
        for to in pods.iter().filter(|to| to.name != from.name) {
            let [from_name, to_name] = [from, to].map(|pod| format!("default/{}", pod.name));
            let command = [PODGATE, "policy", "explain", &from_name, &to_name, "--port", "8080"];
            let command = command.into_iter().chain(["--kubeconfig", kubeconfig, "-o", "json"]);
            let output = node.namespace.try_exec(command);
            let answer: Value = serde_json::from_slice(&output.stdout)
                .unwrap_or_else(|error| panic!("{error}: {}", text(&output.stderr)));
            let opens = answer["permits"] == true;
            let way = (&from.namespace, to.address(false), 8080);
            let is_right = if opens { connects } else { is_denied };
            assert!(is_right(way.0, way.1, way.2), "{from_name} to {to_name}: {answer}");
            assert_eq!(output.status.code(), Some(if opens { 0 } else { 1 }));
            if !opens {
                assert_eq!(answer["by"], json!(["default-deny of NetworkPolicy default/web"]));
            }
        }
    }
    let cases = folder.path().join("cases.yaml");
    std::fs::write(
        &cases,
        "- {from: default/client, to: default/web, protocol: TCP, port: 8080, expect: allow}\n\
         - {from: default/other, to: default/web, protocol: TCP, port: 8080, expect: deny}\n\
         - {from: default/client, to: default/web, protocol: TCP, port: 80, expect: deny}\n",
    )
    .unwrap();
    let cases = cases.to_str().unwrap();
    let probe = [PODGATE, "policy", "probe", "--kubeconfig", kubeconfig, "--cases", cases];
    assert!(node.namespace.try_exec(probe).status.success());

    // The saved state is in force without the API server, where no rule of before is left.
    node.eventually("the state to be saved", || {
        let source = node.status()["source"].clone();
        let time = |field: &str| source[field].as_str().map(str::to_owned);
        (time("saved") > time("last_event")).then_some(())
    });
    node.api_server().go_away();
    node.kill_switch();
    assert!(denied(), "the rules stay");
    node.namespace.exec(["nft", "flush", "ruleset"]);
    assert!(connects(&other.namespace, web.address(false), 8080));
    node.start_switch();
    let source = node.status()["source"].clone();
    assert!(source["restored_from"].is_string() && source["synced"] == false, "{source}");
    node.eventually("the permitted pod is let in", || {
        (!is_denied(&client.namespace, web.address(true), 8080)).then_some(())
    });
    assert!(denied());
    // It comes back, without the policy.
    node.api_server().delete("networkpolicies", Some("default"), "web");
    node.api_server().come_back();
    node.eventually("the deletion is in force", || (!denied()).then_some(()));
}
