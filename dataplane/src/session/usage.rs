//! Usage of a session: its creation time, and its packets and bytes where they are counted.
//!
//! Forwarding does not read it. The array stands beside the records, in memory that takes no space
//! until it is written: once for each session, and for each packet if packets are counted.

use std::sync::atomic::{AtomicU64, Ordering};

use super::region::Cells;

/// Packets and bytes of one session so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Second of its creation, on the clock of [`Found::last_seen`](super::Found::last_seen); `None`
    /// for a session of an earlier version of the switch.
    pub created_s: Option<u32>,
    /// The low 31 bits of the generation that allowed its first packet.
    pub generation: u32,
    /// Packets in both directions since then; 0 while packets are not counted.
    pub packets: u64,
    /// Their bytes, Ethernet headers included.
    pub bytes: u64,
}

/// The creation time plus one in 33 bits and above it the generation, packets, and bytes. Reset under the record's exclusive use; a reader
/// verifies that the session is still the same.
#[derive(Default)]
pub(super) struct Account([AtomicU64; 3]);

// SAFETY: atomic integers only.
#[allow(unsafe_code, reason = "stands in mapped memory")]
unsafe impl Cells for Account {}

/// Bits of the creation time plus one.
const CREATED_BITS: u32 = 33;

impl Account {
    /// Starts the account of a new session.
    pub(super) fn start(&self, now_s: u32, generation: u64) {
        let opened = (u64::from(now_s) + 1) | (generation << CREATED_BITS);
        for (word, value) in self.0.iter().zip([opened, 0, 0]) {
            word.store(value, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(super) fn add(&self, packets: u64, bytes: u64) {
        self.0[1].fetch_add(packets, Ordering::Relaxed);
        self.0[2].fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn usage(&self) -> Usage {
        let [opened, packets, bytes] = self.0.each_ref().map(|word| word.load(Ordering::Relaxed));
        let created = opened & ((1 << CREATED_BITS) - 1);
        let created_s = created.checked_sub(1).and_then(|it| u32::try_from(it).ok());
        Usage { created_s, generation: (opened >> CREATED_BITS) as u32, packets, bytes }
    }
}
