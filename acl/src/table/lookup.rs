//! Lookups: of one key, and of vectors step by step.

use super::Table;
use super::crossed::{Crossed, CrossedField};
use super::ends::Kind;
use super::field::Field;
use super::lists::{ListId, Lists, NONE};
use super::plan::{ByEnds, Decide, Pruned};
use crate::simd::{self, VECTOR};
use crate::{Address, Key};

impl Table {
    /// The index of the first rule that matches `key`.
    #[inline]
    pub fn lookup(&self, key: &Key) -> Option<usize> {
        let found = match &self.parts.lists {
            Decide::Rows(classes, rows) => self.lookup_one(key, classes.class(key) as u16, rows),
            Decide::Scans(scans) => self.lookup_one(key, 0, scans),
        };
        (found != NONE).then_some(found as usize)
    }

    #[inline]
    fn lookup_one(&self, key: &Key, class: u16, lists: impl Lists) -> u32 {
        match &self.parts.ends {
            ByEnds::Crossed(crossed) => {
                let element = |at: usize| {
                    let (field, (address, identity)) = (&crossed.fields[at], end(key, at));
                    match &field.nets {
                        _ if field.by_identity => field.of_identity(identity),
                        nets => nets.as_ref().map_or(0, |nets| nets.lookup(address)),
                    }
                };
                lists.first(crossed.list(element(0), element(1)), class, key, NONE)
            }
            ByEnds::Pruned(pruned) => self.among_rest(key, pruned.lookup_one(key, class, lists)),
        }
    }

    /// The first rule among `best` and those that no structure took.
    #[inline]
    fn among_rest(&self, key: &Key, best: u32) -> u32 {
        let ByEnds::Pruned(pruned) = &self.parts.ends else { return best };
        let mut before = pruned.tuples.rest.iter().take_while(|rule| **rule < best);
        let matches = |rule: &&u32| self.rules[**rule as usize].matches(key, &self.addresses);
        before.find(matches).copied().unwrap_or(best)
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
            simd::widest(
                #[inline(always)]
                || {
                    let mut classes = [0; VECTOR];
                    let classes = &mut classes[..keys.len()];
                    match &self.parts.lists {
                        Decide::Rows(of, rows) => {
                            of.classes(keys, classes);
                            self.lookup_chunk(keys, classes, found, rows);
                        }
                        Decide::Scans(scans) => self.lookup_chunk(keys, classes, found, scans),
                    }
                },
            );
        }
    }

    #[inline(always)]
    fn lookup_chunk(&self, keys: &[Key], classes: &[u16], best: &mut [u32], lists: impl Lists) {
        match &self.parts.ends {
            ByEnds::Crossed(crossed) => crossed.lookup_chunk(keys, classes, best, lists),
            ByEnds::Pruned(pruned) => {
                match (pruned.tuples.is_empty(), pruned.tuples.are_of_nets) {
                    (true, _) => pruned.lookup_chunk::<0, true>(keys, classes, best, lists),
                    (_, true) => pruned.lookup_chunk::<VECTOR, true>(keys, classes, best, lists),
                    _ => pruned.lookup_chunk::<VECTOR, false>(keys, classes, best, lists),
                }
                if !pruned.tuples.rest.is_empty() {
                    for (key, best) in keys.iter().zip(best) {
                        *best = self.among_rest(key, *best);
                    }
                }
            }
        }
    }
}

/// Address and identity of the source, or the destination.
#[inline(always)]
fn end(key: &Key, at: usize) -> (Address, u32) {
    match at {
        0 => (key.source, key.source_identity.0),
        _ => (key.destination, key.destination_identity.0),
    }
}

impl Crossed {
    #[inline(always)]
    fn lookup_chunk(&self, keys: &[Key], classes: &[u16], best: &mut [u32], lists: impl Lists) {
        let mut elements = [[0; VECTOR]; 2];
        let [sources, destinations] = &mut elements;
        let sources = elements_of(&self.fields[0], 0, keys, sources);
        let destinations = elements_of(&self.fields[1], 1, keys, destinations);
        let ends = sources.iter().zip(destinations);
        for (((key, class), best), ends) in keys.iter().zip(classes).zip(best).zip(ends) {
            *best = lists.first(self.list(*ends.0, *ends.1), *class, key, NONE);
        }
    }
}

/// The elements of one field of many keys.
#[inline(always)]
fn elements_of<'a>(
    field: &CrossedField,
    at: usize,
    keys: &[Key],
    elements: &'a mut [u32; VECTOR],
) -> &'a [u32] {
    let elements = &mut elements[..keys.len()];
    if field.by_identity {
        let pairs = elements.iter_mut().zip(keys);
        pairs.for_each(|(element, key)| *element = field.of_identity(end(key, at).1));
    } else if let Some(nets) = &field.nets {
        nets.lookup_each(keys.iter().map(|key| end(key, at).0), elements);
    }
    elements
}

