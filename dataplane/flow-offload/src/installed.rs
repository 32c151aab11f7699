//! A connection with entries, and what was counted about it.

use std::time::Duration;

use ahash::AHashMap;
use dataplane::session::{Found, Owner, SessionId, Tuples};
use dataplane::wire::tcp_flags;
use dataplane::{PortId, Switch};

use crate::entries::Entries;
use crate::layout::{Ended, FlowEntry, FlowKey, GUARDS, role};
use crate::shares::Ticket;

/// Attempts to write a note into a session.
const ATTEMPTS: usize = 8;

/// Packets and bytes that the kernel forwarded for a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortUsage {
    /// Packets that its pod sent; segments that are still to be cut count each.
    pub received: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Packets that its pod got.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
}

/// A connection with entries.
pub(crate) struct Installed {
    pub(crate) keys: [Option<FlowKey>; 2],
    pub(crate) guards: [u32; GUARDS],
    pub(crate) generations: [u32; GUARDS],
    /// The initiator's and the responder's.
    pub(crate) ports: [PortId; 2],
    pub(crate) tuples: Tuples,
    /// In whose share, and where there.
    pub(crate) owner: Owner,
    pub(crate) ticket: Ticket,
    /// Second at which it was entered.
    pub(crate) entered_s: u32,
    /// The last reading of each direction.
    pub(crate) read: [Reading; 2],
    /// Readings begun before it was entered.
    pub(crate) readings: u64,
    /// The pass that saw the session last.
    pub(crate) pass: u64,
}

/// Counters that the programs write into an entry.
#[derive(Clone, Copy, Default)]
pub(crate) struct Reading {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    /// Monotonic time of the last packet.
    pub(crate) used_ns: u64,
    /// Whether one had a FIN.
    pub(crate) had_fin: u8,
    pub(crate) role: u32,
    pub(crate) by_template: bool,
}

impl Reading {
    pub(crate) fn of(entry: &FlowEntry) -> Self {
        let FlowEntry { packets, bytes, used_ns, had_fin, role, by_template, .. } = *entry;
        Self { packets, bytes, used_ns, had_fin, role, by_template: by_template != 0 }
    }

    /// The last state of both entries of a connection that has ended.
    pub(crate) fn of_ended(ended: &Ended) -> [Self; 2] {
        let Ended { packets, bytes, used_ns, by_template, .. } = *ended;
        let of = |n: usize, role| Self {
            packets: packets[n],
            bytes: bytes[n],
            used_ns: used_ns[n],
            had_fin: 1,
            role,
            by_template,
        };
        [of(0, role::INITIATOR), of(1, role::RESPONDER)]
    }

    fn used_s(&self) -> u32 {
        Duration::from_nanos(self.used_ns).as_secs() as u32
    }
}

impl Installed {
    /// Whether `made` takes the places of these entries, with the same guards. A port that is served
    /// anew has another number, and may have the same interface.
    pub(crate) fn is_replaced_by(&self, made: &Entries) -> bool {
        self.keys == made.keys() && self.guards == made.guarded().guards
    }

    /// Second of its last packet that is known, or of its entry.
    pub(crate) fn last_used_s(&self) -> u32 {
        let used_s = self.read.iter().map(Reading::used_s);
        used_s.fold(self.entered_s, u32::max)
    }

    /// Takes note of what an entry counted: for its ports, and for the session that is in use.
    pub(crate) fn note(
        &mut self,
        switch: &Switch,
        id: &SessionId,
        direction: usize,
        now: Reading,
        of_ports: &mut AHashMap<PortId, PortUsage>,
    ) {
        let before = std::mem::replace(&mut self.read[direction], now);
        // A program may be between a FIN and its count while the entry is read.
        let is_used = now.used_ns > before.used_ns || now.packets != before.packets;
        if !is_used && now.had_fin == before.had_fin {
            return;
        }
        let packets = now.packets.saturating_sub(before.packets);
        let bytes = now.bytes.saturating_sub(before.bytes);
        count(of_ports, [self.ports[direction], self.ports[1 - direction]], packets, bytes);
        let sessions = switch.sessions();
        sessions.count_beside(*id, packets, bytes);
        let now_s = switch.now().seconds();
        if now.by_template && before.role != role::RESPONDER && now.role == role::RESPONDER {
            // Before what may have reset it.
            let is_over = sessions.found(*id).is_some_and(|it| it.state().is_over());
            let seen = [(tcp_flags::SYN | tcp_flags::ACK, false), (tcp_flags::RST, false)];
            sessions.note(*id, &seen[..1 + usize::from(is_over)], now_s);
        }
        // The handshake's first packet, which the graph has seen.
        if now.by_template && now.role == role::INITIATOR && now.packets < 2 {
            return;
        }
        // A worker's note of a packet may come between; that of a FIN must not be lost.
        for _ in 0..ATTEMPTS {
            let Some(mut found) = sessions.found(*id) else { break };
            found.forward = direction == 0;
            let fin = [before.had_fin, now.had_fin].map(|it| it > 0);
            let flags = flags_of(&found, fin, now.used_s());
            sessions.touch(&found, flags, now_s);
            let noted = found.state().after(found.protocol(), flags, found.forward);
            if sessions.found(*id).is_none_or(|it| it.state() == noted) {
                break;
            }
        }
    }
}

