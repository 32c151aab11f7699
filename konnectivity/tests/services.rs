//! Services of the node: rules hold for the endpoints, by every address that leads to them.
//!
//! Listeners at the services' own addresses play the node's translation. They count who comes.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::*;
use konnectivity::agent::Agent;
use konnectivity::client::Tunnel;
use konnectivity::packet::Packet;
use konnectivity::rules::Rules;
use konnectivity::server::Server;
use serde_json::{Value, json};

/// A server, and an agent that has its rules of a switch.
struct Node {
    world: World,
    server: Server,
    agent: Agent,
    switch: UnixStream,
}

/// A listener at an address, and how many have come.
struct Listening {
    at: SocketAddr,
    came: Arc<AtomicUsize>,
}

impl Listening {
    async fn on(address: &str) -> Self {
        let listener = tokio::net::TcpListener::bind(address).await.unwrap();
        let (at, came) = (listener.local_addr().unwrap(), Arc::<AtomicUsize>::default());
        let counter = Arc::clone(&came);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                counter.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(async move {
                    let (mut read, mut write) = stream.split();
                    let _over = tokio::io::copy(&mut read, &mut write).await;
                });
            }
        });
        Self { at, came }
    }

    fn came(&self) -> usize {
        self.came.load(Ordering::Relaxed)
    }
}

