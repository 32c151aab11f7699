//! Rules over both ends by pairs of equivalence classes, in one array (recursive flow
//! classification: Gupta and McKeown, SIGCOMM 1999).
//!
//! ```text
//! class of source x blocks + class of destination / 32 -> block
//! block x 32 + class of destination % 32               -> list
//! ```
//!
//! Most pairs have no rule: blocks of 32 destinations are held once, and all empty ones are one.
//!
//! Elements that the same rules fit are of one class. A few rules over wide networks at both ends would
//! be in most pairs, so the widest have a layer of pairs of their own, with classes of their own. Rules over one end or none are not among them:
//! they would make most lists of pairs differ, and are found by lists of their own end.
//!
//! Compiling takes time by what rules cover, not by pairs: for each class of source its rules are
//! added, in order, to the classes of destinations that they cover. Lists are the paths of a tree,
//! so adding is a step to a child, and a rule that earlier ones leave nothing of adds no step.

#![allow(unsafe_code)]

mod paths;

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    _mm512_and_si512, _mm512_mullo_epi32, _mm512_slli_epi32, _mm512_srli_epi32,
};

use super::ends::{Classes, Ends, Kind};
use super::field::{Both, Field};
use super::groups::Groups;
use super::index::Index;
use super::lists::{Effective, ListId, MakeLists};
use super::sort::{Keyed, sort};
use super::transport::TooMany;
use super::tuples::Numbered;
#[cfg(target_arch = "x86_64")]
use crate::simd::lanes::{Lanes, halves, pairs, plus, splat, words};
use paths::Paths;

/// Lists by pair of classes.
#[derive(Debug)]
pub(super) struct Crossed {
    /// That with the most rules first; each rule is in one.
    pub(super) layers: Vec<Layer>,
    /// How rules name both ends.
    pub(super) kinds: [Kind; 2],
}

/// Some rules by pair of classes.
#[derive(Debug)]
pub(super) struct Layer {
    /// By class of source and block of destinations: a number in `blocks`.
    index: Box<[u32]>,
    /// By block and place in it: a number in `lists`. And one more number.
    cells: Box<[u16]>,
    lists: Box<[ListId]>,
    /// Cells in a plain row, if lists are numbered as rows.
    row: Option<u32>,
    /// Classes of sources and destinations.
    pub(super) classes: [usize; 2],
}

/// Most layers.
const LAYERS: usize = 4;

/// Destinations in a block.
const BLOCK: usize = 32;

/// Bounds on each layer of a table of so many rules.
#[derive(Clone, Copy)]
struct Room {
    /// Words of its index.
    index: usize,
    /// Rules over all its pairs, which is what it takes to make.
    entries: u64,
}

impl Room {
    fn new(rules: usize) -> Self {
        let index = ((1 << 16) + 96 * rules).min(1 << 20);
        Self { index, entries: (1 << 16) + 32 * rules as u64 }
    }
}

/// Words that lists may take while they are made.
const MOST_WORDS: usize = 1 << 22;

impl Crossed {
    /// Of these rules, which ascend, with the records of both fields. `None` if classes are too many
    /// or a field is named in more than one way.
    pub(super) fn new(
        rules: &[Numbered],
        all: usize,
        ends: &[Ends; 2],
        lists: &mut impl MakeLists,
        effective: &mut Effective<'_>,
    ) -> Result<Option<(Self, [Field; 2])>, TooMany> {
        let Some(first) = rules.first() else { return Ok(None) };
        let kinds = first.ends.map(|end| end.kind);
        if kinds.contains(&Kind::Any)
            || rules.iter().any(|rule| rule.ends.map(|end| end.kind) != kinds)
        {
            return Ok(None);
        }
        let room = Room::new(all);
        let mut parts = Vec::new();
        let mut left = rules.to_vec();
        while !left.is_empty() {
            if parts.len() == LAYERS {
                return Ok(None);
            }
            let Some((part, wide)) = narrow(left, ends, kinds, room) else { return Ok(None) };
            parts.push(part);
            left = wide;
        }
        let mut fields = ends.each_ref().map(|ends| Field::new(ends, Both::Layers(parts.len())));
        let mut layers = Vec::new();
        for (at, part) in parts.iter().enumerate() {
            let Some(layer) = Layer::new(part, lists, effective)? else {
                return Ok(None);
            };
            let scales = [layer.per_source() as u32, 1];
            for ((field, classes), (kind, scale)) in
                fields.iter_mut().zip(&part.classes).zip(kinds.into_iter().zip(scales))
            {
                for (element, class) in (0..).zip(&classes.of) {
                    field.set_class(kind, element, at, class * scale);
                }
            }
            layers.push(layer);
        }
        Ok(Some((Self { layers, kinds }, fields)))
    }

