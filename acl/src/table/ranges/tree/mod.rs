//! A search tree of cache lines: sixteen numbers of 32 bits in a node, and so seventeen children; or
//! eight of 64 bits and nine children.
//!
//! ```text
//! level 0                 [ 16 separators ]
//!                    /         |     ...   \
//! level 1   [ 16 numbers ] [ 16 numbers ] ... 17 nodes
//! ```
//!
//! Nodes of a level stand side by side, child `i` of node `n` at `17 n + i`, so there are no
//! pointers. A node is compared as a whole: the count of its numbers below the key is the child to go
//! on with. Four levels hold 78,000 numbers.

#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
pub(super) mod top;

use crate::simd::{Form, form};

/// A number that a tree holds.
pub(super) trait Number: Copy + Ord + std::fmt::Debug {
    /// Numbers in a node, as many as a cache line holds.
    const WIDTH: usize;
    /// Ascending numbers, the rest filled up with the largest, which no key is above. They are
    /// moved by half the range: signed ones compare in fewer instructions.
    type Node: Copy + std::fmt::Debug;
    /// The number moved by half the range.
    type Signed: Copy;

    fn signed(self) -> Self::Signed;
    fn node(numbers: &[Self]) -> Self::Node;
    /// How many of a node's numbers are below a key.
    fn below(node: &Self::Node, key: Self::Signed) -> u32;
    /// The same with AVX2.
    ///
    /// # Safety
    /// The processor has AVX2 and POPCNT.
    #[cfg(target_arch = "x86_64")]
    unsafe fn below_avx2(node: &Self::Node, key: Self::Signed) -> u32;
    /// The same with AVX-512.
    ///
    /// # Safety
    /// The processor has AVX-512F and POPCNT.
    #[cfg(target_arch = "x86_64")]
    unsafe fn below_avx512(node: &Self::Node, key: Self::Signed) -> u32;
}

/// A node's numbers, in a cache line of their own.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct Line<S, const WIDTH: usize>([S; WIDTH]);

macro_rules! number {
    ($number:ty, $signed:ty, $width:literal, $below_avx2:ident, $below_avx512:ident) => {
        impl Number for $number {
            const WIDTH: usize = $width;
            type Node = Line<$signed, $width>;
            type Signed = $signed;

            #[inline(always)]
            fn signed(self) -> $signed {
                (self ^ 1 << (Self::BITS - 1)) as $signed
            }

            fn node(numbers: &[Self]) -> Self::Node {
                Line(std::array::from_fn(|at| {
                    numbers.get(at).copied().unwrap_or(Self::MAX).signed()
                }))
            }

            #[inline(always)]
            fn below(node: &Self::Node, key: $signed) -> u32 {
                node.0.iter().map(|number| u32::from(*number < key)).sum()
            }

            #[cfg(target_arch = "x86_64")]
            // SAFETY: callers check that the processor has AVX2.
            #[inline(always)]
            unsafe fn below_avx2(node: &Self::Node, key: $signed) -> u32 {
                // SAFETY: the caller knows that the processor can.
                unsafe { $below_avx2(node, key) }
            }

            #[cfg(target_arch = "x86_64")]
            // SAFETY: callers check that the processor has AVX-512.
            #[inline(always)]
            unsafe fn below_avx512(node: &Self::Node, key: $signed) -> u32 {
                // SAFETY: the caller knows that the processor can.
                unsafe { $below_avx512(node, key) }
            }
        }
    };
}

