//! Between workers: port ownership, hand-off rings.
//!
//! A port may be served by several workers, each with its own part (its own queues) of it. A worker
//! with a part sends through that part. A worker without one hands its packets to a worker with a
//! part, always the same one:
//!
//! ```text
//! worker 0 ── its part ─▶ queue 0 ┐
//! worker 1 ── its part ─▶ queue 1 ┴ port
//! worker 2 ── ring of worker 0 ──▶ queue 0
//! ```
//!
//! One direction of a connection enters through one queue, so one worker handles it, in order. It
//! leaves through one queue, or through one ring and one queue, each of which keeps order. So its
//! packets are not reordered. The two directions may have different workers.
//!
//! Fragments are the exception: a later fragment has no ports, so the interface may place it in
//! another queue than the first one. All fragments of a datagram go to one worker, chosen by a hash
//! of addresses, protocol and identification. They may be reordered with whole packets of their
//! connection, as they may in the interface.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32};

use ahash::RandomState;
use crossbeam_queue::ArrayQueue;

use crate::doorbell::Doorbell;
use crate::sync::Ordering;
use crate::wire::datagram::Datagram;
use crate::{Frame, PortId};

/// Frames that the ring towards one worker holds.
const RING: usize = 4096;
const NOBODY: u8 = u8::MAX;

/// A packet on its way to another worker.
pub(crate) struct Handoff {
    pub(crate) frame: Frame,
    pub(crate) port: PortId,
    /// The port number's epoch at the time of the hand-off; see [`Exchange::epoch`].
    pub(crate) epoch: u32,
    pub(crate) kind: HandoffKind,
}

/// The receiving worker's part in handling the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandoffKind {
    /// Processes it: it was received on the port.
    Ingress,
    /// Transmits it on the port.
    Egress,
}

/// Why a frame could not be handed over; it comes back.
pub(crate) enum Refused {
    /// No worker serves the port.
    NoWorker(Frame),
    /// The ring is full.
    Full(Frame),
}

/// State shared by the workers of a switch.
pub(crate) struct Exchange {
    workers: usize,
    /// By port and worker: the worker that transmits for it.
    senders: Box<[AtomicU8]>,
    epochs: Box<[AtomicU32]>,
    rings: Box<[ArrayQueue<Handoff>]>,
    doorbells: Box<[Arc<Doorbell>]>,
    hasher: RandomState,
}

impl Exchange {
    pub(crate) fn new(workers: usize, ports: u16) -> Arc<Self> {
        let ports = usize::from(ports);
        Arc::new(Self {
            workers,
            senders: (0..ports * workers).map(|_| AtomicU8::new(NOBODY)).collect(),
            epochs: (0..ports).map(|_| AtomicU32::new(0)).collect(),
            rings: (0..workers).map(|_| ArrayQueue::new(RING)).collect(),
            doorbells: (0..workers).map(|_| Arc::default()).collect(),
            hasher: RandomState::new(),
        })
    }

    /// Number of workers.
    pub(crate) fn workers(&self) -> usize {
        self.workers
    }

    pub(crate) fn doorbell(&self, worker: usize) -> Arc<Doorbell> {
        Arc::clone(&self.doorbells[worker])
    }

    /// Makes these workers the owners of the port, each of a part of it. An empty list removes all
    /// owners.
    pub(crate) fn set_owners(&self, port: PortId, owners: &[usize]) {
        if let Some(epoch) = self.epochs.get(usize::from(port.0)) {
            epoch.fetch_add(1, Ordering::Relaxed);
        }
        for (worker, sender) in self.senders_of(port).iter().enumerate() {
            let other = owners.get(worker % owners.len().max(1)).copied();
            let owner = if owners.contains(&worker) { Some(worker) } else { other };
            sender.store(owner.map_or(NOBODY, |n| n as u8), Ordering::Release);
        }
    }

