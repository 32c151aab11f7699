//! Lookups in the session table.

use super::{Candidate, Sessions, TupleOrigin};
use crate::cpu;
use crate::session::Found;
use crate::session::index::NOTHING;
use crate::session::record::{Entry, Record, Words};
use crate::session::timeouts::Limits;
use crate::session::translation::Translation;
use crate::wire::Flow;

impl Sessions {
    /// Prefetches the first bucket of this hash.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        self.index.prefetch(hash);
    }

    /// The same for a session of this hash that is to be opened.
    #[inline]
    pub(crate) fn prefetch_to_open(&self, hash: u64) {
        self.index.prefetch_to_insert(hash);
    }

    /// The candidate record of this hash, for [`Self::find_at`]; prefetches it. The bucket should have
    /// been prefetched.
    #[inline(always)]
    pub fn candidate(&self, hash: u64) -> Candidate {
        let candidate = self.index.candidate(hash);
        if let Some(record) = self.records.get(candidate as usize) {
            cpu::prefetch(record);
        }
        Candidate(candidate)
    }

    #[inline]
    pub(in crate::session) fn record(&self, candidate: Candidate) -> Option<&Record> {
        self.records.get(candidate.0 as usize)
    }

    #[inline]
    pub(in crate::session) fn translation(&self, candidate: Candidate) -> Option<&Translation> {
        self.translations.get(candidate.0 as usize)
    }

    #[inline]
    pub(in crate::session) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The live session that `flow` belongs to.
    #[inline]
    pub fn find(&self, hash: u64, flow: &Flow, origin: TupleOrigin, now_s: u32) -> Option<Found> {
        self.find_at(self.candidate(hash), hash, flow, origin, now_s)
    }

    /// The same, with the candidate found before.
    #[inline]
    pub fn find_at(
        &self,
        candidate: Candidate,
        hash: u64,
        flow: &Flow,
        origin: TupleOrigin,
        now_s: u32,
    ) -> Option<Found> {
        if candidate.0 == NOTHING {
            return None;
        }
        let words = Words::of(flow);
        if let Some(record) = self.records.get(candidate.0 as usize)
            && let Some(entry) = record.read()
            && let Some(forward) = self.travels(candidate.0, &entry, &words, origin)
            && (!entry.is_translated() || record.is_still(entry.sequence))
        {
            let found = entry.found(candidate.0, forward);
            return (!self.is_idle(&found, now_s)).then_some(found);
        }
        self.find_slowly(hash, &words, origin, now_s)
    }

    #[inline(never)]
    fn find_slowly(
        &self,
        hash: u64,
        flow: &Words,
        origin: TupleOrigin,
        now_s: u32,
    ) -> Option<Found> {
        let found = self.search(hash, |index, entry| self.travels(index, entry, flow, origin))?;
        (!self.is_idle(&found, now_s)).then_some(found)
    }

    /// The first record under this hash for which `test` returns a direction.
    #[inline]
    pub(super) fn search(
        &self,
        hash: u64,
        test: impl Fn(u32, &Entry) -> Option<bool>,
    ) -> Option<Found> {
        if self.index.candidate(hash) == NOTHING {
            return None;
        }
        for index in self.index.records(hash) {
            let Some(record) = self.records.get(index as usize) else { continue };
            let Some(entry) = record.read() else { continue };
            if let Some(forward) = test(index, &entry)
                && (!entry.is_translated() || record.is_still(entry.sequence))
            {
                return Some(entry.found(index, forward));
            }
        }
        None
    }

    /// The same among sessions that are not idle; idle ones that are in the way end.
    pub(super) fn search_live(
        &self,
        hash: u64,
        now_s: u32,
        test: impl Fn(u32, &Entry) -> Option<bool>,
    ) -> Option<Found> {
        loop {
            let found = self.search(hash, &test)?;
            if !self.is_idle(&found, now_s) {
                return Some(found);
            }
            self.close(found.id);
        }
    }

    /// The direction of a flow in a session, by the flow's origin.
    ///
    /// In a translated session, a packet that enters has the tuple at the initiator if the initiator sent it, else that
    /// at the responder; a quoted one, which has left the switch, has the other one.
    #[inline]
    pub(super) fn travels(
        &self,
        index: u32,
        entry: &Entry,
        flow: &Words,
        origin: TupleOrigin,
    ) -> Option<bool> {
        let at_responder = entry.words.direction_of(flow);
        if !entry.is_translated() {
            return at_responder;
        }
        let forward_at_responder = origin == TupleOrigin::Quoted;
        if at_responder == Some(forward_at_responder) {
            return at_responder;
        }
        let at_initiator = self.translations[index as usize].initiator().direction_of(flow);
        at_initiator.filter(|forward| *forward != forward_at_responder)
    }

    /// The direction of a flow that either end of the session may show.
    #[inline]
    pub(super) fn is_any(&self, index: u32, entry: &Entry, flow: &Words) -> Option<bool> {
        let at_responder = entry.words.direction_of(flow);
        if at_responder.is_some() || !entry.is_translated() {
            return at_responder;
        }
        self.translations[index as usize].initiator().direction_of(flow)
    }
}
