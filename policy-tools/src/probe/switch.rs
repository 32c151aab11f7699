//! One node's switch: the dataplane's own worker, with memory for wires.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use acl::Origin;
use control::PodKey;
use control::model::Direction;
use dataplane::mailbox::Command;
use dataplane::port::memory::Wire;
use dataplane::session::{Sessions, Timeouts};
use dataplane::wire::{self, Flow};
use dataplane::worker::Inspect;
use dataplane::{Deciders, Memory, Now, Outcome, Packet, PortId, RuleAt, Snapshot, Worker};
use parking_lot::Mutex;

use super::answer::{Passage, PodDecision};
use super::opening::LARGEST;

use snapshot::{NodePort, PortRole};

/// Packets that are sent in together, no more than there are frames.
pub const BATCH: usize = 64;
/// Time between two batches, longer than any session timeout here.
const STEP: Duration = Duration::from_secs(10);

/// The port towards the node's kernel.
pub const HOST: PortId = PortId(0);
/// The port towards other nodes.
pub const UPLINK: PortId = PortId(1);
/// The number of the first pod port.
const FIRST_POD: u16 = 2;

/// The switch's decision about one packet.
#[derive(Clone, Debug)]
pub struct Step {
    /// Outcome and reason; the caller adds the node.
    pub passage: Passage,
    /// The port it left by, if it did.
    pub out_port: PortId,
    /// The frame as it left.
    pub frame: Option<Vec<u8>>,
    /// The direction in which the node's host firewalls deny the connection that a service leads.
    pub denied_by_host: Option<Direction>,
}

/// A switch of one core; its sessions end with each batch.
pub struct Switch {
    worker: Worker,
    wires: Vec<Wire>,
    seen: Ends,
    now: Duration,
}

/// The decisions about packets.
type Ends = Arc<Mutex<HashMap<Mark, Step>>>;

/// What tells a packet from the others of its batch.
#[derive(Debug, PartialEq, Eq, Hash)]
enum Mark {
    /// Its flow as it came in.
    Flow(Flow),
    /// The bytes of one that is refused before its flow is read.
    Bytes(Vec<u8>),
}

/// The ports of a node with these pods, in the order of their numbers; `None` if there
/// are more pods than numbers.
pub fn ports<'a>(
    pods: impl IntoIterator<Item = (&'a PodKey, Vec<std::net::IpAddr>)>,
) -> Option<Vec<NodePort>> {
    let mut ports =
        vec![NodePort::new(HOST, PortRole::Host), NodePort::new(UPLINK, PortRole::Uplink)];
    for (n, (key, addresses)) in pods.into_iter().enumerate() {
        let id = PortId(u16::try_from(n).ok()?.checked_add(FIRST_POD)?);
        if id == PortId::NONE {
            return None;
        }
        ports.push(NodePort::new(id, PortRole::Pod(key.clone(), addresses)));
    }
    Some(ports)
}

impl Switch {
    /// A switch with `ports` ports that decides by `snapshot`.
    pub fn new(snapshot: Snapshot, ports: usize) -> Self {
        let (memory, frames) = Memory::heap(dataplane::frame::XDP_HEADROOM + LARGEST, BATCH as u32);
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
        let seen = Ends::default();
        let inspect = Recorder { seen: Arc::clone(&seen), memory: Arc::clone(&memory) };
        let worker = Worker::alone(memory, frames, sessions, Some(Box::new(inspect)));
        let wires: Vec<Wire> = (0..ports).map(|_| Wire::default()).collect();
        for (n, wire) in wires.iter().enumerate() {
            let id = PortId(n as u16);
            worker.mailbox().send(Command::AddPort(id, wire.port(), Arc::default()));
        }
        worker.mailbox().send(Command::Snapshot(Arc::new(snapshot)));
        Self { worker, wires, seen, now: Duration::ZERO }
    }

    /// Decides by another snapshot from now on.
    pub fn publish(&self, snapshot: Snapshot) {
        self.worker.mailbox().send(Command::Snapshot(Arc::new(snapshot)));
    }

    /// Sends up to [`BATCH`] frames of different flows in at a port and returns the decision about each, in order;
    /// `None` for a frame that the switch did not decide about.
    ///
    /// A decision is found by the frame's mark, never by its place. Sessions of earlier batches have timed out and are
    /// swept, so that no packet meets them.
    pub fn send(&mut self, port: PortId, frames: Vec<Vec<u8>>) -> Vec<Option<Step>> {
        debug_assert!(frames.len() <= BATCH);
        let mark = |frame: &Vec<u8>| match wire::parse(frame) {
            Ok(headers) => Mark::Flow(headers.flow),
            Err(_) => Mark::Bytes(frame.clone()),
        };
        let marks: Vec<Mark> = frames.iter().map(mark).collect();
        if let Some(wire) = self.wires.get(usize::from(port.0)) {
            frames.into_iter().for_each(|frame| wire.send(frame));
        }
        self.worker.drain(Now(self.now));
        self.worker.mailbox().free_retired();
        self.now += STEP;
        let sessions = self.worker.sessions();
        sessions.sweep(sessions.capacity(), Now(self.now).seconds());
        // What left was copied before.
        self.wires.iter().for_each(|wire| while wire.receive().is_some() {});
        let mut steps = std::mem::take(&mut *self.seen.lock());
        marks.iter().map(|mark| steps.remove(mark)).collect()
    }
}

