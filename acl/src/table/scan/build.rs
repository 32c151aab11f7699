//! Makes [`Scans`]: which axis a list is cut on, and into how many parts.

use std::collections::HashMap;
use std::ops::Range;

use ahash::RandomState;

use super::{COLUMNS, Node, Scans};
use crate::PortRange;
use crate::simd::SIDE_BY_SIDE;
use crate::table::lists::{ListId, MakeLists};
use crate::table::transport::{TooMany, Transport};

/// A longer list is cut if that makes it shorter.
const LONG: usize = SIDE_BY_SIDE;
/// Entries over all leaves of a list, for each of its rules.
const COPIES: usize = 32;
/// Entries over all parts of one cut, and half its parts, for each one that is cut.
const COPIES_OF_CUT: usize = 4;
/// Bits by which a cut is made at most.
const BITS: u32 = 10;

/// What choosing cuts may look at for each rule of the table, and beyond. Lists stay whole after that.
const STEPS: usize = 1 << 10;
const STEPS_MORE: usize = 1 << 22;

/// Makes [`Scans`].
#[derive(Debug)]
pub(in crate::table) struct ScansBuilder<'a> {
    scans: Scans,
    demands: &'a [Transport],
    extents: Vec<Extent>,
    /// The region of all keys.
    all: Region,
    known: Known,
    /// Rules and copies that choosing cuts may still look at.
    steps: usize,
}

/// What was made of rules: where they are cut also by region, as a leaf serves any.
type Known = HashMap<(Option<Region>, Box<[u32]>), Made, RandomState>;

/// A list, and the memory accesses from it to a rule.
#[derive(Clone, Copy, Debug)]
struct Made {
    list: ListId,
    loads: usize,
}

/// A rule and its demand.
type Numbered = (u32, u32);

/// The keys that come to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Region {
    /// Of source port, destination port and the protocol's number the bits that are known, the highest first.
    known: [u16; AXES],
    /// And what they are.
    value: [u16; AXES],
}

const AXES: usize = 3;

/// Bits of a source port, destination port or protocol's number by which a list is cut, the highest ones that
/// are not known.
#[derive(Clone, Copy, Debug)]
struct Cut {
    axis: usize,
    shift: u32,
    bits: u32,
}

impl Cut {
    fn count(self) -> usize {
        1 << self.bits
    }

    /// With its place in a key's [word](Scans::word).
    fn node(self) -> Node {
        Node::Cut { shift: 16 * self.axis as u32 + self.shift, bits: self.bits }
    }
}

impl Region {
    /// All keys, where protocols' numbers have so many bits.
    fn all(bits_of_protocols: u32) -> Self {
        Self { known: [0, 0, (u32::from(u16::MAX) << bits_of_protocols) as u16], value: [0; AXES] }
    }

    /// Its part of a cut.
    fn part(mut self, cut: Cut, part: usize) -> Self {
        self.known[cut.axis] |= ((cut.count() - 1) << cut.shift) as u16;
        self.value[cut.axis] |= (part << cut.shift) as u16;
        self
    }

    /// First and last number on an axis.
    fn range(&self, axis: usize) -> PortRange {
        let first = self.value[axis];
        PortRange { first, last: first | !self.known[axis] }
    }

    /// The parts of a cut that a range reaches into.
    fn parts(&self, cut: Cut, of: PortRange) -> Range<usize> {
        let PortRange { first, last } = self.range(cut.axis);
        let part = |number: u16| usize::from((number.clamp(first, last) - first) >> cut.shift);
        part(of.first)..part(of.last) + 1
    }

    /// Whether a rule's ranges hold all keys of the region, on all axes but one at most.
    fn is_inside(&self, extent: &Extent, but: Option<usize>) -> bool {
        let mut axes = (0..AXES).filter(|axis| Some(*axis) != but);
        extent.any_flags && axes.all(|axis| self.is_inside_on(axis, extent))
    }

    /// Whether a rule's range holds all numbers of the region on an axis.
    fn is_inside_on(&self, axis: usize, extent: &Extent) -> bool {
        extent.ranges[axis].covers(self.range(axis))
    }
}

/// The keys that match a demand.
#[derive(Clone, Copy, Debug)]
struct Extent {
    /// On each axis.
    ranges: [PortRange; AXES],
    /// Whether flags do not matter.
    any_flags: bool,
}

