//! The bare cost of one hash probe: what no classifier over 5-tuples can beat.

use super::rulesets::Header;

/// Exact 5-tuples in open addressing, half full, two words a slot.
pub(crate) struct ExactMatch {
    slots: Vec<[u64; 2]>,
    mask: usize,
}

impl ExactMatch {
    pub(crate) fn new(headers: &[Header]) -> Self {
        let size = (2 * headers.len().max(1)).next_power_of_two();
        let mut table = Self { slots: vec![[u64::MAX; 2]; size], mask: size - 1 };
        for header in headers {
            let key = words(header);
            let mut at = table.home(key);
            while table.slots[at] != [u64::MAX; 2] && table.slots[at] != key {
                at = (at + 1) & table.mask;
            }
            table.slots[at] = key;
        }
        table
    }

    #[inline]
    fn home(&self, key: [u64; 2]) -> usize {
        let product = u128::from(key[0] ^ 0x9e37_79b9_7f4a_7c15) * u128::from(key[1] | 1 << 63);
        (product as u64 ^ (product >> 64) as u64) as usize & self.mask
    }

    /// Whether each header is there; returns how many are. The loop's independent probes
    /// overlap, as vectors with prefetch do.
    pub(crate) fn count(&self, headers: &[Header]) -> usize {
        let mut found = 0;
        for header in headers {
            let key = words(header);
            let mut at = self.home(key);
            while self.slots[at] != key && self.slots[at] != [u64::MAX; 2] {
                at = (at + 1) & self.mask;
            }
            found += usize::from(self.slots[at] == key);
        }
        found
    }
}

#[inline]
fn words(header: &Header) -> [u64; 2] {
    let ports = u64::from(header.source_port) << 16 | u64::from(header.destination_port);
    [
        u64::from(header.source) << 32 | u64::from(header.destination),
        ports << 8 | u64::from(header.protocol),
    ]
}
