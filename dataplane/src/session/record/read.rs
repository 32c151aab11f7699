//! Reads of a record, while others may change it.

use std::hint::select_unpredictable;

use super::words::{self, TRANSLATED, Words};
use super::{FORWARDING, LIFE, Record};
use crate::session::{Found, Owner, SessionId};
use crate::sync::Ordering;
use crate::wire::Flow;

/// The content of a record in use.
#[derive(Clone, Copy)]
pub(in crate::session) struct Seen {
    pub(in crate::session) sequence: u64,
    /// The responder's tuple.
    pub(in crate::session) words: Words,
    pub(in crate::session) forwarding: u64,
    pub(in crate::session) life: u64,
}

impl Seen {
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

/// The fields of a record in use that the fast path reads.
#[derive(Clone, Copy)]
pub(in crate::session) struct Glimpse {
    /// Whether the flow is of the initiator's direction.
    pub(in crate::session) forward: bool,
    pub(in crate::session) forwarding: u64,
    pub(in crate::session) life: u64,
}

/// A first look at a record in use, which may change at any time.
pub(in crate::session) struct Peek<'a> {
    pub(super) record: &'a Record,
    pub(super) sequence: u64,
    pub(super) ends: u64,
}

impl Peek<'_> {
    /// Whether the session seems to be translated.
    #[inline(always)]
    pub(in crate::session) fn is_translated(&self) -> bool {
        self.ends & TRANSLATED != 0
    }

    /// The session that is here, if `flow` is its responder's tuple or the reverse.
    // The direction is chosen without a branch: no predictor knows it. Words are compared as they are
    // read, as few registers are left.
    #[inline(always)]
    pub(in crate::session) fn glimpse(&self, flow: &Flow) -> Option<Glimpse> {
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
        self.rest(forward, differs == 0)
    }

    /// The responder's tuple.
    #[inline(always)]
    pub(in crate::session) fn responder(&self) -> Words {
        let word = |n: usize| self.record.words[n].load(Ordering::Relaxed);
        Words::from_values([word(1), word(2), word(3), word(4), self.ends])
    }

    /// The rest of a session that is the one in question, if all that was read is of one session.
    #[inline(always)]
    pub(in crate::session) fn rest(&self, forward: bool, is_it: bool) -> Option<Glimpse> {
        let word = |n: usize| self.record.words[n].load(Ordering::Relaxed);
        let (forwarding, life) = (word(FORWARDING), word(LIFE));
        let is_it = self.record.is_still(self.sequence) & is_it;
        is_it.then_some(Glimpse { forward, forwarding, life })
    }
}
