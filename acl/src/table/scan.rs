//! Lists of rules, cut by ports and compared one by one.
//!
//! For tables whose rules have so many distinct ports and ranges that [rows](super::lists::Rows) by
//! transport class would not fit. A long list is cut at the ports, or protocols, where its rules
//! begin and end; what is left at a leaf is short, unless so many ranges overlap that cutting does
//! not part them.

use std::collections::HashMap;

use ahash::RandomState;

use super::lists::{ListId, Lists, MakeLists, NONE};
use super::transport::{TooMany, Transport};
use crate::{Key, PortRange};

/// Lists of entries, and the tree of cuts above long ones.
#[derive(Debug)]
pub(super) struct Scans {
    nodes: Vec<Node>,
    /// Where the parts of cuts begin, and the node of each.
    starts: Vec<u16>,
    children: Vec<u32>,
    entries: Vec<Entry>,
}

/// A list is the number of a node.
#[derive(Clone, Copy, Debug)]
struct Node {
    axis: Axis,
    /// Entries of a leaf, or parts of a cut.
    first: u32,
    count: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Axis {
    /// The node is a leaf.
    Leaf,
    DestinationPort,
    SourcePort,
    Protocol,
}

/// A rule and its conditions beside its ends.
#[derive(Clone, Copy, Debug)]
struct Entry {
    rule: u32,
    first: [u16; 2],
    /// How many more ports there are.
    span: [u16; 2],
    /// Protocol and flags, and which of their bits count.
    exact: [u8; 2],
    mask: [u8; 2],
}

/// A longer list is cut if that makes it shorter.
const LONG: usize = 12;
/// Entries over all parts of a cut, for each one that is cut.
const COPIES: usize = 8;

impl Axis {
    fn of_key(self, key: &Key) -> u16 {
        match self {
            Self::Leaf => 0,
            Self::DestinationPort => key.destination_port,
            Self::SourcePort => key.source_port,
            Self::Protocol => key.protocol.into(),
        }
    }

    fn of_demand(self, demand: &Transport) -> PortRange {
        match self {
            Self::Leaf => PortRange::ANY,
            Self::DestinationPort => demand.destination_ports,
            Self::SourcePort => demand.source_ports,
            Self::Protocol => {
                demand.protocol.map_or(PortRange::ANY, |protocol| PortRange::one(protocol.into()))
            }
        }
    }
}

impl Entry {
    fn new(rule: u32, demand: &Transport) -> Self {
        let ranges = [demand.source_ports, demand.destination_ports];
        Self {
            rule,
            first: ranges.map(|range| range.first),
            span: ranges.map(|range| range.last - range.first),
            exact: [demand.protocol.unwrap_or(0), demand.tcp_flags.value],
            mask: [if demand.protocol.is_some() { 0xff } else { 0 }, demand.tcp_flags.mask],
        }
    }

    #[inline(always)]
    fn matches(&self, key: &Key) -> bool {
        let after = |at: usize, port: u16| port.wrapping_sub(self.first[at]) <= self.span[at];
        let exact = |at: usize, byte: u8| (byte ^ self.exact[at]) & self.mask[at] == 0;
        after(0, key.source_port)
            & after(1, key.destination_port)
            & exact(0, key.protocol)
            & exact(1, key.tcp_flags)
    }
}

impl Scans {
    /// Entries of the longest leaf.
    pub(super) fn longest(&self) -> usize {
        let leaves = self.nodes.iter().filter(|node| node.axis == Axis::Leaf);
        leaves.map(|node| node.count as usize).max().unwrap_or(0)
    }

    pub(super) fn bytes(&self) -> usize {
        self.nodes.len() * size_of::<Node>()
            + self.starts.len() * 2
            + self.children.len() * 4
            + self.entries.len() * size_of::<Entry>()
    }
}

impl Lists for &Scans {
    #[inline]
    fn first(self, list: ListId, _: u32, key: &Key, best: u32) -> u32 {
        let mut node = self.nodes[list.cells as usize];
        while node.axis != Axis::Leaf {
            let (first, end) = (node.first as usize, (node.first + node.count) as usize);
            let value = node.axis.of_key(key);
            let part = self.starts[first..end].partition_point(|start| *start <= value) - 1;
            node = self.nodes[self.children[first + part] as usize];
        }
        let entries = &self.entries[node.first as usize..(node.first + node.count) as usize];
        let before = |entry: &&Entry| entry.rule < best;
        let found = entries.iter().take_while(before).find(|entry| entry.matches(key));
        found.map_or(NONE, |entry| entry.rule)
    }
}

/// Makes [`Scans`].
#[derive(Debug)]
pub(super) struct ScansBuilder<'a> {
    scans: Scans,
    demands: &'a [Transport],
    lists: HashMap<Box<[u32]>, u32, RandomState>,
}

