//! One session: a cache line of eight words that any worker reads without a lock.
//!
//! | word | holds |
//! |---|---|
//! | 0 | sequence: even while the session is in use, odd while it is free or being written |
//! | 1–4 | source and destination address as the opener's packets show them |
//! | 5 | source port, destination port, protocol, the port that pays for the session |
//! | 6 | low half of the generation that allowed it; output ports forward and reverse |
//! | 7 | second of the last packet, what was seen of TCP |
//!
//! Words 1–5 change only while the sequence is odd; a reader that finds the same even sequence
//! before and after has read one session whole. Word 6 is replaced whole, so that output ports
//! always belong to the generation beside them.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use acl::Address;

use super::TcpState;
use crate::PortId;
use crate::wire::Flow;

/// A session by its place, and which of the sessions that were ever there it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionId {
    pub(super) index: u32,
    pub(super) sequence: u64,
}

/// A session as a lookup found it.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// Which session.
    pub id: SessionId,
    /// Whether the packet travels in the opener's direction.
    pub forward: bool,
    /// The connection as the opener's packets show it.
    pub flow: Flow,
    pub(super) judged: u64,
    pub(super) life: u64,
}

impl Found {
    /// Whether the session was allowed by this generation (and need not be judged again).
    #[inline]
    pub fn is_of(&self, generation: u64) -> bool {
        (self.judged >> 32) as u32 == generation as u32
    }

    /// The output port of this direction as of the session's generation, or [`PortId::NONE`].
    #[inline]
    pub fn out_port(&self) -> PortId {
        let shift = if self.forward { 16 } else { 0 };
        PortId((self.judged >> shift) as u16)
    }

    /// What was seen of TCP.
    #[inline]
    pub fn state(&self) -> TcpState {
        TcpState(self.life as u8)
    }

    #[inline]
    pub(super) fn last_seen(&self) -> u32 {
        (self.life >> 32) as u32
    }
}

#[repr(align(64))]
pub(super) struct Record {
    words: [AtomicU64; 8],
}

const SEQUENCE: usize = 0;
const ENDS: usize = 5;
const JUDGED: usize = 6;
const LIFE: usize = 7;

pub(super) fn judged_word(generation: u64, forward: PortId, reverse: PortId) -> u64 {
    u64::from(generation as u32) << 32 | u64::from(forward.0) << 16 | u64::from(reverse.0)
}

pub(super) fn life_word(seen: u32, state: TcpState) -> u64 {
    u64::from(seen) << 32 | u64::from(state.0)
}

impl Record {
    pub(super) fn free() -> Self {
        let record = Self { words: Default::default() };
        record.words[SEQUENCE].store(1, Ordering::Relaxed);
        record
    }

    /// Fills a free record that the caller alone knows of.
    pub(super) fn open(&self, flow: &Flow, payer: PortId, judged: u64, life: u64) -> u64 {
        let (source, destination) = (flow.source.bits(), flow.destination.bits());
        let ends = u64::from(flow.source_port) << 48
            | u64::from(flow.destination_port) << 32
            | u64::from(flow.protocol) << 16
            | u64::from(payer.0);
        let values = [
            (source >> 64) as u64,
            source as u64,
            (destination >> 64) as u64,
            destination as u64,
            ends,
            judged,
            life,
        ];
        // Whoever reads one of the words below must also see that the last session was closed.
        fence(Ordering::Release);
        for (word, value) in self.words[1..].iter().zip(values) {
            word.store(value, Ordering::Relaxed);
        }
        let sequence = self.words[SEQUENCE].load(Ordering::Relaxed) + 1;
        self.words[SEQUENCE].store(sequence, Ordering::Release);
        sequence
    }

    /// Takes the session `sequence` out of use; `true` for the one caller that did it.
    pub(super) fn close(&self, sequence: u64) -> bool {
        let word = &self.words[SEQUENCE];
        word.compare_exchange(sequence, sequence + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// The session that is here, if any, with the port that pays for it.
    #[inline]
    pub(super) fn read(&self, index: u32) -> Option<(Found, PortId)> {
        let sequence = self.words[SEQUENCE].load(Ordering::Acquire);
        if sequence & 1 == 1 {
            return None;
        }
        let word = |n: usize| self.words[n].load(Ordering::Relaxed);
        let address =
            |n: usize| Address::from_bits(u128::from(word(n)) << 64 | u128::from(word(n + 1)));
        let ends = word(ENDS);
        let flow = Flow {
            source: address(1),
            destination: address(3),
            source_port: (ends >> 48) as u16,
            destination_port: (ends >> 32) as u16,
            protocol: (ends >> 16) as u8,
        };
        let (judged, life) = (word(JUDGED), word(LIFE));
        fence(Ordering::Acquire);
        let unchanged = self.words[SEQUENCE].load(Ordering::Relaxed) == sequence;
        let id = SessionId { index, sequence };
        unchanged.then_some((Found { id, forward: true, flow, judged, life }, PortId(ends as u16)))
    }

    /// Replaces the judgement, unless another worker did meanwhile (then it will do).
    #[inline]
    pub(super) fn set_judged(&self, old: u64, new: u64) {
        let _ = self.words[JUDGED].compare_exchange(old, new, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Notes a packet; a note lost to another worker's is made up for by the next packet.
    #[inline]
    pub(super) fn set_life(&self, old: u64, new: u64) {
        if old != new {
            let _ =
                self.words[LIFE].compare_exchange(old, new, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}
