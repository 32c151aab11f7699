//! Packets that wait outside of the graph, and their one way back into it.
//!
//! ```text
//!   reassembly ─▶ hold ─▶ fragments, until their first is decided about ─┬─▶ released ─▶ the node that held them
//!   dns        ─▶ hold ─▶ answers, until their addresses are in force ───┘
//! ```
//!
//! A packet that is released goes on from the node that held it. One that ends meanwhile (its time is over, there
//! is no room for it, or its port has gone) has its outcome, and enters no node.

use std::collections::VecDeque;
use std::sync::Arc;

use super::Node;
use super::dns::HeldAnswers;
use super::reassembly::{Datagram, First, Table};
use crate::dns::DnsTap;
use crate::packet::{Packet, VECTOR};
use crate::{Now, Outcome, PortId};

/// One worker's waiting packets.
#[derive(Default)]
pub(crate) struct Waiting {
    pub(super) fragments: Table,
    pub(super) answers: HeldAnswers,
    released: Released,
}

/// Packets that wait no longer, in the order in which they enter the graph again.
#[derive(Default)]
pub(super) struct Released(VecDeque<Packet>);

impl Released {
    /// Adds a packet that goes on, or that ends with an outcome.
    pub(super) fn push(&mut self, mut packet: Packet, end: Option<Outcome>) {
        packet.outcome = end;
        self.0.push_back(packet);
    }
}

impl Waiting {
    /// Sends copies of the DNS of pods that follow names to `tap`, as worker number `worker`.
    pub(crate) fn follow_dns(&mut self, worker: u16, tap: Arc<DnsTap>) {
        self.answers.follow(worker, tap);
    }

    /// Bounds the waiting packets by the number of frames.
    pub(crate) fn fit(&mut self, frames: usize) {
        self.fragments.fit(frames);
        self.answers.fit(frames);
    }

    /// Holds a packet that the graph gave no outcome.
    pub(crate) fn hold(&mut self, packet: Packet, now: Now) {
        match node_of(&packet) {
            Node::Dns => self.answers.hold(packet, now),
            _ => self.fragments.hold(packet, now, &mut self.released),
        }
    }

    /// Releases answers by the numbers of their tickets.
    pub(crate) fn release_answers(&mut self, numbers: &[u64]) {
        self.answers.release(numbers, &mut self.released);
    }

    /// Releases fragments whose first has been decided about.
    pub(super) fn decide(&mut self, datagram: Datagram, first: First, now: Now) {
        self.fragments.decide(datagram, first, now, &mut self.released);
    }

    /// Releases packets whose time is over: answers go on, fragments end.
    #[inline]
    pub(crate) fn expire(&mut self, now: Now) {
        self.answers.expire(now, &mut self.released);
        if self.fragments.is_due(now) {
            self.fragments.expire(now, &mut self.released);
        }
    }

    /// Removes the state of a port that is gone; its packets end.
    pub(crate) fn forget_port(&mut self, port: PortId) {
        self.fragments.forget(port, &mut self.released);
        self.answers.forget(port, &mut self.released);
        for packet in &mut self.released.0 {
            if packet.in_port == port || packet.out_port == port {
                packet.outcome.get_or_insert(Outcome::PortGone);
            }
        }
    }

    /// Moves up to a vector of released packets to `packets`.
    #[inline]
    pub(super) fn take_released(&mut self, packets: &mut Vec<Packet>) {
        let count = self.released.0.len().min(VECTOR);
        packets.extend(self.released.0.drain(..count));
    }

    /// Takes every packet.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Packet> + use<'_> {
        self.released.0.drain(..).chain(self.fragments.take_all()).chain(self.answers.take_all())
    }
}

/// The node that held a packet. An answer has its way out already.
pub(super) fn node_of(packet: &Packet) -> Node {
    if packet.out_port == PortId::NONE { Node::Reassembly } else { Node::Dns }
}
