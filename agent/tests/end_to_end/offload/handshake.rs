//! Connections have their entries from the handshake on.

use std::time::{Duration, Instant};

use testkit::{RawSender, packet};

use super::following::session;
use super::{ON, asks, connect_to_redis, connections, forwarded, offload};
use crate::hostile::mac;
use crate::{ClusterNode, requires_the_machine};

const CONNECTIONS: u64 = 50;

/// Of a connection of one request, the switch sees what opens and ends it.
#[test]
fn short_connections_take_the_kernels_way() {
    requires_the_machine!("redis-server");
    let node = ClusterNode::start(&ON);
    let (client, server) = (node.pod("client", "client"), node.pod("server", "server"));
    let _redis = server.serve_redis();
    for to in [server.v4(), server.v6()] {
        // Neighbours are known then.
        asks(&mut connect_to_redis(&client, to)).unwrap();
        let punted = |reason: &str| offload(&node)["punted"][reason].as_u64().unwrap();
        let before = (forwarded(&node), punted("no-entry"), punted("opens-or-ends"));
        for _ in 0..CONNECTIONS {
            asks(&mut connect_to_redis(&client, to)).unwrap();
        }
        // The handshake's last packet, the question, the answer.
        assert!(forwarded(&node) >= before.0 + 3 * CONNECTIONS, "{to}: {}", offload(&node));
        assert!(punted("no-entry") < before.1 + CONNECTIONS, "{to}: {}", offload(&node));
        assert!(punted("opens-or-ends") >= before.2 + 3 * CONNECTIONS, "{to}: {}", offload(&node));
    }
    node.eventually("the end of their entries", || (connections(&node) == 0).then_some(()));
}

/// Although the switch has not seen the last packet of its handshake.
#[test]
fn a_connection_is_established_that_the_kernel_had_from_its_handshake_on() {
    requires_the_machine!("redis-server");
    let node = ClusterNode::start(&ON);
    let (client, server) = (node.pod("client", "client"), node.pod("server", "server"));
    let _redis = server.serve_redis();
    let before = forwarded(&node);
    let mut connection = connect_to_redis(&client, server.v4());
    node.eventually("the handshake's end", || (forwarded(&node) > before).then_some(()));
    node.eventually("the session's state", || {
        (session(&node, &connection)["state"] == "established").then_some(())
    });
    // It stays in the kernel's hands.
    std::thread::sleep(Duration::from_secs(4));
    assert_eq!(session(&node, &connection)["offloaded"], true);
    asks(&mut connection).unwrap();
}

/// Handshakes that do not end take no room from others.
#[test]
fn entries_of_a_handshake_without_an_end_are_removed() {
    requires_the_machine!("redis-server", "nft");
    let node = ClusterNode::start(&ON);
    let (client, server) = (node.pod("client", "client"), node.pod("server", "server"));
    let _redis = server.serve_redis();
    server.namespace.exec(["sysctl", "-qw", "net.ipv4.tcp_synack_retries=0"]);
    // The client's kernel knows nothing of the connection.
    let silence = "add table ip t; add chain ip t out { type filter hook output priority 0; }; \
                   add rule ip t out tcp flags & rst == rst drop";
    client.namespace.exec(["nft", silence]);
    let from = format!("{}:4000", client.v4());
    let to = format!("{}:6379", server.v4());
    let syn = packet::tcp(&from, &to).syn().from_mac(mac(&client)).build();
    client.namespace.enter(|| RawSender::open("eth0").unwrap().send(&syn).unwrap());
    let began = Instant::now();
    node.eventually("entries", || (connections(&node) == 1).then_some(()));
    node.eventually("the end of them", || (connections(&node) == 0).then_some(()));
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
}
