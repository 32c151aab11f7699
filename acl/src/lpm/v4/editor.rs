//! IPv4 networks, one change after the other.

use std::collections::BTreeMap;

use super::{BLOCK, RANGES, STARTS, V4, WIDTH, place};
use crate::lpm::memory::{LINE, Pool, Size};

/// Makes versions of a [`V4`].
#[derive(Debug, Default)]
pub(in crate::lpm) struct Editor {
    /// All networks but 0.0.0.0/0, each before those inside it.
    nets: BTreeMap<(u32, u8), u32>,
    /// Networks of each length but 0.
    lengths: [u32; 32],
    default: u32,
    /// Those that changed since the last version, or so many that it is made anew.
    dirty: Vec<(u32, u8)>,
    trie: Option<Trie>,
}

/// Parts of a block.
const PARTS: usize = 256;

/// The value of a /8 without networks: the first block, which all of them share.
const BLANK: u32 = BLOCK;

/// Networks so few in a block that has come about make it compact again.
const FEW: usize = 4;

impl Editor {
    /// Sets the value of a network, or forgets it. Values are neither 0 nor 2^30 or more.
    pub(in crate::lpm) fn set(&mut self, bits: u32, length: u8, value: Option<u32>) {
        if length == 0 {
            self.default = value.unwrap_or(0);
            return;
        }
        let old = match value {
            Some(value) => self.nets.insert((bits, length), value),
            None => self.nets.remove(&(bits, length)),
        };
        if old == value {
            return;
        }
        let count = &mut self.lengths[usize::from(length) - 1];
        *count = *count + u32::from(value.is_some()) - u32::from(old.is_some());
        if self.dirty.len() <= self.most_changes() && self.dirty.last() != Some(&(bits, length)) {
            self.dirty.push((bits, length));
        }
    }

    /// A change walks down to its place; more at once go faster in one sweep.
    fn most_changes(&self) -> usize {
        64 + self.nets.len() / 8
    }

    /// The networks as they are now; `None` if there are none.
    pub(in crate::lpm) fn version(&mut self) -> Option<V4> {
        if self.nets.is_empty() && self.default == 0 {
            (self.trie, self.dirty) = (None, Vec::new());
            return None;
        }
        let dirty = std::mem::take(&mut self.dirty);
        let mut trie = match self.trie.take() {
            Some(mut trie) if dirty.len() <= self.most_changes() => {
                for (bits, length) in dirty {
                    self.change(&mut trie, bits, length);
                }
                trie
            }
            _ => Trie::of(&self.ranges(0, 32, 0)),
        };
        let version = trie.version(self.default);
        self.trie = Some(trie);
        Some(version)
    }

    /// Brings the trie up to date for the addresses of one network.
    fn change(&self, trie: &mut Trie, bits: u32, length: u8) {
        let gone = !self.nets.contains_key(&(bits, length));
        let mut path = vec![trie.root];
        // From the root down to the block that the network is a part of, or some.
        let mut shift = 24;
        while u32::from(length) > 32 - shift {
            let value = trie.part(&path, bits, shift);
            let few = if shift == 24 { 0 } else { FEW };
            let crowded = !gone || self.inside(bits, shift).nth(few).is_some();
            if value & BLOCK == 0 || value == BLANK || !crowded {
                // Too little is there for a block, or was.
                return self.rebuild(trie, &mut path, bits, shift);
            }
            path.push(place(value, 0));
            shift -= 8;
        }
        let first = bits >> shift;
        for part in first..=(bits | mask_below(length)) >> shift {
            self.rebuild(trie, &mut path, part << shift, shift);
        }
    }

    /// Makes the value of one part of 2^`shift` addresses anew.
    fn rebuild(&self, trie: &mut Trie, path: &mut [u32], bits: u32, shift: u32) {
        let bits = bits >> shift << shift;
        let outer = self.around(bits, 32 - shift);
        if shift == 0 {
            return trie.set_part(path, bits, 0, outer);
        }
        let ranges = self.ranges(bits, shift, outer);
        let old = trie.part(path, bits, shift);
        let new = trie.block_or_less(bits, shift, &mut &ranges[..]);
        trie.set_part(path, bits, shift, new);
        trie.release(old, shift);
    }

    /// The value of the longest network around these addresses.
    fn around(&self, bits: u32, length: u32) -> u32 {
        let lengths = (1..=length as u8).rev().filter(|l| self.lengths[usize::from(*l) - 1] != 0);
        lengths
            .filter_map(|length| self.nets.get(&(bits & !mask_below(length), length)))
            .next()
            .copied()
            .unwrap_or(0)
    }

    /// Networks within 2^`shift` addresses, longer than that.
    fn inside(&self, bits: u32, shift: u32) -> impl Iterator<Item = ((u32, u8), u32)> + '_ {
        let last = bits | mask_below((32 - shift) as u8);
        let first = bits & !mask_below((32 - shift) as u8);
        let within = self.nets.range((first, 33 - shift as u8)..=(last, 32));
        within.map(|(net, value)| (*net, *value))
    }

    /// The results for 2^`shift` addresses, each with the address where it begins: what `outer` and
    /// the networks inside make of them.
    fn ranges(&self, bits: u32, shift: u32, outer: u32) -> Vec<(u32, u32)> {
        let mut ranges = vec![(bits, outer)];
        // A later range that begins at the same place replaces the one before.
        let mut begin = |start: u32, value: u32| {
            if ranges.last().is_some_and(|(last, _)| *last == start) {
                ranges.pop();
            }
            if ranges.last().is_none_or(|(_, last)| *last != value) {
                ranges.push((start, value));
            }
        };
        let end = bits | mask_below((32 - shift) as u8);
        // Networks around the current place, outermost first: last address and value.
        let mut open: Vec<(u32, u32)> = Vec::new();
        let close = |open: &mut Vec<(u32, u32)>, begin: &mut dyn FnMut(u32, u32), before: u32| {
            while let Some((last, _)) = open.pop_if(|(last, _)| *last < before) {
                begin(last + 1, open.last().map_or(outer, |(_, value)| *value));
            }
        };
        for ((bits, length), value) in self.inside(bits, shift) {
            close(&mut open, &mut begin, bits);
            begin(bits, value);
            open.push((bits | mask_below(length), value));
        }
        // What ends with the last address needs no range after it.
        close(&mut open, &mut begin, end);
        ranges
    }
}

