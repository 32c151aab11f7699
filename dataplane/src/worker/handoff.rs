//! Hand-offs between workers.

use std::cell::Cell;

use super::Worker;
use crate::exchange::{HandoffKind, Refused};
use crate::wire::datagram;
use crate::{Counters, Frame, FreeList, Outcome, Packet, PortId, VECTOR};

impl Worker {
    /// Hands fragments that were received on one of several parts of a port to the worker that
    /// handles their datagrams.
    pub(super) fn hand_fragments_on(&mut self, id: PortId) {
        let Self { number, memory, exchange, frames, free, counters, left, .. } = self;
        let handler = Cell::new(*number);
        let is_elsewhere = |frame: &mut Frame| {
            let datagram = datagram::of_fragment(memory.bytes(frame), frame.len());
            let worker = datagram.and_then(|datagram| exchange.handler(id, &datagram));
            handler.set(worker.unwrap_or(*number));
            handler.get() != *number
        };
        for fragment in frames.extract_if(.., is_elsewhere) {
            match exchange.hand_in(handler.get(), fragment, id) {
                Ok(worker) => note(left, worker),
                Err(refused) => end(refused, free, counters),
            }
        }
    }

    /// Hands a packet that leaves by another worker's port to that worker.
    #[inline]
    pub(super) fn hand_over(&mut self, frame: Frame, port: PortId) {
        match self.exchange.hand_over(self.number, frame, port) {
            Ok(worker) => note(&mut self.left, worker),
            Err(refused) => end(refused, &mut self.free, &self.counters),
        }
    }

    /// Wakes the workers that got hand-offs.
    pub(super) fn wake_others(&mut self) {
        self.left.drain(..).for_each(|worker| self.exchange.wake(worker));
    }

    /// Takes hand-offs from other workers: packets to transmit, and packets to process.
    pub(super) fn take_handoffs(&mut self) -> usize {
        let mut taken = 0;
        while taken < VECTOR
            && let Some(handoff) = self.exchange.take(self.number)
        {
            taken += 1;
            let serves = self.slots.serves(&handoff);
            let mut frame = handoff.frame;
            let refused = if !serves {
                Some(frame)
            } else if handoff.kind == HandoffKind::Egress {
                self.slots.leave(handoff.port, frame, &self.memory).err()
            } else {
                let is_trunk = self.slots.of(handoff.port).is_some_and(|slot| slot.is_trunk);
                match self.slots.ingress(handoff.port, is_trunk, &mut frame, &self.memory) {
                    Some(port) => {
                        self.packets.push(Packet::new(frame, port));
                        None
                    }
                    None => Some(frame),
                }
            };
            if let Some(frame) = refused {
                end(Refused::NoWorker(frame), &mut self.free, &self.counters);
            }
        }
        taken
    }
}

#[inline]
fn note(left: &mut Vec<usize>, worker: usize) {
    if !left.contains(&worker) {
        left.push(worker);
    }
}

/// Ends a packet that could not be handed to another worker.
#[cold]
fn end(refused: Refused, free: &mut FreeList, counters: &Counters) {
    let (frame, outcome) = match refused {
        Refused::NoWorker(frame) => (frame, Outcome::PortGone),
        Refused::Full(frame) => (frame, Outcome::HandoffFull),
    };
    free.put(frame);
    counters.count(outcome);
}
