//! Live captures of real traffic, and their replay.

use std::fs;
use std::io::{Read, Write};
use std::process::Command;

use dataplane::capture::{Direction, Reader, Record};
use dataplane::wire::{self, protocol, tcp_flags};
use serde_json::Value;
use testkit::{Process, TempDir};

use crate::cluster_node::{PATIENCE, PODGATE, text};
use crate::{ClusterNode, requires_the_machine};

/// Starts `podgate capture`, and waits until it captures.
fn capture(node: &ClusterNode, arguments: &[&str]) -> Process {
    let mut command = Command::new(PODGATE);
    let capture =
        Process::spawn(command.arg("capture").args(arguments).arg("--socket").arg(node.socket()));
    capture.wait_for_line("capturing ", PATIENCE);
    capture
}

fn is_tcp(record: &Record, flags: u8) -> bool {
    let headers = wire::parse(&record.data).unwrap();
    headers.flow.protocol == protocol::TCP && headers.tcp_flags & 0x17 == flags
}

#[test]
fn a_capture_has_a_ping_and_a_connection_in_both_directions_and_replays() {
    requires_the_machine!("ping", "redis-server", "redis-cli");
    let node = ClusterNode::start(&["--workers", "2"]);
    let (a, b) = (node.pod("a", "a"), node.pod("b", "b"));
    let redis = b.serve_redis();
    let folder = TempDir::new("capture");
    let file = folder.path().join("a.pcapng");
    let filter = format!("address={}", b.v4());
    let mut running =
        capture(&node, &["default/a", "-w", file.to_str().unwrap(), "--filter", &filter]);
    assert!(a.pings(b.v4()) && a.asks_redis(&b));
    assert!(a.pings(b.v6()), "not in the capture");
    let id = running.id().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    assert!(running.wait(PATIENCE).success(), "{running:?}");
    let summary = running.wait_for_line("packets captured", PATIENCE);
    assert!(summary.contains(" 0 dropped: ended by the client"), "{summary}");
    drop(redis);

    let bytes = fs::read(&file).unwrap();
    let records: Vec<Record> =
        Reader::new("a.pcapng", &bytes[..]).unwrap().map(Result::unwrap).collect();
    assert!(summary.contains(&format!("{} packets captured", records.len())), "{summary}");
    assert!(records.iter().all(|it| it.interface.as_deref() == Some("default/a")));
    let (source, destination) = (a.v4().into(), b.v4().into());
    for record in &records {
        let flow = wire::parse(&record.data).unwrap().flow;
        let ends = match record.direction.expect("a direction") {
            Direction::In => (flow.source, flow.destination),
            Direction::Out => (flow.destination, flow.source),
        };
        assert_eq!(ends, (source, destination));
    }
    let of = |direction| records.iter().filter(move |it| it.direction == Some(direction));
    let is_icmp = |it: &&Record| wire::parse(&it.data).unwrap().flow.protocol == protocol::ICMP;
    let syn_ack = tcp_flags::SYN | tcp_flags::ACK;
    for direction in [Direction::In, Direction::Out] {
        assert!(of(direction).any(|it| is_icmp(&it)), "an echo {direction:?}");
    }
    assert_eq!(of(Direction::In).filter(|it| is_tcp(it, tcp_flags::SYN)).count(), 1);
    assert_eq!(of(Direction::Out).filter(|it| is_tcp(it, syn_ack)).count(), 1);

    let mut replay = Command::new(PODGATE);
    replay.args(["replay", "--node", "node1", "-o", "json", "--manifests"]);
    let output = replay.arg(node.manifests()).arg("--pcap").arg(&file).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let lines = text(&output.stdout);
    let mut lines: Vec<Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    lines.pop();
    assert_eq!(lines.len(), of(Direction::In).count());
    for line in &lines {
        assert_eq!((&line["in"], &line["out"]), (&"default/a".into(), &"default/b".into()));
        assert_eq!(line["verdict"], "forward", "{line}");
    }
}

#[test]
fn a_capture_ends_at_its_limits_and_with_its_port() {
    requires_the_machine!("ping");
    let node = ClusterNode::start(&[]);
    let (a, b) = (node.pod("a", "a"), node.pod("b", "b"));
    let icmp = ["--filter", "protocol=icmp"];
    let by_count = capture(&node, &[&["b", "--count", "2"], &icmp[..]].concat());
    let by_port = capture(&node, &["a", "-o", "json"]);
    assert!(a.pings(b.v4()));
    let line = by_count.wait_for_line(" in  ICMP ", PATIENCE);
    assert!(line.contains(&format!("{} > {}", b.v4(), a.v4())), "{line}");
    by_count.wait_for_line("2 packets captured, 0 dropped: count reached", PATIENCE);
    let by_time = node.podgate(&["capture", "host", "--seconds", "1", "--filter", "port=9"]);
    assert_eq!(by_time, "");
    drop(a);
    by_port.wait_for_line("the port is closed", PATIENCE);
    by_port.wait_for_line(r#"{"summary":{"captured":"#, PATIENCE);

    for (arguments, fault) in [
        (&["default/c"][..], "no port is named 'default/c'"),
        (&["b", "--filter", "verdict=drop"], "from, to, address, protocol and port only"),
        (&["b", "--filter", "port=x"], "port"),
    ] {
        let mut refused = Command::new(PODGATE);
        refused.arg("capture").args(arguments).arg("--socket").arg(node.socket());
        let refused = refused.output().unwrap();
        assert_eq!(refused.status.code(), Some(2), "{arguments:?}");
        assert!(text(&refused.stderr).contains(fault), "{}", text(&refused.stderr));
    }
}

#[test]
fn stdout_gets_pcapng_while_packets_pass() {
    requires_the_machine!("ping");
    let node = ClusterNode::start(&[]);
    let (a, b) = (node.pod("a", "a"), node.pod("b", "b"));
    let mut command = Command::new(PODGATE);
    command.args(["capture", "a", "-w", "-", "--snaplen", "64", "--filter", "protocol=icmp"]);
    command.arg("--socket").arg(node.socket());
    let mut child = command
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let pings = a.namespace.spawn(["ping", "-i", "0.2", &b.v4().to_string()]);
    let mut bytes = Vec::new();
    let records = loop {
        let mut chunk = [0; 4096];
        let count = stdout.read(&mut chunk).unwrap();
        assert!(count > 0, "the capture ended");
        bytes.write_all(&chunk[..count]).unwrap();
        let records: Vec<Record> =
            Reader::new("stdout", &bytes[..]).into_iter().flatten().map_while(Result::ok).collect();
        if records.len() >= 4 {
            break records;
        }
    };
    drop((stdout, pings));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(records.iter().all(|it| it.data.len() == 64 && it.original_length > 64));
}
