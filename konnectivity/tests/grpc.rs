//! The gRPC frontend, server and agent, end to end.

mod common;

use common::*;
use konnectivity::client::Tunnel;
use konnectivity::packet::Packet;

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
    tunnel.send(&Packet::CloseRequest { connection });
    let closed = Packet::CloseResponse { error: String::new(), connection };
    assert_eq!(soon(tunnel.receive()).await, Some(closed));
    until("the end", || pair.server.established() == 0 && pair.agent.targets() == 0).await;
    let line = &audit(&pair.world.path("server-audit"))[0];
    assert_eq!(line["outcome"], "closed by client");
    assert_eq!(
        (line["bytes_to_target"].as_u64(), line["bytes_from_target"].as_u64()),
        (Some(5), Some(5))
    );
    assert_eq!(line["agent"], "agent-1");
    assert!(line["who"].as_str().unwrap().contains("(podgate/"), "{line}");
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
    tunnel.send(&Packet::CloseRequest { connection });
    let closed = Packet::CloseResponse { error: String::new(), connection };
    assert_eq!(soon(tunnel.receive()).await, Some(closed));
    assert!(soon(received.recv()).await.unwrap() == pattern(count));
}
