//! Transport classes: protocol, ports and flags of a key in one small number.
//!
//! The rules of a table have few distinct combinations of protocol, port ranges and flags. Keys
//! that match the same ones form an equivalence class. Each axis is cut where a range begins or
//! ends; the classes of the axes are crossed beforehand, so that a key's class is a few loads from
//! small arrays (recursive flow classification: Gupta and McKeown, SIGCOMM 1999).

#![allow(unsafe_code)]

mod axes;
#[cfg(target_arch = "x86_64")]
mod lanes;
mod ports;

use super::bits::ones;
use crate::{Key, PortRange, Rule, TcpFlags};
use ports::Ports;

/// The conditions of a rule on everything but the addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Transport {
    pub(super) protocol: Option<u8>,
    pub(super) source_ports: PortRange,
    pub(super) destination_ports: PortRange,
    pub(super) tcp_flags: TcpFlags,
}

impl Transport {
    pub(super) fn of(rule: &Rule) -> Self {
        Self {
            protocol: rule.protocol,
            source_ports: rule.source_ports,
            destination_ports: rule.destination_ports,
            tcp_flags: rule.tcp_flags,
        }
    }

    /// Whether a key's protocol, ports and flags are such.
    pub(super) fn matches(&self, key: &Key) -> bool {
        self.destination_ports.contains(key.destination_port)
            && self.protocol.is_none_or(|protocol| protocol == key.protocol)
            && self.source_ports.contains(key.source_port)
            && self.tcp_flags.matches(key.tcp_flags)
    }

    /// Number of combinations of protocol and ports that match.
    pub(super) fn extent(&self) -> u64 {
        let ports = |range: PortRange| u64::from(range.last - range.first) + 1;
        let protocols = if self.protocol.is_none() { 256 } else { 1 };
        protocols * ports(self.source_ports) * ports(self.destination_ports)
    }
}

/// Maps a key to its class; class 0 matches no rule.
#[derive(Clone, Debug)]
pub(super) struct TransportClasses {
    /// By protocol: which ports count, times 256.
    groups: [u32; 256],
    /// Protocols whose group is another than 0.
    #[cfg(target_arch = "x86_64")]
    named: Vec<(u8, u32)>,
    destination: Ports,
    source: Option<Ports>,
    flags: Option<Box<[u32; 256]>>,
    /// By classes on the axes, if there is more than the destination's; and one more number.
    cross: Vec<u16>,
    /// Classes of the axes that come after the destination's.
    sources: u32,
    flag_classes: u32,
}

/// More distinct demands, or classes of them, than arrays by class are good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooMany;

/// The classes that match each demand.
#[derive(Debug)]
pub(super) struct Matching {
    pub(super) by_demand: Vec<Vec<u16>>,
    /// The same as bits, so many words for each demand.
    bits: Vec<u64>,
    words: usize,
    /// Classes there are.
    pub(super) classes: usize,
}

impl Matching {
    fn new(by_demand: Vec<Vec<u16>>, classes: usize) -> Self {
        let words = classes.div_ceil(64);
        let mut bits = vec![0; words * by_demand.len()];
        for (bits, classes) in bits.chunks_mut(words).zip(&by_demand) {
            for class in classes {
                bits[usize::from(class / 64)] |= 1 << (class % 64);
            }
        }
        Self { by_demand, bits, words, classes }
    }

    /// Words of a set of classes.
    pub(super) fn words(&self) -> usize {
        self.words
    }

    /// The classes that match a demand.
    pub(super) fn bits(&self, demand: usize) -> &[u64] {
        &self.bits[demand * self.words..][..self.words]
    }

    /// Whether every class matches a demand, but class 0, which matches none.
    pub(super) fn is_all(&self, demand: usize) -> bool {
        self.by_demand[demand].len() + 1 >= self.classes
    }
}

impl TransportClasses {
    /// The classes for these distinct demands.
    pub(super) fn new(demands: &[Transport]) -> Result<(Self, Matching), TooMany> {
        let (classes, matched) = axes::classes(demands)?;
        let mut by_demand = vec![Vec::new(); demands.len()];
        for (class, bits) in matched.iter().enumerate() {
            ones(bits).for_each(|demand| by_demand[demand].push(class as u16));
        }
        Ok((classes, Matching::new(by_demand, matched.len())))
    }

    /// The class of a key.
    #[inline(always)]
    pub(super) fn class(&self, key: &Key) -> u32 {
        match self.source.is_none() && self.flags.is_none() {
            true => self.by_destination(key),
            false => self.by_all(key),
        }
    }

    /// The classes of many keys.
    #[inline(always)]
    pub(super) fn classes(&self, keys: &[Key], classes: &mut [u32]) {
        let pairs = keys.iter().zip(classes);
        match self.source.is_none() && self.flags.is_none() {
            true => pairs.for_each(|(key, class)| *class = self.by_destination(key)),
            false => pairs.for_each(|(key, class)| *class = self.by_all(key)),
        }
    }

    #[inline(always)]
    fn by_destination(&self, key: &Key) -> u32 {
        let group = self.groups[usize::from(key.protocol)];
        self.destination.class(group, key.destination_port)
    }

    #[inline(always)]
    fn by_all(&self, key: &Key) -> u32 {
        let group = self.groups[usize::from(key.protocol)];
        let mut class = self.destination.class(group, key.destination_port);
        if let Some(source) = &self.source {
            class = class * self.sources + source.class(group, key.source_port);
        }
        if let Some(flags) = &self.flags {
            class = class * self.flag_classes + flags[usize::from(key.tcp_flags)];
        }
        debug_assert!((class as usize) < self.cross.len());
        // SAFETY: there is a cell for each combination of classes on the axes.
        unsafe { *self.cross.get_unchecked(class as usize) }.into()
    }

    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>()
            + self.destination.bytes()
            + self.source.as_ref().map_or(0, Ports::bytes)
            + self.flags.as_ref().map_or(0, |flags| size_of_val(&**flags))
            + self.cross.len() * 2
    }
}
