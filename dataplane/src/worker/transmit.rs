//! The transmit side of a worker.

use super::Worker;
use crate::port::{Buffers, MOST_FRAMES, PortGone};
use crate::{Frame, Now, Outcome, Packet, PortId};

impl Worker {
    /// Queues the packets of a vector for their ports; frees or holds those that do not leave.
    pub(super) fn enqueue_vector(&mut self, now: Now) {
        if let Some(inspect) = self.inspect.as_mut().filter(|inspect| inspect.is_wanted()) {
            for packet in &self.packets {
                match packet.outcome {
                    Some(_) => inspect.done(packet, &self.snapshot),
                    None => inspect.waits(packet),
                }
            }
            for it in self.graph.differences() {
                let packet = &self.packets[usize::from(it.packet)];
                if matches!(packet.outcome, Some(Outcome::PolicyAllowed | Outcome::PolicyDenied)) {
                    inspect.differs(packet, &it.decision, &self.snapshot);
                }
            }
        }
        let mut packets = std::mem::take(&mut self.packets);
        let mut left = &mut packets[..];
        while let [first, ..] = left {
            // Packets of a vector often leave by one port.
            let port = first.out_port;
            let leaves = |packet: &&Packet| packet.out_port == port && is_sent(packet);
            let count = left.iter().take_while(leaves).count();
            let (leaving, rest) = std::mem::take(&mut left).split_at_mut(count);
            left = rest;
            if count > 0 {
                let frames = leaving.iter_mut().map(|packet| packet.frame.take());
                match self.slots.place_of(port) {
                    Some(place) => self.slots.enqueue_at(place, frames, &self.memory),
                    None => self.enqueue_elsewhere(frames, port),
                }
            } else if let Some((packet, rest)) = std::mem::take(&mut left).split_first_mut() {
                self.free_or_hold(packet, now);
                left = rest;
            }
        }
        // Their frames are elsewhere now.
        packets.clear();
        self.packets = packets;
    }

    /// Frees the frame of a packet that does not leave, or holds it.
    #[inline]
    fn free_or_hold(&mut self, packet: &mut Packet, now: Now) {
        match packet.outcome {
            Some(_) => self.free.put(packet.frame.take()),
            None => {
                let none = Packet::new(Frame::NONE, PortId::NONE);
                self.graph.waiting.hold(std::mem::replace(packet, none), now);
            }
        }
    }

    /// Passes frames to the trunk of their port, or to another worker.
    fn enqueue_elsewhere(&mut self, frames: impl Iterator<Item = Frame>, port: PortId) {
        if self.slots.of(port).is_none() {
            return self.hand_over(frames, port);
        }
        for frame in frames {
            if let Err(frame) = self.slots.enqueue(port, frame, &self.memory) {
                self.hand_over(std::iter::once(frame), port);
            }
        }
    }

    /// Sends resets and fragments that needed frames of their own.
    #[inline]
    pub(super) fn send_extras(&mut self) {
        while let Some(packet) = self.graph.take_extra() {
            if packet.leaves() {
                self.enqueue_elsewhere(std::iter::once(packet.frame), packet.out_port);
            } else {
                self.free.put(packet.frame);
            }
        }
    }

    pub(super) fn send(&mut self) {
        // The others first: sending may take a while.
        self.pass_on();
        let mut gone = Vec::new();
        for slot in self.slots.iter_mut() {
            if slot.queued.is_empty() && !slot.port.is_sending() {
                continue;
            }
            if !slot.captures.is_empty() {
                slot.capture_leaving(&self.memory);
            }
            let (count, bytes) = (slot.queued.len(), bytes(&slot.queued));
            let mut buffers = Buffers { memory: &self.memory, free: &mut self.free };
            if let Err(reason) = slot.port.send(&mut buffers, &mut slot.queued) {
                gone.push((slot.id, reason));
            }
            let refused = slot.queued.len();
            slot.counters.sent.add((count - refused) as u64);
            slot.counters.sent_bytes.add(bytes - self::bytes(&slot.queued));
            for frame in slot.queued.drain(..) {
                let is_long = frame.frames() > MOST_FRAMES;
                let outcome = if is_long { Outcome::TooManyFrames } else { Outcome::TxFull };
                self.free.put(frame);
                self.counters.count(outcome);
                slot.counters.refused.add(1);
            }
        }
        self.give_up(gone);
    }

    /// Reports ports that are gone, and serves them no more.
    pub(super) fn give_up(&mut self, ports: Vec<(PortId, PortGone)>) {
        for (id, reason) in ports {
            self.mailbox.report_gone(id, reason);
            self.remove_port(id);
        }
    }
}

/// Whether a packet is sent now. An answer that is held has its way out already; what was forwarded beside the
/// workers has left, and a reply to it has not.
#[inline]
fn is_sent(packet: &Packet) -> bool {
    packet.outcome.is_some() && packet.leaves() && (packet.is_reply || !packet.frame.is_copy())
}

fn bytes(frames: &[Frame]) -> u64 {
    frames.iter().map(|frame| frame.len() as u64).sum()
}
