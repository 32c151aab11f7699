//! Probes of tuples with AVX-512, sixteen keys at a time.

#![allow(unsafe_code)]

use std::arch::x86_64::{
    _mm512_and_si512, _mm512_cmplt_epu32_mask, _mm512_maskz_compress_epi32, _mm512_storeu_si512,
    _mm512_test_epi32_mask,
};

use super::Tuples;
use crate::simd::VECTOR;
use crate::simd::lanes::{IN_FLIGHT, LANES, STEPS, load, multiples, plus, splat, store, words};
use crate::table::decide::Decider;
use crate::table::field::Field;
use crate::table::lists::NONE;

/// Places of keys in a vector, and room behind the last of them for a register.
type Places = [u32; VECTOR + LANES];

/// What probes of tuples need to know of all keys of a vector.
pub(in crate::table) struct Vector {
    /// Where the records of sources and destinations are.
    pub(in crate::table) records: [[[u32; LANES]; STEPS]; 2],
    /// Transport classes.
    pub(in crate::table) classes: [[u32; LANES]; STEPS],
}

impl Tuples {
    /// Takes the first rules of all tuples, one tuple after the other, for so many steps of keys whose fields
    /// rules name in no more than one way.
    #[target_feature(enable = "avx512f,popcnt")]
    pub(in crate::table) fn probe_lanes(
        &self,
        fields: &[Field; 2],
        decider: Decider<'_>,
        steps: usize,
        Vector { records: [sources, destinations], classes }: &Vector,
        best: &mut [[u32; LANES]; STEPS],
    ) {
        let mut masks = [[0; LANES]; STEPS];
        for (masks, (source, destination)) in
            masks.iter_mut().zip(sources.iter().zip(destinations)).take(steps)
        {
            let source = fields[0].mask_lanes(load(source));
            let destination = fields[1].mask_lanes(load(destination));
            store(masks, _mm512_and_si512(source, destination));
        }
        let probe = Probe {
            tuples: self,
            fields,
            decider,
            records: [sources.as_flattened(), destinations.as_flattened()],
            classes: classes.as_flattened(),
        };
        for tuple in 0..self.count {
            let mut places = [0; VECTOR + LANES];
            let count = self.promising(tuple, &masks[..steps], best, &mut places);
            let places = places.as_chunks().0;
            let (mut step, steps) = (0, count.div_ceil(LANES));
            while step < steps {
                let places = &places[step..];
                let count = count - step * LANES;
                step += if steps - step < IN_FLIGHT {
                    probe.look::<1>(tuple, places, count, best.as_flattened_mut())
                } else {
                    probe.look::<IN_FLIGHT>(tuple, places, count, best.as_flattened_mut())
                };
            }
        }
    }

    /// The places of keys that have a rule in a tuple and none before; how many there are.
    #[inline]
    #[target_feature(enable = "avx512f,popcnt")]
    fn promising(
        &self,
        tuple: usize,
        masks: &[[u32; LANES]],
        best: &[[u32; LANES]],
        places: &mut Places,
    ) -> usize {
        let (bit, first) = (splat(1 << tuple), splat(self.best[tuple]));
        let (mut here, mut count) = (multiples(1), 0);
        for (masks, best) in masks.iter().zip(best).take(STEPS) {
            let before = _mm512_cmplt_epu32_mask(first, load(best));
            let promising = _mm512_test_epi32_mask(load(masks), bit) & before;
            // SAFETY: `count` is at most the number of keys before these, and there is room for a
            // register behind all.
            unsafe {
                let kept = _mm512_maskz_compress_epi32(promising, here);
                _mm512_storeu_si512(places.as_mut_ptr().add(count).cast(), kept);
            }
            count += promising.count_ones() as usize;
            here = plus(here, splat(LANES as u32));
        }
        count
    }
}

/// What probes of all tuples look at.
struct Probe<'a> {
    tuples: &'a Tuples,
    fields: &'a [Field; 2],
    decider: Decider<'a>,
    records: [&'a [u32]; 2],
    classes: &'a [u32],
}

impl Probe<'_> {
    /// Takes the rules of a tuple that the first `count` keys at these places match, in so many steps at most.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn look<const N: usize>(
        &self,
        tuple: usize,
        places: &[[u32; LANES]],
        count: usize,
        best: &mut [u32],
    ) -> usize {
        let nothing = [splat(0); N];
        let (mut sources, mut destinations, mut classes) = (nothing, nothing, nothing);
        for at in 0..N {
            let places = load(&places[at]);
            // SAFETY: places are those of keys in a vector.
            let records = unsafe {
                classes[at] = words(self.classes, places);
                [words(self.records[0], places), words(self.records[1], places)]
            };
            sources[at] = self.fields[0].class_in_lanes(records[0], tuple);
            destinations[at] = self.fields[1].class_in_lanes(records[1], tuple);
        }
        let cells = &self.tuples.cells;
        let mut lists = [[splat(0); 2]; N];
        for (list, pair) in lists.iter_mut().zip(sources.iter().zip(&destinations)) {
            list[0] = cells.place_lanes(*pair.0, *pair.1);
        }
        for (list, pair) in lists.iter_mut().zip(sources.iter().zip(&destinations)) {
            *list = cells.list_lanes(list[0], *pair.0, *pair.1);
        }
        let mut first = [splat(NONE); N];
        self.decider.first_lanes(lists, &classes, &mut first);
        let mut found = [[NONE; LANES]; N];
        found.iter_mut().zip(first).for_each(|(found, first)| store(found, first));
        let places = places.as_flattened().iter().take(count);
        for (place, found) in places.zip(found.as_flattened()) {
            let best = &mut best[*place as usize];
            *best = (*best).min(*found);
        }
        N
    }
}
