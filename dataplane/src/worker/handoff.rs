//! Hand-offs between workers.

use std::cell::Cell;

use super::Worker;
use crate::exchange::{self, Handoff, HandoffKind};
use crate::wire::datagram;
use crate::{Counters, Frame, FreeList, Now, Outcome, Packet, PortId, VECTOR};

impl Worker {
    /// Hands fragments that were received on one of several parts of a port to the worker that
    /// handles their datagrams.
    pub(super) fn hand_fragments_on(&mut self, id: PortId) {
        let mut frames = std::mem::take(&mut self.frames);
        let handler = Cell::new(self.number);
        let is_elsewhere = |frame: &mut Frame| {
            let datagram = datagram::of_fragment(self.memory.bytes(frame), frame.len());
            let worker = datagram.and_then(|datagram| self.exchange.handler(id, &datagram));
            handler.set(worker.unwrap_or(self.number));
            handler.get() != self.number
        };
        let fragments: Vec<_> =
            frames.extract_if(.., is_elsewhere).map(|frame| (handler.get(), frame)).collect();
        self.frames = frames;
        for (worker, frame) in fragments {
            self.queue(worker, std::iter::once(frame), id, HandoffKind::Ingress);
        }
    }

    /// Hands packets that leave by another worker's port to that worker.
    pub(super) fn hand_over(&mut self, frames: impl Iterator<Item = Frame>, port: PortId) {
        match self.exchange.sender(self.number, port) {
            Some(worker) => self.queue(worker, frames, port, HandoffKind::Egress),
            None => frames
                .for_each(|frame| end(frame, Outcome::PortGone, &mut self.free, &self.counters)),
        }
    }

    /// Queues packets for another worker.
    fn queue(
        &mut self,
        worker: usize,
        frames: impl Iterator<Item = Frame>,
        port: PortId,
        kind: HandoffKind,
    ) {
        let epoch = self.exchange.epoch(port);
        for frame in frames {
            let batch = &mut self.outgoing[worker];
            batch.push(Handoff { frame, port, epoch, kind });
            if batch.len() == exchange::BATCH {
                self.pass(worker);
            }
        }
    }

    /// Passes what is queued for another worker.
    fn pass(&mut self, worker: usize) {
        let batch = &mut self.outgoing[worker];
        self.exchange.hand_over(worker, batch);
        for refused in batch.drain(..) {
            end(refused.frame, Outcome::HandoffFull, &mut self.free, &self.counters);
        }
        if !self.to_wake.contains(&worker) {
            self.to_wake.push(worker);
        }
    }

    /// Passes what is queued for other workers, and wakes those that got something.
    pub(super) fn pass_on(&mut self) {
        for worker in 0..self.outgoing.len() {
            if !self.outgoing[worker].is_empty() {
                self.pass(worker);
            }
        }
        self.to_wake.drain(..).for_each(|worker| self.exchange.wake(worker));
    }

    /// Takes a vector of hand-offs from other workers: packets to transmit, and packets to process. The
    /// vector has room for all of them, and for a burst afterwards.
    pub(super) fn take_handoffs(&mut self, now: Now) -> usize {
        let mut taken = 0;
        while taken + exchange::BATCH <= VECTOR
            && let Some(mut batch) = self.exchange.take(self.number)
        {
            taken += batch.len();
            // Packets of a batch often leave by one port.
            let is_alike = |one: &Handoff, other: &Handoff| {
                (one.port, one.epoch, one.kind) == (other.port, other.epoch, other.kind)
            };
            batch.chunk_by_mut(is_alike).for_each(|alike| self.accept(alike));
            batch.clear();
            self.exchange.give_back(self.number, batch);
        }
        if taken > 0 {
            self.arrived = now;
        }
        self.make_room(now);
        taken
    }

    /// Takes hand-offs of one port and kind, of which there is one at least.
    fn accept(&mut self, handoffs: &mut [Handoff]) {
        let (port, kind) = (handoffs[0].port, handoffs[0].kind);
        let serves = self.slots.serves(&handoffs[0]);
        let place = self.slots.place_of(port).filter(|_| serves && kind == HandoffKind::Egress);
        let is_trunk = self.slots.of(port).is_some_and(|slot| slot.is_trunk);
        let frames = handoffs.iter_mut().map(|handoff| handoff.frame.take());
        if let Some(place) = place {
            return self.slots.enqueue_at(place, frames, &self.memory);
        }
        for mut frame in frames {
            let refused = if !serves {
                Some(frame)
            } else if kind == HandoffKind::Egress {
                self.slots.enqueue(port, frame, &self.memory).err()
            } else {
                match self.slots.ingress(port, is_trunk, &mut frame, &self.memory) {
                    Some(port) => {
                        self.packets.push(Packet::new(frame, port));
                        None
                    }
                    None => Some(frame),
                }
            };
            if let Some(frame) = refused {
                end(frame, Outcome::PortGone, &mut self.free, &self.counters);
            }
        }
    }
}

/// Ends a packet that could not be handed to another worker.
#[cold]
fn end(frame: Frame, outcome: Outcome, free: &mut FreeList, counters: &Counters) {
    free.put(frame);
    counters.count(outcome);
}
