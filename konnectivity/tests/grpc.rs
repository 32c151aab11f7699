//! The gRPC frontend, server and agent, end to end.

use std::time::Duration;

use crate::common::*;
use konnectivity::client::Tunnel;
use konnectivity::packet::Packet;
use konnectivity::server::{Frontend, Server};

#[tokio::test]
async fn an_echo_over_a_unix_socket() {
    let pair = Pair::new("echo").await;
    let target = echo().await;
    let mut tunnel = Tunnel::unix(&pair.socket()).await.unwrap();
    let connection = soon(tunnel.dial(&target.to_string())).await.unwrap();
    assert_eq!(connection, 1);
    tunnel.send_data(connection, b"hello");
    assert_eq!(soon(tunnel.receive_data(5)).await.unwrap(), b"hello");
    assert_eq!((pair.server.established(), pair.agent.targets()), (1, 1));
    tunnel.send(&Packet::CloseRequest { connection, half: false });
    let closed = Packet::CloseResponse { error: String::new(), connection };
    assert_eq!(soon(tunnel.receive()).await, Some(closed));
    until("the end", || pair.server.established() == 0 && pair.agent.targets() == 0).await;
    let line = &audit(&pair.world.path("server-audit")).await[0];
    assert_eq!(line["outcome"], "closed by client");
    assert_eq!(
        (line["bytes_to_target"].as_u64(), line["bytes_from_target"].as_u64()),
        (Some(5), Some(5))
    );
    assert_eq!(line["agent"], "agent-1");
    assert!(line["who"].as_str().unwrap().contains("(podgate/"), "{line}");
}

#[tokio::test]
async fn a_stream_that_breaks_off_counts_as_canceled() {
    let pair = Pair::new("canceled").await;
    let target = echo().await.to_string();
    let canceled = |segment: &str| {
        let labels = format!("{{code=\"Canceled\",packet_type=\"Unknown\",segment=\"{segment}\"}}");
        metric(&pair.server.metrics(), &format!("server_stream_errors_total{labels}"))
    };
    for wanted in [1.0, 2.0] {
        let mut tunnel = Tunnel::unix(&pair.socket()).await.unwrap();
        soon(tunnel.dial(&target)).await.unwrap();
        drop(tunnel);
        until("the count", || canceled("from_client") == wanted).await;
    }
    assert_eq!(canceled("from_agent"), 0.0);
    drop(pair.agent);
    until("the count", || canceled("from_agent") == 1.0).await;
}

#[tokio::test]
async fn a_large_answer_arrives_whole_before_the_close() {
    let pair = Pair::new("large").await;
    let count = 20 << 20;
    let target = sends(count).await;
    let mut tunnel = Tunnel::unix(&pair.socket()).await.unwrap();
    let connection = soon(tunnel.dial(&target.to_string())).await.unwrap();
    let received = soon(tunnel.receive_data(count)).await.unwrap();
    assert!(received == pattern(count));
    let closed = Packet::CloseResponse { error: String::new(), connection };
    assert_eq!(soon(tunnel.receive()).await, Some(closed));
}

#[tokio::test]
async fn a_large_request_arrives_whole_before_the_close() {
    let pair = Pair::new("upload").await;
    let (sender, mut received) = tokio::sync::mpsc::unbounded_channel();
    let target = target(move |mut stream| {
        let sender = sender.clone();
        async move {
            let mut all = Vec::new();
            // Slowly at first, so that much is on its way when the close comes.
            tokio::time::sleep(std::time::Duration::from_millis(200)).await;
            tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut all).await.unwrap();
            sender.send(all).unwrap();
        }
    })
    .await;
    let count = 5 << 20;
    let mut tunnel = Tunnel::unix(&pair.socket()).await.unwrap();
    let connection = soon(tunnel.dial(&target.to_string())).await.unwrap();
    for chunk in pattern(count).chunks(30_000) {
        tunnel.send_data(connection, chunk);
    }
    tunnel.send(&Packet::CloseRequest { connection, half: false });
    let closed = Packet::CloseResponse { error: String::new(), connection };
    assert_eq!(soon(tunnel.receive()).await, Some(closed));
    assert!(soon(received.recv()).await.unwrap() == pattern(count));
}

#[tokio::test]
async fn an_echo_over_tls() {
    let pair = Pair::with(
        "tls",
        |options| {
            let address = ([127, 0, 0, 1], 0).into();
            options.frontend = Frontend::Tls { address, files: options.agent_files.clone() };
        },
        |_| (),
    )
    .await;
    let world = &pair.world;
    let address = pair.server.frontend_address().unwrap().to_string();
    let config = world.client_config(&world.files("client"), &["h2"]);
    let mut tunnel = Tunnel::tls(&address, "127.0.0.1", config).await.unwrap();
    let connection = soon(tunnel.dial(&echo().await.to_string())).await.unwrap();
    tunnel.send_data(connection, &pattern(100_000));
    assert!(soon(tunnel.receive_data(100_000)).await.unwrap() == pattern(100_000));
    // Without a certificate, or with one of another authority, nothing comes of it.
    for name in ["", "other-client"] {
        let mut files = world.files(name);
        if name.is_empty() {
            (files.cert, files.key) = (None, None);
        }
        let config = world.client_config(&files, &["h2"]);
        let dialed = match Tunnel::tls(&address, "127.0.0.1", config).await {
            Ok(mut tunnel) => soon(tunnel.dial("127.0.0.1:1")).await.map_err(|_| ()),
            Err(_) => Err(()),
        };
        assert!(dialed.is_err(), "{name}");
    }
}

