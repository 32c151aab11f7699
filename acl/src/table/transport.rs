//! Transport classes: protocol, ports and flags of a key in one small number.
//!
//! The rules of a table have few distinct combinations of protocol, port ranges and flags. Keys
//! that match the same ones form an equivalence class. Each axis is cut where a range begins or
//! ends; the classes of the axes are crossed beforehand, so that a key's class is a few loads from
//! small arrays (recursive flow classification: Gupta and McKeown, SIGCOMM 1999).

#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    _mm512_and_si512, _mm512_cmpeq_epi32_mask, _mm512_mask_mov_epi32, _mm512_mullo_epi32,
    _mm512_slli_epi32, _mm512_srli_epi32,
};
use std::collections::HashMap;
#[cfg(target_arch = "x86_64")]
use std::mem::offset_of;

use ahash::RandomState;

use super::bits::ones;
#[cfg(target_arch = "x86_64")]
use crate::simd::lanes::{Lanes, halves, of_keys, plus, splat, words};
use crate::{Key, PortRange, Rule, TcpFlags};

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

/// Classes of ports, by protocol group.
#[derive(Clone, Debug, Default)]
struct Ports {
    /// By group and upper half of the port: a page. And one more number.
    pages_of: Vec<u16>,
    /// By page and lower half: a class. And one more number.
    classes: Vec<u16>,
}

/// More distinct demands, or classes of them, than arrays by class are good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooMany;

/// Most distinct demands.
const MOST: usize = 1024;
/// Most cells in the cross product of the axes, and most classes.
const CELLS: usize = 1 << 16;
/// Most cuts on one axis over all protocols, each of which may need a page.
const CUTS: usize = 4096;

/// Protocols so few are compared with, rather than looked up.
#[cfg(target_arch = "x86_64")]
const FEW: usize = 4;

/// The demands that a class of keys matches.
type Bits = [u64; MOST / 64];

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
        if demands.len() > MOST {
            return Err(TooMany);
        }
        let none = Bits::default();
        let index = Index { demands };
        let mut interner = Interner { known: HashMap::from_iter([(none, 0)]), bits: vec![none] };
        let classes = index.classes(&mut interner)?;
        let mut by_demand = vec![Vec::new(); demands.len()];
        for (class, bits) in interner.bits.iter().enumerate() {
            ones(bits).for_each(|demand| by_demand[demand].push(class as u16));
        }
        Ok((classes, Matching::new(by_demand, interner.bits.len())))
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

    /// The classes of the first keys.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn classes_lanes<const N: usize>(&self, keys: &[Key]) -> [Lanes; N] {
        // Destination port, protocol and flags.
        let some: [Lanes; N] = of_keys::<{ offset_of!(Key, destination_port) }, N>(keys);
        let groups = self.groups_lanes(&some);
        // SAFETY: of each array there is a number for all that may come up, and one more.
        unsafe {
            let mut classes = self.destination.class_lanes(&groups, &some);
            if let Some(source) = &self.source {
                let ports = of_keys::<{ offset_of!(Key, source_port) }, N>(keys);
                let of_sources = source.class_lanes(&groups, &ports);
                for (class, of_source) in classes.iter_mut().zip(of_sources) {
                    *class = plus(_mm512_mullo_epi32(*class, splat(self.sources)), of_source);
                }
            }
            if let Some(flags) = &self.flags {
                for (class, some) in classes.iter_mut().zip(some) {
                    let flags = words(flags.as_slice(), _mm512_srli_epi32::<24>(some));
                    *class = plus(_mm512_mullo_epi32(*class, splat(self.flag_classes)), flags);
                }
            }
            if !self.cross.is_empty() {
                for class in &mut classes {
                    *class = halves(&self.cross, *class);
                }
            }
            classes
        }
    }

    /// The groups, times 256, of the protocols at byte 2 of keys' words.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn groups_lanes<const N: usize>(&self, some: &[Lanes; N]) -> [Lanes; N] {
        let protocols = some.map(|some| _mm512_and_si512(some, splat(0xff << 16)));
        let mut groups = [splat(0); N];
        if self.named.len() > FEW {
            for (group, protocol) in groups.iter_mut().zip(protocols) {
                // SAFETY: there is a group for each number of eight bits.
                *group = unsafe { words(&self.groups, _mm512_srli_epi32::<16>(protocol)) };
            }
            return groups;
        }
        for (named, of_named) in &self.named {
            let named = splat(u32::from(*named) << 16);
            for (group, protocol) in groups.iter_mut().zip(protocols) {
                let same = _mm512_cmpeq_epi32_mask(protocol, named);
                *group = _mm512_mask_mov_epi32(*group, same, splat(*of_named));
            }
        }
        groups
    }

    pub(super) fn bytes(&self) -> usize {
        let ports = |ports: &Ports| (ports.pages_of.len() + ports.classes.len()) * 2;
        size_of::<Self>()
            + ports(&self.destination)
            + self.source.as_ref().map_or(0, ports)
            + self.flags.as_ref().map_or(0, |flags| size_of_val(&**flags))
            + self.cross.len() * 2
    }
}

