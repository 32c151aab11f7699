//! Addresses to the ranges that networks cut the address space into.
//!
//! ```text
//! networks       10.0.0.0/8 = a     10.1.0.0/16 = b
//! ranges         ..9.255.255.255    ..10.0.255.255    ..10.1.255.255    ..10.255.255.255    ..end
//! values         none               a                 b                 a                   none
//! ```
//!
//! A network that ends needs no backtracking: what is behind it is a range of its own. Ranges are
//! found in a [tree] of cache lines, which takes as many steps for every address: by all of an IPv4
//! address, by the upper half of an IPv6 address. The lower half is halved in the ranges that end
//! within one upper half, of which there is one unless networks are longer than /64.

mod tree;

use std::hint::select_unpredictable;

use crate::Address;
use crate::addresses::Addresses;
use crate::prefix::{Prefix, mask};
use crate::simd::VECTOR;
use tree::Tree;

/// Numbers of ranges by address, those of IPv4 first.
#[derive(Debug)]
pub(super) struct Ranges {
    v4: V4,
    v6: V6,
    /// IPv4 ranges.
    v4_count: u32,
    /// What numbers are multiplied by.
    stride: u32,
}

/// IPv4 ranges.
#[derive(Debug)]
struct V4 {
    /// Finds how many ranges end before an address.
    tree: Tree<u32>,
    /// Finds the same with AVX-512.
    #[cfg(target_arch = "x86_64")]
    top: tree::top::Top,
}

/// IPv6 ranges, by the last address of each but the final one.
#[derive(Debug)]
struct V6 {
    /// Finds how many of the distinct upper halves are below that of an address.
    tree: Tree<u64>,
    /// By upper half; one for addresses above them, and one more.
    upper: Box<[Upper]>,
    /// The lower halves that count: not the largest one, which no address is above. Networks of /64 or less have no
    /// others.
    lower: Box<[u64]>,
}

/// An upper half in which ranges end.
#[derive(Clone, Copy, Debug)]
#[repr(align(16))]
struct Upper {
    half: u64,
    /// How many ranges end before it.
    before: u32,
    /// Where its lower halves begin.
    lower: u32,
}

impl Ranges {
    /// For networks that each come before those inside, with their values: the ranges, and the value of
    /// each. `none` is the value of an address in no network. Numbers of ranges are `stride` apart.
    pub(super) fn new(
        networks: impl Iterator<Item = (Prefix, u32)> + Clone,
        none: u32,
        stride: u32,
    ) -> (Self, Vec<u32>) {
        let of_family = |is_v4: bool| {
            let family = networks.clone().filter(move |(prefix, _)| prefix.is_v4() == is_v4);
            let (bits, end) =
                if is_v4 { (u32::MAX.into(), u32::MAX.into()) } else { (u128::MAX, u128::MAX) };
            ranges(
                family.map(move |(prefix, value)| {
                    let first = prefix.first().bits();
                    (first & bits, (first | !mask(prefix.length())) & bits, value)
                }),
                none,
                end,
            )
        };
        let (ends, mut values) = of_family(true);
        let ends: Vec<u32> = ends.into_iter().map(|end| end as u32).collect();
        let v4 = V4 {
            tree: Tree::new(&ends),
            #[cfg(target_arch = "x86_64")]
            top: tree::top::Top::new(&ends),
        };
        let (ends, of_v6) = of_family(false);
        let ranges = Self { v4, v6: V6::new(&ends), v4_count: values.len() as u32, stride };
        values.extend(of_v6);
        (ranges, values)
    }

    /// The range of an address.
    #[inline]
    pub(super) fn find(&self, address: Address) -> u32 {
        let range = match address.is_v4() {
            true => self.v4.tree.rank(address.bits() as u32),
            false => self.v4_count + self.v6.find(address.bits()),
        };
        self.stride * range
    }

