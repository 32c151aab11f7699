//! Later fragments that came before their first.
//!
//! Each port has a queue, oldest first. A fragment ends without its first when it has waited
//! [`PATIENCE`], when its datagram or its port has too many waiting, or when the worker has: then
//! the port with the most gives up its oldest, so that a flood pushes out itself.

use std::collections::VecDeque;
use std::time::Duration;

use super::Datagram;
use crate::packet::Packet;
use crate::{Now, Outcome, PortId};

/// How long a fragment waits for its first. What is on its way in another order comes within
/// milliseconds.
const PATIENCE: Duration = Duration::from_secs(2);
/// Fragments of one datagram that wait: as many as a datagram of 64 KiB has where links carry
/// 576 bytes.
const MOST_OF_DATAGRAM: usize = 128;
/// Fragments from one port that wait.
const MOST_OF_PORT: usize = 256;
/// Frames that fragments of one worker wait in.
const MOST: usize = 1024;

struct Held {
    datagram: Datagram,
    until: Now,
    packet: Packet,
}

/// The fragments that wait for one worker.
pub(super) struct Waiting {
    /// By port number.
    ports: Vec<VecDeque<Held>>,
    /// Frames that are held.
    frames: usize,
    most: usize,
    /// Nobody's time is over before this.
    due: Now,
    /// Those whose first was let through.
    pub(super) ready: VecDeque<Packet>,
    /// Those that wait no longer; each has its outcome.
    pub(super) ended: Vec<Packet>,
}

impl Default for Waiting {
    fn default() -> Self {
        Self {
            ports: Vec::new(),
            frames: 0,
            most: MOST,
            due: Now::default(),
            ready: VecDeque::new(),
            ended: Vec::new(),
        }
    }
}

impl Waiting {
    /// Has fewer wait where there are few frames: an eighth of them at most.
    pub(super) fn fit(&mut self, frames: usize) {
        self.most = (frames / 8).clamp(1, MOST);
    }

    /// Has a fragment wait; what there is no room for ends.
    pub(super) fn hold(&mut self, datagram: Datagram, mut packet: Packet, now: Now) {
        let port = usize::from(packet.in_port.0);
        if self.ports.len() <= port {
            self.ports.resize_with(port + 1, VecDeque::new);
        }
        let queue = &self.ports[port];
        if queue.iter().filter(|held| held.datagram == datagram).count() >= MOST_OF_DATAGRAM {
            packet.outcome = Some(Outcome::FragmentLimit);
            self.ended.push(packet);
            return;
        }
        if queue.len() >= MOST_OF_PORT {
            self.push_out(port);
        }
        let frames = packet.frame.frames();
        while self.frames + frames > self.most {
            let most = (0..self.ports.len()).max_by_key(|port| self.ports[*port].len());
            let Some(most) = most.filter(|port| !self.ports[*port].is_empty()) else {
                packet.outcome = Some(Outcome::FragmentLimit);
                self.ended.push(packet);
                return;
            };
            self.push_out(most);
        }
        let until = Now(now.0.saturating_add(PATIENCE));
        if self.frames == 0 {
            self.due = until;
        }
        self.frames += frames;
        self.ports[port].push_back(Held { datagram, until, packet });
    }

    /// Ends the oldest of a port.
    fn push_out(&mut self, port: usize) {
        if let Some(oldest) = self.ports[port].pop_front() {
            self.end(oldest, Outcome::FragmentLimit);
        }
    }

    fn end(&mut self, mut held: Held, outcome: Outcome) {
        self.frames -= held.packet.frame.frames();
        held.packet.outcome = Some(outcome);
        self.ended.push(held.packet);
    }

    /// The first of a datagram was let through, or refused (`refused` says how the others end).
    pub(super) fn first_came(&mut self, datagram: &Datagram, refused: Option<Outcome>) {
        let port = usize::from(datagram.in_port.0);
        let Some(queue) = self.ports.get_mut(port).filter(|queue| !queue.is_empty()) else {
            return;
        };
        for held in std::mem::take(queue) {
            if held.datagram != *datagram {
                self.ports[port].push_back(held);
            } else if let Some(outcome) = refused {
                self.end(held, outcome);
            } else {
                self.frames -= held.packet.frame.frames();
                self.ready.push_back(held.packet);
            }
        }
    }

    /// Whether somebody's time may be over.
    #[inline]
    pub(super) fn is_due(&self, now: Now) -> bool {
        self.frames > 0 && now >= self.due
    }

    /// Ends those whose time is over.
    pub(super) fn expire(&mut self, now: Now) {
        let mut due = None;
        for port in 0..self.ports.len() {
            while let Some(held) = self.ports[port].pop_front_if(|held| held.until <= now) {
                self.end(held, Outcome::FragmentUnknown);
            }
            let next = self.ports[port].front().map(|held| held.until);
            due = [due, next].into_iter().flatten().min();
        }
        self.due = due.unwrap_or_default();
    }

    /// Ends those that came from a port that is gone.
    pub(super) fn forget(&mut self, port: PortId) {
        let Some(queue) = self.ports.get_mut(usize::from(port.0)) else { return };
        for held in std::mem::take(queue) {
            self.end(held, Outcome::PortGone);
        }
        let (gone, ready) = std::mem::take(&mut self.ready)
            .into_iter()
            .partition::<VecDeque<Packet>, _>(|packet| packet.in_port == port);
        self.ready = ready;
        for mut packet in gone {
            packet.outcome = Some(Outcome::PortGone);
            self.ended.push(packet);
        }
    }

    /// Everything that is held here, whatever for.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Packet> + use<'_> {
        self.frames = 0;
        let held = self.ports.iter_mut().flat_map(|queue| queue.drain(..));
        let held = held.map(|held| held.packet);
        held.chain(self.ready.drain(..)).chain(self.ended.drain(..))
    }
}