#[tokio::test]
async fn dials_that_fail_say_why() {
    let pair = Pair::new("errors").await;
    let nobody = nobody().await;
    for (target, error) in [
        (nobody.to_string(), format!("dial tcp {nobody}: connect: connection refused")),
        ("nowhere".to_owned(), "dial tcp: address nowhere: missing port in address".to_owned()),
        (
            "nobody.invalid:80".to_owned(),
            "dial tcp: lookup nobody.invalid: no such host".to_owned(),
        ),
    ] {
        let mut tunnel = Tunnel::unix(&pair.socket()).await.unwrap();
        assert_eq!(soon(tunnel.dial(&target)).await, Err(error));
    }
    let page = pair.server.metrics();
    assert_eq!(metric(&page, "server_dial_failure_count{reason=\"error_response\"}"), 3.0);
    assert_eq!(metric(&page, "server_pending_backend_dials"), 0.0);
    let page = pair.agent.metrics();
    assert_eq!(metric(&page, "agent_endpoint_dial_failure_total{reason=\"unknown\"}"), 3.0);
}

#[tokio::test]
async fn without_an_agent_a_dial_fails_at_once() {
    let world = World::new("no-agent");
    let server = Server::start(world.server_options()).await.unwrap();
    let mut tunnel = Tunnel::unix(&world.socket()).await.unwrap();
    assert_eq!(soon(tunnel.dial("10.0.0.1:80")).await, Err("No agent available".to_owned()));
    let page = server.metrics();
    assert_eq!(metric(&page, "server_dial_failure_count{reason=\"no_agent\"}"), 1.0);
}

#[tokio::test]
async fn a_dial_that_is_given_up_leaves_nothing() {
    let world = World::new("given-up");
    let server = Server::start(world.server_options()).await.unwrap();
    // An agent that does not answer.
    let mut agent =
        plain::agent(&world, server.agent_address(), &[("agentid", "a")]).await.unwrap();
    let tunnel = Tunnel::unix(&world.socket()).await.unwrap();
    let dial = |random| Packet::DialRequest {
        protocol: "tcp".to_owned(),
        address: "10.0.0.1:80".to_owned(),
        random,
    };
    tunnel.send(&dial(7));
    assert_eq!(soon(agent.receive()).await, Some(dial(7)));
    let pending = || metric(&server.metrics(), "server_pending_backend_dials");
    assert_eq!(pending(), 1.0);
    tunnel.send(&Packet::DialClosed { random: 7 });
    assert_eq!(soon(agent.receive()).await, Some(Packet::DialClosed { random: 7 }));
    assert_eq!(pending(), 0.0);
    // A late answer has no recipient: the agent has to close the connection again.
    let late = Packet::DialResponse { error: String::new(), connection: 3, random: 7 };
    agent.send(&late).await;
    assert_eq!(
        soon(agent.receive()).await,
        Some(Packet::CloseRequest { connection: 3, half: false })
    );
    // The same when the client just goes away.
    tunnel.send(&dial(8));
    assert_eq!(soon(agent.receive()).await, Some(dial(8)));
    drop(tunnel);
    assert_eq!(soon(agent.receive()).await, Some(Packet::DialClosed { random: 8 }));
    assert_eq!(pending(), 0.0);
    let page = server.metrics();
    assert_eq!(metric(&page, "server_dial_failure_count{reason=\"frontend_close\"}"), 2.0);
    assert_eq!(metric(&page, "server_dial_failure_count{reason=\"unrecognized_response\"}"), 1.0);
}

#[tokio::test]
async fn a_dial_without_an_answer_times_out() {
    let world = World::new("timeout");
    let mut options = world.server_options();
    options.limits.dial_timeout = Duration::from_millis(300);
    let server = Server::start(options).await.unwrap();
    let _agent = plain::agent(&world, server.agent_address(), &[("agentid", "a")]).await.unwrap();
    let mut tunnel = Tunnel::unix(&world.socket()).await.unwrap();
    let error = soon(tunnel.dial("10.0.0.1:80")).await.unwrap_err();
    assert!(error.starts_with("dial timeout: agent a gave no answer within"), "{error}");
    let page = server.metrics();
    assert_eq!(metric(&page, "server_dial_failure_count{reason=\"backend_dial_timeout\"}"), 1.0);
}

