//! The dataplane's fuzz targets, and what they have been fed so far.
//!
//! `fuzz/` feeds them with a coverage-guided fuzzer; here they replay `tests/corpus/` (one folder
//! a target), packets of every kind with bytes changed, and the captures of `pcap-fixtures/`.

mod capture;
mod graph;
mod packet;

use std::path::Path;

use testkit::packet as build;

/// A sequence of numbers that is the same every time (xorshift64, Marsaglia 2003).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, count: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) as usize % count.max(1)
    }

    /// The bytes with some changed, and perhaps cut.
    fn spoil(&mut self, mut bytes: Vec<u8>) -> Vec<u8> {
        for _ in 0..self.below(5) {
            let at = self.below(bytes.len());
            bytes[at] = match self.below(3) {
                0 => [0, 1, 0x7f, 0x80, 0xff][self.below(5)],
                1 => bytes[at] ^ 1 << self.below(8),
                _ => self.below(256) as u8,
            };
        }
        if self.below(8) == 0 {
            bytes.truncate(self.below(bytes.len() + 1));
        }
        bytes
    }
}

fn replay(target: &str, check: impl Fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(target);
    let mut replayed = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        check(&std::fs::read(entry.unwrap().path()).unwrap());
        replayed += 1;
    }
    assert!(replayed > 0, "nothing in {}", folder.display());
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
    let (frames, mut numbers) = (frames(), Numbers(0x5eed));
    for frame in &frames {
        packet::check(frame);
    }
    for _ in 0..60_000 {
        let frame = frames[numbers.below(frames.len())].clone();
        packet::check(&numbers.spoil(frame));
    }
}

#[test]
fn spoiled_frames_through_the_graph() {
    let (frames, mut numbers) = (frames(), Numbers(0xfeed));
    for _ in 0..50 {
        let mut steps = Vec::new();
        for _ in 0..numbers.below(200) {
            let mut frame = frames[numbers.below(frames.len())].clone();
            if numbers.below(2) == 0 {
                frame = numbers.spoil(frame);
            }
            let head = [numbers.below(256) as u8, numbers.below(256) as u8];
            steps.extend([&head[..], &(frame.len() as u16).to_be_bytes(), &frame].concat());
        }
        graph::check(&steps);
    }
}

#[test]
fn spoiled_captures() {
    let mut numbers = Numbers(0xcafe);
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
            capture::check(&numbers.spoil(capture.clone()));
        }
    }
}
