//! Lookups of vectors with AVX-512: every step for sixteen keys at once.
//!
//! ```text
//! transport classes, records    of all keys
//! lists of a field              of all keys, then their first rules
//! lists of pairs                likewise
//! ```
//!
//! A step reads what the step before stored for the whole vector, so that few gathers wait for others.
//! Lanes beyond the last key are those of a key of zeros, whose places are valid.

#![allow(unsafe_code)]

use super::lists::{ListId, ListLanes, NONE, Rows};
use super::plan::{BothEnds, ByEnds, Decide, Parts};
use super::transport::TransportClasses;
use crate::Key;
use crate::simd::lanes::{LANES, STEPS, load, plus, splat, store};
use crate::simd::{Form, VECTOR, form};

/// Finds the first rule that structures hold for each key, [`VECTOR`] at most. False, and nothing found, if
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

impl ByEnds {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi1,bmi2,popcnt")]
    fn lookup_lanes(&self, of: &TransportClasses, rows: &Rows, keys: &[Key], found: &mut [u32]) {
        let steps = keys.len().div_ceil(LANES).min(STEPS);
        let mut classes = [[0; LANES]; STEPS];
        of.classes_lanes(keys, &mut classes[..steps]);
        let mut records = [[0; VECTOR]; 2];
        for (at, (field, records)) in self.fields.iter().zip(&mut records).enumerate() {
            if field.has_lists.contains(&true) || field.has_classes.contains(&true) {
                field.records_lanes(at, keys, &mut records.as_chunks_mut().0[..steps]);
            }
        }
        let [sources, destinations] = &records;
        let of_keys = [&sources.as_chunks().0[..steps], &destinations.as_chunks().0[..steps]];
        let mut best = [[NONE; LANES]; STEPS];
        let best = &mut best[..steps];
        let mut lists = ListLanes { cells: [[0; LANES]; STEPS], rules: [[0; LANES]; STEPS] };
        for (field, records) in self.fields.iter().zip(of_keys) {
            if field.has_lists.contains(&true) {
                field.lists_lanes(records, &classes, &mut lists);
                rows.first_lanes(&lists, best);
            }
        }
        if self.any != ListId::EMPTY {
            let parts = lists.cells.iter_mut().zip(&mut lists.rules);
            for (classes, (cells, rules)) in classes.iter().zip(parts) {
                store(cells, plus(load(classes), splat(self.any.cells)));
                store(rules, splat(self.any.rules));
            }
            rows.first_lanes(&lists, best);
        }
        match &self.both {
            BothEnds::Nothing => {}
            BothEnds::Crossed(crossed) => {
                for (number, layer) in crossed.layers.iter().enumerate() {
                    layer.lists_lanes(&self.fields, number, of_keys, &classes, &mut lists);
                    rows.first_lanes(&lists, best);
                }
            }
            BothEnds::Tuples(tuples) => {
                tuples.probe_lanes(&self.fields, &records, &classes, rows, best);
            }
        }
        found.copy_from_slice(&best.as_flattened()[..found.len()]);
    }
}
