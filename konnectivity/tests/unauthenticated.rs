//! Unauthenticated peers have bounded costs.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::{World, metric, plain, soon, until};
use konnectivity::kubernetes::Cluster;
use konnectivity::server::{Limits, Mode, Server, TokenAuth};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

async fn tls(world: &World, address: std::net::SocketAddr) -> TlsStream<TcpStream> {
    let config = world.client_config(&world.files("agent"), &["h2"]);
    let stream = TcpStream::connect(address).await.unwrap();
    let name = rustls::pki_types::ServerName::try_from("127.0.0.1").unwrap();
    TlsConnector::from(config).connect(name, stream).await.unwrap()
}

/// The HEADERS frame of an agent with a token.
fn hello(stream: u8) -> Vec<u8> {
    let mut block = vec![0x83, 0x87];
    for (name, value) in [
        (":path", "/AgentService/Connect"),
        ("content-type", "application/grpc"),
        ("agentid", "a"),
        ("authorization", "Bearer x"),
    ] {
        block.extend([0, name.len() as u8]);
        block.extend(name.bytes());
        block.push(value.len() as u8);
        block.extend(value.bytes());
    }
    let mut bytes = vec![0, 0, block.len() as u8, 1, 4, 0, 0, 0, stream];
    bytes.extend(block);
    bytes
}

fn reset(stream: u8) -> [u8; 13] {
    [0, 0, 4, 3, 0, 0, 0, 0, stream, 0, 0, 0, 8]
}

/// A Kubernetes API that reads requests and answers none; the number of open requests.
async fn stuck_api(world: &World) -> (std::path::PathBuf, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let open = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&open);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let open = Arc::clone(&counted);
            tokio::spawn(async move {
                open.fetch_add(1, Ordering::SeqCst);
                while matches!(stream.read(&mut [0; 4096]).await, Ok(1..)) {}
                open.fetch_sub(1, Ordering::SeqCst);
            });
        }
    });
    (crate::common::api::kubeconfig(world, address), open)
}

/// A server of agents with tokens at an API that answers no review.
async fn stuck_server(world: &World, limits: Limits) -> (Server, Arc<AtomicUsize>) {
    let (kubeconfig, open) = stuck_api(world).await;
    let mut options = world.server_options();
    options.agent_files.ca = None;
    options.limits = limits;
    options.tokens = Some(TokenAuth {
        cluster: Arc::new(Cluster::connect(Some(&kubeconfig)).await.unwrap()),
        audience: "konn".to_owned(),
        namespace: "kube-system".to_owned(),
        service_account: "konnectivity-agent".to_owned(),
    });
    (Server::start(options).await.unwrap(), open)
}

#[tokio::test]
async fn agents_that_wait_for_their_review_are_bounded() {
    let world = World::new("waiting");
    let (server, _open) = stuck_server(&world, Limits { reviews: 1, ..Limits::default() }).await;
    let mut peers = Vec::new();
    // 64 may wait for each review.
    for _ in 0..5 {
        let mut peer = tls(&world, server.agent_address()).await;
        peer.write_all(PREFACE).await.unwrap();
        for stream in (1..=31).step_by(2) {
            peer.write_all(&hello(stream)).await.unwrap();
        }
        peers.push(peer);
    }
    let mut answer = Vec::new();
    let last = peers.last_mut().unwrap();
    let _cut = soon(last.read_to_end(&mut answer)).await;
    let text = String::from_utf8_lossy(&answer).into_owned();
    assert!(text.contains("too many agents wait for their TokenReview"), "{text:?}");
}

#[tokio::test]
async fn token_reviews_are_bounded_and_end_with_their_stream() {
    let world = World::new("reviews");
    let (server, open) = stuck_server(&world, Limits { reviews: 4, ..Limits::default() }).await;
    let mut peers = Vec::new();
    for _ in 0..3 {
        let mut peer = tls(&world, server.agent_address()).await;
        peer.write_all(PREFACE).await.unwrap();
        for stream in (1..=31).step_by(2) {
            peer.write_all(&hello(stream)).await.unwrap();
        }
        peers.push(peer);
    }
    let streams =
        || metric(&server.metrics(), "server_grpc_connections{service_method=\"Connect\"}");
    until("all streams", || streams() == 48.0).await;
    until("the reviews", || open.load(Ordering::SeqCst) == 4).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(open.load(Ordering::SeqCst), 4);
    // Each stream that is reset takes its review along, so that the next gets its turn.
    for stream in (1..=31).step_by(2) {
        for peer in &mut peers {
            peer.write_all(&reset(stream)).await.unwrap();
        }
    }
    until("no review", || open.load(Ordering::SeqCst) == 0 && streams() == 0.0).await;
}

