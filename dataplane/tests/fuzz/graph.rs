//! Any bytes as frames from any port, at any time, through the whole graph.

use std::cell::RefCell;
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

thread_local! {
    static SWITCH: RefCell<Option<Switch>> = const { RefCell::new(None) };
}

/// Reads bytes as steps: two bytes for port and kind, two for the length of the frame that
/// follows. Every frame must have one outcome, and no frame may be lost.
///
/// Memory, tables and rules are made once a thread. An input leaves no session, packet or frame behind.
pub(crate) fn check(bytes: &[u8]) {
    SWITCH.with_borrow_mut(|kept| {
        // What panics is not used again.
        let mut switch = kept.take().filter(|it| it.now_ms < LATEST_MS).unwrap_or_else(Switch::new);
        switch.run(bytes);
        *kept = Some(switch);
    });
}

/// Sessions keep their times in seconds, as 32 bits.
const LATEST_MS: u64 = 1 << 40;

/// One worker with memory ports.
struct Switch {
    worker: Worker,
    wires: Vec<Wire>,
    ends: Arc<Mutex<Vec<Outcome>>>,
    now_ms: u64,
    generation: u64,
    /// The parts of snapshots of which the first rule permits, and of those of which it denies.
    parts: [Parts; 2],
}

impl Switch {
    fn new() -> Self {
        let (memory, frames) = Memory::heap(4096, FRAMES as u32);
        let sessions = Sessions::new(64, PORTS as u16, Timeouts::default());
        let ends = Arc::<Mutex<Vec<Outcome>>>::default();
        let recorder = Box::new(Recorder(Arc::clone(&ends)));
        let worker = Worker::alone(memory, frames, sessions, Some(recorder));
        let wires: Vec<Wire> = (0..PORTS).map(|_| Wire::default()).collect();
        for (n, wire) in wires.iter().enumerate() {
            worker.mailbox().send(Command::AddPort(PortId(n as u16), wire.port(), Arc::default()));
        }
        let parts = [Action::Permit, Action::Deny].map(parts);
        Self { worker, wires, ends, now_ms: 0, generation: 0, parts }
    }

    fn run(&mut self, bytes: &[u8]) {
        let mut changes = 0;
        self.publish(changes);
        let (mut sent, mut rest) = (0, bytes);
        while let Some((head, tail)) = rest.split_first_chunk::<4>() {
            let length = usize::from(u16::from_be_bytes([head[2], head[3]])).min(LONGEST);
            let (frame, tail) = tail.split_at(length.min(tail.len()));
            rest = tail;
            self.wires[usize::from(head[0]) % PORTS].send(frame);
            sent += 1;
            match head[1] {
                // Gathered with the next one into a vector.
                0..=63 if sent % 64 != 0 => continue,
                64..=95 => {
                    changes += 1;
                    self.publish(changes);
                }
                96..=127 => self.now_ms += 100_000,
                _ => self.now_ms += 1,
            }
            self.round();
        }
        // Whatever still waits ends.
        for _ in 0..3 {
            self.now_ms += 100_000;
            self.round();
        }
        let ends = std::mem::take(&mut *self.ends.lock().expect("nobody panicked"));
        assert_eq!(ends.len(), sent, "each frame has one outcome");
        assert_eq!(self.worker.free_frames(), FRAMES, "no frame is lost");
        let sessions = self.worker.sessions();
        sessions.iter().for_each(|(found, _)| sessions.end(&found));
        assert_eq!(sessions.used(), 0, "each session ends");
    }

    fn publish(&mut self, changes: usize) {
        self.generation += 1;
        let parts = Parts { generation: self.generation, ..self.parts[changes % 2].clone() };
        self.worker.mailbox().send(Command::Snapshot(Arc::new(Snapshot::new(parts))));
    }

    fn round(&mut self) {
        self.worker.drain(Now(Duration::from_millis(self.now_ms)));
        self.wires.iter().for_each(|wire| while wire.receive().is_some() {});
        self.worker.mailbox().free_retired();
    }
}

struct Recorder(Arc<Mutex<Vec<Outcome>>>);

impl Inspect for Recorder {
    fn done(&mut self, packet: &Packet, _snapshot: &Snapshot) {
        let outcome = packet.outcome.expect("a packet that is done has its outcome");
        self.0.lock().expect("nobody panicked").push(outcome);
    }
}

/// Two pods, one of them with a policy, host and uplink; a service; another node behind
/// a tunnel.
fn parts(first: Action) -> Parts {
    let map = Arc::new(AddressMap::default());
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
        ports: vec![
            pod("default/a", ["10.1.0.2", "fd01::2"], AclBinding::Open),
            pod("default/b", ["10.1.0.3", "fd01::3"], table),
            Some(PortState::new("host", PortKind::Host)),
            Some(uplink),
        ],
        addresses: map,
        node_addresses: vec![ip("192.0.2.1"), ip("2001:db8::1")],
        services: Arc::new(services()),
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
