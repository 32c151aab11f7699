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

use crate::paged::{Grouped, Paged};
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
    tuples: Vec<Tuple>,
    /// Tuples that do not look at the source, and at the destination.
    pub(super) any: [Tuples; 2],
    heads: Grouped<Entry, 128>,
    /// Number of heads less one; their number is a power of two.
    mask: usize,
    chained: Paged<Entry, 128>,
    seed: u64,
}

#[derive(Clone, Copy, Debug)]
struct Tuple {
    shape: Shape,
    /// Its best rule; maybe one that is gone and was better.
    best: u32,
    entries: u32,
    /// Whether entries must check their ends: the hash does not tell all.
    checked: bool,
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

/// A rule with what decides besides the hashed ends. 32 bytes: two to a cache line.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(32))]
struct Entry {
    ends: u64,
    rule: u32,
    /// One more than the next entry of the chain.
    next: u32,
    source_first: u16,
    source_span: u16,
    destination_first: u16,
    destination_span: u16,
    protocol: u8,
    protocol_mask: u8,
    flags: u8,
    flags_mask: u8,
    tuple: u8,
    state: State,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Free,
    Taken,
    /// Was taken; a search goes on behind it.
    Left,
}

impl Entry {
    fn new(ends: u64, rule: u32, tuple: u8, of: &Rule) -> Self {
        let span = |ports: PortRange| ports.last.wrapping_sub(ports.first);
        // A contradictory range matches nothing; such rules are not entered.
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
            state: State::Taken,
        }
    }

    /// Whether the key's service is one that the rule asks for.
    #[inline]
    fn matches(&self, key: &Key) -> bool {
        (key.source_port.wrapping_sub(self.source_first) <= self.source_span)
            & (key.destination_port.wrapping_sub(self.destination_first) <= self.destination_span)
            & ((key.protocol ^ self.protocol) & self.protocol_mask == 0)
            & (key.tcp_flags & self.flags_mask == self.flags)
    }
}

/// Decides between rules and knows them in full.
pub(super) trait Rules: Copy {
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

    /// The first rule in order among `best` and those of `tuples` that match.
    #[inline]
    pub(super) fn lookup(
        &self,
        key: &Key,
        tuples: Tuples,
        mut best: u32,
        rules: impl Rules,
        addresses: &AddressMap,
    ) -> u32 {
        let mut left = tuples;
        let mut order = rules.order(best);
        while left != 0 {
            let number = left.trailing_zeros() as usize;
            left &= left - 1;
            let tuple = &self.tuples[number % TUPLES];
            if rules.order(tuple.best) >= order {
                continue;
            }
            let found = match (tuple.shape.source, tuple.shape.destination) {
                (EndShape::Set, _) | (_, EndShape::Set) => {
                    self.probe_sets(key, number, order, rules, addresses)
                }
                (source, destination) => {
                    let ends = ends(source.of(key.source), destination.of(key.destination));
                    self.probe(key, number, ends, order, rules)
                }
            };
            if found != NONE {
                best = found;
                order = rules.order(found);
            }
        }
        best
    }

    /// The first matching rule of one chain that is better than `order`.
    #[inline]
    fn probe(&self, key: &Key, number: usize, ends: u64, order: u64, rules: impl Rules) -> u32 {
        let tuple = &self.tuples[number];
        let ports = tuple.shape.ports(key);
        let mut at = self.home(ends, number, ports);
        let mut entry = loop {
            let entry = self.heads.get(at);
            if entry.ends == ends
                && usize::from(entry.tuple) == number
                && entry.state == State::Taken
                && tuple.shape.ports_of(entry) == ports
            {
                break entry;
            }
            if entry.state == State::Free {
                return NONE;
            }
            at = (at + 1) & self.mask;
        };
        loop {
            if entry.matches(key) && (!tuple.checked || rules.matches(entry.rule, key)) {
                return if rules.order(entry.rule) < order { entry.rule } else { NONE };
            }
            if entry.next == 0 {
                return NONE;
            }
            entry = self.chained.get(entry.next as usize - 1);
        }
    }

