//! Agents: admitted, chosen, draining, gone.

use std::time::Duration;

use crate::common::*;
use konnectivity::agent::Agent;
use konnectivity::client::Tunnel;
use konnectivity::packet::Packet;
use konnectivity::server::{Server, Strategy};

const DRAIN: Packet = Packet::Drain;

fn dialed(packet: Option<Packet>) -> i64 {
    match packet {
        Some(Packet::DialRequest { random, .. }) => random,
        other => panic!("{other:?} is not a dial"),
    }
}

async fn dial(world: &World, target: &str) -> Tunnel {
    let tunnel = Tunnel::unix(&world.socket()).await.unwrap();
    tunnel.send(&Packet::DialRequest {
        protocol: "tcp".to_owned(),
        address: target.to_owned(),
        random: 1,
    });
    tunnel
}

#[tokio::test]
async fn the_server_says_who_it_is_at_once() {
    let world = World::new("greeting");
    let mut options = world.server_options();
    options.server_count = 3;
    let server = Server::start(options).await.unwrap();
    let metadata = [("agentid", "a"), ("agentidentifiers", "")];
    let agent = soon(plain::agent(&world, server.agent_address(), &metadata)).await.unwrap();
    assert_eq!(agent.headers["serverid"], "server-1");
    assert_eq!(agent.headers["servercount"], "3");
    // An agent that does not know of credit hears nothing of it.
    assert!(!agent.headers.contains_key("podgate-window"));
}

#[tokio::test]
async fn agents_that_do_not_say_who_they_are() {
    let world = World::new("nameless");
    let server = Server::start(world.server_options()).await.unwrap();
    for (metadata, wanted) in [
        (&[][..], "2: agentid: missing in the metadata"),
        (&[("agentid", "a"), ("agentid", "b")], "2: agentid: 2 of them"),
        (&[("agentid", "")], "2: agentid: empty"),
    ] {
        let error = soon(plain::agent(&world, server.agent_address(), metadata)).await.err();
        assert_eq!(error.as_deref(), Some(wanted));
    }
    assert_eq!(server.agents(), 0);
    let page = server.metrics();
    assert_eq!(metric(&page, "server_agents_refused_total{reason=\"metadata\"}"), 3.0);
}

#[tokio::test]
async fn an_agent_with_a_wrong_certificate_is_not_let_in() {
    let world = World::new("wrong-certificate");
    let server = Server::start(world.server_options()).await.unwrap();
    let mut options = world.agent_options(server.agent_address());
    options.files = world.files("other-agent");
    let agent = Agent::start(options).unwrap();
    until("a refusal", || {
        metric(&server.metrics(), "server_tls_handshake_failures_total{port=\"agent\"}") > 0.0
    })
    .await;
    until("a failure", || agent.metrics().contains("agent_server_connect_failures_total{")).await;
    assert_eq!((server.agents(), agent.servers().len()), (0, 0));
}

#[tokio::test]
async fn numbers_of_connections_are_each_streams_own() {
    let world = World::new("numbers");
    let server = Server::start(world.server_options()).await.unwrap();
    let metadata = [("agentid", "same")];
    let mut agents = Vec::new();
    for _ in 0..2 {
        agents.push(plain::agent(&world, server.agent_address(), &metadata).await.unwrap());
    }
    until("two agents", || server.agents() == 2).await;
    let (mut one, mut other) = (dial(&world, "a:1").await, dial(&world, "a:1").await);
    for agent in &mut agents {
        let random = dialed(soon(agent.receive()).await);
        agent.send(&Packet::DialResponse { error: String::new(), connection: 1, random }).await;
    }
    for tunnel in [&mut one, &mut other] {
        assert!(matches!(soon(tunnel.receive()).await, Some(Packet::DialResponse { .. })));
    }
    for (agent, text) in agents.iter_mut().zip(["left", "right"]) {
        let bytes = text.into();
        agent.send(&Packet::Data { connection: 1, error: String::new(), bytes }).await;
    }
    let mut received = Vec::new();
    for tunnel in [&mut one, &mut other] {
        match soon(tunnel.receive()).await {
            Some(Packet::Data { bytes, .. }) => received.push(bytes),
            other => panic!("{other:?}"),
        }
    }
    received.sort();
    assert_eq!(received, ["left", "right"]);
}

