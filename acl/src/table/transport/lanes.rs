//! Transport classes with AVX-512, sixteen keys at a time.

#![allow(unsafe_code)]

use std::arch::x86_64::{
    _mm512_and_si512, _mm512_cmpeq_epi32_mask, _mm512_mask_mov_epi32, _mm512_mullo_epi32,
    _mm512_slli_epi32, _mm512_srli_epi32,
};
use std::mem::offset_of;

use super::TransportClasses;
use super::ports::Ports;
use crate::Key;
use crate::simd::lanes::{Lanes, halves, of_keys, plus, splat, words};

/// Protocols so few are compared with, rather than looked up.
const FEW: usize = 4;

const _: () = {
    // Loaded with the destination port.
    assert!(offset_of!(Key, protocol) == offset_of!(Key, destination_port) + 2);
    assert!(offset_of!(Key, tcp_flags) == offset_of!(Key, destination_port) + 3);
};

impl TransportClasses {
    /// The classes of the first keys.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(in crate::table) fn classes_lanes<const N: usize>(&self, keys: &[Key]) -> [Lanes; N] {
        // Destination port, protocol and flags.
        let some: [Lanes; N] = of_keys::<{ offset_of!(Key, destination_port) }, N>(keys);
        let groups = self.groups_lanes(&some);
        // SAFETY: of each array there is a number for all that may come up, and one more.
        unsafe {
            let mut classes = self.destination.class_lanes(&groups, &some);
            if let Some(source) = &self.source {
                let ports = of_keys::<{ offset_of!(Key, source_port) }, N>(keys);
                let of_sources = source.class_lanes(&groups, &ports);
                for (class, of_source) in classes.iter_mut().zip(of_sources) {
                    *class = plus(_mm512_mullo_epi32(*class, splat(self.sources)), of_source);
                }
            }
            if let Some(flags) = &self.flags {
                for (class, some) in classes.iter_mut().zip(some) {
                    let flags = words(flags.as_slice(), _mm512_srli_epi32::<24>(some));
                    *class = plus(_mm512_mullo_epi32(*class, splat(self.flag_classes)), flags);
                }
            }
            if !self.cross.is_empty() {
                for class in &mut classes {
                    *class = halves(&self.cross, *class);
                }
            }
            classes
        }
    }

    /// The groups, times 256, of the protocols at byte 2 of keys' words.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn groups_lanes<const N: usize>(&self, some: &[Lanes; N]) -> [Lanes; N] {
        let protocols = some.map(|some| _mm512_and_si512(some, splat(0xff << 16)));
        let mut groups = [splat(0); N];
        if self.named.len() > FEW {
            for (group, protocol) in groups.iter_mut().zip(protocols) {
                // SAFETY: there is a group for each number of eight bits.
                *group = unsafe { words(&self.groups, _mm512_srli_epi32::<16>(protocol)) };
            }
            return groups;
        }
        for (named, of_named) in &self.named {
            let named = splat(u32::from(*named) << 16);
            for (group, protocol) in groups.iter_mut().zip(protocols) {
                let same = _mm512_cmpeq_epi32_mask(protocol, named);
                *group = _mm512_mask_mov_epi32(*group, same, splat(*of_named));
            }
        }
        groups
    }
}

impl Ports {
    /// The classes of ports in the lower halves of words.
    ///
    /// # Safety
    /// Each lane of `groups` is a group of this structure, times 256: the gather does not check bounds.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn class_lanes<const N: usize>(
        &self,
        groups: &[Lanes; N],
        some: &[Lanes; N],
    ) -> [Lanes; N] {
        let byte = splat(0xff);
        let mut found = [byte; N];
        // SAFETY: as above, and there is one number more of each.
        unsafe {
            for at in 0..N {
                let upper = _mm512_and_si512(_mm512_srli_epi32::<8>(some[at]), byte);
                let page = halves(&self.pages_of, plus(groups[at], upper));
                let lower = _mm512_and_si512(some[at], byte);
                found[at] = plus(_mm512_slli_epi32::<8>(page), lower);
            }
            for found in &mut found {
                *found = halves(&self.classes, *found);
            }
        }
        found
    }
}
