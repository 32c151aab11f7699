//! Rules over networks that no tuple takes, tried network by network.
//!
//! Such a rule stays with its source. A lookup goes through the networks around a key's source, from the inside out:
//! in each, its rules' destinations are searched for the innermost one around the key's, and followed from there to
//! those around. Both ends where no rule comes before the one that is found already. Nothing is copied.
//!
//! ```text
//! source -> network -> its destinations: first rule, list
//!           around     around
//! ```

use super::Numbered;
use crate::prefix::Prefix;
use crate::table::ends::{EndId, Ends, Kind};
use crate::table::lists::{Effective, ListId, Lists, MakeLists, NONE};
use crate::table::ranges::Ranges;
use crate::table::transport::TooMany;
use crate::{Address, Key};

/// Rules tried network by network.
#[derive(Debug, Default)]
pub(in crate::table) struct ByNet {
    fields: [Nets; 2],
    /// By source. And one more without a destination.
    sources: Vec<OfSource>,
    /// Those of one source follow each other, in order.
    destinations: Vec<OfDestination>,
    /// Rules there are.
    pub(in crate::table) rules: usize,
}

/// The networks of one field that these rules name, numbered from 1, each before those inside it; 0 stands for all
/// addresses.
#[derive(Debug, Default)]
struct Nets {
    /// `None` if there is none.
    ranges: Option<Ranges>,
    /// By range of addresses: the innermost network around.
    innermost: Vec<u32>,
}

/// How these networks lie in each other.
struct Nesting {
    /// By end's number: its network's, or that of the next one around which is named; 0 for any end.
    numbers: Vec<u32>,
    /// By network: the one next around; that of 0 is itself.
    around: Vec<u32>,
    /// By network: the last one inside it, which may be itself.
    last: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
struct OfSource {
    /// The first rule of this network and those around.
    first: u32,
    /// The network next around; that of 0 is itself.
    around: u32,
    /// Where its destinations begin.
    destinations: u32,
}

#[derive(Clone, Copy, Debug)]
struct OfDestination {
    net: u32,
    /// The last network inside it.
    last: u32,
    /// The first rule of this one and those around, of the same source.
    first: u32,
    /// Where the next one around is, of the same source, or [`NONE`].
    around: u32,
    list: ListId,
}

impl Nets {
    /// Those that rules name.
    fn new(rules: &[Numbered], at: usize, ends: &Ends) -> (Self, Nesting) {
        let mut is_named = vec![false; ends.numbers(Kind::Net)];
        rules.iter().for_each(|rule| is_named[number(rule.ends[at])] = true);
        let (numbers, around) = ends.only(&is_named);
        let nets = ends.nets.iter().zip(&is_named[1..]).filter(|(_, is_named)| **is_named);
        let nets: Vec<Prefix> = nets.map(|(net, _)| *net).collect();
        let mut last: Vec<u32> = (0..).take(around.len()).collect();
        for net in (1..last.len()).rev() {
            let outer = around[net] as usize;
            last[outer] = last[outer].max(last[net]);
        }
        let mut this = Self::default();
        if !nets.is_empty() {
            let (ranges, innermost) = Ranges::new(nets.into_iter().zip(1..), 0, 1);
            (this.ranges, this.innermost) = (Some(ranges), innermost);
        }
        (this, Nesting { numbers, around, last })
    }

    /// The innermost network around an address.
    fn find(&self, address: Address) -> u32 {
        self.ranges.as_ref().map_or(0, |ranges| self.innermost[ranges.find(address) as usize])
    }