number!(u32, i32, 16, below_avx2_32, below_avx512_32);
number!(u64, i64, 8, below_avx2_64, below_avx512_64);

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,popcnt")]
#[inline]
fn below_avx2_32(node: &Line<i32, 16>, key: i32) -> u32 {
    use std::arch::x86_64::{
        _mm256_cmpgt_epi32, _mm256_load_si256, _mm256_movemask_epi8, _mm256_packs_epi32,
        _mm256_set1_epi32,
    };
    let key = _mm256_set1_epi32(key);
    let first = node.0.as_ptr();
    // SAFETY: half a node is as long as a register and aligned to its size.
    let (low, high) =
        unsafe { (_mm256_load_si256(first.cast()), _mm256_load_si256(first.add(8).cast())) };
    let (low, high) = (_mm256_cmpgt_epi32(key, low), _mm256_cmpgt_epi32(key, high));
    // Two bits for each number.
    (_mm256_movemask_epi8(_mm256_packs_epi32(low, high)) as u32).count_ones() / 2
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,popcnt")]
#[inline]
fn below_avx2_64(node: &Line<i64, 8>, key: i64) -> u32 {
    use std::arch::x86_64::{
        _mm256_cmpgt_epi64, _mm256_load_si256, _mm256_movemask_epi8, _mm256_packs_epi32,
        _mm256_set1_epi64x,
    };
    let key = _mm256_set1_epi64x(key);
    let first = node.0.as_ptr();
    // SAFETY: half a node is as long as a register and aligned to its size.
    let (low, high) =
        unsafe { (_mm256_load_si256(first.cast()), _mm256_load_si256(first.add(4).cast())) };
    let (low, high) = (_mm256_cmpgt_epi64(key, low), _mm256_cmpgt_epi64(key, high));
    // Four bits for each number.
    (_mm256_movemask_epi8(_mm256_packs_epi32(low, high)) as u32).count_ones() / 4
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,popcnt")]
#[inline]
fn below_avx512_32(node: &Line<i32, 16>, key: i32) -> u32 {
    use std::arch::x86_64::{_mm512_cmplt_epi32_mask, _mm512_load_si512, _mm512_set1_epi32};
    // SAFETY: a node is as long as a register and aligned to its size.
    let numbers = unsafe { _mm512_load_si512(node.0.as_ptr().cast()) };
    u32::from(_mm512_cmplt_epi32_mask(numbers, _mm512_set1_epi32(key))).count_ones()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,popcnt")]
#[inline]
fn below_avx512_64(node: &Line<i64, 8>, key: i64) -> u32 {
    use std::arch::x86_64::{_mm512_cmplt_epi64_mask, _mm512_load_si512, _mm512_set1_epi64};
    // SAFETY: a node is as long as a register and aligned to its size.
    let numbers = unsafe { _mm512_load_si512(node.0.as_ptr().cast()) };
    u32::from(_mm512_cmplt_epi64_mask(numbers, _mm512_set1_epi64(key))).count_ones()
}

/// How many of a set of numbers are below a key.
#[derive(Debug)]
pub(super) struct Tree<K: Number> {
    nodes: Box<[K::Node]>,
    /// Where each level begins, the root's first.
    levels: Box<[u32]>,
}

impl<K: Number> Tree<K> {
    /// Of ascending numbers, none of them the largest there is.
    pub(super) fn new(numbers: &[K]) -> Self {
        let mut levels: Vec<Vec<K::Node>> = Vec::new();
        // The largest number below each node of a level.
        let mut largest: Vec<K> = Vec::new();
        if !numbers.is_empty() {
            levels.push(numbers.chunks(K::WIDTH).map(K::node).collect());
            largest = numbers.chunks(K::WIDTH).map(|some| some[some.len() - 1]).collect();
        }
        while largest.len() > 1 {
            let children = || largest.chunks(K::WIDTH + 1);
            levels.push(children().map(|some| K::node(&some[..some.len() - 1])).collect());
            largest = children().map(|some| some[some.len() - 1]).collect();
        }
        levels.reverse();
        let mut first = 0;
        let begins = levels.iter().map(|level| {
            first += level.len() as u32;
            first - level.len() as u32
        });
        let begins = begins.collect();
        Self { nodes: levels.concat().into(), levels: begins }
    }

    /// Levels there are.
    pub(super) fn levels(&self) -> usize {
        self.levels.len()
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.nodes) + size_of_val(&*self.levels)
    }

    /// How many numbers are below `key`.
    #[inline]
    pub(super) fn rank(&self, key: K) -> u32 {
        let Some((leaves, inner)) = self.levels.split_last() else { return 0 };
        let below = |at: u32| K::below(&self.nodes[at as usize], key.signed());
        let node =
            inner.iter().fold(0, |node, level| node * (K::WIDTH as u32 + 1) + below(level + node));
        node * K::WIDTH as u32 + below(leaves + node)
    }

    /// How many numbers are below each key.
    #[inline(always)]
    pub(super) fn rank_each(&self, keys: &[K], ranks: &mut [u32]) {
        match form() {
            #[cfg(target_arch = "x86_64")]
            Form::Avx512 => {
                // SAFETY: the processor has the features that the function is compiled for.
                unsafe { self.rank_each_avx512(keys, ranks) }
            }
            #[cfg(target_arch = "x86_64")]
            Form::Avx2 => {
                // SAFETY: likewise.
                unsafe { self.rank_each_avx2(keys, ranks) }
            }
            _ => self.descend(keys, ranks, K::below),
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,popcnt")]
    fn rank_each_avx512(&self, keys: &[K], ranks: &mut [u32]) {
        // SAFETY: the processor has the features that this function is compiled for.
        self.descend(keys, ranks, |node, key| unsafe { K::below_avx512(node, key) });
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,popcnt")]
    fn rank_each_avx2(&self, keys: &[K], ranks: &mut [u32]) {
        // SAFETY: the processor has the features that this function is compiled for.
        self.descend(keys, ranks, |node, key| unsafe { K::below_avx2(node, key) });
    }

    /// Ranks all keys; `below` counts a node's numbers below a key.
    #[inline(always)]
    fn descend(&self, keys: &[K], ranks: &mut [u32], below: impl Fn(&K::Node, K::Signed) -> u32) {
        match *self.levels {
            [] => ranks.fill(0),
            [a] => self.descend_levels([a], keys, ranks, below),
            [a, b] => self.descend_levels([a, b], keys, ranks, below),
            [a, b, c] => self.descend_levels([a, b, c], keys, ranks, below),
            [a, b, c, d] => self.descend_levels([a, b, c, d], keys, ranks, below),
            ref levels => {
                let levels: [u32; DEEPEST] =
                    std::array::from_fn(|at| levels.get(at).copied().unwrap_or(u32::MAX));
                self.descend_levels(levels, keys, ranks, below);
            }
        }
    }

    #[inline(always)]
    fn descend_levels<const LEVELS: usize>(
        &self,
        levels: [u32; LEVELS],
        keys: &[K],
        ranks: &mut [u32],
        below: impl Fn(&K::Node, K::Signed) -> u32,
    ) {
        for (key, found) in keys.iter().zip(ranks) {
            let key = key.signed();
            let (mut node, mut rank) = (0, 0);
            for level in levels {
                if LEVELS == DEEPEST && level == u32::MAX {
                    break;
                }
                debug_assert!(((level + node) as usize) < self.nodes.len());
                // SAFETY: the root is there. A node has a child for each separator that may be
                // below a key, which the largest number is not, and one more.
                let count =
                    below(unsafe { self.nodes.get_unchecked((level + node) as usize) }, key);
                rank = node * K::WIDTH as u32 + count;
                node = node * (K::WIDTH as u32 + 1) + count;
            }
            *found = rank;
        }
    }
}

/// More levels than a tree of 2^32 numbers has.
const DEEPEST: usize = 12;