#[cfg(target_arch = "x86_64")]
const _: () = {
    // Loaded with the destination port.
    assert!(offset_of!(Key, protocol) == offset_of!(Key, destination_port) + 2);
    assert!(offset_of!(Key, tcp_flags) == offset_of!(Key, destination_port) + 3);
};

impl Ports {
    /// The class of a port; `group` is times 256.
    #[inline(always)]
    fn class(&self, group: u32, port: u16) -> u32 {
        let at = (group | u32::from(port >> 8)) as usize;
        debug_assert!(at < self.pages_of.len());
        // SAFETY: each group has a number for each of 256 upper halves, each of which is a page's.
        unsafe {
            let page = usize::from(*self.pages_of.get_unchecked(at));
            let class = page << 8 | usize::from(port & 255);
            debug_assert!(class < self.classes.len());
            u32::from(*self.classes.get_unchecked(class))
        }
    }

    /// The classes of ports in the lower halves of words.
    ///
    /// # Safety
    /// Each lane of `groups` is a group of this structure, times 256: the gather does not check bounds.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn class_lanes<const N: usize>(
        &self,
        groups: &[Lanes; N],
        some: &[Lanes; N],
    ) -> [Lanes; N] {
        let byte = splat(0xff);
        let mut found = [byte; N];
        // SAFETY: as above, and there is one number more of each.
        unsafe {
            for at in 0..N {
                let upper = _mm512_and_si512(_mm512_srli_epi32::<8>(some[at]), byte);
                let page = halves(&self.pages_of, plus(groups[at], upper));
                let lower = _mm512_and_si512(some[at], byte);
                found[at] = plus(_mm512_slli_epi32::<8>(page), lower);
            }
            for found in &mut found {
                *found = halves(&self.classes, *found);
            }
        }
        found
    }

    /// From the classes of each group: first port and class, ascending from port 0.
    fn new(groups: &[Vec<(u16, u16)>]) -> Self {
        let mut ports = Self::default();
        let mut known: HashMap<[u16; 256], u16, RandomState> = HashMap::default();
        let mut pages = 0;
        // Class and number of the last page that is of one class throughout, as most are.
        let mut plain = None;
        for ranges in groups {
            let mut ranges = ranges.iter().peekable();
            let mut class = 0;
            for upper in 0..=255_u16 {
                let is_plain = ranges.peek().is_none_or(|(first, _)| first >> 8 > upper);
                if let (true, Some((of, number))) = (is_plain, plain)
                    && of == class
                {
                    ports.pages_of.push(number);
                    continue;
                }
                let page: [u16; 256] = std::array::from_fn(|lower| {
                    while let Some((_, next)) =
                        ranges.next_if(|(first, _)| *first <= upper << 8 | lower as u16)
                    {
                        class = *next;
                    }
                    class
                });
                let number = *known.entry(page).or_insert_with(|| {
                    ports.classes.extend(page);
                    pages += 1;
                    pages - 1
                });
                ports.pages_of.push(number);
                if is_plain {
                    plain = Some((class, number));
                }
            }
        }
        ports.pages_of.push(0);
        ports.classes.push(0);
        ports
    }
}

/// One axis: for each protocol group its ranges, and for each class what it matches.
struct Axis {
    groups: Vec<Vec<(u16, u16)>>,
    classes: Vec<Bits>,
}

/// Numbers classes by what they match.
struct Interner {
    known: HashMap<Bits, u16, RandomState>,
    bits: Vec<Bits>,
}

impl Interner {
    fn class(&mut self, bits: Bits) -> Result<u16, TooMany> {
        if let Some(class) = self.known.get(&bits) {
            return Ok(*class);
        }
        let class = u16::try_from(self.bits.len()).map_err(|_| TooMany)?;
        self.known.insert(bits, class);
        self.bits.push(bits);
        Ok(class)
    }
}

struct Index<'a> {
    demands: &'a [Transport],
}

