//! A node's switch with ports that end in memory.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use acl::Origin;
use control::View;
use dataplane::capture::Record;
use dataplane::frame::XDP_HEADROOM;
use dataplane::graph::trace::{Filter, PacketTrace, Tracing};
use dataplane::mailbox::Command;
use dataplane::port::memory::Wire;
use dataplane::session::Sessions;
use dataplane::switch::Config;
use dataplane::wire::Flow;
use dataplane::worker::{Inspect, Worker};
use dataplane::{
    Adjacency, Memory, Now, Outcome, Packet, PortId, Routes, SWITCH_MAC, Snapshot, Underlay,
    Verdict,
};
use parking_lot::Mutex;

use snapshot::{NextHop, NodeContext, NodePort, PortRole, ServiceMaker, peers, snapshot};

/// The longest frame a capture can hold, in bytes.
const LONGEST: usize = 262_144;
/// Frames: for the packet itself, and for later fragments that wait for their first. They are
/// only touched when they are needed.
const FRAMES: u32 = 1024;
/// Maximum number of paths of one packet, its own included.
const WAYS: usize = 1024;
/// Longer than any packet waits in the switch.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// A packet that is done.
#[derive(Clone, Debug)]
pub(super) struct Passed {
    /// Its number in the capture, from 1.
    pub(super) n: u64,
    /// Its time of arrival.
    pub(super) at: Now,
    /// The port it entered by.
    pub(super) entry: Arc<str>,
    /// The port it left by, if it left.
    pub(super) exit: Option<Arc<str>>,
    /// Its outcome.
    pub(super) outcome: Outcome,
    /// The rules that decided.
    pub(super) by: Vec<Origin>,
    /// Both ends, as far as its headers could be read.
    pub(super) flow: Option<Flow>,
    /// Its path through the graph, if packets are traced.
    pub(super) traces: Vec<PacketTrace>,
}

/// The switch took a packet and gave no verdict.
#[derive(Debug, thiserror::Error)]
#[error("the packet at offset {offset} got no verdict from the switch")]
pub(crate) struct Lost {
    /// Where the packet stands in the capture.
    offset: u64,
}

/// The switch of one node, on memory.
pub(super) struct Offline {
    worker: Worker,
    snapshot: Arc<Snapshot>,
    /// The outer end of each port, by number.
    wires: Vec<(Arc<str>, Wire)>,
    log: Arc<Mutex<Log>>,
    tracing: Option<Arc<Tracing>>,
}

/// Events of packets.
#[derive(Default)]
struct Log {
    /// Number and time of the packet under way.
    current: (u64, Now),
    /// Those that wait in the switch, by the frame they stand in.
    waiting: HashMap<u32, (u64, Now, Vec<PacketTrace>)>,
    /// Those that are done, with the frame they stood in.
    ended: Vec<(u32, Passed)>,
}

impl Offline {
    /// The switch of node `node`: a port for each of its pods, `host` and `uplink`.
    ///
    /// # Errors
    /// The number of pods that fit, if these are more.
    pub(super) fn new(view: &View, node: &str, underlay: Underlay) -> Result<Self, usize> {
        let pods = view.pods.iter().filter(|(_, pod)| &*pod.node == node);
        let pods = pods.map(|(key, pod)| PortRole::Pod(key.clone(), pod.addresses.clone()));
        let ends: Vec<PortRole> = pods.chain([PortRole::Host, PortRole::Uplink]).collect();
        let most = usize::from(Adjacency::MOST_PORTS);
        if ends.len() > most {
            return Err(most - 2);
        }
        let numbered = (0..).zip(ends);
        let ports: Vec<NodePort> =
            numbered.map(|(id, role)| NodePort::new(PortId(id), role)).collect();
        let services = ServiceMaker::default().services(view, node);
        let mut node_context = NodeContext { services, underlay, ..NodeContext::default() };
        if matches!(node_context.underlay, Underlay::Overlay(_)) {
            // Captures hold no next hops of the underlay.
            let peers =
                peers(view, node, |_| NextHop { mac: Some(SWITCH_MAC), is_router: true, mtu: 0 });
            node_context.routes = Arc::new(Routes::new(peers));
        }
        let snapshot = snapshot(view, node, node_context, view.generation.max(1), &ports);
        let snapshot = Arc::new(snapshot);

        let config = Config::default();
        let (memory, frames) = Memory::heap(XDP_HEADROOM + LONGEST, FRAMES);
        let sessions = Sessions::new(config.sessions, ports.len() as u16, config.timeouts);
        sessions.set_ports(ports.len(), true);
        let log = Arc::default();
        let inspect = Box::new(Watch { log: Arc::clone(&log) });
        let worker = Worker::alone(memory, frames, sessions, Some(inspect));
        let mut wires = Vec::new();
        for (id, port) in snapshot.ports() {
            let wire = Wire::default();
            worker.mailbox().send(Command::AddPort(id, wire.port(), Arc::default()));
            wires.push((Arc::clone(&port.name), wire));
        }
        worker.mailbox().send(Command::Snapshot(Arc::clone(&snapshot)));
        Ok(Self { worker, snapshot, wires, log, tracing: None })
    }

