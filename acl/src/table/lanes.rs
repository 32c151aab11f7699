//! Lookups of vectors with AVX-512: every step for sixteen keys at once.
//!
//! ```text
//! records of networks                          of all keys
//! transport classes, lists and first rules     of 64 keys at a time
//! probes of tuples                             of all keys
//! ```
//!
//! A gather waits long for its place. So each step is taken for 64 keys before the next one, which keeps four
//! gathers in flight, and what is known of these keys stays in registers. Lanes beyond the last key are those
//! of a key of zeros, whose places are valid.

#![allow(unsafe_code)]

use super::lists::{ListId, NONE, Rows};
use super::plan::{BothEnds, ByEnds, Decide, Parts};
use super::transport::TransportClasses;
use crate::Key;
use crate::simd::lanes::{IN_FLIGHT, LANES, Lanes, STEPS, splat, store};
use crate::simd::{Form, form};

/// Finds the first rule that structures hold for each key, as many as a vector has at most. False, and nothing found, if
/// the processor or the structures have no such form.
#[inline]
pub(super) fn look_up(parts: &Parts, keys: &[Key], found: &mut [u32]) -> bool {
    let Decide::Rows(of, rows) = &parts.lists else { return false };
    let can = form() == Form::Avx512 && parts.ends.is_alike();
    if can {
        // SAFETY: the processor has the features that the function is compiled for.
        unsafe { parts.ends.lookup_lanes(of, rows, keys, found) };
    }
    can
}

/// What is known of all keys of a vector.
pub(super) struct Vector {
    /// Where the records of sources and destinations are.
    pub(super) records: [[[u32; LANES]; STEPS]; 2],
    /// Transport classes.
    pub(super) classes: [[u32; LANES]; STEPS],
    /// The first rules found.
    pub(super) best: [[u32; LANES]; STEPS],
}

impl ByEnds {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi1,bmi2,popcnt")]
    fn lookup_lanes(&self, of: &TransportClasses, rows: &Rows, keys: &[Key], found: &mut [u32]) {
        let nothing = [[0; LANES]; STEPS];
        let mut vector = Vector { records: [nothing; 2], classes: nothing, best: nothing };
        for (at, (field, records)) in self.fields.iter().zip(&mut vector.records).enumerate() {
            field.find_nets(at, keys, &mut records.as_flattened_mut()[..keys.len()]);
        }
        let mut step = 0;
        let steps = keys.len().div_ceil(LANES).min(STEPS);
        while step < steps {
            let left = &keys[step * LANES..];
            step += if steps - step < IN_FLIGHT {
                self.decide_lanes::<1>(of, rows, left, step, &mut vector)
            } else {
                self.decide_lanes::<IN_FLIGHT>(of, rows, left, step, &mut vector)
            };
        }
        if let BothEnds::Tuples(tuples) = &self.both {
            tuples.probe_lanes(&self.fields, rows, steps, &mut vector);
        }
        found.copy_from_slice(&vector.best.as_flattened()[..found.len()]);
    }

    /// Takes the lists of so many steps of keys, which begin at `step`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512vl")]
    fn decide_lanes<const N: usize>(
        &self,
        of: &TransportClasses,
        rows: &Rows,
        keys: &[Key],
        step: usize,
        vector: &mut Vector,
    ) -> usize {
        let classes: [Lanes; N] = of.classes_lanes(keys);
        let records: [[Lanes; N]; 2] = [0, 1]
            .map(|at: usize| self.fields[at].records_lanes(at, keys, &vector.records[at][step..]));
        let mut best = [splat(NONE); N];
        for (field, records) in self.fields.iter().zip(&records) {
            if field.has_lists.contains(&true) {
                let lists = field.lists_lanes(records, rows.plain);
                rows.first_lanes(lists, &classes, &mut best);
            }
        }
        if self.any != ListId::EMPTY {
            let any = [splat(self.any.cells), splat(self.any.rules)];
            rows.first_lanes([any; N], &classes, &mut best);
        }
        if let BothEnds::Crossed(crossed) = &self.both {
            for (number, layer) in crossed.layers.iter().enumerate() {
                let lists = layer.lists_lanes(&self.fields, number, &records);
                rows.first_lanes(lists, &classes, &mut best);
            }
        }
        for (at, best) in best.into_iter().enumerate() {
            store(&mut vector.best[step + at], best);
        }
        if let BothEnds::Tuples(_) = &self.both {
            for at in 0..N {
                store(&mut vector.classes[step + at], classes[at]);
                store(&mut vector.records[0][step + at], records[0][at]);
                store(&mut vector.records[1][step + at], records[1][at]);
            }
        }
        N
    }
}
