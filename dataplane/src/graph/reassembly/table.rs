//! Table of fragmented datagrams, one entry each.
//!
//! ```text
//!   port ─▶ datagram ─▶ entry: what became of the first fragment, or the later ones held for it
//! ```
//!
//! Every port has a table of its own with bounds of its own, so that fragments without end push
//! out those of the same port and nothing else. Behind a port with many senders (the uplink) the
//! oldest entry of a sender that has more than its share goes first. A fragment that is held ends
//! without its first after [`PATIENCE`], or when a bound is reached.

use std::time::Duration;

use super::datagram::{Datagram, First};
use super::port_table::{Entry, MOST_OF_PORT, PortTable};
use crate::graph::waiting::Released;
use crate::packet::Packet;
use crate::{Now, Outcome, PortId};

/// Time that later fragments may take (RFC 8200, section 4.5, gives them 60 seconds; RFC 791
/// suggests 15).
const MEMORY: Duration = Duration::from_secs(30);
/// Time for which a fragment is held for its first. What is on its way in another order comes within
/// milliseconds.
const PATIENCE: Duration = Duration::from_secs(2);
/// Datagrams of one port.
const MOST_DATAGRAMS: usize = 1024;
/// Fragments of one datagram that are held: as many as a datagram of 64 KiB has where links carry
/// 576 bytes.
const MOST_OF_DATAGRAM: usize = 128;
/// Frames that fragments of one worker are held in.
const MOST_FRAMES: usize = 1024;

/// One worker's table.
pub(crate) struct Table {
    /// By port number.
    ports: Vec<PortTable>,
    /// Frames that are held, and the most that may be.
    frames: usize,
    most_frames: usize,
    /// No fragment's time is over before this.
    due: Now,
    /// Whether the vector under way has a first fragment.
    has_first: bool,
}

impl Default for Table {
    fn default() -> Self {
        Self {
            ports: Vec::new(),
            frames: 0,
            most_frames: MOST_FRAMES,
            due: Now::default(),
            has_first: false,
        }
    }
}

impl Table {
    /// Notes that the vector under way has a first fragment.
    #[inline]
    pub(in crate::graph) fn note_first(&mut self) {
        self.has_first = true;
    }

    pub(super) fn take_has_first(&mut self) -> bool {
        std::mem::take(&mut self.has_first)
    }

    /// Outcome of a datagram's first fragment.
    pub(super) fn first(&self, datagram: &Datagram, now: Now) -> Option<First> {
        let entry = self.ports.get(datagram.port())?.entries.get(datagram)?;
        entry.first.filter(|_| now.0.saturating_sub(entry.since.0) <= MEMORY)
    }

    /// Remembers what became of a first fragment, and releases those held for it.
    pub(in crate::graph) fn decide(
        &mut self,
        datagram: Datagram,
        first: First,
        now: Now,
        released: &mut Released,
    ) {
        let entry = self.entry(datagram, now, released);
        (entry.first, entry.since) = (Some(first), now);
        let held = std::mem::take(&mut entry.held);
        self.release(&datagram, held, first.end(), released);
    }

    /// Holds a later fragment until its first comes; what there is no room for ends.
    pub(in crate::graph) fn hold(&mut self, packet: Packet, now: Now, released: &mut Released) {
        let Some(datagram) = Datagram::of(&packet) else {
            return released.push(packet, Some(Outcome::FragmentUnknown));
        };
        // Its first may have been decided about later in the vector that the fragment came with.
        if let Some(first) = self.first(&datagram, now) {
            return released.push(packet, first.end());
        }
        if self.entry(datagram, now, released).held.len() >= MOST_OF_DATAGRAM {
            return released.push(packet, Some(Outcome::FragmentLimit));
        }
        while self.ports[datagram.port()].held >= MOST_OF_PORT {
            self.push_out(datagram.port(), released);
        }
        let frames = packet.frame.frames();
        while self.frames + frames > self.most_frames {
            let most = (0..self.ports.len()).max_by_key(|port| self.ports[*port].held);
            let Some(most) = most.filter(|port| self.ports[*port].held > 0) else {
                return released.push(packet, Some(Outcome::FragmentLimit));
            };
            self.push_out(most, released);
        }
        if self.frames == 0 {
            self.due = Now(now.0.saturating_add(PATIENCE));
        }
        self.frames += frames;
        // What pushed others out may have been its own datagram's.
        let entry = self.entry(datagram, now, released);
        let is_new = entry.held.is_empty();
        if is_new {
            (entry.first, entry.since) = (None, now);
        }
        entry.held.push(packet);
        let port = &mut self.ports[datagram.port()];
        port.held += 1;
        port.senders.entry(datagram.source).or_default().held += 1;
        if is_new {
            port.hold(datagram);
        }
    }

