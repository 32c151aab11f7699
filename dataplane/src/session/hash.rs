//! The hash of a connection: keyed at random, and the same for both directions.

use ahash::RandomState;

use crate::wire::Flow;

/// Hashes flows under secret keys, so that no sender can aim at a bucket.
///
/// Folded multiplications (the construction of wyhash and of ahash's portable form): one of both
/// ends, the smaller one first, and one more. With the first alone, flows that differ in their
/// ports only would lie in steps of equal size, and under some keys fill few buckets.
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
        let end = |address: acl::Address, port: u16| match address.is_v4() {
            true => end_v4(address, port),
            false => self.end_v6(address, port),
        };
        let source = end(flow.source, flow.source_port);
        let destination = end(flow.destination, flow.destination_port);
        self.of_ends(source, destination, flow.protocol)
    }

    /// The same for an IPv4 flow.
    #[inline]
    pub(super) fn of_v4(&self, flow: &Flow) -> u64 {
        let source = end_v4(flow.source, flow.source_port);
        let destination = end_v4(flow.destination, flow.destination_port);
        self.of_ends(source, destination, flow.protocol)
    }

    /// The same for an IPv6 flow.
    #[inline]
    pub(super) fn of_v6(&self, flow: &Flow) -> u64 {
        let source = self.end_v6(flow.source, flow.source_port);
        let destination = self.end_v6(flow.destination, flow.destination_port);
        self.of_ends(source, destination, flow.protocol)
    }

    #[inline]
    fn end_v6(&self, address: acl::Address, port: u16) -> u64 {
        let ([.., third, fourth], bits) = (self.keys, address.bits());
        let number = fold(bits as u64 ^ third, (bits >> 64) as u64 ^ fourth);
        number.rotate_left(16) ^ u64::from(port)
    }

    #[inline]
    fn of_ends(&self, source: u64, destination: u64, protocol: u8) -> u64 {
        let [first, second, third, fourth] = self.keys;
        let (one, other) = (source.min(destination), source.max(destination));
        let protocol = u64::from(protocol) << 48;
        fold(fold(one ^ first, other ^ second) ^ third ^ protocol, fourth)
    }

    /// Hashes one address, or any 128 bits.
    pub(super) fn of_address(&self, address: acl::Address) -> u64 {
        let [first, second, third, fourth] = self.keys;
        let bits = address.bits();
        fold(fold(bits as u64 ^ third, (bits >> 64) as u64 ^ fourth) ^ first, second)
    }
}

#[inline]
fn end_v4(address: acl::Address, port: u16) -> u64 {
    (address.bits() as u64 & 0xffff_ffff).rotate_left(16) ^ u64::from(port)
}

#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Flows of a few clients and servers differ in a few bits only; under whatever keys, they
    /// must spread all the same, in the bits that choose a bucket and in those that tell slots
    /// apart.
    #[test]
    fn flows_that_differ_little_spread_well() {
        let v4 = |bits: u32| acl::Address::from_v4_bits(bits);
        let v6 = |n: u64| acl::Address::from_bits(0x2001_0db8 << 96 | u128::from(n));
        type Shape = fn(u32) -> (u32, u16, u16);
        let shapes: [Shape; 4] = [
            |n| (0, n as u16, 80),
            |n| (0, 1 + n as u16 % 4096, 1 + (n / 4096) as u16),
            |n| (n, 40_000, 443),
            |n| (n / 64 * 256, 1024 + 2 * (n % 64) as u16, 443),
        ];
        for (n, shape) in std::iter::repeat_n(shapes, 8).flatten().enumerate() {
            let hash = FlowHash::new();
            let mut buckets = vec![0_u32; 32_768];
            let mut tags = std::collections::HashSet::new();
            for (client, from, to) in (0..65_536).map(shape) {
                let (source, destination) = match n / 4 % 2 {
                    0 => (v4(0x0a01_0002 + client), v4(0x0a01_0003)),
                    _ => (v6(2 + u64::from(client)), v6(1 << 63)),
                };
                let flow = Flow {
                    source,
                    destination,
                    source_port: from,
                    destination_port: to,
                    protocol: 6,
                };
                let value = hash.of(&flow);
                assert_eq!(value, hash.of(&flow.reversed()));
                let quick = if flow.source.is_v4() { hash.of_v4(&flow) } else { hash.of_v6(&flow) };
                assert_eq!(value, quick);
                buckets[value as usize % 32_768] += 1;
                tags.insert(value >> 32);
            }
            // Two on average. Of 65,536 that are thrown at random, more than 8 lie in one bucket
            // about eight times, and more than 16 never.
            let crowded: u32 = buckets.iter().map(|count| count.saturating_sub(8)).sum();
            assert!(crowded < 100, "{crowded} of keys {:?}", hash.keys);
            assert!(tags.len() > 65_500, "{} of keys {:?}", tags.len(), hash.keys);
        }
    }
}
