//! Marks the places of the session table whose session has entries.
//!
//! Most sessions that a scan looks at are over, and stay for two minutes. A look here is far cheaper than
//! one into the map of connections.

use dataplane::session::SessionId;

/// The mark of the session with entries at each place, or 0.
#[derive(Default)]
pub(crate) struct Places(Vec<u32>);

impl Places {
    pub(crate) fn has(&self, id: SessionId) -> bool {
        self.0.get(id.place() as usize).is_some_and(|mark| *mark == id.mark())
    }

    pub(crate) fn insert(&mut self, id: SessionId) {
        let place = id.place() as usize;
        if self.0.len() <= place {
            self.0.resize(place + 1, 0);
        }
        self.0[place] = id.mark();
    }

    /// A later session at the same place stays.
    pub(crate) fn remove(&mut self, id: SessionId) {
        if self.has(id) {
            self.0[id.place() as usize] = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use acl::Address;
    use dataplane::session::{Opened, Opening, Owner, Sessions, Timeouts, Tuples};
    use dataplane::wire::{Flow, protocol};
    use dataplane::{Adjacency, PortId};

    use super::*;

    #[test]
    fn a_place_is_of_its_last_session() {
        let sessions = Sessions::new(1, 4, Timeouts::default());
        let flow = Flow {
            source: Address::from_v4_bits(1),
            destination: Address::from_v4_bits(2),
            source_port: 3,
            destination_port: 4,
            protocol: protocol::UDP,
        };
        let opening = Opening {
            owner: Owner::port(PortId(0)),
            adjacency: Adjacency::NONE,
            generation: 1,
            tcp_flags: 0,
        };
        let open = || match sessions.open(&Tuples::plain(flow), &opening, 0) {
            Ok(Opened::New(id)) => id,
            other => panic!("{other:?}"),
        };
        let mut places = Places::default();
        let first = open();
        assert!(!places.has(first));
        places.insert(first);
        assert!(places.has(first));
        sessions.end(&sessions.found(first).unwrap());
        let second = open();
        assert_eq!(second.place(), first.place());
        assert!(!places.has(second));
        places.insert(second);
        places.remove(first);
        assert!(places.has(second) && !places.has(first));
        places.remove(second);
        assert!(!places.has(second));
    }
}