    /// The entry of a datagram, which may be new and push out another one.
    fn entry(&mut self, datagram: Datagram, now: Now, released: &mut Released) -> &mut Entry {
        if self.ports.len() <= datagram.port() {
            self.ports.resize_with(datagram.port() + 1, PortTable::default);
        }
        if !self.ports[datagram.port()].entries.contains_key(&datagram) {
            let port = &mut self.ports[datagram.port()];
            if port.order.len() >= MOST_DATAGRAMS
                && let Some((oldest, held)) = port.remove_oldest()
            {
                self.release(&oldest, held, Some(Outcome::FragmentLimit), released);
            }
        }
        self.ports[datagram.port()].entry(datagram, now)
    }

    /// Ends the fragments held for the oldest datagram of a port that has some.
    fn push_out(&mut self, port: usize, released: &mut Released) {
        if let Some((oldest, held)) = self.ports[port].take_oldest_held() {
            self.release(&oldest, held, Some(Outcome::FragmentLimit), released);
        }
    }

    fn release(
        &mut self,
        datagram: &Datagram,
        held: Vec<Packet>,
        end: Option<Outcome>,
        released: &mut Released,
    ) {
        for packet in held {
            self.note_released(datagram, &packet);
            released.push(packet, end);
        }
    }

    /// Counts a fragment that is held no longer.
    fn note_released(&mut self, datagram: &Datagram, packet: &Packet) {
        self.frames -= packet.frame.frames();
        let port = &mut self.ports[datagram.port()];
        port.held -= 1;
        if let Some(sender) = port.senders.get_mut(&datagram.source) {
            sender.held -= 1;
        }
        port.forget_idle(datagram.source);
    }

    /// Bounds what is held by the number of frames there are: an eighth of them at most.
    pub(in crate::graph) fn fit(&mut self, frames: usize) {
        self.most_frames = (frames / 8).clamp(1, MOST_FRAMES);
    }

    /// Whether a fragment's time may be over.
    #[inline]
    pub(in crate::graph) fn is_due(&self, now: Now) -> bool {
        self.frames > 0 && now >= self.due
    }

    /// Ends fragments whose time is over.
    pub(in crate::graph) fn expire(&mut self, now: Now, released: &mut Released) {
        let mut due = None;
        for port in 0..self.ports.len() {
            while let Some(next) = self.ports[port].oldest_held() {
                let until = self.ports[port].entries[&next].since.0.saturating_add(PATIENCE);
                if until > now.0 {
                    due = [due, Some(Now(until))].into_iter().flatten().min();
                    break;
                }
                self.ports[port].holding.pop_front();
                let held = self.ports[port].take_held(&next);
                self.release(&next, held, Some(Outcome::FragmentUnknown), released);
            }
        }
        self.due = due.unwrap_or_default();
    }

    /// Forgets everything about a port that is gone, and releases what it held.
    pub(in crate::graph) fn forget(&mut self, port: PortId, released: &mut Released) {
        let Some(table) = self.ports.get_mut(usize::from(port.0)).map(std::mem::take) else {
            return;
        };
        for packet in table.entries.into_values().flat_map(|entry| entry.held) {
            self.frames -= packet.frame.frames();
            released.push(packet, None);
        }
    }

    /// Takes every fragment.
    pub(in crate::graph) fn take_all(&mut self) -> impl Iterator<Item = Packet> + use<> {
        self.frames = 0;
        let ports = std::mem::take(&mut self.ports);
        let entries = ports.into_iter().flat_map(|port| port.entries.into_values());
        entries.flat_map(|entry| entry.held)
    }
}