impl Node {
    /// A node whose switch has sent this step.
    async fn new(label: &str, step: &Value) -> Self {
        let world = World::new(label);
        let server = Server::start(world.server_options()).await.unwrap();
        let socket = world.path("switch.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let mut options = world.agent_options(server.agent_address());
        options.rules = Some(Arc::new(Rules::new(None, Some(&socket)).unwrap()));
        let agent = Agent::start(options).unwrap();
        let (mut switch, _) = listener.accept().unwrap();
        let mut request = String::new();
        BufReader::new(&switch).read_line(&mut request).unwrap();
        send(&mut switch, step);
        until("the agent", || server.agents() == 1).await;
        Self { world, server, agent, switch }
    }

    async fn dial(&self, target: &str) -> Result<(Tunnel, i64), String> {
        let mut tunnel = Tunnel::unix(&self.world.socket()).await.unwrap();
        let connection = soon(tunnel.dial(target)).await?;
        Ok((tunnel, connection))
    }

    /// Sends the agent a change, and waits until a dial of `target` is denied (or not) by it.
    async fn change(&mut self, step: &Value, target: SocketAddr, denied: bool) {
        send(&mut self.switch, step);
        for _ in 0..200 {
            if self.dial(&target.to_string()).await.is_err() == denied {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("{step} has no effect: {}", self.agent.metrics());
    }
}

fn send(switch: &mut UnixStream, step: &Value) {
    switch.write_all(format!("{}\n", json!({ "result": step })).as_bytes()).unwrap();
}

fn deny(tag: &str, address: &str) -> Value {
    let any = [0, 65535];
    json!({"tag": tag, "by": format!("NetworkPolicy default/{tag}"), "transport": "TCP", "allow": false,
        "local": {"net": format!("{address}/32"), "ports": any}, "remote": {"ports": any}})
}

fn service(at: SocketAddr, endpoints: &[&Listening]) -> Value {
    let endpoints: Vec<SocketAddr> = endpoints.iter().map(|it| it.at).collect();
    json!({"at": at, "transport": "TCP", "endpoints": endpoints})
}

async fn end_of(tunnel: &mut Tunnel) -> String {
    match soon(tunnel.receive()).await {
        Some(Packet::CloseResponse { error, .. }) => error,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn no_address_of_a_service_leads_to_a_denied_pod() {
    let (db, cluster, node) = (
        Listening::on("127.0.0.2:0").await,
        Listening::on("127.0.0.9:0").await,
        Listening::on("127.0.0.1:0").await,
    );
    let node_port = SocketAddr::from(([0, 0, 0, 0], node.at.port()));
    let mut restricted = service("127.0.0.8:80".parse().unwrap(), &[&cluster]);
    restricted["sources"] = json!(["203.0.113.0/24"]);
    let all = [service(cluster.at, &[&db]), service(node_port, &[&db]), restricted];
    let step = json!({"add": [deny("db", "127.0.0.2")], "services": all, "pods": {}});
    let proxied = Node::new("services", &step).await;
    let port = cluster.at.port();
    for target in [
        db.at.to_string(),
        cluster.at.to_string(),
        format!("[::ffff:127.0.0.9]:{port}"),
        format!("[::ffff:7f00:9]:{port}"),
        format!("127.9:{port}"),
        node.at.to_string(),
        format!("0.0.0.0:{}", node.at.port()),
        format!("localhost:{}", node.at.port()),
    ] {
        let denied = proxied.dial(&target).await.expect_err(&target);
        assert!(denied.contains("denied by session rule"), "{target}: {denied}");
        assert!(denied.ends_with("[NetworkPolicy default/db]"), "{target}: {denied}");
    }
    let denied = proxied.dial("127.0.0.8:80").await.expect_err("it admits others");
    assert!(denied.contains("is not in the loadBalancerSourceRanges"), "{denied}");
    assert_eq!([db.came(), cluster.came(), node.came()], [0; 3]);
    // Another port of the same address is no service.
    assert!(proxied.dial(&node.at.to_string()).await.is_err());
    assert!(proxied.dial(&echo().await.to_string()).await.is_ok());
    assert_eq!(proxied.server.agents(), 1);
}

#[tokio::test]
async fn connections_to_a_service_follow_its_endpoints() {
    let (db, other) = (Listening::on("127.0.0.2:0").await, Listening::on("127.0.0.3:0").await);
    let (cluster, late) = (Listening::on("127.0.0.9:0").await, Listening::on("127.0.0.8:0").await);
    let step = json!({"add": [deny("db", "127.0.0.2")],
        "services": [service(cluster.at, &[&db, &other])], "pods": {}});
    let mut node = Node::new("services-change", &step).await;
    // Dialled endpoints are those that the rules allow.
    let mut open = Vec::new();
    for _ in 0..8 {
        open.push(node.dial(&cluster.at.to_string()).await.unwrap());
    }
    assert_eq!([db.came(), other.came(), cluster.came()], [0, 8, 0]);
    let (tunnel, connection) = &mut open[0];
    tunnel.send_data(*connection, b"question");
    assert_eq!(soon(tunnel.receive_data(8)).await.unwrap(), b"question");
    // One that was open before the agent learnt of the service.
    let mut early = node.dial(&late.at.to_string()).await.unwrap();
    assert_eq!(late.came(), 1);

    let step = json!({"services": [service(late.at, &[&db])], "pods": {}});
    node.change(&step, late.at, true).await;
    let error = end_of(&mut early.0).await;
    assert!(error.ends_with("[NetworkPolicy default/db]"), "{error}");
    let step = json!({"add": [deny("other", "127.0.0.3")], "pods": {}});
    node.change(&step, cluster.at, true).await;
    for (tunnel, _) in &mut open {
        let error = end_of(tunnel).await;
        assert!(error.ends_with("[NetworkPolicy default/other]"), "{error}");
    }
    // An endpoint that is allowed comes.
    let third = Listening::on("127.0.0.4:0").await;
    let step = json!({"services": [service(cluster.at, &[&db, &third])], "pods": {}});
    node.change(&step, cluster.at, false).await;
    assert!(third.came() > 0);
    // The service goes: its address is one like others.
    let step = json!({"services": [{"at": cluster.at, "transport": "TCP"}], "pods": {}});
    send(&mut node.switch, &step);
    for _ in 0..200 {
        node.dial(&cluster.at.to_string()).await.unwrap();
        if cluster.came() > 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!((cluster.came(), db.came()), (1, 0));
}
