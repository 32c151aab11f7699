//! Agents: let in, chosen, draining, gone; and finding servers.

use std::net::SocketAddr;
use std::time::Duration;

use crate::common::*;
use konnectivity::agent::{Agent, HttpProxy};
use konnectivity::client::Tunnel;
use konnectivity::packet::Packet;
use konnectivity::server::{Frontend, Server, Strategy};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

const DRAIN: Packet = Packet::Drain;

fn dialed(packet: Option<Packet>) -> i64 {
    match packet {
        Some(Packet::DialRequest { random, .. }) => random,
        other => panic!("{other:?} is no dial"),
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
    // Nobody is left for what nobody reaches.
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
    // One whose connection nobody serves any more: the handshake and headers by hand, then silence.
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
async fn an_agent_may_offer_more_protocols() {
    let pair =
        Pair::with("alpn", |_| (), |options| options.alpn = vec!["proxy-v1".to_owned()]).await;
    let mut tunnel = Tunnel::unix(&pair.socket()).await.unwrap();
    soon(tunnel.dial(&echo().await.to_string())).await.unwrap();
}

#[tokio::test]
async fn an_agent_comes_back_to_a_server_that_comes_back() {
    let world = World::new("restart");
    let server = Server::start(world.server_options()).await.unwrap();
    let address = server.agent_address();
    let agent = Agent::start(world.agent_options(address)).unwrap();
    until("the agent", || server.agents() == 1).await;
    let target = echo().await.to_string();
    let mut tunnel = Tunnel::unix(&world.socket()).await.unwrap();
    soon(tunnel.dial(&target)).await.unwrap();
    drop(server);
    until("its end", || agent.servers().is_empty() && agent.targets() == 0).await;
    let mut options = world.server_options();
    options.agents = address;
    let server = Server::start(options).await.unwrap();
    until("the agent again", || server.agents() == 1).await;
    let mut tunnel = Tunnel::unix(&world.socket()).await.unwrap();
    let connection = soon(tunnel.dial(&target)).await.unwrap();
    tunnel.send_data(connection, b"x");
    assert_eq!(soon(tunnel.receive_data(1)).await.unwrap(), b"x");
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
async fn several_servers_behind_one_address_are_all_found() {
    let world = World::new("ha");
    let mut servers = Vec::new();
    for name in ["a", "b", "c"] {
        let mut options = world.server_options();
        options.server_id = name.to_owned();
        options.server_count = 3;
        options.frontend = konnectivity::server::Frontend::Unix {
            path: world.path(&format!("{name}.sock")),
            delete_existing: true,
        };
        servers.push(Server::start(options).await.unwrap());
    }
    // A balancer that takes them in turn, and now and then the same twice.
    let addresses: Vec<_> = [0, 0, 1, 2, 2].iter().map(|at| servers[*at].agent_address()).collect();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let balancer = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut turn = 0;
        while let Ok((mut client, _)) = listener.accept().await {
            let address = addresses[turn % addresses.len()];
            turn += 1;
            tokio::spawn(async move {
                let mut server = tokio::net::TcpStream::connect(address).await.unwrap();
                let _over = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    let agent = Agent::start(world.agent_options(balancer)).unwrap();
    until("all servers", || agent.servers().len() == 3).await;
    let mut found = agent.servers();
    found.sort();
    assert_eq!(found, ["a", "b", "c"]);
    until("one connection with each", || servers.iter().all(|it| it.agents() == 1)).await;
    assert_eq!(metric(&agent.metrics(), "agent_known_server_count"), 3.0);
    assert_eq!(metric(&agent.metrics(), "agent_open_server_connections"), 3.0);
}

/// Copies bytes between a client and a server.
async fn relay(mut client: TcpStream, server: SocketAddr) {
    let mut server = TcpStream::connect(server).await.unwrap();
    let _over = tokio::io::copy_bidirectional(&mut client, &mut server).await;
}

#[tokio::test]
async fn a_server_that_a_balancer_seldom_chooses_is_found_without_back_off() {
    let world = World::new("seldom");
    let mut servers = Vec::new();
    for name in ["often", "seldom"] {
        let mut options = world.server_options();
        options.server_id = name.to_owned();
        options.server_count = 2;
        let path = world.path(&format!("{name}.sock"));
        options.frontend = Frontend::Unix { path, delete_existing: true };
        servers.push(Server::start(options).await.unwrap());
    }
    let [often, seldom] = [0, 1].map(|at| servers[at].agent_address());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut options = world.agent_options(listener.local_addr().unwrap());
    tokio::spawn(async move {
        for turn in 0.. {
            let (client, _) = listener.accept().await.unwrap();
            tokio::spawn(relay(client, if turn == 25 { seldom } else { often }));
        }
    });
    // With a back-off the last attempt would begin after hours.
    options.sync_interval = Duration::from_millis(10);
    options.sync_interval_cap = Duration::from_secs(24 * 3600);
    let agent = Agent::start(options).unwrap();
    until("both servers", || agent.servers() == ["often", "seldom"]).await;
}

#[tokio::test]
async fn servers_are_reached_through_an_http_proxy() {
    let world = World::new("http-proxy");
    let server = Server::start(world.server_options()).await.unwrap();
    let address = server.agent_address();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = listener.local_addr().unwrap();
    let (sender, mut heads) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(client.read_u8().await.unwrap());
            }
            sender.send(String::from_utf8(head).unwrap()).unwrap();
            client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
            tokio::spawn(relay(client, address));
        }
    });
    let mut options = world.agent_options(address);
    // A name that only the proxy resolves.
    options.server_host = "server.test".to_owned();
    let url = format!("http://user:secret@{proxy}");
    options.proxy = HttpProxy::new(&url, "", "server.test", address.port()).unwrap();
    let _agent = Agent::start(options).unwrap();
    until("the agent", || server.agents() == 1).await;
    let head = heads.recv().await.unwrap();
    let wanted = format!("CONNECT server.test:{} HTTP/1.1\r\n", address.port());
    assert!(head.starts_with(&wanted), "{head}");
    assert!(head.contains("Proxy-Authorization: Basic dXNlcjpzZWNyZXQ=\r\n"), "{head}");
    let mut tunnel = Tunnel::unix(&world.socket()).await.unwrap();
    soon(tunnel.dial(&echo().await.to_string())).await.unwrap();
}

#[tokio::test]
async fn a_successor_with_the_same_name_gets_agents_while_the_former_drains() {
    let pair = Pair::new("successor").await;
    let target = echo().await.to_string();
    let mut open = Tunnel::unix(&pair.socket()).await.unwrap();
    let connection = soon(open.dial(&target)).await.unwrap();
    let mut options = pair.world.server_options();
    options.agents = pair.server.agent_address();
    let stopped = tokio::spawn(pair.server.stop(PATIENCE));
    // The former has left its port, and its name and socket are the same.
    let mut successor = None;
    let end = std::time::Instant::now() + PATIENCE;
    while successor.is_none() {
        assert!(std::time::Instant::now() < end, "the port is in use");
        successor = Server::start(options.clone()).await.ok();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let successor = successor.unwrap();
    until("the agent", || successor.agents() == 1).await;
    open.send_data(connection, b"still");
    assert_eq!(soon(open.receive_data(5)).await.unwrap(), b"still");
    assert!(!stopped.is_finished());
    drop(open);
    soon(stopped).await.unwrap();
    // The end of the former left the successor its socket.
    let mut tunnel = Tunnel::unix(&pair.world.socket()).await.unwrap();
    soon(tunnel.dial(&target)).await.unwrap();
    assert_eq!(pair.agent.servers(), ["server-1"]);
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

#[tokio::test]
async fn the_agent_serves_a_server_of_another_making() {
    let world = World::new("other-server");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let acceptor = acceptor(&world);
    let mut options = world.agent_options(listener.local_addr().unwrap());
    options.identifiers = "host=node1".to_owned();
    options.token = Some(world.path("token"));
    // As it stands in the file, line end and all but that.
    std::fs::write(world.path("token"), "secret").unwrap();
    let agent = Agent::start(options).unwrap();
    let mut server = soon(plain::accept(&listener, &acceptor, "go", 1)).await;
    assert_eq!(server.headers["agentid"], "agent-1");
    assert_eq!(server.headers["agentidentifiers"], "host=node1");
    assert_eq!(server.headers["authorization"], "Bearer secret");
    let target = echo().await.to_string();
    let protocol = "tcp".to_owned();
    server.send(&Packet::DialRequest { protocol, address: target, random: 9 }).await;
    let answer = Packet::DialResponse { error: String::new(), connection: 1, random: 9 };
    assert_eq!(soon(server.receive()).await, Some(answer));
    let data = |bytes: &'static [u8]| Packet::Data {
        connection: 1,
        error: String::new(),
        bytes: bytes.into(),
    };
    server.send(&data(b"ping")).await;
    assert_eq!(soon(server.receive()).await, Some(data(b"ping")));
    for (packet, error) in [
        (
            Packet::Data { connection: 7, error: String::new(), bytes: "x".into() },
            "unrecognized connectID",
        ),
        (Packet::CloseRequest { connection: 7, half: false }, "Unknown connectID"),
    ] {
        server.send(&packet).await;
        let answer = Packet::CloseResponse { error: error.to_owned(), connection: 7 };
        assert_eq!(soon(server.receive()).await, Some(answer));
    }
    agent.drain();
    assert_eq!(soon(server.receive()).await, Some(Packet::Drain));
    // What there is goes on.
    server.send(&data(b"pong")).await;
    assert_eq!(soon(server.receive()).await, Some(data(b"pong")));
    server.send(&Packet::CloseRequest { connection: 1, half: false }).await;
    let answer = Packet::CloseResponse { error: String::new(), connection: 1 };
    assert_eq!(soon(server.receive()).await, Some(answer));
    assert_eq!(agent.targets(), 0);
    // A token that changed is shown at the next connection.
    std::fs::write(world.path("token"), "newer").unwrap();
    drop(server);
    let mut options = world.agent_options(listener.local_addr().unwrap());
    options.token = Some(world.path("token"));
    let _next = Agent::start(options).unwrap();
    let server = soon(plain::accept(&listener, &acceptor, "go", 1)).await;
    assert_eq!(server.headers["authorization"], "Bearer newer");
}

fn acceptor(world: &World) -> TlsAcceptor {
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    let files = world.files("server");
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![CertificateDer::from_pem_file(files.cert.unwrap()).unwrap()],
            PrivateKeyDer::from_pem_file(files.key.unwrap()).unwrap(),
        )
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    TlsAcceptor::from(std::sync::Arc::new(config))
}

#[tokio::test]
async fn certificates_are_rotated_without_a_lost_connection() {
    let world = World::new("rotation");
    let server = Server::start(world.server_options()).await.unwrap();
    let agent = Agent::start(world.agent_options(server.agent_address())).unwrap();
    until("the agent", || server.agents() == 1).await;
    let mut tunnel = Tunnel::unix(&world.socket()).await.unwrap();
    let connection = soon(tunnel.dial(&echo().await.to_string())).await.unwrap();
    // Both authorities count while certificates of the new one are handed out.
    world.trust_both();
    world.exchange_certificates();
    // An agent that does not know the first authority.
    let mut options = world.agent_options(server.agent_address());
    options.agent_id = "new".to_owned();
    options.files.ca = Some(world.path("other-ca.crt"));
    let new = Agent::start(options).unwrap();
    until("the new agent", || server.agents() == 2).await;
    // The first one's connection stands, and when it is cut the agent comes back as the new.
    tunnel.send_data(connection, b"still here");
    assert_eq!(soon(tunnel.receive_data(10)).await.unwrap(), b"still here");
    let address = server.agent_address();
    drop(server);
    until("its end", || agent.servers().is_empty() && new.servers().is_empty()).await;
    let mut options = world.server_options();
    options.agents = address;
    options.agent_files.ca = Some(world.path("other-ca.crt"));
    let server = Server::start(options).await.unwrap();
    until("both agents", || server.agents() == 2).await;
    drop((agent, new));
}
