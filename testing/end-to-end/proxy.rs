//! The network proxy beside the switch: one policy holds for a pod's packets and for connections
//! through the proxy.

use std::path::PathBuf;

use konnectivity::client::Tunnel;
use konnectivity::packet::Packet;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};
use testkit::{Namespace, Process, TempDir};
use tokio::runtime::Runtime;

use crate::cluster_node::{PATIENCE, PODGATE};
use crate::lan::Lan;
use crate::pod::Pod;
use crate::policies::nothing_in;
use crate::{ClusterNode, requires_the_machine};

const NO_METADATA: &str = "
apiVersion: podgate.io/v1alpha1
kind: ClusterEgressFirewall
metadata: {name: no-metadata}
spec:
  egress:
  - action: Deny
    to: [{networks: [10.77.0.1/32]}]
    protocols: [{tcp: {destinationPort: {number: 80}}}]
";

/// Server and agent of the proxy.
struct Proxy {
    folder: TempDir,
    _server: Process,
    agent: Process,
    runtime: Runtime,
}

impl Proxy {
    /// The server runs on the node, the agent in `agent`; it finds the server at `host`.
    fn start(node: &ClusterNode, agent: &Namespace, host: &str) -> Self {
        let folder = TempDir::new("proxy");
        let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
        let write = |name: &str, text: String| std::fs::write(path(name), text).unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        write("ca.crt", params.self_signed(&key).unwrap().pem());
        let issuer = Issuer::new(params, key);
        for name in ["server", "agent"] {
            let key = KeyPair::generate().unwrap();
            let params = CertificateParams::new(vec![host.to_owned()]).unwrap();
            write(&format!("{name}.crt"), params.signed_by(&key, &issuer).unwrap().pem());
            write(&format!("{name}.key"), key.serialize_pem());
        }
        let (socket, audit) = (path("server.sock"), path("audit"));
        let server = node.namespace.spawn([
            PODGATE.to_owned(),
            "konnectivity-server".to_owned(),
            format!("--uds-name={socket}"),
            "--server-port=0".to_owned(),
            format!("--cluster-cert={}", path("server.crt")),
            format!("--cluster-key={}", path("server.key")),
            format!("--cluster-ca-cert={}", path("ca.crt")),
        ]);
        server.wait_for_line("API server at", PATIENCE);
        let agent = agent.spawn([
            PODGATE.to_owned(),
            "konnectivity-agent".to_owned(),
            format!("--proxy-server-host={host}"),
            format!("--ca-cert={}", path("ca.crt")),
            format!("--agent-cert={}", path("agent.crt")),
            format!("--agent-key={}", path("agent.key")),
            format!("--podgate-socket={}", node.socket().display()),
            format!("--audit-log={audit}"),
            "--audit-format=json".to_owned(),
            "--sync-interval=50ms".to_owned(),
        ]);
        agent.wait_for_line("servers at", PATIENCE);
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        Self { folder, _server: server, agent, runtime }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("server.sock")
    }

    /// A connection to `target`, or why there is none.
    fn dial(&self, target: &str) -> Result<(Tunnel, i64), String> {
        self.runtime.block_on(async {
            let mut tunnel = Tunnel::unix(&self.socket()).await.unwrap();
            let connection = tunnel.dial(target).await?;
            Ok((tunnel, connection))
        })
    }

    fn ping_redis(&self, (tunnel, connection): &mut (Tunnel, i64)) {
        tunnel.send_data(*connection, b"PING\r\n");
        let answer = self.runtime.block_on(tunnel.receive_data(7)).unwrap();
        assert_eq!(answer, b"+PONG\r\n");
    }

    /// Outcomes of connections through the agent.
    fn outcomes(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.folder.path().join("audit")).unwrap_or_default();
        let outcome = |line| {
            let line: Value = serde_json::from_str(line).unwrap();
            line["outcome"].as_str().unwrap().to_owned()
        };
        text.lines().map(outcome).collect()
    }
}

