//! `podgate run --enforcer nftables` on pods that the standard plugins `bridge` and `ptp` made.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::{Namespace, Process, TempDir};

use crate::cluster_node::{ClusterNode, PODGATE, text};
use crate::requires_the_machine;

/// How long a client waits for an answer that the policy forbids.
const BLOCKED: Duration = Duration::from_millis(700);

/// A pod of another plugin.
struct Foreign {
    name: String,
    namespace: Namespace,
    addresses: Vec<IpAddr>,
}

impl Foreign {
    /// Calls the plugin as a runtime would, without podgate-cni.
    fn new(node: &ClusterNode, plugin: &str, folder: &Path, name: &str) -> Self {
        let mut config = json!({
            "cniVersion": "1.0.0", "name": "pods", "type": plugin,
            "ipam": {"type": "host-local", "dataDir": folder,
                "ranges": [[{"subnet": "10.77.0.0/24"}], [{"subnet": "fd77::/64"}]],
                "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]},
        });
        if plugin == "bridge" {
            config["bridge"] = json!("cni0");
            config["isGateway"] = json!(true);
        }
        let namespace = Namespace::new(name);
        let program = format!("/usr/lib/cni/{plugin}");
        let output = node.call_plugin(program.as_ref(), "ADD", name, &namespace, &config);
        assert!(output.status.success(), "{} {}", text(&output.stdout), text(&output.stderr));
        let result: Value = serde_json::from_slice(&output.stdout).unwrap();
        let addresses =
            result["ips"].as_array().unwrap().iter().map(|ip| {
                ip["address"].as_str().unwrap().split('/').next().unwrap().parse().unwrap()
            });
        let addresses = addresses.collect();
        Self { name: name.to_owned(), namespace, addresses }
    }

    fn object(&self, labels: Value) -> String {
        let ips: Vec<Value> = self.addresses.iter().map(|ip| json!({"ip": ip})).collect();
        json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": self.name, "namespace": "default", "labels": labels},
            "spec": {"nodeName": "node1", "containers": [{"name": "c", "image": "x"}]},
            "status": {"phase": "Running", "podIPs": ips}})
        .to_string()
    }

    fn address(&self, v6: bool) -> IpAddr {
        *self.addresses.iter().find(|it| it.is_ipv6() == v6).unwrap()
    }

    /// Answers every TCP connection to port 8080 with its peer's address.
    fn serve(&self) {
        let listener = linux_net::in_namespace(self.namespace.path(), || {
            TcpListener::bind("[::]:8080").unwrap()
        });
        let listener = listener.unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                std::thread::spawn(move || {
                    let mut bytes = [0; 1024];
                    while let Ok(count @ 1..) = stream.read(&mut bytes) {
                        let _ = stream.write_all(&bytes[..count]);
                    }
                });
            }
        });
    }
}

/// Whether a TCP connection opens.
fn connects(from: &Namespace, to: IpAddr, port: u16) -> bool {
    let connect = || TcpStream::connect_timeout(&SocketAddr::new(to, port), BLOCKED).is_ok();
    linux_net::in_namespace(from.path(), connect).unwrap()
}

