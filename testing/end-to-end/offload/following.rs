//! Packets that a capture or a trace is about take the switch; others stay in the kernel's hands.

use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use testkit::Process;

use super::{ON, asks, connect_to_redis, wait_for_offload};
use crate::cluster_node::{PATIENCE, PODGATE};
use crate::pod::Pod;
use crate::{ClusterNode, requires_the_machine};

const QUESTIONS: u64 = 25;

/// The session of a connection to redis, as `show sessions` has it.
pub(super) fn session(node: &ClusterNode, connection: &TcpStream) -> Value {
    find_session(node, connection).expect("a session")
}

/// The same; `None` if the switch has not read yet of a connection that a template opened.
pub(super) fn find_session(node: &ClusterNode, connection: &TcpStream) -> Option<Value> {
    let port = connection.local_addr().unwrap().port();
    let lines = node.podgate(&["show", "sessions", "-o", "json"]);
    let mut sessions = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    sessions.find(|it| it["from_port"] == port && it["to_port"] == 6379)
}

fn packets(node: &ClusterNode, connection: &TcpStream) -> u64 {
    session(node, connection)["kernel_packets"].as_u64().unwrap()
}

/// Asks until so many questions are answered; every packet of them by the kernel, or none.
fn ask(connection: &mut TcpStream) {
    (0..QUESTIONS).for_each(|_| asks(connection).unwrap());
}

#[test]
fn captures_and_traces_see_every_packet_of_what_they_are_about_and_others_stay_offloaded() {
    requires_the_machine!("redis-server");
    let node = ClusterNode::start(&ON);
    let (client, server) = (node.pod("client", "client"), node.pod("server", "server"));
    let other = node.pod("other", "other");
    let (_redis, _another) = (server.serve_redis(), other.serve_redis());
    let mut seen = connect_to_redis(&client, server.v4());
    let mut unseen = connect_to_redis(&client, other.v4());
    for connection in [&mut seen, &mut unseen] {
        wait_for_offload(&node, connection);
    }
    let is_offloaded =
        |connection: &TcpStream| session(&node, connection)["offloaded"] == Value::Bool(true);
    assert!(is_offloaded(&seen) && is_offloaded(&unseen));

    let filter = format!("address={} port=6379", server.v4());
    let arguments = ["capture", "default/client", "--filter", &filter];
    let mut command = Command::new(PODGATE);
    let mut capture = Process::spawn(command.args(arguments).arg("--socket").arg(node.socket()));
    capture.wait_for_line("capturing ", PATIENCE);
    assert!(!is_offloaded(&seen) && is_offloaded(&unseen));
    let before = packets(&node, &unseen);
    ask(&mut seen);
    ask(&mut unseen);
    node.eventually("the kernel's way of the other one", || {
        (packets(&node, &unseen) >= before + 2 * QUESTIONS).then_some(())
    });
    // A question and its answer, each in a packet of its own: six and seven bytes behind 66 of headers.
    let is_data = |line: &&String| line.ends_with(" 72 bytes") || line.ends_with(" 73 bytes");
    let captured = |capture: &Process| capture.output().iter().filter(is_data).count() as u64;
    node.eventually("all packets", || (captured(&capture) == 2 * QUESTIONS).then_some(()));
    let id = capture.id().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    capture.wait(PATIENCE);
    assert_eq!(captured(&capture), 2 * QUESTIONS);
    node.eventually("the kernel's way again", || is_offloaded(&seen).then_some(()));

    let wanted = 2 * QUESTIONS;
    let filter = format!("from={} in=default/client protocol=tcp", client.v4());
    let filter = format!("{filter} to={}", server.v4());
    node.podgate(&["trace", "add", &wanted.to_string(), "--filter", &filter]);
    assert!(!is_offloaded(&seen) && is_offloaded(&unseen));
    ask(&mut seen);
    let end = || node.podgate(&["trace", "show", "-o", "json"]).lines().count() as u64;
    assert!(end() >= QUESTIONS, "{} packets followed", end());
    // A trace that is complete lets its connections be offloaded again.
    node.eventually("the end of the trace", || {
        asks(&mut seen).unwrap();
        is_offloaded(&seen).then_some(())
    });
    assert_eq!(end(), wanted);
    node.podgate(&["trace", "clear"]);
}

/// `show ports`, `top`, the status and metrics count all packets, offloaded or not.
#[test]
fn counters_have_what_the_kernel_forwarded() {
    requires_the_machine!("redis-server");
    let node = ClusterNode::start(&ON);
    let (client, server) = (node.pod("client", "client"), node.pod("server", "server"));
    let _redis = server.serve_redis();
    let mut connection = connect_to_redis(&client, server.v4());
    wait_for_offload(&node, &mut connection);
    let of_kernel = |pod: &Pod<'_>, what: &str| -> u64 {
        let path = format!("/sys/class/net/eth0/statistics/{what}");
        pod.namespace.exec(["cat", &path]).trim().parse().unwrap()
    };
    let of_port = |pod: &Pod<'_>| {
        let status = node.status();
        let mut ports = status["ports"].as_array().unwrap().iter();
        let port = ports.find(|port| port["name"] == pod.key().as_str()).unwrap();
        ["received", "received_bytes", "sent", "sent_bytes"].map(|it| port[it].as_u64().unwrap())
    };
    let of_pod = |pod: &Pod<'_>| {
        ["tx_packets", "tx_bytes", "rx_packets", "rx_bytes"].map(|it| of_kernel(pod, it))
    };
    let both = || [&client, &server].map(|pod| (of_port(pod), of_pod(pod)));
    // The switch reads the kernel's counts again where the last reading is older than a tenth of a second.
    let later = || {
        std::thread::sleep(Duration::from_millis(300));
        both()
    };
    let settled = || node.eventually("silence", || Some(both()).filter(|it| *it == later()));
    let before = settled();
    (0..20).for_each(|_| ask(&mut connection));
    let by_kernel = node.eventually("the session's counters", || {
        Some(packets(&node, &connection)).filter(|packets| *packets >= 40 * QUESTIONS)
    });
    let forwarded = node.status()["packets"]["forward"].as_u64().unwrap();
    assert!(forwarded >= by_kernel, "{forwarded}");
    node.eventually("the same counts in the pods and in the switch", || {
        let now = both();
        let grown = now.iter().zip(&before).all(|(now, before)| {
            let by = |now: [u64; 4], before: [u64; 4]| -> Vec<u64> {
                now.iter().zip(before).map(|(now, before)| now - before).collect()
            };
            by(now.0, before.0) == by(now.1, before.1)
        });
        grown.then_some(())
    });
    let rows = node.podgate(&["show", "runtime", "-o", "json"]);
    let rows = rows.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let rows: Vec<Value> = rows.filter(|row| row["worker"].is_null()).collect();
    let shown = |name: &str| rows.iter().find(|row| row["node"] == name).expect(name);
    assert!(shown("flow-offload")["packets"].as_u64().unwrap() >= by_kernel);
    // Two packets opened the connection.
    assert!(shown("punt opens-or-ends")["packets"].as_u64().unwrap() >= 2);
    assert!(shown("punt opens-or-ends")["packets_per_second"].is_u64());
}
