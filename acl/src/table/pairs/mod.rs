//! Rules over both ends: tuple space, pruned by what each end can match.
//!
//! Rules whose ends look at the same bits form a *tuple* (Srinivasan, Suri and Varghese,
//! SIGCOMM 1999), and all tuples share one hash table from tuple and masked ends to chains of
//! rules in order. Each end of a key knows from its own longest-prefix match which tuples have
//! a rule that its address fits; only tuples that both ends agree on are probed, best rule
//! first, and none that cannot beat the rule in hand. That leaves little more than one probe.
//!
//! Where chains would grow long because many rules differ in their ports alone, the tuple is
//! parted by which ports are exact, and these go into the hash. Where there are fewer tuples
//! than bits, tuples are parted by their destinations, which saves probes in vain; where there
//! are more, prefix lengths are rounded down until they fit, and entries check what was lost.

mod editor;
mod tuple;

use crate::paged::{Grouped, Groups};
use crate::simd::VECTOR;
use crate::simd::prefetch;
use crate::{Address, Identity, Key};

use super::{Table, rows::NONE};
pub(super) use editor::PairsEditor;
use tuple::{EndShape, Entry, TUPLES, Tuple, fold, join, ports};

/// Tuples by number, as bits.
pub(super) type Tuples = u128;

/// The hash table of all tuples.
#[derive(Clone, Debug)]
pub(super) struct Pairs {
    /// The tuple with the best rule first.
    tuples: Vec<Tuple>,
    /// Tuples that do not look at the source, and at the destination.
    pub(super) any: [Tuples; 2],
    /// From a hash of tuple, ends and ports to the first entry of a chain, or 0.
    heads: Grouped<u32, 1024>,
    /// Number of heads less one, which is a power of two.
    mask: u32,
    /// Entry 0 is none: it matches nothing.
    entries: Grouped<Entry, 128>,
    seed: u64,
}

/// What lookups of many keys see of [`Pairs`].
#[derive(Clone, Copy)]
struct View<'a> {
    tuples: &'a [Tuple],
    heads: Groups<'a, u32, 1024>,
    mask: u32,
    entries: Groups<'a, Entry, 128>,
    seed: u64,
}

/// Places of keys in a vector. Written always and kept if counted, so that nothing depends on
/// guessing a branch right.
#[derive(Clone, Copy)]
struct Places {
    list: [u8; VECTOR],
    count: usize,
}

impl Places {
    fn new() -> Self {
        Self { list: [0; VECTOR], count: 0 }
    }

    #[inline(always)]
    fn push_if(&mut self, kept: bool, place: usize) {
        self.list[self.count % VECTOR] = place as u8;
        self.count += usize::from(kept);
    }

    #[inline(always)]
    fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.list[..self.count].iter().map(|place| usize::from(*place))
    }

    /// The places so far, as those to come are gathered anew.
    #[inline(always)]
    fn take(&mut self) -> Self {
        Self { count: std::mem::take(&mut self.count), ..*self }
    }
}

impl Pairs {
    pub(super) fn is_empty(&self) -> bool {
        self.tuples.is_empty()
    }

    /// The first rule in order among `best` and those of `left` that match.
    #[inline(always)]
    pub(super) fn lookup(&self, key: &Key, mut left: Tuples, mut best: u32, table: &Table) -> u32 {
        let view = self.view();
        while let (number, true) = view.next(&mut left, best) {
            let found = self.probe(key, number, table);
            best = best.min(found);
        }
        best
    }

    /// The same for many keys, step by step for all of them, so that cache misses overlap and no
    /// step waits for a guess about another.
    #[inline(always)]
    pub(super) fn lookup_each(
        &self,
        keys: &[Key],
        left: &mut [Tuples; VECTOR],
        best: &mut [u32],
        table: &Table,
    ) {
        let view = self.view();
        let none = view.entries.get(0);
        let mut tuples = [0_u8; VECTOR];
        let mut all_ends = [0_u64; VECTOR];
        let mut heads = [&none.next; VECTOR];
        let mut entries = [none; VECTOR];
        // Keys that go on with another tuple, and those whose head is known.
        let (mut fresh, mut chained) = (Places::new(), Places::new());
        for (at, left) in left.iter().enumerate().take(keys.len()) {
            fresh.push_if(*left != 0, at);
        }
        while fresh.count + chained.count > 0 {
            for at in fresh.take().iter() {
                let (number, found) = view.next(&mut left[at], best[at]);
                let (ends, head) = view.head(&keys[at], number);
                prefetch(head);
                (tuples[at], all_ends[at], heads[at]) = (number as u8, ends, head);
                chained.push_if(found, at);
            }
            for at in chained.iter() {
                entries[at] = view.entries.get(*heads[at] as usize);
                prefetch(entries[at]);
            }
            for at in chained.take().iter() {
                let (number, key, entry) = (usize::from(tuples[at]), &keys[at], entries[at]);
                let tuple = &view.tuples[number];
                let mut hit = entry.matches(key, number, all_ends[at]);
                let mut next = entry.next;
                if tuple.special {
                    if tuple.shape.has_sets() {
                        let found = self.probe_sets(key, number, table);
                        best[at] = best[at].min(found);
                        (hit, next) = (false, 0);
                    } else {
                        hit &= table.rule_matches(entry.rule, key);
                    }
                }
                best[at] = best[at].min(entry.rule | u32::from(hit).wrapping_sub(1));
                let goes_on = !hit & (next != 0);
                heads[at] = &entry.next;
                chained.push_if(goes_on, at);
                fresh.push_if(!goes_on & view.may_go_on(left[at], best[at]), at);
            }
        }
    }

