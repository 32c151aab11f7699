//! The CONNECT frontend.

use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use konnectivity::packet::Packet;
use konnectivity::server::{Frontend, Mode, Server};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

async fn pair(label: &str) -> Pair {
    Pair::with(label, |options| options.mode = Mode::HttpConnect, |_| ()).await
}

#[tokio::test]
async fn an_echo_over_a_unix_socket() {
    let pair = pair("connect").await;
    let mut client = UnixStream::connect(pair.socket()).await.unwrap();
    let head = soon(connect(&mut client, &echo().await.to_string())).await;
    assert_eq!(head, "HTTP/1.1 200 Connection Established\r\n\r\n");
    let bytes = pattern(3 << 20);
    let (mut read, mut write) = client.split();
    let mut received = vec![0; bytes.len()];
    let (written, got) =
        soon(async { tokio::join!(write.write_all(&bytes), read.read_exact(&mut received)) }).await;
    written.unwrap();
    got.unwrap();
    assert!(received == bytes);
    assert_eq!(metric(&pair.server.metrics(), "server_http_connections"), 1.0);
    drop(client);
    until("the end", || pair.server.established() == 0 && pair.agent.targets() == 0).await;
    let line = &audit(&pair.world.path("server-audit")).await[0];
    assert_eq!(line["bytes_to_target"].as_u64(), Some(bytes.len() as u64));
    assert_eq!(line["outcome"], "closed by client");
}

#[tokio::test]
async fn a_large_answer_arrives_whole() {
    let pair = pair("connect-large").await;
    let mut client = UnixStream::connect(pair.socket()).await.unwrap();
    let head = soon(connect(&mut client, &sends(20 << 20).await.to_string())).await;
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    let mut received = Vec::new();
    soon(client.read_to_end(&mut received)).await.unwrap();
    assert!(received == pattern(20 << 20));
}

#[tokio::test]
async fn an_echo_over_tls_with_client_certificates() {
    let pair = Pair::with(
        "connect-tls",
        |options| {
            options.mode = Mode::HttpConnect;
            let address = ([127, 0, 0, 1], 0).into();
            options.frontend = Frontend::Tls { address, files: options.agent_files.clone() };
        },
        |_| (),
    )
    .await;
    let address = pair.server.frontend_address().unwrap();
    let target = echo().await.to_string();
    let open = async |config: Arc<rustls::ClientConfig>| {
        let stream = TcpStream::connect(address).await.unwrap();
        let name = ServerName::try_from("127.0.0.1").unwrap();
        TlsConnector::from(config).connect(name, stream).await
    };
    let world = &pair.world;
    // kube-apiserver offers no protocols.
    let mut client = open(world.client_config(&world.files("client"), &[])).await.unwrap();
    let head = soon(connect(&mut client, &target)).await;
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    client.write_all(b"hello").await.unwrap();
    let mut answer = [0; 5];
    soon(client.read_exact(&mut answer)).await.unwrap();
    assert_eq!(&answer, b"hello");
    drop(client);
    let line = &audit(&world.path("server-audit")).await[0];
    assert!(line["who"].as_str().unwrap().starts_with("CN=client 127.0.0.1:"), "{line}");
    // Another authority's certificate opens nothing.
    let refused = match open(world.client_config(&world.files("other-client"), &[])).await {
        Err(_) => true,
        Ok(mut client) => matches!(soon(client.read(&mut answer)).await, Err(_) | Ok(0)),
    };
    assert!(refused);
}

/// Sends a request and reads the whole answer.
async fn ask(pair_socket: &std::path::Path, request: &str) -> String {
    let mut client = UnixStream::connect(pair_socket).await.unwrap();
    client.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    soon(client.read_to_string(&mut answer)).await.unwrap();
    answer
}

