//! Two nodes: pods, policies and services across them, the world outside, and the
//! kernel's own traffic on the interface that they share with it.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;

use serde_json::{Value, json};
use testkit::{Namespace, Process, pings};

use crate::api_server::policy;
use crate::cluster_node::{BLOCKED, PATIENCE, flow_offload};
use crate::lan::{FAR, Lan, ip};
use crate::pod::Pod;
use crate::requires_the_machine;

/// A service with one endpoint.
pub(crate) fn service(pod: &Pod<'_>, node: &str, spec: &Value) -> [Value; 2] {
    let metadata = json!({"name": "db", "namespace": "default",
        "labels": {"kubernetes.io/service-name": "db"}});
    let mut service = json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata,
        "spec": {"clusterIPs": ["10.96.0.10"],
            "ports": [{"port": 6380, "targetPort": 6379, "nodePort": 30379}]}});
    for (key, value) in spec.as_object().unwrap() {
        service["spec"][key] = value.clone();
    }
    let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "addressType": "IPv4", "metadata": metadata,
        "endpoints": [{"addresses": [pod.v4()], "nodeName": node, "conditions": {"ready": true}}],
        "ports": [{"port": 6379}]});
    [service, slice]
}

/// Applies a service with one endpoint, at node port 30379 unless `spec` says otherwise.
pub(crate) fn apply_service(lan: &Lan, pod: &Pod<'_>, node: &str, spec: &Value) {
    let [service, slice] = service(pod, node, spec);
    lan.apply("service", &service);
    lan.apply("slice", &slice);
}

/// Returns whether redis answers at this address to a client in this namespace.
pub(crate) fn asks(namespace: &Namespace, address: &str, port: u16) -> bool {
    let (port, limit) = (port.to_string(), BLOCKED.as_secs().to_string());
    let command = ["timeout", &limit, "redis-cli", "-h", address, "-p", &port, "ping"];
    String::from_utf8_lossy(&namespace.try_exec(command).stdout).trim() == "PONG"
}

#[test]
fn pods_and_policies_reach_across_cluster_nodes() {
    requires_the_machine!("redis-server", "redis-cli", "ping");
    for underlay in ["vxlan", "routed"] {
        let lan = Lan::start(&["--underlay", underlay]);
        let [one, two] = &lan.nodes[..] else { panic!("two nodes") };
        let (near, friend) = (one.pod("near", "near"), one.pod("friend", "friend"));
        let (db, other) = (two.pod("db", "db"), two.pod("other", "other"));
        let _server = db.serve_redis();
        assert!(near.pings(other.v4()) && near.pings(other.v6()), "{underlay}");
        assert!(other.pings(near.v4()) && other.pings(near.v6()), "{underlay}");
        assert!(near.asks_redis(&db) && friend.asks_redis(&db) && other.asks_redis(&db));
        // The nodes themselves, to pods elsewhere and back.
        let to = other.v4().to_string();
        one.namespace.exec(["ping", "-c", "1", "-W", "2", to.as_str()]);
        assert!(near.pings("192.0.2.2".parse().unwrap()), "{underlay}");
        lan.apply("policy", &policy("friend"));
        assert!(friend.asks_redis(&db), "{underlay}");
        assert!(near.is_kept_from_redis(&db) && other.is_kept_from_redis(&db), "{underlay}");
        let denied = two.verdicts(&["--verdict", "dropped", "--to-pod", "default/db"]);
        let from = near.v4().to_string();
        assert!(denied.iter().any(|it| it.to_string().contains(&from)), "{denied:?}");
    }
}

#[test]
fn streams_fill_the_tunnel() {
    requires_the_machine!("iperf3");
    let lan = Lan::start(&[]);
    let (client, server) =
        (lan.nodes[0].pod("client", "client"), lan.nodes[1].pod("server", "server"));
    let listener = server.namespace.spawn(["iperf3", "-s", "-1", "--forceflush"]);
    listener.wait_for_line("Server listening", PATIENCE);
    let address = server.v4().to_string();
    let result = client.namespace.exec(["iperf3", "-J", "-t", "2", "-c", &address]);
    let result: Value = serde_json::from_str(&result).unwrap();
    let bytes = result["end"]["sum_received"]["bytes"].as_u64().unwrap();
    assert!(bytes > 1_000_000, "{result}");
}

