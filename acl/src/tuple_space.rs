//! Tuple-space search (Srinivasan, Suri and Varghese, SIGCOMM 1999).
//!
//! Rules that look at the same bits have the same *shape* and form a tuple: one hash
//! table from the value of these bits to the rules that ask for it. A lookup masks the
//! key with each shape and probes. Tuples are tried in the order of their best rule, and
//! the search ends as soon as no tuple left could do better than the rule in hand.

use std::collections::HashMap;
use std::mem::size_of;

use ahash::RandomState;

use crate::prefix::{Prefix, mask};
use crate::{Address, AddressMap, End, Identity, Key, PortRange, Report, Rule};

/// The tuples of a rule set.
#[derive(Clone, Debug, Default)]
pub(crate) struct TupleSpace {
    /// In the order of their best rule.
    tuples: Vec<Tuple>,
}

/// Rules of one shape.
#[derive(Clone, Debug)]
struct Tuple {
    shape: Shape,
    /// Index of the first rule of this shape.
    best: u32,
    entries: usize,
    buckets: HashMap<Masked, Vec<Entry>, RandomState>,
}

/// Which bits of a key the rules of a tuple look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Shape {
    source: EndShape,
    destination: EndShape,
    protocol: bool,
    source_port: bool,
    destination_port: bool,
}

/// Which bits of one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum EndShape {
    Any,
    Identity,
    V4(u8),
    V6(u8),
}

/// A key as a shape sees it; what the shape does not look at is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Masked {
    source: u128,
    destination: u128,
    protocol: u8,
    source_port: u16,
    destination_port: u16,
}

/// A rule in a bucket, with what the bucket's value leaves open.
#[derive(Clone, Copy, Debug)]
struct Entry {
    rule: u32,
    source_ports: PortRange,
    destination_ports: PortRange,
    tcp_flags: crate::TcpFlags,
}

impl TupleSpace {
    pub(crate) fn build(rules: &[Rule], addresses: &AddressMap) -> Self {
        let sets = identities_of_sets(rules, addresses);
        let mut numbers: HashMap<Shape, usize, RandomState> = HashMap::default();
        let mut tuples: Vec<Tuple> = Vec::new();
        for (index, rule) in rules.iter().enumerate() {
            let sources = values(&rule.source, &sets);
            let destinations = values(&rule.destination, &sets);
            for (source_shape, source) in &sources {
                for (destination_shape, destination) in &destinations {
                    let shape = Shape {
                        source: *source_shape,
                        destination: *destination_shape,
                        protocol: rule.protocol.is_some(),
                        source_port: is_one(rule.source_ports),
                        destination_port: is_one(rule.destination_ports),
                    };
                    let number = *numbers.entry(shape).or_insert_with(|| {
                        tuples.push(Tuple::new(shape, index as u32));
                        tuples.len() - 1
                    });
                    tuples[number].insert(
                        Masked {
                            source: *source,
                            destination: *destination,
                            protocol: rule.protocol.unwrap_or(0),
                            source_port: if shape.source_port {
                                rule.source_ports.first
                            } else {
                                0
                            },
                            destination_port: if shape.destination_port {
                                rule.destination_ports.first
                            } else {
                                0
                            },
                        },
                        Entry {
                            rule: index as u32,
                            source_ports: rule.source_ports,
                            destination_ports: rule.destination_ports,
                            tcp_flags: rule.tcp_flags,
                        },
                    );
                }
            }
        }
        // Rules were taken in order, so tuples stand in the order of their best rule.
        Self { tuples }
    }

    pub(crate) fn lookup(&self, key: &Key) -> Option<usize> {
        let mut found = u32::MAX;
        for tuple in &self.tuples {
            if tuple.best >= found {
                break;
            }
            if let Some(rule) = tuple.lookup(key) {
                found = found.min(rule);
            }
        }
        (found != u32::MAX).then_some(found as usize)
    }

