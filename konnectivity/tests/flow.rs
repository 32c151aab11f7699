//! Backpressure: a reader that takes nothing does not delay others, and memory is bounded.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::*;
use bytes::Bytes;
use konnectivity::client::Tunnel;
use konnectivity::packet::Packet;
use konnectivity::server::{Mode, Server};
use tokio::io::AsyncReadExt;

/// A target that sends without end and counts nothing.
async fn endless() -> std::net::SocketAddr {
    target(|mut stream| async move {
        let chunk = vec![7; 64 * 1024];
        while tokio::io::AsyncWriteExt::write_all(&mut stream, &chunk).await.is_ok() {}
    })
    .await
}

#[tokio::test]
async fn a_reader_that_never_reads_waits_alone() {
    let pair = Pair::new("stalled").await;
    let endless = endless().await.to_string();
    let echo = echo().await.to_string();
    let mut stalled = Tunnel::unix(&pair.socket()).await.unwrap();
    soon(stalled.dial(&endless)).await.unwrap();
    // It gets what the window lets through, and then nothing is read from the target any more.
    let from_agent = || metric(&pair.server.metrics(), "server_from_agent_bytes_total");
    until("the first bytes", || from_agent() > 200_000.0).await;
    for _ in 0..20 {
        let mut tunnel = Tunnel::unix(&pair.socket()).await.unwrap();
        let connection = soon(tunnel.dial(&echo)).await.unwrap();
        tunnel.send_data(connection, &pattern(200_000));
        assert!(soon(tunnel.receive_data(200_000)).await.unwrap() == pattern(200_000));
    }
    // Two windows' worth at most: the server's own, and what is with the client.
    let bound = 20.0 * 200_000.0 + 2.0 * 1024.0 * 1024.0;
    assert!(from_agent() < bound, "{}", from_agent());
    assert_eq!(metric(&pair.server.metrics(), "server_slow_reader_closes_total"), 0.0);
    // When it reads after all, it goes on from where it stood.
    assert!(soon(stalled.receive_data(8 << 20)).await.unwrap().iter().all(|byte| *byte == 7));
}

#[tokio::test]
async fn a_client_of_connect_that_never_reads_waits_alone() {
    let pair = Pair::with("stalled-connect", |it| it.mode = Mode::HttpConnect, |_| ()).await;
    let endless = endless().await.to_string();
    let mut stalled = tokio::net::UnixStream::connect(pair.socket()).await.unwrap();
    let head = soon(connect(&mut stalled, &endless)).await;
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    let from_agent = || metric(&pair.server.metrics(), "server_from_agent_bytes_total");
    until("the first bytes", || from_agent() > 500_000.0).await;
    let large = sends(3 << 20).await.to_string();
    let mut other = tokio::net::UnixStream::connect(pair.socket()).await.unwrap();
    soon(connect(&mut other, &large)).await;
    let mut received = Vec::new();
    soon(other.read_to_end(&mut received)).await.unwrap();
    assert!(received == pattern(3 << 20));
    let mut some = vec![0; 8 << 20];
    soon(stalled.read_exact(&mut some)).await.unwrap();
    assert!(some.iter().all(|byte| *byte == 7));
}

#[tokio::test]
async fn a_target_that_never_reads_holds_up_only_its_client() {
    let pair = Pair::new("stalled-target").await;
    let mut tunnel = Tunnel::unix(&pair.socket()).await.unwrap();
    let connection = soon(tunnel.dial(&stalls().await.to_string())).await.unwrap();
    let chunk = vec![1; 60_000];
    for _ in 0..500 {
        tunnel.send_data(connection, &chunk);
    }
    let echo = echo().await.to_string();
    for _ in 0..20 {
        let mut tunnel = Tunnel::unix(&pair.socket()).await.unwrap();
        let connection = soon(tunnel.dial(&echo)).await.unwrap();
        tunnel.send_data(connection, &pattern(200_000));
        assert!(soon(tunnel.receive_data(200_000)).await.unwrap() == pattern(200_000));
    }
    // Most of the thirty megabytes is still with the client.
    assert!(tunnel.unsent() > 15_000_000, "{}", tunnel.unsent());
    drop(tunnel);
    until("the end", || pair.server.established() == 0).await;
}

/// An agent without credit, with one connection established for `tunnel`.
async fn uncredited(world: &World, server: &Server) -> (plain::Plain, Tunnel) {
    let mut agent =
        plain::agent(world, server.agent_address(), &[("agentid", "go")]).await.unwrap();
    let mut tunnel = Tunnel::unix(&world.socket()).await.unwrap();
    establish(&mut agent, &mut tunnel, 1).await;
    (agent, tunnel)
}

