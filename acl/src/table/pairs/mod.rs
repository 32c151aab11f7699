//! Rules over both ends: tuple space, pruned by what each end can match.
//!
//! Rules whose ends look at the same bits form a *tuple* (Srinivasan, Suri and Varghese,
//! SIGCOMM 1999), and all tuples share one hash table from tuple and masked ends to a chain of
//! rules in order. Each end of a key knows from its own longest-prefix match which tuples have
//! a rule that its address fits; only tuples that both ends agree on are probed, best rule
//! first, and none that cannot beat the rule in hand. That leaves little more than one probe.
//!
//! Where chains would grow long because many rules differ in their ports alone, the tuple is
//! parted by which ports are exact, and these go into the hash. Where there are more tuples
//! than bits, prefix lengths are rounded down until they fit, and entries check what was lost.

mod editor;
mod tuple;

use crate::address_map::VECTOR;
use crate::lpm::hosts::Hosts;
use crate::paged::Grouped;
use crate::{Address, AddressMap, Identity, Key};

use super::rows::NONE;
pub(super) use editor::PairsEditor;
use tuple::{EndShape, Entry, TUPLES, Tuple, fold, join, ports};

/// Tuples by number, as bits.
pub(super) type Tuples = u128;

/// The hash table of all tuples.
#[derive(Clone, Debug)]
pub(super) struct Pairs {
    /// The tuple with the best rule first, as long as rules only come in order.
    tuples: Vec<Tuple>,
    /// Tuples that do not look at the source, and at the destination.
    pub(super) any: [Tuples; 2],
    /// From a hash of tuple, ends and ports to the first entry with this hash.
    chains: Hosts,
    /// Entry 0 is none: it matches nothing.
    entries: Grouped<Entry, 128>,
    seed: u64,
}

/// Decides between rules and knows them in full.
pub(super) trait Rules: Copy {
    /// Whether tuples stand in the order of their best rules.
    const SORTED: bool;
    /// A rule's place in the order; lower is first. [`NONE`] comes last.
    fn order(&self, rule: u32) -> u64;
    /// The one that comes first; either may be [`NONE`].
    fn first(&self, a: u32, b: u32) -> u32;
    /// Whether a rule matches, by definition.
    fn matches(&self, rule: u32, key: &Key) -> bool;
}

impl Pairs {
    pub(super) fn is_empty(&self) -> bool {
        self.tuples.is_empty()
    }

    /// The first rule in order among `best` and those of `left` that match.
    #[inline(always)]
    pub(super) fn lookup(
        &self,
        key: &Key,
        mut left: Tuples,
        mut best: u32,
        rules: impl Rules,
        addresses: &AddressMap,
    ) -> u32 {
        while let Some(number) = self.next(&mut left, best, rules) {
            let found = self.probe(key, number, rules, addresses);
            best = rules.first(best, found);
        }
        best
    }

    /// The same for many keys, one probe of each after the other.
    #[inline(always)]
    pub(super) fn lookup_each(
        &self,
        keys: &[Key],
        left: &mut [Tuples],
        best: &mut [u32],
        rules: impl Rules,
        addresses: &AddressMap,
    ) {
        // Keys with a tuple to probe, by place. Written always and kept if counted, so that
        // nothing depends on guessing a branch right.
        let mut work = [(0_u16, 0_u16); VECTOR];
        let mut ends = [0_u64; VECTOR];
        let mut entries = [0_u32; VECTOR];
        let mut count = 0;
        for (at, (left, best)) in left.iter_mut().zip(best.iter()).enumerate() {
            let next = self.next(left, *best, rules);
            work[count % VECTOR] = (at as u16, next.unwrap_or(0) as u16);
            count += usize::from(next.is_some());
        }
        while count > 0 {
            let work = &mut work[..count];
            let probes = work.iter().zip(&mut ends).zip(&mut entries);
            for (((at, number), ends), hash) in probes {
                let key = &keys[usize::from(*at)];
                let tuple = &self.tuples[usize::from(*number)];
                *ends = tuple.ends(key);
                *hash = self.hash(*ends, ports(key) & tuple.ports_mask, (*number).into());
            }
            for entry in &mut entries[..count] {
                *entry = self.chains.lookup(*entry);
            }
            count = 0;
            for place in 0..work.len() {
                let (at, number) = work[place];
                let (ends, entry) = (ends[place], entries[place]);
                let (at, number) = (usize::from(at), usize::from(number));
                let key = &keys[at];
                let found = if self.tuples[number % TUPLES].wide {
                    self.probe(key, number, rules, addresses)
                } else {
                    self.follow(entry, key, number, ends, rules)
                };
                best[at] = rules.first(best[at], found);
                let next = self.next(&mut left[at], best[at], rules);
                work[count] = (at as u16, next.unwrap_or(0) as u16);
                count += usize::from(next.is_some());
            }
        }
    }

