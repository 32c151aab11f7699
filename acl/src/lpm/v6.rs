//! Longest-prefix match on IPv6: one hash of all networks, probed by length.
//!
//! IPv6 plans use few prefix lengths, so a probe for each length in use, longest first,
//! answers in few steps, and a change touches one entry.

use crate::paged::Grouped;
use crate::prefix::Prefix;

/// IPv6 networks and the number of each.
#[derive(Clone, Debug)]
pub(crate) struct V6 {
    slots: Grouped<Slot, 128>,
    /// Number of slots less one; their number is a power of two.
    mask: usize,
    seed: u64,
    entries: usize,
    /// Networks of each length.
    counts: Vec<u32>,
    /// Lengths in use, longest first.
    lengths: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    bits: u128,
    /// 0 where the slot is free.
    value: u32,
    length: u8,
}

impl V6 {
    pub(crate) fn new() -> Self {
        Self::with_slots(16, crate::seed())
    }

    fn with_slots(slots: usize, seed: u64) -> Self {
        Self {
            slots: Grouped::filled(slots, &Slot::default()),
            mask: slots - 1,
            seed,
            entries: 0,
            counts: vec![0; 129],
            lengths: Vec::new(),
        }
    }

    #[inline]
    fn home(&self, bits: u128, length: u8) -> usize {
        let words = [bits as u64, (bits >> 64) as u64];
        let mixed = fold(words[0] ^ self.seed, words[1] ^ FRACTION.rotate_left(length.into()));
        mixed as usize & self.mask
    }

    /// The number of the longest network around `bits`, or 0.
    #[inline]
    pub(crate) fn lookup(&self, bits: u128) -> u32 {
        for length in &self.lengths {
            let bits = bits & crate::prefix::mask(*length);
            let value = self.slots.get(self.find(bits, *length)).value;
            if value != 0 {
                return value;
            }
        }
        0
    }

    /// The slot that holds a network, or the free one where it would go.
    #[inline]
    fn find(&self, bits: u128, length: u8) -> usize {
        let mut at = self.home(bits, length);
        loop {
            let slot = self.slots.get(at);
            if slot.value == 0 || (slot.bits == bits && slot.length == length) {
                return at;
            }
            at = (at + 1) & self.mask;
        }
    }

    /// Sets the number of a network, which is not 0.
    pub(crate) fn insert(&mut self, prefix: Prefix, value: u32) {
        if 2 * (self.entries + 1) > self.mask + 1 {
            let mut larger = Self::with_slots(2 * (self.mask + 1), self.seed);
            for at in 0..=self.mask {
                let slot = *self.slots.get(at);
                if slot.value != 0 {
                    larger.put(slot);
                }
            }
            *self = Self {
                counts: std::mem::take(&mut self.counts),
                lengths: std::mem::take(&mut self.lengths),
                ..larger
            };
        }
        let slot = Slot { bits: prefix.first().bits(), value, length: prefix.length() };
        if self.put(slot) {
            self.count(slot.length, true);
        }
    }

    /// Whether the network is new.
    fn put(&mut self, slot: Slot) -> bool {
        let at = self.find(slot.bits, slot.length);
        let fresh = self.slots.get(at).value == 0;
        *self.slots.get_mut(at) = slot;
        self.entries += usize::from(fresh);
        fresh
    }

    /// Forgets a network.
    pub(crate) fn remove(&mut self, prefix: Prefix) {
        let mut hole = self.find(prefix.first().bits(), prefix.length());
        if self.slots.get(hole).value == 0 {
            return;
        }
        self.entries -= 1;
        self.count(prefix.length(), false);
        // Entries after the hole move back unless that would put them before their home.
        let mut at = hole;
        loop {
            at = (at + 1) & self.mask;
            let slot = *self.slots.get(at);
            if slot.value == 0 {
                break;
            }
            let from_home = at.wrapping_sub(self.home(slot.bits, slot.length)) & self.mask;
            if from_home >= (at.wrapping_sub(hole) & self.mask) {
                *self.slots.get_mut(hole) = slot;
                hole = at;
            }
        }
        *self.slots.get_mut(hole) = Slot::default();
    }

    fn count(&mut self, length: u8, up: bool) {
        let count = &mut self.counts[usize::from(length)];
        *count = if up { *count + 1 } else { *count - 1 };
        self.lengths = (0..=128).rev().filter(|l| self.counts[usize::from(*l)] != 0).collect();
    }

    pub(crate) fn bytes(&self) -> usize {
        self.slots.bytes() + self.counts.len() * 4
    }
}

/// The golden ratio's fraction: bits without a pattern.
const FRACTION: u64 = 0x9e37_79b9_7f4a_7c15;

/// Both halves of a 128-bit product, so that every bit counts.
#[inline]
pub(crate) fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b | 1 << 63);
    product as u64 ^ (product >> 64) as u64
}
