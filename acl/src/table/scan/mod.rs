//! Lists of rules, cut by ports and compared.
//!
//! For tables whose rules have so many distinct ports and ranges that [rows](super::lists::Rows) by
//! transport class would not fit. A long list is [cut](build) into parts of equal width on one axis, by which a
//! lookup takes the part without a search; what is left at a leaf is compared, eight rules at a time.

mod build;

use super::lists::{ListId, Lists, NONE};
use crate::Key;
use crate::simd::{self, CONDITIONS, SIDE_BY_SIDE};
pub(super) use build::ScansBuilder;

/// Lists of entries, and the cuts above long ones. A list is a [node](Node).
#[derive(Debug)]
pub(super) struct Scans {
    /// Numbers of protocols, small ones.
    protocols: Box<[u8; 256]>,
    /// The parts of cuts.
    parts: Vec<ListId>,
    /// Blocks of entries, each its columns one after the other: [conditions](simd::first_fit), then
    /// both halves of the rules. And room for a block of eight.
    entries: Vec<u16>,
    /// Memory accesses of the longest way from a list to a rule.
    loads: usize,
}

/// Columns of an entry.
const COLUMNS: usize = CONDITIONS + 2;

/// What the second word of a list says.
///
/// ```text
/// leaf    entries << 4 | 0
/// cut     shift << 4 | bits
/// ```
///
/// The part of a cut is that many bits of a key's [word](Scans::word) from `shift` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Node {
    Leaf { entries: usize },
    Cut { shift: u32, bits: u32 },
}

impl Node {
    #[inline(always)]
    fn of(list: ListId) -> Self {
        match list.cells & 15 {
            0 => Self::Leaf { entries: (list.cells >> 4) as usize },
            bits => Self::Cut { shift: list.cells >> 4, bits },
        }
    }

    /// As the list whose entries, or parts, begin there.
    fn list(self, first: usize) -> ListId {
        let cells = match self {
            Self::Leaf { entries } => (entries as u32) << 4,
            Self::Cut { shift, bits } => shift << 4 | bits,
        };
        ListId { rules: first as u32, cells }
    }
}

impl Scans {
    /// Source port, destination port and number of the protocol of a key.
    #[inline(always)]
    fn word(&self, key: &Key) -> u64 {
        u64::from(key.source_port)
            | u64::from(key.destination_port) << 16
            | u64::from(self.protocols[usize::from(key.protocol)]) << 32
    }

    pub(super) fn loads(&self) -> usize {
        self.loads
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.protocols) + size_of_val(&*self.parts) + size_of_val(&*self.entries)
    }

    /// The first rule of a leaf that a key matches, or [`NONE`].
    #[inline(always)]
    fn first_of_leaf(&self, first: u32, entries: usize, key: &Key, best: u32) -> u32 {
        let exact = u16::from(key.protocol) | u16::from(key.tcp_flags) << 8;
        let values = [key.source_port, key.destination_port, exact];
        let mut rest = &self.entries[first as usize * COLUMNS..];
        let mut left = entries;
        while left > 0 {
            let count = left.min(SIDE_BY_SIDE);
            let rule = |at: usize| {
                let [low, high] =
                    [CONDITIONS, CONDITIONS + 1].map(|column| rest[column * count + at]);
                u32::from(high) << 16 | u32::from(low)
            };
            if let Some(at) = simd::first_fit(rest, count, values) {
                return rule(at);
            }
            left -= count;
            if left > 0 && rule(count - 1) >= best {
                break;
            }
            rest = &rest[count * COLUMNS..];
        }
        NONE
    }
}

impl Lists for &Scans {
    #[inline(always)]
    fn first(self, mut list: ListId, _: u32, key: &Key, best: u32) -> u32 {
        let word = self.word(key);
        loop {
            match Node::of(list) {
                Node::Leaf { entries } => {
                    return self.first_of_leaf(list.rules, entries, key, best);
                }
                Node::Cut { shift, bits } => {
                    let part = (word >> (shift & 63)) as u32 & ((1 << bits) - 1);
                    list = self.parts[(list.rules + part) as usize];
                }
            }
        }
    }
}
