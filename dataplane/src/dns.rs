//! DNS of pods that follow domain names: packets copied for the control side, and answers held until
//! it has decided.
//!
//! ```text
//!   question ─▶ copied ─▶ leaves               answer ─▶ copied ─▶ held ─▶ released ─▶ leaves
//!                  │                                        │                 ▲
//!                  └────────────▶ receiver of the tap ◀─────┘   Switch::release_answers
//! ```
//!
//! The graph knows ports and headers alone. The receiver of the copies reads the messages, puts addresses
//! in force and releases the answers. An answer that is not released leaves by itself after
//! [`DnsTap::max_hold`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use crate::PortId;
use crate::wire::Flow;

/// The port that DNS servers listen on (RFC 1035).
pub const DNS_PORT: u16 = 53;

/// The usual [`DnsTap::max_hold`].
pub const MAX_HOLD: Duration = Duration::from_secs(1);
/// Answers of one pod that a worker holds at most.
pub const MOST_HELD_OF_POD: usize = 32;
/// Answers that a worker holds at most.
pub const MOST_HELD: usize = 256;
/// Copies of one pod's packets under way at most.
const MOST_COPIES_OF_POD: u32 = 128;
/// Copies under way at most, but for a few of each pod.
const MOST_COPIES: u32 = 4096;
/// Copies of one pod's packets that may be under way whatever those of others are.
const LEAST_COPIES_OF_POD: u32 = 8;

/// A DNS packet of a pod that follows names.
#[derive(Debug)]
pub struct DnsPacket {
    /// The pod's port.
    pub pod: PortId,
    /// The connection as the pod sees it: its own end is the source.
    pub flow: Flow,
    /// Whether the pod sent it.
    pub from_pod: bool,
    /// Sequence number and flags of a TCP segment.
    pub segment: Option<(u32, u8)>,
    /// Bytes behind the transport header.
    pub payload: Vec<u8>,
    /// The ticket that releases it, if it is held.
    pub held: Option<Ticket>,
    _copy: CopyGuard,
}

/// Names a held answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// The worker that holds it.
    pub worker: u16,
    /// Its number there.
    pub number: u64,
}

/// Takes copies of DNS packets from workers to the receiver.
#[derive(Debug)]
pub struct DnsTap {
    /// Longest time for which an answer is held.
    pub max_hold: Duration,
    packets: Sender<DnsPacket>,
    /// Copies under way, by port and in all.
    of_port: Box<[AtomicU32]>,
    all: AtomicU32,
    /// Packets that were not copied because too many were under way.
    pub uncopied: AtomicU64,
    /// Answers that left without being held because too many were.
    pub unheld: AtomicU64,
    /// Answers that were sent without a release when their time was over.
    pub late: AtomicU64,
}

/// Fields of a packet that are known before it is copied.
#[derive(Debug)]
pub(crate) struct Draft {
    pub(crate) pod: PortId,
    pub(crate) flow: Flow,
    pub(crate) from_pod: bool,
    pub(crate) segment: Option<(u32, u8)>,
    pub(crate) payload: Vec<u8>,
}

impl DnsTap {
    /// A tap for ports with numbers below `ports`, and where its copies arrive.
    pub fn new(ports: u16, max_hold: Duration) -> (Arc<Self>, Receiver<DnsPacket>) {
        let (packets, received) = channel();
        let tap = Self {
            max_hold,
            packets,
            of_port: (0..ports).map(|_| AtomicU32::new(0)).collect(),
            all: AtomicU32::new(0),
            uncopied: AtomicU64::new(0),
            unheld: AtomicU64::new(0),
            late: AtomicU64::new(0),
        };
        (Arc::new(tap), received)
    }

    /// Whether one more copy of a pod's packet may be under way.
    pub(crate) fn reserve(self: &Arc<Self>, pod: PortId) -> Option<CopyGuard> {
        let of_port = self.of_port.get(usize::from(pod.0))?;
        let guard = CopyGuard { tap: Arc::clone(self), pod };
        // Relaxed: the counts bound memory and order nothing.
        let own = of_port.fetch_add(1, Ordering::Relaxed);
        let all = self.all.fetch_add(1, Ordering::Relaxed);
        let has_room = own < LEAST_COPIES_OF_POD || own < MOST_COPIES_OF_POD && all < MOST_COPIES;
        has_room.then_some(guard)
    }

    /// Sends a copy; returns `false` if there is no receiver.
    pub(crate) fn send(&self, draft: Draft, held: Option<Ticket>, copy: CopyGuard) -> bool {
        let Draft { pod, flow, from_pod, segment, payload } = draft;
        let packet = DnsPacket { pod, flow, from_pod, segment, payload, held, _copy: copy };
        self.packets.send(packet).is_ok()
    }
}

/// Counts a copy as under way until it is dropped.
#[derive(Debug)]
pub(crate) struct CopyGuard {
    tap: Arc<DnsTap>,
    pod: PortId,
}

impl Drop for CopyGuard {
    fn drop(&mut self) {
        self.tap.all.fetch_sub(1, Ordering::Relaxed);
        if let Some(of_port) = self.tap.of_port.get(usize::from(self.pod.0)) {
            of_port.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_that_flood_leave_copies_for_the_others() {
        let (tap, _copies) = DnsTap::new(100, MAX_HOLD);
        let reserve = |pod, times| -> Vec<CopyGuard> {
            (0..times).filter_map(|_| tap.reserve(PortId(pod))).collect()
        };
        let flood: Vec<_> = (0..40).flat_map(|pod| reserve(pod, 1000)).collect();
        // 32 pods have all of theirs, and all others a few.
        assert_eq!(flood.len(), 4096 + 8 * 8);
        let few = reserve(50, 1000);
        assert_eq!(few.len(), 8);
        drop((flood, few));
        assert_eq!(reserve(50, 1000).len(), 128);
    }
}
