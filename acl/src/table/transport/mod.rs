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

use std::ops::Range;

use super::bits::ones;
use super::index::Index;
use crate::{Key, PortRange, Rule, TcpFlags};
use ports::Ports;

/// The conditions of a rule on everything but the addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

    /// All of it in numbers.
    fn words(&self) -> [u64; 2] {
        let Self { protocol, source_ports, destination_ports, tcp_flags } = self;
        let ports = [source_ports, destination_ports].into_iter();
        let ports = ports.flat_map(|range| [range.first, range.last]);
        let flags = u64::from(tcp_flags.value) << 8 | u64::from(tcp_flags.mask);
        let protocol = protocol.map_or(0x100, u64::from);
        [ports.fold(0, |word, port| word << 16 | u64::from(port)), protocol << 16 | flags]
    }

    /// Number of combinations of protocol and ports that match.
    pub(super) fn extent(&self) -> u64 {
        let ports = |range: PortRange| u64::from(range.last - range.first) + 1;
        let protocols = if self.protocol.is_none() { 256 } else { 1 };
        protocols * ports(self.source_ports) * ports(self.destination_ports)
    }
}

/// Numbers distinct demands.
#[derive(Debug, Default)]
pub(super) struct Demands {
    pub(super) all: Vec<Transport>,
    known: Index,
}

impl Demands {
    /// The number of a demand, the next one if it is new.
    pub(super) fn number(&mut self, demand: Transport) -> u32 {
        let Self { all, known } = self;
        let hash = known.hash(demand.words().into_iter());
        let fresh = all.len() as u32;
        let number = known.number(hash, fresh, |number| all[number as usize] == demand);
        if number == fresh {
            all.push(demand);
        }
        number
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
    by_demand: Vec<Vec<u16>>,
    /// The same as bits, so many words for each demand.
    bits: Vec<u64>,
    /// By demand: the words that are not zero lie between these.
    spans: Vec<(u32, u32)>,
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
        let span = |classes: &Vec<u16>| {
            let word = |class: &u16| u32::from(class / 64);
            (classes.first().map_or(0, word), classes.last().map_or(0, |last| word(last) + 1))
        };
        let spans = by_demand.iter().map(span).collect();
        Self { by_demand, bits, spans, words, classes }
    }

    /// Demands there are.
    pub(super) fn demands(&self) -> usize {
        self.by_demand.len()
    }

    /// Words of a set of classes.
    pub(super) fn words(&self) -> usize {
        self.words
    }

    /// The classes that match a demand, between two words of bits.
    fn bits(&self, demand: u32) -> (Range<usize>, &[u64]) {
        let (first, end) = self.spans[demand as usize];
        let span = first as usize..end as usize;
        (span.clone(), &self.bits[demand as usize * self.words..][span])
    }

    /// Adds the classes that match a demand; whether there are any others than those seen.
    #[inline]
    pub(super) fn add(&self, seen: &mut [u64], demand: u32) -> bool {
        let (span, bits) = self.bits(demand);
        let mut fresh = 0;
        for (seen, bits) in seen[span].iter_mut().zip(bits) {
            fresh |= bits & !*seen;
            *seen |= bits;
        }
        fresh != 0
    }

    /// Writes a number to the cells of the classes that match a demand.
    pub(super) fn write(&self, demand: u32, number: u16, row: &mut [u16]) {
        if self.is_all(demand) {
            row[1..].fill(number);
        } else {
            let classes = &self.by_demand[demand as usize];
            classes.iter().for_each(|class| row[usize::from(*class)] = number);
        }
    }

    /// Whether every class matches a demand, but class 0, which matches none.
    pub(super) fn is_all(&self, demand: u32) -> bool {
        self.by_demand[demand as usize].len() + 1 >= self.classes
    }
}

impl TransportClasses {
    /// The classes for these distinct demands, so many at most.
    pub(super) fn new(demands: &[Transport], most: usize) -> Result<(Self, Matching), TooMany> {
        let (classes, matched) = axes::classes(demands, most)?;
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
