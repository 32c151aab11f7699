//! State that the parts of flow offload share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use dataplane::Switch;

use crate::Kernel;
use crate::barrier::wait_for_programs;
use crate::layout::{GUARD_PORTS, GUARDS, PORTS};

/// Settings of flow offload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Entries that fit, two for each connection.
    pub entries: u32,
    /// Queues of the punt link.
    pub queues: u32,
    /// Time for which entries count after the switch's last heartbeat.
    pub grace: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { entries: 1 << 18, queues: 1, grace: Duration::from_secs(30) }
    }
}

/// The programs, the switch, and what is counted of entries.
pub(crate) struct Context {
    pub(crate) kernel: Kernel,
    pub(crate) switch: Arc<Switch>,
    pub(crate) options: Options,
    /// Entries by their guards.
    guarded: Vec<AtomicU32>,
    /// Connections that found no room.
    pub(crate) refused: AtomicU64,
    /// Connections whose entries made room for others.
    pub(crate) evicted: AtomicU64,
}

impl Context {
    pub(crate) fn new(kernel: Kernel, switch: Arc<Switch>, options: Options) -> Self {
        let guards = GUARD_PORTS + u32::from(PORTS);
        let guarded = (0..guards).map(|_| AtomicU32::new(0)).collect();
        let [refused, evicted] = [0; 2].map(AtomicU64::new);
        Self { kernel, switch, options, guarded, refused, evicted }
    }

    /// Counts entries by their guards.
    pub(crate) fn count(&self, guards: &[u32; GUARDS], by: i32) {
        for guard in guards {
            // Wraps around as a subtraction does.
            self.guarded[*guard as usize].fetch_add(by as u32, Ordering::SeqCst);
        }
    }

    /// Whether there are entries with this guard.
    pub(crate) fn is_used(&self, guard: u32) -> bool {
        self.guarded[guard as usize].load(Ordering::SeqCst) > 0
    }

    /// Waits until every program that runs now has ended.
    pub(crate) fn wait_for_programs(&self) {
        wait_for_programs(|| self.kernel.wait_for_programs());
    }
}
