//! Longest-prefix match: addresses to small numbers, for millions of prefixes.
//!
//! ```text
//!            IPv4: hosts (hash of cache lines) -> ranges (table of /16s, trees) -> default
//! address <
//!            IPv6: one hash, probed by length
//! ```
//!
//! [`Lpm`] is what readers hold: a version that shares what did not change with those before
//! and after it. [`Editor`] makes new versions; it alone knows the prefixes one by one.

pub(crate) mod hosts;
mod ranges;
mod v6;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::Address;
use crate::address_map::VECTOR;
use crate::prefix::{Prefix, V4_BITS};
use hosts::Hosts;
use ranges::{FreeNodes, Ranges};
use v6::V6;

/// Gives an address the number of the longest prefix that covers it.
///
/// Inside, numbers are held plus one, and 0 stands for "none".
#[derive(Clone, Debug)]
pub(crate) struct Lpm {
    hosts: Hosts,
    ranges: Arc<Ranges>,
    /// Of 0.0.0.0/0.
    v4_default: u32,
    v6: Arc<V6>,
}

impl Default for Lpm {
    fn default() -> Self {
        Self {
            hosts: Hosts::new(),
            ranges: Arc::new(Ranges::new()),
            v4_default: 0,
            v6: Arc::new(V6::new()),
        }
    }
}

impl Lpm {
    /// One more than the number of the longest prefix around `address`, or 0.
    #[inline]
    pub(crate) fn lookup(&self, address: Address) -> u32 {
        if !address.is_v4() {
            return self.v6.lookup(address.bits());
        }
        let key = address.bits() as u32;
        let mut found = self.hosts.lookup(key);
        if found == 0 {
            found = self.ranges.lookup(key);
        }
        if found == 0 { self.v4_default } else { found }
    }

    /// [`lookup`](Self::lookup) of many, which overlaps their memory accesses; no more than
    /// [`VECTOR`] at a time.
    #[inline(always)]
    pub(crate) fn lookup_each(&self, addresses: impl Iterator<Item = Address>, found: &mut [u32]) {
        // IPv4 addresses that are no host, by place. Written always and kept if counted, so
        // that nothing depends on guessing a branch right.
        let mut missed = [(0_u32, 0_u16); VECTOR];
        let mut count = 0;
        for (place, (address, found)) in addresses.zip(found.iter_mut()).enumerate() {
            let v4 = address.is_v4();
            let key = address.bits() as u32;
            *found = if v4 { self.hosts.lookup(key) } else { self.v6.lookup(address.bits()) };
            missed[count % VECTOR] = (key, place as u16);
            count += usize::from(v4 & (*found == 0));
        }
        let mut missed = &mut missed[..count];
        for (key, place) in missed.iter() {
            found[usize::from(*place)] = self.ranges.first(*key);
        }
        // Those that a node is to be asked about, level by level.
        loop {
            let mut count = 0;
            for at in 0..missed.len() {
                let (key, place) = missed[at];
                missed[count] = (key, place);
                count += usize::from(Ranges::is_inner(found[usize::from(place)]));
                let end = found[usize::from(place)] == 0;
                found[usize::from(place)] |= self.v4_default & u32::from(end).wrapping_neg();
            }
            if count == 0 {
                return;
            }
            missed = &mut missed[..count];
            for (key, place) in missed.iter() {
                let found = &mut found[usize::from(*place)];
                *found = self.ranges.next(*found, *key);
            }
        }
    }

    /// Memory of this version, whatever others share of it.
    pub(crate) fn bytes(&self) -> usize {
        self.hosts.bytes() + self.ranges.bytes() + self.v6.bytes()
    }
}

/// Makes versions of an [`Lpm`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Editor {
    /// What [`version`](Self::version) hands out.
    current: Lpm,
    /// IPv4 networks longer than /16, shorter than /32.
    long: BTreeMap<(u32, u8), u32>,
    /// IPv4 networks from /1 to /16.
    short: BTreeMap<(u32, u8), u32>,
    /// /16s whose ranges are to be made anew.
    dirty: BTreeSet<u16>,
    free: FreeNodes,
}

impl Editor {
    /// Sets the number of a prefix (below 2^31 - 1), or forgets it.
    pub(crate) fn set(&mut self, prefix: Prefix, number: Option<u32>) {
        let value = number.map(|number| number + 1);
        if !prefix.is_v4() {
            let v6 = Arc::make_mut(&mut self.current.v6);
            match value {
                Some(value) => v6.insert(prefix, value),
                None => v6.remove(prefix),
            }
            return;
        }
        let (bits, length) = (prefix.first().bits() as u32, prefix.length() - V4_BITS);
        match length {
            0 => self.current.v4_default = value.unwrap_or(0),
            32 => match value {
                Some(value) => self.current.hosts.insert(bits, value),
                None => self.current.hosts.remove(bits),
            },
            _ => {
                let nets = if length > 16 { &mut self.long } else { &mut self.short };
                match value {
                    Some(value) => nets.insert((bits, length), value),
                    None => nets.remove(&(bits, length)),
                };
                let first = bits >> 16;
                let count = if length > 16 { 1 } else { 1_u32 << (16 - length) };
                self.dirty.extend((first..first + count).map(|upper| upper as u16));
            }
        }
    }

    /// The version with all changes up to now.
    pub(crate) fn version(&mut self) -> Lpm {
        if !self.dirty.is_empty() {
            let dirty = std::mem::take(&mut self.dirty);
            let ranges = Arc::make_mut(&mut self.current.ranges);
            let mut around = Around::new(&self.short, dirty.len());
            for upper in dirty {
                let outer = around.of(upper);
                ranges.set(upper, &sweep(&self.long, upper, outer), &mut self.free);
            }
        }
        self.current.clone()
    }
}