    /// The workers that serve a part of the port.
    pub(crate) fn owners(&self, port: PortId) -> impl Iterator<Item = usize> + use<'_> {
        let senders = self.senders_of(port).iter().enumerate();
        senders.filter(|(n, it)| usize::from(it.load(Ordering::Acquire)) == *n).map(|(n, _)| n)
    }

    /// Epoch of a port number. It changes with each new owner, so that a hand-off for a removed
    /// port does not reach its successor.
    pub(crate) fn epoch(&self, port: PortId) -> u32 {
        let epoch = self.epochs.get(usize::from(port.0));
        epoch.map_or(0, |it| it.load(Ordering::Relaxed))
    }

    /// Hands a frame that leaves by `port` to the worker that transmits for `worker`; the caller
    /// [wakes](Self::wake) it.
    pub(crate) fn hand_over(
        &self,
        worker: usize,
        frame: Frame,
        port: PortId,
    ) -> Result<usize, Refused> {
        let sender = self.senders_of(port).get(worker);
        let sender = sender.map_or(NOBODY, |sender| sender.load(Ordering::Acquire));
        // The worker itself: it has dropped its part, and the owners are not updated yet.
        if sender == NOBODY || usize::from(sender) == worker {
            return Err(Refused::NoWorker(frame));
        }
        self.push(sender.into(), frame, port, HandoffKind::Egress)
    }

    /// The worker that handles the fragments of a datagram that came in at a port.
    pub(crate) fn handler(&self, port: PortId, datagram: &Datagram) -> Option<usize> {
        let owners = self.owners(port).count();
        let choice = self.hasher.hash_one(datagram) as usize % owners.max(1);
        self.owners(port).nth(choice)
    }

    /// Hands a frame received on `port` to another worker; the caller wakes it.
    pub(crate) fn hand_in(
        &self,
        worker: usize,
        frame: Frame,
        port: PortId,
    ) -> Result<usize, Refused> {
        self.push(worker, frame, port, HandoffKind::Ingress)
    }

    fn push(
        &self,
        to: usize,
        frame: Frame,
        port: PortId,
        kind: HandoffKind,
    ) -> Result<usize, Refused> {
        let handoff = Handoff { frame, port, epoch: self.epoch(port), kind };
        let pushed = self.rings[to].push(handoff).map_err(|handoff| Refused::Full(handoff.frame));
        pushed.map(|()| to)
    }

    /// Wakes a worker that has hand-offs, if it sleeps; once for many frames.
    pub(crate) fn wake(&self, worker: usize) {
        self.doorbells[worker].ring();
    }

    #[inline]
    pub(crate) fn take(&self, worker: usize) -> Option<Handoff> {
        self.rings[worker].pop()
    }

    pub(crate) fn has_frames(&self, worker: usize) -> bool {
        !self.rings[worker].is_empty()
    }

    fn senders_of(&self, port: PortId) -> &[AtomicU8] {
        let start = usize::from(port.0) * self.workers;
        self.senders.get(start..start + self.workers).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Memory;

    fn senders(exchange: &Exchange, port: PortId) -> Vec<Option<usize>> {
        let of = |sender: &AtomicU8| match sender.load(Ordering::Relaxed) {
            NOBODY => None,
            worker => Some(usize::from(worker)),
        };
        exchange.senders_of(port).iter().map(of).collect()
    }

    #[test]
    fn who_has_a_part_sends_itself_and_the_others_have_one_each() {
        let exchange = Exchange::new(5, 3);
        exchange.set_owners(PortId(1), &[3, 1]);
        let expected = [3, 1, 3, 3, 3].map(Some);
        assert_eq!(senders(&exchange, PortId(1)), expected);
        assert_eq!(exchange.owners(PortId(1)).collect::<Vec<_>>(), [1, 3]);
        assert_eq!(senders(&exchange, PortId(0)), [None; 5]);
        assert_eq!(senders(&exchange, PortId(2)), [None; 5]);
        exchange.set_owners(PortId(1), &[]);
        assert_eq!(senders(&exchange, PortId(1)), [None; 5]);
        assert_eq!(exchange.owners(PortId(3)).count(), 0, "there is no such port");
    }

    #[test]
    fn frames_go_to_the_sender_in_order_and_to_nobody_else() {
        let exchange = Exchange::new(3, 2);
        let (_memory, frames) = Memory::heap(512, 4);
        exchange.set_owners(PortId(1), &[0, 1]);
        for frame in frames {
            assert!(exchange.hand_over(2, frame, PortId(1)).is_ok());
        }
        let taken: Vec<_> = std::iter::from_fn(|| exchange.take(0)).collect();
        let indices: Vec<u32> = taken.iter().map(|it| it.frame.index()).collect();
        assert_eq!(indices, [0, 1, 2, 3]);
        assert!(taken.iter().all(|it| (it.port, it.kind) == (PortId(1), HandoffKind::Egress)));
        assert!(!exchange.has_frames(1) && !exchange.has_frames(2));
        let frame = taken.into_iter().next().unwrap().frame;
        let refused = exchange.hand_over(1, frame, PortId(1));
        let Err(Refused::NoWorker(frame)) = refused else { panic!("it has a part of its own") };
        let refused = exchange.hand_over(1, frame, PortId(0));
        assert!(matches!(refused, Err(Refused::NoWorker(_))));
    }

    #[test]
    fn a_number_that_is_given_again_is_another_port() {
        let exchange = Exchange::new(2, 1);
        exchange.set_owners(PortId(0), &[0]);
        let first = exchange.epoch(PortId(0));
        exchange.set_owners(PortId(0), &[]);
        exchange.set_owners(PortId(0), &[0]);
        assert_ne!(exchange.epoch(PortId(0)), first);
    }
}
