//! The raw data of verdicts, in a queue that never blocks its worker.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use acl::{Direction, Origin};
use crossbeam_queue::ArrayQueue;
use dataplane::counters::Cell;
use dataplane::session::Tuples;
use dataplane::wire::{Fragment, Headers, Role, frame_of, parse_prefix, protocol};
use dataplane::worker::Inspect;
use dataplane::{Outcome, Packet, PortId, PortKind, Snapshot, StagedDecision, Verdict};

/// A worker's end of the stream.
///
/// Ports share the queue: one may have a quarter as many verdicts in it as there is room left, so
/// that a flood from one port, or from several, leaves room for those of all others.
#[derive(Debug)]
pub struct Inspector {
    queue: Arc<Queue>,
    /// Verdicts of each port since the queue was last fetched, by the port's number.
    shares: Vec<u32>,
    /// The fetch that `shares` count from.
    fetch: u64,
}

/// The verdicts of one worker that have not been fetched yet.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) waiting: ArrayQueue<Seen>,
    /// Verdicts that found no room.
    pub(super) lost: Cell,
    /// Times that the queue was fetched.
    pub(super) fetches: AtomicU64,
}

/// A verdict as the worker saw it.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) time: SystemTime,
    pub(super) outcome: Outcome,
    pub(super) by: Vec<Origin>,
    pub(super) in_port: Option<Arc<str>>,
    pub(super) in_pod: bool,
    pub(super) out_port: Option<Arc<str>>,
    pub(super) out_pod: bool,
    /// The direction whose policies denied it.
    pub(super) denied: Option<Direction>,
    /// The decision of staged policies, in an event about it.
    pub(super) staged: Option<StagedDecision>,
    /// `None` if the headers could not be read.
    pub(super) packet: Option<SeenPacket>,
}

/// Contents of the packet's headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SeenPacket {
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    pub(super) ports: Option<(u16, u16)>,
    pub(super) protocol: u8,
    pub(super) icmp_type: Option<u8>,
    pub(super) tcp_flags: Option<u8>,
}

/// Verdicts that wait for the broker, for each worker. The broker fetches them fifty times a second.
const WAITING: usize = 2048;

impl Queue {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            waiting: ArrayQueue::new(WAITING),
            lost: Cell::default(),
            fetches: AtomicU64::new(0),
        })
    }
}

impl Inspector {
    pub(super) fn new(queue: Arc<Queue>) -> Self {
        Self { queue, shares: Vec::new(), fetch: 0 }
    }

    /// Queues the verdict on a packet, if its port has a place left.
    #[inline]
    fn push(&mut self, port: PortId, seen: impl FnOnce() -> Seen) {
        if self.take_place(port) {
            // The only producer: there is room.
            let _ = self.queue.waiting.push(seen());
        } else {
            self.queue.lost.add(1);
        }
    }

    /// Takes one place in the queue for a port; `false` if it has none left.
    fn take_place(&mut self, port: PortId) -> bool {
        let fetch = self.queue.fetches.load(Ordering::Relaxed);
        if self.fetch != fetch {
            self.fetch = fetch;
            self.shares.fill(0);
        }
        let port = usize::from(port.0);
        if port >= self.shares.len() {
            self.shares.resize(port + 1, 0);
        }
        let waiting = &self.queue.waiting;
        let room = waiting.capacity() - waiting.len();
        let has_place = (self.shares[port] as usize) < room.div_ceil(SHARE);
        self.shares[port] += u32::from(has_place);
        has_place
    }
}

/// The part of the free places that one port may take.
const SHARE: usize = 4;

impl Inspect for Inspector {
    #[inline]
    fn done(&mut self, packet: &Packet, snapshot: &Snapshot) {
        let Some(outcome) = packet.outcome.filter(|outcome| is_event(*outcome)) else { return };
        self.push(packet.in_port, || see(outcome, packet, snapshot));
    }

    fn differs(&mut self, packet: &Packet, staged: &StagedDecision, snapshot: &Snapshot) {
        let Some(outcome) = packet.outcome else { return };
        self.push(packet.in_port, || {
            let staged = Some(staged.clone());
            Seen { staged, ..see(outcome, packet, snapshot) }
        });
    }
}

fn is_event(outcome: Outcome) -> bool {
    match outcome.verdict() {
        Verdict::Drop => true,
        Verdict::Forward => {
            matches!(outcome, Outcome::PolicyAllowed | Outcome::OwnNode | Outcome::NoPolicy)
        }
        Verdict::Consume => false,
    }
}

#[cold]
fn see(outcome: Outcome, packet: &Packet, snapshot: &Snapshot) -> Seen {
    let port = |id: PortId| snapshot.port(id);
    let name = |id| port(id).map(|port| Arc::clone(&port.name));
    let is_pod = |id| port(id).is_some_and(|port| port.kind == PortKind::Pod);
    // A packet that the switch answers itself has gone nowhere; the answer has.
    let out_port = match outcome.verdict() {
        Verdict::Drop if packet.is_reply => PortId::NONE,
        _ => packet.out_port,
    };
    let decided = matches!(outcome, Outcome::PolicyAllowed | Outcome::PolicyDenied);
    Seen {
        time: SystemTime::now(),
        outcome,
        by: if decided { packet.by.origins(snapshot, outcome) } else { Vec::new() },
        in_port: name(packet.in_port),
        in_pod: is_pod(packet.in_port),
        out_port: name(out_port),
        out_pod: is_pod(out_port),
        denied: match outcome {
            Outcome::PolicyDenied => packet.by.is_responders().map(|is_responders| {
                if is_responders { Direction::Ingress } else { Direction::Egress }
            }),
            _ => None,
        },
        staged: None,
        packet: see_headers(outcome, &packet.headers),
    }
}

