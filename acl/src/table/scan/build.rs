//! Makes [`Scans`]: which axis a list is cut on, and into how many parts.

use std::collections::HashMap;
use std::ops::Range;

use ahash::RandomState;

use super::{COLUMNS, Node, Scans};
use crate::simd::SIDE_BY_SIDE;
use crate::table::lists::{ListId, MakeLists};
use crate::table::transport::{TooMany, Transport};

/// A longer list is cut if that makes it shorter.
const LONG: usize = SIDE_BY_SIDE;
/// Entries over all leaves of a list, for each of its rules.
const COPIES: usize = 16;
/// Entries over all parts of one cut, and half its parts, for each one that is cut.
const COPIES_OF_CUT: usize = 2;
/// Bits by which a cut is made at most.
const BITS: u32 = 10;

/// Makes [`Scans`].
#[derive(Debug)]
pub(in crate::table) struct ScansBuilder<'a> {
    scans: Scans,
    demands: &'a [Transport],
    known: HashMap<(Region, Box<[u32]>), Made, RandomState>,
}

/// A list, and the memory accesses from it to a rule.
#[derive(Clone, Copy, Debug)]
struct Made {
    list: ListId,
    loads: usize,
}

/// A rule and its demand.
type Numbered = (u32, u32);

/// The keys that come to a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Region {
    /// Of source and destination port, then of the protocol, the bits that are known.
    known: [u16; 3],
    /// And what they are.
    value: [u16; 3],
}

/// Bits of a source port, destination port or protocol by which a list is cut.
#[derive(Clone, Copy, Debug)]
struct Cut {
    axis: usize,
    shift: u32,
    bits: u32,
}

const PROTOCOL: usize = 2;

impl Cut {
    fn mask(self) -> u16 {
        ((1_u32 << self.bits) - 1) as u16
    }

    fn count(self) -> usize {
        1 << self.bits
    }

    /// Where its bits begin in a key's [word](Node::word).
    fn node(self) -> Node {
        Node::Cut { shift: 16 * self.axis as u32 + self.shift, bits: self.bits }
    }

    /// The parts in which keys of a region match a demand.
    fn parts(self, region: &Region, demand: &Transport) -> Range<usize> {
        let ports = [demand.source_ports, demand.destination_ports];
        let Some(ports) = ports.get(self.axis) else {
            return match demand.protocol {
                Some(protocol) => {
                    let part = usize::from(u16::from(protocol) >> self.shift & self.mask());
                    part..part + 1
                }
                None => 0..self.count(),
            };
        };
        let first = region.value[self.axis];
        let last = first | !region.known[self.axis];
        let part = |port: u16| usize::from((port.clamp(first, last) - first) >> self.shift);
        part(ports.first)..part(ports.last) + 1
    }
}

impl Region {
    /// Its part of a cut.
    fn part(mut self, cut: Cut, part: usize) -> Self {
        self.known[cut.axis] |= cut.mask() << cut.shift;
        self.value[cut.axis] |= (part as u16) << cut.shift;
        self
    }

    /// Whether all keys of the region match a demand, of those that may.
    fn is_inside(&self, demand: &Transport) -> bool {
        let ports = [demand.source_ports, demand.destination_ports];
        let all = ports.iter().zip(self.known.iter().zip(&self.value)).all(|(ports, of)| {
            let (known, first) = of;
            ports.first <= *first && first | !known <= ports.last
        });
        let protocol = demand.protocol.is_none() || self.known[PROTOCOL] == 0xff;
        all && protocol && demand.tcp_flags.mask == 0
    }

    /// Cuts of so many parts at most. Ports are cut from the highest bit that is not known on, protocols
    /// by any bit, or by all.
    fn cuts(&self, most: usize) -> impl Iterator<Item = Cut> {
        let ports = (0..PROTOCOL).flat_map(|axis| {
            let left = (!self.known[axis]).count_ones();
            (1..=left.min(BITS)).map(move |bits| Cut { axis, shift: left - bits, bits })
        });
        let known = self.known[PROTOCOL];
        let some = (0..8).filter(move |bit| known >> bit & 1 == 0);
        let by_one = some.map(|shift| Cut { axis: PROTOCOL, shift, bits: 1 });
        let by_all = (known == 0).then_some(Cut { axis: PROTOCOL, shift: 0, bits: 8 });
        ports.chain(by_one).chain(by_all).filter(move |cut| cut.count() <= most)
    }
}

impl<'a> ScansBuilder<'a> {
    /// Builds the scan of rules with these conditions.
    pub(in crate::table) fn new(demands: &'a [Transport]) -> Self {
        let scans = Scans { parts: Vec::new(), entries: Vec::new(), loads: 0 };
        Self { scans, demands, known: HashMap::default() }
    }

    pub(in crate::table) fn finish(mut self) -> Scans {
        let room = self.scans.entries.len() + COLUMNS * SIDE_BY_SIDE;
        self.scans.entries.resize(room, 0);
        self.scans
    }