    /// The ranges of many addresses, [`VECTOR`] at most.
    #[inline(always)]
    pub(super) fn find_each(&self, addresses: Addresses<'_>, found: &mut [u32]) {
        let mut keys = [0; VECTOR];
        let any_v6 = addresses.v4_bits(&mut keys[..found.len()]);
        self.v4.find_each(&keys, found);
        if any_v6 {
            self.v6.find_each(addresses, self.v4_count, found);
        }
        found.iter_mut().for_each(|found| *found *= self.stride);
    }

    /// Cache lines that a search takes at most.
    pub(super) fn loads(&self) -> usize {
        self.v4.tree.levels()
    }

    pub(super) fn bytes(&self) -> usize {
        let v6 = &self.v6;
        size_of_val(&self.v4)
            + self.v4.tree.bytes()
            + v6.tree.bytes()
            + size_of_val(&*v6.upper)
            + size_of_val(&*v6.lower)
    }
}

impl V4 {
    /// The ranges of as many addresses as are to be found.
    #[inline(always)]
    fn find_each(&self, keys: &[u32; VECTOR], found: &mut [u32]) {
        #[cfg(target_arch = "x86_64")]
        if self.top.rank_each(&self.tree, keys, found) {
            return;
        }
        self.tree.rank_each(&keys[..found.len()], found);
    }
}

impl V6 {
    fn new(ends: &[u128]) -> Self {
        let half = |end: &u128| (end >> 64) as u64;
        let (mut upper, mut lower) = (Vec::new(), Vec::new());
        let mut before = 0;
        for same in ends.chunk_by(|a, b| half(a) == half(b)) {
            upper.push(Upper { half: half(&same[0]), before, lower: lower.len() as u32 });
            before += same.len() as u32;
            lower.extend(same.iter().map(|end| *end as u64).filter(|low| *low < u64::MAX));
        }
        // No key is above the largest half: a tree leaves it out.
        let halves = upper.iter().map(|upper| upper.half).filter(|half| *half < u64::MAX);
        let halves: Vec<u64> = halves.collect();
        upper.extend([Upper { half: u64::MAX, before, lower: lower.len() as u32 }; 2]);
        Self { tree: Tree::new(&halves), upper: upper.into(), lower: lower.into() }
    }

    #[inline]
    fn find(&self, bits: u128) -> u32 {
        self.within(self.tree.rank((bits >> 64) as u64), bits)
    }

    /// The range of an address of which so many upper halves are below its own.
    #[inline(always)]
    fn within(&self, at: u32, bits: u128) -> u32 {
        let [upper, next] = [self.upper[at as usize], self.upper[at as usize + 1]];
        let (high, low) = ((bits >> 64) as u64, bits as u64);
        if upper.lower == next.lower || upper.half != high {
            return upper.before;
        }
        upper.before + rank(&self.lower[upper.lower as usize..next.lower as usize], low) as u32
    }

    /// The ranges of those addresses that are IPv6, from `before` on.
    #[inline(always)]
    fn find_each(&self, addresses: Addresses<'_>, before: u32, found: &mut [u32]) {
        let (mut keys, mut at) = ([0; VECTOR], [0; VECTOR]);
        let (keys, at) = (&mut keys[..found.len()], &mut at[..found.len()]);
        for (address, key) in addresses.iter().zip(keys.iter_mut()) {
            *key = (address.bits() >> 64) as u64;
        }
        self.tree.rank_each(keys, at);
        for (address, (at, found)) in addresses.iter().zip(at.iter().zip(found)) {
            let range = before + self.within(*at, address.bits());
            *found = select_unpredictable(address.is_v4(), *found, range);
        }
    }
}

/// How many of ascending numbers are below `key`.
#[inline(always)]
fn rank(numbers: &[u64], key: u64) -> usize {
    let (mut first, mut left) = (0, numbers.len());
    while left > 1 {
        let half = left / 2;
        first += select_unpredictable(numbers[first + half - 1] < key, half, 0);
        left -= half;
    }
    first + usize::from(left == 1 && numbers[first] < key)
}