impl Index<'_> {
    fn classes(&self, interner: &mut Interner) -> Result<TransportClasses, TooMany> {
        let mut protocols: Vec<Option<u8>> = vec![None];
        let mut groups = [0; 256];
        for protocol in self.demands.iter().filter_map(|demand| demand.protocol) {
            if groups[usize::from(protocol)] != 0 {
                continue;
            }
            if protocols.len() == 256 {
                // The last of all protocols: none is left for the group of those not named.
                protocols[0] = Some(protocol);
            } else {
                groups[usize::from(protocol)] = (protocols.len() as u32) << 8;
                protocols.push(Some(protocol));
            }
        }
        let mut destination = self.axis(&protocols, |demand| demand.destination_ports)?;
        let mut source = self.axis(&protocols, |demand| demand.source_ports)?;
        let any_source = self.demands.iter().all(|demand| demand.source_ports == PortRange::ANY);
        if any_source {
            // The destination's classes distinguish the protocols.
            source.classes = vec![[u64::MAX; MOST / 64]];
        }
        let (flags, flag_classes) = self.flags();
        let cells = destination.classes.len() * source.classes.len() * flag_classes.len();
        if cells > CELLS {
            return Err(TooMany);
        }
        let mut cross = Vec::with_capacity(cells);
        for destination in &destination.classes {
            for source in &source.classes {
                for flags in &flag_classes {
                    let bits = std::array::from_fn(|at| destination[at] & source[at] & flags[at]);
                    cross.push(interner.class(bits)?);
                }
            }
        }
        cross.push(0);
        let alone = any_source && flags.is_none();
        if alone {
            for (_, class) in destination.groups.iter_mut().flatten() {
                *class = cross[usize::from(*class)];
            }
        }
        Ok(TransportClasses {
            #[cfg(target_arch = "x86_64")]
            named: (0..=u8::MAX).zip(groups).filter(|(_, group)| *group > 0).collect(),
            groups,
            destination: Ports::new(&destination.groups),
            source: (!any_source).then(|| Ports::new(&source.groups)),
            flags,
            cross: if alone { Vec::new() } else { cross },
            sources: source.classes.len() as u32,
            flag_classes: flag_classes.len() as u32,
        })
    }

    fn axis(
        &self,
        protocols: &[Option<u8>],
        ports: impl Fn(&Transport) -> PortRange,
    ) -> Result<Axis, TooMany> {
        let mut axis = Axis { groups: Vec::new(), classes: Vec::new() };
        let mut known: HashMap<Bits, u16, RandomState> = HashMap::default();
        let mut cuts = 0;
        for protocol in protocols {
            // Where demands begin and end to match.
            let mut turns: Vec<(u32, usize)> = Vec::new();
            for (number, demand) in self.demands.iter().enumerate() {
                if demand.protocol.is_none() || demand.protocol == *protocol {
                    let range = ports(demand);
                    turns.push((range.first.into(), number));
                    turns.push((u32::from(range.last) + 1, number));
                }
            }
            turns.push((0, MOST));
            turns.sort_unstable();
            let mut bits = Bits::default();
            let mut ranges = Vec::new();
            for same in turns.chunk_by(|a, b| a.0 == b.0) {
                for (_, number) in same.iter().filter(|(_, number)| *number < MOST) {
                    bits[number / 64] ^= 1 << (number % 64);
                }
                let Ok(first) = u16::try_from(same[0].0) else { break };
                let class = *known.entry(bits).or_insert_with(|| {
                    axis.classes.push(bits);
                    (axis.classes.len() - 1) as u16
                });
                ranges.push((first, class));
            }
            cuts += ranges.len();
            axis.groups.push(ranges);
        }
        if cuts > CUTS { Err(TooMany) } else { Ok(axis) }
    }

    fn flags(&self) -> (Option<Box<[u32; 256]>>, Vec<Bits>) {
        if self.demands.iter().all(|demand| demand.tcp_flags == TcpFlags::ANY) {
            return (None, vec![[u64::MAX; MOST / 64]]);
        }
        let mut classes: Vec<Bits> = Vec::new();
        let mut by_flags = Box::new([0; 256]);
        for (flags, class) in by_flags.iter_mut().enumerate() {
            let mut bits = Bits::default();
            for (number, demand) in self.demands.iter().enumerate() {
                if demand.tcp_flags.matches(flags as u8) {
                    bits[number / 64] |= 1 << (number % 64);
                }
            }
            let known = classes.iter().position(|known| *known == bits);
            *class = known.unwrap_or_else(|| {
                classes.push(bits);
                classes.len() - 1
            }) as u32;
        }
        (Some(by_flags), classes)
    }
}