    /// Takes the next tuple that may have a rule before `best` from `left`.
    #[inline(always)]
    fn next<R: Rules>(&self, left: &mut Tuples, best: u32, rules: R) -> Option<usize> {
        loop {
            let number = left.trailing_zeros() as usize;
            if number >= self.tuples.len() {
                return None;
            }
            *left &= *left - 1;
            if rules.order(self.tuples[number].best) < rules.order(best) {
                return Some(number);
            }
            if R::SORTED {
                return None;
            }
        }
    }

    /// The first matching rule of one tuple.
    #[inline(always)]
    fn probe(&self, key: &Key, number: usize, rules: impl Rules, addresses: &AddressMap) -> u32 {
        let tuple = &self.tuples[number];
        if tuple.shape.has_sets() {
            return self.probe_sets(key, number, rules, addresses);
        }
        self.probe_ends(key, number, tuple.ends(key), rules)
    }

    /// The same for ends that the caller knows.
    #[inline(always)]
    fn probe_ends(&self, key: &Key, number: usize, ends: u64, rules: impl Rules) -> u32 {
        let ports = ports(key) & self.tuples[number].ports_mask;
        let entry = self.chains.lookup(self.hash(ends, ports, number));
        self.follow(entry, key, number, ends, rules)
    }

    /// The first matching rule of a chain.
    #[inline(always)]
    fn follow(&self, first: u32, key: &Key, number: usize, ends: u64, rules: impl Rules) -> u32 {
        let checked = self.tuples[number % TUPLES].checked;
        let mut entry = self.entries.get(first as usize);
        loop {
            let mut hit = entry.matches(key, number, ends);
            if checked {
                hit = hit && rules.matches(entry.rule, key);
            }
            // Chains are nearly always of one entry; whether it matched is not to be guessed.
            if entry.next == 0 {
                return entry.rule | u32::from(hit).wrapping_sub(1);
            }
            if hit {
                return entry.rule;
            }
            entry = self.entries.get(entry.next as usize);
        }
    }

    /// Probes for every pair of peer sets that the ends are in.
    #[inline(never)]
    fn probe_sets(
        &self,
        key: &Key,
        number: usize,
        rules: impl Rules,
        addresses: &AddressMap,
    ) -> u32 {
        let values = |shape: EndShape, identity: Identity, address: Address| match shape {
            EndShape::Set => {
                addresses.members(identity).iter().map(|set| u64::from(set.0)).collect()
            }
            shape => vec![shape.of(address)],
        };
        let shape = self.tuples[number].shape;
        let mut best = NONE;
        let destinations = values(shape.destination, key.destination_identity, key.destination);
        for source in values(shape.source, key.source_identity, key.source) {
            for destination in &destinations {
                let found = self.probe_ends(key, number, join(source, *destination), rules);
                best = rules.first(best, found);
            }
        }
        best
    }

    #[inline]
    fn hash(&self, ends: u64, ports: u64, number: usize) -> u32 {
        fold(ends ^ self.seed, ports << 8 ^ number as u64 ^ self.seed.rotate_left(32)) as u32
    }

    /// Tuples, entries over all of them, and entries of the largest.
    pub(super) fn entries(&self) -> (usize, usize, usize) {
        let entries = || self.tuples.iter().map(|tuple| tuple.entries as usize);
        (self.tuples.len(), entries().sum(), entries().max().unwrap_or(0))
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.tuples) + self.chains.bytes() + self.entries.bytes()
    }
}
