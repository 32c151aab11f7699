//! One body of code, compiled for several instruction sets and picked at run time.
//!
//! The loops over vectors are written so that the compiler can use whatever the processor has:
//! AVX2 and its companions, or the SSE2 that every x86-64 has, or none of them. With AVX-512 a lookup
//! takes each step for sixteen keys [side by side](lanes). The answers are the same.

#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
pub(crate) mod lanes;

#[cfg(any(test, target_arch = "x86_64"))]
use std::sync::LazyLock;

/// Keys looked up side by side.
pub(crate) const VECTOR: usize = 256;

/// The instruction sets that loops are there for, the best last.
#[cfg(any(test, target_arch = "x86_64"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Form {
    /// Those that every processor of the architecture has.
    Portable,
    /// AVX2, BMI1, BMI2 and POPCNT.
    Avx2,
    /// These, AVX-512F, AVX-512BW and AVX-512VL.
    Avx512,
}

/// The best form that this processor can run.
#[cfg(any(test, target_arch = "x86_64"))]
#[inline(always)]
pub(crate) fn form() -> Form {
    static BEST: LazyLock<Form> = LazyLock::new(best);
    #[cfg(test)]
    return tests::LIMIT.get().min(*BEST);
    #[cfg(not(test))]
    *BEST
}

#[cfg(target_arch = "x86_64")]
fn best() -> Form {
    use std::arch::is_x86_feature_detected;
    if !is_x86_feature_detected!("avx2")
        || !is_x86_feature_detected!("bmi1")
        || !is_x86_feature_detected!("bmi2")
        || !is_x86_feature_detected!("popcnt")
    {
        Form::Portable
    } else if !is_x86_feature_detected!("avx512f")
        || !is_x86_feature_detected!("avx512bw")
        || !is_x86_feature_detected!("avx512vl")
    {
        Form::Avx2
    } else {
        Form::Avx512
    }
}

#[cfg(all(test, not(target_arch = "x86_64")))]
fn best() -> Form {
    Form::Portable
}

/// Runs `body` with AVX2 if this processor has it.
#[inline]
pub(crate) fn widest<R>(body: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    if form() >= Form::Avx2 {
        // SAFETY: the processor has the features that the function is compiled for.
        return unsafe { with_avx2(body) };
    }
    body()
}

/// Prefetches the cache line where a value begins.
#[inline(always)]
pub(crate) fn prefetch<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: prefetching reads nothing; SSE, which it is of, belongs to every x86-64.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}

/// Counts those of ten ascending numbers, two in a word, the lower half first, that are not above `key`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn count_up_to(ascending: &[u32; 5], key: u16) -> usize {
    use std::arch::x86_64::{
        _mm_cmpeq_epi16, _mm_cvtsi32_si128, _mm_loadu_si128, _mm_movemask_epi8, _mm_packs_epi16,
        _mm_set1_epi16, _mm_setzero_si128, _mm_subs_epu16,
    };
    // SAFETY: four words are the 16 bytes that are loaded, and the load needs no alignment.
    // SSE2, which the other instructions are of, belongs to every x86-64.
    let mask = unsafe {
        let (keys, zero) = (_mm_set1_epi16(key as i16), _mm_setzero_si128());
        let not_above = |numbers| _mm_cmpeq_epi16(_mm_subs_epu16(numbers, keys), zero);
        let first = not_above(_mm_loadu_si128(ascending.as_ptr().cast()));
        let last = not_above(_mm_cvtsi32_si128(ascending[4] as i32));
        _mm_movemask_epi8(_mm_packs_epi16(first, last))
    };
    (mask & 0x3ff).trailing_ones() as usize
}

/// Counts those of ten ascending numbers, two in a word, the lower half first, that are not above `key`.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub(crate) fn count_up_to(ascending: &[u32; 5], key: u16) -> usize {
    let halves = ascending.iter().flat_map(|word| [*word as u16, (*word >> 16) as u16]);
    halves.map(|number| usize::from(number <= key)).sum()
}

