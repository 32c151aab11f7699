//! Connections have their entries from the handshake on.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use testkit::{RawSender, packet};

use super::following::session;
use super::{ON, asks, connect_to_redis, connections, forwarded, offload};
use crate::cluster_node::PATIENCE;
use crate::hostile::mac;
use crate::{ClusterNode, requires_the_machine};

const CONNECTIONS: u64 = 50;

/// Of a connection of one request, the switch sees what opens it.
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
        // The handshake's last packet, the question, the answer, a FIN of each end.
        node.eventually("the last packets", || {
            (forwarded(&node) >= before.0 + 5 * CONNECTIONS).then_some(())
        });
        assert!(punted("no-entry") < before.1 + CONNECTIONS, "{to}: {}", offload(&node));
        assert!(punted("opens-or-ends") >= before.2 + 2 * CONNECTIONS, "{to}: {}", offload(&node));
        assert!(punted("opens-or-ends") < before.2 + 3 * CONNECTIONS, "{to}: {}", offload(&node));
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

/// The kernel has forwarded what ended the connection before, and the switch may not have read of that.
#[test]
fn a_port_is_used_again_at_once() {
    requires_the_machine!("redis-server");
    let node = ClusterNode::start(&ON);
    let (client, server) = (node.pod("client", "client"), node.pod("server", "server"));
    let _redis = server.serve_redis();
    let connect = |to| {
        // The port is free once the server has acknowledged the client's FIN.
        let is_free = || client.namespace.enter(|| TcpStream::connect((to, 6379)));
        let connection = node.eventually("a free port", || is_free().ok());
        connection.set_read_timeout(Some(PATIENCE)).unwrap();
        connection
    };
    for (to, port) in [(server.v4(), 40000), (server.v6(), 40001)] {
        let ports = format!("net.ipv4.ip_local_port_range={port} {port}");
        client.namespace.exec(["sysctl", "-qw", &ports]);
        for _ in 0..20 {
            let mut connection = connect(to);
            connection.write_all(b"QUIT\r\n").unwrap();
            // The server ends it first, so that the client's port is free.
            let mut answer = String::new();
            connection.read_to_string(&mut answer).unwrap();
            assert_eq!(answer, "+OK\r\n");
        }
        let mut connection = connect(to);
        asks(&mut connection).unwrap();
        // Until the switch has read all entries.
        std::thread::sleep(Duration::from_secs(3));
        let shown = session(&node, &connection);
        assert_eq!((&shown["state"], &shown["offloaded"]), (&"established".into(), &true.into()));
        asks(&mut connection).unwrap();
    }
}

/// The initiator's first packet, sent again, ends no connection that the responder has not ended.
#[test]
fn a_half_closed_connection_outlives_its_first_packet_sent_again() {
    requires_the_machine!();
    let node = ClusterNode::start(&ON);
    let (client, server) = (node.pod("client", "client"), node.pod("server", "server"));
    let listener = server.namespace.enter(|| TcpListener::bind((server.v4(), 6379)).unwrap());
    for _ in 0..5 {
        let mut asking =
            client.namespace.enter(|| TcpStream::connect((server.v4(), 6379)).unwrap());
        let (mut answering, from) = listener.accept().unwrap();
        asking.set_read_timeout(Some(PATIENCE)).unwrap();
        let (from, to) = (from.to_string(), answering.local_addr().unwrap().to_string());
        let syn = packet::tcp(&from, &to).syn().from_mac(mac(&client)).build();
        let raw = client.namespace.enter(|| RawSender::open("eth0").unwrap());
        asking.shutdown(std::net::Shutdown::Write).unwrap();
        raw.send(&syn).unwrap();
        assert_eq!(answering.read(&mut [0; 8]).unwrap(), 0, "the client's end");
        answering.write_all(b"answer").unwrap();
        let mut answer = [0; 6];
        asking.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"answer");
        node.eventually("the session's state", || {
            (session(&node, &asking)["state"] != "established").then_some(())
        });
        assert_eq!(session(&node, &asking)["state"], "closing");
    }
}

/// The ends know from its sequence number that a reset is forged; the switch learns it of what they send next.
#[test]
fn a_forged_reset_ends_no_connection_in_the_kernel() {
    requires_the_machine!("redis-server");
    let node = ClusterNode::start(&ON);
    let (client, server) = (node.pod("client", "client"), node.pod("server", "server"));
    let _redis = server.serve_redis();
    let mut connection = connect_to_redis(&client, server.v4());
    asks(&mut connection).unwrap();
    let (from, to) = (connection.local_addr().unwrap(), connection.peer_addr().unwrap());
    let forged = packet::tcp(&from.to_string(), &to.to_string()).rst().from_mac(mac(&client));
    client.namespace.enter(|| RawSender::open("eth0").unwrap().send(&forged.build()).unwrap());
    node.eventually("the reset", || {
        (session(&node, &connection)["state"] == "ended").then_some(())
    });
    node.eventually("the session's state", || {
        asks(&mut connection).unwrap();
        assert_eq!(session(&node, &connection)["offloaded"], true);
        (session(&node, &connection)["state"] == "established").then_some(())
    });
}

/// The switch reads of FINs that the kernel has forwarded.
#[test]
fn a_connection_that_ended_in_the_kernel_ends_in_the_switch() {
    requires_the_machine!("redis-server");
    let node = ClusterNode::start(&ON);
    let (client, server) = (node.pod("client", "client"), node.pod("server", "server"));
    let _redis = server.serve_redis();
    let mut connection = connect_to_redis(&client, server.v4());
    asks(&mut connection).unwrap();
    let copy = connection.try_clone().unwrap();
    connection.shutdown(std::net::Shutdown::Both).unwrap();
    drop(connection);
    node.eventually("the session's end", || {
        (session(&node, &copy)["state"] == "ended").then_some(())
    });
    node.eventually("the end of its entries", || (connections(&node) == 0).then_some(()));
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
