//! Creates sessions.

use super::quota::Quotas;
use super::{Entry, Sessions, TupleOrigin};
use crate::session::owner::Owner;
use crate::session::record::{Words, forwarding_word};
use crate::session::{ConnectionState, Found, SessionId, Tuples};
use crate::wire::{protocol, tcp_flags};
use crate::{Adjacency, cpu};

/// A free record is prefetched so many sessions before it is filled.
const AHEAD: usize = 4;

/// Why a session was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No record, or no place in the index, is left, and no session of the owner can give up its place.
    Full,
    /// The owner has used its guarantee and its part of the common half, and none of its sessions can give up
    /// its place.
    Quota,
    /// The reply tuple is taken by another connection.
    Taken,
}

/// Result of an attempt to make a session.
#[derive(Clone, Copy, Debug)]
pub enum Opened {
    /// It was made.
    New(SessionId),
    /// Another packet of the connection made it before.
    Known(Found),
}

/// Initial fields of a session.
#[derive(Clone, Copy, Debug)]
pub struct Opening {
    /// The owner whose quota it counts against.
    pub owner: Owner,
    /// The adjacency of the initiator's packets.
    pub adjacency: Adjacency,
    /// The generation that allowed it.
    pub generation: u64,
    /// TCP flags of the opening packet, or 0.
    pub tcp_flags: u8,
}

impl Sessions {
    /// Creates a session, or finds the one that another packet created.
    ///
    /// # Errors See [`Refusal`]. A connection whose reply tuple is taken (a client that uses one
    /// port for a service and for the pod behind it) may be tried again with another source port.
    pub fn open(&self, tuples: &Tuples, opening: &Opening, now_s: u32) -> Result<Opened, Refusal> {
        self.open_hashed(tuples, self.hash(&tuples.initiator), opening, now_s)
    }

    /// The same with the hash of the original tuple.
    pub(crate) fn open_hashed(
        &self,
        tuples: &Tuples,
        initiator_hash: u64,
        opening: &Opening,
        now_s: u32,
    ) -> Result<Opened, Refusal> {
        debug_assert_eq!(initiator_hash, self.hash(&tuples.initiator));
        let translated = tuples.is_translated();
        let responder_hash = if translated { self.hash(&tuples.responder) } else { initiator_hash };
        let _locks = self.index.lock(responder_hash, initiator_hash);
        // Seldom called: few new sessions share a tag.
        let shows = |index, entry: &Entry| self.is_any(index, entry, &Words::of(&tuples.responder));
        let is_taken = self.search_live(responder_hash, now_s, shows).is_some();
        // Without translation both tuples are equal, so the second search finds nothing new.
        if is_taken || translated {
            let initiator = Words::of(&tuples.initiator);
            let enters = |index, entry: &Entry| {
                self.travels(index, entry, &initiator, TupleOrigin::Entering)
            };
            if let Some(known) = self.search_live(initiator_hash, now_s, enters) {
                return Ok(Opened::Known(known));
            }
        }
        if is_taken && !self.gives_way(responder_hash, opening, now_s, shows) {
            return Err(Refusal::Taken);
        }
        let index = self.reserve(opening.owner).or_else(|refusal| {
            // In the place of another one: the owner has no more than before, whatever its share is by now.
            let replaces = self.make_room(opening.owner, now_s);
            if replaces { self.take_record(opening.owner, |_| Ok(())) } else { Err(refusal) }
        })?;
        let forwarding = forwarding_word(opening.generation, opening.adjacency, Adjacency::NONE);
        let life = (now_s, ConnectionState::opened(&tuples.responder, opening.tcp_flags));
        let translation = &self.translations[index as usize];
        let translate = || translation.write(&tuples.initiator, tuples.return_mac);
        let translate = translated.then_some(translate);
        self.accounts[index as usize].start(now_s, opening.generation);
        let record = &self.records[index as usize];
        let sequence = record.open(&tuples.responder, opening.owner, forwarding, life, translate);
        let id = SessionId { index, sequence };
        let placed = self.index.insert(responder_hash, index)
            && (!translated || self.index.insert(initiator_hash, index));
        if !placed {
            self.close(id);
        }
        if !record.is_still(sequence) {
            // It has ended, possibly before all index entries were made. Under the locks no other
            // session of these hashes is created.
            self.index.remove(responder_hash, index);
            if translated {
                self.index.remove(initiator_hash, index);
            }
        }
        if placed { Ok(Opened::New(id)) } else { Err(Refusal::Full) }
    }

    /// Ends TCP sessions that are over and show the tuple that a SYN asks for: its sender uses the port again, for a
    /// service and for the pod behind it. Returns whether none is left.
    fn gives_way(
        &self,
        hash: u64,
        opening: &Opening,
        now_s: u32,
        shows: impl Fn(u32, &Entry) -> Option<bool>,
    ) -> bool {
        let is_syn = opening.tcp_flags & (tcp_flags::SYN | tcp_flags::ACK) == tcp_flags::SYN;
        while let Some(found) = self.search_live(hash, now_s, &shows) {
            if !is_syn || found.protocol != protocol::TCP || !found.state().is_over() {
                return false;
            }
            self.close(found.id);
        }
        true
    }

    /// A free record, counted as the owner's, if its share has room for it.
    #[inline]
    fn reserve(&self, owner: Owner) -> Result<u32, Refusal> {
        self.take_record(owner, |quotas| quotas.check(owner))
    }

    /// A free record, counted as the owner's, if the check succeeds.
    #[inline]
    fn take_record(
        &self,
        owner: Owner,
        check: impl FnOnce(&Quotas) -> Result<(), Refusal>,
    ) -> Result<u32, Refusal> {
        let mut own = self.free.own();
        check(&self.quotas)?;
        self.quotas.charge(&own, owner);
        let record = own.take();
        if let Some(record) = own.later(AHEAD).and_then(|n| self.records.get(n as usize)) {
            cpu::prefetch_to_write(record);
        }
        drop(own);
        record.or_else(|| self.free.find()).ok_or_else(|| {
            self.quotas.release(&self.free.own(), owner);
            Refusal::Full
        })
    }
}