    /// Notes which layers number their lists as plain rows of so many cells.
    pub(super) fn find_rows(&mut self, row: usize) {
        self.layers.iter_mut().for_each(|layer| layer.find_rows(row as u32));
    }

    pub(super) fn bytes(&self) -> usize {
        let bytes = |layer: &Layer| {
            size_of_val(&*layer.index)
                + size_of_val(&*layer.cells)
                + size_of_val(&*layer.lists)
                + size_of::<Layer>()
        };
        self.layers.iter().map(bytes).sum()
    }
}

/// Rules of one layer, which ascend, with the classes of both fields.
struct Part {
    rules: Vec<Numbered>,
    classes: [Classes; 2],
    /// How many classes there are.
    counts: [usize; 2],
}

/// Of these rules as many as have room in one layer, those over fewest pairs, and the rest.
fn narrow(
    rules: Vec<Numbered>,
    ends: &[Ends; 2],
    kinds: [Kind; 2],
    room: Room,
) -> Option<(Part, Vec<Numbered>)> {
    let (mut few, mut wide) = (rules, Vec::new());
    loop {
        let used = [0, 1].map(|at: usize| {
            let mut used = vec![false; ends[at].numbers(kinds[at])];
            few.iter().for_each(|rule| used[rule.ends[at].number as usize] = true);
            used
        });
        let covered = [0, 1].map(|at: usize| ends[at].fan_out(kinds[at], &used[at]));
        let [sources, destinations] = [0, 1].map(|at: usize| match kinds[at] {
            // Each network that is named has a class of its own.
            Kind::Net => used[at].iter().filter(|used| **used).count() + 1,
            kind => ends[at].elements(kind),
        });
        let index = sources * destinations.div_ceil(BLOCK);
        // Fewer rules leave as many identities.
        let most = if kinds.contains(&Kind::Net) { 4 * room.index } else { room.index };
        if wide.is_empty() && index > most {
            return None;
        }
        let pairs = |rule: &Numbered| {
            let covered =
                [0, 1].map(|at: usize| u64::from(covered[at][rule.ends[at].number as usize]));
            covered[0] * covered[1]
        };
        let mut total: u64 = few.iter().map(pairs).sum();
        if total <= room.entries && index <= room.index {
            let mut counts = [1; 2];
            let classes = [0, 1].map(|at: usize| {
                let mut next = 1;
                let classes = ends[at].classes(kinds[at], &used[at], &mut next);
                counts[at] = next as usize;
                classes
            });
            wide.sort_by_key(|rule: &Numbered| rule.rule);
            return Some((Part { rules: few, classes, counts }, wide));
        }
        // By what does not depend on the order of rules; those over the same ends stay together.
        let both = |rule: &Numbered| {
            let [source, destination] = rule.ends.map(|end| u64::from(end.number));
            source << 32 | destination
        };
        let mut order: Vec<Keyed> = few.iter().map(both).zip(0..).collect();
        sort(&mut order);
        order.iter_mut().for_each(|(key, at)| *key = pairs(&few[*at as usize]));
        sort(&mut order);
        // An index that is too large has too many classes in both fields, of which wide rules make few.
        let least = if index > room.index { few.len().div_ceil(4) } else { 0 };
        let mut is_wide = vec![false; few.len()];
        let (mut taken, mut last) = (0, None);
        while let Some((pairs, at)) = order.pop_if(|(_, at)| {
            total > room.entries || taken < least || last == Some(few[*at as usize].ends)
        }) {
            total -= pairs;
            last = Some(few[at as usize].ends);
            taken += 1;
            is_wide[at as usize] = true;
        }
        if order.is_empty() {
            return None;
        }
        let mut is_wide = is_wide.into_iter();
        wide.extend(few.extract_if(.., |_| is_wide.next().unwrap_or(false)));
    }
}

