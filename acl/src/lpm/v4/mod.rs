//! Longest-prefix match on IPv4: a trie by bytes, compact where few values differ.
//!
//! ```text
//! root block -> block of a /8 -> value of a /16
//!                                 answer | ranges | block -> value of a /24
//!                                                            answer | ranges | block -> answer
//! ```
//!
//! A *block* holds a value for each of 256 parts. Up to eleven *ranges* of equal results fit a
//! single cache line, which holds their starts and their results, and are compared at once. So
//! networks far apart cost a line (DXR: Zec, Rizzo and Mikuc, CCR 2012), and neighbouring hosts
//! four bytes each. A lookup is four loads that depend on each other, for whole vectors without a
//! branch on data.

mod editor;
#[cfg(target_arch = "x86_64")]
mod gather;

use std::hint::select_unpredictable;

use super::memory::{LINE, Version, View};
use crate::simd;
use crate::simd::VECTOR;
pub(super) use editor::Editor;

/// IPv4 networks as of one version.
#[derive(Debug)]
pub(super) struct V4 {
    version: Version,
    /// Word where the root block begins.
    root: u32,
    /// Answer of 0.0.0.0/0.
    default: u32,
}

/// Marks the number of a block's first line. Multiplied to a word's place, the mark is gone.
const BLOCK: u32 = 1 << 31;
/// Marks the number of a line of ranges. Answers stay below.
const RANGES: u32 = 1 << 30;

/// Ranges in a line, which begins with the starts of all but the first.
const WIDTH: usize = 11;
/// Words before the results: ten starts of 16 bits, the earlier in the lower half.
const STARTS: usize = LINE as usize - WIDTH;

impl V4 {
    /// Looks up an address; 0 is "none".
    #[inline(always)]
    pub(super) fn lookup(&self, key: u32) -> u32 {
        let view = self.version.view();
        let mut value = descend(view, key, begin(view, self.root, key));
        if value & RANGES != 0 {
            value = in_ranges(view, value, key);
        }
        if value == 0 { self.default } else { value }
    }

    /// Looks up many addresses, no more than [`VECTOR`].
    #[inline(always)]
    pub(super) fn lookup_each(&self, keys: &[u32], found: &mut [u32]) {
        {
            #[cfg(target_arch = "x86_64")]
            let (keys, found) = gather::look_up(self, keys, found);
            self.descend_each(keys, found);
        }
        if self.default != 0 {
            for found in found {
                *found = if *found == 0 { self.default } else { *found };
            }
        }
    }

    /// The same without the default.
    #[inline(always)]
    fn descend_each(&self, keys: &[u32], found: &mut [u32]) {
        let view = self.version.view();
        let mut any = 0;
        for (key, found) in keys.iter().zip(found.iter_mut()) {
            *found = descend(view, *key, begin(view, self.root, *key));
            any |= *found;
        }
        if any & RANGES == 0 {
            return;
        }
        // Written always and kept if counted: nothing depends on guessing a branch right.
        let mut places = [0_u16; VECTOR];
        let mut count = 0;
        for (place, found) in found.iter().enumerate() {
            places[count % VECTOR] = place as u16;
            count += usize::from(found & RANGES != 0);
        }
        for place in &places[..count] {
            let place = usize::from(*place);
            found[place] = in_ranges(view, found[place], keys[place]);
        }
    }

    /// Memory in use, whatever versions share of it.
    pub(super) fn bytes(&self) -> usize {
        self.version.bytes()
    }
}

/// Through the first two blocks, which are always there.
#[inline(always)]
fn begin(view: View<'_>, root: u32, key: u32) -> u32 {
    let second = view.word(root + (key >> 24));
    view.word(place(second, key >> 16 & 255))
}

/// Through the other two: an answer, or ranges.
#[inline(always)]
fn descend(view: View<'_>, key: u32, value: u32) -> u32 {
    let step = |value, part| {
        // Whether a network ends here cannot be guessed: no branch.
        let inner = value & BLOCK != 0;
        let next = view.word(select_unpredictable(inner, place(value, part), 0));
        select_unpredictable(inner, next, value)
    };
    step(step(value, key >> 8 & 255), key & 255)
}

/// The word for one part of the block that a value names.
#[inline(always)]
fn place(value: u32, part: u32) -> u32 {
    value.wrapping_mul(LINE).wrapping_add(part)
}

#[inline(always)]
fn in_ranges(view: View<'_>, value: u32, key: u32) -> u32 {
    let begun = simd::count_up_to(view.line(place(value, 0)), key as u16);
    view.word(place(value, (STARTS + begun) as u32))
}