#[test]
fn services_lead_to_pods_on_other_cluster_nodes() {
    requires_the_machine!("redis-server", "redis-cli", "curl");
    let lan = Lan::start(&["--service-networks", "10.96.0.0/12"]);
    let [one, two] = &lan.nodes[..] else { panic!("two nodes") };
    let client = one.pod("client", "friend");
    let db = two.pod("db", "db");
    let _server = db.serve_redis();
    apply_service(&lan, &db, "node2", &json!({}));
    assert!(asks(&client.namespace, "10.96.0.10", 6380));
    // A pod reaches itself through its service, and its own node's processes do.
    assert!(asks(&db.namespace, "10.96.0.10", 6380));
    assert!(asks(&two.namespace, "10.96.0.10", 6380));
    assert!(asks(&one.namespace, "10.96.0.10", 6380));
    // From outside: at the pod's node, and at the other one.
    assert!(asks(&lan.world, "192.0.2.2", 30379));
    assert!(asks(&lan.world, "192.0.2.1", 30379));
    let sessions = one.podgate(&["show", "sessions"]);
    assert!(sessions.contains("10.96.0.10:6380"), "{sessions}");
    // Policies see the pod behind the service, and who really asks.
    lan.apply("policy", &policy("friend"));
    assert!(asks(&client.namespace, "10.96.0.10", 6380));
    assert!(!asks(&lan.world, "192.0.2.2", 30379));
    // Without endpoints the answer is immediate.
    let mut slice = service(&db, "node2", &json!({}))[1].clone();
    slice["endpoints"] = json!([]);
    lan.apply("slice", &slice);
    let refused = client.connect("10.96.0.10".parse().unwrap(), 6380).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
}

/// As a cloud's metadata service: on the nodes' link, without a route to pods.
#[test]
fn pods_reach_the_metadata_service_through_their_cluster_nodes_kernel() {
    requires_the_machine!("redis-server", "redis-cli");
    for masquerade in ["kernel", "direct"] {
        let lan = Lan::start(&["--masquerade", masquerade]);
        ip(&lan.world, "address add 169.254.169.254/32 dev lo");
        let command =
            "redis-server --bind 169.254.169.254 --protected-mode no --save  --daemonize no";
        let server = lan.world.spawn(command.split(' '));
        server.wait_for_line("Ready to accept connections", PATIENCE);
        let (friend, other) =
            (lan.nodes[0].pod("friend", "friend"), lan.nodes[0].pod("other", "other"));
        for pod in [&friend, &other] {
            assert!(asks(&pod.namespace, "169.254.169.254", 6379), "{masquerade}");
        }
        let denial = json!({"apiVersion": "policy.networking.k8s.io/v1alpha2",
            "kind": "ClusterNetworkPolicy", "metadata": {"name": "metadata"},
            "spec": {"tier": "Admin", "priority": 1,
                "subject": {"pods": {"namespaceSelector": {}, "podSelector": {"matchLabels": {"role": "other"}}}},
                "egress": [{"action": "Deny", "to": [{"networks": ["169.254.169.254/32"]}]}]}});
        lan.apply("metadata", &denial);
        assert!(!asks(&other.namespace, "169.254.169.254", 6379), "{masquerade}");
        assert!(asks(&friend.namespace, "169.254.169.254", 6379), "{masquerade}");
    }
}

#[test]
fn external_traffic_may_be_kept_local() {
    requires_the_machine!("redis-server", "redis-cli");
    let lan = Lan::start(&[]);
    let db = lan.nodes[1].pod("db", "db");
    let _server = db.serve_redis();
    apply_service(&lan, &db, "node2", &json!({"externalTrafficPolicy": "Local"}));
    assert!(asks(&lan.world, "192.0.2.2", 30379));
    assert!(!asks(&lan.world, "192.0.2.1", 30379));
    let client = lan.nodes[0].pod("client", "client");
    assert!(asks(&client.namespace, "10.96.0.10", 6380), "the cluster address is another matter");
}

