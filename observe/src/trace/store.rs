//! The trace of the running switch: one at a time, kept until the next one or until it is cleared.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use dataplane::Switch;
use dataplane::graph::trace::{PacketTrace, Tracing};
use parking_lot::Mutex;

use super::Line;
use crate::time::utc;

/// Keeps traces once workers are done with them.
#[derive(Debug, Default)]
pub struct Store {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    tracing: Option<Arc<Tracing>>,
    wanted: u32,
    traces: Vec<PacketTrace>,
}

impl Store {
    /// Begins a trace of the next `count` packets, which `tracing` has room for; the one before is
    /// forgotten.
    pub fn begin(&self, switch: &Switch, tracing: Arc<Tracing>, count: u32) {
        let mut inner = self.inner.lock();
        let old = std::mem::replace(
            &mut *inner,
            Inner { tracing: Some(Arc::clone(&tracing)), wanted: count, traces: Vec::new() },
        );
        switch.follow(Some(&tracing));
        drop(inner);
        drop(old);
    }

    /// Ends the trace and forgets it.
    pub fn clear(&self, switch: &Switch) {
        let mut inner = self.inner.lock();
        let old = std::mem::take(&mut *inner);
        switch.follow(None);
        drop(inner);
        drop(old);
    }

    /// Packets recorded so far, in order of time, and how many are wanted.
    pub fn lines(&self, switch: &Switch) -> (Vec<Line>, u32) {
        self.newest(switch, usize::MAX)
    }

    /// The same of the last packets, `most` of them.
    pub fn newest(&self, switch: &Switch, most: usize) -> (Vec<Line>, u32) {
        let mut inner = self.inner.lock();
        let Inner { tracing, wanted, traces } = &mut *inner;
        if let Some(tracing) = tracing {
            traces.extend(std::iter::from_fn(|| tracing.take()));
            // Workers take turns; within one, traces are in order already.
            traces.sort_by_key(|trace| trace.at);
        }
        let (now, wall) = (switch.now(), SystemTime::now());
        let time = |at: Duration| {
            let ago = now.0.saturating_sub(at);
            wall.checked_sub(ago).map(utc)
        };
        let lines = traces.iter().zip(1..).skip(traces.len().saturating_sub(most));
        (lines.map(|(trace, n)| Line::new(n, time(trace.at.0), trace)).collect(), *wanted)
    }
}