/// The bits of an address that a prefix of this length leaves open.
fn mask_below(length: u8) -> u32 {
    u32::MAX.checked_shr(length.into()).unwrap_or(0)
}

/// The value that names a block or a line of ranges by its first word.
fn marked(at: u32, mark: u32) -> u32 {
    (at / LINE) | mark
}

/// The trie as the editor sees it.
#[derive(Debug)]
struct Trie {
    pool: Pool,
    root: u32,
}

impl Trie {
    /// A trie of the answers for all addresses.
    fn of(ranges: &[(u32, u32)]) -> Self {
        let mut trie = Self { pool: Pool::new(), root: 0 };
        trie.pool.put(Size::Block, &[0; PARTS]);
        let mut rest = ranges;
        let blocks: [u32; PARTS] =
            std::array::from_fn(|first| trie.block_or_less((first as u32) << 24, 24, &mut rest));
        trie.root = trie.pool.put(Size::Block, &blocks);
        trie
    }

    fn version(&mut self, default: u32) -> V4 {
        V4 { version: self.pool.publish(), root: self.root, default }
    }

    /// The value of the part of 2^`shift` addresses in the last block of `path`, which leads
    /// there from the root by the words where blocks begin.
    fn part(&self, path: &[u32], bits: u32, shift: u32) -> u32 {
        let block = path.last().copied().unwrap_or(self.root);
        self.pool.view().word(block + (bits >> shift & 255))
    }

    /// Sets it; blocks that versions see are replaced up to the root.
    fn set_part(&mut self, path: &mut [u32], bits: u32, mut shift: u32, mut value: u32) {
        for block in path.iter_mut().rev() {
            let at = bits >> shift & 255;
            if self.pool.is_private(*block) {
                return self.pool.set(*block + at, value);
            }
            let mut words: [u32; PARTS] = self.pool.view().block(*block);
            words[at as usize] = value;
            self.pool.retire(*block, Size::Block);
            *block = self.pool.put(Size::Block, &words);
            value = marked(*block, BLOCK);
            shift += 8;
        }
        self.root = path.first().copied().unwrap_or(self.root);
    }

    /// The value of 2^`shift` addresses from their ranges, of which those that end here are
    /// taken from `rest`; for a /8 that is a block in any case.
    fn block_or_less(&mut self, bits: u32, shift: u32, rest: &mut &[(u32, u32)]) -> u32 {
        let last = bits | mask_below((32 - shift) as u8);
        let here = rest.partition_point(|(start, _)| *start <= last);
        match here {
            1 if shift < 24 => rest[0].1,
            1 if rest[0].1 == 0 => BLANK,
            2..=WIDTH if shift <= 16 => {
                let line = self.ranges(&rest[..here]);
                // The last one may go on.
                *rest = &rest[here - 1..];
                line
            }
            _ => self.block(bits, shift, rest),
        }
    }

    /// The same as a block, however little there is.
    fn block(&mut self, bits: u32, shift: u32, rest: &mut &[(u32, u32)]) -> u32 {
        let below = shift - 8;
        let mut words = [0; PARTS];
        for (part, word) in words.iter_mut().enumerate() {
            let first = bits | (part as u32) << below;
            while rest.get(1).is_some_and(|(start, _)| *start <= first) {
                *rest = &rest[1..];
            }
            *word = match below {
                0 => rest[0].1,
                _ => self.block_or_less(first, below, rest),
            };
        }
        marked(self.pool.put(Size::Block, &words), BLOCK)
    }

    /// A line of at most [`WIDTH`] ranges.
    fn ranges(&mut self, ranges: &[(u32, u32)]) -> u32 {
        let last = ranges.len() - 1;
        let mut words = [0; LINE as usize];
        for at in 0..2 * STARTS {
            // Those that are not there begin at the end, with the last one's result.
            let start = ranges.get(at + 1).map_or(u16::MAX, |(start, _)| *start as u16);
            words[at / 2] |= u32::from(start) << (16 * (at % 2));
        }
        for at in 0..WIDTH {
            words[STARTS + at] = ranges[at.min(last)].1;
        }
        marked(self.pool.put(Size::Line, &words), RANGES)
    }

    /// Reclaims what a value of 2^`shift` addresses references.
    fn release(&mut self, value: u32, shift: u32) {
        if value == BLANK {
            // Others have it too.
        } else if value & BLOCK != 0 {
            let block = place(value, 0);
            if shift > 8 {
                for part in 0..PARTS as u32 {
                    let value = self.pool.view().word(block + part);
                    self.release(value, shift - 8);
                }
            }
            self.pool.retire(block, Size::Block);
        } else if value & RANGES != 0 {
            self.pool.retire(place(value, 0), Size::Line);
        }
    }
}