/// Finds the longest short network around one /16 after the other, ascending.
struct Around<'a> {
    short: &'a BTreeMap<(u32, u8), u32>,
    /// For many /16s one pass over the short networks is cheaper than a search for each.
    pass: Option<Pass<'a>>,
}

struct Pass<'a> {
    rest: std::iter::Peekable<std::collections::btree_map::Iter<'a, (u32, u8), u32>>,
    /// Networks around the current place, outermost first: last address and value.
    open: Vec<(u32, u32)>,
}

impl<'a> Around<'a> {
    fn new(short: &'a BTreeMap<(u32, u8), u32>, dirty: usize) -> Self {
        let pass = (dirty > 64).then(|| Pass { rest: short.iter().peekable(), open: Vec::new() });
        Self { short, pass }
    }

    fn of(&mut self, upper: u16) -> u32 {
        let key = u32::from(upper) << 16;
        let Some(pass) = &mut self.pass else {
            let found = (1..=16_u8)
                .rev()
                .find_map(|length| self.short.get(&(key & u32::MAX << (32 - length), length)));
            return found.copied().unwrap_or(0);
        };
        while let Some(((bits, length), value)) = pass.rest.next_if(|((bits, _), _)| *bits <= key) {
            pass.open.retain(|(last, _)| last >= bits);
            pass.open.push((bits | u32::MAX >> length, *value));
        }
        pass.open.retain(|(last, _)| *last >= key);
        pass.open.last().map_or(0, |(_, value)| *value)
    }
}

/// The ranges of one /16: what `outer` and the networks inside it make of it.
fn sweep(long: &BTreeMap<(u32, u8), u32>, upper: u16, outer: u32) -> Vec<(u16, u32)> {
    let base = u32::from(upper) << 16;
    let mut ranges: Vec<(u16, u32)> = vec![(0, outer)];
    // A later range that begins at the same place replaces the one before.
    let mut begin = |start: u32, value: u32| {
        if ranges.last().is_some_and(|(last, _)| u32::from(*last) == start & 0xffff) {
            ranges.pop();
        }
        if ranges.last().is_none_or(|(_, last)| *last != value) {
            ranges.push((start as u16, value));
        }
    };
    // Networks around the current place, outermost first: last address and value.
    let mut open: Vec<(u32, u32)> = Vec::new();
    let close = |open: &mut Vec<(u32, u32)>, begin: &mut dyn FnMut(u32, u32), before: u32| {
        while let Some((last, _)) = open.last().copied()
            && last < before
        {
            open.pop();
            if last & 0xffff != 0xffff {
                begin(last + 1, open.last().map_or(outer, |(_, value)| *value));
            }
        }
    };
    for ((bits, length), value) in long.range((base, 0)..=(base | 0xffff, 32)) {
        close(&mut open, &mut begin, *bits);
        begin(*bits, *value);
        open.push((bits | u32::MAX >> length, *value));
    }
    // What ends with the /16 itself needs no range after it.
    close(&mut open, &mut begin, base | 0xffff);
    ranges
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn prefix() -> impl Strategy<Value = Prefix> {
        let v4 = (any::<u32>(), 0_u8..=32).prop_map(|(bits, length)| {
            let bits = bits & 0xc003_01c1;
            Prefix::of(Address::from_v4_bits(bits), V4_BITS + length)
        });
        let v6 = (any::<u128>(), 0_u8..=128).prop_map(|(bits, length)| {
            let bits = bits & 3 << 126 | bits & 0x11;
            Prefix::of(Address::from_bits(1 << 100 | bits), length)
        });
        prop_oneof![v4, v6]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn every_version_finds_the_longest(
            steps in vec((prefix(), proptest::option::of(0_u32..50)), 1..120),
            publish in vec(any::<bool>(), 120),
            others in vec(prefix(), 20),
        ) {
            let mut editor = Editor::default();
            let mut model: HashMap<Prefix, u32> = HashMap::new();
            let mut versions = Vec::new();
            for ((prefix, number), publish) in steps.iter().zip(publish) {
                editor.set(*prefix, *number);
                match number {
                    Some(number) => model.insert(*prefix, *number),
                    None => model.remove(prefix),
                };
                if publish {
                    versions.push((editor.version(), model.clone()));
                }
            }
            versions.push((editor.version(), model));
            let ends = steps.iter().map(|(prefix, _)| *prefix).chain(others);
            let addresses: Vec<Address> = ends
                .flat_map(|prefix| {
                    let first = prefix.first();
                    let last = first.bits() | !crate::prefix::mask(prefix.length());
                    [first, Address::from_bits(last), Address::from_bits(last.wrapping_add(1))]
                })
                .collect();
            for (lpm, model) in versions {
                let mut found = vec![0; addresses.len()];
                lpm.lookup_each(addresses.iter().copied(), &mut found);
                for (address, found) in addresses.iter().zip(found) {
                    let host = Prefix::of(*address, 128);
                    let expected = model
                        .iter()
                        .filter(|(prefix, _)| prefix.covers(host))
                        .max_by_key(|(prefix, _)| prefix.length())
                        .map_or(0, |(_, number)| number + 1);
                    prop_assert_eq!(lpm.lookup(*address), expected, "{}", address);
                    prop_assert_eq!(found, expected, "{}", address);
                }
            }
        }
    }
}
