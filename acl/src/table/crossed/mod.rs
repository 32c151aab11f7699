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

mod classes;
mod paths;

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    _mm512_and_si512, _mm512_mullo_epi32, _mm512_slli_epi32, _mm512_srli_epi32,
};
use std::collections::HashMap;

use ahash::RandomState;

use super::ends::{Ends, Kind};
use super::field::{Both, Field};
use super::lists::{Effective, ListId, MakeLists};
use super::transport::TooMany;
use super::tuples::Numbered;
#[cfg(target_arch = "x86_64")]
use crate::simd::lanes::{Lanes, halves, pairs, plus, splat, words};
use classes::Classes;
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Block([u16; BLOCK]);

/// Bounds on each layer of a table of so many rules.
#[derive(Clone, Copy)]
struct Room {
    /// Words of its index.
    index: usize,
    /// Rules over all its pairs, which is what it takes to make.
    entries: usize,
}

impl Room {
    fn new(rules: usize) -> Self {
        let index = ((1 << 16) + 96 * rules).min(1 << 20);
        Self { index, entries: (1 << 16) + 32 * rules }
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
        for (at, (rules, classes)) in parts.iter().enumerate() {
            let Some(layer) = Layer::new(rules, classes, lists, effective)? else {
                return Ok(None);
            };
            let scales = [layer.per_source() as u32, 1];
            for ((field, classes), (kind, scale)) in
                fields.iter_mut().zip(classes).zip(kinds.into_iter().zip(scales))
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
type Part = (Vec<Numbered>, [Classes; 2]);

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
                [0, 1].map(|at: usize| covered[at][rule.ends[at].number as usize] as usize);
            covered[0] * covered[1]
        };
        let mut total: usize = few.iter().map(pairs).sum();
        if total <= room.entries && index <= room.index {
            let classes =
                |at: usize| Classes::new(&few, at, &ends[at], kinds[at], 8 * room.entries);
            let classes = [classes(0)?, classes(1)?];
            wide.sort_unstable_by_key(|rule: &Numbered| rule.rule);
            return Some(((few, classes), wide));
        }
        // By what does not depend on the order of rules; those over the same ends stay together.
        few.sort_unstable_by_key(|rule| (pairs(rule), rule.ends));
        // An index that is too large has too many classes in both fields, of which wide rules make few.
        let least = if index > room.index { few.len().div_ceil(4) } else { 0 };
        let (mut taken, mut last) = (0, None);
        while let Some(rule) =
            few.pop_if(|rule| total > room.entries || taken < least || last == Some(rule.ends))
        {
            total -= pairs(&rule);
            last = Some(rule.ends);
            taken += 1;
            wide.push(rule);
        }
        if few.is_empty() {
            return None;
        }
        few.sort_unstable_by_key(|rule| rule.rule);
    }
}

impl Layer {
    fn new(
        rules: &[Numbered],
        [sources, destinations]: &[Classes; 2],
        lists: &mut impl MakeLists,
        effective: &mut Effective<'_>,
    ) -> Result<Option<Self>, TooMany> {
        let classes = [sources.rules.len(), destinations.rules.len()];
        let per_source = classes[1].div_ceil(BLOCK);
        let covers = destinations.classes_of(rules.len());
        let mut paths = Paths::new(effective.matching());
        let mut index = vec![0; classes[0] * per_source];
        let mut blocks = vec![Block([0; BLOCK])];
        let mut known: HashMap<Block, u32, RandomState> = HashMap::default();
        let mut made = vec![ListId::EMPTY];
        // By path: its list's number, once it has one.
        let mut numbers: Vec<Option<u16>> = vec![Some(0)];
        let mut reached = vec![[Paths::EMPTY; BLOCK]; per_source];
        let mut touched: Vec<usize> = Vec::new();
        for (of_source, index) in sources.rules.iter().zip(index.chunks_mut(per_source)) {
            for rule in of_source.iter() {
                let Numbered { demand, .. } = rules[*rule as usize];
                // Many pairs are of one path.
                let mut last = None;
                for class in &covers[*rule as usize] {
                    let (block, at) = (*class as usize / BLOCK, *class as usize % BLOCK);
                    let path = &mut reached[block][at];
                    *path = match last {
                        Some((before, after)) if before == *path => after,
                        _ => {
                            let after = paths.extend(*path, *rule, demand);
                            last = Some((*path, after));
                            after
                        }
                    };
                    if index[block] == 0 {
                        index[block] = u32::MAX;
                        touched.push(block);
                    }
                }
            }
            if paths.seen.len() > MOST_WORDS {
                return Ok(None);
            }
            numbers.resize(paths.count(), None);
            for at in touched.drain(..) {
                let mut block = Block([0; BLOCK]);
                let reached = std::mem::replace(&mut reached[at], [Paths::EMPTY; BLOCK]);
                for (path, cell) in reached.iter().zip(&mut block.0) {
                    *cell = match numbers[*path as usize] {
                        Some(number) => number,
                        None => {
                            let Ok(fresh) = u16::try_from(made.len()) else { return Ok(None) };
                            let rules =
                                paths.rules(*path).into_iter().map(|at| &rules[at as usize]);
                            let list = effective.of(rules.map(|rule| (rule.rule, rule.demand)));
                            made.push(lists.list(list)?);
                            *numbers[*path as usize].insert(fresh)
                        }
                    };
                }
                index[at] = *known.entry(block).or_insert_with(|| {
                    blocks.push(block);
                    blocks.len() as u32 - 1
                });
            }
        }
        let cells = blocks.iter().flat_map(|block| block.0).chain([0]).collect();
        Ok(Some(Self { index: index.into(), cells, lists: made.into(), row: None, classes }))
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