    #[inline(always)]
    fn view(&self) -> View<'_> {
        View {
            tuples: &self.tuples,
            heads: self.heads.groups(),
            mask: self.mask,
            entries: self.entries.groups(),
            seed: self.seed,
        }
    }

    /// The first matching rule of one tuple.
    fn probe(&self, key: &Key, number: usize, table: &Table) -> u32 {
        let tuple = &self.tuples[number];
        if tuple.shape.has_sets() {
            return self.probe_sets(key, number, table);
        }
        self.probe_ends(key, number, tuple.ends(key), table)
    }

    /// The same for ends that the caller knows.
    #[inline(always)]
    fn probe_ends(&self, key: &Key, number: usize, ends: u64, table: &Table) -> u32 {
        let view = self.view();
        let head = view.hash(ends, ports(key) & view.tuples[number].ports_mask, number);
        let entry = view.entries.get(*view.heads.get(head) as usize);
        view.follow(entry, key, number, ends, table)
    }

    /// Probes for every pair of peer sets that the ends are in.
    #[inline(never)]
    fn probe_sets(&self, key: &Key, number: usize, table: &Table) -> u32 {
        let values = |shape: EndShape, identity: Identity, address: Address| match shape {
            EndShape::Set => {
                table.addresses.members(identity).iter().map(|set| u64::from(set.0)).collect()
            }
            shape => vec![shape.of(address)],
        };
        let shape = self.tuples[number].shape;
        let mut best = NONE;
        let destinations = values(shape.destination, key.destination_identity, key.destination);
        for source in values(shape.source, key.source_identity, key.source) {
            for destination in &destinations {
                let found = self.probe_ends(key, number, join(source, *destination), table);
                best = best.min(found);
            }
        }
        best
    }

    /// Tuples, entries over all of them, and entries of the largest.
    pub(super) fn entries(&self) -> (usize, usize, usize) {
        let entries = || self.tuples.iter().map(|tuple| tuple.entries as usize);
        (self.tuples.len(), entries().sum(), entries().max().unwrap_or(0))
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.tuples) + self.heads.bytes() + self.entries.bytes()
    }
}

impl<'a> View<'a> {
    /// Takes the next tuple that may have a rule before `best` from `left`; whether there is one.
    #[inline(always)]
    fn next(self, left: &mut Tuples, best: u32) -> (usize, bool) {
        let number = left.trailing_zeros() as usize % TUPLES;
        // Those that are left promise even less.
        let found = (*left != 0) & (self.tuples[number].best < best);
        *left &= left.wrapping_sub(1);
        (number, found)
    }

    /// Whether one of the tuples that are `left` may have a rule before `best`.
    #[inline(always)]
    fn may_go_on(self, left: Tuples, best: u32) -> bool {
        (left != 0) & (self.tuples[left.trailing_zeros() as usize % TUPLES].best < best)
    }

    /// A key's ends as a tuple sees them, and the head of the chain for them.
    #[inline(always)]
    fn head(self, key: &Key, number: usize) -> (u64, &'a u32) {
        let tuple = &self.tuples[number];
        let ends = tuple.ends(key);
        (ends, self.heads.get(self.hash(ends, ports(key) & tuple.ports_mask, number)))
    }

    /// The place of the head for these ends and ports in a tuple.
    #[inline(always)]
    fn hash(self, ends: u64, ports: u64, tuple: usize) -> usize {
        let other = ports << 8 ^ tuple as u64 ^ self.seed.rotate_left(32);
        (fold(ends ^ self.seed, other) as u32 & self.mask) as usize
    }

    /// The first matching rule of a chain, or none.
    #[inline(always)]
    fn follow(
        self,
        mut entry: &'a Entry,
        key: &Key,
        number: usize,
        ends: u64,
        table: &Table,
    ) -> u32 {
        let checked = self.tuples[number].checked;
        loop {
            let mut hit = entry.matches(key, number, ends);
            if checked {
                hit = hit && table.rule_matches(entry.rule, key);
            }
            // Chains are mostly of one entry; whether it matched is not to be guessed.
            if entry.next == 0 {
                return entry.rule | u32::from(hit).wrapping_sub(1);
            }
            if hit {
                return entry.rule;
            }
            entry = self.entries.get(entry.next as usize);
        }
    }
}
