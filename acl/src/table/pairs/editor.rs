//! Pairs that change by a rule at a time.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use ahash::RandomState;

use super::Pairs;
use super::tuple::{EndShape, Entry, Shape, TUPLES, Tuple, fold, join, ports};
use crate::paged::Grouped;
use crate::prefix::{Prefix, V4_BITS};
use crate::table::rows::NONE;
use crate::{End, Key, PortRange, Rule};

/// Makes versions of [`Pairs`].
#[derive(Clone, Debug)]
pub(in crate::table) struct PairsEditor {
    pub(in crate::table) pairs: Arc<Pairs>,
    numbers: HashMap<Shape, u8, RandomState>,
    /// Prefix lengths are rounded down to multiples of this.
    step: u8,
    /// Pairs of ends' shapes that are parted by exact ports.
    parted: HashSet<(EndShape, EndShape), RandomState>,
    /// So many tuples for one shape: rules are parted by a hash of their destination, so that
    /// a source that has rules with a few destinations makes few keys probe in vain.
    parts: u64,
    /// First entry never used.
    next: u32,
}

/// Heads of a small table.
const FEWEST_HEADS: u32 = 1024;

/// Most tuples for one shape; fewer if they would not fit.
const MOST_PARTS: u64 = 8;

/// For a hash that has nothing to do with that of the heads.
const SALT: u64 = 0x9e37_79b9_7f4a_7c15;

/// Chains this long make a tuple be parted by ports.
const LONG_CHAIN: u32 = 4;

impl PairsEditor {
    /// For a set that begins with these rules: their shapes decide how tuples are cut.
    pub(in crate::table) fn new<'a>(rules: impl Iterator<Item = &'a Rule> + Clone) -> Self {
        let pairs = Pairs {
            tuples: Vec::new(),
            any: [0; 2],
            heads: Grouped::filled(FEWEST_HEADS as usize, &0),
            mask: FEWEST_HEADS - 1,
            entries: Grouped::filled(1, &Entry::NONE),
            seed: crate::seed(),
        };
        let mut editor = Self {
            pairs: Arc::new(pairs),
            numbers: HashMap::default(),
            step: 1,
            parted: HashSet::default(),
            parts: MOST_PARTS,
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

    /// Parts shapes less and rounds prefix lengths until the tuples are few enough, and puts the
    /// tuple with the best rule first.
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
            if self.parts > 1 {
                self.parts /= 2;
                continue;
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
            part: (fold(destination.of_rule(&rule.destination) ^ self.pairs.seed, SALT)
                % self.parts) as u8,
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
    pub(in crate::table) fn insert(&mut self, number: u32, rule: &Rule) -> Option<u8> {
        let shape = self.shape(rule);
        let tuple = self.tuple(shape)?;
        let pairs = Arc::make_mut(&mut self.pairs);
        let known = &mut pairs.tuples[usize::from(tuple)];
        known.best = known.best.min(number);
        known.entries += 1;
        let entry = Entry::new(shape.ends_of(rule), number, tuple, rule);
        let new = self.next;
        self.next += 1;
        pairs.entries.grow(new as usize + 1, &Entry::NONE);
        if self.next > pairs.mask / 4 {
            pairs.double(self.next);
        }
        pairs.chain(new, entry);
        Some(tuple)
    }
}

impl Pairs {
    /// Where an entry's chain begins. What its tuple's ports look at is exact in the entry.
    fn head_of(&self, entry: &Entry) -> usize {
        let key = Key {
            protocol: entry.protocol(),
            source_port: entry.ports_first[0],
            destination_port: entry.ports_first[1],
            ..Key::default()
        };
        let tuple = entry.tuple();
        let mask = self.tuples[tuple].ports_mask;
        self.view().hash(entry.ends, ports(&key) & mask, tuple)
    }

    /// Puts an entry into its chain, behind the last one that comes before it.
    fn chain(&mut self, new: u32, mut entry: Entry) {
        let head = self.head_of(&entry);
        let (mut before, mut next) = (0, *self.heads.get(head));
        while next != 0 && self.entries.get(next as usize).rule < entry.rule {
            (before, next) = (next, self.entries.get(next as usize).next);
        }
        entry.next = next;
        *self.entries.get_mut(new as usize) = entry;
        match before {
            0 => *self.heads.get_mut(head) = new,
            before => self.entries.get_mut(before as usize).next = new,
        }
    }

    /// Doubles the heads, the entries up to `end` in their chains anew.
    fn double(&mut self, end: u32) {
        self.mask = 2 * self.mask + 1;
        self.heads = Grouped::filled(self.mask as usize + 1, &0);
        for at in 1..end {
            let entry = *self.entries.get(at as usize);
            if entry.rule != NONE {
                self.chain(at, entry);
            }
        }
    }
}