    pub(crate) fn report(&self) -> Report {
        let bytes = |tuple: &Tuple| {
            size_of::<Tuple>()
                + tuple.buckets.capacity() * (size_of::<(Masked, Vec<Entry>)>() + 1)
                + tuple.buckets.values().map(Vec::capacity).sum::<usize>() * size_of::<Entry>()
        };
        Report {
            rules: 0,
            tuples: self.tuples.len(),
            entries: self.tuples.iter().map(|tuple| tuple.entries).sum(),
            largest: self.tuples.iter().map(|tuple| tuple.entries).max().unwrap_or(0),
            bytes: self.tuples.iter().map(bytes).sum(),
        }
    }
}

impl Tuple {
    fn new(shape: Shape, best: u32) -> Self {
        Self { shape, best, entries: 0, buckets: HashMap::default() }
    }

    /// Rules come in order, so the entries of a bucket are sorted.
    fn insert(&mut self, masked: Masked, entry: Entry) {
        self.buckets.entry(masked).or_default().push(entry);
        self.entries += 1;
    }

    #[inline]
    fn lookup(&self, key: &Key) -> Option<u32> {
        let masked = self.shape.of(key)?;
        let bucket = self.buckets.get(&masked)?;
        let matches = |entry: &&Entry| {
            entry.source_ports.contains(key.source_port)
                && entry.destination_ports.contains(key.destination_port)
                && entry.tcp_flags.matches(key.tcp_flags)
        };
        bucket.iter().find(matches).map(|entry| entry.rule)
    }
}

impl Shape {
    /// The key as this shape sees it; `None` if an end is of the wrong family.
    #[inline]
    fn of(self, key: &Key) -> Option<Masked> {
        Some(Masked {
            source: self.source.of(key.source, key.source_identity)?,
            destination: self.destination.of(key.destination, key.destination_identity)?,
            protocol: if self.protocol { key.protocol } else { 0 },
            source_port: if self.source_port { key.source_port } else { 0 },
            destination_port: if self.destination_port { key.destination_port } else { 0 },
        })
    }
}

impl EndShape {
    #[inline]
    fn of(self, address: Address, identity: Identity) -> Option<u128> {
        match self {
            Self::Any => Some(0),
            Self::Identity => Some(u128::from(identity.0)),
            Self::V4(length) => address.is_v4().then(|| address.bits() & mask(length)),
            Self::V6(length) => (!address.is_v4()).then(|| address.bits() & mask(length)),
        }
    }
}

/// The identities in each set that a rule names.
type Sets = HashMap<crate::PeerSetId, Vec<Identity>, RandomState>;

fn identities_of_sets(rules: &[Rule], addresses: &AddressMap) -> Sets {
    let mut sets = Sets::default();
    for end in rules.iter().flat_map(|rule| [rule.source, rule.destination]) {
        if let End::Set(set) = end {
            sets.entry(set).or_default();
        }
    }
    if !sets.is_empty() {
        for identity in addresses.identities() {
            for set in addresses.members(identity) {
                if let Some(identities) = sets.get_mut(set) {
                    identities.push(identity);
                }
            }
        }
    }
    sets
}

/// What one end of a rule asks for: one value for a network, one for each identity of a
/// peer set, none for an empty set.
fn values(end: &End, sets: &Sets) -> Vec<(EndShape, u128)> {
    match end {
        End::Any => vec![(EndShape::Any, 0)],
        End::Net(net) => Prefix::new(net)
            .map(|prefix| {
                let length = prefix.length();
                let shape =
                    if prefix.is_v4() { EndShape::V4(length) } else { EndShape::V6(length) };
                (shape, prefix.first().bits())
            })
            .into_iter()
            .collect(),
        End::Set(set) => sets.get(set).map_or_else(Vec::new, |identities| {
            identities.iter().map(|id| (EndShape::Identity, u128::from(id.0))).collect()
        }),
    }
}

fn is_one(ports: PortRange) -> bool {
    ports.first == ports.last
}