/// Records how packets end.
struct Recorder {
    seen: Ends,
    memory: Arc<Memory>,
}

impl Inspect for Recorder {
    fn done(&mut self, packet: &Packet, snapshot: &Snapshot) {
        // Every packet behind the graph has an outcome; one without would count as refused.
        let outcome = packet.outcome.unwrap_or(Outcome::Closed);
        let bytes = || {
            let mut bytes = Vec::with_capacity(LARGEST);
            self.memory.append_to(&packet.frame, &mut bytes, LARGEST);
            bytes
        };
        let frame = packet.leaves().then(bytes);
        let out_port = if packet.leaves() { packet.out_port } else { PortId::NONE };
        let flow = packet.headers.flow;
        let mark = if flow == Flow::default() { Mark::Bytes(bytes()) } else { Mark::Flow(flow) };
        let name = |id| snapshot.port(id).map(|port| Arc::clone(&port.name));
        let passage = Passage {
            node: Arc::default(),
            input: name(packet.in_port).unwrap_or_default(),
            output: name(out_port),
            source: packet.headers.flow.source.to_ip(),
            destination: packet.headers.flow.destination.to_ip(),
            outcome,
            by: packet.by.origins(snapshot, outcome),
            egress: egress(packet, snapshot, outcome),
            ingress: ingress(packet, snapshot, outcome, out_port),
        };
        let denied_by_host = denied_by_host(packet.by).filter(|_| outcome == Outcome::PolicyDenied);
        let step = Step { passage, out_port, frame, denied_by_host };
        self.seen.lock().insert(mark, step);
    }
}

/// The direction of a rule that is one of the host port's.
fn denied_by_host(by: Deciders) -> Option<Direction> {
    let is_host = |at: Option<RuleAt>| at.is_some_and(|at| at.port == HOST);
    match (is_host(by.from_pod), is_host(by.to_pod)) {
        (true, _) => Some(Direction::Egress),
        (_, true) => Some(Direction::Ingress),
        _ => None,
    }
}

/// Verdict of the egress rules of the pod that sent the packet.
fn egress(packet: &Packet, snapshot: &Snapshot, outcome: Outcome) -> Option<PodDecision> {
    let pod = Arc::clone(&snapshot.pod(packet.in_port)?.name);
    let rule = Deciders { from_pod: packet.by.from_pod, to_pod: None };
    let by = rule.origins(snapshot, Outcome::PolicyDenied).pop();
    match outcome {
        // Ingress is only looked at where egress lets the packet pass.
        Outcome::PolicyDenied if packet.by.to_pod.is_some() => {
            Some(PodDecision { pod, permits: true, by })
        }
        Outcome::PolicyDenied => Some(PodDecision { pod, permits: false, by }),
        Outcome::PolicyAllowed => {
            Some(PodDecision { pod, permits: true, by: by.or(Some(Origin::DefaultAllow)) })
        }
        _ => None,
    }
}

/// Verdict of the ingress rules of the pod that the packet is for.
fn ingress(
    packet: &Packet,
    snapshot: &Snapshot,
    outcome: Outcome,
    out_port: PortId,
) -> Option<PodDecision> {
    let rule = Deciders { from_pod: None, to_pod: packet.by.to_pod };
    let by = rule.origins(snapshot, Outcome::PolicyDenied).pop();
    let port = packet.by.to_pod.map_or(out_port, |at| at.port);
    let pod = Arc::clone(&snapshot.pod(port)?.name);
    match outcome {
        Outcome::PolicyDenied => Some(PodDecision { pod, permits: false, by }),
        Outcome::PolicyAllowed => {
            Some(PodDecision { pod, permits: true, by: by.or(Some(Origin::DefaultAllow)) })
        }
        Outcome::OwnNode => {
            Some(PodDecision { pod, permits: true, by: Some(Origin::other(outcome.name())) })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dataplane::services::Services;
    use snapshot::NodeContext;

    #[test]
    fn a_replaced_snapshot_is_freed() {
        let services = Arc::new(Services::default());
        let of = |services: &Arc<Services>, generation| {
            let context = NodeContext { services: Arc::clone(services), ..NodeContext::default() };
            snapshot::snapshot(&control::View::default(), "n", context, generation, &[])
        };
        let mut switch = Switch::new(of(&services, 1), 2);
        switch.send(HOST, Vec::new());
        switch.publish(of(&Arc::default(), 2));
        switch.send(HOST, Vec::new());
        assert_eq!(Arc::strong_count(&services), 1);
    }
}
