//! The hash of a connection: keyed at random, and the same for both directions.

use ahash::RandomState;

use crate::wire::Flow;

/// Hashes flows under keys that nobody outside knows, so that nobody can aim at a bucket.
///
/// Folded multiplications (the construction of wyhash and of ahash's portable form): one for each
/// address, whose sum does not tell which was which, and one for that with the ports in order of
/// size. So only a flow with its ports exchanged has the same hash as another one.
#[derive(Clone, Debug)]
pub(super) struct FlowHash {
    keys: [u64; 4],
}

impl FlowHash {
    pub(super) fn new() -> Self {
        let random = RandomState::new();
        // A key of 0 would make a product of what it is multiplied with.
        Self { keys: [0, 1, 2, 3].map(|n: u64| random.hash_one(n) | 1) }
    }

    #[inline]
    pub(super) fn of(&self, flow: &Flow) -> u64 {
        let [first, second, third, fourth] = self.keys;
        let end = |address: acl::Address| {
            let bits = address.bits();
            fold(bits as u64 ^ first, (bits >> 64) as u64 ^ second)
        };
        let (from, to) = (flow.source_port, flow.destination_port);
        let ends = u64::from(from.min(to)) << 32
            | u64::from(from.max(to)) << 16
            | u64::from(flow.protocol);
        let addresses = end(flow.source).wrapping_add(end(flow.destination));
        fold(addresses ^ third, ends ^ fourth)
    }
}

#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The flows of one client and one server differ in 16 bits only; they must spread all the
    /// same, in the bits that choose a bucket and in those that tell slots apart.
    #[test]
    fn flows_that_differ_little_spread_well() {
        let hash = FlowHash::new();
        let mut buckets = vec![0_u32; 4096];
        let mut tags = std::collections::HashSet::new();
        for port in 0..=u16::MAX {
            let flow = Flow {
                source: acl::Address::from_v4_bits(0x0a01_0002),
                destination: acl::Address::from_v4_bits(0x0a01_0003),
                source_port: port,
                destination_port: 80,
                protocol: 6,
            };
            let value = hash.of(&flow);
            assert_eq!(value, hash.of(&flow.reversed()));
            buckets[value as usize % 4096] += 1;
            tags.insert(value >> 32);
        }
        // 16 on average, and 64 nowhere: that is twelve standard deviations away.
        assert!(buckets.iter().all(|count| (1..64).contains(count)), "{buckets:?}");
        assert!(tags.len() > 65_500);
    }
}
