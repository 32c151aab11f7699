//! Following packets: what each node decided about each of them.
//!
//! ```text
//! Tracing (filter, how many) ─▶ each worker's Tracer ─▶ traces that are done ─▶ whoever asked
//! ```
//!
//! Nodes know nothing of it. While a trace is wanted, the graph hands its nodes one packet at a
//! time and lets the [`Tracer`] look at the packet before and after; otherwise it asks once a
//! node and vector whether there is one. A trace holds so many traces at most, and ends by itself.

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

/// One trace, shared by the workers that fill it and whoever asked for it.
#[derive(Debug)]
pub struct Tracing {
    filter: Filter,
    most: u64,
    taken: AtomicU64,
    done: ArrayQueue<PacketTrace>,
}

impl Tracing {
    /// Follows the next `most` packets that match, over all workers.
    pub fn new(filter: Filter, most: u32) -> Self {
        let room = (most as usize).max(1);
        Self { filter, most: most.into(), taken: AtomicU64::new(0), done: ArrayQueue::new(room) }
    }

    /// Follows every packet that matches. Whoever asked takes the traces before there are more
    /// than `room`; those beyond are lost.
    pub fn endless(filter: Filter, room: usize) -> Self {
        Self { most: u64::MAX, done: ArrayQueue::new(room.max(1)), ..Self::new(filter, 0) }
    }

    /// Packets followed so far.
    pub fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed).min(self.most)
    }

    /// Whether no more packets are followed.
    pub fn is_over(&self) -> bool {
        self.taken.load(Ordering::Relaxed) >= self.most
    }

    /// The next trace that is done; each is given once.
    pub fn take(&self) -> Option<PacketTrace> {
        self.done.pop()
    }

    fn keep(&self, trace: PacketTrace) {
        if self.taken.fetch_add(1, Ordering::Relaxed) < self.most {
            // What does not fit is lost, as `endless` says.
            let _ = self.done.push(trace);
        }
    }
}