    /// The snapshot that the switch decides by.
    pub(super) fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// Sends one packet through; returns the packets that are done now: usually this one, but a fragment may wait for
    /// another.
    pub(super) fn pass(
        &mut self,
        entry: PortId,
        now: Now,
        record: &Record,
    ) -> Result<Vec<Passed>, Lost> {
        let lost = Lost { offset: record.offset };
        let Some((_, wire)) = self.wires.get(usize::from(entry.0)) else { return Err(lost) };
        wire.send(&record.data[..]);
        let n = {
            let mut log = self.log.lock();
            log.current = (log.current.0 + 1, now);
            log.current.0
        };
        self.worker.drain(now);
        let ended = self.take_ended();
        let waits = self.log.lock().waiting.values().any(|(waiting, ..)| *waiting == n);
        let is_there = waits || ended.iter().any(|passed| passed.n == n);
        if is_there { Ok(ended) } else { Err(lost) }
    }

    /// Advances the time until no packet waits; returns those that are done.
    pub(super) fn finish(&mut self) -> Vec<Passed> {
        let last = self.log.lock().current.1;
        self.worker.drain(Now(last.0.saturating_add(LONGEST_WAIT)));
        self.take_ended()
    }

    /// Packets that are done, with their traces.
    fn take_ended(&mut self) -> Vec<Passed> {
        let mut log = self.log.lock();
        let mut ended = std::mem::take(&mut log.ended);
        let tracing = self.tracing.iter();
        for trace in tracing.flat_map(|tracing| std::iter::from_fn(|| tracing.take())) {
            if let Some((_, passed)) = ended.iter_mut().find(|(frame, _)| *frame == trace.frame) {
                passed.traces.push(trace);
            } else if let Some((_, _, traces)) = log.waiting.get_mut(&trace.frame) {
                traces.push(trace);
            }
        }
        ended.into_iter().map(|(_, passed)| passed).collect()
    }

    /// Traces packets from now on.
    pub(super) fn follow(&mut self) {
        let tracing = Arc::new(Tracing::endless(Filter::default(), WAYS));
        self.worker.mailbox().send(Command::Trace(Some(Arc::clone(&tracing))));
        self.tracing = Some(tracing);
    }

    /// Takes every frame that left since the last call, with the name of its port.
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

/// Records how packets end.
struct Watch {
    log: Arc<Mutex<Log>>,
}

impl Inspect for Watch {
    fn waits(&mut self, packet: &Packet) {
        let mut log = self.log.lock();
        let (n, at) = log.current;
        // One that waited before keeps its number.
        log.waiting.entry(packet.frame.index()).or_insert_with(|| (n, at, Vec::new()));
    }

    fn done(&mut self, packet: &Packet, snapshot: &Snapshot) {
        let Some(outcome) = packet.outcome else { return };
        let name = |id| snapshot.port(id).map(|port| Arc::clone(&port.name));
        let left = outcome.verdict() == Verdict::Forward;
        let flow = packet.headers.flow;
        let mut log = self.log.lock();
        let frame = packet.frame.index();
        let (n, at) = log.current;
        let (n, at, traces) = log.waiting.remove(&frame).unwrap_or_else(|| (n, at, Vec::new()));
        let passed = Passed {
            n,
            at,
            entry: name(packet.in_port).unwrap_or_else(|| "none".into()),
            exit: left.then(|| name(packet.out_port)).flatten(),
            outcome,
            by: packet.by.origins(snapshot, outcome),
            flow: (flow != Flow::default()).then_some(flow),
            traces,
        };
        log.ended.push((frame, passed));
    }
}

#[cfg(test)]
mod tests {
    use crate::input;
    use control::{Scope, manifests};
    use dataplane::capture::Reader;
    use dataplane::wire::checksum;
    use etherparse::{NetSlice, SlicedPacket};
    use pcap_fixtures::Fixture;
    use proptest::prelude::*;
    use proptest::sample::Index;
    use testkit::packet::patch_ipv4;

