//! The processor's cycle counter, prefetch and comparison of lanes.

#![allow(unsafe_code, reason = "all are unsafe intrinsics")]

/// The processor's cycle counter (TSC clocks on x86), 0 where there is none.
#[inline]
pub(crate) fn clocks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has the instruction, and Linux leaves it to users.
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    0
}

/// Prefetches the cache line at an address, valid or not.
#[inline]
pub(crate) fn prefetch<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults, and every x86-64 processor has the instruction.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// The same for a line that is to be written: another core's copy of it is given up meanwhile.
#[inline]
pub(crate) fn prefetch_to_write<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults, and every x86-64 processor has the instruction, or does nothing
    // at it.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_ET0>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// The lanes of 16 bits, four in each word, that are equal to `lane`, as bits; see [`first_lane`].
/// The lowest is one for certain, others may not be.
#[inline]
pub(crate) fn equal_lanes(words: [u64; 2], lane: u16) -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has the instructions (SSE2).
    unsafe {
        use std::arch::x86_64::{
            _mm_cmpeq_epi16, _mm_movemask_epi8, _mm_set_epi64x, _mm_set1_epi16,
        };
        let lanes = _mm_set_epi64x(words[1] as i64, words[0] as i64);
        let equal = _mm_cmpeq_epi16(lanes, _mm_set1_epi16(lane as i16));
        // Two bits for each lane.
        _mm_movemask_epi8(equal) as u64 & 0x5555
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        const LOWEST: u64 = 0x0001_0001_0001_0001;
        let zero_lanes = |word: u64| word.wrapping_sub(LOWEST) & !word & (LOWEST << 15);
        let in_word = |word: u64| zero_lanes(word ^ u64::from(lane) * LOWEST);
        in_word(words[0]) >> 15 | in_word(words[1]) >> 14
    }
}

/// The first of some lanes, of which there is one.
#[inline]
pub(crate) fn first_lane(lanes: u64) -> usize {
    let lowest = lanes.trailing_zeros() as usize;
    #[cfg(target_arch = "x86_64")]
    return lowest / 2;
    #[cfg(not(target_arch = "x86_64"))]
    return lowest / 16 + lowest % 2 * 4;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_lanes_are_found() {
        let lane = |n: usize| 0x1111_u64 * n as u64 + 7;
        let word = |first: usize| (0..4).fold(0, |word, n| word | lane(first + n) << (16 * n));
        let words = [word(0), word(4)];
        for n in 0..8 {
            assert_eq!(first_lane(equal_lanes(words, lane(n) as u16)), n);
        }
        assert_eq!(equal_lanes(words, 8), 0);
        let all = equal_lanes([0; 2], 0);
        assert_eq!((all.count_ones(), first_lane(all)), (8, 0));
    }
}
