//! Longest-prefix match on IPv4 networks: ranges below a table of /16s.
//!
//! The upper half of an address indexes a table. Its entry is the answer for the whole /16,
//! or the root of a small search tree over the lower half: nodes of sixteen range starts,
//! compared at once, each with the answer from there on or the next node. This is DXR
//! (Zec, Rizzo and Mikuc, CCR 2012) with wide nodes in place of binary search. A change
//! makes the trees of the /16s that it touches anew and leaves the others alone.

use crate::paged::Paged;
use crate::simd;

/// Answers by IPv4 address; 0 is "none".
#[derive(Clone, Debug)]
pub(crate) struct Ranges {
    /// By upper half: an answer, or [`INNER`] and a node.
    table: Paged<u32, 256>,
    nodes: Paged<Node, 64>,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    /// Where each range begins, ascending from 0; the last one is repeated to the end.
    starts: [u16; WIDTH],
    /// An answer, or [`INNER`] and a node.
    values: [u32; WIDTH],
}

const WIDTH: usize = 16;

/// Marks a value that names a node; answers stay below.
const INNER: u32 = 1 << 31;

/// Nodes that no tree uses; belongs to the one who edits.
#[derive(Clone, Debug, Default)]
pub(crate) struct FreeNodes {
    free: Vec<u32>,
    used: u32,
}

impl Ranges {
    pub(crate) fn new() -> Self {
        let node = Node { starts: [0; WIDTH], values: [0; WIDTH] };
        Self { table: Paged::filled(1 << 16, &0), nodes: Paged::filled(0, &node) }
    }

    /// The answer for `key`.
    #[inline(always)]
    pub(crate) fn lookup(&self, key: u32) -> u32 {
        let mut value = self.first(key);
        while Self::is_inner(value) {
            value = self.next(value, key);
        }
        value
    }

    /// The table's value for `key`: the answer unless it [is inner](Self::is_inner).
    #[inline(always)]
    pub(super) fn first(&self, key: u32) -> u32 {
        *self.table.get((key >> 16) as usize)
    }

    /// Whether a value is not the answer yet.
    #[inline(always)]
    pub(super) fn is_inner(value: u32) -> bool {
        value & INNER != 0
    }

    /// What an inner value leads to.
    #[inline(always)]
    pub(super) fn next(&self, value: u32, key: u32) -> u32 {
        self.nodes.get((value ^ INNER) as usize).step(key as u16)
    }

    /// Sets the answers of one /16: for each range its start and its answer, from 0 on.
    pub(crate) fn set(&mut self, upper: u16, ranges: &[(u16, u32)], free: &mut FreeNodes) {
        let old = *self.table.get(usize::from(upper));
        self.release(old, free);
        let new = self.tree(ranges, free);
        if old != new {
            *self.table.get_mut(usize::from(upper)) = new;
        }
    }

    fn tree(&mut self, ranges: &[(u16, u32)], free: &mut FreeNodes) -> u32 {
        match ranges {
            [] => 0,
            [(_, value)] => *value,
            _ if ranges.len() <= WIDTH => {
                let (last_start, last_value) = ranges[ranges.len() - 1];
                let mut node = Node { starts: [last_start; WIDTH], values: [last_value; WIDTH] };
                for (at, (start, value)) in ranges.iter().enumerate() {
                    node.starts[at] = *start;
                    node.values[at] = *value;
                }
                self.put(node, free)
            }
            _ => {
                let above: Vec<(u16, u32)> = ranges
                    .chunks(WIDTH)
                    .map(|chunk| (chunk[0].0, self.tree(chunk, free)))
                    .collect();
                self.tree(&above, free)
            }
        }
    }

    fn put(&mut self, node: Node, free: &mut FreeNodes) -> u32 {
        let number = free.free.pop().unwrap_or_else(|| {
            free.used += 1;
            free.used - 1
        });
        self.nodes.grow(number as usize + 1, &node);
        *self.nodes.get_mut(number as usize) = node;
        number | INNER
    }

    fn release(&self, value: u32, free: &mut FreeNodes) {
        if value & INNER != 0 {
            let number = value ^ INNER;
            let mut values = self.nodes.get(number as usize).values.to_vec();
            values.dedup();
            values.into_iter().for_each(|value| self.release(value, free));
            free.free.push(number);
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.table.bytes() + self.nodes.bytes()
    }
}

impl Node {
    /// The value of the last range that begins at or before `key`.
    #[inline(always)]
    fn step(&self, key: u16) -> u32 {
        // Starts ascend from 0, so at least one has begun.
        self.values[simd::count_up_to(&self.starts, key).wrapping_sub(1) % WIDTH]
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::btree_map;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn finds_the_range(
            versions in proptest::collection::vec(btree_map(any::<u16>(), 1_u32..9, 0..600), 1..3),
            keys in proptest::collection::vec(any::<u16>(), 50),
        ) {
            let (mut ranges, mut free) = (Ranges::new(), FreeNodes::default());
            for mut starts in versions {
                starts.entry(0).or_insert(0);
                let list: Vec<(u16, u32)> = starts.clone().into_iter().collect();
                ranges.set(7, &list, &mut free);
                for key in keys.iter().chain(starts.keys()) {
                    let expected = *starts.range(..=key).next_back().unwrap().1;
                    prop_assert_eq!(ranges.lookup(7 << 16 | u32::from(*key)), expected);
                }
                prop_assert_eq!(ranges.lookup(8 << 16), 0);
            }
            ranges.set(7, &[(0, 3)], &mut free);
            prop_assert_eq!(free.free.len(), free.used as usize, "every node is free again");
        }
    }
}
