//! The fast path of the session lookup.

use super::State;
use super::record::Words;
use super::record::life_word;
use super::table::{Guess, Sessions};
use crate::Adjacency;
use crate::wire::Flow;

impl Sessions {
    /// Returns the adjacency of a packet whose session is at the guess, is not translated nor idle,
    /// was allowed by this generation and has an adjacency; touches the session. The session itself
    /// is not returned.
    ///
    /// `None` decides nothing: [`find_at`](Self::find_at) does. The packet must not be one that may
    /// open a TCP connection.
    #[inline]
    pub fn pass(
        &self,
        guess: Guess,
        flow: &Flow,
        tcp_flags: u8,
        generation: u64,
        now_s: u32,
    ) -> Option<Adjacency> {
        let record = self.record(guess)?;
        let seen = record.read()?;
        let forward = seen.words.direction_of(&Words::of(flow))?;
        let state = State(seen.life as u8);
        let after = state.after(flow.protocol, tcp_flags, forward);
        let most_s = self.limits().of(flow.protocol, state);
        let adjacency = Adjacency((seen.forwarding >> if forward { 16 } else { 0 }) as u16);
        let is_idle = now_s.saturating_sub((seen.life >> 32) as u32) > most_s;
        let is_of_generation = (seen.forwarding >> 32) as u32 == generation as u32;
        if seen.is_translated() | is_idle | !is_of_generation | (adjacency == Adjacency::NONE) {
            return None;
        }
        record.set_life(seen.life, life_word(seen.life, now_s, after));
        Some(adjacency)
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
            let guess = quick.guess(quick.hash(&flow));
            let passed = quick.pass(guess, &flow, last, generation, now_s);
            let found = generally(general, &flow, last, now_s);
            if let Some(adjacency) = passed {
                let found = found.expect("what passes has a session");
                prop_assert_eq!((adjacency, found.is_of(generation)), (found.adjacency(), true));
                let state = |sessions: &Sessions| {
                    let (found, _) = sessions.iter().next().expect("the session");
                    (found.state(), found.last_seen())
                };
                prop_assert_eq!(state(quick), state(general));
            } else if let Some(found) = found {
                let is_plain = !found.translated && found.is_of(generation);
                prop_assert!(!is_plain || found.adjacency() == Adjacency::NONE);
            }
        }
    }
}