#[tokio::test]
async fn what_an_agent_leaves_behind_is_closed() {
    let world = World::new("gone");
    let server = Server::start(world.server_options()).await.unwrap();
    let mut agent =
        plain::agent(&world, server.agent_address(), &[("agentid", "a")]).await.unwrap();
    let mut established = dial(&world, "a:1").await;
    let random = dialed(soon(agent.receive()).await);
    agent.send(&Packet::DialResponse { error: String::new(), connection: 1, random }).await;
    assert!(matches!(soon(established.receive()).await, Some(Packet::DialResponse { .. })));
    let mut pending = dial(&world, "a:2").await;
    dialed(soon(agent.receive()).await);
    // Accepted bytes come before the end.
    let bytes: bytes::Bytes = pattern(100_000).into();
    agent.send(&Packet::Data { connection: 1, error: String::new(), bytes }).await;
    until("the bytes", || metric(&server.metrics(), "server_from_agent_bytes_total") > 99_999.0)
        .await;
    drop(agent);
    assert!(soon(established.receive_data(100_000)).await.unwrap() == pattern(100_000));
    match soon(established.receive()).await {
        Some(Packet::CloseResponse { connection: 1, .. }) => {}
        other => panic!("{other:?}"),
    }
    match soon(pending.receive()).await {
        Some(Packet::DialResponse { error, .. }) => {
            assert!(error.starts_with("agent a disconnected"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!((server.agents(), server.established()), (0, 0));
    let page = server.metrics();
    assert_eq!(metric(&page, "server_pending_backend_dials"), 0.0);
    assert_eq!(metric(&page, "server_dial_failure_count{reason=\"backend_close\"}"), 1.0);
}

#[tokio::test]
async fn a_draining_agent_is_the_last_choice() {
    let world = World::new("draining");
    let server = Server::start(world.server_options()).await.unwrap();
    let mut first =
        plain::agent(&world, server.agent_address(), &[("agentid", "1")]).await.unwrap();
    first.send(&DRAIN).await;
    until("the drain", || {
        metric(
            &server.metrics(),
            "server_stream_packets_total{packet_type=\"DRAIN\",segment=\"from_agent\"}",
        ) == 1.0
    })
    .await;
    let _alone = dial(&world, "a:1").await;
    dialed(soon(first.receive()).await);
    let mut second =
        plain::agent(&world, server.agent_address(), &[("agentid", "2")]).await.unwrap();
    until("both", || server.agents() == 2).await;
    let mut tunnels = Vec::new();
    for _ in 0..5 {
        tunnels.push(dial(&world, "a:1").await);
        dialed(soon(second.receive()).await);
    }
}

#[tokio::test]
async fn strategies_choose_by_identifiers() {
    let world = World::new("strategies");
    let mut options = world.server_options();
    options.strategies = vec![Strategy::DestHost, Strategy::DefaultRoute];
    let server = Server::start(options).await.unwrap();
    let mut agents = Vec::new();
    for identifiers in ["ipv4=10.0.0.1&host=node1", "ipv6=2001%3Adb8%3A%3A1", "default-route=true"]
    {
        let metadata = [("agentid", identifiers), ("agentidentifiers", identifiers)];
        agents.push(plain::agent(&world, server.agent_address(), &metadata).await.unwrap());
    }
    until("all", || server.agents() == 3).await;
    for (target, agent) in
        [("10.0.0.1:443", 0), ("NODE1:10250", 0), ("[2001:db8:0::1]:443", 1), ("10.0.0.2:443", 2)]
    {
        let tunnel = dial(&world, target).await;
        dialed(soon(agents[agent].receive()).await);
        drop(tunnel);
        assert!(matches!(soon(agents[agent].receive()).await, Some(Packet::DialClosed { .. })));
    }
    let page = server.metrics();
    assert_eq!(metric(&page, "server_ready_backends{proxy_strategy=\"destHost\"}"), 2.0);
    assert_eq!(metric(&page, "server_ready_backends{proxy_strategy=\"defaultRoute\"}"), 1.0);
    // No agent is left for an unreachable target.
    drop(agents.pop());
    until("its end", || server.agents() == 2).await;
    let mut tunnel = Tunnel::unix(&world.socket()).await.unwrap();
    assert_eq!(soon(tunnel.dial("10.0.0.2:443")).await, Err("No agent available".to_owned()));
}

#[tokio::test]
async fn an_agent_that_answers_no_ping_is_not_chosen() {
    let world = World::new("silent");
    let mut options = world.server_options();
    options.limits.probe = Duration::from_millis(100);
    options.limits.probe_timeout = Duration::from_millis(600);
    let server = Server::start(options).await.unwrap();
    // An agent that hangs: the handshake and headers by hand, then silence.
    let silent = silent_agent(&world, server.agent_address()).await;
    until("it", || server.agents() == 1).await;
    until("its end", || {
        metric(&server.metrics(), "server_agents_lost_total") == 1.0 && server.agents() == 0
    })
    .await;
    drop(silent);
}

async fn silent_agent(
    world: &World,
    server: std::net::SocketAddr,
) -> tokio_rustls::client::TlsStream<tokio::net::TcpStream> {
    use tokio::io::AsyncWriteExt;
    let config = world.client_config(&world.files("agent"), &["h2"]);
    let stream = tokio::net::TcpStream::connect(server).await.unwrap();
    let name = rustls::pki_types::ServerName::try_from("127.0.0.1").unwrap();
    let mut stream = tokio_rustls::TlsConnector::from(config).connect(name, stream).await.unwrap();
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    let mut block = vec![0x83, 0x87];
    for (name, value) in [
        (":path", "/AgentService/Connect"),
        ("content-type", "application/grpc"),
        ("agentid", "silent"),
    ] {
        block.extend([0, name.len() as u8]);
        block.extend(name.bytes());
        block.push(value.len() as u8);
        block.extend(value.bytes());
    }
    bytes.extend([0, 0, block.len() as u8, 1, 4, 0, 0, 0, 1]);
    bytes.extend(block);
    stream.write_all(&bytes).await.unwrap();
    stream
}

#[tokio::test]
async fn a_server_serves_with_the_next_agent_when_one_is_gone() {
    let pair = Pair::new("next").await;
    let target = echo().await.to_string();
    let mut options = pair.world.agent_options(pair.server.agent_address());
    options.agent_id = "agent-2".to_owned();
    let second = Agent::start(options).unwrap();
    until("both", || pair.server.agents() == 2).await;
    drop(pair.agent);
    until("one", || pair.server.agents() == 1).await;
    for _ in 0..4 {
        let mut tunnel = Tunnel::unix(&pair.world.socket()).await.unwrap();
        soon(tunnel.dial(&target)).await.unwrap();
    }
    drop(second);
}

#[tokio::test]
async fn a_draining_agent_has_drained_after_its_last_connection() {
    let pair = Pair::new("drained").await;
    let mut tunnel = Tunnel::unix(&pair.socket()).await.unwrap();
    soon(tunnel.dial(&echo().await.to_string())).await.unwrap();
    pair.agent.drain();
    let busy = tokio::time::timeout(Duration::from_secs(3), pair.agent.drained()).await;
    assert!(busy.is_err(), "a connection is open");
    drop(tunnel);
    soon(pair.agent.drained()).await;
    assert_eq!(pair.server.established(), 0);
}
