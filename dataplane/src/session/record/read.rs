//! Reads of a record, while others may change it.

use std::hint::select_unpredictable;

use super::words::{self, TRANSLATED, Words};
use super::{FORWARDING, LIFE, Record};
use crate::session::{Found, Owner, SessionId};
use crate::sync::Ordering;
use crate::wire::Flow;

/// The content of a record in use.
#[derive(Clone, Copy)]
pub(in crate::session) struct Entry {
    pub(in crate::session) sequence: u64,
    /// The responder's tuple.
    pub(in crate::session) words: Words,
    pub(in crate::session) forwarding: u64,
    pub(in crate::session) life: u64,
}

impl Entry {
    #[inline]
    pub(in crate::session) fn is_translated(&self) -> bool {
        self.words.ends & TRANSLATED != 0
    }

    pub(in crate::session) fn owner(&self) -> Owner {
        Owner(self.words.ends as u16)
    }

    #[inline]
    pub(in crate::session) fn found(&self, index: u32, forward: bool) -> Found {
        Found {
            id: SessionId { index, sequence: self.sequence },
            forward,
            translated: self.is_translated(),
            protocol: (self.words.ends >> 16) as u8,
            forwarding: self.forwarding,
            life: self.life,
        }
    }
}

/// The fields of a session that the fast path has found.
#[derive(Clone, Copy)]
pub(in crate::session) struct Hit {
    /// Whether the flow is of the initiator's direction.
    pub(in crate::session) forward: bool,
    pub(in crate::session) forwarding: u64,
    pub(in crate::session) life: u64,
}

/// A read of a record in use, which may change meanwhile; what was read counts once [`finish`](Self::finish) says so.
pub(in crate::session) struct Reader<'a> {
    pub(super) record: &'a Record,
    pub(super) sequence: u64,
    pub(super) ends: u64,
}

impl Reader<'_> {
    /// Whether the session seems to be translated.
    #[inline(always)]
    pub(in crate::session) fn is_translated(&self) -> bool {
        self.ends & TRANSLATED != 0
    }

    /// The session that is here, if `flow` is its responder's tuple or the reverse.
    // The direction is chosen without a branch: no predictor knows it. Words are compared as they are
    // read, as few registers are left.
    #[inline(always)]
    pub(in crate::session) fn hit(&self, flow: &Flow) -> Option<Hit> {
        let ends = self.ends;
        let word = |n: usize| self.record.words[n].load(Ordering::Relaxed);
        let (from, to) = (words::halves(flow.source), words::halves(flow.destination));
        let source = [word(1), word(2)];
        let from_source = words::differ(&source, &from);
        let forward = from_source == 0;
        let choose = |one: u64, other: u64| select_unpredictable(forward, one, other);
        let far = [choose(to[0], from[0]), choose(to[1], from[1])];
        let mut differs = choose(from_source, words::differ(&source, &to));
        differs |= words::differ(&[word(3), word(4)], &far);
        let ports = u32::from(flow.source_port) | u32::from(flow.destination_port) << 16;
        let ports = select_unpredictable(forward, ports.rotate_left(16), ports);
        differs |= u64::from((ends >> 32) as u32 ^ ports);
        differs |= u64::from((ends >> 16) as u8 ^ flow.protocol);
        self.finish(forward, differs == 0)
    }

    /// The responder's tuple.
    #[inline(always)]
    pub(in crate::session) fn responder(&self) -> Words {
        let word = |n: usize| self.record.words[n].load(Ordering::Relaxed);
        Words::from_values([word(1), word(2), word(3), word(4), self.ends])
    }

    /// Reads the rest; `None` if the session is not the one in question, or the record has changed meanwhile.
    #[inline(always)]
    pub(in crate::session) fn finish(&self, forward: bool, is_it: bool) -> Option<Hit> {
        let word = |n: usize| self.record.words[n].load(Ordering::Relaxed);
        let (forwarding, life) = (word(FORWARDING), word(LIFE));
        let is_it = self.record.is_still(self.sequence) & is_it;
        is_it.then_some(Hit { forward, forwarding, life })
    }
}
