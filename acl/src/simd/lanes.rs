//! Sixteen numbers side by side, with AVX-512.
//!
//! A step of a lookup that reads a table is one gather for sixteen keys.

use std::arch::x86_64::{
    __m512i, __mmask16, _mm512_add_epi32, _mm512_and_si512, _mm512_castsi512_si256,
    _mm512_extracti64x4_epi64, _mm512_i32gather_epi32, _mm512_i32gather_epi64, _mm512_loadu_si512,
    _mm512_mask_i32gather_epi32, _mm512_mullo_epi32, _mm512_permutex2var_epi32, _mm512_set1_epi32,
    _mm512_setzero_si512, _mm512_storeu_si512,
};
use std::mem::offset_of;

use crate::Key;

/// Numbers side by side.
pub(crate) const LANES: usize = 16;

/// Steps that are taken together, so that as many gathers are in flight.
pub(crate) const IN_FLIGHT: usize = 4;

/// Sixteen numbers of 32 bits.
pub(crate) type Lanes = __m512i;

const NUMBERS: [u32; LANES] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
const EVEN: [u32; LANES] = [0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30];
const ODD: [u32; LANES] = [1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31];

/// One number in all lanes.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn splat(number: u32) -> Lanes {
    _mm512_set1_epi32(number as i32)
}

/// `step`, twice as much and so on, from 0.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn multiples(step: u32) -> Lanes {
    _mm512_mullo_epi32(load(&NUMBERS), splat(step))
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn load(numbers: &[u32; LANES]) -> Lanes {
    // SAFETY: the array is as long as a register and needs no alignment.
    unsafe { _mm512_loadu_si512(numbers.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn store(numbers: &mut [u32; LANES], lanes: Lanes) {
    // SAFETY: as above.
    unsafe { _mm512_storeu_si512(numbers.as_mut_ptr().cast(), lanes) }
}

/// Stores the first lanes, as many as there are numbers.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn store_some(numbers: &mut [u32], lanes: Lanes) {
    match numbers.first_chunk_mut() {
        Some(numbers) => store(numbers, lanes),
        None => {
            let mut all = [0; LANES];
            store(&mut all, lanes);
            numbers.copy_from_slice(&all[..numbers.len()]);
        }
    }
}

/// A mask of the first lanes.
#[inline(always)]
pub(crate) fn first(count: usize) -> __mmask16 {
    ((1_u32 << count.min(LANES)) - 1) as __mmask16
}

/// The four bytes at byte `OFFSET` of the first keys, all of them in fields; 0 in lanes beyond.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn of_keys<const OFFSET: usize, const N: usize>(keys: &[Key]) -> [Lanes; N] {
    const { assert!(OFFSET + 4 <= offset_of!(Key, tcp_flags) + 1, "what follows is padding") };
    let places = multiples(size_of::<Key>() as u32);
    let mut lanes = [_mm512_setzero_si512(); N];
    for (at, lanes) in lanes.iter_mut().enumerate() {
        let keys = keys.get(at * LANES..).unwrap_or_default();
        let mask = first(keys.len());
        // SAFETY: a key is as long as the distance of two lanes, and lanes beyond the keys are not read.
        *lanes = unsafe {
            let bytes = keys.as_ptr().cast::<u8>().wrapping_add(OFFSET);
            _mm512_mask_i32gather_epi32::<1>(*lanes, mask, places, bytes.cast())
        };
    }
    lanes
}

/// Loads the word at the index in each lane.
///
/// # Safety
/// Every index is less than `of.len()`: the gather does not check bounds.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) unsafe fn words(of: &[u32], at: Lanes) -> Lanes {
    check(of.len(), at);
    // SAFETY: the caller knows that the places are inside.
    unsafe { _mm512_i32gather_epi32::<4>(at, of.as_ptr().cast()) }
}

/// Loads the word at the index in each lane and the word behind it.
///
/// # Safety
/// Every index is less than `of.len() - 1`: the gather does not check bounds.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) unsafe fn pairs(of: &[u32], at: Lanes) -> [Lanes; 2] {
    check(of.len() - 1, at);
    // SAFETY: the caller knows that the places are inside, and those that follow them.
    let (low, high) = unsafe {
        let (low, high) = (_mm512_castsi512_si256(at), _mm512_extracti64x4_epi64::<1>(at));
        let of = of.as_ptr().cast();
        (_mm512_i32gather_epi64::<4>(low, of), _mm512_i32gather_epi64::<4>(high, of))
    };
    let first = _mm512_permutex2var_epi32(low, load(&EVEN), high);
    [first, _mm512_permutex2var_epi32(low, load(&ODD), high)]
}

/// The numbers of 16 bits at these places. The last number stands behind those that are read: more
/// than one is loaded.
///
/// # Safety
/// Every index is less than `of.len() - 1`: the gather does not check bounds, and loads two numbers.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) unsafe fn halves(of: &[u16], at: Lanes) -> Lanes {
    check(of.len() - 1, at);
    // SAFETY: the caller knows that the places are inside, and those that follow them.
    let loaded = unsafe { _mm512_i32gather_epi32::<2>(at, of.as_ptr().cast()) };
    _mm512_and_si512(loaded, splat(0xffff))
}

/// Adds lane by lane.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn plus(some: Lanes, others: Lanes) -> Lanes {
    _mm512_add_epi32(some, others)
}

/// Whether places are below a number; what is built for tests stops otherwise.
#[inline]
#[target_feature(enable = "avx512f")]
fn check(count: usize, at: Lanes) {
    if cfg!(debug_assertions) {
        let mut places = [0; LANES];
        store(&mut places, at);
        assert!(places.iter().all(|place| (*place as usize) < count), "{places:?} of {count}");
    }
}
