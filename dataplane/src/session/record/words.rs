//! Flows as words of a record.

use acl::Address;

use crate::wire::Flow;

/// A flow as records store it, to be compared word by word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::session) struct Words {
    source: [u64; 2],
    destination: [u64; 2],
    /// Source port, destination port, 8 bits, protocol, 16 bits.
    pub(super) ends: u64,
}

const PORTS: u64 = 0xffff_ffff << 32;
const PROTOCOL: u64 = 0xff << 16;
pub(super) const TRANSLATED: u64 = 1 << 24;
/// Bits of the ends that no session sets.
pub(super) const UNUSED: u64 = 0x7f << 25;

/// The bits in which two addresses differ, in one word.
#[inline(always)]
pub(super) fn differ(one: &[u64; 2], other: &[u64; 2]) -> u64 {
    (one[0] ^ other[0]) | (one[1] ^ other[1])
}

/// The two words of an address.
#[inline(always)]
pub(super) fn halves(address: Address) -> [u64; 2] {
    [(address.bits() >> 64) as u64, address.bits() as u64]
}

impl Words {
    #[inline]
    pub(in crate::session) fn of(flow: &Flow) -> Self {
        Self {
            source: halves(flow.source),
            destination: halves(flow.destination),
            ends: u64::from(flow.source_port) << 48
                | u64::from(flow.destination_port) << 32
                | u64::from(flow.protocol) << 16,
        }
    }

    #[inline]
    pub(in crate::session) fn flow(&self) -> Flow {
        let address = |halves: [u64; 2]| {
            Address::from_bits(u128::from(halves[0]) << 64 | u128::from(halves[1]))
        };
        Flow {
            source: address(self.source),
            destination: address(self.destination),
            source_port: (self.ends >> 48) as u16,
            destination_port: (self.ends >> 32) as u16,
            protocol: (self.ends >> 16) as u8,
        }
    }

    /// Whether `flow` is this (`true`) or its reverse (`false`).
    #[inline]
    pub(in crate::session) fn direction_of(&self, flow: &Self) -> Option<bool> {
        if self.is(flow) {
            return Some(true);
        }
        self.is_reverse_of(flow).then_some(false)
    }

    /// Whether `flow` is this.
    // Compared without a branch for each word: most records that are looked at match.
    #[inline]
    pub(in crate::session) fn is(&self, flow: &Self) -> bool {
        let ends = self.ends & (PORTS | PROTOCOL);
        let differs = differ(&self.source, &flow.source)
            | differ(&self.destination, &flow.destination)
            | (ends ^ flow.ends);
        differs == 0
    }

    /// Whether both have the same ports and protocol.
    #[inline]
    pub(in crate::session) fn has_ends_of(&self, flow: &Self) -> bool {
        self.ends & (PORTS | PROTOCOL) == flow.ends
    }

    /// Whether `flow` is the reverse of this.
    #[inline]
    pub(in crate::session) fn is_reverse_of(&self, flow: &Self) -> bool {
        let ends = self.ends & (PORTS | PROTOCOL);
        let turned = ends >> 48 << 32 | (ends & PORTS) << 16 | ends & PROTOCOL;
        let differs = differ(&self.source, &flow.destination)
            | differ(&self.destination, &flow.source)
            | (turned ^ flow.ends);
        differs == 0
    }

    pub(in crate::session) fn values(&self) -> [u64; 5] {
        let [a, b] = self.source;
        let [c, d] = self.destination;
        [a, b, c, d, self.ends]
    }

    #[inline]
    pub(in crate::session) fn from_values([a, b, c, d, ends]: [u64; 5]) -> Self {
        Self { source: [a, b], destination: [c, d], ends }
    }
}
