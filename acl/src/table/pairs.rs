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

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use ahash::RandomState;

use crate::address_map::VECTOR;
use crate::lpm::hosts::Hosts;
use crate::paged::Paged;
use crate::prefix::{Prefix, V4_BITS, mask};
use crate::{Address, AddressMap, End, Identity, Key, PortRange, Rule};

use super::rows::NONE;

/// Tuples by number, as bits.
pub(super) type Tuples = u128;

/// Most tuples.
const TUPLES: usize = 128;

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
    entries: Paged<Entry, 128>,
    seed: u64,
}

#[derive(Clone, Copy, Debug)]
struct Tuple {
    /// Bits of IPv4 addresses that count, source above destination.
    ends_mask: u64,
    /// Bits of [`ports`] that count.
    ports_mask: u64,
    /// Its best rule; maybe one that is gone and was better.
    best: u32,
    entries: u32,
    /// Whether an end is an IPv6 prefix or a peer set.
    wide: bool,
    /// Whether entries must check their ends: the hash does not tell all.
    checked: bool,
    shape: Shape,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Shape {
    source: EndShape,
    destination: EndShape,
    source_port: bool,
    destination_port: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum EndShape {
    Any,
    Set,
    /// Bits of the IPv4 address that count.
    V4(u32),
    /// Length of the IPv6 prefix.
    V6(u8),
}

/// A rule with all that decides. 32 bytes: two to a cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
struct Entry {
    ends: u64,
    rule: u32,
    /// The next entry of the chain, or 0.
    next: u32,
    source_first: u16,
    source_span: u16,
    destination_first: u16,
    destination_span: u16,
    protocol: u8,
    protocol_mask: u8,
    flags: u8,
    flags_mask: u8,
    /// [`TUPLES`] in the entry that is none.
    tuple: u8,
}

impl Entry {
    const NONE: Self = Self {
        ends: 0,
        rule: NONE,
        next: 0,
        source_first: 0,
        source_span: 0,
        destination_first: 0,
        destination_span: 0,
        protocol: 0,
        protocol_mask: 0,
        flags: 0,
        flags_mask: 0,
        tuple: TUPLES as u8,
    };

    fn new(ends: u64, rule: u32, tuple: u8, of: &Rule) -> Self {
        // A contradictory range matches nothing; such rules are not entered.
        let span = |ports: PortRange| ports.last.wrapping_sub(ports.first);
        Self {
            ends,
            rule,
            next: 0,
            source_first: of.source_ports.first,
            source_span: span(of.source_ports),
            destination_first: of.destination_ports.first,
            destination_span: span(of.destination_ports),
            protocol: of.protocol.unwrap_or(0),
            protocol_mask: if of.protocol.is_some() { 0xff } else { 0 },
            flags: of.tcp_flags.value,
            flags_mask: of.tcp_flags.mask,
            tuple,
        }
    }

    /// Whether a key with these ends, as this tuple sees them, matches.
    #[inline]
    fn matches(&self, key: &Key, tuple: usize, ends: u64) -> bool {
        (self.ends == ends)
            & (usize::from(self.tuple) == tuple)
            & (key.source_port.wrapping_sub(self.source_first) <= self.source_span)
            & (key.destination_port.wrapping_sub(self.destination_first) <= self.destination_span)
            & ((key.protocol ^ self.protocol) & self.protocol_mask == 0)
            & (key.tcp_flags & self.flags_mask == self.flags)
    }
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

impl Tuple {
    fn new(shape: Shape, step: u8) -> Self {
        let mask = |end| match end {
            EndShape::V4(mask) => u64::from(mask),
            _ => 0,
        };
        let wide = |end| matches!(end, EndShape::V6(_) | EndShape::Set);
        let hashed = |end| matches!(end, EndShape::V6(_));
        let mut ports_mask = 0;
        if shape.source_port | shape.destination_port {
            ports_mask |= 0xff << 32;
            ports_mask |= if shape.source_port { 0xffff_0000 } else { 0 };
            ports_mask |= if shape.destination_port { 0xffff } else { 0 };
        }
        Self {
            ends_mask: join(mask(shape.source), mask(shape.destination)),
            ports_mask,
            best: NONE,
            entries: 0,
            wide: wide(shape.source) || wide(shape.destination),
            checked: step > 1 || hashed(shape.source) || hashed(shape.destination),
            shape,
        }
    }

    /// The ends of a key as this tuple sees them.
    #[inline]
    fn ends(&self, key: &Key) -> u64 {
        if self.wide {
            return join(
                self.shape.source.of(key.source),
                self.shape.destination.of(key.destination),
            );
        }
        let (source, destination) = (key.source.bits() as u32, key.destination.bits() as u32);
        join(source.into(), destination.into()) & self.ends_mask
    }
}

impl EndShape {
    /// The bits of an address that count; as a hash where 64 bits do not hold them.
    #[inline]
    fn of(self, address: Address) -> u64 {
        match self {
            Self::Any | Self::Set => 0,
            Self::V4(mask) => u64::from(address.bits() as u32 & mask),
            Self::V6(length) => {
                let bits = address.bits() & mask(length);
                fold(bits as u64 ^ V6_SALT, (bits >> 64) as u64 ^ V6_SALT.rotate_left(7))
            }
        }
    }

    fn of_rule(self, end: &End) -> u64 {
        match end {
            End::Any => 0,
            End::Set(set) => u64::from(set.0),
            End::Net(net) => self.of(Address::from(net.network())),
        }
    }
}

impl Shape {
    fn has_sets(self) -> bool {
        self.source == EndShape::Set || self.destination == EndShape::Set
    }

    fn ends_of(self, rule: &Rule) -> u64 {
        join(self.source.of_rule(&rule.source), self.destination.of_rule(&rule.destination))
    }
}

/// Both ends in one word: IPv4 addresses and set numbers side by side, hashes mixed.
#[inline]
fn join(source: u64, destination: u64) -> u64 {
    source.rotate_left(32) ^ destination
}

/// Protocol and ports in one word.
#[inline]
fn ports(key: &Key) -> u64 {
    let ports = u64::from(key.source_port) << 16 | u64::from(key.destination_port);
    u64::from(key.protocol) << 32 | ports
}

const V6_SALT: u64 = 0x9e37_79b9_7f4a_7c15;

/// Both halves of a 128-bit product, so that every bit counts.
#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b | 1 << 63);
    product as u64 ^ (product >> 64) as u64
}

/// Makes versions of [`Pairs`].
#[derive(Clone, Debug)]
pub(super) struct PairsEditor {
    pub(super) pairs: Arc<Pairs>,
    numbers: HashMap<Shape, u8, RandomState>,
    /// Prefix lengths are rounded down to multiples of this.
    step: u8,
    /// Pairs of ends' shapes that are parted by exact ports.
    parted: HashSet<(EndShape, EndShape), RandomState>,
    free: Vec<u32>,
    /// First entry never used.
    next: u32,
}

/// Chains this long make a tuple be parted by ports.
const LONG_CHAIN: u32 = 4;

impl PairsEditor {
    /// For a set that begins with these rules: their shapes decide how tuples are cut.
    pub(super) fn new<'a>(rules: impl Iterator<Item = &'a Rule> + Clone) -> Self {
        let pairs = Pairs {
            tuples: Vec::new(),
            any: [0; 2],
            chains: Hosts::new(),
            entries: Paged::filled(1, &Entry::NONE),
            seed: crate::seed(),
        };
        let mut editor = Self {
            pairs: Arc::new(pairs),
            numbers: HashMap::default(),
            step: 1,
            parted: HashSet::default(),
            free: Vec::new(),
            next: 1,
        };
        let mut chains: HashMap<(EndShape, EndShape, u64), u32, RandomState> = HashMap::default();
        for rule in rules.clone() {
            let (source, destination) = editor.end_shapes(rule);
            let ends = join(source.of_rule(&rule.source), destination.of_rule(&rule.destination));
            let chain = chains.entry((source, destination, ends)).or_default();
            *chain += 1;
            if *chain > LONG_CHAIN {
                editor.parted.insert((source, destination));
            }
        }
        editor.fit(rules);
        editor
    }

    /// Rounds prefix lengths until the tuples are few enough, and puts the tuple with the best
    /// rule first.
    fn fit<'a>(&mut self, rules: impl Iterator<Item = &'a Rule> + Clone) {
        loop {
            let mut shapes = Vec::new();
            let mut known = HashSet::<Shape, RandomState>::default();
            for rule in rules.clone() {
                let shape = self.shape(rule);
                if known.insert(shape) {
                    shapes.push(shape);
                }
            }
            if shapes.len() <= TUPLES {
                shapes.into_iter().for_each(|shape| {
                    self.tuple(shape);
                });
                return;
            }
            if self.step >= 128 {
                self.parted.clear();
            }
            self.step = self.step.saturating_mul(2);
        }
    }