#[tokio::test]
async fn what_fails_says_why() {
    let pair = pair("connect-errors").await;
    let nobody = nobody().await;
    let connect = |target: &str| format!("CONNECT {target} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
    let answer = ask(&pair.socket(), &connect(&nobody.to_string())).await;
    assert!(answer.starts_with("HTTP/1.1 502 Bad Gateway\r\n"), "{answer}");
    let text = format!("\r\n\r\ndial tcp {nobody}: connect: connection refused");
    assert!(answer.ends_with(&text), "{answer}");
    let answer = ask(&pair.socket(), &connect("nobody.invalid:80")).await;
    assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
    assert!(answer.ends_with("lookup nobody.invalid: no such host"), "{answer}");
    let answer = ask(&pair.socket(), &connect("nowhere")).await;
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    let answer = ask(&pair.socket(), "GET / HTTP/1.1\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
    let endless = format!("CONNECT a:1 HTTP/1.1\r\nX: {}\r\n", "x".repeat(10_000));
    let answer = ask(&pair.socket(), &endless).await;
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
}

#[tokio::test]
async fn the_status_depends_on_the_kind_of_the_failure() {
    let world = World::new("connect-kinds");
    let mut options = world.server_options();
    options.mode = Mode::HttpConnect;
    options.limits.dial_timeout = Duration::from_secs(2);
    let server = Server::start(options).await.unwrap();
    let mut agent =
        plain::agent(&world, server.agent_address(), &[("agentid", "a")]).await.unwrap();
    let socket = world.socket();
    let request = "CONNECT i/o:1 HTTP/1.1\r\n\r\n";
    for (error, status) in [
        ("dial tcp 10.0.0.1:80: i/o timeout", 504),
        ("dial tcp: lookup a on 10.0.0.2:53: read udp 10.0.0.1:1->10.0.0.2:53: i/o timeout", 504),
        ("dial tcp 10.0.0.1:80: socket: too many open files", 503),
        ("dial tcp 10.0.0.1:80: denied by session rule global tcp any [i/o timeout]", 403),
        ("dial tcp: lookup i/o timeout.too many open files.test: no such host", 502),
        ("dial tcp 10.0.0.1:80: connect: connection refused", 502),
    ] {
        let (answer, ()) = tokio::join!(ask(&socket, request), async {
            let Some(Packet::DialRequest { random, .. }) = soon(agent.receive()).await else {
                panic!("no dial");
            };
            let packet = Packet::DialResponse { error: error.to_owned(), connection: 0, random };
            agent.send(&packet).await;
        });
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        assert!(answer.ends_with(error), "{answer}");
    }
    // The agent gives no answer.
    let answer = ask(&world.socket(), request).await;
    assert!(answer.starts_with("HTTP/1.1 504 "), "{answer}");
}

#[tokio::test]
async fn a_target_that_stays_silent_after_its_client_has_sent_everything_has_a_timeout() {
    let pair = Pair::with(
        "connect-silent",
        |options| {
            options.mode = Mode::HttpConnect;
            options.limits.half_closed = Duration::from_millis(200);
        },
        |_| (),
    )
    .await;
    let mut client = UnixStream::connect(pair.socket()).await.unwrap();
    soon(connect(&mut client, &stalls().await.to_string())).await;
    client.shutdown().await.unwrap();
    let end = tokio::time::timeout(Duration::from_secs(8), client.read(&mut [0])).await;
    assert_eq!(end.expect("less than the default").unwrap(), 0);
}

#[tokio::test]
async fn without_an_agent() {
    let world = World::new("connect-no-agent");
    let mut options = world.server_options();
    options.mode = Mode::HttpConnect;
    let _server = Server::start(options).await.unwrap();
    let answer = ask(&world.socket(), "CONNECT a:1 HTTP/1.1\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 500 Internal Server Error\r\n"), "{answer}");
    assert!(answer.ends_with("No agent available"), "{answer}");
}

#[tokio::test]
async fn a_client_that_has_sent_everything_gets_the_whole_answer() {
    let pair = pair("connect-half").await;
    let answers = target(|mut stream| async move {
        // The answer begins when the question is at its end.
        let mut question = Vec::new();
        let _read = stream.read_to_end(&mut question).await;
        let _sent = stream.write_all(&pattern(question.len() * 1000)).await;
    })
    .await;
    let mut client = UnixStream::connect(pair.socket()).await.unwrap();
    soon(connect(&mut client, &answers.to_string())).await;
    client.write_all(&pattern(3000)).await.unwrap();
    client.shutdown().await.unwrap();
    let mut received = Vec::new();
    soon(client.read_to_end(&mut received)).await.unwrap();
    assert!(received == pattern(3_000_000), "{} bytes", received.len());
    until("the end", || pair.server.established() == 0 && pair.agent.targets() == 0).await;
    let line = &audit(&pair.world.path("server-audit")).await[0];
    assert_eq!(line["outcome"], "closed by client");
}
