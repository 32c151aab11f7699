//! Lookups: of one key, and of vectors step by step.

use super::Table;
use super::crossed::Crossed;
use super::ends::Kind;
use super::field::Field;
use super::lists::{ListId, Lists, NONE};
use super::plan::{BothEnds, ByEnds, Decide};
use crate::addresses::Addresses;
use crate::simd::{self, VECTOR};
use crate::{Address, Key};

impl Table {
    /// The index of the first rule that matches `key`.
    #[inline]
    pub fn lookup(&self, key: &Key) -> Option<usize> {
        let ends = &self.parts.ends;
        let found = match &self.parts.lists {
            Decide::Rows(classes, rows) => ends.lookup_one(key, classes.class(key), rows),
            Decide::Scans(scans) => ends.lookup_one(key, 0, scans),
        };
        let found = self.among_rest(key, found);
        (found != NONE).then_some(found as usize)
    }

    /// The first rule among `best` and those that no tuple took.
    #[inline]
    fn among_rest(&self, key: &Key, best: u32) -> u32 {
        let BothEnds::Tuples(tuples) = &self.parts.ends.both else { return best };
        if tuples.takes_all() {
            return best;
        }
        match &self.parts.lists {
            Decide::Rows(classes, rows) => {
                tuples.first_of_rest(key, classes.class(key), rows, best)
            }
            Decide::Scans(scans) => tuples.first_of_rest(key, 0, scans, best),
        }
    }

    /// The index of the first rule that matches each key, or [`NONE`](Self::NONE); for as many
    /// keys as the shorter of both slices holds.
    ///
    /// Much faster than one lookup after the other: each step is taken for all keys before the
    /// next one, so that the memory accesses of many keys overlap.
    pub fn lookup_vector(&self, keys: &[Key], found: &mut [u32]) {
        let ends = &self.parts.ends;
        for (keys, found) in keys.chunks(VECTOR).zip(found.chunks_mut(VECTOR)) {
            let keys = &keys[..keys.len().min(found.len())];
            let found = &mut found[..keys.len()];
            self.lookup_some(keys, found);
            if let BothEnds::Tuples(tuples) = &ends.both
                && !tuples.takes_all()
            {
                for (key, best) in keys.iter().zip(found) {
                    *best = self.among_rest(key, *best);
                }
            }
        }
    }

