//! Answers that wait for the control side.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::dns::{DnsTap, MAX_HOLD, MOST_HELD, MOST_HELD_OF_POD};
use crate::graph::waiting::Released;
use crate::packet::Packet;
use crate::{Now, PortId};

/// One worker's held answers.
#[derive(Default)]
pub(crate) struct HeldAnswers {
    pub(super) tap: Option<Arc<DnsTap>>,
    pub(super) worker: u16,
    /// In the order in which they came.
    held: VecDeque<Held>,
    /// The number of the last ticket.
    last: u64,
    /// The ports of tickets whose packets are still in the graph.
    promised: Vec<PortId>,
    most: Option<usize>,
}

struct Held {
    until: Now,
    packet: Packet,
}

impl HeldAnswers {
    /// Sends copies to `tap` from now on, as worker number `worker`.
    pub(in crate::graph) fn follow(&mut self, worker: u16, tap: Arc<DnsTap>) {
        (self.worker, self.tap) = (worker, Some(tap));
    }

    /// Bounds the held answers by the number of frames.
    pub(in crate::graph) fn fit(&mut self, frames: usize) {
        self.most = Some((frames / 16).max(1));
    }

    /// The number of the next answer to hold; `None` if there is no room for one of this pod.
    pub(super) fn ticket(&mut self, pod: PortId) -> Option<u64> {
        let most = self.most.map_or(MOST_HELD, |most| most.min(MOST_HELD));
        let held = self.held.iter().map(|it| it.packet.out_port);
        let of_pod = held.chain(self.promised.iter().copied()).filter(|port| *port == pod).count();
        // One of each pod may always be held.
        let is_full = self.held.len() + self.promised.len() >= most && of_pod > 0;
        if is_full || of_pod >= MOST_HELD_OF_POD {
            if let Some(tap) = &self.tap {
                tap.unheld.fetch_add(1, Ordering::Relaxed);
            }
            return None;
        }
        self.last += 1;
        self.promised.push(pod);
        Some(self.last)
    }

    /// Gives a ticket of this pod back.
    pub(super) fn give_back(&mut self, pod: PortId) {
        if let Some(at) = self.promised.iter().position(|port| *port == pod) {
            self.promised.swap_remove(at);
        }
    }

    /// Holds a packet whose hash is its ticket's number.
    pub(in crate::graph) fn hold(&mut self, packet: Packet, now: Now) {
        self.give_back(packet.out_port);
        let max_hold = self.tap.as_ref().map_or(MAX_HOLD, |tap| tap.max_hold);
        self.held.push_back(Held { until: Now(now.0 + max_hold), packet });
    }

    /// Releases answers by the numbers of their tickets.
    pub(in crate::graph) fn release(&mut self, numbers: &[u64], released: &mut Released) {
        for number in numbers {
            if let Some(at) = self.held.iter().position(|it| it.packet.hash == *number)
                && let Some(held) = self.held.remove(at)
            {
                released.push(held.packet, None);
            }
        }
    }

    /// Releases answers whose time is over.
    pub(in crate::graph) fn expire(&mut self, now: Now, released: &mut Released) {
        while let Some(held) = self.held.pop_front_if(|it| it.until <= now) {
            if let Some(tap) = &self.tap {
                tap.late.fetch_add(1, Ordering::Relaxed);
            }
            released.push(held.packet, None);
        }
    }

    /// Releases answers that came from or go to a port that is gone.
    pub(in crate::graph) fn forget(&mut self, port: PortId, released: &mut Released) {
        let is_gone = |it: &Held| it.packet.out_port == port || it.packet.in_port == port;
        let (gone, kept) = self.held.drain(..).partition::<VecDeque<Held>, _>(is_gone);
        self.held = kept;
        gone.into_iter().for_each(|held| released.push(held.packet, None));
    }

    /// Takes every answer.
    pub(in crate::graph) fn take_all(&mut self) -> impl Iterator<Item = Packet> + use<'_> {
        self.held.drain(..).map(|held| held.packet)
    }
}