    /// Probes for every pair of peer sets that the ends are in.
    #[inline(never)]
    fn probe_sets(
        &self,
        key: &Key,
        number: usize,
        mut order: u64,
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
                let found = self.probe(key, number, ends(source, *destination), order, rules);
                if found != NONE {
                    best = found;
                    order = rules.order(found);
                }
            }
        }
        best
    }

    /// Where the search for a chain begins. Ports are 0 where the tuple leaves them out.
    #[inline]
    fn home(&self, ends: u64, number: usize, ports: u64) -> usize {
        fold(ends ^ self.seed, ports << 8 ^ number as u64 ^ self.seed.rotate_left(32)) as usize
            & self.mask
    }

    /// Entries over all tuples, and of the largest.
    pub(super) fn entries(&self) -> (usize, usize, usize) {
        let entries = || self.tuples.iter().map(|tuple| tuple.entries as usize);
        (self.tuples.len(), entries().sum(), entries().max().unwrap_or(0))
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.tuples) + self.heads.bytes() + self.chained.bytes()
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
}

/// Both ends in one word: IPv4 addresses and set numbers side by side, hashes mixed.
#[inline]
fn ends(source: u64, destination: u64) -> u64 {
    source.rotate_left(32) ^ destination
}

const V6_SALT: u64 = 0x9e37_79b9_7f4a_7c15;

/// Both halves of a 128-bit product, so that every bit counts.
#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b | 1 << 63);
    product as u64 ^ (product >> 64) as u64
}

impl Shape {
    #[inline]
    fn ports(self, key: &Key) -> u64 {
        self.mask_ports(key.protocol, key.source_port, key.destination_port)
    }

    /// The same of an entry; what the shape looks at is exact there.
    #[inline]
    fn ports_of(self, entry: &Entry) -> u64 {
        self.mask_ports(entry.protocol, entry.source_first, entry.destination_first)
    }

    #[inline]
    fn mask_ports(self, protocol: u8, source: u16, destination: u16) -> u64 {
        let source = if self.source_port { u64::from(source) << 16 } else { 0 };
        let destination = if self.destination_port { u64::from(destination) } else { 0 };
        let either = self.source_port | self.destination_port;
        source | destination | if either { u64::from(protocol) << 32 | 1 << 40 } else { 0 }
    }
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
    heads: usize,
    left: usize,
    free: Vec<u32>,
    next: u32,
}

/// Chains this long make a tuple be parted by ports.
const LONG_CHAIN: u32 = 6;

impl PairsEditor {
    /// For a set that begins with these rules: their shapes decide how tuples are cut.
    pub(super) fn new<'a>(rules: impl Iterator<Item = &'a Rule> + Clone) -> Self {
        let mut editor = Self {
            pairs: Arc::new(Pairs::with_heads(16, crate::seed())),
            numbers: HashMap::default(),
            step: 1,
            parted: HashSet::default(),
            heads: 0,
            left: 0,
            free: Vec::new(),
            next: 0,
        };
        let mut chains: HashMap<(EndShape, EndShape, u64), u32, RandomState> = HashMap::default();
        let mut count = 0;
        for rule in rules.clone() {
            let (source, destination) = editor.end_shapes(rule);
            let ends = ends(source.of_rule(&rule.source), destination.of_rule(&rule.destination));
            let chain = chains.entry((source, destination, ends)).or_default();
            *chain += 1;
            count += 1;
            if *chain > LONG_CHAIN {
                editor.parted.insert((source, destination));
            }
        }
        editor.fit(rules);
        Arc::make_mut(&mut editor.pairs).reserve(count);
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
            self.coarsen();
        }
    }

    fn coarsen(&mut self) {
        if self.step >= 128 {
            self.parted.clear();
        }
        self.step = self.step.saturating_mul(2);
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
        let wide = |end| matches!(end, EndShape::V6(_));
        let checked = self.step > 1 || wide(shape.source) || wide(shape.destination);
        pairs.tuples.push(Tuple { shape, best: NONE, entries: 0, checked });
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
        if 2 * (self.heads + self.left + 1) > pairs.mask + 1 {
            pairs.rehash(2 * (self.heads + 1));
            self.left = 0;
        }
        let ends = shape.ends_of(rule);
        let order = order_of(number);
        let known = &mut pairs.tuples[usize::from(tuple)];
        if known.best == NONE || order < order_of(known.best) {
            known.best = number;
        }
        known.entries += 1;
        let mut entry = Entry::new(ends, number, tuple, rule);
        let at = pairs.find(&entry);
        let head = *pairs.heads.get(at);
        if head.state != State::Taken {
            self.heads += 1;
            *pairs.heads.get_mut(at) = entry;
            return Some(tuple);
        }
        let spare = self.free.pop().unwrap_or_else(|| {
            self.next += 1;
            self.next
        });
        pairs.chained.grow(spare as usize, &Entry::default());
        let spare_at = spare as usize - 1;
        if order < order_of(head.rule) {
            *pairs.chained.get_mut(spare_at) = head;
            entry.next = spare;
            *pairs.heads.get_mut(at) = entry;
            return Some(tuple);
        }
        // Behind the last entry that comes before it.
        let (mut before, mut next) = (0, head.next);
        while next != 0 && order_of(pairs.chained.get(next as usize - 1).rule) < order {
            (before, next) = (next, pairs.chained.get(next as usize - 1).next);
        }
        entry.next = next;
        *pairs.chained.get_mut(spare_at) = entry;
        match before {
            0 => pairs.heads.get_mut(at).next = spare,
            before => pairs.chained.get_mut(before as usize - 1).next = spare,
        }
        Some(tuple)
    }

    /// Takes a rule out; the number of its tuple if it was there.
    pub(super) fn remove(&mut self, number: u32, rule: &Rule) -> Option<u8> {
        let shape = self.shape(rule);
        let tuple = *self.numbers.get(&shape)?;
        let pairs = Arc::make_mut(&mut self.pairs);
        let at = pairs.find(&Entry::new(shape.ends_of(rule), number, tuple, rule));
        let head = *pairs.heads.get(at);
        if head.state != State::Taken {
            return None;
        }
        if head.rule == number {
            if head.next == 0 {
                self.heads -= 1;
                self.left += 1;
                pairs.heads.get_mut(at).state = State::Left;
            } else {
                *pairs.heads.get_mut(at) = *pairs.chained.get(head.next as usize - 1);
                self.free.push(head.next);
            }
        } else {
            let (mut before, mut next) = (0, head.next);
            while next != 0 && pairs.chained.get(next as usize - 1).rule != number {
                (before, next) = (next, pairs.chained.get(next as usize - 1).next);
            }
            if next == 0 {
                return None;
            }
            let after = pairs.chained.get(next as usize - 1).next;
            match before {
                0 => pairs.heads.get_mut(at).next = after,
                before => pairs.chained.get_mut(before as usize - 1).next = after,
            }
            self.free.push(next);
        }
        pairs.tuples[usize::from(tuple)].entries -= 1;
        Some(tuple)
    }
}