/// By class of the sources: the rules that cover it, by their places, which ascend. Rules that cover no destination
/// are left out.
fn by_source(part: &Part) -> Groups<u32> {
    let [sources, destinations] = &part.classes;
    Groups::new(part.counts[0], || {
        let rules = (0..).zip(&part.rules).filter(|(_, rule): &(u32, &Numbered)| {
            destinations.covered.by(rule.ends[1].number).next().is_some()
        });
        rules.flat_map(|(at, rule)| {
            sources.covered.by(rule.ends[0].number).map(move |class| (class, at))
        })
    })
}

impl Layer {
    fn new(
        part: &Part,
        lists: &mut impl MakeLists,
        effective: &mut Effective<'_>,
    ) -> Result<Option<Self>, TooMany> {
        let rules = &part.rules;
        let per_source = part.counts[1].div_ceil(BLOCK);
        let of_sources = by_source(part);
        let covered = &part.classes[1].covered;
        let mut paths = Paths::new(effective.matching(), rules);
        let mut index = vec![0; part.counts[0] * per_source];
        // The block without a list comes first.
        let mut cells = vec![0_u16; BLOCK];
        let mut known = Index::default();
        known.number(hash(&known, &cells), 0, |_| false);
        let mut made = vec![ListId::EMPTY];
        // By path: its list's number, once it has one.
        let mut numbers: Vec<Option<u16>> = vec![Some(0)];
        let mut reached = vec![Paths::EMPTY; per_source * BLOCK];
        let mut touched: Vec<usize> = Vec::new();
        for (source, index) in (0..).zip(index.chunks_mut(per_source)) {
            let mut touch = |block: usize| {
                if std::mem::replace(&mut index[block], u32::MAX) == 0 {
                    touched.push(block);
                }
            };
            for rule in of_sources.of(source) {
                // Many pairs are of one path.
                let mut last = None;
                let mut extend = |path: &mut u32| {
                    *path = match last {
                        Some((before, after)) if before == *path => after,
                        _ => {
                            let after = paths.extend(*path, *rule);
                            last = Some((*path, after));
                            after
                        }
                    };
                };
                let (run, list) = covered.parts(rules[*rule as usize].ends[1].number);
                let run = run.start as usize..run.end as usize;
                if !run.is_empty() {
                    (run.start / BLOCK..=(run.end - 1) / BLOCK).for_each(&mut touch);
                    reached[run].iter_mut().for_each(&mut extend);
                }
                for class in list {
                    touch(*class as usize / BLOCK);
                    extend(&mut reached[*class as usize]);
                }
            }
            if paths.seen.len() > MOST_WORDS {
                return Ok(None);
            }
            numbers.resize(paths.count(), None);
            for at in touched.drain(..) {
                let reached = &mut reached[at * BLOCK..][..BLOCK];
                let fresh = cells.len();
                for path in &*reached {
                    let number = match numbers[*path as usize] {
                        Some(number) => number,
                        None => {
                            let Ok(fresh) = u16::try_from(made.len()) else { return Ok(None) };
                            let list = paths.rules(*path);
                            made.push(match effective.matching() {
                                // A path has no others.
                                Some(_) => lists.list(list)?,
                                None => lists.list(effective.of(list.iter().copied()))?,
                            });
                            *numbers[*path as usize].insert(fresh)
                        }
                    };
                    cells.push(number);
                }
                reached.fill(Paths::EMPTY);
                let block =
                    known.number(hash(&known, &cells[fresh..]), (fresh / BLOCK) as u32, |known| {
                        cells[known as usize * BLOCK..][..BLOCK] == cells[fresh..]
                    });
                if block as usize * BLOCK < fresh {
                    cells.truncate(fresh);
                }
                index[at] = block;
            }
        }
        cells.push(0);
        let (cells, lists) = (cells.into(), made.into());
        Ok(Some(Self { index: index.into(), cells, lists, row: None, classes: part.counts }))
    }

