//! Lists of rules, decided by a key's transport class.
//!
//! The ends of a key leave a list of rules in order. Which of them is the first to match
//! depends on the key's [transport class](super::transport) alone and is read from a row of cells,
//! however long the list is. Lists with equal conditions in equal order share one row.
//!
//! ```text
//! list ->  cells:  transport class ->  place in the list (0: none)
//!          rules:  place           ->  rule
//! ```
//!
//! Where lists and classes are few, rows are *plain*: each list has a row of its own, whose cells are rules.
//! That is one load less.

#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_mm512_min_epu32, _mm512_slli_epi32, _mm512_srai_epi32};

use super::index::Slices;
use super::transport::{Matching, TooMany, Transport};
use crate::Key;
#[cfg(target_arch = "x86_64")]
use crate::simd::lanes::{Lanes, halves, plus, splat, words};

/// No rule.
pub(super) const NONE: u32 = u32::MAX;

/// A list: where its parts begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ListId {
    pub(super) rules: u32,
    pub(super) cells: u32,
}

impl ListId {
    /// Holds no rule.
    pub(super) const EMPTY: Self = Self { rules: 0, cells: 0 };

    /// The same with a mask of all ones, [`EMPTY`](Self::EMPTY) with zero.
    #[inline(always)]
    pub(super) fn masked(self, mask: u32) -> Self {
        Self { rules: self.rules & mask, cells: self.cells & mask }
    }
}

/// Finds the first rule of a list that matches.
pub(super) trait Lists: Copy {
    /// The first rule of `list` that a key of `class` matches, or [`NONE`]; a rule that is not
    /// before `best` need not be found.
    fn first(self, list: ListId, class: u32, key: &Key, best: u32) -> u32;
}

/// Makes lists.
pub(super) trait MakeLists {
    /// Rules over one end that lists of elements may hold together, of a table of so many rules.
    fn copies(&self, rules: usize) -> usize;

    /// Adds the list of these rules, which ascend, each with the number of its transport condition.
    fn list(&mut self, rules: &[(u32, u32)]) -> Result<ListId, TooMany>;
}

/// Drops rules of a list that no key can find, because earlier rules match all that they match.
#[derive(Debug)]
pub(super) struct Effective<'a> {
    /// The transport classes that demands match; without them only equal demands are dropped.
    matching: Option<&'a Matching>,
    demands: &'a [Transport],
    /// Classes matched so far.
    seen: Vec<u64>,
    /// By demand: the last list that has it.
    last: Vec<u32>,
    list: u32,
    rules: Vec<(u32, u32)>,
}

impl<'a> Effective<'a> {
    /// For rules with these demands.
    pub(super) fn new(matching: Option<&'a Matching>, demands: &'a [Transport]) -> Self {
        let seen = vec![0; matching.map_or(0, |matching| matching.words())];
        Self { matching, demands, seen, last: vec![0; demands.len()], list: 0, rules: Vec::new() }
    }

    /// The transport conditions of rules, by number.
    pub(super) fn demands(&self) -> &'a [Transport] {
        self.demands
    }

    /// Returns those that can be found of rules over the same ends, which ascend, each with its demand.
    pub(super) fn of(&mut self, rules: impl Iterator<Item = (u32, u32)>) -> &[(u32, u32)] {
        self.rules.clear();
        if let Some(matching) = self.matching {
            self.seen.fill(0);
            for rule in rules {
                if matching.add(&mut self.seen, rule.1) {
                    self.rules.push(rule);
                    if matching.is_all(rule.1) {
                        break;
                    }
                }
            }
        } else {
            self.list += 1;
            let (last, list) = (&mut self.last, self.list);
            let is_first = |(_, demand): &(u32, u32)| {
                std::mem::replace(&mut last[*demand as usize], list) != list
            };
            self.rules.extend(rules.filter(is_first));
        }
        &self.rules
    }
}

