//! A node's switch that tests hold in their hands.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dataplane::dns::DnsTap;
use dataplane::graph::trace::Tracing;
use dataplane::mailbox::Command;
use dataplane::port::memory::Wire;
use dataplane::session::{Sessions, Timeouts};
use dataplane::wire::Mac;
use dataplane::worker::Inspect;
use dataplane::{
    AclBinding, Counters, Memory, Now, Outcome, Packet, Parts, PortId, PortKind, PortState,
    Snapshot, StagedDecision, Worker,
};

/// Frames of a switch, unless a test says otherwise.
pub(crate) const FRAMES: usize = 512;

/// The switch, with a wire for each port.
pub(crate) struct Rig {
    worker: Worker,
    wires: Vec<Wire>,
    ends: Arc<Mutex<Vec<Outcome>>>,
    differences: Arc<Mutex<Vec<(Outcome, StagedDecision)>>>,
    /// Seconds that have passed.
    pub(crate) now_s: u64,
}

impl Rig {
    /// A switch that decides by these parts; port numbers are places in `parts.ports`.
    pub(crate) fn new(parts: Parts) -> Self {
        Self::of(parts, FRAMES, 4096)
    }

    /// The same with so many frames.
    pub(crate) fn new_with_frames(parts: Parts, frames: usize) -> Self {
        Self::of(parts, frames, 4096)
    }

    /// The same with frames of so many bytes.
    pub(crate) fn with_frames(parts: Parts, frame_size: usize) -> Self {
        Self::of(parts, FRAMES, frame_size)
    }

    /// The same with the sessions of an earlier process.
    pub(crate) fn with_sessions(parts: Parts, sessions: Arc<Sessions>) -> Self {
        Self::over(parts, FRAMES, 4096, sessions)
    }

    fn of(parts: Parts, frames: usize, frame_size: usize) -> Self {
        Self::over(parts, frames, frame_size, Sessions::new(1024, 16, Timeouts::default()))
    }

    fn over(parts: Parts, frames: usize, frame_size: usize, sessions: Arc<Sessions>) -> Self {
        let (memory, frames) = Memory::heap(frame_size, frames as u32);
        let ends = Arc::<Mutex<Vec<Outcome>>>::default();
        let differences = Arc::default();
        let inspect = Recorder(Arc::clone(&ends), Arc::clone(&differences));
        let worker = Worker::alone(memory, frames, sessions, Some(Box::new(inspect)));
        let wires: Vec<Wire> = parts.ports.iter().map(|_| Wire::default()).collect();
        for (n, wire) in wires.iter().enumerate() {
            worker.mailbox().send(Command::AddPort(PortId(n as u16), wire.port(), Arc::default()));
        }
        let mut rig = Self { worker, wires, ends, differences, now_s: 0 };
        rig.publish(parts);
        rig
    }

    /// Publishes these parts: the switch decides by them from now on.
    pub(crate) fn publish(&mut self, parts: Parts) {
        self.worker.mailbox().send(Command::Snapshot(Arc::new(Snapshot::new(parts))));
        self.worker.drain(self.now());
    }

    /// Makes it send copies of DNS packets to a tap.
    pub(crate) fn follow_dns(&mut self, tap: &Arc<DnsTap>) {
        self.worker.mailbox().send(Command::FollowDns(Arc::clone(tap)));
        self.worker.drain(self.now());
    }

    /// Releases answers; returns their outcomes.
    pub(crate) fn release(&mut self, numbers: &[u64]) -> Vec<Outcome> {
        self.worker.mailbox().send(Command::ReleaseAnswers(numbers.to_vec()));
        self.wait(0)
    }

    /// Advances the clock by seconds; returns the outcomes of held packets.
    pub(crate) fn wait(&mut self, seconds: u64) -> Vec<Outcome> {
        self.now_s += seconds;
        self.worker.drain(self.now());
        std::mem::take(&mut self.ends.lock().unwrap())
    }

    /// Makes it trace packets.
    pub(crate) fn follow(&mut self, tracing: Option<Arc<Tracing>>) {
        self.worker.mailbox().send(Command::Trace(tracing));
        self.worker.drain(self.now());
    }

    /// Sends a frame in and tells how it ended.
    pub(crate) fn send(&mut self, port: u16, frame: impl Into<Vec<u8>>) -> Outcome {
        self.send_all(port, vec![frame.into()]).pop().expect("an outcome for the packet")
    }

