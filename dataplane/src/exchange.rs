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
//!
//! Packets are handed over in batches: two workers meet once for many packets.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize};

use ahash::RandomState;
use crossbeam_queue::ArrayQueue;

use crate::doorbell::Doorbell;
use crate::sync::Ordering;
use crate::wire::datagram::Datagram;
use crate::{Frame, PortId};

/// Packets that the ring towards one worker holds.
const RING: usize = 4096;
/// Batches that it holds; each may be of one packet.
const BATCHES: usize = 1024;
/// Packets that are handed over at a time, at most.
pub(crate) const BATCH: usize = 64;
/// Empty lists that are kept for later batches.
const EMPTY: usize = 64;
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

/// The way of packets towards one worker.
struct Ring {
    batches: ArrayQueue<Vec<Handoff>>,
    /// Packets in them.
    packets: AtomicUsize,
    empty: ArrayQueue<Vec<Handoff>>,
}

impl Default for Ring {
    fn default() -> Self {
        let (batches, empty) = (ArrayQueue::new(BATCHES), ArrayQueue::new(EMPTY));
        Self { batches, packets: AtomicUsize::new(0), empty }
    }
}

/// State shared by the workers of a switch.
pub(crate) struct Exchange {
    workers: usize,
    /// By port and worker: the worker that transmits for it.
    senders: Box<[AtomicU8]>,
    epochs: Box<[AtomicU32]>,
    rings: Box<[Ring]>,
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
            rings: (0..workers).map(|_| Ring::default()).collect(),
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

    /// The worker that transmits by a port for `worker`, which has no part of it.
    pub(crate) fn sender(&self, worker: usize, port: PortId) -> Option<usize> {
        let sender = self.senders_of(port).get(worker)?.load(Ordering::Acquire);
        // The worker itself: it has dropped its part, and the owners are not updated yet.
        (sender != NOBODY && usize::from(sender) != worker).then_some(sender.into())
    }

    /// The worker that handles the fragments of a datagram that came in at a port.
    pub(crate) fn handler(&self, port: PortId, datagram: &Datagram) -> Option<usize> {
        let owners = self.owners(port).count();
        let choice = self.hasher.hash_one(datagram) as usize % owners.max(1);
        self.owners(port).nth(choice)
    }

    /// Hands a batch of at most [`BATCH`] packets to a worker, which the caller [wakes](Self::wake). What its ring
    /// has no room for stays in the list.
    pub(crate) fn hand_over(&self, to: usize, batch: &mut Vec<Handoff>) {
        let ring = &self.rings[to];
        let before = ring.packets.fetch_add(batch.len(), Ordering::Relaxed);
        let fits = RING.saturating_sub(before).min(batch.len());
        let mut rest = match fits < batch.len() {
            true => batch.split_off(fits),
            false => ring.empty.pop().unwrap_or_else(|| Vec::with_capacity(BATCH)),
        };
        std::mem::swap(batch, &mut rest);
        let back = if rest.is_empty() { Some(rest) } else { ring.batches.push(rest).err() };
        back.into_iter().for_each(|mut it| batch.append(&mut it));
        ring.packets.fetch_sub(batch.len(), Ordering::Relaxed);
    }

    /// Wakes a worker that has hand-offs, if it sleeps; once for many frames.
    pub(crate) fn wake(&self, worker: usize) {
        self.doorbells[worker].ring();
    }

    /// The next batch for a worker, which [gives the list back](Self::give_back).
    #[inline]
    pub(crate) fn take(&self, worker: usize) -> Option<Vec<Handoff>> {
        let ring = &self.rings[worker];
        let batch = ring.batches.pop()?;
        ring.packets.fetch_sub(batch.len(), Ordering::Relaxed);
        Some(batch)
    }

    /// Keeps an empty list for a later batch.
    pub(crate) fn give_back(&self, worker: usize, empty: Vec<Handoff>) {
        // Where there are enough of them, it is released.
        let _ = self.rings[worker].empty.push(empty);
    }

    pub(crate) fn has_frames(&self, worker: usize) -> bool {
        !self.rings[worker].batches.is_empty()
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

    fn batch(frames: impl IntoIterator<Item = Frame>) -> Vec<Handoff> {
        let kind = HandoffKind::Egress;
        let handoff = |frame| Handoff { frame, port: PortId(1), epoch: 1, kind };
        frames.into_iter().map(handoff).collect()
    }

    fn indices<'a>(batch: impl IntoIterator<Item = &'a Handoff>) -> Vec<u32> {
        batch.into_iter().map(|it| it.frame.index()).collect()
    }

    #[test]
    fn frames_go_to_the_sender_in_order_and_to_nobody_else() {
        let exchange = Exchange::new(3, 2);
        let (_memory, frames) = Memory::heap(512, 4);
        exchange.set_owners(PortId(1), &[0, 1]);
        let sender = exchange.sender(2, PortId(1)).expect("a sender");
        let mut frames = frames.into_iter();
        for count in [1, 3] {
            let mut batch = batch(frames.by_ref().take(count));
            exchange.hand_over(sender, &mut batch);
            assert!(batch.is_empty());
        }
        let taken: Vec<_> = std::iter::from_fn(|| exchange.take(0)).flatten().collect();
        assert_eq!(indices(&taken), [0, 1, 2, 3]);
        assert!(taken.iter().all(|it| (it.port, it.kind) == (PortId(1), HandoffKind::Egress)));
        assert!(!exchange.has_frames(1) && !exchange.has_frames(2));
        assert_eq!(exchange.sender(1, PortId(1)), None, "it has a part of its own");
        assert_eq!(exchange.sender(1, PortId(0)), None);
    }

    /// Packets beyond a ring's room come back, the last ones of a batch first.
    #[test]
    fn a_ring_is_bounded_by_packets_and_by_batches() {
        let all = (RING + BATCH) as u32;
        let (_memory, frames) = Memory::heap(512, all);
        let mut frames = frames.into_iter();
        let exchange = Exchange::new(1, 1);
        for count in std::iter::repeat_n(BATCH, RING / BATCH - 1).chain([BATCH - 10]) {
            let mut batch = batch(frames.by_ref().take(count));
            exchange.hand_over(0, &mut batch);
            assert!(batch.is_empty());
        }
        let mut left = batch(frames.by_ref().take(BATCH));
        exchange.hand_over(0, &mut left);
        assert_eq!(indices(&left), (RING as u32..all - 10).collect::<Vec<_>>());
        exchange.hand_over(0, &mut left);
        assert_eq!(left.len(), BATCH - 10, "and comes back again");
        let taken: Vec<_> = std::iter::from_fn(|| exchange.take(0)).flatten().collect();
        assert_eq!(indices(&taken), (0..RING as u32).collect::<Vec<_>>());
        let frames = taken.into_iter().map(|it| it.frame);
        let mut handed = 0;
        for frame in frames {
            let mut batch = batch([frame]);
            exchange.hand_over(0, &mut batch);
            handed += 1 - batch.len();
        }
        assert_eq!(handed, BATCHES);
        assert_eq!(std::iter::from_fn(|| exchange.take(0)).count(), BATCHES);
        assert_eq!(exchange.rings[0].packets.load(Ordering::Relaxed), 0);
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
