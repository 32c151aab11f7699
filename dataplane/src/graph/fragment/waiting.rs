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
/// Fragments that wait for one worker.
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
    count: usize,
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
            count: 0,
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
        let full = if queue.len() >= MOST_OF_PORT {
            Some(port)
        } else if self.count >= self.most {
            (0..self.ports.len()).max_by_key(|port| self.ports[*port].len())
        } else {
            None
        };
        if let Some(mut oldest) = full.and_then(|port| self.ports[port].pop_front()) {
            oldest.packet.outcome = Some(Outcome::FragmentLimit);
            self.ended.push(oldest.packet);
            self.count -= 1;
        }
        let until = Now(now.0.saturating_add(PATIENCE));
        if self.count == 0 {
            self.due = until;
        }
        self.ports[port].push_back(Held { datagram, until, packet });
        self.count += 1;
    }

    /// The first of a datagram was let through, or refused (`refused` says how the others end).
    pub(super) fn first_came(&mut self, datagram: &Datagram, refused: Option<Outcome>) {
        let port = usize::from(datagram.in_port.0);
        let Some(queue) = self.ports.get_mut(port).filter(|queue| !queue.is_empty()) else {
            return;
        };
        for mut held in std::mem::take(queue) {
            if held.datagram != *datagram {
                self.ports[port].push_back(held);
                continue;
            }
            self.count -= 1;
            held.packet.outcome = refused;
            match refused {
                None => self.ready.push_back(held.packet),
                Some(_) => self.ended.push(held.packet),
            }
        }
    }

    /// Whether somebody's time may be over.
    #[inline]
    pub(super) fn is_due(&self, now: Now) -> bool {
        self.count > 0 && now >= self.due
    }

    /// Ends those whose time is over.
    pub(super) fn expire(&mut self, now: Now) {
        let mut due = None;
        for queue in &mut self.ports {
            while let Some(mut held) = queue.pop_front_if(|held| held.until <= now) {
                held.packet.outcome = Some(Outcome::FragmentUnknown);
                self.ended.push(held.packet);
                self.count -= 1;
            }
            due = [due, queue.front().map(|held| held.until)].into_iter().flatten().min();
        }
        self.due = due.unwrap_or_default();
    }

    /// Ends those that came from a port that is gone.
    pub(super) fn forget(&mut self, port: PortId) {
        let Some(queue) = self.ports.get_mut(usize::from(port.0)) else { return };
        for mut held in std::mem::take(queue) {
            held.packet.outcome = Some(Outcome::PortGone);
            self.ended.push(held.packet);
            self.count -= 1;
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
        self.count = 0;
        let held = self.ports.iter_mut().flat_map(|queue| queue.drain(..));
        let held = held.map(|held| held.packet);
        held.chain(self.ready.drain(..)).chain(self.ended.drain(..))
    }
}