#[tokio::test]
async fn dials_that_wait_are_bounded() {
    let world = World::new("bounded");
    let mut options = world.server_options();
    options.limits.pending_dials = 2;
    let server = Server::start(options).await.unwrap();
    let mut agent =
        plain::agent(&world, server.agent_address(), &[("agentid", "a")]).await.unwrap();
    let dial = Packet::DialRequest {
        protocol: "tcp".to_owned(),
        address: "10.0.0.1:80".to_owned(),
        random: 1,
    };
    // All with the same number: the server tells them apart all the same.
    let mut numbers = Vec::new();
    let tunnels = [
        Tunnel::unix(&world.socket()).await.unwrap(),
        Tunnel::unix(&world.socket()).await.unwrap(),
    ];
    for tunnel in &tunnels {
        tunnel.send(&dial);
        match soon(agent.receive()).await {
            Some(Packet::DialRequest { random, .. }) => numbers.push(random),
            other => panic!("{other:?}"),
        }
    }
    assert_ne!(numbers[0], numbers[1]);
    let mut third = Tunnel::unix(&world.socket()).await.unwrap();
    let error = soon(third.dial("10.0.0.1:80")).await.unwrap_err();
    assert_eq!(error, "too many dials wait for this agent already");
}

#[tokio::test]
async fn a_stream_that_mixes_connections_is_ended() {
    let pair = Pair::new("mixed").await;
    let target = echo().await.to_string();
    let mut tunnel = Tunnel::unix(&pair.socket()).await.unwrap();
    let one = soon(tunnel.dial(&target)).await.unwrap();
    let other = soon(tunnel.dial(&target)).await.unwrap();
    assert_eq!((one, other), (1, 2));
    tunnel.send_data(one, b"a");
    assert_eq!(soon(tunnel.receive_data(1)).await.unwrap(), b"a");
    tunnel.send_data(other, b"b");
    let error = "mismatched connection IDs".to_owned();
    for connection in [other, one] {
        let closed = Packet::CloseResponse { error: error.clone(), connection };
        assert_eq!(soon(tunnel.receive()).await, Some(closed));
    }
    assert_eq!(soon(tunnel.receive()).await, None);
    until("the end", || pair.server.established() == 0 && pair.agent.targets() == 0).await;
}

#[tokio::test]
async fn connections_nobody_knows_are_closed() {
    let pair = Pair::new("unknown").await;
    let mut tunnel = Tunnel::unix(&pair.socket()).await.unwrap();
    tunnel.send_data(5, b"x");
    let error = "backend not initialized".to_owned();
    let closed = Packet::CloseResponse { error, connection: 5 };
    assert_eq!(soon(tunnel.receive()).await, Some(closed));
    tunnel.send(&Packet::CloseRequest { connection: 6, half: false });
    let error = "backend uninitialized".to_owned();
    let closed = Packet::CloseResponse { error, connection: 6 };
    assert_eq!(soon(tunnel.receive()).await, Some(closed));
}

#[tokio::test]
async fn many_connections_at_a_time() {
    let pair = Pair::new("many").await;
    let target = echo().await.to_string();
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..200 {
        let (socket, target) = (pair.socket(), target.clone());
        tasks.spawn(async move {
            let mut tunnel = Tunnel::unix(&socket).await.unwrap();
            let connection = tunnel.dial(&target).await.unwrap();
            let bytes = pattern(50_000 + number);
            tunnel.send_data(connection, &bytes);
            assert!(tunnel.receive_data(bytes.len()).await.unwrap() == bytes);
        });
    }
    while let Some(done) = soon(tasks.join_next()).await {
        done.unwrap();
    }
    until("the end", || pair.server.established() == 0 && pair.agent.targets() == 0).await;
}

#[tokio::test]
async fn garbage_harms_nobody_else() {
    let pair = Pair::new("garbage").await;
    let target = echo().await.to_string();
    let mut good = Tunnel::unix(&pair.socket()).await.unwrap();
    let connection = soon(good.dial(&target)).await.unwrap();
    for bytes in [&[1, 0, 0, 0, 0][..], &[0, 0xff, 0, 0, 0], &[0, 0, 0, 0, 1, 8]] {
        let mut bad = Tunnel::unix(&pair.socket()).await.unwrap();
        bad.send_raw(bytes::Bytes::copy_from_slice(bytes));
        assert_eq!(soon(bad.receive()).await, None);
        let why = bad.why();
        assert!(why.contains("grpc") || why.contains("packet"), "{why}");
    }
    // Bytes that are not HTTP/2.
    let mut bad = tokio::net::UnixStream::connect(pair.socket()).await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut bad, b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    soon(tokio::io::AsyncReadExt::read_to_end(&mut bad, &mut answer)).await.unwrap();
    good.send_data(connection, b"still here");
    assert_eq!(soon(good.receive_data(10)).await.unwrap(), b"still here");
}
