//! Shapes of rules, and the entries that stand for rules of a shape.

use crate::prefix::mask;
use crate::table::rows::NONE;
use crate::{Address, End, Key, PortRange, Rule};

/// Most tuples.
pub(super) const TUPLES: usize = 128;

#[derive(Clone, Copy, Debug)]
pub(super) struct Tuple {
    /// Bits of IPv4 addresses that count, source above destination.
    pub(super) ends_mask: u64,
    /// Bits of [`ports`] that count.
    pub(super) ports_mask: u64,
    /// Its best rule; maybe one that is gone and was better.
    pub(super) best: u32,
    pub(super) entries: u32,
    /// Whether an end is an IPv6 prefix or a peer set.
    pub(super) wide: bool,
    /// Whether entries must check their ends: the hash does not tell all.
    pub(super) checked: bool,
    /// Whether it is checked or looks at peer sets, of which an end may be in many.
    pub(super) special: bool,
    pub(super) shape: Shape,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Shape {
    pub(super) source: EndShape,
    pub(super) destination: EndShape,
    pub(super) source_port: bool,
    pub(super) destination_port: bool,
    /// Which part of the rules of this shape.
    pub(super) part: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum EndShape {
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
pub(super) struct Entry {
    pub(super) ends: u64,
    pub(super) rule: u32,
    /// The next entry of the chain, or 0.
    pub(super) next: u32,
    /// First source and destination port, and how many more there are.
    pub(super) ports_first: [u16; 2],
    pub(super) ports_span: [u16; 2],
    /// What [`exact`] must be.
    exact: u32,
    exact_mask: u32,
}

/// What a rule asks for exactly, or not at all: protocol, flags and, of all, the tuple.
#[inline(always)]
fn exact(protocol: u8, flags: u8, tuple: u8) -> u32 {
    u32::from_le_bytes([protocol, flags, tuple, 0])
}

impl Entry {
    pub(super) const NONE: Self = Self {
        ends: 0,
        rule: NONE,
        next: 0,
        ports_first: [0; 2],
        ports_span: [0; 2],
        // No tuple has this number.
        exact: u32::MAX,
        exact_mask: u32::MAX,
    };

    pub(super) fn new(ends: u64, rule: u32, tuple: u8, of: &Rule) -> Self {
        // A contradictory range matches nothing; such rules are not entered.
        let span = |ports: PortRange| ports.last.wrapping_sub(ports.first);
        Self {
            ends,
            rule,
            next: 0,
            ports_first: [of.source_ports.first, of.destination_ports.first],
            ports_span: [span(of.source_ports), span(of.destination_ports)],
            exact: exact(of.protocol.unwrap_or(0), of.tcp_flags.value, tuple),
            exact_mask: exact(
                if of.protocol.is_some() { 0xff } else { 0 },
                of.tcp_flags.mask,
                0xff,
            ),
        }
    }

    /// Number of the entry's tuple.
    pub(super) fn tuple(&self) -> usize {
        self.exact.to_le_bytes()[2].into()
    }

    /// The protocol, which is the rule's if it asks for one.
    pub(super) fn protocol(&self) -> u8 {
        self.exact.to_le_bytes()[0]
    }

    /// Whether a key with these ends, as this tuple sees them, matches.
    #[inline(always)]
    pub(super) fn matches(&self, key: &Key, tuple: usize, ends: u64) -> bool {
        let exact = exact(key.protocol, key.tcp_flags, tuple as u8);
        let after = |place: usize, port: u16| port.wrapping_sub(self.ports_first[place]);
        (self.ends == ends)
            & ((exact ^ self.exact) & self.exact_mask == 0)
            & (after(0, key.source_port) <= self.ports_span[0])
            & (after(1, key.destination_port) <= self.ports_span[1])
    }
}

impl Tuple {
    pub(super) fn new(shape: Shape, step: u8) -> Self {
        let mask = |end| match end {
            EndShape::V4(mask) => u64::from(mask),
            _ => 0,
        };
        let wide = |end| matches!(end, EndShape::V6(_) | EndShape::Set);
        let hashed = |end| matches!(end, EndShape::V6(_));
        let checked = step > 1 || hashed(shape.source) || hashed(shape.destination);
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
            checked,
            special: checked || shape.has_sets(),
            shape,
        }
    }

    /// The ends of a key as this tuple sees them.
    #[inline]
    pub(super) fn ends(&self, key: &Key) -> u64 {
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
    pub(super) fn of(self, address: Address) -> u64 {
        match self {
            Self::Any | Self::Set => 0,
            Self::V4(mask) => u64::from(address.bits() as u32 & mask),
            Self::V6(length) => {
                let bits = address.bits() & mask(length);
                fold(bits as u64 ^ V6_SALT, (bits >> 64) as u64 ^ V6_SALT.rotate_left(7))
            }
        }
    }

    pub(super) fn of_rule(self, end: &End) -> u64 {
        match end {
            End::Any => 0,
            End::Set(set) => u64::from(set.0),
            End::Net(net) => self.of(Address::from(net.network())),
        }
    }
}

impl Shape {
    pub(super) fn has_sets(self) -> bool {
        self.source == EndShape::Set || self.destination == EndShape::Set
    }

    pub(super) fn ends_of(self, rule: &Rule) -> u64 {
        join(self.source.of_rule(&rule.source), self.destination.of_rule(&rule.destination))
    }
}

/// Both ends in one word: IPv4 addresses and set numbers side by side, hashes mixed.
#[inline]
pub(super) fn join(source: u64, destination: u64) -> u64 {
    source.rotate_left(32) ^ destination
}

/// Protocol and ports in one word.
#[inline]
pub(super) fn ports(key: &Key) -> u64 {
    let ports = u64::from(key.source_port) << 16 | u64::from(key.destination_port);
    u64::from(key.protocol) << 32 | ports
}

const V6_SALT: u64 = 0x9e37_79b9_7f4a_7c15;

/// Both halves of a 128-bit product, so that every bit counts.
#[inline]
pub(super) fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b | 1 << 63);
    product as u64 ^ (product >> 64) as u64
}