impl<'a> ScansBuilder<'a> {
    /// Builds the scan of rules with these conditions.
    pub(super) fn new(demands: &'a [Transport]) -> Self {
        let empty = Node { axis: Axis::Leaf, first: 0, count: 0 };
        let scans = Scans {
            nodes: vec![empty],
            starts: Vec::new(),
            children: Vec::new(),
            entries: Vec::new(),
        };
        Self { scans, demands, lists: HashMap::default() }
    }

    pub(super) fn finish(self) -> Scans {
        self.scans
    }

    fn node(&mut self, rules: &[(u32, u32)]) -> u32 {
        let numbers: Box<[u32]> = rules.iter().map(|(rule, _)| *rule).collect();
        if rules.is_empty() {
            return 0;
        }
        if let Some(node) = self.lists.get(&numbers) {
            return *node;
        }
        let node = match self.cut(rules) {
            Some((axis, starts)) => self.parts(axis, &starts, rules),
            None => {
                let first = self.scans.entries.len() as u32;
                let entry = |(rule, demand): &(u32, u32)| {
                    Entry::new(*rule, &self.demands[*demand as usize])
                };
                self.scans.entries.extend(rules.iter().map(entry));
                Node { axis: Axis::Leaf, first, count: rules.len() as u32 }
            }
        };
        self.scans.nodes.push(node);
        let number = self.scans.nodes.len() as u32 - 1;
        self.lists.insert(numbers, number);
        number
    }

    /// The axis whose parts have the shortest lists, and where these begin, if they are worth it.
    fn cut(&self, rules: &[(u32, u32)]) -> Option<(Axis, Vec<u16>)> {
        if rules.len() <= LONG {
            return None;
        }
        let axes = [Axis::DestinationPort, Axis::SourcePort, Axis::Protocol];
        let cuts = axes.map(|axis| {
            let mut starts = self.starts(axis, rules);
            loop {
                let (longest, copies) = self.lengths(axis, &starts, rules);
                if copies <= COPIES * rules.len() || starts.len() <= 2 {
                    return (longest, axis, starts);
                }
                // Wide parts take fewer copies of wide ranges.
                starts = starts.into_iter().step_by(2).collect();
            }
        });
        let best = cuts.into_iter().min_by_key(|(longest, ..)| *longest);
        best.filter(|(longest, ..)| *longest <= rules.len() / 2)
            .map(|(_, axis, starts)| (axis, starts))
    }

    /// Rules in the part that has most, and in all parts.
    fn lengths(&self, axis: Axis, starts: &[u16], rules: &[(u32, u32)]) -> (usize, usize) {
        let mut changes = vec![0_i64; starts.len() + 1];
        let mut copies = 0;
        for (_, demand) in rules {
            let parts = parts(starts, axis.of_demand(&self.demands[*demand as usize]));
            copies += parts.len();
            changes[parts.start] += 1;
            changes[parts.end] -= 1;
        }
        let mut here = 0;
        let lengths = changes.iter().map(|change| {
            here += change;
            here as usize
        });
        (lengths.max().unwrap_or(0), copies)
    }

    /// Boundaries of the rules' ranges on an axis, from 0 on.
    fn starts(&self, axis: Axis, rules: &[(u32, u32)]) -> Vec<u16> {
        let range = |(_, demand): &(u32, u32)| axis.of_demand(&self.demands[*demand as usize]);
        let ends =
            rules.iter().map(range).map(|range| [Some(range.first), range.last.checked_add(1)]);
        let mut starts: Vec<u16> = std::iter::once(0).chain(ends.flatten().flatten()).collect();
        starts.sort_unstable();
        starts.dedup();
        starts
    }

    fn parts(&mut self, axis: Axis, starts: &[u16], rules: &[(u32, u32)]) -> Node {
        let mut lists = vec![Vec::new(); starts.len()];
        for rule in rules {
            let range = axis.of_demand(&self.demands[rule.1 as usize]);
            lists[parts(starts, range)].iter_mut().for_each(|list| list.push(*rule));
        }
        let children: Vec<u32> = lists.iter().map(|list| self.node(list)).collect();
        let first = self.scans.starts.len() as u32;
        self.scans.starts.extend(starts);
        self.scans.children.extend(children);
        Node { axis, first, count: starts.len() as u32 }
    }
}

/// The parts of a cut that a range reaches into.
fn parts(starts: &[u16], range: PortRange) -> std::ops::Range<usize> {
    starts.partition_point(|start| *start <= range.first) - 1
        ..starts.partition_point(|start| *start <= range.last)
}

impl MakeLists for ScansBuilder<'_> {
    fn list(&mut self, rules: &[(u32, u32)]) -> Result<ListId, TooMany> {
        Ok(ListId { cells: self.node(rules), rules: 0 })
    }
}