impl Pruned {
    #[inline]
    fn lookup_one(&self, key: &Key, class: u16, lists: impl Lists) -> u32 {
        let mut best = lists.first(self.any, class, key, NONE);
        let mut records = [[0; 3]; 2];
        let mut mask = u32::MAX;
        for (at, (field, records)) in self.fields.iter().zip(&mut records).enumerate() {
            let (address, identity) = end(key, at);
            let net = field.nets.as_ref().map_or(0, |nets| nets.lookup(address));
            *records = [field.of_net(net), field.of_identity(identity), field.any];
            let mut tuples = field.mask(field.any);
            for kind in [Kind::Net, Kind::Set] {
                let record = records[kind as usize];
                if field.has_lists[kind as usize] {
                    best = best.min(lists.first(field.list(record), class, key, best));
                }
                if field.has_tuples[kind as usize] {
                    tuples |= field.mask(record);
                }
            }
            mask &= tuples;
        }
        while self.tuples.may_beat(mask, best) {
            let record = |at: usize, kind: Kind| records[at][kind as usize];
            let (pair, place) = self.tuples.probe(mask, &self.fields, record);
            let list = self.tuples.list(pair, place);
            best = best.min(lists.first(list, class, key, best));
            mask &= mask - 1;
        }
        best
    }

    /// `TUPLES` is [`VECTOR`] if there are tuples, else 0; `NETS` states whether all of them are of
    /// networks.
    #[inline(always)]
    fn lookup_chunk<const TUPLES: usize, const NETS: bool>(
        &self,
        keys: &[Key],
        classes: &[u16],
        best: &mut [u32],
        lists: impl Lists,
    ) {
        if self.any == ListId::EMPTY {
            best.fill(NONE);
        } else {
            for ((key, class), best) in keys.iter().zip(classes).zip(best.iter_mut()) {
                *best = lists.first(self.any, *class, key, NONE);
            }
        }
        let mut nets = [[0; TUPLES]; 2];
        let mut masks = [u32::MAX; TUPLES];
        for at in 0..2 {
            let field = &self.fields[at];
            let mut records = [0; VECTOR];
            let records = &mut records[..keys.len()];
            if let Some(nets) = &field.nets {
                nets.lookup_each(keys.iter().map(|key| end(key, at).0), records);
                records.iter_mut().for_each(|record| *record = field.of_net(*record));
            }
            let identity = |key: &Key| field.of_identity(end(key, at).1);
            let found =
                |record, class, key, best| lists.first(field.list(record), class, key, best);
            if field.has_lists[Kind::Net as usize] {
                let pairs = keys.iter().zip(classes).zip(&*records).zip(best.iter_mut());
                for (((key, class), record), best) in pairs {
                    *best = (*best).min(found(*record, *class, key, *best));
                }
            }
            if field.has_lists[Kind::Set as usize] {
                for ((key, class), best) in keys.iter().zip(classes).zip(best.iter_mut()) {
                    *best = (*best).min(found(identity(key), *class, key, *best));
                }
            }
            if TUPLES == 0 {
                continue;
            }
            // Of the tuples only those stay that have a rule which fits.
            let any = field.mask(field.any);
            if NETS {
                for (record, mask) in records.iter().zip(&mut masks) {
                    *mask &= field.mask(*record);
                }
            } else {
                for ((key, record), mask) in keys.iter().zip(&*records).zip(&mut masks) {
                    let of_set = if field.identities > 0 { field.mask(identity(key)) } else { 0 };
                    *mask &= any | field.mask(*record) | of_set;
                }
            }
            nets[at][..keys.len()].copy_from_slice(records);
        }
        if TUPLES != 0 {
            let record = |key: &Key, place: usize, at: usize, kind: Kind| match kind {
                _ if NETS => nets[at][place],
                Kind::Net => nets[at][place],
                Kind::Set => self.fields[at].of_identity(end(key, at).1),
                Kind::Any => self.fields[at].any,
            };
            self.probe_tuples(keys, classes, &mut masks, record, best, lists);
        }
    }

    /// Probes tuples, step by step for all keys, so that cache misses overlap and no step waits
    /// for a guess about another.
    #[inline(always)]
    fn probe_tuples<const TUPLES: usize>(
        &self,
        keys: &[Key],
        classes: &[u16],
        masks: &mut [u32; TUPLES],
        record: impl Fn(&Key, usize, usize, Kind) -> u32,
        best: &mut [u32],
        lists: impl Lists,
    ) {
        let (tuples, fields): (_, &[Field; 2]) = (&self.tuples, &self.fields);
        let mut pairs = [0; TUPLES];
        let mut cells = [0; TUPLES];
        let mut left = Places::new();
        for at in 0..keys.len() {
            left.push_if(tuples.may_beat(masks[at], best[at]), at);
        }
        while left.count > 0 {
            for at in left.iter() {
                let record = |field: usize, kind: Kind| record(&keys[at], at, field, kind);
                (pairs[at], cells[at]) = tuples.probe(masks[at], fields, record);
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
