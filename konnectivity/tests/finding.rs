//! Agents find servers: behind one address, after a restart, through a proxy, with new certificates.

use std::net::SocketAddr;
use std::time::Duration;

use crate::common::*;
use konnectivity::agent::{Agent, HttpProxy};
use konnectivity::client::Tunnel;
use konnectivity::packet::Packet;
use konnectivity::server::{Frontend, Server};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

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
async fn the_agent_serves_a_server_of_another_making() {
    let world = World::new("other-server");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let acceptor = acceptor(&world);
    let mut options = world.agent_options(listener.local_addr().unwrap());
    options.identifiers = "host=node1".to_owned();
    options.token = Some(world.path("token"));
    // The token as in the file, without its line end.
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
    // Open connections continue.
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
