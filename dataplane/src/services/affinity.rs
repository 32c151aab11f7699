//! Client affinity: the last backend of each client (`sessionAffinity: ClientIP`).
//!
//! Looked up only when a connection opens. The memory is bounded: a client without an entry gets
//! the consistent choice, which is most often the same backend.

use std::sync::{Mutex, MutexGuard, PoisonError};

use acl::Address;
use ahash::AHashMap;

use super::Backend;
use crate::wire::Flow;

const SHARDS: usize = 64;
/// Clients that a shard remembers.
const ROOM: usize = 4096;

/// A client at a service.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Client {
    client: Address,
    service: Address,
    port: u16,
    protocol: u8,
}

struct Entry {
    backend: Backend,
    until_s: u32,
}

/// The affinity of a client at a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    /// Its backend.
    Now(Backend),
    /// It had one, but the affinity has expired.
    Over,
    /// Nothing.
    Never,
}

#[derive(Default)]
struct Shard {
    clients: AHashMap<Client, Entry>,
    /// Second of the last sweep.
    swept_s: u32,
}

/// The clients of all services.
pub struct Affinities {
    shards: Box<[Mutex<Shard>]>,
}

impl Default for Affinities {
    fn default() -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }
}

impl Affinities {
    /// Looks up the affinity of the client of `flow`.
    pub(crate) fn find(&self, flow: &Flow, now_s: u32) -> Kept {
        match self.shard(flow).clients.get(&client(flow)) {
            None => Kept::Never,
            Some(entry) if now_s <= entry.until_s => Kept::Now(entry.backend),
            Some(_) => Kept::Over,
        }
    }

    /// Records the backend of the client of `flow`.
    pub(crate) fn note(&self, flow: &Flow, backend: Backend, affinity_s: u32, now_s: u32) {
        let mut shard = self.shard(flow);
        let client = client(flow);
        if shard.clients.len() >= ROOM && !shard.clients.contains_key(&client) {
            // Sweeps at most once a second; more often would find nothing.
            if shard.swept_s != now_s {
                shard.swept_s = now_s;
                shard.clients.retain(|_, kept| now_s <= kept.until_s);
            }
            if shard.clients.len() >= ROOM {
                return;
            }
        }
        shard.clients.insert(client, Entry { backend, until_s: now_s.saturating_add(affinity_s) });
    }

    fn shard(&self, flow: &Flow) -> MutexGuard<'_, Shard> {
        let bits = flow.source.bits();
        let n = (bits as u64 ^ (bits >> 64) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58;
        self.shards[n as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn client(flow: &Flow) -> Client {
    Client {
        client: flow.source,
        service: flow.destination,
        port: flow.destination_port,
        protocol: flow.protocol,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(client: u32) -> Flow {
        Flow {
            source: Address::from_v4_bits(client),
            destination: Address::from_v4_bits(0x0a60_0001),
            source_port: client as u16,
            destination_port: 80,
            protocol: 6,
        }
    }

    #[test]
    fn a_client_keeps_its_backend_for_its_time() {
        let affinities = Affinities::default();
        let backend = Backend { address: Address::from_v4_bits(7), port: 80 };
        affinities.note(&flow(1), backend, 60, 100);
        let other_port = Flow { source_port: 9, ..flow(1) };
        assert_eq!(affinities.find(&other_port, 160), Kept::Now(backend));
        assert_eq!(affinities.find(&flow(1), 161), Kept::Over);
        assert_eq!(affinities.find(&flow(2), 100), Kept::Never);
    }

    #[test]
    fn clients_without_end_take_bounded_room() {
        let affinities = Affinities::default();
        let backend = Backend { address: Address::from_v4_bits(7), port: 80 };
        for n in 0..2 * (SHARDS * ROOM) as u32 {
            affinities.note(&flow(n), backend, 60, 1);
        }
        let sizes = affinities.shards.iter().map(|shard| shard.lock().unwrap().clients.len());
        assert!(sizes.clone().all(|size| size <= ROOM) && sizes.sum::<usize>() > ROOM);
        // Whose time is over makes room.
        affinities.note(&flow(u32::MAX), backend, 60, 100);
        assert_eq!(affinities.find(&flow(u32::MAX), 100), Kept::Now(backend));
    }
}