#[test]
fn one_policy_denies_a_packet_and_a_proxied_connection() {
    requires_the_machine!("redis-server", "redis-cli");
    let node = ClusterNode::start(&[]);
    let (db, frontend) = (node.pod("db", "db"), node.pod("frontend", "frontend"));
    let _redis = db.serve_redis();
    let proxy = Proxy::start(&node, &node.namespace, "127.0.0.1");
    proxy.agent.wait_for_line("connected with server", PATIENCE);
    let target = format!("{}:6379", db.v4());
    assert!(frontend.asks_redis(&db));
    let mut open = proxy.dial(&target).unwrap();
    proxy.ping_redis(&mut open);

    node.apply("policy", &nothing_in("db"));
    assert!(frontend.is_kept_from_redis(&db));
    let by = "default-deny of NetworkPolicy default/nothing-in-db";
    // A new denial reaches the connection that is open, and those to come.
    let closed = proxy.runtime.block_on(async {
        tokio::time::timeout(PATIENCE, open.0.receive()).await.expect("it is closed")
    });
    match closed {
        Some(Packet::CloseResponse { error, .. }) => assert!(error.contains(by), "{error}"),
        other => panic!("{other:?}"),
    }
    let denied = proxy.dial(&target).unwrap_err();
    assert!(denied.contains("denied by session rule") && denied.contains(by), "{denied}");
    node.eventually("the audit", || {
        let denied = proxy.outcomes().iter().filter(|it| it.contains(by)).count();
        (denied == 2).then_some(())
    });

    node.withdraw("policy");
    assert!(frontend.asks_redis(&db));
    node.eventually("the permission", || {
        let mut open = proxy.dial(&target).ok()?;
        proxy.ping_redis(&mut open);
        Some(())
    });
}

/// A service of `db` by every kind of address, and a host port of the pod.
fn services_of(lan: &Lan, db: &Pod<'_>) {
    let ips: Vec<Value> = db.addresses.iter().map(|ip| json!({"ip": ip})).collect();
    lan.write(
        "pod-db",
        &json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": db.name, "namespace": "default", "labels": {"role": "db"}},
        "spec": {"nodeName": "node1", "containers": [{"name": "c", "image": "x",
            "ports": [{"containerPort": 6379, "hostPort": 8080}]}]},
        "status": {"podIPs": ips}}),
    );
    lan.write(
        "slice",
        &json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "db-1", "namespace": "default",
            "labels": {"kubernetes.io/service-name": "db"}},
        "endpoints": [{"addresses": [db.v4()], "nodeName": "node1", "conditions": {"ready": true}}],
        "ports": [{"port": 6379}]}),
    );
    lan.apply(
        "service",
        &json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "db", "namespace": "default"},
        "spec": {"type": "LoadBalancer", "clusterIPs": ["10.96.0.10"], "externalIPs": ["203.0.113.7"],
            "ports": [{"port": 80, "targetPort": 6379, "nodePort": 30080}]},
        "status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.8"}]}}}),
    );
}