/// Counts packets that the kernel forwarded from one port to another.
pub(crate) fn count(
    of_ports: &mut AHashMap<PortId, PortUsage>,
    [from, to]: [PortId; 2],
    packets: u64,
    bytes: u64,
) {
    let ingress = of_ports.entry(from).or_default();
    ingress.received += packets;
    ingress.received_bytes += bytes;
    let egress = of_ports.entry(to).or_default();
    egress.sent += packets;
    egress.sent_bytes += bytes;
}

/// The flags that an entry's packets showed in all, the last one in this second. All packets of TCP
/// that entries take acknowledge: the first one ends the handshake. Data behind a FIN takes it
/// back. Resets take the switch; what was forwarded before one, or may have been, does not say that
/// the connection goes on.
fn flags_of(found: &Found, [had_fin, has_fin]: [bool; 2], used_s: u32) -> u8 {
    let is_before_reset = found.state().is_reset() && used_s <= found.last_seen();
    let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
    let fin = flag(has_fin, tcp_flags::FIN) | flag(had_fin && !has_fin, tcp_flags::PSH);
    tcp_flags::ACK | fin | flag(is_before_reset, tcp_flags::RST)
}

#[cfg(test)]
mod tests {
    use dataplane::Adjacency;
    use dataplane::session::{Opened, Opening, Sessions, Timeouts, TupleOrigin};
    use dataplane::wire::{Flow, protocol};

    use super::*;

    #[test]
    fn entries_with_other_guards_are_counted_anew() {
        let made = |interface: u32, guards: [u32; GUARDS], generations: [u32; GUARDS]| {
            let entry = FlowEntry { guards, generations, ..FlowEntry::default() };
            let key = FlowKey::new(interface, &Flow::default());
            Entries { ports: [PortId(1), PortId(2)], both: [Some((key, entry)), None] }
        };
        let known = made(7, [3, 4, 0], [1, 1, 1]);
        let installed = Installed {
            keys: known.keys(),
            guards: known.guarded().guards,
            generations: known.guarded().generations,
            ports: known.ports,
            tuples: Tuples::plain(Flow::default()),
            owner: Owner::NONE,
            ticket: Ticket::default(),
            entered_s: 0,
            read: Default::default(),
            readings: 0,
            pass: 0,
        };
        assert!(installed.is_replaced_by(&made(7, [3, 4, 0], [2, 1, 1])), "generations alone");
        assert!(!installed.is_replaced_by(&made(8, [3, 4, 0], [1, 1, 1])), "another interface");
        assert!(!installed.is_replaced_by(&made(7, [3, 5, 0], [1, 1, 1])), "another port there");
    }

    #[test]
    fn what_was_forwarded_before_a_reset_does_not_undo_it() {
        let sessions = Sessions::new(1, 1, Timeouts::default());
        let flow = Flow { protocol: protocol::TCP, source_port: 1, ..Flow::default() };
        let opening = Opening {
            owner: Owner::port(PortId(0)),
            adjacency: Adjacency::NONE,
            generation: 1,
            tcp_flags: tcp_flags::SYN,
        };
        let opened = sessions.open(&Tuples::plain(flow), &opening, 0);
        let Ok(Opened::New(id)) = opened else { panic!("{opened:?}") };
        let find = |flow: &Flow| {
            sessions.find(sessions.hash(flow), flow, TupleOrigin::Entering, 5).unwrap()
        };
        sessions.touch(&find(&flow.reversed()), tcp_flags::SYN | tcp_flags::ACK, 0);
        sessions.touch(&find(&flow), tcp_flags::ACK, 0);
        let note = |used_s| {
            let found = sessions.found(id).unwrap();
            sessions.touch(&found, flags_of(&found, [false; 2], used_s), 5);
            sessions.found(id).unwrap().state().name(protocol::TCP)
        };
        assert_eq!(note(4), "established");
        sessions.touch(&find(&flow.reversed()), tcp_flags::RST, 5);
        assert_eq!(note(4), "ended");
        assert_eq!(note(5), "ended", "in the same second");
        assert_eq!(note(6), "established", "the ends go on");
        for (fin, name) in [
            ([false, true], "closing"),
            ([true, true], "closing"),
            ([true, false], "established"),
            ([false, false], "established"),
        ] {
            let found = sessions.found(id).unwrap();
            sessions.touch(&found, flags_of(&found, fin, 7), 7);
            assert_eq!(sessions.found(id).unwrap().state().name(protocol::TCP), name, "{fin:?}");
        }
    }
}
