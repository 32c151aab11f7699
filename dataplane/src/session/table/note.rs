//! Records packets, evaluations and owners in live sessions.

use std::sync::atomic::Ordering;

use super::{Candidate, Sessions};
use crate::Adjacency;
use crate::session::record::life_word;
use crate::session::{ConnectionState, Found, Owner, SessionId, Usage};
use crate::wire::Mac;

impl Sessions {
    /// Records a packet of the session.
    #[inline]
    pub fn touch(&self, found: &Found, tcp_flags: u8, now_s: u32) {
        let state = found.state().after(found.protocol, tcp_flags, found.forward);
        let life = life_word(found.life, now_s, state);
        self.records[found.id.index as usize].set_life(found.life, life);
    }

    /// Notes packets of a session in their order, each by its flags of TCP and whether it is the initiator's.
    /// Notes that a worker makes at the same time are not lost.
    pub fn note(&self, id: SessionId, packets: &[(u8, bool)], now_s: u32) {
        while let Some(found) = self.found(id) {
            let after = |state: ConnectionState, (flags, forward): &(u8, bool)| {
                state.after(found.protocol, *flags, *forward)
            };
            let state = packets.iter().fold(found.state(), after);
            let life = life_word(found.life, now_s, state);
            let record = &self.records[id.index as usize];
            record.set_life(found.life, life);
            if self.found(id).is_none_or(|now| now.life == life) {
                return;
            }
        }
    }

    /// Counts packets and bytes of each session from now on, or no longer.
    pub fn count_packets(&self, on: bool) {
        self.counts.store(on, Ordering::Relaxed);
    }

    /// Whether packets and bytes of sessions are counted.
    #[inline]
    pub fn counts_packets(&self) -> bool {
        self.counts.load(Ordering::Relaxed)
    }

    /// Counts a packet of the session in the candidate record, which has just been found there.
    #[inline]
    pub fn count_at(&self, candidate: Candidate, bytes: usize) {
        if let Some(account) = self.accounts.get(candidate.0 as usize) {
            account.add(1, bytes as u64);
        }
    }

    /// Counts a packet of the session.
    #[inline]
    pub fn count(&self, id: SessionId, bytes: usize) {
        self.count_at(Candidate(id.index), bytes);
    }

    /// Counts packets of the session that were forwarded beside the workers.
    pub fn count_beside(&self, id: SessionId, packets: u64, bytes: u64) {
        if self.counts_packets()
            && let Some(account) = self.accounts.get(id.index as usize)
            && self.records[id.index as usize].is_still(id.sequence)
        {
            account.add(packets, bytes);
        }
    }

    /// Packets and bytes of the session so far; nothing if it has ended.
    pub fn usage(&self, found: &Found) -> Usage {
        let usage = self.accounts[found.id.index as usize].usage();
        let is_still = self.records[found.id.index as usize].is_still(found.id.sequence);
        if is_still { usage } else { Usage::default() }
    }

    /// Stamps the session with the generation that re-evaluated it, and the adjacency of the
    /// packet's direction; the other direction's is looked up at its next packet.
    #[inline]
    pub fn stamp(&self, found: &Found, generation: u64, adjacency: Adjacency) {
        let record = &self.records[found.id.index as usize];
        record.set_forwarding(found.id.sequence, generation, found.forward, adjacency);
        if found.state().is_refused() {
            self.allow(found.id);
        }
    }

    /// Sends replies to this MAC address from now on; the session's replies return to one already.
    #[cold]
    pub fn return_to(&self, found: &Found, mac: Mac) {
        let translation = &self.translations[found.id.index as usize];
        let record = &self.records[found.id.index as usize];
        record.while_held(found.id.sequence, || translation.set_return_mac(mac));
    }

    /// Notes that a policy denied the session's packet. It stays for a while, with what it was: if it is
    /// allowed again it goes on, and until then no packet of it opens another connection.
    #[cold]
    pub fn refuse(&self, found: &Found, now_s: u32) {
        let life = life_word(found.life, now_s, found.state().refused());
        self.records[found.id.index as usize].set_life(found.life, life);
    }

    #[cold]
    fn allow(&self, id: SessionId) {
        let record = &self.records[id.index as usize];
        // Until no other worker's note about a packet was in between.
        while let Some(entry) = record.read().filter(|entry| entry.sequence == id.sequence) {
            let found = entry.found(id.index, true);
            if !found.state().is_refused() {
                return;
            }
            let life = life_word(found.life, found.last_seen(), found.state().allowed());
            record.set_life(found.life, life);
        }
    }

    /// Charges an ownerless session (one of an earlier process) to `owner`.
    #[inline]
    pub fn claim(&self, found: &Found, owner: impl FnOnce() -> Owner) {
        let record = &self.records[found.id.index as usize];
        if record.owner() != Owner::NONE {
            return;
        }
        let owner = owner();
        if record.change_owner(found.id.sequence, Owner::NONE, owner) {
            self.quotas.change(&self.free.own(), Owner::NONE, owner);
        }
    }
}
