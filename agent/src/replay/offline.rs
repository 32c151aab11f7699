//! A cluster node's switch with ports that lead to memory.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use control::View;
use dataplane::capture::Record;
use dataplane::frame::XDP_HEADROOM;
use dataplane::graph::trace::{Filter, Tracing, Way};
use dataplane::orders::Order;
use dataplane::port::memory::Wire;
use dataplane::session::Sessions;
use dataplane::switch::Config;
use dataplane::wire::Flow;
use dataplane::worker::{Inspect, Worker};
use dataplane::{Hop, Memory, Now, Outcome, Packet, PortId, Snapshot, Verdict};

use crate::node::{LeadsTo, NodePort, ServiceMaker, Surroundings, snapshot};

/// The longest frame a capture can hold, in bytes.
const LONGEST: usize = 262_144;
/// Frames under way at once: the packet itself, and as many again for good measure.
const FRAMES: u32 = 8;
/// Ways that one packet can make at most, its own among them.
const WAYS: usize = 1024;

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
    /// Its way through the graph, if packets are followed.
    pub(super) ways: Vec<Way>,
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
    tracing: Option<Arc<Tracing>>,
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
        let most = usize::from(Hop::MOST_PORTS);
        if ends.len() > most {
            return Err(most - 2);
        }
        let numbered = (0..).zip(ends);
        let ports: Vec<NodePort> =
            numbered.map(|(id, leads_to)| NodePort::new(PortId(id), leads_to)).collect();
        let services = ServiceMaker::default().services(view, node);
        let surroundings = Surroundings { services, ..Surroundings::default() };
        let snapshot = snapshot(view, node, surroundings, view.generation.max(1), &ports);
        let snapshot = Arc::new(snapshot);

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
        Ok(Self { worker, snapshot, wires, last, tracing: None })
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
        let mut passed = last.take().ok_or(lost)?;
        if let Some(tracing) = &self.tracing {
            passed.ways.extend(std::iter::from_fn(|| tracing.take()));
        }
        Ok(passed)
    }

    /// Has packets followed from now on.
    pub(super) fn follow(&mut self) {
        let tracing = Arc::new(Tracing::endless(Filter::default(), WAYS));
        self.worker.orders().give(Order::Trace(Some(Arc::clone(&tracing))));
        self.tracing = Some(tracing);
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
            ways: Vec::new(),
        };
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(passed);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use control::{Control, Scope, manifests};
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
        let mut control = Control::new(Scope::Node("node1".into()));
        control.resync(manifests::load(std::slice::from_ref(&fixture.manifests)).objects);
        control.commit();
        let offline = Offline::new(&control.view(), "node1").expect("a few pods fit");
        let records = Reader::open(&fixture.capture).expect("a capture");
        (offline, records.map(|record| record.expect("a whole capture").data).collect())
    }

    /// What left must be what came, one hop on.
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

        /// Nothing that a frame holds keeps it from getting a verdict, and only what is
        /// forwarded or answered leaves.
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
                let passed = offline.pass(port, Now(Duration::from_secs(n as u64)), &record)?;
                let mut left = Vec::new();
                offline.take_what_left(|_, frame| {
                    left.push(frame.to_vec());
                    Ok(())
                })?;
                let most = match passed.outcome.verdict() {
                    Verdict::Forward | Verdict::Consume => 1,
                    // The sender is told why.
                    Verdict::Drop if passed.outcome.is_told() => 1,
                    Verdict::Drop => 0,
                };
                prop_assert!(left.len() <= most, "{passed:?}");
                prop_assert_eq!(passed.exit.is_some(), passed.outcome.verdict() == Verdict::Forward);
                prop_assert!(left.iter().all(|frame| is_sound(frame)), "{:02x?} {:?}", left, passed);
            }
        }
    }
}
