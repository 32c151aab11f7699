//! Work for an instruction counter: `count-packets CASE VECTORS` sends vectors of packets through the
//! graph alone, or through a whole worker. What more vectors add is what their packets cost.
//!
//! Without arguments, prints the cases, one a line, with the packets of a vector. The generator is
//! one function, `generate`, so that a counter can leave it out.

#[path = "../../../dataplane/benches/traffic/mod.rs"]
mod traffic;

use std::error::Error;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use acl::Action;
use dataplane::mailbox::Command;
use dataplane::session::{Sessions, Timeouts, TupleOrigin};
use dataplane::wire::tcp_flags;
use dataplane::{
    Counters, Frame, Graph, Memory, Now, Outcome, Packet, PortId, Snapshot, VECTOR, Worker,
};
use traffic::{Kind, Queue, Rules, Traffic};

/// Connections that are established before the count, visited in an order of their own.
const CONNECTIONS: u32 = 1024;
const STRIDE: u32 = 401;
const CLIENTS: u32 = 4;
const FRAMES: u32 = 4096;

/// The state that packets meet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Finds {
    Established,
    New,
    Refused,
    /// Established, and of an older generation than each vector's snapshot.
    Reevaluated,
}

use Finds::{Established, New, Reevaluated, Refused};

const CASES: [(&str, Kind, Rules, Finds); 15] = [
    ("established", Kind::Udp, Rules::Ports(1000), Established),
    ("tcp", Kind::Tcp, Rules::Ports(1000), Established),
    ("ipv6", Kind::Ipv6, Rules::Ports(1000), Established),
    ("cluster-ip", Kind::ClusterIp, Rules::Ports(100), Established),
    ("tunnel-out", Kind::TunnelOut, Rules::Ports(1000), Established),
    ("tunnel-in", Kind::TunnelIn, Rules::Ports(1000), Established),
    ("uplink", Kind::Uplink, Rules::Ports(1000), Established),
    ("re-evaluated", Kind::Udp, Rules::Ports(1000), Reevaluated),
    ("new", Kind::Udp, Rules::Ports(1000), New),
    ("new-cluster-ip", Kind::ClusterIp, Rules::Ports(100), New),
    ("established-staged", Kind::Udp, Rules::Ports(1000), Established),
    ("new-staged", Kind::Udp, Rules::Ports(1000), New),
    ("refused-ports", Kind::Udp, Rules::Ports(1000), Refused),
    ("refused-peers", Kind::Udp, Rules::Peers(1000), Refused),
    ("refused-uplink", Kind::Uplink, Rules::Ports(1000), Refused),
];
/// The ending of cases with staged ACLs beside the enforced ones.
const STAGED: &str = "-staged";
/// Those that a whole worker handles too.
const WORKER: [&str; 4] = ["established", "new", "new-staged", "refused-ports"];

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let Some(name) = arguments.next() else {
        CASES.iter().for_each(|(case, ..)| println!("graph-{case} {VECTOR}"));
        WORKER.iter().for_each(|case| println!("worker-{case} {VECTOR}"));
        return Ok(());
    };
    let vectors: u32 = arguments.next().ok_or("usage: count-packets CASE VECTORS")?.parse()?;
    // Where keys collide depends on the seed, and what a lookup costs on that.
    acl::fix_seed(NonZeroU64::new(0x9e37_79b9_7f4a_7c15).ok_or("a seed")?);
    let (through, case) = name.split_once('-').ok_or("graph-CASE or worker-CASE")?;
    let (_, kind, rules, finds) =
        *CASES.iter().find(|(name, ..)| *name == case).ok_or("no such case")?;
    let is_staged = case.ends_with(STAGED);
    let source = move || {
        let traffic = Traffic::new(kind, rules, 2 * CLIENTS);
        Source { traffic, finds, is_staged, next: 0 }
    };
    match through {
        "graph" => through_graph(source(), vectors),
        _ => through_worker(source, vectors),
    }
    Ok(())
}

/// Numbers of connections, without end.
struct Source {
    traffic: Traffic,
    finds: Finds,
    is_staged: bool,
    next: u32,
}

impl Source {
    fn outcome(&self) -> Outcome {
        match self.finds {
            Established | Reevaluated => Outcome::Session,
            New => Outcome::PolicyAllowed,
            Refused => Outcome::PolicyDenied,
        }
    }

    fn snapshot(&self) -> Snapshot {
        let action = if self.finds == Refused { Action::Deny } else { Action::Permit };
        self.traffic.snapshot(action, self.is_staged)
    }

    fn has_sessions(&self) -> bool {
        matches!(self.finds, Established | Reevaluated)
    }

