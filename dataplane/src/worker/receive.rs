//! The receive side of a worker.

use super::Worker;
use super::slots::Slot;
use crate::capture::Direction;
use crate::port::Buffers;
use crate::{Now, Outcome, Packet, VECTOR};

impl Worker {
    /// Receives up to a burst of one port, and runs the vector when it has no room for another.
    pub(super) fn serve(&mut self, slot: usize, burst: usize, now: Now) -> usize {
        let most = burst.min(VECTOR - self.packets.len());
        let Some(Slot { id, port, counters, is_part, is_trunk, captures, silent, .. }) =
            self.slots.at(slot)
        else {
            return 0;
        };
        let mut buffers = Buffers { memory: &self.memory, free: &mut self.free };
        let received = port.receive(&mut buffers, most, &mut self.frames);
        if !captures.is_empty() {
            captures.iter().for_each(|it| it.record(&self.memory, &self.frames, Direction::In));
        }
        let (id, is_part, is_trunk) = (*id, *is_part, *is_trunk);
        let count = self.frames.len();
        if self.frames.first().is_some_and(|it| !it.is_copy()) {
            self.arrived = now;
        }
        *silent = if count > 0 { 0 } else { silent.saturating_add(1) };
        if count > 0 {
            counters.received.add(count as u64);
            counters.received_bytes.add(self.frames.iter().map(|frame| frame.len() as u64).sum());
        }
        if is_part {
            self.hand_fragments_on(id);
        }
        if !is_trunk {
            self.packets.extend(self.frames.drain(..).map(|frame| Packet::new(frame, id)));
        }
        for mut frame in self.frames.drain(..) {
            match self.slots.ingress(id, is_trunk, &mut frame, &self.memory) {
                Some(port) => self.packets.push(Packet::new(frame, port)),
                None => {
                    self.free.put(frame);
                    self.counters.count(Outcome::PortGone);
                }
            }
        }
        if let Err(gone) = received {
            self.mailbox.report_gone(id, gone);
            self.remove_port(id);
        }
        self.make_room(now);
        count
    }
}