    /// Sends frames in as one vector.
    pub(crate) fn send_all(&mut self, port: u16, frames: Vec<Vec<u8>>) -> Vec<Outcome> {
        frames.into_iter().for_each(|frame| self.wires[usize::from(port)].send(frame));
        self.worker.drain(self.now());
        std::mem::take(&mut self.ends.lock().unwrap())
    }

    /// The connections about which staged ACLs decided otherwise since the last call, with what was enforced.
    pub(crate) fn take_differences(&mut self) -> Vec<(Outcome, StagedDecision)> {
        std::mem::take(&mut self.differences.lock().unwrap())
    }

    /// The next frame that left by a port.
    pub(crate) fn receive(&mut self, port: u16) -> Option<Vec<u8>> {
        self.wires[usize::from(port)].receive()
    }

    /// Sends a frame in that must leave by another port, and gives it as it left.
    pub(crate) fn pass(&mut self, from: u16, frame: impl Into<Vec<u8>>, to: u16) -> Vec<u8> {
        let outcome = self.send(from, frame);
        self.receive(to).unwrap_or_else(|| panic!("nothing left by port {to}: {outcome}"))
    }

    /// Takes a port away; tells how what waited there ended.
    pub(crate) fn remove_port(&mut self, port: u16) -> Vec<Outcome> {
        self.worker.mailbox().send(Command::RemovePort(PortId(port)));
        self.worker.drain(self.now());
        std::mem::take(&mut self.ends.lock().unwrap())
    }

    /// Frames that are not in use.
    pub(crate) fn free(&self) -> usize {
        self.worker.free_frames()
    }

    /// The worker's counters.
    pub(crate) fn counters(&self) -> &Counters {
        self.worker.counters()
    }

    /// The sessions it knows.
    pub(crate) fn sessions(&self) -> &Sessions {
        self.worker.sessions()
    }

    fn now(&self) -> Now {
        Now(Duration::from_secs(self.now_s))
    }
}

struct Recorder(Arc<Mutex<Vec<Outcome>>>, Arc<Mutex<Vec<(Outcome, StagedDecision)>>>);

impl Inspect for Recorder {
    fn done(&mut self, packet: &Packet, _snapshot: &Snapshot) {
        self.0.lock().unwrap().push(packet.outcome.expect("every packet has an outcome"));
    }

    fn differs(&mut self, packet: &Packet, staged: &StagedDecision, _snapshot: &Snapshot) {
        let outcome = packet.outcome.expect("every packet has an outcome");
        self.1.lock().unwrap().push((outcome, staged.clone()));
    }
}

/// An address from its text.
pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A pod that may do everything.
pub(crate) fn pod(name: &str, addresses: &[&str]) -> Option<PortState> {
    Some(PortState {
        addresses: addresses.iter().map(|text| ip(text).into()).collect(),
        to_pod: AclBinding::Open,
        from_pod: AclBinding::Open,
        ..PortState::new(name, PortKind::Pod)
    })
}

/// The port towards the kernel.
pub(crate) fn host() -> Option<PortState> {
    Some(PortState::new("host", PortKind::Host))
}

/// The port towards other nodes, with its own MAC address and its gateway's.
pub(crate) fn uplink(own_mac: Mac, gateway: Mac, mtu: u16) -> Option<PortState> {
    Some(PortState {
        own_mac,
        mac: Some(gateway),
        mtu,
        ..PortState::new("uplink", PortKind::Uplink)
    })
}

/// The frame with its TCP or UDP checksum as a kernel leaves it to hardware.
pub(crate) fn left_open(mut frame: Vec<u8>) -> Vec<u8> {
    let headers = dataplane::wire::parse(&frame).unwrap();
    dataplane::wire::partial_checksum::renew_pseudo(&mut frame, &headers);
    frame
}

/// Frames without their MAC addresses, time to live and IPv4 header checksum, for comparison with
/// what was built.
pub(crate) fn essence(frame: &[u8]) -> Vec<u8> {
    let mut essence = frame[12..].to_vec();
    match essence[..2] {
        [0x08, 0x00] => {
            essence[2 + 8] = 0;
            essence[2 + 10..2 + 12].fill(0);
        }
        _ => essence[2 + 7] = 0,
    }
    essence
}

/// Asserts that a frame is what would have been built, one hop on.
#[track_caller]
pub(crate) fn assert_is(frame: &[u8], built: &[u8]) {
    let show = |frame: &[u8]| dataplane::wire::parse(frame).map(|headers| headers.flow);
    assert_eq!(essence(frame), essence(built), "{:?} instead of {:?}", show(frame), show(built));
}