#[test]
fn no_address_of_a_service_leads_past_a_policy() {
    requires_the_machine!("redis-server", "nft");
    let lan = Lan::start(&["--external-ips", "203.0.113.0/24"]);
    let node = &lan.nodes[0];
    let (db, other) = (node.pod("db", "db"), node.pod("other", "other"));
    let _redis = db.serve_redis();
    services_of(&lan, &db);
    let proxy = Proxy::start(node, &node.namespace, "127.0.0.1");
    proxy.agent.wait_for_line("connected with server", PATIENCE);
    let targets = [
        format!("{}:6379", db.v4()),
        "10.96.0.10:80".to_owned(),
        "[::ffff:10.96.0.10]:80".to_owned(),
        "203.0.113.7:80".to_owned(),
        "203.0.113.8:80".to_owned(),
        "192.0.2.1:30080".to_owned(),
        "[::ffff:192.0.2.1]:30080".to_owned(),
        "192.0.2.1:8080".to_owned(),
        "[::ffff:192.0.2.1]:8080".to_owned(),
    ];
    let mut open: Vec<_> = targets
        .iter()
        .map(|target| {
            let open = node.eventually(target, || proxy.dial(target).ok());
            (target, open)
        })
        .collect();
    open.iter_mut().for_each(|(_, open)| proxy.ping_redis(open));
    // The port of the switch's own address by which the kernel leads processes of the node to it.
    let redirected = "169.254.1.2:30080";
    proxy.ping_redis(&mut proxy.dial(redirected).unwrap());

    lan.apply("policy", &serde_saphyr::from_str(&nothing_in("db")).unwrap());
    let by = "default-deny of NetworkPolicy default/nothing-in-db";
    for (target, (mut tunnel, _)) in open {
        let closed = proxy.runtime.block_on(async {
            tokio::time::timeout(PATIENCE, tunnel.receive()).await.expect("it is closed")
        });
        match closed {
            Some(Packet::CloseResponse { error, .. }) => {
                assert!(error.contains(by), "{target}: {error}")
            }
            unexpected => panic!("{target}: {unexpected:?}"),
        }
    }
    for target in targets.iter().map(String::as_str).chain([redirected]) {
        let denied = proxy.dial(target).expect_err(target);
        assert!(
            denied.contains("denied by session rule") && denied.contains(by),
            "{target}: {denied}"
        );
    }
    // A second endpoint that no policy closes is the one that connections get.
    let _redis = other.serve_redis();
    let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "addressType": "IPv4", "metadata": {"name": "db-2", "namespace": "default",
            "labels": {"kubernetes.io/service-name": "db"}},
        "endpoints": [{"addresses": [other.v4()], "nodeName": "node1", "conditions": {"ready": true}}],
        "ports": [{"port": 6379}]});
    lan.apply("slice-2", &slice);
    for target in ["10.96.0.10:80", "203.0.113.7:80", "192.0.2.1:30080"] {
        node.eventually(target, || proxy.dial(target).ok());
        for _ in 0..6 {
            proxy.ping_redis(&mut proxy.dial(target).unwrap());
        }
    }
}

#[test]
fn an_egress_firewall_holds_for_an_agent_that_is_a_pod() {
    requires_the_machine!();
    let node = ClusterNode::start(&[]);
    {
        let pod = node.pod("agent", "agent");
        let proxy = Proxy::start(&node, &pod.namespace, "10.77.0.1");
        proxy.agent.wait_for_line("connected with server", PATIENCE);
        // The server's own health port: any that listens on the node will do.
        assert!(proxy.dial("10.77.0.1:8092").is_ok());
        let nobody = proxy.dial("10.77.0.1:80").unwrap_err();
        assert!(nobody.contains("connection refused"), "{nobody}");

        node.apply("firewall", NO_METADATA);
        let by = "ClusterEgressFirewall no-metadata";
        let denied = node.eventually("the denial", || {
            proxy.dial("10.77.0.1:80").err().filter(|it| it.contains("denied by session rule"))
        });
        assert!(denied.contains("local default/agent tcp") && denied.contains(by), "{denied}");
        // The packet of the pod itself is denied by the same.
        assert!(pod.try_connect("10.77.0.1".parse().unwrap(), 80).is_err());
        let verdicts = node.verdicts(&["--verdict", "dropped", "--from-pod", "default/agent"]);
        let last = verdicts.last().expect("a verdict about the agent's pod");
        assert!(last["by"][0].as_str().unwrap().contains(by), "{last}");
        assert!(proxy.dial("10.77.0.1:8092").is_ok());
    }
    // Without a switch the rules stay; an agent that never saw them connects to no server.
    let switch_less = |name: &str| {
        let proxy = Proxy::start(&node, &node.namespace, "127.0.0.1");
        proxy.agent.wait_for_line("connected with server", PATIENCE);
        node.kill_switch();
        assert!(proxy.dial("127.0.0.1:8092").is_ok(), "{name}");
        drop(proxy);
        let proxy = Proxy::start(&node, &node.namespace, "127.0.0.1");
        let denied = proxy.dial("127.0.0.1:8092").unwrap_err();
        assert_eq!(denied, "No agent available", "{name}");
    };
    switch_less("host");
}