/// Lists decided by class.
#[derive(Debug, Default)]
pub(super) struct Rows {
    /// By row and class, and one more number.
    cells: Vec<u16>,
    /// Not for plain rows.
    rules: Vec<u32>,
    /// Cells in a row.
    classes: usize,
    /// Whether cells are rules.
    pub(super) plain: bool,
}

/// Most cells of plain rows: 4 MiB. What they save in loads is more than they cost in cache misses.
pub(super) const PLAIN: usize = 1 << 21;

/// The cell of a plain row that holds no rule. Rules are below [`PLAIN_RULES`]: sign extension turns
/// this cell into [`NONE`], and keeps rules as they are.
const NO_RULE: u16 = u16::MAX;
const PLAIN_RULES: u32 = 1 << 15;

impl Rows {
    /// Transport classes there are.
    pub(super) fn classes(&self) -> usize {
        self.classes
    }

    pub(super) fn bytes(&self) -> usize {
        self.cells.len() * 2 + self.rules.len() * 4
    }

    /// Takes the first rules of lists, each its rules and its cells, that keys of these classes match into
    /// `best`. Only cells count in plain rows.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn first_lanes<const N: usize>(
        &self,
        lists: [[Lanes; 2]; N],
        classes: &[Lanes; N],
        best: &mut [Lanes; N],
    ) {
        let mut rules = [splat(0); N];
        for at in 0..N {
            // SAFETY: as for one key, and there is one more cell.
            rules[at] = unsafe { halves(&self.cells, plus(lists[at][1], classes[at])) };
        }
        if self.plain {
            for at in 0..N {
                let rule = _mm512_srai_epi32::<16>(_mm512_slli_epi32::<16>(rules[at]));
                best[at] = _mm512_min_epu32(best[at], rule);
            }
            return;
        }
        for at in 0..N {
            // SAFETY: as for one key.
            let rule = unsafe { words(&self.rules, plus(lists[at][0], rules[at])) };
            best[at] = _mm512_min_epu32(best[at], rule);
        }
    }
}

impl Lists for &Rows {
    #[inline(always)]
    fn first(self, list: ListId, class: u32, _: &Key, _: u32) -> u32 {
        let cell = list.cells as usize + class as usize;
        debug_assert!(cell < self.cells.len());
        // SAFETY: a list is one that the builder of these rows made, which added a cell for
        // every class, and classes are those that the builder was given.
        let cell = unsafe { *self.cells.get_unchecked(cell) };
        if self.plain {
            return i32::from(cell as i16) as u32;
        }
        let rule = list.rules as usize + usize::from(cell);
        debug_assert!(rule < self.rules.len());
        // SAFETY: the builder added so many rules as the cells of a list have places, or more.
        unsafe { *self.rules.get_unchecked(rule) }
    }
}

/// Makes [`Rows`]; cells are written in the end.
#[derive(Debug)]
pub(super) struct RowsBuilder<'a> {
    matching: &'a Matching,
    /// The rules of each list, behind [`NONE`].
    rules: Slices,
    /// By number.
    lists: Vec<ListId>,
    /// By rule: the list of it alone, as most lists are, if there is one.
    alone: Vec<ListId>,
    /// The conditions of lists, by row.
    shapes: Slices,
    /// By condition: its shape, if there is a list of it alone.
    shape_alone: Vec<u32>,
    /// Rules of the list that is made, then their conditions.
    numbers: Vec<u32>,
    most_cells: usize,
}

impl<'a> RowsBuilder<'a> {
    /// Rows of so many cells at most.
    pub(super) fn new(matching: &'a Matching, most_cells: usize) -> Self {
        let (mut rules, mut shapes) = (Slices::default(), Slices::default());
        // Of the empty list.
        rules.push(&[NONE]);
        shapes.push(&[]);
        Self {
            matching,
            rules,
            lists: vec![ListId::EMPTY],
            alone: Vec::new(),
            shapes,
            shape_alone: vec![0; matching.demands()],
            numbers: Vec::new(),
            most_cells,
        }
    }