/// A service with a hand-made endpoint slice leads a client outside nowhere that no pod may go.
#[test]
fn a_hand_made_slice_leads_nobody_past_an_egress_firewall() {
    requires_the_machine!("redis-server", "redis-cli");
    let lan = Lan::start(&[]);
    let [one, two] = &lan.nodes[..] else { panic!("two nodes") };
    let command = "redis-server --bind * -::* --protected-mode no --save  --daemonize no";
    let servers = [one, two].map(|node| node.namespace.spawn(command.split(' ')));
    for server in &servers {
        server.wait_for_line("Ready to accept connections", PATIENCE);
    }
    let pod = two.pod("db", "db");
    let _server = pod.serve_redis();
    let [mut service, mut slice] = service(&pod, "node2", &json!({}));
    for (name, port, to) in
        [("near", 30001, "192.0.2.1"), ("far", 30002, "192.0.2.2"), ("pod", 30003, "")]
    {
        let to = if to.is_empty() { pod.v4().to_string() } else { to.to_owned() };
        service["metadata"]["name"] = name.into();
        service["spec"]["clusterIPs"] = json!([format!("10.96.0.{}", port % 100)]);
        service["spec"]["ports"][0]["nodePort"] = port.into();
        slice["metadata"]["name"] = name.into();
        slice["metadata"]["labels"]["kubernetes.io/service-name"] = name.into();
        slice["endpoints"][0] = json!({"addresses": [to], "conditions": {"ready": true}});
        lan.write(&format!("slice-{name}"), &slice);
        lan.apply(&format!("service-{name}"), &service);
        one.eventually(name, || asks(&lan.world, "192.0.2.1", port).then_some(()));
    }
    lan.apply(
        "firewall",
        &json!({"apiVersion": "podgate.io/v1alpha1",
        "kind": "ClusterEgressFirewall", "metadata": {"name": "nodes"},
        "spec": {"egress": [{"action": "Deny", "to": [{"nodes": {}}]}]}}),
    );
    assert!(!asks(&lan.world, "192.0.2.1", 30001) && !asks(&lan.world, "192.0.2.1", 30002));
    assert!(asks(&lan.world, "192.0.2.1", 30003), "a pod has its own policies");
    let denied = one.verdicts(&["--verdict", "dropped"]);
    let by = "ClusterEgressFirewall nodes egress[0]";
    assert!(denied.iter().any(|it| it["by"] == json!([by])), "{denied:?}");
}

/// Tells every client who it seems to be.
fn mirror(namespace: &Namespace, at: &str) -> Process {
    let address = at.to_owned();
    let script = format!(
        "import socket\ns = socket.create_server(('{address}', 7000))\nprint('listening', flush=True)\n\
         while True:\n c, a = s.accept()\n c.sendall(a[0].encode())\n c.close()\n"
    );
    let server = namespace.spawn(["python3", "-c", &script]);
    server.wait_for_line("listening", PATIENCE);
    server
}

#[test]
fn pods_reach_the_world_as_their_cluster_node() {
    requires_the_machine!("python3", "nft");
    for masquerade in ["kernel", "direct"] {
        let lan = Lan::start(&["--masquerade", masquerade]);
        let _mirror = mirror(&lan.world, FAR);
        let pod = lan.nodes[0].pod("client", "client");
        let seen_as = |pod: &Pod<'_>| {
            let mut text = String::new();
            let mut stream = pod.try_connect(FAR.parse().unwrap(), 7000).ok()?;
            stream.read_to_string(&mut text).ok()?;
            Some(text)
        };
        lan.nodes[0].eventually("an answer", || seen_as(&pod));
        assert_eq!(seen_as(&pod).as_deref(), Some("192.0.2.1"), "{masquerade}");
        assert!(pod.pings(FAR.parse().unwrap()), "{masquerade}");
    }
}