    /// Blocks for each class of source.
    fn per_source(&self) -> usize {
        self.classes[1].div_ceil(BLOCK)
    }

    /// The list of a pair of classes, that of the source times the number of blocks.
    #[inline(always)]
    pub(super) fn list(&self, source: u32, destination: u32) -> ListId {
        let block = (source + destination / BLOCK as u32) as usize;
        debug_assert!(block < self.index.len());
        // SAFETY: classes are those that fields hold, which this was made with: there is a block for
        // each pair of them, and a list for each number in a block.
        unsafe {
            let block = *self.index.get_unchecked(block) as usize;
            let cell = block * BLOCK + destination as usize % BLOCK;
            let number = *self.cells.get_unchecked(cell);
            *self.lists.get_unchecked(usize::from(number))
        }
    }

    /// The lists of keys, each its rules and its cells, by their classes. Those that are numbered as plain rows
    /// are not loaded.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn lists_lanes<const N: usize>(
        &self,
        [sources, destinations]: [[Lanes; N]; 2],
    ) -> [[Lanes; 2]; N] {
        let (mut cells, mut lists) = ([splat(0); N], [[splat(0); 2]; N]);
        for (cell, (source, destination)) in
            cells.iter_mut().zip(sources.into_iter().zip(destinations))
        {
            let block = plus(source, _mm512_srli_epi32::<{ BLOCK.ilog2() }>(destination));
            // SAFETY: as for one pair.
            let block = unsafe { words(&self.index, block) };
            let within = _mm512_and_si512(destination, splat(BLOCK as u32 - 1));
            *cell = plus(_mm512_slli_epi32::<{ BLOCK.ilog2() }>(block), within);
        }
        for cell in &mut cells {
            // SAFETY: likewise, and there is one more number.
            *cell = unsafe { halves(&self.cells, *cell) };
        }
        for (list, number) in lists.iter_mut().zip(cells) {
            match self.row {
                Some(row) => list[1] = _mm512_mullo_epi32(number, splat(row)),
                // SAFETY: likewise.
                None => *list = unsafe { pairs(ListId::words(&self.lists), plus(number, number)) },
            }
        }
        lists
    }

    /// Notes whether lists are numbered as plain rows of so many cells.
    fn find_rows(&mut self, row: u32) {
        let mut lists = (0..).zip(&self.lists);
        self.row = lists.all(|(number, list)| list.cells == number * row).then_some(row);
    }

    /// Visits the lists of pairs.
    pub(super) fn each_list(&mut self, visit: impl FnMut(&mut ListId)) {
        self.lists.iter_mut().for_each(visit);
    }

    /// Lists of pairs.
    pub(super) fn lists(&self) -> usize {
        self.lists.len()
    }
}

/// The hash of a block.
fn hash(index: &Index, cells: &[u16]) -> u64 {
    let (four, _) = cells.as_chunks::<4>();
    index.hash(
        four.iter().map(|four| four.iter().fold(0, |word, cell| word << 16 | u64::from(*cell))),
    )
}
