//! The session table: records, and the index that finds them.

mod departed;
mod end;
mod evict;
mod free;
mod lookup;
mod note;
mod open;
mod quota;

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32};

use departed::Departed;
pub use evict::Evicted;
use evict::Evictions;
use free::FreeRecords;
pub use open::{Opened, Opening, Refusal};
use quota::Quotas;

use acl::Address;

use super::hash::FlowHash;
use super::index::{ELSEWHERE, Index, NOTHING};
use super::owner::{self, Owner};
use super::record::{Entry, Record};
use super::region::Array;
use super::store::Store;
use super::timeouts::Limits;
use super::translation::Translation;
use super::usage::Account;
use super::{Found, SessionId, Timeouts, Tuples};
use crate::PortId;
use crate::services::Affinities;
use crate::sync::OwnLines;
use crate::wire::Flow;

/// Origin of a tuple that is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TupleOrigin {
    /// A packet that entered the switch.
    Entering,
    /// An ICMP error, which quotes a packet as it left the switch.
    Quoted,
}

/// The most likely record of a session, by its hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate(u32);

impl Candidate {
    /// Any record may be the session's.
    pub(crate) const UNKNOWN: Self = Self(ELSEWHERE);

    /// Whether no record has the hash.
    #[inline]
    pub(crate) fn is_none(self) -> bool {
        self.0 == NOTHING
    }
}

/// The sessions of a switch, shared by its workers.
pub struct Sessions {
    records: Array<Record>,
    translations: Array<Translation>,
    accounts: Array<Account>,
    /// Whether packets and bytes of sessions are counted.
    counts: AtomicBool,
    index: Index,
    free: FreeRecords,
    quotas: Quotas,
    departed: Departed,
    evictions: Evictions,
    /// Place at which the next sweep begins.
    swept: OwnLines<AtomicU32>,
    /// Records of an earlier process that were dropped.
    damaged: u32,
    limits: Limits,
    hash: FlowHash,
    affinities: Affinities,
}

impl Sessions {
    /// A table for `capacity` sessions opened from `ports` ports (numbers below that).
    ///
    /// # Panics
    /// If there is no memory for it.
    pub fn new(capacity: u32, ports: u16, timeouts: Timeouts) -> Arc<Self> {
        let store = Store::in_memory(capacity.max(1) as usize);
        let sessions = store.and_then(|store| Self::over(store, ports, timeouts));
        Arc::new(sessions.expect("memory for the sessions"))
    }

    /// The same in a file, with the sessions that an earlier process of this boot left in it. Each
    /// of them is re-evaluated at its next packet, and has no owner until then.
    ///
    /// No other process may use the file at the same time.
    ///
    /// # Errors
    /// If the file cannot be opened, made large enough or mapped.
    pub fn in_file(
        path: &Path,
        capacity: u32,
        ports: u16,
        timeouts: Timeouts,
    ) -> io::Result<Arc<Self>> {
        let store = Store::in_file(path, capacity.max(1) as usize)?;
        let mut sessions = Self::over(store, ports, timeouts)?;
        sessions.restore();
        Ok(Arc::new(sessions))
    }

    fn over(store: Store, ports: u16, timeouts: Timeouts) -> io::Result<Self> {
        let Store { records, translations, accounts } = store;
        let capacity = records.len();
        let quotas = Quotas::new(capacity as u32, ports);
        Ok(Self {
            records,
            translations,
            accounts,
            counts: AtomicBool::new(false),
            index: Index::new(capacity)?,
            free: FreeRecords::new(capacity as u32),
            evictions: Evictions::new(quotas.places()),
            swept: OwnLines(AtomicU32::new(0)),
            damaged: 0,
            quotas,
            departed: Departed::default(),
            limits: timeouts.into(),
            hash: FlowHash::new(),
            affinities: Affinities::default(),
        })
    }

    /// Indexes the sessions that are in the records already.
    fn restore(&mut self) {
        let mut free = Vec::new();
        let mut last = 0;
        for index in 0..self.capacity() {
            let record = &self.records[index as usize];
            if !record.recover() {
                self.damaged += 1;
            }
            let Some(entry) = record.read() else {
                free.push(index);
                continue;
            };
            record.change_owner(entry.sequence, entry.owner(), Owner::NONE);
            let tuples = self.tuples_of(index, &entry);
            let placed = self.index.insert(self.hash(&tuples.responder), index)
                && (!entry.is_translated()
                    || self.index.insert(self.hash(&tuples.initiator), index));
            self.quotas.charge(&self.free.own(), Owner::NONE);
            if !placed {
                self.close(entry.found(index, true).id);
            }
            last = index + 1;
        }
        // Places behind the last one in use count as never used.
        free.retain(|index| *index < last);
        self.free.restore(last, free);
    }

