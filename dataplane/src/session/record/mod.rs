//! One session: a cache line of eight words that any worker reads without a lock.
//!
//! | word | holds |
//! |---|---|
//! | 0 | sequence: odd while the session is in use, even while it is free or being written; highest bit: held |
//! | 1–4 | source and destination address as the initiator's packets show them at the responder |
//! | 5 | source port, destination port, whether it is translated, protocol, owner |
//! | 6 | low half of the generation that allowed it; adjacencies forward and reverse |
//! | 7 | second of the last packet, low bits of the sequence, what was seen of TCP |
//!
//! Words 1–5 change only while the sequence is even (but for the owner); a reader that finds the
//! same odd sequence before and after has read one session whole. Zeroed memory is a free record.
//!
//! A record is used again as soon as its session has ended, and a worker may still have read the
//! earlier one. Each change therefore names the session it is for:
//!
//! - The owner and word 6 are written while the session is held ([`Record::hold`]): it cannot end then. Word 6 is written whole, so that adjacencies belong to the generation beside them.
//! - Word 7 contains the low 24 bits of the sequence, so that its compare-and-swap fails on a later
//!   session.
//!
//! The original tuple of a translated session is in [`super::translation`], under the same
//! sequence; the MAC address beside it is written while the session is held.

mod read;
mod words;

pub(super) use read::{Entry, Hit, Reader};
use words::TRANSLATED;
pub(super) use words::Words;

use super::ConnectionState;
use super::found::is_later;
use super::owner::Owner;
use super::region::Cells;
use crate::Adjacency;
use crate::sync::{AtomicU64, Ordering, fence, spin_loop, yield_now};
use crate::wire::Flow;

#[inline]
pub(super) fn forwarding_word(generation: u64, forward: Adjacency, reverse: Adjacency) -> u64 {
    u64::from(generation as u32) << 32 | u64::from(forward.0) << 16 | u64::from(reverse.0)
}

/// The last word of a session whose last word was `old`.
#[inline]
pub(super) fn life_word(old: u64, last_s: u32, state: ConnectionState) -> u64 {
    u64::from(last_s) << 32 | old & LIFE_TAG | u64::from(state.0)
}

#[repr(align(64))]
#[derive(Default)]
pub(super) struct Record {
    words: [AtomicU64; 8],
}

// SAFETY: atomic integers only, 64 bytes of them.
#[allow(unsafe_code, reason = "stands in mapped memory")]
unsafe impl Cells for Record {}

const SEQUENCE: usize = 0;
const ENDS: usize = 5;
const FORWARDING: usize = 6;
const LIFE: usize = 7;

/// The session is held.
const HELD: u64 = 1 << 63;
/// Upper bound on sequences: a record used a million times a second reaches it after eight years.
const SEQUENCES: u64 = 1 << 48;
/// Low bits of the sequence in the last word.
const LIFE_TAG: u64 = 0xff_ffff << 8;

impl Record {
    /// Fills a free record of which the caller has exclusive use. `translate` writes the
    /// translation under the same sequence, if there is one.
    pub(super) fn open(
        &self,
        responder: &Flow,
        owner: Owner,
        forwarding: u64,
        (last_s, state): (u32, ConnectionState),
        translate: Option<impl FnOnce()>,
    ) -> u64 {
        let sequence = self.words[SEQUENCE].load(Ordering::Relaxed) + 1;
        let life = life_word(sequence >> 1 << 8, last_s, state);
        let mut values = Words::of(responder).values();
        let translated = if translate.is_some() { TRANSLATED } else { 0 };
        values[4] |= translated | u64::from(owner.0);
        // A reader of one of the words below must also see that the last session was closed.
        fence(Ordering::Release);
        for (word, value) in self.words[1..].iter().zip(values.into_iter().chain([forwarding])) {
            word.store(value, Ordering::Relaxed);
        }
        // An exchange, which comes after any note about the session before.
        self.words[LIFE].swap(life, Ordering::Relaxed);
        translate.into_iter().for_each(|translate| translate());
        self.words[SEQUENCE].store(sequence, Ordering::Release);
        sequence
    }

    /// Whether a record that begins with this word holds a session.
    pub(super) fn is_open(sequence: u64) -> bool {
        sequence & 1 != 0
    }

    /// Takes the session `sequence` out of use; `true` for the one caller that did it.
    pub(super) fn close(&self, sequence: u64) -> bool {
        self.exchange(sequence, sequence + 1)
    }

