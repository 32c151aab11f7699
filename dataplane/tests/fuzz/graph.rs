//! Any bytes as frames from any port, at any time, through the whole graph.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use acl::{Action, AddressMap, PortRange, Rule, Table};
use dataplane::mailbox::Command;
use dataplane::port::memory::Wire;
use dataplane::services::{Backend, Backends, Entry, Scope, ServicePort, Services};
use dataplane::session::{Sessions, Timeouts};
use dataplane::wire::protocol;
use dataplane::wire::vxlan::Vxlan;
use dataplane::worker::Inspect;
use dataplane::{
    AclBinding, Memory, Now, Outcome, Packet, Parts, Peer, PortId, PortKind, PortState, Routes,
    Snapshot, Underlay, Worker,
};

const FRAMES: usize = 512;
const LONGEST: usize = 2048;
const PORTS: usize = 4;

/// Reads bytes as steps: two bytes for port and kind, two for the length of the frame that
/// follows. Every frame must have one outcome, and no frame may be lost.
pub(crate) fn check(bytes: &[u8]) {
    let (memory, frames) = Memory::heap(4096, FRAMES as u32);
    let sessions = Sessions::new(64, PORTS as u16, Timeouts::default());
    let ends = Arc::<Mutex<Vec<Outcome>>>::default();
    let recorder = Box::new(Recorder(Arc::clone(&ends)));
    let mut worker = Worker::alone(memory, frames, sessions, Some(recorder));
    let wires: Vec<Wire> = (0..PORTS).map(|_| Wire::default()).collect();
    for (n, wire) in wires.iter().enumerate() {
        worker.mailbox().send(Command::AddPort(PortId(n as u16), wire.port(), Arc::default()));
    }
    let mut generation = 1;
    let services = Arc::new(services());
    let publish = |worker: &Worker, generation| {
        let snapshot = Arc::new(Snapshot::new(parts(generation, &services)));
        worker.mailbox().send(Command::Snapshot(snapshot));
    };
    publish(&worker, generation);
    let (mut now_ms, mut sent, mut rest) = (0, 0, bytes);
    while let Some((head, tail)) = rest.split_first_chunk::<4>() {
        let length = usize::from(u16::from_be_bytes([head[2], head[3]])).min(LONGEST);
        let (frame, tail) = tail.split_at(length.min(tail.len()));
        rest = tail;
        wires[usize::from(head[0]) % PORTS].send(frame);
        sent += 1;
        match head[1] {
            // Gathered with the next one into a vector.
            0..=63 if sent % 64 != 0 => continue,
            64..=95 => {
                generation += 1;
                publish(&worker, generation);
            }
            96..=127 => now_ms += 100_000,
            _ => now_ms += 1,
        }
        worker.round(Now(Duration::from_millis(now_ms)));
        wires.iter().for_each(|wire| while wire.receive().is_some() {});
    }
    // Whatever still waits ends.
    for _ in 0..3 {
        now_ms += 100_000;
        worker.round(Now(Duration::from_millis(now_ms)));
    }
    assert_eq!(ends.lock().expect("nobody panicked").len(), sent, "each frame has one outcome");
    assert_eq!(worker.free_frames(), FRAMES, "no frame is lost");
}

struct Recorder(Arc<Mutex<Vec<Outcome>>>);

impl Inspect for Recorder {
    fn done(&mut self, packet: &Packet, _memory: &Memory, _snapshot: &Snapshot) {
        let outcome = packet.outcome.expect("a packet that is done has its outcome");
        self.0.lock().expect("nobody panicked").push(outcome);
    }
}

/// Two pods, one of them with a policy, host and uplink; a service; another cluster node behind
/// a tunnel. The rules depend on the generation.
fn parts(generation: u64, services: &Arc<Services>) -> Parts {
    let map = Arc::new(AddressMap::default());
    let first = if generation % 2 == 1 { Action::Permit } else { Action::Deny };
    let rules = vec![
        Rule::new(first, "one").protocol(protocol::UDP).destination_ports(PortRange::one(53)),
        Rule::new(Action::Permit, "two").protocol(protocol::TCP),
        Rule::new(Action::Deny, "the rest"),
    ];
    let table = AclBinding::Table(Arc::new(Table::compile(rules.into(), &map)));
    let pod = |name: &str, addresses: [&str; 2], to_pod| {
        let addresses = addresses.map(|text| ip(text).into()).to_vec();
        let from_pod = AclBinding::Open;
        Some(PortState { addresses, to_pod, from_pod, ..PortState::new(name, PortKind::Pod) })
    };
    let peer = Peer {
        name: "node2".into(),
        addresses: vec![ip("192.0.2.2").into()],
        networks: ["10.2.0.0/24", "fd02::/64"].map(|net| net.parse().expect("a network")).to_vec(),
        endpoint: ip("192.0.2.2").into(),
        next_hop: Some([2, 0, 0, 0, 0, 2]),
        ..Peer::default()
    };
    let uplink = PortState { mtu: 1500, ..PortState::new("uplink", PortKind::Uplink) };
    Parts {
        generation,
        ports: vec![
            pod("default/a", ["10.1.0.2", "fd01::2"], AclBinding::Open),
            pod("default/b", ["10.1.0.3", "fd01::3"], table),
            Some(PortState::new("host", PortKind::Host)),
            Some(uplink),
        ],
        addresses: map,
        node_addresses: vec![ip("192.0.2.1"), ip("2001:db8::1")],
        services: Arc::clone(services),
        routes: Arc::new(Routes::new(vec![peer])),
        underlay: Underlay::Overlay(Vxlan { network: 4096, port: 4789, group: true }),
        masquerade: true,
        ..Parts::default()
    }
}

fn services() -> Services {
    let mut services = Services::default();
    for (vip, backend) in [("10.96.0.1", "10.1.0.3"), ("fd96::1", "fd01::3")] {
        let backend = Backend { address: ip(backend).into(), port: 53 };
        let port = ServicePort { internal: Backends::new(vec![backend]), ..ServicePort::default() };
        let entry = Entry { port: Arc::new(port), scope: Scope::Cluster };
        services.add(ip(vip).into(), protocol::UDP, 53, entry);
    }
    services
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}