    /// The next connection: of one client, or of any.
    fn number(&mut self, client: Option<u32>) -> u32 {
        self.next += 1;
        let n = match self.has_sessions() {
            true => self.next.wrapping_mul(STRIDE) % CONNECTIONS,
            false => self.next,
        };
        match client {
            Some(client) if self.has_sessions() => n / CLIENTS * CLIENTS + client,
            Some(client) => n * CLIENTS + client,
            None => n,
        }
    }
}

/// Packets of any client in these frames.
#[inline(never)]
fn generate_packets(source: &mut Source, memory: &Memory, frames: &mut Vec<Frame>) -> Vec<Packet> {
    let packet = |frame| {
        let n = source.number(None);
        source.traffic.packet(memory, frame, n, false)
    };
    frames.drain(..).map(packet).collect()
}

/// Writes packets of one client into frames.
#[inline(never)]
fn generate_frames(source: &mut Source, client: u32, memory: &Memory, frames: &mut [Frame]) {
    for frame in frames {
        let n = source.number(Some(client));
        source.traffic.write(memory, frame, n, false);
    }
}

fn through_graph(mut source: Source, vectors: u32) {
    let (memory, mut frames) = Memory::heap(2048, VECTOR as u32);
    let mut snapshot = source.snapshot();
    let sessions = sessions(&source, vectors);
    establish(&source, &snapshot, &sessions);
    let (mut graph, counters) = (Graph::default(), Counters::default());
    for _ in 0..vectors {
        let mut packets = generate_packets(&mut source, &memory, &mut frames);
        snapshot.generation += u64::from(source.finds == Reevaluated);
        graph.run(&mut packets, &snapshot, &memory, &sessions, &counters, Now::default());
        frames = generate_check(packets, source.outcome());
    }
}

/// The frames of packets that ended as they should; not counted either.
#[inline(never)]
fn generate_check(packets: Vec<Packet>, outcome: Outcome) -> Vec<Frame> {
    let frame = |packet: Packet| {
        assert_eq!(packet.outcome, Some(outcome), "how a packet ended");
        packet.frame
    };
    packets.into_iter().map(frame).collect()
}

fn sessions(source: &Source, vectors: u32) -> Arc<Sessions> {
    let count = match source.finds {
        New => 2 * vectors * VECTOR as u32,
        _ => 4 * CONNECTIONS,
    };
    Sessions::new(count.max(1024), source.traffic.ports(), Timeouts::default())
}

/// Opens each connection; of TCP with the whole handshake.
fn establish(source: &Source, snapshot: &Snapshot, sessions: &Sessions) {
    if !source.has_sessions() {
        return;
    }
    let (memory, frames) = Memory::heap(2048, CONNECTIONS);
    let (mut graph, counters) = (Graph::default(), Counters::default());
    let mut packets: Vec<Packet> = (0..)
        .zip(frames)
        .map(|(n, frame)| source.traffic.packet(&memory, frame, n, true))
        .collect();
    for packets in packets.chunks_mut(VECTOR) {
        graph.run(packets, snapshot, &memory, sessions, &counters, Now::default());
        assert!(packets.iter().all(|it| it.outcome == Some(Outcome::PolicyAllowed)), "permitted");
    }
    if source.traffic.is_tcp() {
        for (found, tuples) in sessions.iter() {
            let reply = tuples.responder.reversed();
            let replied = sessions.find(sessions.hash(&reply), &reply, TupleOrigin::Entering, 0);
            sessions.touch(&replied.expect("it is there"), tcp_flags::SYN | tcp_flags::ACK, 0);
            sessions.touch(&sessions.found(found.id).expect("it is there"), tcp_flags::ACK, 0);
        }
        assert!(sessions.iter().all(|(found, _)| found.state().is_established()));
    }
}

fn through_worker(source: impl Fn() -> Source, vectors: u32) {
    let (memory, frames) = Memory::heap(2048, FRAMES);
    let first = source();
    let snapshot = first.snapshot();
    let sessions = sessions(&first, vectors);
    establish(&first, &snapshot, &sessions);
    let mut worker = Worker::alone(memory, frames, sessions, None);
    for port in 0..first.traffic.ports() {
        let client = u32::from(port);
        // One vector of all clients together.
        let burst = if client < CLIENTS { VECTOR / CLIENTS as usize } else { 0 };
        let mut source = source();
        let generate = move |memory: &Memory, frames: &mut [Frame]| {
            generate_frames(&mut source, client, memory, frames);
            frames.len()
        };
        let queue = Box::new(Queue { burst, generate });
        worker.mailbox().send(Command::AddPort(PortId(port), queue, Arc::default()));
    }
    worker.mailbox().send(Command::Snapshot(Arc::new(snapshot)));
    for round in 0..vectors {
        let handled = worker.round(Now(Duration::from_micros(u64::from(round) * 10)));
        assert_eq!(handled, VECTOR, "packets of a round");
    }
    let ended = worker.counters().of(first.outcome());
    assert_eq!(ended, u64::from(vectors) * VECTOR as u64, "packets that ended as they should");
}
