//! The upper levels of a tree of 32-bit numbers in four registers, with AVX-512.
//!
//! ```text
//! 63 separators    a binary search of six steps, each for sixteen keys at once
//! levels of lines  one key after the other, as many as are left below
//! ```
//!
//! Trees of up to 63 numbers need no lines, those of 1,024 one level, and those of 17,408 two.

use std::arch::x86_64::{
    _mm512_add_epi32, _mm512_cmplt_epi32_mask, _mm512_mask_add_epi32, _mm512_mask_blend_epi32,
    _mm512_maskz_mov_epi32, _mm512_permutex2var_epi32, _mm512_xor_si512,
};

use super::{Number, Tree, below_avx512_32};
use crate::simd::lanes::{LANES, Lanes, STEPS, load, splat, store};
use crate::simd::{Form, VECTOR, form};

/// Children of the top.
const CHILDREN: usize = 4 * LANES;

/// Replacement of a tree's upper levels.
#[derive(Debug)]
pub(in crate::table::ranges) struct Top {
    /// Ascending, moved by half the range as those of nodes; filled up with the largest.
    separators: [[u32; LANES]; CHILDREN / LANES],
    /// Levels of lines below.
    lines: usize,
}

impl Top {
    /// Of the numbers of a tree.
    pub(in crate::table::ranges) fn new(numbers: &[u32]) -> Self {
        // Numbers of one child.
        let (mut each, mut lines) = (1, 0);
        let children = |each: usize| match each {
            1 => numbers.len() + 1,
            _ => numbers.len().div_ceil(each),
        };
        while children(each) > CHILDREN {
            each *= if lines == 0 { u32::WIDTH } else { u32::WIDTH + 1 };
            lines += 1;
        }
        let largest = numbers.iter().skip(each - 1).step_by(each).take(children(each) - 1);
        let mut separators = [[u32::MAX.signed() as u32; LANES]; CHILDREN / LANES];
        for (separator, number) in separators.as_flattened_mut().iter_mut().zip(largest) {
            *separator = number.signed() as u32;
        }
        Self { separators, lines }
    }

    /// [`Tree::rank_each`] of as many keys as are to be ranked. False, and nothing ranked, if the processor
    /// has no AVX-512.
    #[inline]
    pub(in crate::table::ranges) fn rank_each(
        &self,
        tree: &Tree<u32>,
        keys: &[u32; VECTOR],
        ranks: &mut [u32],
    ) -> bool {
        let can = form() == Form::Avx512;
        if can {
            // SAFETY: the processor has the features that the function is compiled for.
            unsafe { self.rank_lanes(tree, keys, ranks) };
        }
        can
    }

    #[target_feature(enable = "avx512f,avx512vl,popcnt")]
    fn rank_lanes(&self, tree: &Tree<u32>, keys: &[u32; VECTOR], ranks: &mut [u32]) {
        let steps = ranks.len().div_ceil(LANES).min(STEPS);
        let (mut signed, mut nodes) = ([[0; LANES]; STEPS], [[0; LANES]; STEPS]);
        let half = splat(1 << 31);
        for (keys, (signed, nodes)) in
            keys.as_chunks().0.iter().zip(signed.iter_mut().zip(&mut nodes)).take(steps)
        {
            let key = _mm512_xor_si512(load(keys), half);
            store(signed, key);
            store(nodes, self.child(key));
        }
        let signed = &signed.as_flattened()[..steps * LANES];
        let places = &mut nodes.as_flattened_mut()[..steps * LANES];
        let lines = &tree.levels[tree.levels.len() - self.lines..];
        for (at, level) in lines.iter().enumerate() {
            let mut counts = [0; VECTOR];
            for ((key, node), count) in signed.iter().zip(&*places).zip(&mut counts) {
                let node = (level + node) as usize;
                debug_assert!(node < tree.nodes.len());
                // SAFETY: the top and each node have a child for each separator that may be below a
                // key, which the largest number is not, and one more.
                let node = unsafe { tree.nodes.get_unchecked(node) };
                *count = below_avx512_32(node, *key as i32);
            }
            let width = if at + 1 < lines.len() { u32::WIDTH + 1 } else { u32::WIDTH };
            for (node, count) in places.iter_mut().zip(&counts) {
                *node = *node * width as u32 + count;
            }
        }
        ranks.copy_from_slice(&places[..ranks.len()]);
    }

    /// How many separators are below each key.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn child(&self, key: Lanes) -> Lanes {
        let [a, b, c, d] = &self.separators;
        let (a, b, c, d) = (load(a), load(b), load(c), load(d));
        let middle = self.separators[1][LANES - 1];
        let upper = _mm512_cmplt_epi32_mask(splat(middle), key);
        let mut below = _mm512_maskz_mov_epi32(upper, splat(2 * LANES as u32));
        for step in [16, 8, 4, 2, 1] {
            let at = _mm512_add_epi32(below, splat(step - 1));
            // Of a place the permutation sees the part within two registers.
            let low = _mm512_permutex2var_epi32(a, at, b);
            let high = _mm512_permutex2var_epi32(c, at, d);
            let separator = _mm512_mask_blend_epi32(upper, low, high);
            let is_below = _mm512_cmplt_epi32_mask(separator, key);
            below = _mm512_mask_add_epi32(below, is_below, below, splat(step));
        }
        below
    }
}