    /// The list of these rules for keys of a region, in so many entries at most if it is cut.
    fn node(&mut self, rules: &[Numbered], region: Region, room: usize) -> Made {
        let of_rule = |rule: &Numbered| &self.demands[rule.1 as usize];
        // No key comes to a rule behind one that all match.
        let end = rules.iter().position(|rule| region.is_inside(of_rule(rule)));
        let rules = &rules[..end.map_or(rules.len(), |end| end + 1)];
        if rules.is_empty() {
            return Made { list: ListId::EMPTY, loads: 0 };
        }
        let cut = self.cut(rules, &region, room);
        // A leaf serves any region.
        let of_region = if cut.is_some() { region } else { Region::default() };
        let numbers: Box<[u32]> = rules.iter().map(|(rule, _)| *rule).collect();
        let key = (of_region, numbers);
        if let Some(made) = self.known.get(&key) {
            return *made;
        }
        let made = match cut {
            Some(cut) => self.parts(cut, rules, region, room),
            None => self.leaf(rules),
        };
        self.known.insert(key, made);
        made
    }

    fn leaf(&mut self, rules: &[Numbered]) -> Made {
        let entries = &mut self.scans.entries;
        let first = entries.len() / COLUMNS;
        for block in rules.chunks(SIDE_BY_SIDE) {
            let rows =
                block.iter().map(|(rule, demand)| entry(*rule, &self.demands[*demand as usize]));
            let rows: Vec<[u16; COLUMNS]> = rows.collect();
            entries.extend((0..COLUMNS).flat_map(|column| rows.iter().map(move |row| row[column])));
        }
        let list = Node::Leaf { entries: rules.len() }.list(first);
        Made { list, loads: 2 * rules.len().div_ceil(SIDE_BY_SIDE) }
    }

    /// The cut that leaves the shortest lists, of those that are worth it.
    fn cut(&self, rules: &[Numbered], region: &Region, room: usize) -> Option<Cut> {
        let count = rules.len();
        if count <= LONG {
            return None;
        }
        let mut best = None;
        let mut least = (3 * count / 4, usize::MAX);
        for cut in region.cuts(2 * COPIES_OF_CUT * count) {
            let (longest, copies) = self.lengths(cut, region, rules);
            if copies > room || copies + cut.count() / 2 > COPIES_OF_CUT * count {
                continue;
            }
            // Among those that are short enough the one that takes least memory.
            let cost = (longest.max(LONG), copies + cut.count() / 2);
            if cost < least {
                (least, best) = (cost, Some(cut));
            }
        }
        best
    }

    /// Rules in the part where a key that matches one of them is on average, and in all parts.
    fn lengths(&self, cut: Cut, region: &Region, rules: &[Numbered]) -> (usize, usize) {
        let mut changes = vec![0_isize; cut.count() + 1];
        for (_, demand) in rules {
            let parts = cut.parts(region, &self.demands[*demand as usize]);
            changes[parts.start] += 1;
            changes[parts.end] -= 1;
        }
        let (mut here, mut all, mut squares) = (0, 0, 0);
        for change in &changes[..cut.count()] {
            here += change;
            all += here as usize;
            squares += (here * here) as usize;
        }
        (squares.div_ceil(all.max(1)), all)
    }

    fn parts(&mut self, cut: Cut, rules: &[Numbered], region: Region, room: usize) -> Made {
        let mut lists = vec![Vec::new(); cut.count()];
        for rule in rules {
            let parts = cut.parts(&region, &self.demands[rule.1 as usize]);
            lists[parts].iter_mut().for_each(|list| list.push(*rule));
        }
        let all: usize = lists.iter().map(Vec::len).sum();
        let parts: Vec<Made> = lists
            .iter()
            .enumerate()
            .map(|(at, list)| self.node(list, region.part(cut, at), room * list.len() / all.max(1)))
            .collect();
        let first = self.scans.parts.len();
        self.scans.parts.extend(parts.iter().map(|part| part.list));
        let below = parts.iter().map(|part| part.loads).max().unwrap_or(0);
        Made { list: cut.node().list(first), loads: 1 + below }
    }
}

/// The columns of a rule.
fn entry(rule: u32, demand: &Transport) -> [u16; COLUMNS] {
    let [source, destination] = [demand.source_ports, demand.destination_ports];
    let exact = u16::from_le_bytes([demand.protocol.unwrap_or(0), demand.tcp_flags.value]);
    let protocol = if demand.protocol.is_some() { 0xff } else { 0 };
    let mask = u16::from_le_bytes([protocol, demand.tcp_flags.mask]);
    [
        source.first,
        source.last - source.first,
        destination.first,
        destination.last - destination.first,
        exact,
        mask,
        rule as u16,
        (rule >> 16) as u16,
    ]
}

impl MakeLists for ScansBuilder<'_> {
    fn list(&mut self, rules: &[Numbered]) -> Result<ListId, TooMany> {
        let made = self.node(rules, Region::default(), COPIES * rules.len());
        self.scans.loads = self.scans.loads.max(made.loads);
        Ok(made.list)
    }
}
