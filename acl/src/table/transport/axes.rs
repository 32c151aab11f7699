//! Makes transport classes: each axis is cut where a range begins or ends, and the classes of the axes
//! are crossed.

use super::ports::Ports;
use super::{TooMany, Transport, TransportClasses};
use crate::table::index::Index;
use crate::{PortRange, TcpFlags};

/// Most distinct demands.
const MOST: usize = 1024;
/// Most cells in the cross product of the axes.
const CELLS: usize = 1 << 16;
/// Most cuts on one axis over all protocols, each of which may need a page.
const CUTS: usize = 4096;

/// The demands that a class of keys matches.
pub(super) type Bits = [u64; MOST / 64];

/// The classes for these distinct demands, so many at most, with the demands that each class matches.
pub(super) fn classes(
    demands: &[Transport],
    most: usize,
) -> Result<(TransportClasses, Vec<Bits>), TooMany> {
    if demands.len() > MOST {
        return Err(TooMany);
    }
    let mut sets = Sets::new(demands, most);
    sets.number(Bits::default())?;
    let classes = Axes { demands }.classes(&mut sets)?;
    Ok((classes, sets.sets))
}

/// One axis: for each protocol group its ranges, and for each class what it matches.
struct Axis {
    groups: Vec<Vec<(u16, u16)>>,
    classes: Vec<Bits>,
}

/// Numbers sets of demands.
struct Sets {
    known: Index,
    sets: Vec<Bits>,
    /// Words that differ.
    words: usize,
    most: usize,
}

impl Sets {
    /// So many at most.
    fn new(demands: &[Transport], most: usize) -> Self {
        let words = demands.len().div_ceil(64);
        let most = most.min(1 << u16::BITS);
        Self { known: Index::default(), sets: Vec::new(), words, most }
    }

    fn number(&mut self, set: Bits) -> Result<u16, TooMany> {
        let Self { known, sets, words, most } = self;
        let fresh = sets.len();
        let hash = known.hash(set[..*words].iter().copied());
        let number = known.number(hash, fresh as u32, |number| sets[number as usize] == set);
        if number as usize == fresh {
            if fresh == *most {
                return Err(TooMany);
            }
            sets.push(set);
        }
        Ok(number as u16)
    }
}

struct Axes<'a> {
    demands: &'a [Transport],
}

impl Axes<'_> {
    fn classes(&self, sets: &mut Sets) -> Result<TransportClasses, TooMany> {
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
        let any_source = self.demands.iter().all(|demand| demand.source_ports == PortRange::ANY);
        let (flags, flag_classes) = self.flags();
        let alone = any_source && flags.is_none();
        let most = if alone { sets.most } else { usize::MAX };
        let mut destination = self.axis(&protocols, most, |demand| demand.destination_ports)?;
        let source = match any_source {
            // The destination's classes distinguish the protocols.
            true => Axis { groups: Vec::new(), classes: vec![[u64::MAX; MOST / 64]] },
            false => self.axis(&protocols, usize::MAX, |demand| demand.source_ports)?,
        };
        let cells = destination.classes.len() * source.classes.len() * flag_classes.len();
        if cells > CELLS {
            return Err(TooMany);
        }
        let mut cross = Vec::with_capacity(cells);
        for destination in &destination.classes {
            for source in &source.classes {
                for flags in &flag_classes {
                    let bits = std::array::from_fn(|at| destination[at] & source[at] & flags[at]);
                    cross.push(sets.number(bits)?);
                }
            }
        }
        cross.push(0);
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

    /// Makes an axis of so many classes at most.
    fn axis(
        &self,
        protocols: &[Option<u8>],
        most: usize,
        ports: impl Fn(&Transport) -> PortRange,
    ) -> Result<Axis, TooMany> {
        let mut groups = Vec::new();
        let mut sets = Sets::new(self.demands, most);
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
                ranges.push((first, sets.number(bits)?));
            }
            cuts += ranges.len();
            if cuts > CUTS {
                return Err(TooMany);
            }
            groups.push(ranges);
        }
        Ok(Axis { groups, classes: sets.sets })
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
