//! Lookups: of one key, and of vectors step by step.

use super::Table;
use super::pairs::Tuples;
use super::rows::NONE;
use super::side::Known;
use crate::simd::VECTOR;
use crate::{Address, Key, simd};

impl Table {
    /// The index of the first rule that matches `key`.
    #[inline]
    pub fn lookup(&self, key: &Key) -> Option<usize> {
        let mut best = NONE;
        let mut tuples = self.pairs.any;
        let class = if self.uses_rows { self.services.class(key) } else { 0 };
        if self.uses_rows {
            best = self.rows.view().any(class);
        }
        let ends =
            [(key.source, key.source_identity.0), (key.destination, key.destination_identity.0)];
        for ((side, tuples), (address, identity)) in self.sides.iter().zip(&mut tuples).zip(ends) {
            let mut consider = |known: &Known, number: u32| {
                if known.has_rows {
                    let row = *known.rows().get(number as usize);
                    let found = self.rows.view().lookup(row, class);
                    best = best.min(found);
                }
                if known.has_tuples {
                    *tuples |= known.tuples().get(number as usize);
                }
            };
            if let Some(nets) = &side.nets {
                consider(&side.of_nets, nets.lookup(address));
            }
            if identity < side.identities {
                consider(&side.of_identities, identity);
            }
        }
        let tuples = tuples[0] & tuples[1];
        if tuples != 0 {
            best = self.pairs.lookup(key, tuples, best, self);
        }
        (best != NONE).then_some(best as usize)
    }

    /// The index of the first rule that matches each key, or [`NONE`](Self::NONE); for as many
    /// keys as the shorter of both slices holds.
    ///
    /// Much faster than one lookup after the other: each step is taken for all keys before the
    /// next one, so that the memory accesses of many keys overlap.
    pub fn lookup_vector(&self, keys: &[Key], found: &mut [u32]) {
        for (keys, found) in keys.chunks(VECTOR).zip(found.chunks_mut(VECTOR)) {
            let keys = &keys[..keys.len().min(found.len())];
            simd::widest(
                #[inline(always)]
                || match self.pairs.is_empty() {
                    true => self.lookup_chunk::<0>(keys, found),
                    false => self.lookup_chunk::<VECTOR>(keys, found),
                },
            );
        }
    }

    /// `PAIRS` is [`VECTOR`] if there are rules over both ends, else 0.
    #[inline(always)]
    fn lookup_chunk<const PAIRS: usize>(&self, keys: &[Key], best: &mut [u32]) {
        let mut columns = Columns::<PAIRS> {
            classes: [0; VECTOR],
            numbers: [0; VECTOR],
            tuples: [Tuples::MAX; PAIRS],
        };
        if self.uses_rows {
            self.services.classes(keys, &mut columns.classes);
            let rows = self.rows.view();
            for (class, best) in columns.classes.iter().zip(best.iter_mut()) {
                *best = rows.any(usize::from(*class));
            }
        } else {
            best.fill(NONE);
        }
        let source = |key: &Key| (key.source, key.source_identity.0);
        let destination = |key: &Key| (key.destination, key.destination_identity.0);
        self.lookup_side(0, keys, source, &mut columns, best);
        self.lookup_side(1, keys, destination, &mut columns, best);
        if let Ok(tuples) = columns.tuples.as_mut_slice().try_into() {
            self.pairs.lookup_each(keys, tuples, best, self);
        }
    }

    /// What one side brings along: one-sided rules to `best`, and of the tuples only those
    /// stay that this side can match.
    #[inline(always)]
    fn lookup_side<const PAIRS: usize>(
        &self,
        at: usize,
        keys: &[Key],
        end: impl Fn(&Key) -> (Address, u32),
        columns: &mut Columns<PAIRS>,
        best: &mut [u32],
    ) {
        let side = &self.sides[at];
        let Columns { classes, numbers, tuples } = columns;
        let numbers = &mut numbers[..keys.len()];
        if let Some(lpm) = &side.nets {
            lpm.lookup_each(keys.iter().map(|key| end(key).0), numbers);
        }
        // Identity 0 is in no set.
        let identity = |key| Some(end(key).1).filter(|it| *it < side.identities).unwrap_or(0);
        let (nets, sets) = (&side.of_nets, &side.of_identities);
        if nets.has_rows {
            self.best_in_rows(nets, numbers.iter().copied(), classes, best);
        }
        if sets.has_rows {
            self.best_in_rows(sets, keys.iter().map(identity), classes, best);
        }
        if PAIRS == 0 {
            return;
        }
        let any = self.pairs.any[at];
        let (of_nets, of_sets) = (nets.tuples(), sets.tuples());
        let places = tuples.iter_mut().zip(numbers.iter().zip(keys));
        match (nets.has_tuples, sets.has_tuples) {
            (true, false) => {
                places.for_each(|(tuples, (net, _))| *tuples &= any | of_nets.get(*net as usize))
            }
            (true, true) => places.for_each(|(tuples, (net, key))| {
                let of_set = of_sets.get(identity(key) as usize);
                *tuples &= any | of_nets.get(*net as usize) | of_set;
            }),
            (false, true) => places.for_each(|(tuples, (_, key))| {
                *tuples &= any | of_sets.get(identity(key) as usize);
            }),
            (false, false) => places.for_each(|(tuples, _)| *tuples &= any),
        }
    }

    /// Takes one-sided rules to `best`.
    #[inline(always)]
    fn best_in_rows(
        &self,
        known: &Known,
        numbers: impl Iterator<Item = u32>,
        classes: &[u16],
        best: &mut [u32],
    ) {
        let (lists, rows) = (known.rows(), self.rows.view());
        for ((number, class), best) in numbers.zip(classes).zip(best) {
            let found = rows.lookup(*lists.get(number as usize), usize::from(*class));
            *best = (*best).min(found);
        }
    }
}

/// What is known of the keys of a vector, by place; `PAIRS` as in [`Table::lookup_chunk`].
struct Columns<const PAIRS: usize> {
    classes: [u16; VECTOR],
    numbers: [u32; VECTOR],
    /// Tuples that may have a match.
    tuples: [Tuples; PAIRS],
}