#[tokio::test]
async fn resets_a_second_are_bounded() {
    let world = World::new("resets");
    let server = Server::start(world.server_options()).await.unwrap();
    // The first agent keeps the connection open.
    let mut peer = tls(&world, server.agent_address()).await;
    peer.write_all(PREFACE).await.unwrap();
    peer.write_all(&hello(1)).await.unwrap();
    let mut flood = Vec::new();
    for stream in (3_u32..2_003).step_by(2) {
        let mut frame = hello(0);
        frame[5..9].copy_from_slice(&stream.to_be_bytes());
        flood.extend(frame);
        let mut frame = reset(0);
        frame[5..9].copy_from_slice(&stream.to_be_bytes());
        flood.extend(frame);
    }
    // It may be cut off before all of it is written.
    let _cut = peer.write_all(&flood).await;
    let mut answer = Vec::new();
    let _cut = soon(peer.read_to_end(&mut answer)).await;
    until("its end", || server.agents() == 0).await;
    let text = String::from_utf8_lossy(&answer).into_owned();
    assert!(text.contains("more than 200 resets a second"), "{text:?}");
}

#[tokio::test]
async fn connections_without_a_request_are_closed() {
    let world = World::new("silence");
    let mut options = world.server_options();
    options.limits.greeting = Duration::from_millis(300);
    let server = Server::start(options).await.unwrap();
    // TLS and then silence; half a preface; everything but a request.
    for sent in [0, 10, PREFACE.len()] {
        let mut peer = tls(&world, server.agent_address()).await;
        peer.write_all(&PREFACE[..sent]).await.unwrap();
        let _closed = soon(peer.read_to_end(&mut Vec::new())).await;
        let mut peer = UnixStream::connect(world.socket()).await.unwrap();
        peer.write_all(&PREFACE[..sent]).await.unwrap();
        let _closed = soon(peer.read_to_end(&mut Vec::new())).await;
    }
    // An agent that is admitted stays. (A busy machine may admit it too late.)
    let metadata = [("agentid", "a")];
    let agent = async || loop {
        if let Ok(agent) = plain::agent(&world, server.agent_address(), &metadata).await {
            return agent;
        }
    };
    let _agent = soon(agent()).await;
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert_eq!(server.agents(), 1);
}

/// A request is no authentication.
#[tokio::test]
async fn an_agent_that_waits_too_long_for_its_review_is_closed() {
    let world = World::new("late");
    let limits = Limits { greeting: Duration::from_millis(500), ..Limits::default() };
    let (server, open) = stuck_server(&world, limits).await;
    let mut peer = tls(&world, server.agent_address()).await;
    peer.write_all(PREFACE).await.unwrap();
    peer.write_all(&hello(1)).await.unwrap();
    until("the review", || open.load(Ordering::SeqCst) == 1).await;
    let _closed = soon(peer.read_to_end(&mut Vec::new())).await;
    until("no review", || open.load(Ordering::SeqCst) == 0).await;
    // The request to the API server did not come to its end, which would have refused the agent.
    let refused = "server_agents_refused_total{reason=\"token\"}";
    assert_eq!(metric(&server.metrics(), refused), 0.0);
}

#[tokio::test]
async fn handshakes_and_connect_requests_without_end_are_closed() {
    let world = World::new("handshake");
    let mut options = world.server_options();
    options.mode = Mode::HttpConnect;
    options.limits.handshake = Duration::from_millis(300);
    let server = Server::start(options).await.unwrap();
    let mut silent = TcpStream::connect(server.agent_address()).await.unwrap();
    let _closed = soon(silent.read_to_end(&mut Vec::new())).await;
    // A byte now and then does not help.
    let peer = TcpStream::connect(server.agent_address()).await.unwrap();
    soon(closes(peer, b"\x16\x03\x01\x01\x00\x01")).await;
    let peer = UnixStream::connect(world.socket()).await.unwrap();
    soon(closes(peer, b"CONNECT a:1 HTTP/1.1\r\nUser-Agent: ")).await;
}

/// Sends `head` and then a byte now and then; returns when the other end has closed.
async fn closes(mut peer: impl AsyncRead + AsyncWrite + Unpin, head: &[u8]) {
    let mut sent = peer.write_all(head).await;
    while sent.is_ok() {
        let read = tokio::time::timeout(Duration::from_millis(50), peer.read(&mut [0; 64])).await;
        if matches!(read, Ok(Ok(0) | Err(_))) {
            return;
        }
        sent = peer.write_all(b"1").await;
    }
}

#[tokio::test]
async fn two_streams_of_one_agent_are_one_agent() {
    let world = World::new("ids");
    let server = Server::start(world.server_options()).await.unwrap();
    let address = server.agent_address();
    let _first = soon(plain::agent(&world, address, &[("agentid", "a")])).await.unwrap();
    let _second = soon(plain::agent(&world, address, &[("agentid", "a")])).await.unwrap();
    let _third = soon(plain::agent(&world, address, &[("agentid", "b")])).await.unwrap();
    until("all", || server.agents() == 3).await;
    let page = server.metrics();
    assert_eq!(metric(&page, "server_ready_backends{proxy_strategy=\"default\"}"), 2.0);
    assert_eq!(metric(&page, "server_ready_backend_connections"), 2.0);
}

#[tokio::test]
async fn the_socket_s_mode_is_not_the_umask_s() {
    let world = World::new("mode");
    // The process's: no other test here makes files that the difference matters to.
    let before = rustix::process::umask(rustix::fs::Mode::empty());
    let server = Server::start(world.server_options()).await;
    rustix::process::umask(before);
    let _server = server.unwrap();
    let mode = std::fs::metadata(world.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
}
