//! Exact matches of 128-bit keys: a hash of cache lines in memory that versions share.
//!
//! ```text
//! tops -> block of 256 -> block of 16 lines -> line: three keys, their values, a count
//! ```
//!
//! A line's count says how many keys that belong there went further on because it was full.

use std::hint::select_unpredictable;

use crate::lpm::memory::{LINE, Pool, Size, View as Memory};

/// Where the lines are.
#[derive(Clone, Debug)]
pub(super) struct Exact {
    /// By the upper bits of a line's number: the first line of a block of blocks.
    tops: Box<[u32]>,
    /// Number of lines less one, which is a power of two.
    mask: u32,
    seed: u64,
    pub(super) entries: usize,
}

/// The side that lookups read.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    tops: &'a [u32],
    mask: u32,
    seed: u64,
    memory: Memory<'a>,
}

/// Keys in a line.
const KEYS: usize = 3;
/// Words of a key, each the less significant first.
const KEY: usize = 4;
/// Word of the first value; 0 where the place is free.
const VALUES: usize = KEYS * KEY;
/// Word of the count.
const PASSED: usize = VALUES + KEYS;

/// Lines of a block, and blocks of a block of blocks.
const LINES: u32 = 16;
const BLOCKS: u32 = 256;

/// Average keys in two lines beyond which lines are doubled.
const LOAD: usize = 3;

pub(super) type Words = [u32; LINE as usize];

impl Exact {
    /// Room for so many keys.
    pub(super) fn with_room(entries: usize, seed: u64, pool: &mut Pool) -> Self {
        let lines = (2 * entries.div_ceil(LOAD)).next_power_of_two().max(LINES as usize) as u32;
        let blocks = lines / LINES;
        let mut tops = Vec::new();
        for first in (0..blocks).step_by(BLOCKS as usize) {
            let here = (blocks - first).min(BLOCKS) as usize;
            let mut block = [0; BLOCKS as usize];
            for lines in &mut block[..here] {
                *lines = pool.put(Size::Block, &[0; 256]) / LINE;
            }
            tops.push(pool.put(Size::Block, &block) / LINE);
        }
        Self { tops: tops.into(), mask: lines - 1, seed, entries: 0 }
    }

    /// Gives all blocks back.
    pub(super) fn release(&self, pool: &mut Pool) {
        for (at, top) in self.tops.iter().enumerate() {
            let blocks = (self.mask + 1) / LINES - at as u32 * BLOCKS;
            for block in 0..blocks.min(BLOCKS) {
                let lines = pool.view().word(top * LINE + block);
                pool.retire(lines * LINE, Size::Block);
            }
            pool.retire(top * LINE, Size::Block);
        }
    }

    /// Whether there is room for so many more keys.
    pub(super) fn has_room(&self, more: usize) -> bool {
        2 * (self.entries + more) <= LOAD * (self.mask as usize + 1)
    }

    #[inline(always)]
    pub(super) fn view<'a>(&'a self, memory: Memory<'a>) -> View<'a> {
        View { tops: &self.tops, mask: self.mask, seed: self.seed, memory }
    }

    /// Keys and values, line by line.
    pub(super) fn for_each(&self, pool: &Pool, mut visit: impl FnMut(u128, u32)) {
        for line in 0..=self.mask {
            let words = self.view(pool.view()).line(line);
            for at in 0..KEYS {
                if words[VALUES + at] != 0 {
                    let (low, high) = key(words, at);
                    visit(u128::from(high) << 64 | u128::from(low), words[VALUES + at]);
                }
            }
        }
    }

    /// Sets the value of a key, which is not 0; whether the key is new. There must be room.
    pub(super) fn insert(&mut self, key: u128, value: u32, pool: &mut Pool) -> bool {
        let view = self.view(pool.view());
        if let Some((line, at)) = view.locate(key) {
            self.write(line, pool, |words| words[VALUES + at] = value);
            return false;
        }
        let mut line = view.home(key);
        loop {
            let free = (0..KEYS).find(|at| self.view(pool.view()).line(line)[VALUES + at] == 0);
            let Some(at) = free else {
                self.write(line, pool, |words| words[PASSED] += 1);
                line = (line + 1) & self.mask;
                continue;
            };
            self.write(line, pool, |words| {
                for (place, word) in words[at * KEY..][..KEY].iter_mut().enumerate() {
                    *word = (key >> (32 * place)) as u32;
                }
                words[VALUES + at] = value;
            });
            self.entries += 1;
            return true;
        }
    }

    /// Forgets a key; whether it was there.
    pub(super) fn remove(&mut self, key: u128, pool: &mut Pool) -> bool {
        let view = self.view(pool.view());
        let Some((last, at)) = view.locate(key) else { return false };
        let mut line = view.home(key);
        while line != last {
            self.write(line, pool, |words| words[PASSED] -= 1);
            line = (line + 1) & self.mask;
        }
        self.write(last, pool, |words| words[VALUES + at] = 0);
        self.entries -= 1;
        true
    }

