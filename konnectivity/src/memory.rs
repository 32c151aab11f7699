//! The memory that connections share, and the return of freed pages to the system.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Bytes that all busy connections together may have under way.
const TOGETHER: usize = 16 << 20;
/// Number of busy connections after which a trim is worth its time.
const WORTH: usize = 8;

/// Counts the connections of one process that move bytes, by the second.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    second: AtomicU64,
    /// Connections that moved bytes in this second, and in the one before.
    now: AtomicUsize,
    before: AtomicUsize,
}

impl Shares {
    /// The share of a connection that moves bytes at `millis`, and did so in the second `last`.
    pub(crate) fn of_busy(&self, last: &mut u64, millis: u64) -> usize {
        let second = self.advance(millis);
        if std::mem::replace(last, second) != second {
            self.now.fetch_add(1, Ordering::Relaxed);
        }
        TOGETHER / self.count().max(1)
    }

    /// Connections that moved bytes within the last second or two.
    pub(crate) fn busy(&self, millis: u64) -> usize {
        self.advance(millis);
        self.count()
    }

    /// Begins a new second where one has passed. Threads that do so together miscount by a few.
    fn advance(&self, millis: u64) -> u64 {
        // From 1: in second 0 nothing has moved.
        let second = millis / 1_000 + 1;
        let last = self.second.load(Ordering::Relaxed);
        if last < second && self.second.fetch_max(second, Ordering::Relaxed) == last {
            let now = self.now.swap(0, Ordering::Relaxed);
            self.before.store(if last + 1 == second { now } else { 0 }, Ordering::Relaxed);
        }
        second
    }

    fn count(&self) -> usize {
        self.now.load(Ordering::Relaxed).max(self.before.load(Ordering::Relaxed))
    }
}

/// Returns the allocator's free pages to the system after a burst.
#[derive(Debug, Default)]
pub(crate) struct Trimmer {
    /// The most busy connections since the last time.
    most: usize,
}

impl Trimmer {
    /// Takes the number of busy connections, periodically.
    pub(crate) fn tick(&mut self, busy: usize) {
        if self.is_due(busy) {
            trim();
        }
    }

    fn is_due(&mut self, busy: usize) -> bool {
        let is_over = self.most >= WORTH && busy * 4 <= self.most;
        self.most = if is_over { busy } else { self.most.max(busy) };
        is_over
    }
}

/// glibc keeps free pages between used ones.
fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes no pointer, and locks what it changes.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_connections_share_and_are_forgotten() {
        let shares = Shares::default();
        let mut seconds = [0; 100];
        let mut each = |millis| seconds.each_mut().map(|last| shares.of_busy(last, millis));
        assert_eq!(each(10)[99], TOGETHER / 100);
        // Once a second, however often they move.
        assert_eq!(each(20)[0], TOGETHER / 100);
        assert_eq!(each(1_010), [TOGETHER / 100; 100]);
        assert_eq!(shares.busy(2_010), 100);
        // One is left.
        let mut last = 0;
        shares.of_busy(&mut last, 3_010);
        assert_eq!(shares.of_busy(&mut last, 4_010), TOGETHER);
        assert_eq!((shares.busy(4_020), shares.busy(9_000)), (1, 0));
    }

    #[test]
    fn memory_is_trimmed_once_after_a_burst() {
        let mut trimmer = Trimmer::default();
        let due: Vec<bool> = [0, 3, 0, 50, 100, 60, 25, 20, 0]
            .into_iter()
            .map(|busy| trimmer.is_due(busy))
            .collect();
        assert_eq!(due, [false, false, false, false, false, false, true, false, true]);
    }
}
