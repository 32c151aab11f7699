//! Shares of the map of entries, by the owners of sessions.
//!
//! There are no fixed shares while there is room. In a full map a connection takes the place of the oldest one of
//! the owner with the most connections; so owners that want more than there is come to have equally many. One that
//! has the most itself gives up its oldest one only if that is idle: those that are in use do not take turns.

use std::collections::BTreeMap;

use ahash::AHashMap;
use dataplane::session::{Owner, SessionId};

/// The connections with entries, by owner.
#[derive(Default)]
pub(crate) struct Shares {
    owners: AHashMap<Owner, BTreeMap<Ticket, SessionId>>,
    next: u64,
}

/// A connection's place in the order in which those of one owner were entered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(u64);

/// A connection that may give up its entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Victim {
    pub(crate) id: SessionId,
    /// It has to be idle: it has the same owner as the one that needs room.
    pub(crate) if_idle: bool,
}

impl Shares {
    pub(crate) fn enter(&mut self, owner: Owner, id: SessionId) -> Ticket {
        let ticket = Ticket(self.next);
        self.next += 1;
        self.owners.entry(owner).or_default().insert(ticket, id);
        ticket
    }

    pub(crate) fn has(&self, owner: Owner, ticket: Ticket) -> bool {
        self.owners.get(&owner).is_some_and(|share| share.contains_key(&ticket))
    }

    pub(crate) fn leave(&mut self, owner: Owner, ticket: Ticket) {
        if let Some(share) = self.owners.get_mut(&owner) {
            share.remove(&ticket);
            if share.is_empty() {
                self.owners.remove(&owner);
            }
        }
    }

    /// The connection that makes room for another one of `owner`.
    pub(crate) fn victim(&self, owner: Owner) -> Option<Victim> {
        let own = self.owners.get(&owner);
        let count = own.map_or(0, BTreeMap::len);
        let greediest = self.owners.values().max_by_key(|share| share.len())?;
        let if_idle = greediest.len() <= count + 1;
        let share = if if_idle { own? } else { greediest };
        share.first_key_value().map(|(_, id)| Victim { id: *id, if_idle })
    }
}

#[cfg(test)]
mod tests {
    use dataplane::session::{Opened, Opening, Sessions, Timeouts, Tuples};
    use dataplane::wire::Flow;
    use dataplane::{Adjacency, PortId};
    use proptest::prelude::*;

    use super::*;

    fn ids(count: u16) -> Vec<SessionId> {
        let sessions = Sessions::new(u32::from(count), 1, Timeouts::default());
        let opening = Opening {
            owner: Owner::port(PortId(0)),
            adjacency: Adjacency::NONE,
            generation: 1,
            tcp_flags: 0,
        };
        let open = |n| {
            let flow = Flow { source_port: n, ..Flow::default() };
            match sessions.open(&Tuples::plain(flow), &opening, 0) {
                Ok(Opened::New(id)) => id,
                other => panic!("{other:?}"),
            }
        };
        (1..=count).map(open).collect()
    }

    proptest! {
        /// In any order of requests, owners with equal demand differ by one entry at most.
        #[test]
        fn owners_that_want_more_than_there_is_have_equally_many(
            room in 1..40_usize,
            greedy in 0..3_u16,
            wanted in prop::collection::vec(0..3_u16, 0..200),
        ) {
            let ids = ids(400);
            let mut shares = Shares::default();
            let mut entered: Vec<(Owner, SessionId, Ticket)> = Vec::new();
            let owners = [0, 1, 2].map(|n| Owner::port(PortId(n)));
            // One owner is there before the others, and all of them want all of it in the end.
            let order = (0..100).map(|_| greedy).chain(wanted).chain((0..100).map(|n| n % 3));
            for (owner, id) in order.map(|n| owners[usize::from(n)]).zip(ids) {
                if entered.len() == room {
                    let Some(victim) = shares.victim(owner) else { continue };
                    let place = entered.iter().position(|it| it.1 == victim.id).unwrap();
                    prop_assert_eq!(entered[place].0 == owner, victim.if_idle);
                    if victim.if_idle {
                        continue;
                    }
                    let (of, _, ticket) = entered.remove(place);
                    prop_assert!(entered[..place].iter().all(|it| it.0 != of), "its oldest");
                    shares.leave(of, ticket);
                }
                entered.push((owner, id, shares.enter(owner, id)));
            }
            let count = |owner| entered.iter().filter(|it| it.0 == owner).count();
            let counts = owners.map(count);
            let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
            prop_assert!(most - least <= 1, "{:?}", counts);
            prop_assert_eq!(entered.len(), room);
        }
    }
}