    /// Holds the session `sequence`, unless it has ended: it does not end before the guard is
    /// dropped, and no other thread holds it.
    #[inline]
    fn hold(&self, sequence: u64) -> Option<Held<'_>> {
        self.exchange(sequence, sequence | HELD).then(|| Held { record: self, sequence })
    }

    /// Replaces the sequence of a session that is not held; returns `false` if the session has
    /// ended.
    #[inline]
    fn exchange(&self, sequence: u64, new: u64) -> bool {
        let mut attempts = 0_u32;
        loop {
            let word = &self.words[SEQUENCE];
            match word.compare_exchange(sequence, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) if now == sequence | HELD => {
                    // Held for a few instructions, unless the holder was interrupted.
                    attempts += 1;
                    if attempts.is_multiple_of(64) {
                        yield_now();
                    } else {
                        spin_loop();
                    }
                }
                Err(_) => return false,
            }
        }
    }

    /// The content of a record that the caller has just closed.
    pub(super) fn remains(&self) -> Entry {
        self.load(self.words[SEQUENCE].load(Ordering::Relaxed))
    }

    /// The owner of the session that is here, or was.
    #[inline]
    pub(super) fn owner(&self) -> Owner {
        Owner(self.words[ENDS].load(Ordering::Relaxed) as u16)
    }

    /// Changes the owner from `from` to `to`; `true` for the one caller that did it.
    pub(super) fn change_owner(&self, sequence: u64, from: Owner, to: Owner) -> bool {
        if self.owner() != from {
            return false;
        }
        let Some(held) = self.hold(sequence) else { return false };
        let word = &held.record.words[ENDS];
        let ends = word.load(Ordering::Relaxed);
        let is_from = ends as u16 == from.0;
        if is_from {
            word.store(ends & !0xffff | u64::from(to.0), Ordering::Relaxed);
        }
        is_from
    }

    /// Recovers a record of an earlier process, which may have ended at any moment: clears the
    /// hold, and has its session re-evaluated at its next packet. Frees a record that no process
    /// leaves, and returns `false`.
    pub(super) fn recover(&self) -> bool {
        let sequence = self.words[SEQUENCE].load(Ordering::Relaxed) & !HELD;
        let [ends, life] = [ENDS, LIFE].map(|n| self.words[n].load(Ordering::Relaxed));
        let is_tagged = (life ^ sequence >> 1 << 8) & LIFE_TAG == 0;
        let is_plausible = sequence < SEQUENCES && is_tagged && ends & words::UNUSED == 0;
        if sequence & 1 != 0 && !is_plausible {
            self.words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
            return false;
        }
        self.words[SEQUENCE].store(sequence, Ordering::Relaxed);
        self.words[FORWARDING]
            .store(forwarding_word(0, Adjacency::NONE, Adjacency::NONE), Ordering::Relaxed);
        true
    }

    /// The session that is here, if any.
    #[inline]
    pub(super) fn read(&self) -> Option<Entry> {
        let sequence = self.words[SEQUENCE].load(Ordering::Acquire) & !HELD;
        if sequence & 1 == 0 {
            return None;
        }
        let entry = self.load(sequence);
        self.is_still(sequence).then_some(entry)
    }

    /// Begins to read the session that is here, if any.
    #[inline(always)]
    pub(super) fn reader(&self) -> Option<Reader<'_>> {
        let sequence = self.words[SEQUENCE].load(Ordering::Acquire) & !HELD;
        let ends = self.words[ENDS].load(Ordering::Relaxed);
        (sequence & 1 != 0).then_some(Reader { record: self, sequence, ends })
    }

    /// Whether everything read since the session was `sequence` belongs to that session.
    #[inline]
    pub(super) fn is_still(&self, sequence: u64) -> bool {
        fence(Ordering::Acquire);
        self.words[SEQUENCE].load(Ordering::Relaxed) & !HELD == sequence
    }

    #[inline]
    fn load(&self, sequence: u64) -> Entry {
        let word = |n: usize| self.words[n].load(Ordering::Relaxed);
        let words = Words::from_values([word(1), word(2), word(3), word(4), word(5)]);
        Entry { sequence, words, forwarding: word(FORWARDING), life: word(LIFE) }
    }

    /// Records that `generation` allowed the session, and the adjacency of one direction under it;
    /// the other direction's stays if it is of the same generation. A later generation stays as it
    /// is.
    #[inline]
    pub(super) fn set_forwarding(
        &self,
        sequence: u64,
        generation: u64,
        is_forward: bool,
        adjacency: Adjacency,
    ) {
        let Some(held) = self.hold(sequence) else { return };
        let word = &held.record.words[FORWARDING];
        let old = word.load(Ordering::Relaxed);
        let (of, generation_low) = ((old >> 32) as u32, generation as u32);
        if is_later(of, generation_low) {
            return;
        }
        let known = |shift: u32| match of == generation_low {
            true => Adjacency((old >> shift) as u16),
            false => Adjacency::NONE,
        };
        let new = match is_forward {
            true => forwarding_word(generation, adjacency, known(0)),
            false => forwarding_word(generation, known(16), adjacency),
        };
        word.store(new, Ordering::Relaxed);
    }

    /// Calls `write` while the session `sequence` is held, unless it has ended.
    #[cold]
    pub(super) fn while_held(&self, sequence: u64, write: impl FnOnce()) {
        if let Some(_held) = self.hold(sequence) {
            write();
        }
    }

    /// Records a packet; the next packet repairs an update lost to another worker's.
    #[inline]
    pub(super) fn set_life(&self, old: u64, new: u64) {
        if old != new {
            let _ =
                self.words[LIFE].compare_exchange(old, new, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

/// A session that does not end while this exists.
struct Held<'a> {
    record: &'a Record,
    sequence: u64,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.record.words[SEQUENCE].store(self.sequence, Ordering::Release);
    }
}

#[cfg(podgate_loom)]
mod models;

#[cfg(test)]
mod tests;
