//! Longest-prefix match: addresses to small numbers, for millions of prefixes.
//!
//! ```text
//! address < IPv4: a trie by bytes, answers side by side
//!           IPv6: exact matches, one for each length
//! ```
//!
//! [`Lpm`] is what readers hold: a version that shares what did not change with those before
//! and after it. [`Editor`] makes new versions; it alone knows the prefixes one by one.

mod memory;
mod v4;
mod v6;

use std::sync::Arc;

use crate::Address;
use crate::addresses::Addresses;
use crate::prefix::{Prefix, V4_BITS};
use crate::simd::VECTOR;
use v4::V4;
use v6::V6;

/// Gives an address the number of the longest prefix that covers it.
///
/// Inside, numbers are held plus one, and 0 stands for "none".
#[derive(Clone, Debug, Default)]
pub(crate) struct Lpm {
    v4: Option<Arc<V4>>,
    v6: Option<Arc<V6>>,
}

impl Lpm {
    /// One more than the number of the longest prefix around `address`, or 0.
    #[inline]
    pub(crate) fn lookup(&self, address: Address) -> u32 {
        match address.is_v4() {
            true => self.v4.as_ref().map_or(0, |v4| v4.lookup(address.bits() as u32)),
            false => self.v6.as_ref().map_or(0, |v6| v6.lookup(address.bits())),
        }
    }

    /// [`lookup`](Self::lookup) of many, which overlaps their memory accesses; no more than
    /// [`VECTOR`] at a time.
    #[inline(always)]
    pub(crate) fn lookup_each(&self, addresses: Addresses<'_>, found: &mut [u32]) {
        let mut any_v6 = true;
        match &self.v4 {
            Some(v4) => {
                let mut keys = [0; VECTOR];
                let keys = &mut keys[..found.len()];
                any_v6 = addresses.v4_bits(keys);
                v4.lookup_each(keys, found);
            }
            None => found.fill(0),
        }
        if any_v6 {
            lookup_v6(self.v6.as_deref(), addresses.iter(), found);
        }
    }

    /// Memory of this version, whatever others share of it.
    pub(crate) fn bytes(&self) -> usize {
        let v4 = self.v4.as_ref().map_or(0, |v4| v4.bytes());
        v4 + self.v6.as_ref().map_or(0, |v6| v6.bytes())
    }
}

/// Looks up those addresses that are IPv6.
#[inline(always)]
fn lookup_v6(v6: Option<&V6>, addresses: impl Iterator<Item = Address>, found: &mut [u32]) {
    let mut keys = [0; VECTOR];
    let mut places = [0_u8; VECTOR];
    let mut count = 0;
    for (place, address) in addresses.enumerate().take(found.len()) {
        (keys[count % VECTOR], places[count % VECTOR]) = (address.bits(), place as u8);
        count += usize::from(!address.is_v4());
    }
    let mut answers = [0; VECTOR];
    if let Some(v6) = v6 {
        v6.lookup_each(&keys[..count], &mut answers[..count]);
    }
    for (place, answer) in places.iter().zip(answers).take(count) {
        found[usize::from(*place)] = answer;
    }
}

/// Makes versions of an [`Lpm`].
#[derive(Debug, Default)]
pub(crate) struct Editor {
    v4: v4::Editor,
    v6: v6::Editor,
    /// Whether IPv4 and IPv6 networks changed since the last version.
    changed: [bool; 2],
    /// The version that [`version`](Self::version) hands out.
    current: Lpm,
}

impl Editor {
    /// Sets the number of a prefix (below 2^30 - 1), or forgets it.
    pub(crate) fn set(&mut self, prefix: Prefix, number: Option<u32>) {
        let value = number.map(|number| number + 1);
        let (bits, length) = (prefix.first().bits(), prefix.length());
        if prefix.is_v4() {
            self.v4.set(bits as u32, length - V4_BITS, value);
            self.changed[0] = true;
        } else {
            self.v6.set(bits, length, value);
            self.changed[1] = true;
        }
    }

    /// The version with all changes up to now.
    pub(crate) fn version(&mut self) -> Lpm {
        // Drops the old version first, so that the pool can reuse what no reader holds.
        let [v4, v6] = std::mem::take(&mut self.changed);
        if v4 {
            self.current.v4 = None;
            self.current.v4 = self.v4.version().map(Arc::new);
        }
        if v6 {
            self.current.v6 = None;
            self.current.v6 = self.v6.version().map(Arc::new);
        }
        self.current.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::simd::tests::same_in_each_form;

    fn prefix() -> impl Strategy<Value = Prefix> {
        let v4 = (any::<u32>(), 0_u8..=32).prop_map(|(bits, length)| {
            // Few places, or many in one /24.
            let bits = bits & if length % 2 == 0 { 0xc003_01c1 } else { 0x3f };
            let length = if bits > 0x3f { length } else { 32 - length / 4 };
            Prefix::of(Address::from_v4_bits(bits), V4_BITS + length)
        });
        let v6 = (any::<u128>(), 0_u8..=128).prop_map(|(bits, length)| {
            let bits = bits & 3 << 126 | bits & 0x11;
            Prefix::of(Address::from_bits(1 << 100 | bits), length)
        });
        prop_oneof![v4, v6]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn every_version_finds_the_longest(
            steps in vec((prefix(), proptest::option::of(0_u32..50)), 1..300),
            publish in vec(proptest::bool::weighted(0.2), 300),
            others in vec(prefix(), 20),
        ) {
            let mut editor = Editor::default();
            let mut model: HashMap<Prefix, u32> = HashMap::new();
            let mut versions = Vec::new();
            for ((prefix, number), publish) in steps.iter().zip(publish) {
                editor.set(*prefix, *number);
                match number {
                    Some(number) => model.insert(*prefix, *number),
                    None => model.remove(prefix),
                };
                if publish {
                    versions.push((editor.version(), model.clone()));
                }
            }
            versions.push((editor.version(), model));
            let ends = steps.iter().map(|(prefix, _)| *prefix).chain(others);
            let addresses: Vec<Address> = ends
                .flat_map(|prefix| {
                    let first = prefix.first();
                    let last = first.bits() | !crate::prefix::mask(prefix.length());
                    [first, Address::from_bits(last), Address::from_bits(last.wrapping_add(1))]
                })
                .collect();
            for (lpm, model) in versions {
                let found = same_in_each_form(|| {
                    let mut found = vec![0; addresses.len()];
                    for (addresses, found) in addresses.chunks(VECTOR).zip(found.chunks_mut(VECTOR)) {
                        lpm.lookup_each(Addresses::of(addresses), found);
                    }
                    found
                });
                for (address, found) in addresses.iter().zip(found) {
                    let host = Prefix::of(*address, 128);
                    let expected = model
                        .iter()
                        .filter(|(prefix, _)| prefix.covers(host))
                        .max_by_key(|(prefix, _)| prefix.length())
                        .map_or(0, |(_, number)| number + 1);
                    prop_assert_eq!(lpm.lookup(*address), expected, "{}", address);
                    prop_assert_eq!(found, expected, "{}", address);
                }
            }
        }
    }
}
