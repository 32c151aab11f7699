//! Lookups of vectors with AVX-512 in tables of lists: every step for sixteen keys at once.
//!
//! A gather waits long for its place. So each step is taken for 64 keys before the next one, which keeps four
//! gathers in flight, and what is known of these keys stays in registers. Lanes beyond the last key are those
//! of a key of zeros, whose places are valid.

#![allow(unsafe_code)]

use super::lists::{NONE, Rows};
use super::plan::{Decide, Parts};
use super::transport::TransportClasses;
use crate::Key;
use crate::simd::lanes::{IN_FLIGHT, LANES, Lanes, splat, store_some};
use crate::simd::{Form, form};

/// Finds the first rule for each key, as many as a vector has at most. False, and nothing found, if the processor or the
/// table has no such form.
#[inline]
pub(super) fn look_up(parts: &Parts, keys: &[Key], found: &mut [u32]) -> bool {
    let (Decide::Rows(classes, rows), None) = (&parts.lists, &parts.tuples) else { return false };
    let can = form() == Form::Avx512;
    if can {
        // SAFETY: the processor has the features that the function is compiled for.
        unsafe { decide_each(parts, classes, rows, keys, found) };
    }
    can
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi1,bmi2,popcnt")]
fn decide_each(
    parts: &Parts,
    classes: &TransportClasses,
    rows: &Rows,
    mut keys: &[Key],
    mut found: &mut [u32],
) {
    while !keys.is_empty() {
        let count = if keys.len() < IN_FLIGHT * LANES {
            decide::<1>(parts, classes, rows, keys, found)
        } else {
            decide::<IN_FLIGHT>(parts, classes, rows, keys, found)
        };
        let count = count.min(keys.len());
        (keys, found) = (&keys[count..], &mut found[count..]);
    }
}

/// Decides so many steps of keys; how many keys these are at most.
#[inline]
#[target_feature(enable = "avx512f,avx512vl")]
fn decide<const N: usize>(
    parts: &Parts,
    classes: &TransportClasses,
    rows: &Rows,
    keys: &[Key],
    found: &mut [u32],
) -> usize {
    let classes: [Lanes; N] = classes.classes_lanes(keys);
    let mut best = [splat(NONE); N];
    for (at, field) in parts.fields.iter().enumerate().filter(|(_, field)| field.has_lists) {
        rows.first_lanes(field.lists_lanes(at, keys, rows.plain), &classes, &mut best);
    }
    for (found, best) in found.chunks_mut(LANES).zip(best) {
        store_some(found, best);
    }
    N * LANES
}