    /// The list of one rule.
    fn alone(&mut self, rule: u32, demand: u32) -> Result<ListId, TooMany> {
        let least = rule as usize + 1;
        if self.alone.len() < least {
            self.alone.resize(least.next_power_of_two(), ListId::EMPTY);
        }
        let known = self.alone[rule as usize];
        if known != ListId::EMPTY {
            return Ok(known);
        }
        let shape = &mut self.shape_alone[demand as usize];
        if *shape == 0 {
            *shape = self.shapes.push(&[demand]);
        }
        let shape = *shape;
        let number = self.rules.push(&[NONE, rule]);
        let list = self.add(number, shape)?;
        self.alone[rule as usize] = list;
        Ok(list)
    }

    /// A list by the numbers of its rules and its shape.
    fn add(&mut self, rules: u32, shape: u32) -> Result<ListId, TooMany> {
        let row = shape as usize * self.matching.classes;
        if row > self.most_cells {
            return Err(TooMany);
        }
        let list = ListId { rules: self.rules.start(rules), cells: row as u32 };
        self.lists.push(list);
        Ok(list)
    }

    /// The rows, plain if these have so many cells at most. Then each list that `lists` visits is brought
    /// up to date: rows follow each other as lists are visited, behind the one of the empty list.
    pub(super) fn finish(
        self,
        most_plain: usize,
        lists: impl FnOnce(&mut dyn FnMut(&mut ListId)),
    ) -> Rows {
        let classes = self.matching.classes;
        let rules = self.rules.items;
        let largest = rules.iter().filter(|rule| **rule != NONE).max();
        if self.lists.len() * classes > most_plain
            || largest.is_some_and(|rule| *rule >= PLAIN_RULES)
        {
            let mut cells = vec![0; self.shapes.count() * classes + 1];
            for (shape, row) in (0..self.shapes.count()).zip(cells.chunks_mut(classes)) {
                // Backwards, so that the first of the rules that match stays.
                for (place, demand) in self.shapes.of(shape as u32).iter().enumerate().rev() {
                    self.matching.write(*demand, place as u16 + 1, row);
                }
            }
            return Rows { cells, rules, classes, plain: false };
        }
        let mut plain = vec![NO_RULE; self.lists.len() * classes + 1];
        let mut end = classes;
        // By list, where its rules begin: its row.
        let mut moved = vec![0; rules.len()];
        lists(&mut |list| {
            let row = &mut moved[list.rules as usize];
            if *row == 0 && *list != ListId::EMPTY {
                *row = end as u32;
                let cells = &mut plain[end..end + classes];
                let demands = self.shapes.of(list.cells / classes as u32).iter();
                for (demand, rule) in demands.zip(&rules[list.rules as usize + 1..]).rev() {
                    self.matching.write(*demand, *rule as u16, cells);
                }
                end += classes;
            }
            *list = ListId { rules: 0, cells: *row };
        });
        plain.truncate(end + 1);
        plain[end] = 0;
        Rows { cells: plain, rules: Vec::new(), classes, plain: true }
    }
}

impl MakeLists for RowsBuilder<'_> {
    // A longer list is no slower, and its row is often there already.
    fn copies(&self, rules: usize) -> usize {
        16 * rules + (1 << 16)
    }

    fn list(&mut self, rules: &[(u32, u32)]) -> Result<ListId, TooMany> {
        match rules {
            [] => Ok(ListId::EMPTY),
            [(rule, demand)] => self.alone(*rule, *demand),
            _ => {
                self.numbers.clear();
                self.numbers.push(NONE);
                self.numbers.extend(rules.iter().map(|(rule, _)| rule));
                let number = self.rules.number(&self.numbers);
                if let Some(list) = self.lists.get(number as usize) {
                    return Ok(*list);
                }
                self.numbers.clear();
                self.numbers.extend(rules.iter().map(|(_, demand)| demand));
                let shape = self.shapes.number(&self.numbers);
                self.add(number, shape)
            }
        }
    }
}
