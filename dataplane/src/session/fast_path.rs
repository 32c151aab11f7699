//! The fast path of the session lookup.
//!
//! Decides about a packet whose session is in the candidate record, is not idle, was allowed by this generation and
//! has an adjacency, and records the packet in the session. The session itself is not returned.

use super::ConnectionState;
use super::record::{Hit, Reader, Record, Words, life_word};
use super::table::{Candidate, Sessions};
use crate::Adjacency;
use crate::wire::{Flow, Mac};

/// The translation of a packet of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translated {
    /// Whether the packet is of the initiator's direction.
    pub forward: bool,
    /// In the initiator's direction the reply tuple reversed, else the original tuple.
    pub other: Flow,
    /// See [`Tuples::return_mac`](super::Tuples::return_mac).
    pub return_mac: Mac,
}

/// A packet's part of a session lookup.
#[derive(Clone, Copy, Debug)]
pub struct PacketInfo<'a> {
    /// Its addresses and ports.
    pub flow: &'a Flow,
    /// Flags of TCP, or 0.
    pub tcp_flags: u8,
    /// The snapshot's generation.
    pub generation: u64,
    /// The second at which it comes.
    pub now_s: u32,
}

impl Sessions {
    /// The adjacency of a packet whose session is in the candidate record; [`Adjacency::NONE`] if [`Self::find_at`]
    /// decides, or [`Self::fast_path_translated`] where [`Self::is_translated_at`] says so. The packet must not be one
    /// that may open a TCP connection. `packet` is called when the record is of its flow.
    // One value and no enum: the caller's branch on it is then this function's own.
    #[inline(always)]
    pub fn fast_path<'a>(
        &self,
        candidate: Candidate,
        flow: &Flow,
        packet: impl FnOnce() -> PacketInfo<'a>,
    ) -> Adjacency {
        let undecided = Adjacency::NONE;
        let Some(record) = self.record(candidate) else { return undecided };
        let Some(reader) = record.reader().filter(|reader| !reader.is_translated()) else {
            return undecided;
        };
        let Some(hit) = reader.hit(flow) else { return undecided };
        self.go(record, &hit, &packet())
    }

    /// Whether the session in the candidate record seems to be translated.
    #[inline]
    pub fn is_translated_at(&self, candidate: Candidate) -> bool {
        let reader = self.record(candidate).and_then(Record::reader);
        reader.is_some_and(|reader| reader.is_translated())
    }

    /// The same for a translated session; see [`TupleOrigin::Entering`](super::TupleOrigin). Its
    /// translation is noted before it is certain that the packet passes.
    #[inline(always)]
    pub fn fast_path_translated(
        &self,
        candidate: Candidate,
        packet: &PacketInfo<'_>,
        note: impl FnOnce(Translated),
    ) -> Adjacency {
        let undecided = Adjacency::NONE;
        let Some((record, translation)) = self.record(candidate).zip(self.translation(candidate))
        else {
            return undecided;
        };
        let Some(reader) = record.reader().filter(Reader::is_translated) else { return undecided };
        let (flow, return_mac) = (Words::of(packet.flow), translation.return_mac());
        // Each direction has code of its own, and reads the tuples where they are needed: few registers are left.
        let initiator = translation.initiator();
        if initiator.has_ends_of(&flow) && initiator.is(&flow) {
            note(Translated { forward: true, other: reader.responder().flow(), return_mac });
            return reader
                .finish(true, true)
                .map_or(undecided, |hit| self.go(record, &hit, packet));
        }
        if reader.responder().is_reverse_of(&flow) {
            note(Translated { forward: false, other: translation.initiator().flow(), return_mac });
            return reader
                .finish(false, true)
                .map_or(undecided, |hit| self.go(record, &hit, packet));
        }
        undecided
    }

    #[inline(always)]
    fn go(&self, record: &Record, hit: &Hit, packet: &PacketInfo<'_>) -> Adjacency {
        let (state, last_s) = (ConnectionState(hit.life as u8), (hit.life >> 32) as u32);
        // Without a branch, as the direction changes from packet to packet.
        let shift = u32::from(hit.forward) * 16;
        let adjacency = Adjacency((hit.forwarding >> shift) as u16);
        if (hit.forwarding >> 32) as u32 != packet.generation as u32 {
            return Adjacency::NONE;
        }
        let after = state.after(packet.flow.protocol, packet.tcp_flags, hit.forward);
        // Most packets change nothing, as the session had one in this second.
        if last_s == packet.now_s && after == state {
            return adjacency;
        }
        let (now_s, protocol) = (packet.now_s, packet.flow.protocol);
        if adjacency != Adjacency::NONE
            && self.note_packet(record, hit.life, now_s, protocol, after)
        {
            return adjacency;
        }
        Adjacency::NONE
    }

    /// Notes a packet in the last word of a session, which was `life`; `false` if the session was idle by then.
    #[inline(never)]
    fn note_packet(
        &self,
        record: &Record,
        life: u64,
        now_s: u32,
        protocol: u8,
        after: ConnectionState,
    ) -> bool {
        let idle_s = now_s.saturating_sub((life >> 32) as u32);
        let limits = self.limits();
        if idle_s > limits.least && idle_s > limits.of(protocol, ConnectionState(life as u8)) {
            return false;
        }
        record.set_life(life, life_word(life, now_s, after));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PortId;
    use crate::session::{Opened, Opening, Owner, Timeouts, TupleOrigin, Tuples};
    use crate::wire::protocol;
    use proptest::prelude::*;

    proptest! {
        /// Whatever passes the quick way passes the general way too, with the same marks left.
        #[test]
        fn the_quick_way_is_the_general_way(
            is_tcp: bool,
            forward: bool,
            is_translated in prop::bool::weighted(0.2),
            other_port in prop::bool::weighted(0.2),
            flags in prop::collection::vec(any::<u8>(), 0..4),
            last in any::<u8>(),
            idle_s in prop::sample::select(vec![0, 1, 31, 100, 121, 500, 601, 90_000]),
            stamps: bool,
            generation in 7..9_u64,
        ) {
            let flow = Flow {
                source: acl::Address::from_v4_bits(0x0a01_0002),
                destination: acl::Address::from_v4_bits(0x0a01_0003),
                source_port: 1000,
                destination_port: 80,
                protocol: if is_tcp { protocol::TCP } else { protocol::UDP },
            };
            let mut tuples = Tuples::plain(flow);
            if is_translated {
                tuples.responder.destination_port = 8080;
                tuples.return_mac = [1, 2, 3, 4, 5, 6];
            }
            let opening =
                Opening { owner: Owner::port(PortId(0)), adjacency: Adjacency(1), generation: 7, tcp_flags: 2 };
            // The same packets go the general way in one table and, if they may, the quick way in
            // the other.
            let tables = [(); 2].map(|()| Sessions::new(4, 2, Timeouts::default()));
            let mut flow = if forward { flow } else { tuples.responder.reversed() };
            let generally = |sessions: &Sessions, flow: &Flow, flags, now_s| {
                let hash = sessions.hash(flow);
                let found = sessions.find(hash, flow, TupleOrigin::Entering, now_s)?;
                sessions.touch(&found, flags, now_s);
                Some(found)
            };
            for sessions in &tables {
                let opened = sessions.open(&tuples, &opening, 10);
                prop_assert!(matches!(opened, Ok(Opened::New(_))));
                for flags in &flags {
                    let found = generally(sessions, &flow, *flags, 11);
                    if let Some(found) = found.filter(|_| stamps) {
                        sessions.stamp(&found, 7, Adjacency(2));
                    }
                }
            }
            flow.source_port ^= u16::from(other_port);
            let [quick, general] = &tables;
            let now_s = 11 + idle_s;
            let candidate = quick.candidate(quick.hash(&flow));
            let info = PacketInfo { flow: &flow, tcp_flags: last, generation, now_s };
            let mut translated = None;
            let passed = match quick.is_translated_at(candidate) {
                true => quick.fast_path_translated(candidate, &info, |it| translated = Some(it)),
                false => quick.fast_path(candidate, &flow, || info),
            };
            let found = generally(general, &flow, last, now_s);
            if passed != Adjacency::NONE {
                let found = found.expect("what passes has a session");
                prop_assert_eq!((passed, found.is_of(generation)), (found.adjacency(), true));
                prop_assert_eq!(translated.is_some(), is_translated);
                if let Some(it) = translated {
                    let other = if it.forward { tuples.responder } else { tuples.initiator };
                    prop_assert_eq!((it.forward, it.other), (found.forward, other));
                    prop_assert_eq!(it.return_mac, tuples.return_mac);
                }
                let state = |sessions: &Sessions| {
                    let (found, _) = sessions.iter().next().expect("the session");
                    (found.state(), found.last_seen())
                };
                prop_assert_eq!(state(quick), state(general));
            } else if let Some(found) = found {
                let is_current = found.is_of(generation);
                prop_assert!(!is_current || found.adjacency() == Adjacency::NONE);
            }
        }
    }
}
