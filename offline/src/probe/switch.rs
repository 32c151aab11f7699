//! One cluster node's switch: the dataplane's own worker, with memory for wires.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use control::PodKey;
use dataplane::orders::Order;
use dataplane::port::memory::Wire;
use dataplane::session::{Sessions, Timeouts};
use dataplane::worker::Inspect;
use dataplane::{Frame, Memory, Now, Outcome, Packet, PortId, Snapshot, Worker};

use renderer::{LeadsTo, NodePort};

/// Packets that are sent in together.
pub const BATCH: usize = 64;
/// Time between two batches, far beyond what any session lives here.
const STEP: Duration = Duration::from_secs(10);

/// The port towards the cluster node's kernel.
pub const HOST: PortId = PortId(0);
/// The port towards other cluster nodes.
pub const UPLINK: PortId = PortId(1);
/// Ports from here on lead to pods.
const FIRST_POD: u16 = 2;

/// What became of one packet.
#[derive(Clone, Debug)]
pub struct Step {
    /// How it ended.
    pub outcome: Outcome,
    /// Where it left, if it did.
    pub out_port: PortId,
    /// Origins of the rules that decided.
    pub by: Vec<Arc<str>>,
    /// The frame as it left.
    pub frame: Option<Vec<u8>>,
}

/// A switch of one core that is asked and forgets.
pub struct Switch {
    worker: Worker,
    wires: Vec<Wire>,
    seen: Arc<Mutex<Vec<Step>>>,
    now: Duration,
}

/// The ports of a cluster node with these pods, in the order of their numbers; `None` if there
/// are more pods than numbers.
pub fn ports<'a>(
    pods: impl IntoIterator<Item = (&'a PodKey, Vec<std::net::IpAddr>)>,
) -> Option<Vec<NodePort>> {
    let mut ports =
        vec![NodePort::new(HOST, LeadsTo::Host), NodePort::new(UPLINK, LeadsTo::Uplink)];
    for (n, (key, addresses)) in pods.into_iter().enumerate() {
        let id = PortId(u16::try_from(n).ok()?.checked_add(FIRST_POD)?);
        if id == PortId::NONE {
            return None;
        }
        ports.push(NodePort::new(id, LeadsTo::Pod(key.clone(), addresses)));
    }
    Some(ports)
}

impl Switch {
    /// A switch with `ports` ports that decides by `snapshot`; it wants [`BATCH`] frames.
    pub fn new(snapshot: Snapshot, ports: usize, memory: &Arc<Memory>, frames: Vec<Frame>) -> Self {
        let soon = Duration::from_secs(1);
        let timeouts = Timeouts {
            tcp_established: soon,
            tcp_transient: soon,
            udp: soon,
            other: soon,
            ..Timeouts::default()
        };
        // Twice the room that a batch needs: its sessions are gone before the next.
        let sessions = Sessions::new(2 * BATCH as u32, 1, timeouts);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let inspect = Recorder { seen: Arc::clone(&seen) };
        let worker = Worker::alone(Arc::clone(memory), frames, sessions, Some(Box::new(inspect)));
        let wires: Vec<Wire> = (0..ports).map(|_| Wire::default()).collect();
        for (n, wire) in wires.iter().enumerate() {
            let id = PortId(n as u16);
            worker.orders().give(Order::AddPort(id, wire.port(), Arc::default()));
        }
        worker.orders().give(Order::Snapshot(Arc::new(snapshot)));
        Self { worker, wires, seen, now: Duration::ZERO }
    }

    /// Sends up to [`BATCH`] frames in at a port and tells what became of each, in order.
    ///
    /// No packet finds what an earlier batch left: its sessions have timed out and are swept.
    /// A frame about which nothing is told never came through.
    pub fn send(&mut self, port: PortId, frames: Vec<Vec<u8>>) -> Vec<Step> {
        debug_assert!(frames.len() <= BATCH);
        let Some(wire) = self.wires.get(usize::from(port.0)) else { return Vec::new() };
        frames.into_iter().for_each(|frame| wire.send(frame));
        self.worker.round(Now(self.now));
        self.now += STEP;
        let sessions = self.worker.sessions();
        sessions.sweep(0, sessions.capacity(), Now(self.now).seconds());
        let mut steps =
            std::mem::take(&mut *self.seen.lock().unwrap_or_else(PoisonError::into_inner));
        for step in &mut steps {
            step.frame = self.wires.get(usize::from(step.out_port.0)).and_then(Wire::receive);
        }
        steps
    }
}

/// Writes down how packets end.
struct Recorder {
    seen: Arc<Mutex<Vec<Step>>>,
}

impl Inspect for Recorder {
    fn done(&mut self, packet: &Packet, _memory: &Memory, snapshot: &Snapshot) {
        // Every packet behind the graph has an outcome; one without would count as refused.
        let outcome = packet.outcome.unwrap_or(Outcome::Closed);
        let out_port = if packet.leaves() { packet.out_port } else { PortId::NONE };
        let by = packet.by.origins(snapshot, outcome);
        let step = Step { outcome, out_port, by, frame: None };
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).push(step);
    }
}