    /// Client affinities.
    pub fn affinities(&self) -> &Affinities {
        &self.affinities
    }

    /// Number of sessions that fit.
    pub fn capacity(&self) -> u32 {
        self.records.len() as u32
    }

    /// Places of the table from which on none was ever taken.
    pub fn places_used(&self) -> u32 {
        self.free.end_of_used()
    }

    /// Number of sessions in use.
    pub fn used(&self) -> u32 {
        self.quotas.used()
    }

    /// Number of records in the file of an earlier process that no process had left there: damaged
    /// ones, whose sessions are dropped.
    pub fn damaged(&self) -> u32 {
        self.damaged
    }

    /// Number of sessions that the pod or kernel behind a port opened.
    pub fn used_by(&self, port: PortId) -> u32 {
        self.quotas.used_by(Owner::port(port))
    }

    /// Number of sessions opened from other nodes, or from outside of the cluster.
    pub fn used_by_remote(&self) -> u32 {
        self.quotas.used_by_remote()
    }

    /// Divides half of the table into guarantees: for `ports` ports and, where there is an uplink,
    /// for remote senders.
    pub fn set_ports(&self, ports: usize, has_uplink: bool) {
        self.quotas.divide(ports, has_uplink);
    }

    /// The owner of the sessions of a remote sender.
    pub fn remote_owner(&self, sender: Address, is_in_cluster: bool) -> Owner {
        let sender = owner::remote_sender(sender, is_in_cluster);
        self.quotas.remote_owner(self.hash.of_address(sender))
    }

    /// Whether an owner may use this translation port of the node's own address: one in
    /// four, chosen by a keyed hash. Two owners have few ports in common, so that one cannot take
    /// all ports towards a destination.
    pub fn may_use_port(&self, owner: Owner, port: u16) -> bool {
        let choice = u128::from(owner.0) << 16 | u128::from(port);
        self.hash.of_address(Address::from_bits(choice)) >> 62 == 0
    }

    /// A hash that is the same for both directions of a connection, keyed at random.
    #[inline]
    pub fn hash(&self, flow: &Flow) -> u64 {
        self.hash.of(flow)
    }

    /// The same for a flow that is known to be of IPv4.
    #[inline]
    pub(crate) fn hash_v4(&self, flow: &Flow) -> u64 {
        debug_assert!(flow.source.is_v4() && flow.destination.is_v4());
        self.hash.of_v4(flow)
    }

    /// The same for a flow that is known to be of IPv6.
    #[inline]
    pub(crate) fn hash_v6(&self, flow: &Flow) -> u64 {
        debug_assert!(!flow.source.is_v4() && !flow.destination.is_v4());
        self.hash.of_v6(flow)
    }

    /// Both tuples of a session, if it still is there.
    pub fn tuples(&self, found: &Found) -> Option<Tuples> {
        let record = &self.records[found.id.index as usize];
        let entry = record.read().filter(|entry| entry.sequence == found.id.sequence)?;
        let tuples = self.tuples_of(found.id.index, &entry);
        record.is_still(found.id.sequence).then_some(tuples)
    }

    /// A session as it is now, in its initiator's direction; `None` if it has ended.
    pub fn found(&self, id: SessionId) -> Option<Found> {
        let entry = self.records[id.index as usize].read()?;
        (entry.sequence == id.sequence).then(|| entry.found(id.index, true))
    }

    /// The owner whose quota a session counts against.
    pub fn owner(&self, found: &Found) -> Owner {
        self.records[found.id.index as usize].owner()
    }

    /// Iterates over the sessions while they change.
    pub fn iter(&self) -> impl Iterator<Item = (Found, Tuples)> + '_ {
        self.founds(0..u32::MAX).filter_map(|found| Some((found, self.tuples(&found)?)))
    }

    /// Iterates over the sessions at these places of the table, each in its initiator's direction.
    pub fn founds(&self, places: Range<u32>) -> impl Iterator<Item = Found> + '_ {
        (places.start..places.end.min(self.free.end_of_used())).filter_map(|index| {
            let entry = self.records[index as usize].read()?;
            Some(entry.found(index, true))
        })
    }

    fn tuples_of(&self, index: u32, entry: &Entry) -> Tuples {
        let tuples = Tuples::plain(entry.words.flow());
        if !entry.is_translated() {
            return tuples;
        }
        let translation = &self.translations[index as usize];
        let initiator = translation.initiator().flow();
        Tuples { initiator, return_mac: translation.return_mac(), ..tuples }
    }
}

#[cfg(test)]
mod tests;