    fn end_shapes(&self, rule: &Rule) -> (EndShape, EndShape) {
        let shape = |end: &End| match end {
            End::Any => EndShape::Any,
            End::Set(_) => EndShape::Set,
            End::Net(net) => match Prefix::new(net) {
                Some(prefix) if prefix.is_v4() => {
                    let length = prefix.length() - V4_BITS;
                    let length = length - length % self.step;
                    EndShape::V4(u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0))
                }
                Some(prefix) => EndShape::V6(prefix.length() - prefix.length() % self.step),
                None => EndShape::Any,
            },
        };
        (shape(&rule.source), shape(&rule.destination))
    }

    fn shape(&self, rule: &Rule) -> Shape {
        let (source, destination) = self.end_shapes(rule);
        let parted = rule.protocol.is_some() && self.parted.contains(&(source, destination));
        let exact = |ports: PortRange| parted && ports.first == ports.last;
        Shape {
            source,
            destination,
            source_port: exact(rule.source_ports),
            destination_port: exact(rule.destination_ports),
        }
    }

    /// The number of a tuple, which there must be a bit for.
    fn tuple(&mut self, shape: Shape) -> Option<u8> {
        if let Some(number) = self.numbers.get(&shape) {
            return Some(*number);
        }
        let pairs = Arc::make_mut(&mut self.pairs);
        if pairs.tuples.len() == TUPLES {
            return None;
        }
        let number = pairs.tuples.len() as u8;
        pairs.tuples.push(Tuple::new(shape, self.step));
        for (side, end) in [shape.source, shape.destination].into_iter().enumerate() {
            if end == EndShape::Any {
                pairs.any[side] |= 1 << number;
            }
        }
        self.numbers.insert(shape, number);
        Some(number)
    }

    /// Enters a rule; the number of its tuple, or `None` if there are too many tuples.
    pub(super) fn insert(
        &mut self,
        number: u32,
        rule: &Rule,
        order_of: &dyn Fn(u32) -> u64,
    ) -> Option<u8> {
        let shape = self.shape(rule);
        let tuple = self.tuple(shape)?;
        let pairs = Arc::make_mut(&mut self.pairs);
        let order = order_of(number);
        let known = &mut pairs.tuples[usize::from(tuple)];
        if known.best == NONE || order < order_of(known.best) {
            known.best = number;
        }
        known.entries += 1;
        let mut entry = Entry::new(shape.ends_of(rule), number, tuple, rule);
        let hash = pairs.hash_of(&entry);
        let new = self.free.pop().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        });
        pairs.entries.grow(new as usize + 1, &Entry::NONE);
        // Behind the last entry that comes before it.
        let (mut before, mut next) = (0, pairs.chains.lookup(hash));
        while next != 0 && order_of(pairs.entries.get(next as usize).rule) < order {
            (before, next) = (next, pairs.entries.get(next as usize).next);
        }
        entry.next = next;
        *pairs.entries.get_mut(new as usize) = entry;
        match before {
            0 => pairs.chains.insert(hash, new),
            before => pairs.entries.get_mut(before as usize).next = new,
        }
        Some(tuple)
    }

    /// Takes a rule out; the number of its tuple if it was there.
    pub(super) fn remove(&mut self, number: u32, rule: &Rule) -> Option<u8> {
        let shape = self.shape(rule);
        let tuple = *self.numbers.get(&shape)?;
        let pairs = Arc::make_mut(&mut self.pairs);
        let hash = pairs.hash_of(&Entry::new(shape.ends_of(rule), number, tuple, rule));
        let (mut before, mut old) = (0, pairs.chains.lookup(hash));
        while old != 0 && pairs.entries.get(old as usize).rule != number {
            (before, old) = (old, pairs.entries.get(old as usize).next);
        }
        if old == 0 {
            return None;
        }
        let next = pairs.entries.get(old as usize).next;
        match (before, next) {
            (0, 0) => pairs.chains.remove(hash),
            (0, next) => pairs.chains.insert(hash, next),
            (before, next) => pairs.entries.get_mut(before as usize).next = next,
        }
        *pairs.entries.get_mut(old as usize) = Entry::NONE;
        self.free.push(old);
        pairs.tuples[usize::from(tuple)].entries -= 1;
        Some(tuple)
    }
}

impl Pairs {
    /// Where an entry's chain begins. What its tuple's ports look at is exact in the entry.
    fn hash_of(&self, entry: &Entry) -> u32 {
        let key = Key {
            protocol: entry.protocol,
            source_port: entry.source_first,
            destination_port: entry.destination_first,
            ..Key::default()
        };
        let number = usize::from(entry.tuple);
        self.hash(entry.ends, ports(&key) & self.tuples[number].ports_mask, number)
    }
}
