//! Addresses at equal distances in memory: an array of them, or one field of an array of keys.

#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::mem::offset_of;

use crate::{Address, Key};

/// Some addresses.
#[derive(Clone, Copy)]
pub(crate) struct Addresses<'a> {
    first: *const Address,
    /// Bytes from one to the next.
    stride: usize,
    count: usize,
    of: PhantomData<&'a [Address]>,
}

impl<'a> Addresses<'a> {
    /// An array's.
    #[inline(always)]
    pub(crate) fn of(addresses: &'a [Address]) -> Self {
        let (first, count) = (addresses.as_ptr(), addresses.len());
        Self { first, stride: size_of::<Address>(), count, of: PhantomData }
    }

    /// The sources of keys.
    #[inline(always)]
    pub(crate) fn sources(keys: &'a [Key]) -> Self {
        Self::field(keys, offset_of!(Key, source))
    }

    /// The destinations of keys.
    #[inline(always)]
    pub(crate) fn destinations(keys: &'a [Key]) -> Self {
        Self::field(keys, offset_of!(Key, destination))
    }

    /// The field at byte `offset`, which is an address.
    #[inline(always)]
    fn field(keys: &'a [Key], offset: usize) -> Self {
        let first = keys.as_ptr().wrapping_byte_add(offset).cast();
        Self { first, stride: size_of::<Key>(), count: keys.len(), of: PhantomData }
    }

    #[inline(always)]
    pub(crate) fn iter(self) -> impl Iterator<Item = Address> + 'a {
        (0..self.count).map(move |at| {
            // SAFETY: so many addresses stand at this distance, for as long as what they are of.
            unsafe { *self.first.byte_add(at * self.stride) }
        })
    }

    /// Fills in the low 32 bits of each address, which is all of an IPv4 one, and returns whether any
    /// is of IPv6. There are as many bits as addresses.
    #[inline(always)]
    pub(crate) fn v4_bits(self, bits: &mut [u32]) -> bool {
        #[cfg(target_arch = "x86_64")]
        if crate::simd::form() == crate::simd::Form::Avx512 {
            // SAFETY: the processor has the features that the function is compiled for.
            return unsafe { self.v4_bits_lanes(bits) };
        }
        let mut beyond = 0;
        for (address, bits) in self.iter().zip(bits) {
            *bits = address.bits() as u32;
            beyond |= address.beyond_v4();
        }
        beyond >> 32 != 0
    }

    /// The same, sixteen addresses at a time.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f")]
    fn v4_bits_lanes(self, bits: &mut [u32]) -> bool {
        use std::arch::x86_64::{
            __m512i, _mm_loadu_si128, _mm512_castsi128_si512, _mm512_inserti32x4,
            _mm512_ternarylogic_epi32, _mm512_test_epi32_mask, _mm512_unpacklo_epi32,
            _mm512_unpacklo_epi64,
        };

        use crate::simd::lanes::{LANES, load, splat, store};

        assert!(bits.len() <= self.count);
        // The words of an IPv4-mapped address, the lowest first, but the lowest.
        let mapped = load(&[0, 0xffff, 0, 0, 0, 0xffff, 0, 0, 0, 0xffff, 0, 0, 0, 0xffff, 0, 0]);
        let mut beyond = splat(0);
        let (sixteens, others) = bits.as_chunks_mut::<LANES>();
        let left = sixteens.len() * LANES;
        for (at, bits) in sixteens.iter_mut().enumerate() {
            // SAFETY: so many addresses stand at this distance; the load needs no alignment.
            let address = |n: usize| unsafe {
                _mm_loadu_si128(self.first.byte_add((at * LANES + n) * self.stride).cast())
            };
            // Four addresses, each the fourth after the one before.
            let four = |n: usize| {
                let some = _mm512_castsi128_si512(address(n));
                let some = _mm512_inserti32x4::<1>(some, address(n + 4));
                let some = _mm512_inserti32x4::<2>(some, address(n + 8));
                _mm512_inserti32x4::<3>(some, address(n + 12))
            };
            let fours = [four(0), four(1), four(2), four(3)];
            for four in fours {
                // beyond | (four ^ mapped)
                beyond = _mm512_ternarylogic_epi32::<0xf6>(beyond, four, mapped);
            }
            let pairs = |a: __m512i, b: __m512i| _mm512_unpacklo_epi32(a, b);
            let (low, high) = (pairs(fours[0], fours[1]), pairs(fours[2], fours[3]));
            store(bits, _mm512_unpacklo_epi64(low, high));
        }
        let mut rest = 0;
        for (address, bits) in self.iter().skip(left).zip(others) {
            *bits = address.bits() as u32;
            rest |= address.beyond_v4();
        }
        // All words but the lowest of each address.
        let upper = load(&[0, !0, !0, !0, 0, !0, !0, !0, 0, !0, !0, !0, 0, !0, !0, !0]);
        rest >> 32 != 0 || _mm512_test_epi32_mask(beyond, upper) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::tests::in_each_form;

    #[test]
    fn finds_ipv6_among_ipv4() {
        for count in [0, 1, 3, 4, 15, 16, 17, 100] {
            let mut keys: Vec<Key> = (0..count)
                .map(|at| Key { source: Address::from_v4_bits(at * 3), ..Key::default() })
                .collect();
            let mut bits = vec![0; keys.len()];
            let expected: Vec<u32> = (0..count).map(|at| at * 3).collect();
            in_each_form(|form| {
                bits.fill(7);
                assert!(!Addresses::sources(&keys).v4_bits(&mut bits), "{form:?}");
                assert_eq!(bits, expected, "{form:?}");
            });
            for at in 0..count as usize {
                for bit in [32, 47, 48, 63, 64, 127] {
                    let before = keys[at].source;
                    keys[at].source = Address::from_bits(before.bits() ^ 1 << bit);
                    in_each_form(|form| {
                        assert!(
                            Addresses::sources(&keys).v4_bits(&mut bits),
                            "{form:?} {at} {bit}"
                        );
                        assert_eq!(bits, expected, "{form:?}");
                    });
                    keys[at].source = before;
                }
            }
        }
    }

    #[test]
    fn walks_fields_of_keys() {
        let key = |at| Key {
            source: Address::from_bits(at),
            destination: Address::from_bits(at + 7),
            ..Key::default()
        };
        let keys: Vec<Key> = (0..5).map(key).collect();
        let bits = |addresses: Addresses<'_>| -> Vec<u128> {
            addresses.iter().map(Address::bits).collect()
        };
        assert_eq!(bits(Addresses::sources(&keys)), [0, 1, 2, 3, 4]);
        assert_eq!(bits(Addresses::destinations(&keys)), [7, 8, 9, 10, 11]);
        let addresses = keys.iter().map(|key| key.source).collect::<Vec<_>>();
        assert_eq!(bits(Addresses::of(&addresses)), [0, 1, 2, 3, 4]);
    }
}
