//! Translated sessions: their original tuples.
//!
//! Translations are an array parallel to the records, in memory that takes no space until it is
//! written.

use std::sync::atomic::{AtomicU64, Ordering};

use super::record::Words;
use super::region::Cells;
use crate::wire::{Flow, Mac};

/// Both tuples of one connection, each with the initiator's end as source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuples {
    /// The original tuple, as the initiator sends it.
    pub initiator: Flow,
    /// The reply tuple reversed, as the responder receives it.
    pub responder: Flow,
    /// MAC address that the initiator's last packet came from, if replies return to it (connections
    /// from outside the cluster); else zero.
    pub return_mac: Mac,
}

impl Tuples {
    /// A connection that is not translated.
    #[inline]
    pub fn plain(flow: Flow) -> Self {
        Self { initiator: flow, responder: flow, return_mac: Mac::default() }
    }

    /// Whether packets are rewritten.
    #[inline]
    pub fn is_translated(&self) -> bool {
        self.initiator != self.responder
    }

    /// The connection as policies evaluate it: the initiator's own source, the responder's own
    /// destination.
    #[inline]
    pub fn policy_flow(&self) -> Flow {
        Flow {
            source: self.initiator.source,
            source_port: self.initiator.source_port,
            ..self.responder
        }
    }
}

/// The original tuple of a session, encoded as in a record, and the MAC address to return to. Read
/// and written under the record's sequence.
#[derive(Default)]
pub(super) struct Translation([AtomicU64; 6]);

// SAFETY: atomic integers only.
#[allow(unsafe_code, reason = "stands in mapped memory")]
unsafe impl Cells for Translation {}

impl Translation {
    /// Writes it; the caller has exclusive use of the record.
    pub(super) fn write(&self, initiator: &Flow, return_mac: Mac) {
        let values = Words::of(initiator).values().into_iter().chain([mac_word(return_mac)]);
        for (word, value) in self.0.iter().zip(values) {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// The original tuple; the caller verifies that the session is still the same.
    #[inline]
    pub(super) fn initiator(&self) -> Words {
        let value = |n: usize| self.0[n].load(Ordering::Relaxed);
        Words::from_values([value(0), value(1), value(2), value(3), value(4)])
    }

    /// Replaces the MAC address of replies; the caller holds the session.
    pub(super) fn set_return_mac(&self, mac: Mac) {
        self.0[5].store(mac_word(mac), Ordering::Relaxed);
    }

    /// The MAC address of replies; as above.
    pub(super) fn return_mac(&self) -> Mac {
        let [.., a, b, c, d, e, f] = self.0[5].load(Ordering::Relaxed).to_be_bytes();
        [a, b, c, d, e, f]
    }
}

fn mac_word([a, b, c, d, e, f]: Mac) -> u64 {
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}