    fn bytes(&self) -> usize {
        self.ranges.as_ref().map_or(0, Ranges::bytes) + size_of_val(&*self.innermost)
    }
}

/// A network's number, or 0 for any end.
fn number(end: EndId) -> usize {
    if end.kind == Kind::Net { end.number as usize } else { 0 }
}

impl ByNet {
    /// Of rules that ascend and name no peer set.
    pub(super) fn new(
        rules: &[Numbered],
        ends: &[Ends; 2],
        lists: &mut impl MakeLists,
        effective: &mut Effective<'_>,
    ) -> Result<Self, TooMany> {
        if rules.is_empty() {
            return Ok(Self::default());
        }
        let [(source_nets, sources), (destination_nets, destinations)] =
            [0, 1].map(|at: usize| Nets::new(rules, at, &ends[at]));
        let pair = |rule: &Numbered| {
            (sources.numbers[number(rule.ends[0])], destinations.numbers[number(rule.ends[1])])
        };
        let mut sorted: Vec<((u32, u32), u32, u32)> =
            rules.iter().map(|rule| (pair(rule), rule.rule, rule.demand)).collect();
        sorted.sort_unstable();
        let mut by_net = Self { rules: rules.len(), ..Self::default() };
        let mut pairs = sorted.chunk_by(|a, b| a.0 == b.0).peekable();
        for (source, around) in (0..).zip(sources.around) {
            let from = by_net.destinations.len();
            let outer = by_net.sources.get(around as usize).map_or(NONE, |outer| outer.first);
            let mut of = OfSource { first: outer, around, destinations: from as u32 };
            while let Some(same) = pairs.next_if(|same| same[0].0.0 == source) {
                let net = same[0].0.1;
                let places = from as u32..by_net.destinations.len() as u32;
                let covers = |at: &u32| by_net.destinations[*at as usize].last >= net;
                // The one before is around, or is inside what is.
                let mut around = places.last().unwrap_or(NONE);
                while around != NONE && !covers(&around) {
                    around = by_net.destinations[around as usize].around;
                }
                let outer =
                    by_net.destinations.get(around as usize).map_or(NONE, |outer| outer.first);
                of.first = of.first.min(same[0].1);
                let list = effective.of(same.iter().map(|(_, rule, demand)| (*rule, *demand)));
                by_net.destinations.push(OfDestination {
                    net,
                    last: destinations.last[net as usize],
                    first: outer.min(same[0].1),
                    around,
                    list: lists.list(list)?,
                });
            }
            by_net.sources.push(of);
        }
        let behind = by_net.destinations.len() as u32;
        by_net.sources.push(OfSource { first: NONE, around: 0, destinations: behind });
        by_net.fields = [source_nets, destination_nets];
        Ok(by_net)
    }

    /// The destinations of a source.
    fn of(&self, source: u32) -> &[OfDestination] {
        let [from, to] = [source, source + 1].map(|at| self.sources[at as usize].destinations);
        &self.destinations[from as usize..to as usize]
    }

    /// The first rule that a key of a transport class matches if it is before `best`, else that.
    pub(in crate::table) fn first(
        &self,
        key: &Key,
        class: u32,
        lists: impl Lists,
        mut best: u32,
    ) -> u32 {
        let mut source = self.fields[0].find(key.source);
        let destination = self.fields[1].find(key.destination);
        loop {
            let OfSource { first, around, destinations } = self.sources[source as usize];
            if first >= best {
                return best;
            }
            let before = self.of(source).partition_point(|of| of.net <= destination);
            let mut at = if before == 0 { NONE } else { destinations + before as u32 - 1 };
            while let Some(of) = self.destinations.get(at as usize).filter(|of| of.first < best) {
                if of.last >= destination {
                    best = best.min(lists.first(of.list, class, key, best));
                }
                at = of.around;
            }
            if source == 0 {
                return best;
            }
            source = around;
        }
    }

    /// Memory accesses of a lookup at most, if a list takes so many.
    pub(in crate::table) fn loads(&self, list: usize) -> usize {
        let mut most: Vec<usize> = Vec::with_capacity(self.sources.len());
        for (source, of) in (0..).zip(&self.sources).take(self.sources.len().saturating_sub(1)) {
            let mut depths: Vec<usize> = Vec::new();
            for destination in self.of(source) {
                let outer = destination.around.checked_sub(of.destinations);
                depths.push(1 + outer.and_then(|at| depths.get(at as usize)).unwrap_or(&0));
            }
            let search =
                1 + self.of(source).len().checked_ilog2().map_or(0, |steps| steps as usize);
            let deepest = depths.iter().max().unwrap_or(&0);
            let around = most.get(of.around as usize).unwrap_or(&0);
            most.push(around + search + deepest * (1 + list));
        }
        let ranges = self.fields.iter().filter_map(|nets| nets.ranges.as_ref());
        ranges.map(|ranges| 1 + ranges.loads()).sum::<usize>() + most.iter().max().unwrap_or(&0)
    }

    /// Visits all lists.
    pub(super) fn each_list(&mut self, visit: impl FnMut(&mut ListId)) {
        self.destinations.iter_mut().map(|of| &mut of.list).for_each(visit);
    }

    pub(super) fn bytes(&self) -> usize {
        self.fields.iter().map(Nets::bytes).sum::<usize>()
            + size_of_val(&*self.sources)
            + size_of_val(&*self.destinations)
    }
}