    use super::super::entry;
    use super::*;

    /// The switch of a fixture, and its frames.
    fn switch_of(fixture: &Fixture) -> (Offline, Vec<Vec<u8>>) {
        let objects = manifests::load(std::slice::from_ref(&fixture.manifests)).objects;
        let control = input::control(Scope::Node("node1".into()), objects);
        let offline =
            Offline::new(&control.view(), "node1", Underlay::Plain).expect("a few pods fit");
        let records = Reader::open(&fixture.capture).expect("a capture");
        (offline, records.map(|record| record.expect("a whole capture").data).collect())
    }

    /// Returns whether a forwarded frame has sound headers and checksums.
    fn is_sound(left: &[u8]) -> bool {
        let packet = SlicedPacket::from_ethernet(left).map(|packet| packet.net);
        match packet {
            Ok(Some(NetSlice::Ipv4(ip))) => {
                let header = ip.header();
                header.ttl() > 0 && checksum::fold(checksum::sum(header.slice())) == 0xffff
            }
            Ok(Some(NetSlice::Ipv6(ip))) => ip.header().hop_limit() > 0,
            Ok(Some(NetSlice::Arp(_))) => true,
            // Payloads that no parser here looks into, or that only another one does.
            Ok(None) => false,
            Err(_) => left.len() > 14,
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Every frame gets a verdict, whatever its bytes, and only forwarded packets and answers leave.
        #[test]
        fn every_frame_gets_a_verdict(
            fixture in prop::sample::select(Fixture::all().expect("fixtures are complete")),
            steps in prop::collection::vec(
                (
                    any::<Index>(),
                    prop::option::weighted(0.2, any::<Index>()),
                    prop::collection::vec((any::<Index>(), any::<u8>()), 0..4),
                    prop::option::weighted(0.2, any::<Index>()),
                ),
                1..60,
            ),
        ) {
            let (mut offline, frames) = switch_of(&fixture);
            let (mut numbers, count) = (Vec::new(), steps.len());
            for (n, (which, port, changes, cut)) in steps.into_iter().enumerate() {
                let mut data = which.get(&frames).clone();
                for (at, byte) in changes.iter().filter(|_| !data.is_empty()).collect::<Vec<_>>() {
                    let at = at.index(data.len());
                    data[at] = *byte;
                }
                data.truncate(cut.map_or(data.len(), |cut| cut.index(data.len() + 1)));
                // A wrong checksum would hide what else is wrong.
                if data.get(12..14) == Some(&[0x08, 0]) && data.len() >= 34 && n % 2 == 0 {
                    data = patch_ipv4(data, 24, &[0; 2]);
                }
                let record = Record { data, ..Record::default() };
                let anywhere = |port: Index| PortId(port.index(offline.wires.len()) as u16);
                let likely = || entry::port(offline.snapshot(), &record);
                let port = port.map_or_else(likely, anywhere);
                let ended = offline.pass(port, Now(Duration::from_secs(n as u64)), &record)?;
                let mut left = Vec::new();
                offline.take_what_left(|_, frame| {
                    left.push(frame.to_vec());
                    Ok(())
                })?;
                // A fragment may bring along those that waited for it.
                let most: usize = ended.iter().map(|passed| match passed.outcome.verdict() {
                    Verdict::Forward | Verdict::Consume => 1,
                    // The sender gets an ICMP error.
                    Verdict::Drop if passed.outcome.triggers_icmp_error() => 1,
                    Verdict::Drop => 0,
                }).sum();
                prop_assert!(left.len() <= most, "{ended:?}");
                for passed in &ended {
                    let forwarded = passed.outcome.verdict() == Verdict::Forward;
                    prop_assert_eq!(passed.exit.is_some(), forwarded);
                }
                prop_assert!(left.iter().all(|frame| is_sound(frame)), "{:02x?} {:?}", left, ended);
                numbers.extend(ended.iter().map(|passed| passed.n));
            }
            numbers.extend(offline.finish().iter().map(|passed| passed.n));
            numbers.sort_unstable();
            prop_assert_eq!(numbers, (1..=count as u64).collect::<Vec<_>>());
        }
    }
}
