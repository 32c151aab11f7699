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

use super::decide::Decider;
use super::lists::{ListId, NONE};
use super::plan::{BothEnds, ByEnds, Decide, Parts};
use super::tuples::Vector;
use crate::Key;
use crate::simd::lanes::{IN_FLIGHT, LANES, Lanes, STEPS, splat, store, store_some};
use crate::simd::{Form, form};

/// Finds the first rule that structures hold for each key, as many as a vector has at most. False, and nothing found, if
/// the processor or the structures have no such form.
#[inline]
pub(super) fn look_up(parts: &Parts, keys: &[Key], found: &mut [u32]) -> bool {
    let decider = match (&parts.lists, &parts.ends.both) {
        (Decide::Rows(of, rows), _) => Decider::Rows(of, rows),
        // What is decided key by key gains from lanes only where pairs are looked up.
        (Decide::Scans(_), BothEnds::Nothing) => return false,
        (Decide::Scans(scans), _) => Decider::Scans(scans, keys),
    };
    let can = form() == Form::Avx512 && parts.ends.is_alike();
    if can {
        // SAFETY: the processor has the features that the function is compiled for.
        unsafe { parts.ends.lookup_lanes(decider, keys, found) };
    }
    can
}

const NOTHING: [[u32; LANES]; STEPS] = [[0; LANES]; STEPS];

impl ByEnds {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi1,bmi2,popcnt")]
    fn lookup_lanes(&self, decider: Decider<'_>, keys: &[Key], found: &mut [u32]) {
        if self.fields.iter().all(|field| field.nets.is_none()) {
            return self.decide_each(decider, keys, [&[]; 2], found);
        }
        let mut nets = [NOTHING; 2];
        for (at, (field, nets)) in self.fields.iter().zip(&mut nets).enumerate() {
            field.find_nets(at, keys, &mut nets.as_flattened_mut()[..keys.len()]);
        }
        self.decide_each(decider, keys, nets.each_ref().map(|nets| &nets[..]), found);
    }

    /// Takes the lists of all keys, whose networks have these records, and probes tuples.
    #[inline]
    #[target_feature(enable = "avx512f,avx512vl,popcnt")]
    fn decide_each(
        &self,
        decider: Decider<'_>,
        keys: &[Key],
        nets: [&[[u32; LANES]]; 2],
        found: &mut [u32],
    ) {
        let steps = keys.len().div_ceil(LANES).min(STEPS);
        let decide = |best: &mut [u32], mut vector: Option<&mut Vector>| {
            let mut step = 0;
            while step < steps {
                let left = &keys[step * LANES..];
                let nets = nets.map(|nets| nets.get(step..).unwrap_or_default());
                let best = &mut best[step * LANES..];
                let vector = vector.as_deref_mut();
                step += if steps - step < IN_FLIGHT {
                    self.decide_lanes::<1>(decider, left, step, nets, best, vector)
                } else {
                    self.decide_lanes::<IN_FLIGHT>(decider, left, step, nets, best, vector)
                };
            }
        };
        let BothEnds::Tuples(tuples) = &self.both else { return decide(found, None) };
        let mut vector = Vector { records: [NOTHING; 2], classes: NOTHING };
        let mut best = NOTHING;
        decide(best.as_flattened_mut(), Some(&mut vector));
        tuples.probe_lanes(&self.fields, decider, steps, &vector, &mut best);
        found.copy_from_slice(&best.as_flattened()[..found.len()]);
    }

    /// Takes the lists of so many steps of keys, from a step on; notes what is known of them in the vector.
    #[inline]
    #[target_feature(enable = "avx512f,avx512vl")]
    fn decide_lanes<const N: usize>(
        &self,
        decider: Decider<'_>,
        keys: &[Key],
        step: usize,
        nets: [&[[u32; LANES]]; 2],
        found: &mut [u32],
        vector: Option<&mut Vector>,
    ) -> usize {
        let classes: [Lanes; N] = decider.classes_lanes(keys, step * LANES);
        let records: [[Lanes; N]; 2] =
            [0, 1].map(|at: usize| self.fields[at].records_lanes(at, keys, nets[at]));
        let mut best = [splat(NONE); N];
        let is_crossed = matches!(self.both, BothEnds::Crossed(_));
        let mut pairs = [[splat(0); N]; 2];
        for (at, (field, records)) in self.fields.iter().zip(&records).enumerate() {
            let (lists, of_pairs) = field.known_lanes(records, decider.is_plain(), is_crossed);
            pairs[at] = of_pairs;
            if field.has_lists.contains(&true) {
                decider.first_lanes(lists, &classes, &mut best);
            }
        }
        if self.any != ListId::EMPTY {
            let any = [splat(self.any.rules), splat(self.any.cells)];
            decider.first_lanes([any; N], &classes, &mut best);
        }
        if let BothEnds::Crossed(crossed) = &self.both {
            for (number, layer) in crossed.layers.iter().enumerate() {
                if number > 0 {
                    for at in 0..N {
                        pairs[0][at] = self.fields[0].class_lanes(records[0][at], number);
                        pairs[1][at] = self.fields[1].class_lanes(records[1][at], number);
                    }
                }
                decider.first_lanes(layer.lists_lanes(pairs), &classes, &mut best);
            }
        }
        for (found, best) in found.chunks_mut(LANES).zip(best) {
            store_some(found, best);
        }
        if let Some(vector) = vector {
            for at in 0..N {
                store(&mut vector.classes[step + at], classes[at]);
                store(&mut vector.records[0][step + at], records[0][at]);
                store(&mut vector.records[1][step + at], records[1][at]);
            }
        }
        N
    }
}