impl EndShape {
    fn of_rule(self, end: &End) -> u64 {
        match end {
            End::Any => 0,
            End::Set(set) => u64::from(set.0),
            End::Net(net) => self.of(Address::from(net.network())),
        }
    }
}

impl Shape {
    fn ends_of(self, rule: &Rule) -> u64 {
        ends(self.source.of_rule(&rule.source), self.destination.of_rule(&rule.destination))
    }
}

impl Pairs {
    fn with_heads(heads: usize, seed: u64) -> Self {
        let heads = heads.next_power_of_two();
        Self {
            tuples: Vec::new(),
            any: [0; 2],
            heads: Grouped::filled(heads, &Entry::default()),
            mask: heads - 1,
            chained: Paged::filled(0, &Entry::default()),
            seed,
        }
    }

    fn reserve(&mut self, rules: usize) {
        if 2 * rules > self.mask + 1 {
            self.rehash(2 * rules);
        }
    }

    fn rehash(&mut self, heads: usize) {
        let empty = Self::with_heads(heads.max(16), self.seed);
        let (old, mask) = (std::mem::replace(&mut self.heads, empty.heads), self.mask);
        self.mask = empty.mask;
        for at in 0..=mask {
            let entry = *old.get(at);
            if entry.state == State::Taken {
                let at = self.find(&entry);
                *self.heads.get_mut(at) = entry;
            }
        }
    }

    /// The head of the entry's chain, or the first place where it may go.
    fn find(&self, entry: &Entry) -> usize {
        let shape = self.tuples[usize::from(entry.tuple)].shape;
        let ports = shape.ports_of(entry);
        let mut at = self.home(entry.ends, usize::from(entry.tuple), ports);
        let mut room = None;
        loop {
            let head = self.heads.get(at);
            match head.state {
                State::Free => return room.unwrap_or(at),
                State::Left => room = room.or(Some(at)),
                State::Taken => {
                    if head.ends == entry.ends
                        && head.tuple == entry.tuple
                        && shape.ports_of(head) == ports
                    {
                        return at;
                    }
                }
            }
            at = (at + 1) & self.mask;
        }
    }
}