/// A TCP connection between two namespaces that lasts.
pub(crate) struct Connection {
    client: TcpStream,
    server: TcpStream,
}

impl Connection {
    pub(crate) fn open(client: &Path, server: &Path, address: SocketAddr) -> Self {
        let bind = || TcpListener::bind(address).unwrap();
        let listener = linux_net::in_namespace(server, bind).unwrap();
        let connect = || TcpStream::connect_timeout(&address, PATIENCE).unwrap();
        let client = linux_net::in_namespace(client, connect).unwrap();
        let (server, _) = listener.accept().unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { client, server }
    }

    #[track_caller]
    pub(crate) fn goes_on(&mut self) {
        let mut bytes = [0; 4];
        self.server.write_all(b"ping").unwrap();
        self.client.read_exact(&mut bytes).expect("the connection goes on");
        assert_eq!(&bytes, b"ping");
    }

    /// Both ends send while no switch forwards.
    fn says_something(&mut self) {
        self.server.write_all(b"ping").unwrap();
        self.client.write_all(b"pong").unwrap();
    }
}

#[test]
fn a_killed_switch_disturbs_nobody_else_opens_nothing_and_connections_outlive_it() {
    requires_the_machine!("ping");
    let lan = Lan::start(&[]);
    let kernel: SocketAddr = "192.0.2.1:2222".parse().unwrap();
    let node = lan.nodes[0].namespace.path().to_owned();
    let mut kernels = Connection::open(lan.world.path(), &node, kernel);
    // Detached by hand: they outlive the borrow of the node.
    let pods = [(0, "client"), (0, "other"), (1, "db")].map(|(node, name)| {
        let pod = std::mem::ManuallyDrop::new(lan.nodes[node].pod(name, name));
        (pod.namespace.name().to_owned(), pod.namespace.path().to_owned(), pod.v4())
    });
    let [client, other, db] = &pods;
    let pings = |from: &str, to: IpAddr| pings(from, &to.to_string());
    // One to another node, one that a policy will have ended by the time of the restart,
    // and one between pods of one node.
    let mut far = Connection::open(&client.1, &db.1, SocketAddr::new(db.2, 7001));
    let mut denied = Connection::open(&other.1, &db.1, SocketAddr::new(db.2, 7002));
    let mut near = Connection::open(&other.1, &client.1, SocketAddr::new(client.2, 7003));
    for connection in [&mut kernels, &mut far, &mut denied, &mut near] {
        connection.goes_on();
    }
    lan.nodes[0].kill_switch();
    kernels.goes_on();
    assert!(!pings(&client.0, db.2), "nobody forwards");
    for connection in [&mut far, &mut denied, &mut near] {
        connection.says_something();
    }
    let mut bytes = [0; 4];
    if flow_offload() {
        // For the grace the kernel goes on by the policies of before.
        denied.client.set_read_timeout(Some(BLOCKED)).unwrap();
        let _ = denied.client.read_exact(&mut bytes);
    }
    lan.write("policy", &policy("client"));
    lan.nodes[0].start_switch();
    for connection in [&mut kernels, &mut far, &mut near] {
        connection.goes_on();
    }
    denied.says_something();
    denied.client.set_read_timeout(Some(BLOCKED)).unwrap();
    assert!(denied.client.read_exact(&mut bytes).is_err(), "a denied connection stays denied");
    assert!(pings(&client.0, db.2) && !pings(&other.0, db.2));
    // An orderly end leaves the interface as it was.
    assert!(lan.nodes[0].stop_switch().success());
    kernels.goes_on();
    let link = lan.nodes[0].namespace.exec(["ip", "link", "show", "eth0"]);
    assert!(!link.contains("xdp"), "{link}");
    for (namespace, ..) in &pods {
        let deleted =
            std::process::Command::new("ip").args(["netns", "delete", namespace]).status();
        assert!(deleted.unwrap().success());
    }
}
