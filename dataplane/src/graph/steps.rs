//! Lists of packets that are queued for nodes, and a node's step over its list.

use super::{Context, NODES, Next, Node};
use crate::counters::Counters;
use crate::packet::{Packet, VECTOR};
use crate::{OUTCOMES, Outcome};

/// Indices of the packets queued for a node.
pub(super) struct List {
    pub(super) length: usize,
    pub(super) items: [u8; VECTOR],
}

impl List {
    pub(super) const EMPTY: Self = Self { length: 0, items: [0; VECTOR] };

    #[inline]
    pub(super) fn push(&mut self, index: u8) {
        debug_assert!(self.length < VECTOR);
        self.items[self.length % VECTOR] = index;
        self.length += 1;
    }

    pub(super) fn ends_with(&self, index: u8) -> bool {
        self.items[..self.length].last() == Some(&index)
    }
}

/// All packets of a vector, in their order.
pub(super) const IN_ORDER: [u8; VECTOR] = {
    let mut items = [0; VECTOR];
    let mut n = 0;
    while n < VECTOR {
        items[n] = n as u8;
        n += 1;
    }
    items
};

/// The part of a node's list to process.
pub(super) struct Work<'a> {
    pub(super) node: Node,
    pub(super) from: usize,
    pub(super) until: usize,
    pub(super) counters: &'a Counters,
}

/// Prefetch distance, in packets. (Frames of a power of two in size share few cache sets, so that a
/// whole vector does not stay in the cache.)
const AHEAD: usize = 6;

/// A node's work on one packet.
pub(super) trait Step {
    /// The node that most packets go to, if they do not end.
    const USUAL: Node;
    /// Whether it reads the packet's bytes.
    const READS_FRAMES: bool = false;

    fn step(context: &mut Context<'_>, packet: &mut Packet) -> Next;
}

impl Work<'_> {
    /// Runs a step for each packet: one loop for each node, with its step in it. Most packets go to
    /// the usual node, or end as the one before did.
    #[inline(never)]
    pub(super) fn each<S: Step>(
        &self,
        lists: &mut [List; NODES],
        packets: &mut [Packet],
        context: &mut Context<'_>,
    ) {
        let items = lists[self.node as usize].items;
        let items = &items[self.from..self.until];
        let mut ends = Ends { counters: self.counters, last: None, times: 0 };
        if items.len() == packets.len() && lists[S::USUAL as usize].length == 0 {
            // The list has every packet: they are handled in their own order. While all of them go to
            // the usual node, so are they there.
            lists[S::USUAL as usize].items = IN_ORDER;
            let mut others = 0;
            for n in 0..packets.len() {
                if S::READS_FRAMES
                    && let Some(ahead) = packets.get(n + AHEAD)
                {
                    context.memory.prefetch(&ahead.frame);
                }
                if !self.handle::<S>(lists, &mut packets[n], context, n as u8, &mut ends) {
                    others += 1;
                } else if others > 0 {
                    lists[S::USUAL as usize].items[n - others] = n as u8;
                }
            }
            lists[S::USUAL as usize].length = packets.len() - others;
        } else {
            for (n, &index) in items.iter().enumerate() {
                if S::READS_FRAMES
                    && let Some(ahead) = items.get(n + AHEAD)
                {
                    context.memory.prefetch(&packets[usize::from(*ahead)].frame);
                }
                let packet = &mut packets[usize::from(index)];
                if self.handle::<S>(lists, packet, context, index, &mut ends) {
                    lists[S::USUAL as usize].push(index);
                }
            }
        }
        self.counters.count_many(ends.last, ends.times);
    }

    /// Runs the step for one packet, and queues it where it goes, but for the usual node; returns
    /// whether it goes there.
    #[inline(always)]
    fn handle<S: Step>(
        &self,
        lists: &mut [List; NODES],
        packet: &mut Packet,
        context: &mut Context<'_>,
        index: u8,
        ends: &mut Ends<'_>,
    ) -> bool {
        match S::step(context, packet) {
            Next::Node(next) if next == S::USUAL => return true,
            Next::Node(next) => {
                debug_assert!(self.node == next || self.node.next().contains(&next));
                lists[next as usize].push(index);
            }
            Next::End(outcome) => {
                packet.outcome = Some(outcome);
                ends.count(outcome);
            }
        }
        false
    }
}

/// Counts outcomes: packets often end as the one before did.
struct Ends<'a> {
    counters: &'a Counters,
    last: Option<Outcome>,
    times: u64,
}

impl Ends<'_> {
    #[inline(always)]
    fn count(&mut self, outcome: Outcome) {
        // By their numbers: options of outcomes are dearer to compare.
        if self.last.map_or(OUTCOMES, |last| last as usize) != outcome as usize {
            self.counters.count_many(self.last, self.times);
            (self.last, self.times) = (Some(outcome), 0);
        }
        self.times += 1;
    }
}
