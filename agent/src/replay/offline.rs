//! A cluster node's switch with ports that lead to memory.

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use control::View;
use dataplane::capture::Record;
use dataplane::frame::XDP_HEADROOM;
use dataplane::orders::Order;
use dataplane::port::memory::Wire;
use dataplane::session::Sessions;
use dataplane::switch::Config;
use dataplane::wire::Flow;
use dataplane::worker::{Inspect, Worker};
use dataplane::{Memory, Now, Outcome, Packet, PortId, Snapshot, Verdict};

use crate::node::{LeadsTo, NodePort, snapshot};

/// The longest frame a capture can hold, in bytes.
const LONGEST: usize = 262_144;
/// Frames under way at once: the packet itself, and as many again for good measure.
const FRAMES: u32 = 8;

/// What became of a packet.
#[derive(Clone, Debug)]
pub(super) struct Passed {
    /// The port it entered by.
    pub(super) entry: Arc<str>,
    /// The port it left by, if it left.
    pub(super) exit: Option<Arc<str>>,
    /// Why.
    pub(super) outcome: Outcome,
    /// Who decided.
    pub(super) by: Vec<Arc<str>>,
    /// Both ends, as far as its headers could be read.
    pub(super) flow: Option<Flow>,
}

/// The switch took a packet and gave no verdict.
#[derive(Debug, thiserror::Error)]
#[error("the packet at offset {offset} got no verdict from the switch")]
pub(crate) struct Lost {
    /// Where the packet stands in the capture.
    offset: u64,
}

/// The switch of one cluster node, on memory.
pub(super) struct Offline {
    worker: Worker,
    snapshot: Arc<Snapshot>,
    /// The outer end of each port, by number.
    wires: Vec<(Arc<str>, Wire)>,
    last: Arc<Mutex<Option<Passed>>>,
}

impl Offline {
    /// The switch of cluster node `node`: a port for each of its pods, `host` and `uplink`.
    ///
    /// # Errors
    /// How many pods fit, if these are more.
    pub(super) fn new(view: &View, node: &str) -> Result<Self, usize> {
        let pods = view.pods.iter().filter(|(_, pod)| &*pod.node == node);
        let pods = pods.map(|(key, pod)| LeadsTo::Pod(key.clone(), pod.addresses.clone()));
        let ends: Vec<LeadsTo> = pods.chain([LeadsTo::Host, LeadsTo::Uplink]).collect();
        let most = usize::from(PortId::NONE.0);
        if ends.len() > most {
            return Err(most - 2);
        }
        let numbered = (0..).zip(ends);
        let ports: Vec<NodePort> = numbered
            .map(|(id, leads_to)| NodePort { id: PortId(id), mac: None, leads_to })
            .collect();
        let none: &[IpAddr] = &[];
        let snapshot = Arc::new(snapshot(view, node, none, view.generation.max(1), &ports));

        let config = Config::default();
        let (memory, frames) = Memory::heap(XDP_HEADROOM + LONGEST, FRAMES);
        let sessions = Sessions::new(config.sessions, ports.len() as u16, config.timeouts);
        sessions.set_ports(ports.len());
        let last = Arc::default();
        let inspect = Box::new(Watch { last: Arc::clone(&last) });
        let worker = Worker::alone(memory, frames, sessions, Some(inspect));
        let mut wires = Vec::new();
        for (id, port) in snapshot.ports() {
            let wire = Wire::default();
            worker.orders().give(Order::AddPort(id, wire.port(), Arc::default()));
            wires.push((Arc::clone(&port.name), wire));
        }
        worker.orders().give(Order::Snapshot(Arc::clone(&snapshot)));
        Ok(Self { worker, snapshot, wires, last })
    }

    /// What the switch decides by.
    pub(super) fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// Sends one packet through.
    pub(super) fn pass(
        &mut self,
        entry: PortId,
        now: Now,
        record: &Record,
    ) -> Result<Passed, Lost> {
        let lost = Lost { offset: record.offset };
        let Some((_, wire)) = self.wires.get(usize::from(entry.0)) else { return Err(lost) };
        wire.send(&record.data[..]);
        self.worker.round(now);
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.take().ok_or(lost)
    }

    /// Gives every frame that left since the last call, with the name of its port.
    pub(super) fn take_what_left(
        &mut self,
        mut give: impl FnMut(&str, &[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        for (name, wire) in &self.wires {
            while let Some(frame) = wire.receive() {
                give(name, &frame)?;
            }
        }
        Ok(())
    }
}

/// Keeps what became of the last packet.
struct Watch {
    last: Arc<Mutex<Option<Passed>>>,
}

impl Inspect for Watch {
    fn done(&mut self, packet: &Packet, _memory: &Memory, snapshot: &Snapshot) {
        let Some(outcome) = packet.outcome else { return };
        let name = |id| snapshot.port(id).map(|port| Arc::clone(&port.name));
        let left = outcome.verdict() == Verdict::Forward;
        let flow = packet.headers.flow;
        let passed = Passed {
            entry: name(packet.in_port).unwrap_or_else(|| "none".into()),
            exit: left.then(|| name(packet.out_port)).flatten(),
            outcome,
            by: packet.by.origins(snapshot, outcome),
            flow: (flow != Flow::default()).then_some(flow),
        };
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(passed);
    }
}