/// Conditions compared side by side at most.
pub(crate) const SIDE_BY_SIDE: usize = 8;

/// Columns of conditions: of two ranges the first number and how many more there are, then bits and which of
/// them count.
pub(crate) const CONDITIONS: usize = 6;

/// The place of the first of `count` conditions, [`SIDE_BY_SIDE`] at most, that two numbers and bits fit.
/// Behind the columns, each `count` numbers, there is room for as many as make eight of the last one.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn first_fit(columns: &[u16], count: usize, values: [u16; 3]) -> Option<usize> {
    use std::arch::x86_64::{
        _mm_and_si128, _mm_cmpeq_epi16, _mm_loadu_si128, _mm_movemask_epi8, _mm_or_si128,
        _mm_set1_epi16, _mm_setzero_si128, _mm_sub_epi16, _mm_subs_epu16, _mm_xor_si128,
    };
    let columns = &columns[..(CONDITIONS - 1) * count + SIDE_BY_SIDE];
    // SAFETY: eight numbers from the beginning of each column on are inside, and the loads need no
    // alignment. SSE2, which the instructions are of, belongs to every x86-64.
    let mask = unsafe {
        let column = |at: usize| _mm_loadu_si128(columns.as_ptr().add(at * count).cast());
        let [first, second, bits] = values.map(|value| _mm_set1_epi16(value as i16));
        // How far a number is behind the last one of a range, or 0.
        let beyond = |value, at| _mm_subs_epu16(_mm_sub_epi16(value, column(at)), column(at + 1));
        let others = _mm_and_si128(_mm_xor_si128(bits, column(4)), column(5));
        let misses = _mm_or_si128(_mm_or_si128(beyond(first, 0), beyond(second, 2)), others);
        _mm_movemask_epi8(_mm_cmpeq_epi16(misses, _mm_setzero_si128()))
    };
    let place = (mask.trailing_zeros() / 2) as usize;
    (place < count).then_some(place)
}

/// The place of the first of `count` conditions that two numbers and bits fit.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub(crate) fn first_fit(columns: &[u16], count: usize, values: [u16; 3]) -> Option<usize> {
    let column = |at: usize, place: usize| columns[at * count + place];
    (0..count).find(|place| {
        let within =
            |value: u16, at| value.wrapping_sub(column(at, *place)) <= column(at + 1, *place);
        within(values[0], 0)
            && within(values[1], 2)
            && (values[2] ^ column(4, *place)) & column(5, *place) == 0
    })
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
fn with_avx2<R>(body: impl FnOnce() -> R) -> R {
    body()
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        /// The best form that this thread may use.
        pub(super) static LIMIT: Cell<Form> = const { Cell::new(Form::Avx512) };
    }

    /// Runs `body` in every form that this processor has.
    pub(crate) fn in_each_form(mut body: impl FnMut(Form)) {
        for form in [Form::Portable, Form::Avx2, Form::Avx512] {
            LIMIT.set(form);
            body(form);
        }
    }

    /// The result of `body`, which is the same in every form.
    pub(crate) fn same_in_each_form<T: PartialEq + std::fmt::Debug>(body: impl Fn() -> T) -> T {
        let mut results = Vec::new();
        in_each_form(|_| results.push(body()));
        assert!(results.iter().all(|result| *result == results[0]), "{results:?}");
        results.swap_remove(0)
    }

    #[test]
    fn counts_ascending_numbers() {
        let numbers: [u16; 10] = std::array::from_fn(|at| (at * at * 800) as u16);
        let words = std::array::from_fn(|at| {
            u32::from(numbers[2 * at]) | u32::from(numbers[2 * at + 1]) << 16
        });
        for key in numbers.into_iter().flat_map(|key| [key.saturating_sub(1), key, key | 1, 65535])
        {
            let expected = numbers.iter().filter(|number| **number <= key).count();
            assert_eq!(count_up_to(&words, key), expected, "{key}");
        }
    }

    #[test]
    fn runs_the_body_once() {
        let mut runs = 0;
        widest(|| runs += 1);
        assert_eq!(runs, 1);
    }
}
