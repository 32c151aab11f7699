//! Packet tracing: what each node decided about each packet.
//!
//! ```text
//! Tracing (filter, how many) ─▶ each worker's Tracer ─▶ finished traces ─▶ the reader
//! ```
//!
//! Nodes are not involved. While tracing is on, the graph runs its nodes one packet at a time, and
//! the [`Tracer`] compares the packet before and after; otherwise it costs one test a node and
//! vector. Tracing is bounded, and ends by itself.

mod filter;
mod observe;
mod record;
mod tracer;

use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_queue::ArrayQueue;

pub use filter::Filter;
pub use record::{
    AclResult, BindingKind, End, Evaluation, Exit, Finding, PacketTrace, SessionInfo, Step,
};
pub(super) use tracer::Tracer;

/// One tracing request, shared by the workers that fill it and its reader.
#[derive(Debug)]
pub struct Tracing {
    filter: Filter,
    most: u64,
    taken: AtomicU64,
    done: ArrayQueue<PacketTrace>,
}

impl Tracing {
    /// Traces the next `most` packets that match, over all workers.
    pub fn new(filter: Filter, most: u32) -> Self {
        let room = (most as usize).max(1);
        Self { filter, most: most.into(), taken: AtomicU64::new(0), done: ArrayQueue::new(room) }
    }

    /// Traces every packet that matches. Traces beyond `room` that the reader has not taken are
    /// dropped.
    pub fn endless(filter: Filter, room: usize) -> Self {
        Self { most: u64::MAX, done: ArrayQueue::new(room.max(1)), ..Self::new(filter, 0) }
    }

    /// Packets traced so far.
    pub fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed).min(self.most)
    }

    /// Whether tracing has ended.
    pub fn is_over(&self) -> bool {
        self.taken.load(Ordering::Relaxed) >= self.most
    }

    /// Takes the next finished trace.
    pub fn take(&self) -> Option<PacketTrace> {
        self.done.pop()
    }

    fn keep(&self, trace: PacketTrace) {
        if self.taken.fetch_add(1, Ordering::Relaxed) < self.most {
            // What does not fit is dropped, as `endless` says.
            let _ = self.done.push(trace);
        }
    }
}
