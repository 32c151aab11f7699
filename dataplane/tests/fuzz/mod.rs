//! The dataplane's fuzz targets on `tests/corpus/` (one folder a target), on packets of every kind
//! with bytes changed, and on the captures of `pcap-fixtures/`.
//!
//! `testing/fuzz/` runs the same targets under a coverage-guided fuzzer.

mod capture;
mod graph;
mod packet;

use std::path::Path;

use fastrand::Rng;
use testkit::corpus;
use testkit::packet as build;

/// A target's own folder of the corpus.
fn replay(target: &str, check: impl Fn(&[u8])) {
    corpus::replay(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(target), check);
}

/// Frames of every kind that the graph treats in its own way.
fn frames() -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for (a, b, vip, node, far) in [
        ("10.1.0.2", "10.1.0.3", "10.96.0.1", "192.0.2.1", "192.0.2.2"),
        ("fd01::2", "fd01::3", "fd96::1", "2001:db8::1", "2001:db8::2"),
    ] {
        let at =
            |ip: &str, port: u16| std::net::SocketAddr::new(ip.parse().unwrap(), port).to_string();
        let (client, server) = (at(a, 4000), at(b, 53));
        let question = build::udp(&client, &server).payload(&[7; 100]);
        let error = build::icmp_error(b, a, if a.contains(':') { 1 } else { 3 }, 3, &question);
        let inner = build::udp("10.2.0.2:1", "10.1.0.2:53").payload(b"x").build();
        let tunnel = [&[0x08, 0, 0, 0, 0, 0x10, 0, 0][..], &inner].concat();
        frames.extend(question.clone().ip_id(9).fragments(40));
        frames.extend([
            question.build(),
            build::udp(&client, &at(vip, 53)).payload(b"x").build(),
            build::tcp(&client, &server).syn().build(),
            build::tcp(&client, &server).data(b"GET /").vlan(5).build(),
            build::tcp(&server, &client).syn_ack().build(),
            build::sctp(&client, &server, 1).build(),
            build::ping(a, b, 7, 1).build(),
            build::ping(a, b, 7, 1).ttl(1).build(),
            error.build(),
            build::udp(&at(far, 50_000), &at(node, 4789)).payload(&tunnel).build(),
        ]);
    }
    frames.push(build::arp_request("10.1.0.2", "10.1.0.3").build());
    frames
}

#[test]
fn known_inputs() {
    replay("packet", packet::check);
    replay("capture", capture::check);
    replay("graph", graph::check);
}

#[test]
fn spoiled_frames() {
    let (frames, mut rng) = (frames(), Rng::with_seed(0x5eed));
    for frame in &frames {
        packet::check(frame);
    }
    for _ in 0..60_000 {
        let frame = rng.choice(&frames).unwrap().clone();
        packet::check(&corpus::spoil_bytes(&mut rng, &frame));
    }
}

#[test]
fn spoiled_frames_through_the_graph() {
    let (frames, mut rng) = (frames(), Rng::with_seed(0xfeed));
    for _ in 0..50 {
        let mut steps = Vec::new();
        for _ in 0..rng.u8(..200) {
            let mut frame = rng.choice(&frames).unwrap().clone();
            if rng.bool() {
                frame = corpus::spoil_bytes(&mut rng, &frame);
            }
            let head = [rng.u8(..), rng.u8(..)];
            steps.extend([&head[..], &(frame.len() as u16).to_be_bytes(), &frame].concat());
        }
        graph::check(&steps);
    }
}

#[test]
fn spoiled_captures() {
    let mut rng = Rng::with_seed(0xcafe);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../pcap-fixtures");
    let mut captures = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        for name in ["in.pcap", "in.pcapng"] {
            captures.extend(std::fs::read(entry.as_ref().unwrap().path().join(name)).ok());
        }
    }
    assert!(captures.len() > 20, "{} captures", captures.len());
    for capture in captures {
        capture::check(&capture);
        for _ in 0..50 {
            capture::check(&corpus::spoil_bytes(&mut rng, &capture));
        }
    }
}
