//! Lists of rules, cut by ports and compared.
//!
//! For tables whose rules have so many distinct ports and ranges that [rows](super::lists::Rows) by
//! transport class would not fit. A long list is cut into parts by its rules' source ports, or their destination ports;
//! a lookup searches the part of its key. What is left there is compared, eight rules at a time.

use super::index::Slices;
use super::lists::{ListId, Lists, MakeLists, NONE};
use super::transport::{TooMany, Transport};
use crate::simd::{self, CONDITIONS, SIDE_BY_SIDE};
use crate::{Key, PortRange};

/// Lists of entries, and the cuts above long ones.
#[derive(Debug, Default)]
pub(super) struct Scans {
    /// The first port of each part of all cuts, and its entries.
    firsts: Vec<u16>,
    parts: Vec<ListId>,
    /// Blocks of entries, each its columns one after the other: [conditions](simd::first_fit), then
    /// both halves of the rules. And room for a block of eight.
    entries: Vec<u16>,
    /// Memory accesses of the longest way from a list to a rule.
    loads: usize,
}

/// Columns of an entry.
const COLUMNS: usize = CONDITIONS + 2;

/// The kind of a list: the lowest bits of its second word. The other bits are a count.
///
/// ```text
/// 0       entries, from the first word on
/// 1, 2    parts, by source port or destination port
/// ```
const KIND: u32 = 3;

/// Rules that are not cut.
const SHORT: usize = SIDE_BY_SIDE;

/// Entries over all parts of a list for each of its rules, at most.
const COPIES: usize = 8;

impl Scans {
    pub(super) fn loads(&self) -> usize {
        self.loads
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.firsts) + size_of_val(&*self.parts) + size_of_val(&*self.entries)
    }

    /// The first rule of a list that is not cut that a key matches, or [`NONE`].
    #[inline(always)]
    fn first_of_entries(&self, list: ListId, key: &Key, best: u32) -> u32 {
        let exact = u16::from(key.protocol) | u16::from(key.tcp_flags) << 8;
        let values = [key.source_port, key.destination_port, exact];
        let mut rest = &self.entries[list.rules as usize..];
        let mut left = (list.cells >> 2) as usize;
        while left > 0 {
            let count = left.min(SIDE_BY_SIDE);
            let rule = |at: usize| {
                let [low, high] =
                    [CONDITIONS, CONDITIONS + 1].map(|column| rest[column * count + at]);
                u32::from(high) << 16 | u32::from(low)
            };
            if let Some(at) = simd::first_fit(rest, count, values) {
                return rule(at);
            }
            left -= count;
            if left > 0 && rule(count - 1) >= best {
                break;
            }
            rest = &rest[count * COLUMNS..];
        }
        NONE
    }
}

impl Lists for &Scans {
    #[inline(always)]
    fn first(self, mut list: ListId, _: u32, key: &Key, best: u32) -> u32 {
        if list.cells & KIND != 0 {
            let port = if list.cells & KIND == 1 { key.source_port } else { key.destination_port };
            let firsts = &self.firsts[list.rules as usize..][..(list.cells >> 2) as usize];
            // The first part begins at port 0.
            let behind = firsts.partition_point(|first| *first <= port);
            list = self.parts[list.rules as usize + behind - 1];
        }
        self.first_of_entries(list, key, best)
    }
}

/// Makes [`Scans`].
#[derive(Debug)]
pub(super) struct ScansBuilder<'a> {
    scans: Scans,
    demands: &'a [Transport],
    /// Rules of lists, and of those that are not cut; and by their numbers what was made of them.
    all: Slices,
    made: Vec<ListId>,
    short: Slices,
    made_short: Vec<ListId>,
}

/// A rule and its demand.
type Numbered = (u32, u32);

/// Rules by part, and the first port of each.
type Parts = Vec<(u16, Vec<Numbered>)>;

impl<'a> ScansBuilder<'a> {
    /// For rules with these conditions.
    pub(super) fn new(demands: &'a [Transport]) -> Self {
        let (all, short) = (Slices::default(), Slices::default());
        let (made, made_short) = (Vec::new(), Vec::new());
        Self { scans: Scans::default(), demands, all, made, short, made_short }
    }

    pub(super) fn finish(mut self) -> Scans {
        self.scans.entries.extend([0; COLUMNS * SIDE_BY_SIDE]);
        self.scans
    }

