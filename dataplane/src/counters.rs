//! Counters: one writer each (a worker), any number of readers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::graph::Contradiction;
use crate::node::{NODES, Node};
use crate::port::RingFrames;
use crate::{OUTCOMES, Outcome};

/// A counter with one writer: adding needs no atomic read-modify-write.
#[derive(Debug, Default)]
pub struct Cell(AtomicU64);

impl Cell {
    /// Adds `n`; only the one writer may call it.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Stores a value that the kernel counted; only the one writer may call it.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// The value now.
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counters of one node.
#[derive(Debug, Default)]
pub struct NodeCounters {
    /// Vectors handled.
    pub vectors: Cell,
    /// Packets in them.
    pub packets: Cell,
    /// Processor clocks spent.
    pub clocks: Cell,
}

/// Counters of one port, or of one worker's part of it. In lines of their own, as the parts have a
/// writer each.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct PortCounters {
    /// Frames that came in.
    pub received: Cell,
    /// Their bytes.
    pub received_bytes: Cell,
    /// Frames that left.
    pub sent: Cell,
    /// Their bytes.
    pub sent_bytes: Cell,
    /// Frames that could not leave.
    pub refused: Cell,
    /// Frames that the kernel dropped because the port did not take them in time; as of the last
    /// second.
    pub missed: Cell,
    ring_frames: [Cell; 5],
}

impl PortCounters {
    /// Frames of the port that the kernel has, as of the last second.
    pub fn ring_frames(&self) -> RingFrames {
        let [fill, receive, transmit, completion, kernel] =
            self.ring_frames.each_ref().map(|it| it.value() as u32);
        RingFrames { fill, receive, transmit, completion, kernel }
    }

    /// Stores them; only the one writer may call it.
    pub fn set_ring_frames(&self, frames: RingFrames) {
        for (cell, (_, count)) in self.ring_frames.iter().zip(frames.places()) {
            cell.set(count.into());
        }
    }
}

/// One worker's counters.
#[derive(Debug)]
#[repr(align(128))]
pub struct Counters {
    outcomes: [Cell; OUTCOMES],
    nodes: [NodeCounters; NODES],
    /// Rounds of the worker's loop that found something to do.
    pub busy_rounds: Cell,
    /// Rounds that found nothing.
    pub idle_rounds: Cell,
    /// Times the worker went to sleep.
    pub sleeps: Cell,
    /// Free frames that the worker keeps for itself, as of the last second.
    pub free: Cell,
    /// Decisions that were made again by the definition of the rules.
    pub verified: Cell,
    /// Those of them that came out otherwise.
    pub contradicted: Cell,
    contradiction: Mutex<Option<Contradiction>>,
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            outcomes: std::array::from_fn(|_| Cell::default()),
            nodes: Default::default(),
            busy_rounds: Cell::default(),
            idle_rounds: Cell::default(),
            sleeps: Cell::default(),
            free: Cell::default(),
            verified: Cell::default(),
            contradicted: Cell::default(),
            contradiction: Mutex::default(),
        }
    }
}

impl Counters {
    /// Counts a packet's outcome.
    #[inline]
    pub fn count(&self, outcome: Outcome) {
        self.outcomes[outcome as usize].add(1);
    }

    /// Counts so many packets with this outcome, if there is one.
    #[inline]
    pub(crate) fn count_many(&self, outcome: Option<Outcome>, times: u64) {
        if let Some(outcome) = outcome {
            self.outcomes[outcome as usize].add(times);
        }
    }

    #[inline]
    pub(crate) fn count_node(&self, node: Node, packets: usize, clocks: u64) {
        let counters = &self.nodes[node as usize];
        counters.vectors.add(1);
        counters.packets.add(packets as u64);
        counters.clocks.add(clocks);
    }

    /// The last decision that came out otherwise.
    pub fn contradiction(&self) -> Option<Contradiction> {
        self.contradiction.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_contradiction(&self, last: Contradiction) {
        *self.contradiction.lock().unwrap_or_else(PoisonError::into_inner) = Some(last);
    }

    /// Packets with this outcome.
    pub fn of(&self, outcome: Outcome) -> u64 {
        self.outcomes[outcome as usize].value()
    }

    /// Counters of one node.
    pub fn node(&self, node: Node) -> &NodeCounters {
        &self.nodes[node as usize]
    }
}
