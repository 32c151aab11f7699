//! Connections have their entries from the handshake on.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use testkit::{RawSender, packet};

use super::following::{find_session, session};
use super::{ON, arrived, asks, connect_to_redis, connections, forwarded, offload, settled};
use crate::cluster_node::PATIENCE;
use crate::hostile::mac;
use crate::pod::Pod;
use crate::policies::nothing_in;
use crate::{ClusterNode, requires_the_machine};

const CONNECTIONS: u64 = 50;

/// Connects until the kernel has opened a connection itself, by the template of one before; how often.
fn make_template(node: &ClusterNode, client: &Pod<'_>, server: IpAddr) -> u64 {
    let opened = || offload(node)["opened"].as_u64().unwrap();
    let mut made = 0;
    node.eventually("a template", || {
        let before = opened();
        asks(&mut connect_to_redis(client, server)).unwrap();
        made += 1;
        (opened() > before).then_some(made)
    })
}

/// The kernel forwards connections like one that the switch has allowed, from their first packet to their last.
/// Observers see each.
#[test]
fn short_connections_take_the_kernels_way() {
    requires_the_machine!("redis-server");
    let node = ClusterNode::start(&ON);
    let (client, server) = (node.pod("client", "client"), node.pod("server", "server"));
    let _redis = server.serve_redis();
    for to in [server.v4(), server.v6()] {
        let of = |what: &str| offload(&node)[what].as_u64().unwrap();
        let made = make_template(&node, &client, to);
        let punted = || of_reasons(&offload(&node));
        let is_opening = |it: &serde_json::Value| {
            it["reason"] == "policy-allowed" && it["to"]["ip"] == to.to_string()
        };
        let shown = || node.verdicts(&[]).iter().filter(|it| is_opening(it)).count() as u64;
        // Earlier connections have ended, and are shown.
        node.eventually("the end of entries", || (connections(&node) == 0).then_some(()));
        node.eventually("their verdicts", || (shown() == made).then_some(()));
        let before = (forwarded(&node), punted(), of("opened"));
        for _ in 0..CONNECTIONS {
            asks(&mut connect_to_redis(&client, to)).unwrap();
        }
        // The handshake, the question, the answer and its acknowledgement, the ends.
        node.eventually("the last packets", || {
            (forwarded(&node) >= before.0 + 8 * CONNECTIONS).then_some(())
        });
        assert!(of("opened") > before.2 + CONNECTIONS / 2, "{to}: {}", offload(&node));
        assert!(punted() < before.1 + CONNECTIONS, "{to}: {}", offload(&node));
        node.eventually("all verdicts", || (shown() == made + CONNECTIONS).then_some(()));
    }
    node.eventually("the end of their entries", || (connections(&node) == 0).then_some(()));
    // A worker that has no more of them to read waits for the kernel: it sleeps some times a second, and not at each
    // interval between readings. A busy machine keeps it from either.
    let sleeps = || node.status()["workers"][0]["sleeps"].as_f64().unwrap();
    let (before, began) = (sleeps(), Instant::now());
    std::thread::sleep(Duration::from_millis(500));
    let rate = (sleeps() - before) / began.elapsed().as_secs_f64();
    assert!(rate < 1000.0, "{rate} times a second");
}

pub(super) fn of_reasons(offload: &serde_json::Value) -> u64 {
    let punted = offload["punted"].as_object().unwrap();
    punted.values().map(|count| count.as_u64().unwrap()).sum()
}

/// Counted by the server's kernel: once the denial is in force, no first packet arrives.
#[test]
fn a_denial_holds_for_the_next_connection_of_a_template() {
    requires_the_machine!("redis-server");
    let node = ClusterNode::start(&ON);
    let (client, server) = (node.pod("client", "client"), node.pod("server", "server"));
    let _redis = server.serve_redis();
    for round in 0..4 {
        let to = if round % 2 == 0 { server.v4() } else { server.v6() };
        make_template(&node, &client, to);
        node.apply("policy", &nothing_in("server"));
        let before = (settled(&server), offload(&node)["opened"].clone());
        for _ in 0..20 {
            let to = std::net::SocketAddr::new(to, 6379);
            let within = Duration::from_millis(20);
            let connected =
                client.namespace.enter(|| TcpStream::connect_timeout(&to, within).is_ok());
            assert!(!connected, "round {round}");
        }
        assert_eq!((arrived(&server), offload(&node)["opened"].clone()), before, "round {round}");
        node.withdraw("policy");
    }
}

/// A refusal of the server's kernel comes by the switch, which has read of the connection before.
#[test]
fn a_connection_of_a_template_is_refused_at_once() {
    requires_the_machine!("redis-server");
    let node = ClusterNode::start(&ON);
    let (client, server) = (node.pod("client", "client"), node.pod("server", "server"));
    let redis = server.serve_redis();
    make_template(&node, &client, server.v4());
    drop(redis);
    let to = std::net::SocketAddr::new(server.v4(), 6379);
    for _ in 0..20 {
        let began = Instant::now();
        let connect = || TcpStream::connect_timeout(&to, PATIENCE);
        let error = client.namespace.enter(connect).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused, "{:?}", began.elapsed());
    }
    let dropped = node.verdicts(&["--verdict", "dropped"]);
    assert!(dropped.iter().all(|it| it["reason"] != "no-session"), "{dropped:?}");
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
        // Until the switch has read the entries, it knows of the first packet alone.
        let state = node.eventually("the session's state", || {
            let state = find_session(&node, &asking)?["state"].clone();
            (state != "established" && state != "half-open").then_some(state)
        });
        assert_eq!(state, "closing");
    }
}

/// The ends recognize a forged reset by its sequence number; the switch sees it by their next packets.
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
    // Their sessions stay for longer than the test.
    let timeouts = ["--unanswered-timeout", "1h", "--tcp-transient-timeout", "1h"];
    let node = ClusterNode::start(&[&ON[..], &timeouts].concat());
    let (client, server) = (node.pod("client", "client"), node.pod("server", "server"));
    let _redis = server.serve_redis();
    server.namespace.exec(["sysctl", "-qw", "net.ipv4.tcp_synack_retries=0"]);
    // The client's kernel knows nothing of the connection.
    let silence = "add table ip t; add chain ip t out { type filter hook output priority 0; }; \
                   add rule ip t out tcp flags & rst == rst drop";
    client.namespace.exec(["nft", silence]);
    let to = format!("{}:6379", server.v4());
    let mut ports = 4000..5000;
    // A busy machine may look too late for the first ones.
    node.eventually("entries", || {
        let from = format!("{}:{}", client.v4(), ports.next().unwrap());
        let syn = packet::tcp(&from, &to).syn().from_mac(mac(&client)).build();
        client.namespace.enter(|| RawSender::open("eth0").unwrap().send(&syn).unwrap());
        (connections(&node) > 0).then_some(())
    });
    node.eventually("the end of them", || (connections(&node) == 0).then_some(()));
}