    fn entries(&mut self, rules: &[Numbered]) -> ListId {
        let number = self.short.number(&numbers(rules)) as usize;
        if number == self.made_short.len() {
            let entries = &mut self.scans.entries;
            let first = entries.len() as u32;
            for block in rules.chunks(SIDE_BY_SIDE) {
                let rows = block.iter().map(|rule| entry(rule.0, &self.demands[rule.1 as usize]));
                let rows: Vec<[u16; COLUMNS]> = rows.collect();
                entries.extend(
                    (0..COLUMNS).flat_map(|column| rows.iter().map(move |row| row[column])),
                );
            }
            self.made_short.push(ListId { rules: first, cells: (rules.len() as u32) << 2 });
        }
        self.made_short[number]
    }

    fn list_of(&mut self, rules: &[Numbered]) -> ListId {
        let cuts = [0, 1].map(|axis: u32| (axis, self.cut(rules, axis)));
        // What a key is compared with on average, if it is as likely in any part.
        let mean = |parts: &Parts| {
            parts.iter().map(|(_, rules)| rules.len()).sum::<usize>() / parts.len().max(1)
        };
        let best = cuts.into_iter().min_by_key(|(_, parts)| mean(parts));
        let Some((axis, parts)) = best.filter(|(_, parts)| 4 * mean(parts) < 3 * rules.len())
        else {
            self.scans.loads = self.scans.loads.max(2 * rules.len().div_ceil(SIDE_BY_SIDE));
            return self.entries(rules);
        };
        let longest = parts.iter().map(|(_, rules)| rules.len()).max().unwrap_or(0);
        let loads = parts.len().ilog2() as usize + 2 + 2 * longest.div_ceil(SIDE_BY_SIDE);
        self.scans.loads = self.scans.loads.max(loads);
        let list = ListId {
            rules: self.scans.parts.len() as u32,
            cells: (parts.len() as u32) << 2 | (axis + 1),
        };
        for (first, rules) in parts {
            let part = self.entries(&rules);
            self.scans.firsts.push(first);
            self.scans.parts.push(part);
        }
        list
    }

    /// A list cut where its rules' ranges on an axis begin and end, as often as leaves few copies. Rules that earlier
    /// ones hide in a part are not in it.
    fn cut(&self, rules: &[Numbered], axis: u32) -> Parts {
        let ranges: Vec<PortRange> = rules.iter().map(|rule| self.range(rule, axis)).collect();
        let ends = ranges.iter().filter_map(|range| range.last.checked_add(1));
        let mut cuts: Vec<u16> = ranges.iter().map(|range| range.first).chain(ends).collect();
        cuts.push(0);
        cuts.sort_unstable();
        cuts.dedup();
        let reach = |cuts: &[u16], PortRange { first, last }: &PortRange| {
            cuts.partition_point(|cut| cut <= first) - 1..cuts.partition_point(|cut| cut <= last)
        };
        while ranges.iter().map(|range| reach(&cuts, range).len()).sum::<usize>()
            > COPIES * rules.len()
        {
            // The first one, port 0, stays.
            cuts = cuts.into_iter().step_by(2).collect();
        }
        let mut parts: Parts = cuts.iter().map(|first| (*first, Vec::new())).collect();
        // By part: the protocols of which all keys match a rule so far.
        let mut full: Vec<Vec<Option<u8>>> = vec![Vec::new(); cuts.len()];
        for (rule, range) in rules.iter().zip(&ranges) {
            let Transport { protocol, tcp_flags, .. } = self.demands[rule.1 as usize];
            let any_else = self.range(rule, 1 - axis) == PortRange::ANY && tcp_flags.mask == 0;
            for at in reach(&cuts, range) {
                if full[at].iter().any(|full| full.is_none() || *full == protocol) {
                    continue;
                }
                parts[at].1.push(*rule);
                let last = cuts.get(at + 1).map_or(u16::MAX, |next| next - 1);
                if any_else && range.covers(PortRange { first: cuts[at], last }) {
                    full[at].push(protocol);
                }
            }
        }
        parts
    }

    /// The source ports (axis 0) or the destination ports of a rule.
    fn range(&self, rule: &Numbered, axis: u32) -> PortRange {
        let demand = &self.demands[rule.1 as usize];
        if axis == 0 { demand.source_ports } else { demand.destination_ports }
    }
}

fn numbers(rules: &[Numbered]) -> Vec<u32> {
    rules.iter().map(|(rule, _)| *rule).collect()
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
        if rules.len() <= SHORT {
            self.scans.loads = self.scans.loads.max(2);
            return Ok(self.entries(rules));
        }
        let number = self.all.number(&numbers(rules)) as usize;
        if number == self.made.len() {
            let list = self.list_of(rules);
            self.made.push(list);
        }
        Ok(self.made[number])
    }
}
