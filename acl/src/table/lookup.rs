//! Lookups: of one key, and of vectors step by step.

use super::Table;
use super::lists::{Lists, NONE};
use super::plan::{Decide, Parts};
use super::tuples::Tuples;
use crate::Key;
use crate::simd::{self, VECTOR};

impl Table {
    /// The index of the first rule that matches `key`.
    #[inline]
    pub fn lookup(&self, key: &Key) -> Option<usize> {
        let found = match &self.parts.lists {
            Decide::Rows(classes, rows) => self.parts.lookup_one(key, classes.class(key), rows),
            Decide::Scans(scans) => self.parts.lookup_one(key, 0, scans),
        };
        (found != NONE).then_some(found as usize)
    }

    /// The index of the first rule that matches each key, or [`NONE`](Self::NONE); for as many
    /// keys as the shorter of both slices holds.
    ///
    /// Much faster than one lookup after the other: each step is taken for all keys before the
    /// next one, so that the memory accesses of many keys overlap.
    pub fn lookup_vector(&self, keys: &[Key], found: &mut [u32]) {
        for (keys, found) in keys.chunks(VECTOR).zip(found.chunks_mut(VECTOR)) {
            let keys = &keys[..keys.len().min(found.len())];
            let found = &mut found[..keys.len()];
            #[cfg(target_arch = "x86_64")]
            if super::lanes::look_up(&self.parts, keys, found) {
                continue;
            }
            simd::widest(
                #[inline(always)]
                || self.parts.lookup_some(keys, found),
            );
        }
    }
}

impl Parts {
    #[inline]
    fn lookup_one(&self, key: &Key, class: u32, lists: impl Lists) -> u32 {
        let mut best = NONE;
        for (at, field) in self.fields.iter().enumerate().filter(|(_, field)| field.has_lists) {
            best = best.min(lists.first(field.list(field.record(at, key)), class, key, best));
        }
        let Some(tuples) = &self.tuples else { return best };
        let mut mask = self.mask(key);
        while tuples.may_beat(mask, best) {
            let (pair, place) = tuples.probe(mask, |at, tuple| self.class(at, key, tuple));
            best = best.min(lists.first(tuples.list(pair, place), class, key, best));
            mask &= mask - 1;
        }
        tuples.rest.first(key, class, lists, best)
    }

    /// The tuples that have a rule for both ends of a key.
    #[inline(always)]
    fn mask(&self, key: &Key) -> u32 {
        let [source, destination] = &self.fields;
        source.mask(source.record(0, key)) & destination.mask(destination.record(1, key))
    }

    /// The class of an end of a key in a tuple.
    #[inline(always)]
    fn class(&self, at: usize, key: &Key, tuple: usize) -> u32 {
        self.fields[at].class(self.fields[at].record(at, key), tuple)
    }

    /// The first rules of [`VECTOR`] keys at most.
    #[inline(always)]
    fn lookup_some(&self, keys: &[Key], best: &mut [u32]) {
        let mut classes = [0; VECTOR];
        let classes = &mut classes[..keys.len()];
        match &self.lists {
            Decide::Rows(of, rows) => {
                of.classes(keys, classes);
                self.lookup_each(keys, classes, best, rows);
            }
            Decide::Scans(scans) => self.lookup_each(keys, classes, best, scans),
        }
    }

    #[inline(always)]
    fn lookup_each(&self, keys: &[Key], classes: &[u32], best: &mut [u32], lists: impl Lists) {
        match self.fields.each_ref().map(|field| field.has_lists) {
            [false, false] => best.fill(NONE),
            [true, false] => self.decide::<0, true>(keys, classes, best, lists),
            [false, true] => self.decide::<1, true>(keys, classes, best, lists),
            [true, true] => {
                self.decide::<0, true>(keys, classes, best, lists);
                self.decide::<1, false>(keys, classes, best, lists);
            }
        }
        let Some(tuples) = &self.tuples else { return };
        self.probe_each(tuples, keys, classes, best, lists);
        if !tuples.rest.is_empty() {
            for ((key, class), best) in keys.iter().zip(classes).zip(best) {
                *best = tuples.rest.first(key, *class, lists, *best);
            }
        }
    }

    /// Takes the lists of one end, the first ones or also.
    #[inline(always)]
    fn decide<const AT: usize, const FIRST: bool>(
        &self,
        keys: &[Key],
        classes: &[u32],
        best: &mut [u32],
        lists: impl Lists,
    ) {
        let field = &self.fields[AT];
        for ((key, class), best) in keys.iter().zip(classes).zip(best) {
            let before = if FIRST { NONE } else { *best };
            let list = field.list(field.record(AT, key));
            *best = before.min(lists.first(list, *class, key, before));
        }
    }

    /// Probes tuples, step by step for all keys, so that cache misses overlap and no step waits
    /// for a guess about another.
    #[inline(always)]
    fn probe_each(
        &self,
        tuples: &Tuples,
        keys: &[Key],
        classes: &[u32],
        best: &mut [u32],
        lists: impl Lists,
    ) {
        let (mut masks, mut pairs, mut cells) = ([0; VECTOR], [0; VECTOR], [0; VECTOR]);
        let mut left = Places::new();
        for (at, key) in keys.iter().enumerate() {
            masks[at] = self.mask(key);
            left.push_if(tuples.may_beat(masks[at], best[at]), at);
        }
        while left.count > 0 {
            for at in left.iter() {
                let class = |field: usize, tuple: usize| self.class(field, &keys[at], tuple);
                (pairs[at], cells[at]) = tuples.probe(masks[at], class);
                tuples.prefetch(cells[at]);
            }
            for at in left.take().iter() {
                let list = tuples.list(pairs[at], cells[at]);
                best[at] = best[at].min(lists.first(list, classes[at], &keys[at], best[at]));
                masks[at] &= masks[at].wrapping_sub(1);
                left.push_if(tuples.may_beat(masks[at], best[at]), at);
            }
        }
    }
}

/// Places of keys in a vector. Written always and kept if counted, so that nothing depends on
/// guessing a branch right.
#[derive(Clone, Copy)]
struct Places {
    list: [u8; VECTOR],
    count: usize,
}

impl Places {
    fn new() -> Self {
        Self { list: [0; VECTOR], count: 0 }
    }

    #[inline(always)]
    fn push_if(&mut self, kept: bool, place: usize) {
        self.list[self.count % VECTOR] = place as u8;
        self.count += usize::from(kept);
    }

    #[inline(always)]
    fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.list[..self.count].iter().map(|place| usize::from(*place))
    }

    /// The places so far, as those to come are gathered anew.
    #[inline(always)]
    fn take(&mut self) -> Self {
        Self { count: std::mem::take(&mut self.count), ..*self }
    }
}
