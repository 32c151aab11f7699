//! Probes of tuples with AVX-512, sixteen keys at a time.

#![allow(unsafe_code)]

use std::arch::x86_64::{
    _mm512_and_si512, _mm512_cmplt_epu32_mask, _mm512_maskz_compress_epi32, _mm512_storeu_si512,
    _mm512_test_epi32_mask,
};

use super::Tuples;
use crate::simd::VECTOR;
use crate::simd::lanes::{LANES, STEPS, load, multiples, plus, splat, store, words};
use crate::table::field::Field;
use crate::table::lists::{ListLanes, NONE, Rows};

/// Places of keys in a vector, and room behind the last of them for a register.
type Places = [u32; VECTOR + LANES];

impl Tuples {
    /// Takes the first rules of all tuples into `best`, one tuple after the other, for keys whose fields
    /// rules name in no more than one way.
    #[target_feature(enable = "avx512f,popcnt")]
    pub(in crate::table) fn probe_lanes(
        &self,
        fields: &[Field; 2],
        records: &[[u32; VECTOR]; 2],
        classes: &[[u32; LANES]; STEPS],
        rows: &Rows,
        best: &mut [[u32; LANES]],
    ) {
        let mut masks = [[0; LANES]; STEPS];
        let masks = &mut masks[..best.len()];
        let (sources, destinations) = (records[0].as_chunks().0, records[1].as_chunks().0);
        for (masks, (source, destination)) in masks.iter_mut().zip(sources.iter().zip(destinations))
        {
            let source = fields[0].mask_lanes(load(source));
            let destination = fields[1].mask_lanes(load(destination));
            store(masks, _mm512_and_si512(source, destination));
        }
        let (mut pairs, mut cells) = ([[[0; LANES]; STEPS]; 2], [[0; LANES]; STEPS]);
        let mut lists = ListLanes { cells: [[0; LANES]; STEPS], rules: [[0; LANES]; STEPS] };
        for tuple in 0..self.count {
            let mut places = [0; VECTOR + LANES];
            let count = self.promising(tuple, masks, best, &mut places);
            let steps = count.div_ceil(LANES);
            let of_keys = &places.as_chunks().0[..steps];
            let [sources, destinations] = &mut pairs;
            let of_pairs = sources.iter_mut().zip(&mut *destinations).zip(&mut cells);
            for (places, ((source, destination), cells)) in of_keys.iter().zip(of_pairs) {
                let places = load(places);
                // SAFETY: places are those of keys in a vector.
                let of_keys = unsafe { (words(&records[0], places), words(&records[1], places)) };
                let of_source = fields[0].class_in_lanes(of_keys.0, tuple);
                let of_destination = fields[1].class_in_lanes(of_keys.1, tuple);
                store(source, of_source);
                store(destination, of_destination);
                store(cells, self.cells.place_lanes(of_source, of_destination));
            }
            let of_pairs = sources.iter().zip(&*destinations).zip(&cells);
            let parts = lists.cells.iter_mut().zip(&mut lists.rules);
            for ((places, ((source, destination), cell)), (cells, rules)) in
                of_keys.iter().zip(of_pairs).zip(parts)
            {
                let list = self.cells.list_lanes(load(cell), load(source), load(destination));
                // SAFETY: places are those of keys in a vector.
                let class = unsafe { words(classes.as_flattened(), load(places)) };
                store(cells, plus(list[0], class));
                store(rules, list[1]);
            }
            let mut found = [[NONE; LANES]; STEPS];
            rows.first_lanes(&lists, &mut found[..steps]);
            let best = best.as_flattened_mut();
            for (place, found) in places[..count].iter().zip(found.as_flattened()) {
                let best = &mut best[*place as usize];
                *best = (*best).min(*found);
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