    /// The first rules but those that no tuple took, of so many keys as are found for, [`VECTOR`] at most.
    #[inline]
    fn lookup_some(&self, keys: &[Key], found: &mut [u32]) {
        #[cfg(target_arch = "x86_64")]
        if super::lanes::look_up(&self.parts, keys, found) {
            return;
        }
        let ends = &self.parts.ends;
        simd::widest(
            #[inline(always)]
            || {
                let mut classes = [0; VECTOR];
                let classes = &mut classes[..keys.len()];
                match &self.parts.lists {
                    Decide::Rows(of, rows) => {
                        of.classes(keys, classes);
                        ends.lookup_chunk(keys, classes, found, rows);
                    }
                    Decide::Scans(scans) => ends.lookup_chunk(keys, classes, found, scans),
                }
            },
        );
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

impl Field {
    /// The records of many keys, those of the only kind by which rules name this field.
    #[inline(always)]
    fn records(&self, at: usize, keys: &[Key], records: &mut [u32]) {
        if let Some(nets) = &self.nets {
            nets.find_each(Addresses::of_end(keys, at), records);
        } else if self.identities > 0 {
            for (key, record) in keys.iter().zip(records) {
                *record = self.of_identity(end(key, at).1);
            }
        } else {
            records.fill(self.any);
        }
    }
}

impl ByEnds {
    #[inline]
    fn lookup_one(&self, key: &Key, class: u32, lists: impl Lists) -> u32 {
        let mut best = lists.first(self.any, class, key, NONE);
        let mut records = [[0; 3]; 2];
        for (at, (field, records)) in self.fields.iter().zip(&mut records).enumerate() {
            let (address, identity) = end(key, at);
            *records = [field.of_address(address), field.of_identity(identity), field.any];
            for kind in [Kind::Net, Kind::Set] {
                if field.has_lists[kind as usize] {
                    let list = field.list(records[kind as usize]);
                    best = best.min(lists.first(list, class, key, best));
                }
            }
        }
        match &self.both {
            BothEnds::Nothing => best,
            BothEnds::Crossed(crossed) => {
                for (number, layer) in crossed.layers.iter().enumerate() {
                    let of = |at: usize| {
                        let record = records[at][crossed.kinds[at] as usize];
                        self.fields[at].class(record, number)
                    };
                    let list = layer.list(of(0), of(1));
                    best = best.min(lists.first(list, class, key, best));
                }
                best
            }
            BothEnds::Tuples(tuples) => {
                let mut mask = u32::MAX;
                for (field, records) in self.fields.iter().zip(records) {
                    mask &= field.tuples(records);
                }
                while tuples.may_beat(mask, best) {
                    let record = |at: usize, kind: Kind| records[at][kind as usize];
                    let (pair, place) = tuples.probe(mask, &self.fields, record);
                    let list = tuples.list(pair, place);
                    best = best.min(lists.first(list, class, key, best));
                    mask &= mask - 1;
                }
                best
            }
        }
    }

    /// Whether rules name each field by networks alone, by peer sets alone or not at all.
    #[inline]
    pub(super) fn is_alike(&self) -> bool {
        self.fields.iter().all(|field| field.kind().is_some())
    }

    #[inline(always)]
    fn lookup_chunk(&self, keys: &[Key], classes: &[u32], best: &mut [u32], lists: impl Lists) {
        if !self.is_alike() {
            return self.lookup_mixed(keys, classes, best, lists);
        }
        let mut records = [[0; VECTOR]; 2];
        for (at, (field, records)) in self.fields.iter().zip(&mut records).enumerate() {
            if field.has_lists.contains(&true) || field.has_classes.contains(&true) {
                field.records(at, keys, &mut records[..keys.len()]);
            }
        }
        let has_lists = self.fields.each_ref().map(|field| field.has_lists.contains(&true));
        let crossed = matches!(self.both, BothEnds::Crossed(_));
        let records = &records;
        match (has_lists, crossed) {
            ([false, false], false) => best.fill(NONE),
            ([true, false], false) => {
                self.decide::<true, false, false>(keys, classes, records, best, lists)
            }
            ([false, true], false) => {
                self.decide::<false, true, false>(keys, classes, records, best, lists)
            }
            ([true, true], false) => {
                self.decide::<true, true, false>(keys, classes, records, best, lists)
            }
            ([false, false], true) => {
                self.decide::<false, false, true>(keys, classes, records, best, lists)
            }
            ([true, false], true) => {
                self.decide::<true, false, true>(keys, classes, records, best, lists)
            }
            ([false, true], true) => {
                self.decide::<false, true, true>(keys, classes, records, best, lists)
            }
            ([true, true], true) => {
                self.decide::<true, true, true>(keys, classes, records, best, lists)
            }
        }
        self.decide_any(keys, classes, best, lists);
        if let BothEnds::Crossed(crossed) = &self.both {
            let record = |place: usize, at: usize, _: Kind| records[at][place];
            self.decide_layers(crossed, 1, keys, classes, record, best, lists);
        }
        if let BothEnds::Tuples(tuples) = &self.both {
            let mut masks = [0; VECTOR];
            let [source, destination] = &self.fields;
            for (mask, records) in
                masks.iter_mut().zip(records[0].iter().zip(&records[1])).take(keys.len())
            {
                *mask = source.mask(*records.0) & destination.mask(*records.1);
            }
            let record = |place: usize, at: usize, _: Kind| records[at][place];
            tuples.probe_each(&self.fields, keys, classes, &mut masks, record, best, lists);
        }
    }

    /// The first rule among those found and the list of no end.
    #[inline(always)]
    fn decide_any(&self, keys: &[Key], classes: &[u32], best: &mut [u32], lists: impl Lists) {
        if self.any != ListId::EMPTY {
            for ((key, class), best) in keys.iter().zip(classes).zip(best) {
                *best = (*best).min(lists.first(self.any, *class, key, *best));
            }
        }
    }

    /// The first rule of the lists of each end and of both.
    #[inline(always)]
    fn decide<const SOURCE: bool, const DESTINATION: bool, const CROSSED: bool>(
        &self,
        keys: &[Key],
        classes: &[u32],
        records: &[[u32; VECTOR]; 2],
        best: &mut [u32],
        lists: impl Lists,
    ) {
        let [source, destination] = &self.fields;
        let first = match &self.both {
            BothEnds::Crossed(crossed) if CROSSED => crossed.layers.first(),
            _ => None,
        };
        let records = records[0].iter().zip(&records[1]);
        for (((key, class), best), records) in keys.iter().zip(classes).zip(best).zip(records) {
            let mut found = NONE;
            if SOURCE {
                found = found.min(lists.first(source.list(*records.0), *class, key, found));
            }
            if DESTINATION {
                found = found.min(lists.first(destination.list(*records.1), *class, key, found));
            }
            if let Some(layer) = first {
                let pair = (source.class(*records.0, 0), destination.class(*records.1, 0));
                found = found.min(lists.first(layer.list(pair.0, pair.1), *class, key, found));
            }
            *best = found;
        }
    }

    /// The first rule among those found and the layers of pairs from `from` on.
    #[inline(always)]
    #[allow(clippy::too_many_arguments, reason = "the state of a vector's lookup")]
    fn decide_layers(
        &self,
        crossed: &Crossed,
        from: usize,
        keys: &[Key],
        classes: &[u32],
        record: impl Fn(usize, usize, Kind) -> u32,
        best: &mut [u32],
        lists: impl Lists,
    ) {
        for (number, layer) in crossed.layers.iter().enumerate().skip(from) {
            for (place, ((key, class), best)) in
                keys.iter().zip(classes).zip(best.iter_mut()).enumerate()
            {
                let of =
                    |at: usize| self.fields[at].class(record(place, at, crossed.kinds[at]), number);
                *best = (*best).min(lists.first(layer.list(of(0), of(1)), *class, key, *best));
            }
        }
    }

    /// Where rules name a field both by networks and by peer sets.
    fn lookup_mixed(&self, keys: &[Key], classes: &[u32], best: &mut [u32], lists: impl Lists) {
        best.fill(NONE);
        self.decide_any(keys, classes, best, lists);
        let mut nets = [[0; VECTOR]; 2];
        let mut masks = [u32::MAX; VECTOR];
        for at in 0..2 {
            let field = &self.fields[at];
            let records = &mut nets[at][..keys.len()];
            if let Some(nets) = &field.nets {
                nets.find_each(Addresses::of_end(keys, at), records);
            }
            for (((key, class), record), best) in
                keys.iter().zip(classes).zip(&*records).zip(best.iter_mut())
            {
                if field.has_lists[Kind::Net as usize] {
                    *best = (*best).min(lists.first(field.list(*record), *class, key, *best));
                }
                if field.has_lists[Kind::Set as usize] {
                    let list = field.list(field.of_identity(end(key, at).1));
                    *best = (*best).min(lists.first(list, *class, key, *best));
                }
            }
        }
        let record = |place: usize, at: usize, kind: Kind| match kind {
            Kind::Net => nets[at][place],
            Kind::Set => self.fields[at].of_identity(end(&keys[place], at).1),
            Kind::Any => self.fields[at].any,
        };
        match &self.both {
            BothEnds::Nothing => {}
            BothEnds::Crossed(crossed) => {
                self.decide_layers(crossed, 0, keys, classes, record, best, lists);
            }
            BothEnds::Tuples(tuples) => {
                for (place, mask) in masks.iter_mut().enumerate().take(keys.len()) {
                    for (at, field) in self.fields.iter().enumerate() {
                        let of = |kind| record(place, at, kind);
                        *mask &= field.tuples([of(Kind::Net), of(Kind::Set), of(Kind::Any)]);
                    }
                }
                tuples.probe_each(&self.fields, keys, classes, &mut masks, record, best, lists);
            }
        }
    }
}