    /// Changes a line, in a copy if a version leads there.
    fn write(&mut self, line: u32, pool: &mut Pool, change: impl FnOnce(&mut Words)) {
        let top = &mut self.tops[(line / (LINES * BLOCKS)) as usize];
        let part = line / LINES % BLOCKS;
        let old = pool.view().word(*top * LINE + part) * LINE;
        let mut lines = old;
        if !pool.is_private(old) {
            lines = copy(old, pool);
            if !pool.is_private(*top * LINE) {
                *top = copy(*top * LINE, pool) / LINE;
            }
            pool.set(*top * LINE + part, lines / LINE);
        }
        let first = lines + line % LINES * LINE;
        let view = pool.view();
        let mut words: Words = std::array::from_fn(|at| view.word(first + at as u32));
        change(&mut words);
        for (at, word) in words.into_iter().enumerate() {
            pool.set(first + at as u32, word);
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.tops.len() * 4
    }
}

/// A block's successor, which is private.
fn copy(block: u32, pool: &mut Pool) -> u32 {
    let words = pool.view().block(block);
    pool.retire(block, Size::Block);
    pool.put(Size::Block, &words)
}

impl<'a> View<'a> {
    /// The value of a key, or 0.
    #[inline(always)]
    pub(super) fn lookup(self, key: u128) -> u32 {
        self.find(self.line(self.home(key)), key)
    }

    /// The line that a key belongs to.
    #[inline(always)]
    pub(super) fn home(self, key: u128) -> u32 {
        fold(key as u64 ^ self.seed, (key >> 64) as u64 ^ FRACTION) as u32 & self.mask
    }

    /// The value of a key whose home is this line, or 0.
    #[inline(always)]
    pub(super) fn find(self, home: &Words, key: u128) -> u32 {
        let found = value_in(home, key);
        // A full line is rare.
        if home[PASSED] != 0 && found == 0 { self.find_further(key) } else { found }
    }

    #[cold]
    fn find_further(self, wanted: u128) -> u32 {
        let mut line = self.home(wanted);
        for _ in 0..self.mask {
            line = (line + 1) & self.mask;
            let words = self.line(line);
            let found = value_in(words, wanted);
            if words[PASSED] == 0 || found != 0 {
                return found;
            }
        }
        0
    }

    /// The line and the place where a key is.
    fn locate(self, wanted: u128) -> Option<(u32, usize)> {
        let mut line = self.home(wanted);
        for _ in 0..=self.mask {
            let words = self.line(line);
            let is_at = |at: &usize| {
                words[VALUES + at] != 0 && key(words, *at) == (wanted as u64, (wanted >> 64) as u64)
            };
            if let Some(at) = (0..KEYS).find(is_at) {
                return Some((line, at));
            }
            if words[PASSED] == 0 {
                return None;
            }
            line = (line + 1) & self.mask;
        }
        None
    }

    #[inline(always)]
    pub(super) fn line(self, line: u32) -> &'a Words {
        let top = self.tops[(line / (LINES * BLOCKS)) as usize];
        let lines = self.memory.word(top * LINE + line / LINES % BLOCKS);
        self.memory.line((lines + line % LINES) * LINE)
    }
}

/// The value of a key in a line, or 0.
#[inline(always)]
fn value_in(words: &Words, wanted: u128) -> u32 {
    let (low, high) = (wanted as u64, (wanted >> 64) as u64);
    let mut found = 0;
    for at in 0..KEYS {
        // Which of the keys it is cannot be guessed.
        let (key_low, key_high) = key(words, at);
        let same = (key_low ^ low) | (key_high ^ high) == 0;
        found |= select_unpredictable(same, words[VALUES + at], 0);
    }
    found
}

/// A key's halves, the less significant first.
#[inline(always)]
fn key(words: &Words, at: usize) -> (u64, u64) {
    let half = |at: usize| u64::from(words[at]) | u64::from(words[at + 1]) << 32;
    (half(at * KEY), half(at * KEY + 2))
}

/// The golden ratio's fraction: bits without a pattern.
const FRACTION: u64 = 0x9e37_79b9_7f4a_7c15;

/// Both halves of a 128-bit product, so that every bit counts.
#[inline(always)]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b | 1 << 63);
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn is_a_map(steps in vec((0_u128..60, 0_u32..4), 0..600)) {
            // Lines so few that most keys go further on.
            let mut pool = Pool::new();
            let mut exact = Exact::with_room(16, 7, &mut pool);
            let mut model = HashMap::new();
            let mut held = Vec::new();
            for (key, value) in steps {
                let key = key << 62 | key;
                if value == 0 {
                    prop_assert_eq!(exact.remove(key, &mut pool), model.remove(&key).is_some());
                } else if model.len() < 47 || model.contains_key(&key) {
                    let new = exact.insert(key, value, &mut pool);
                    prop_assert_eq!(new, model.insert(key, value).is_none());
                }
                if held.len() < 20 {
                    held.push((pool.publish(), exact.clone(), model.clone()));
                }
            }
            prop_assert_eq!(exact.entries, model.len());
            held.push((pool.publish(), exact, model));
            for (version, exact, model) in &held {
                for key in (0..60).map(|key| key << 62 | key) {
                    let expected = model.get(&key).copied().unwrap_or(0);
                    prop_assert_eq!(exact.view(version.view()).lookup(key), expected);
                }
            }
        }
    }
}