/// The last address of each range but the final one, and the value of each range. Neighbours
/// differ. `networks` are first and last address and value, each before those inside.
fn ranges(
    networks: impl Iterator<Item = (u128, u128, u32)>,
    none: u32,
    end: u128,
) -> (Vec<u128>, Vec<u32>) {
    let mut starts = vec![(0, none)];
    let mut begin = |start: u128, value: u32| {
        // A later range that begins at the same place replaces the one before.
        starts.pop_if(|(last, _)| *last == start);
        if starts.last().is_none_or(|(_, last)| *last != value) {
            starts.push((start, value));
        }
    };
    // Networks around the current place, outermost first: last address and value.
    let mut open: Vec<(u128, u32)> = Vec::new();
    let value_of = |open: &[(u128, u32)]| open.last().map_or(none, |(_, value)| *value);
    for (first, last, value) in networks {
        while let Some((last, _)) = open.pop_if(|(last, _)| *last < first) {
            begin(last + 1, value_of(&open));
        }
        begin(first, value);
        open.push((last, value));
    }
    while let Some((last, _)) = open.pop() {
        if last < end {
            begin(last + 1, value_of(&open));
        }
    }
    let ends = starts.iter().skip(1).map(|(start, _)| start - 1).collect();
    (ends, starts.into_iter().map(|(_, value)| value).collect())
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::prefix::V4_BITS;
    use crate::simd::tests::same_in_each_form;

    fn prefix() -> impl Strategy<Value = Prefix> {
        let v4 = (any::<u32>(), 0_u8..=32).prop_map(|(bits, length)| {
            let bits = bits & if length % 2 == 0 { 0xc003_01c1 } else { 0xff };
            Prefix::of(Address::from_v4_bits(bits), V4_BITS + length)
        });
        let v6 = (any::<u128>(), 0_u8..=128).prop_map(|(bits, length)| {
            let bits = bits & (3 << 126 | 3 << 64) | bits & 0x33;
            Prefix::of(Address::from_bits(1 << 100 | bits), length)
        });
        prop_oneof![v4, v6]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn finds_the_innermost_network(
            few in vec((prefix(), 0_u32..9), 0..12),
            many in vec((prefix(), 0_u32..2000), 0..1200),
            use_many in any::<bool>(),
        ) {
            let mut networks = if use_many { many } else { few };
            networks.sort_by_key(|(prefix, _)| prefix.order());
            networks.dedup_by_key(|(prefix, _)| *prefix);
            let (ranges, values) = Ranges::new(networks.iter().copied(), 7777, 3);
            let addresses: Vec<Address> = networks
                .iter()
                .step_by(1 + networks.len() / 60)
                .flat_map(|(prefix, _)| {
                    let first = prefix.first().bits();
                    let last = first | !mask(prefix.length());
                    [first.wrapping_sub(1), first, last, last.wrapping_add(1)]
                })
                .chain([0, u128::MAX, 0xffff << 32, (0xffff << 32) | 0xffff_ffff])
                .map(Address::from_bits)
                .collect();
            let found = same_in_each_form(|| {
                let mut found = vec![0; addresses.len()];
                for (addresses, found) in addresses.chunks(VECTOR).zip(found.chunks_mut(VECTOR)) {
                    ranges.find_each(Addresses::of(addresses), found);
                }
                found
            });
            for (address, found) in addresses.iter().zip(found) {
                let host = Prefix::of(*address, 128);
                let innermost = networks.iter().filter(|(prefix, _)| prefix.covers(host));
                let innermost = innermost.max_by_key(|(prefix, _)| prefix.length());
                let expected = innermost.map_or(7777, |(_, value)| *value);
                let value = |found: u32| values[found as usize / 3];
                prop_assert_eq!(value(ranges.find(*address)), expected, "{}", address);
                prop_assert_eq!(value(found), expected, "{}", address);
                prop_assert_eq!(found % 3, 0);
            }
        }
    }
}