impl<'a> ScansBuilder<'a> {
    /// Builds the scan of so many rules with these conditions.
    pub(in crate::table) fn new(demands: &'a [Transport], rules: usize) -> Self {
        let protocols = numbers(demands);
        let bits = u8::BITS - protocols.iter().fold(0, |all, number| all | number).leading_zeros();
        let extent = |demand: &Transport| {
            let protocol = demand.protocol.map(|protocol| protocols[usize::from(protocol)].into());
            let protocols = protocol.map_or(PortRange::ANY, PortRange::one);
            Extent {
                ranges: [demand.source_ports, demand.destination_ports, protocols],
                any_flags: demand.tcp_flags.mask == 0,
            }
        };
        let extents = demands.iter().map(extent).collect();
        let scans = Scans { protocols, parts: Vec::new(), entries: Vec::new(), loads: 0 };
        Self {
            scans,
            demands,
            extents,
            all: Region::all(bits),
            known: HashMap::default(),
            steps: STEPS * rules + STEPS_MORE,
        }
    }

    pub(in crate::table) fn finish(mut self) -> Scans {
        let room = self.scans.entries.len() + COLUMNS * SIDE_BY_SIDE;
        self.scans.entries.resize(room, 0);
        self.scans
    }

    /// The list of these rules for keys of a region, in so many entries at most if it is cut.
    fn node(&mut self, rules: &[Numbered], region: Region, room: usize) -> Made {
        // No key comes to a rule behind one that all match.
        let end = rules.iter().position(|rule| region.is_inside(self.extent(rule), None));
        let rules = &rules[..end.map_or(rules.len(), |end| end + 1)];
        if rules.is_empty() {
            return Made { list: ListId::EMPTY, loads: 0 };
        }
        let numbers: Box<[u32]> = rules.iter().map(|(rule, _)| *rule).collect();
        let mut key = (Some(region), numbers);
        if let Some(made) = self.known.get(&key) {
            return *made;
        }
        let cut = self.cut(rules, &region, room);
        if cut.is_none() {
            key.0 = None;
            if let Some(made) = self.known.get(&key) {
                return *made;
            }
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
    fn cut(&mut self, rules: &[Numbered], region: &Region, room: usize) -> Option<Cut> {
        let count = rules.len();
        if count <= LONG {
            return None;
        }
        let extents: Vec<Extent> = rules.iter().map(|rule| *self.extent(rule)).collect();
        let mut best = None;
        let mut least = (3 * count / 4, usize::MAX);
        for axis in 0..AXES {
            if extents.iter().all(|extent| region.is_inside_on(axis, extent)) {
                continue;
            }
            let left = region.known[axis].count_zeros();
            // The finer a cut, the shorter the lists and the more copies there are. Among those that are short
            // enough the one that takes least memory.
            let (mut low, mut high) = (1, left.min(BITS).min((2 * COPIES_OF_CUT * count).ilog2()));
            while low <= high && self.steps > 0 {
                let bits = (low + high) / 2;
                let cut = Cut { axis, shift: left - bits, bits };
                let most = (COPIES_OF_CUT * count - cut.count() / 2).min(room);
                let (length, copies) = lengths(cut, region, &extents, most);
                self.steps = self.steps.saturating_sub(count + copies);
                let cost = (length.max(LONG), copies + cut.count() / 2);
                if copies <= most && cost < least {
                    (least, best) = (cost, Some(cut));
                }
                match copies <= most && length > LONG {
                    true => low = bits + 1,
                    false => high = bits - 1,
                }
            }
        }
        best
    }

    fn extent(&self, rule: &Numbered) -> &Extent {
        &self.extents[rule.1 as usize]
    }

    fn parts(&mut self, cut: Cut, rules: &[Numbered], region: Region, room: usize) -> Made {
        let mut lists = vec![Vec::new(); cut.count()];
        let extents = rules.iter().map(|rule| self.extent(rule));
        each_copy(cut, &region, extents, |part, at| {
            lists[part].push(rules[at]);
            true
        });
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

/// Rules in the part where a key that matches one of them is on average, and in all parts; the latter is more than
/// `most` if it would be.
fn lengths(cut: Cut, region: &Region, extents: &[Extent], most: usize) -> (usize, usize) {
    let mut lengths = vec![0; cut.count()];
    let mut copies = 0;
    each_copy(cut, region, extents.iter(), |part, _| {
        lengths[part] += 1;
        copies += 1;
        copies <= most
    });
    let squares: usize = lengths.iter().map(|length| length * length).sum();
    (squares.div_ceil(copies.max(1)), copies)
}

/// Visits each part of a cut with the place of each rule in it that a key can find, in order, until `visit` returns
/// false.
fn each_copy<'a>(
    cut: Cut,
    region: &Region,
    extents: impl Iterator<Item = &'a Extent>,
    mut visit: impl FnMut(usize, usize) -> bool,
) {
    let mut open = Open((0..=cut.count()).collect());
    for (place, extent) in extents.enumerate() {
        let of = extent.ranges[cut.axis];
        let inside = region.is_inside(extent, Some(cut.axis));
        let parts = region.parts(cut, of);
        let mut at = open.from(parts.start);
        while at < parts.end {
            if !visit(at, place) {
                return;
            }
            if inside && of.covers(region.part(cut, at).range(cut.axis)) {
                open.0[at] = at + 1;
            }
            at = open.from(at + 1);
        }
    }
}

/// The parts of a cut that no rule fills yet: each, and one behind the last, or one that follows it.
struct Open(Vec<usize>);

impl Open {
    /// The first one from a part on.
    fn from(&mut self, part: usize) -> usize {
        let mut first = part;
        while self.0[first] != first {
            first = self.0[first];
        }
        let mut at = part;
        while at != first {
            at = std::mem::replace(&mut self.0[at], first);
        }
        first
    }
}

/// Numbers for protocols: 0 for those that no demand names, unless all are named.
fn numbers(demands: &[Transport]) -> Box<[u8; 256]> {
    let mut named = [false; 256];
    demands.iter().filter_map(|demand| demand.protocol).for_each(|protocol| {
        named[usize::from(protocol)] = true;
    });
    let mut last = if named.contains(&false) { 0 } else { u8::MAX };
    Box::new(named.map(|named| {
        last = last.wrapping_add(named.into());
        if named { last } else { 0 }
    }))
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
    // Each long list is cut for itself.
    fn copies(&self, rules: usize) -> usize {
        2 * rules + (1 << 12)
    }

    fn list(&mut self, rules: &[Numbered]) -> Result<ListId, TooMany> {
        let made = self.node(rules, self.all, COPIES * rules.len());
        self.scans.loads = self.scans.loads.max(made.loads);
        Ok(made.list)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Key;
    use crate::table::lists::{Lists, NONE};

    /// However much rules overlap: choosing looks at so many rules and copies, and what is not cut is compared.
    #[test]
    fn choosing_cuts_is_bounded() {
        let range = |number: u32, width: u32| {
            let first = number.wrapping_mul(0x9e37_79b1) >> 17;
            PortRange { first: first as u16, last: (first + width * number % 20_000) as u16 }
        };
        let demand = |number| Transport {
            protocol: (number % 5 > 0).then_some((number % 3) as u8),
            source_ports: range(number, 7),
            destination_ports: range(number.wrapping_mul(31), 3),
            tcp_flags: crate::TcpFlags::ANY,
        };
        let demands: Vec<Transport> = (0..2000).map(demand).collect();
        let rules: Vec<Numbered> = (0..2000).map(|number| (number, number)).collect();
        let mut blocks = Vec::new();
        for steps in [0, 10_000, usize::MAX] {
            let mut builder = ScansBuilder::new(&demands, rules.len());
            let granted = builder.steps.min(steps);
            builder.steps = granted;
            let list = builder.list(&rules).unwrap();
            // Chosen within what was granted: the last choice alone may go beyond it.
            assert_eq!(builder.steps == 0, steps <= 10_000);
            let scans = builder.finish();
            blocks.push(scans.loads());
            for number in 0..2000 {
                let key = Key {
                    protocol: (number % 3) as u8,
                    source_port: range(number, 7).last,
                    destination_port: range(number.wrapping_mul(31), 3).first,
                    ..Key::default()
                };
                let matches = |rule: &Transport| {
                    rule.protocol.is_none_or(|protocol| protocol == key.protocol)
                        && rule.source_ports.contains(key.source_port)
                        && rule.destination_ports.contains(key.destination_port)
                };
                let expected = demands.iter().position(matches).map_or(NONE, |at| at as u32);
                assert_eq!((&scans).first(list, 0, &key, NONE), expected, "{key:?}");
            }
        }
        assert!(blocks[0] > blocks[1] && blocks[1] > blocks[2], "{blocks:?}");
    }
}
