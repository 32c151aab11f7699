//! Lookups in the session table.

use super::{Guess, Sessions, TupleOrigin};
use crate::cpu;
use crate::session::index::NOTHING;
use crate::session::record::{Record, Seen, Words};
use crate::session::timeouts::Limits;
use crate::session::translation::Translation;
use crate::session::Found;
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

    /// Guesses the record of this hash, for [`Self::find_at`], and prefetches it. The bucket should
    /// have been prefetched.
    #[inline(always)]
    pub fn guess(&self, hash: u64) -> Guess {
        let guess = self.index.guess(hash);
        if let Some(record) = self.records.get(guess as usize) {
            cpu::prefetch(record);
        }
        Guess(guess)
    }

    #[inline]
    pub(in crate::session) fn record(&self, guess: Guess) -> Option<&Record> {
        self.records.get(guess.0 as usize)
    }

    #[inline]
    pub(in crate::session) fn translation(&self, guess: Guess) -> Option<&Translation> {
        self.translations.get(guess.0 as usize)
    }

    #[inline]
    pub(in crate::session) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The live session that `flow` belongs to.
    #[inline]
    pub fn find(&self, hash: u64, flow: &Flow, origin: TupleOrigin, now_s: u32) -> Option<Found> {
        self.find_at(self.guess(hash), hash, flow, origin, now_s)
    }

    /// The same, with the guess made before.
    #[inline]
    pub fn find_at(
        &self,
        guess: Guess,
        hash: u64,
        flow: &Flow,
        origin: TupleOrigin,
        now_s: u32,
    ) -> Option<Found> {
        if guess.0 == NOTHING {
            return None;
        }
        let words = Words::of(flow);
        if let Some(record) = self.records.get(guess.0 as usize)
            && let Some(seen) = record.read()
            && let Some(forward) = self.travels(guess.0, &seen, &words, origin)
            && (!seen.is_translated() || record.is_still(seen.sequence))
        {
            let found = seen.found(guess.0, forward);
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
        let found = self.search(hash, |index, seen| self.travels(index, seen, flow, origin))?;
        (!self.is_idle(&found, now_s)).then_some(found)
    }

    /// The first record under this hash for which `test` returns a direction.
    #[inline]
    pub(super) fn search(
        &self,
        hash: u64,
        test: impl Fn(u32, &Seen) -> Option<bool>,
    ) -> Option<Found> {
        if self.index.guess(hash) == NOTHING {
            return None;
        }
        for index in self.index.records(hash) {
            let Some(record) = self.records.get(index as usize) else { continue };
            let Some(seen) = record.read() else { continue };
            if let Some(forward) = test(index, &seen)
                && (!seen.is_translated() || record.is_still(seen.sequence))
            {
                return Some(seen.found(index, forward));
            }
        }
        None
    }

    /// The same among sessions that are not idle; idle ones that are in the way end.
    pub(super) fn search_live(
        &self,
        hash: u64,
        now_s: u32,
        test: impl Fn(u32, &Seen) -> Option<bool>,
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
        seen: &Seen,
        flow: &Words,
        origin: TupleOrigin,
    ) -> Option<bool> {
        let at_responder = seen.words.direction_of(flow);
        if !seen.is_translated() {
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
    pub(super) fn is_any(&self, index: u32, seen: &Seen, flow: &Words) -> Option<bool> {
        let at_responder = seen.words.direction_of(flow);
        if at_responder.is_some() || !seen.is_translated() {
            return at_responder;
        }
        self.translations[index as usize].initiator().direction_of(flow)
    }
}