async fn establish(agent: &mut plain::Plain, tunnel: &mut Tunnel, connection: i64) {
    tunnel.send(&Packet::DialRequest {
        protocol: "tcp".to_owned(),
        address: "10.0.0.1:80".to_owned(),
        random: connection,
    });
    let random = match soon(agent.receive()).await {
        Some(Packet::DialRequest { random, .. }) => random,
        other => panic!("{other:?}"),
    };
    agent.send(&Packet::DialResponse { error: String::new(), connection, random }).await;
    assert!(matches!(soon(tunnel.receive()).await, Some(Packet::DialResponse { .. })));
}

#[tokio::test]
async fn without_credit_a_reader_that_never_reads_is_closed_alone() {
    let world = World::new("uncredited");
    let mut options = world.server_options();
    options.limits.connection_bytes = 256 * 1024;
    options.limits.slow_reader = Duration::from_millis(300);
    let server = Server::start(options).await.unwrap();
    let (mut agent, mut stalled) = uncredited(&world, &server).await;
    let mut other = Tunnel::unix(&world.socket()).await.unwrap();
    establish(&mut agent, &mut other, 2).await;
    let chunk = Bytes::from(vec![1; 60_000]);
    // More than the reader's window and the server's buffer together.
    for _ in 0..40 {
        let packet = Packet::Data { connection: 1, error: String::new(), bytes: chunk.clone() };
        soon(agent.send(&packet)).await;
    }
    let bytes = "for the other".into();
    agent.send(&Packet::Data { connection: 2, error: String::new(), bytes }).await;
    assert_eq!(soon(other.receive_data(13)).await.unwrap(), b"for the other");
    // The agent is asked to close, and hears why nothing.
    assert_eq!(
        soon(agent.receive()).await,
        Some(Packet::CloseRequest { connection: 1, half: false })
    );
    agent.send(&Packet::CloseResponse { error: String::new(), connection: 1 }).await;
    // The reader gets the bytes under way, then the close.
    let error = soon(stalled.receive_data(40 * 60_000)).await.unwrap_err();
    assert!(
        error.contains("status 8: connection 1 to 10.0.0.1:80: its reader took nothing"),
        "{error}"
    );
    let page = server.metrics();
    assert_eq!(metric(&page, "server_slow_reader_closes_total"), 1.0);
    assert_eq!(metric(&page, "server_full_receive_channels{service_method=\"Connect\"}"), 0.0);
    assert_eq!(server.established(), 1);
}

#[tokio::test]
async fn without_credit_a_slow_reader_slows_and_loses_nothing() {
    let world = World::new("slow");
    let mut options = world.server_options();
    options.limits.connection_bytes = 256 * 1024;
    options.limits.slow_reader = Duration::from_secs(20);
    let server = Server::start(options).await.unwrap();
    let (mut agent, mut slow) = uncredited(&world, &server).await;
    let count = 4 << 20;
    let sender = tokio::spawn(async move {
        for chunk in pattern(count).chunks(50_000) {
            let bytes = Bytes::copy_from_slice(chunk);
            agent.send(&Packet::Data { connection: 1, error: String::new(), bytes }).await;
        }
        agent
    });
    let mut received = Vec::new();
    while received.len() < count {
        match soon(slow.receive()).await {
            Some(Packet::Data { bytes, .. }) => received.extend_from_slice(&bytes),
            other => panic!("{other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(received == pattern(count));
    drop(sender.await.unwrap());
}

#[tokio::test]
async fn equal_downloads_get_equal_shares() {
    const COUNT: usize = 30;
    let pair = Pair::new("shares").await;
    let endless = endless().await.to_string();
    let received: Arc<[AtomicUsize]> = (0..COUNT).map(|_| AtomicUsize::new(0)).collect();
    let mut tasks = tokio::task::JoinSet::new();
    let mut tunnels = Vec::new();
    for _ in 0..COUNT {
        let mut tunnel = Tunnel::unix(&pair.socket()).await.unwrap();
        soon(tunnel.dial(&endless)).await.unwrap();
        tunnels.push(tunnel);
    }
    for (at, mut tunnel) in tunnels.into_iter().enumerate() {
        let received = Arc::clone(&received);
        tasks.spawn(async move {
            while let Some(packet) = tunnel.receive().await {
                if let Packet::Data { bytes, .. } = packet {
                    received[at].fetch_add(bytes.len(), Ordering::Relaxed);
                }
            }
        });
    }
    let shares = || received.iter().map(|it| it.load(Ordering::Relaxed)).collect::<Vec<_>>();
    until("two MB on average", || shares().iter().sum::<usize>() > COUNT * (2 << 20)).await;
    let shares = shares();
    let (least, most) = (shares.iter().min().unwrap(), shares.iter().max().unwrap());
    assert!(most < &(least * 2), "{least} to {most}: {shares:?}");
}