impl Seen {
    /// An open connection that staged policies would deny.
    pub(super) fn open(tuples: &Tuples, staged: StagedDecision, snapshot: &Snapshot) -> Self {
        let flow = tuples.policy_flow();
        let pod = |address| snapshot.pod_of(address).map(|(_, port)| Arc::clone(&port.name));
        let (in_port, out_port) = (pod(flow.source), pod(flow.destination));
        let has_ports = matches!(flow.protocol, protocol::TCP | protocol::UDP | protocol::SCTP);
        Self {
            time: SystemTime::now(),
            outcome: Outcome::PolicyAllowed,
            by: dataplane::evaluate(snapshot, &flow).by.origins(snapshot, Outcome::PolicyAllowed),
            in_pod: in_port.is_some(),
            in_port,
            out_pod: out_port.is_some(),
            out_port,
            denied: None,
            staged: Some(staged),
            packet: Some(SeenPacket {
                source: flow.source.to_ip(),
                destination: flow.destination.to_ip(),
                ports: has_ports.then_some((flow.source_port, flow.destination_port)),
                protocol: flow.protocol,
                icmp_type: None,
                tcp_flags: None,
            }),
        }
    }

    /// A packet that the kernel denied by a policy, from its IP header on.
    pub(super) fn denied_by_kernel(by: Origin, packet: &[u8]) -> Self {
        let frame = frame_of(packet);
        let length = frame.len().max(usize::from(u16::MAX));
        let outcome = Outcome::PolicyDenied;
        Self {
            time: SystemTime::now(),
            outcome,
            by: vec![by],
            in_port: None,
            in_pod: false,
            out_port: None,
            out_pod: false,
            denied: None,
            staged: None,
            packet: parse_prefix(&frame, length)
                .ok()
                .and_then(|headers| see_headers(outcome, &headers)),
        }
    }
}

/// The headers as they were parsed: the frame may hold the switch's reply by now, or a tunnel in front of the packet.
fn see_headers(outcome: Outcome, headers: &Headers) -> Option<SeenPacket> {
    // Headers that were refused were not kept.
    if is_malformed(outcome) || headers.end == 0 {
        return None;
    }
    let v4 = headers.flow.source.is_v4();
    let protocol = match headers.role {
        // The flow is that of the packet an ICMP error quotes.
        Role::Quotes if v4 => protocol::ICMP,
        Role::Quotes => protocol::ICMPV6,
        _ => headers.flow.protocol,
    };
    let ports = matches!(protocol, protocol::TCP | protocol::UDP | protocol::SCTP)
        .then_some((headers.flow.source_port, headers.flow.destination_port));
    let is_icmp = matches!(protocol, protocol::ICMP | protocol::ICMPV6);
    let is_later = matches!(headers.fragment, Fragment::Later(_));
    Some(SeenPacket {
        source: headers.flow.source.to_ip(),
        destination: headers.flow.destination.to_ip(),
        ports,
        protocol,
        icmp_type: (is_icmp && !is_later).then_some(headers.icmp_type),
        tcp_flags: (protocol == protocol::TCP).then_some(headers.tcp_flags),
    })
}

fn is_malformed(outcome: Outcome) -> bool {
    use Outcome::{
        BadChecksum, MalformedEthernet, MalformedIp, MalformedTransport, Truncated,
        UnknownEthertype,
    };
    matches!(
        outcome,
        BadChecksum
            | MalformedEthernet
            | MalformedIp
            | MalformedTransport
            | Truncated
            | UnknownEthertype
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floods_leave_places_for_others() {
        let queue = Queue::new();
        let mut inspector = Inspector::new(Arc::clone(&queue));
        let mut fill = |port: u16, wanted: usize| {
            let mut taken = 0;
            while taken < wanted && inspector.take_place(PortId(port)) {
                let seen = Seen {
                    time: SystemTime::now(),
                    outcome: Outcome::PolicyDenied,
                    by: Vec::new(),
                    in_port: None,
                    in_pod: true,
                    out_port: None,
                    out_pod: false,
                    denied: None,
                    staged: None,
                    packet: None,
                };
                queue.waiting.push(seen).unwrap();
                taken += 1;
            }
            taken
        };
        let flood: usize = (0..4).map(|port| fill(port, WAITING)).sum();
        assert!(flood > WAITING / 2 && flood < WAITING, "{flood}");
        assert_eq!(fill(9, 50), 50, "a fifth port still has places");
        assert_eq!(fill(0, 1), 0);
        queue.fetches.fetch_add(1, Ordering::Relaxed);
        assert_eq!(fill(0, 10), 10, "places are counted from fetch to fetch");
    }
}