const ONLY_CLIENT: &str = r#"{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
    "metadata": {"name": "web", "namespace": "default"},
    "spec": {"podSelector": {"matchLabels": {"role": "web"}}, "policyTypes": ["Ingress"],
        "ingress": [{"from": [{"podSelector": {"matchLabels": {"role": "client"}}}],
                     "ports": [{"port": 8080}, {"port": 9000, "protocol": "UDP"}]}]}}"#;

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

    fn run(&self, from: &Foreign, to: &Foreign) {
        let address = SocketAddr::new(to.address(false), 9000);
        let receiver = linux_net::in_namespace(to.namespace.path(), || {
            UdpSocket::bind("0.0.0.0:9000").unwrap()
        });
        let sender = linux_net::in_namespace(from.namespace.path(), || {
            UdpSocket::bind("0.0.0.0:0").unwrap()
        });
        let (receiver, sender) = (receiver.unwrap(), sender.unwrap());
        receiver.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
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
    std::thread::sleep(Duration::from_secs(2));
    assert!(!connects(&client.namespace, web.address(false), 8080), "{plugin}: not known yet");
    for (pod, role) in [(&web, "web"), (&client, "client"), (&other, "other")] {
        node.write(&pod.name, &pod.object(json!({"role": role})));
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
            connects(&other.namespace, web.address(v6), 8080).then_some(())
        });
    }
    node.apply("policy", ONLY_CLIENT);
    let check = |node: &ClusterNode| {
        for v6 in [false, true] {
            let to = web.address(v6);
            assert!(connects(&client.namespace, to, 8080), "{plugin} {v6}");
            assert!(!connects(&other.namespace, to, 8080), "{plugin} {v6}");
            assert!(connects(&node.namespace, to, 8080), "{plugin} {v6}: the cluster node itself");
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
    assert!(text(&node.podgate(&["status"]).into_bytes()).contains("nftables"));
    // Services are seen as their endpoints: what kube-proxy does.
    let to = format!("{}:8080", web.address(false));
    node.namespace.exec(["nft", "add table ip proxy"]);
    node.namespace
        .exec(["nft", "add chain ip proxy pre { type nat hook prerouting priority dstnat; }"]);
    node.namespace.exec([
        "nft",
        &format!("add rule ip proxy pre ip daddr 10.96.0.1 tcp dport 80 dnat to {to}"),
    ]);
    let service = "10.96.0.1".parse().unwrap();
    assert!(connects(&client.namespace, service, 80), "{plugin}: service");
    assert!(!connects(&other.namespace, service, 80), "{plugin}: service");

    // A denial under a stream, and a killed process.
    let stream = Stream::new();
    std::thread::scope(|scope| {
        scope.spawn(|| stream.run(&client, &web));
        let flowing = |node: &ClusterNode| {
            let before = stream.received.load(Ordering::Relaxed);
            node.eventually("the stream flows", || {
                (stream.received.load(Ordering::Relaxed) > before + 50).then_some(())
            });
        };
        flowing(&node);
        node.kill_switch();
        flowing(&node);
        check(&node);
        node.start_switch();
        all_up(&node);
        flowing(&node);
        let lost = stream.sent.load(Ordering::Relaxed) - stream.received.load(Ordering::Relaxed);
        assert!(lost <= 2, "{plugin}: {lost} datagrams were lost by the restart");
        let denied = Instant::now();
        node.write("policy", &ONLY_CLIENT.replace("\"client\"", "\"nobody\""));
        let quiet = |mark: &mut (u64, Instant)| {
            let now = stream.received.load(Ordering::Relaxed);
            if now != mark.0 {
                *mark = (now, Instant::now());
            }
            mark.1.elapsed() > Duration::from_secs(1)
        };
        let mut mark = (0, Instant::now());
        node.eventually("the stream ends", || quiet(&mut mark).then_some(()));
        stream.ended.store(true, Ordering::Relaxed);
        let last = stream.began + Duration::from_micros(stream.last_us.load(Ordering::Relaxed));
        println!("{plugin}: last packet {:?} after the policy was written", last - denied);
    });
    assert!(!connects(&client.namespace, web.address(false), 8080));
    // The pods' network is as its plugin made it.
    assert_eq!(node.namespace.exec(["ip", "-o", "link"]), interfaces);
    assert!(node.stop_switch().success());
    assert!(!connects(&other.namespace, web.address(false), 8080), "{plugin}: the rules stay");
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

#[test]
fn iperf3_stops_when_it_is_denied() {
    requires_the_machine!("nft", "/usr/lib/cni/bridge", "iperf3");
    let node = ClusterNode::start(&["--enforcer", "nftables"]);
    let folder = TempDir::new("ipam");
    let server = Foreign::new(&node, "bridge", folder.path(), "server");
    let client = Foreign::new(&node, "bridge", folder.path(), "client");
    node.write("server", &server.object(json!({"role": "web"})));
    node.write("client", &client.object(json!({"role": "client"})));
    let _server: Process = server.namespace.spawn(["iperf3", "-s", "-p", "8080"]);
    let to = server.address(false);
    node.eventually("the server is there", || connects(&client.namespace, to, 8080).then_some(()));
    let to = to.to_string();
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
