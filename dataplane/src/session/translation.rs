//! Sessions whose packets are rewritten on their way: what they look like at their opener.
//!
//! Translations stand beside the records, place by place, and only where there were any: the
//! table comes in pieces that are made when they are first needed. They are read and written
//! under the record's sequence.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use super::record::Words;
use crate::wire::{Flow, Mac};

/// Both sights of one connection, each with the opener as source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Views {
    /// What the opener sends and gets answered by.
    pub opener: Flow,
    /// What the receiver gets.
    pub receiver: Flow,
    /// MAC address that the opener's packets came from, where answers must go back the same
    /// way (connections from outside the cluster); else zero.
    pub return_mac: Mac,
}

impl Views {
    /// A connection that is not translated.
    #[inline]
    pub fn plain(flow: Flow) -> Self {
        Self { opener: flow, receiver: flow, return_mac: Mac::default() }
    }

    /// Whether packets are rewritten.
    #[inline]
    pub fn is_translated(&self) -> bool {
        self.opener != self.receiver
    }

    /// The connection as policies see it: who really opens it, and who really gets it.
    #[inline]
    pub fn judged(&self) -> Flow {
        Flow { source: self.opener.source, source_port: self.opener.source_port, ..self.receiver }
    }
}

const PIECE: usize = 4096;
const WORDS: usize = 6;

struct Translation([AtomicU64; WORDS]);

/// All translations of a table.
pub(super) struct Translations {
    pieces: Box<[OnceLock<Box<[Translation]>>]>,
}

impl Translations {
    pub(super) fn new(capacity: usize) -> Self {
        Self { pieces: (0..capacity.div_ceil(PIECE)).map(|_| OnceLock::new()).collect() }
    }

    /// Writes one; the caller is the only one who knows of the record.
    pub(super) fn write(&self, index: u32, opener: &Flow, return_mac: Mac) {
        let make = || (0..PIECE).map(|_| Translation(Default::default())).collect();
        let piece = self.pieces[index as usize / PIECE].get_or_init(make);
        let [a, b, c, d, e, f] = return_mac;
        let mac = u64::from_be_bytes([0, 0, a, b, c, d, e, f]);
        let values = Words::of(opener).values().into_iter().chain([mac]);
        for (word, value) in piece[index as usize % PIECE].0.iter().zip(values) {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// The opener's sight; the caller makes sure that the session is still the same.
    #[inline]
    pub(super) fn opener(&self, index: u32) -> Option<Words> {
        let words = &self.pieces[index as usize / PIECE].get()?[index as usize % PIECE].0;
        let value = |n: usize| words[n].load(Ordering::Relaxed);
        Some(Words::from_values([value(0), value(1), value(2), value(3), value(4)]))
    }

    /// Where answers must go back to; as above.
    pub(super) fn return_mac(&self, index: u32) -> Option<Mac> {
        let words = &self.pieces[index as usize / PIECE].get()?[index as usize % PIECE].0;
        let [.., a, b, c, d, e, f] = words[5].load(Ordering::Relaxed).to_be_bytes();
        Some([a, b, c, d, e, f])
    }
}
