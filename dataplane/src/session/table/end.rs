//! Ends sessions: idle ones, those of a port, and any other.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use super::Sessions;
use crate::PortId;
use crate::session::{Found, Owner, SessionId};

impl Sessions {
    /// Seconds until the session ends if no packet comes.
    pub fn expires_in_s(&self, found: &Found, now_s: u32) -> u32 {
        let idle_s = now_s.saturating_sub(found.last_seen());
        self.limits.of(found.protocol, found.state()).saturating_sub(idle_s)
    }

    /// Ends a session.
    pub fn end(&self, found: &Found) {
        self.close(found.id);
    }

    /// Ends idle sessions at the next places of the table, `count` of them at most; returns how many places were
    /// looked at. Threads that sweep look at different ones.
    pub fn sweep(&self, count: u32, now_s: u32) -> u32 {
        let places = next_places(&self.swept.0, count, self.free.end_of_used());
        for index in places.clone() {
            if let Some(entry) = self.records[index as usize].read() {
                let found = entry.found(index, true);
                if self.is_idle(&found, now_s) {
                    self.close(found.id);
                }
            }
        }
        places.end - places.start
    }

    /// Ends all sessions that `port` opened, once it opens no more: the next port of this number
    /// starts with its whole quota.
    pub fn end_of(&self, port: PortId) {
        for index in 0..self.free.end_of_used() {
            if let Some(entry) = self.records[index as usize].read()
                && entry.owner() == Owner::port(port)
            {
                self.close(entry.found(index, true).id);
            }
        }
    }

    pub(super) fn close(&self, id: SessionId) {
        let record = &self.records[id.index as usize];
        if !record.close(id.sequence) {
            return;
        }
        // Until it is given back, the record is this caller's.
        let entry = record.remains();
        let tuples = self.tuples_of(id.index, &entry);
        self.index.remove(self.hash(&tuples.responder), id.index);
        if entry.is_translated() {
            self.index.remove(self.hash(&tuples.initiator), id.index);
        }
        let mut own = self.free.own();
        own.put(id.index);
        self.quotas.release(&own, entry.owner());
    }

    #[inline]
    pub(super) fn is_idle(&self, found: &Found, now_s: u32) -> bool {
        let idle_s = now_s.saturating_sub(found.last_seen());
        idle_s > self.limits.of(found.protocol, found.state())
    }
}

/// Moves a hand on by `count` places, from the first one again behind `end`; returns the places, fewer where the end is
/// near. (A remainder of a hand that only grows would stand still while the end grows with it.)
pub(super) fn next_places(hand: &AtomicU32, count: u32, end: u32) -> Range<u32> {
    let from = |at: u32| if at < end { at } else { 0 };
    let next = |at: u32| Some(from(at).saturating_add(count));
    let at = hand.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).map_or(0, from);
    at..at.saturating_add(count).min(end)
}
