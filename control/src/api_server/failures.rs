//! Waits between requests, and the events that end them early.
//!
//! Each kind backs off by itself: the wait doubles with every failure that follows another one within
//! [`SETTLED`]. An answer of status 200 ends no back-off, since an ERROR event may follow it; only a
//! complete list, an event or a bookmark does, or a watch that stays open without a word for [`Pace::first`].
//!
//! | wait of a kind that fails | ended early by |
//! |---|---|
//! | back-off, doubled up to [`Pace::most`] | another kind that succeeds after failures of its own ([`Outage::is_over`]) |
//! | the wait for an answer that hangs | both of these: a further request is made beside it |
//! | the same | its turn as scout: where no kind is served, or this one has failed for less than [`SCOUTING`], one kind after the other retries, one each [`Pace::outage`] |
//!
//! So the first answer after an outage is noticed within [`Pace::outage`] and wakes every kind, and a fault of one
//! kind alone costs the API server little.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use super::{Pace, jittered};

/// A failure that comes longer after the last one begins a new row of failures.
const SETTLED: Duration = Duration::from_secs(30);
/// Time for which a kind that fails alone takes part in scouting.
const SCOUTING: Duration = Duration::from_secs(60);
/// Wakes are so many times [`Pace::outage`] apart at least: kinds that succeed and fail in turns would wake each
/// other for ever.
const WAKES_APART: u32 = 10;
/// Expired versions in a row that are listed again no later than after [`Pace::outage`].
const SOON: u32 = 30;

/// Failures in a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Failures {
    /// Requests that brought nothing, or ended with an error.
    count: u32,
    first: Option<Instant>,
    last: Option<Instant>,
    /// Versions that had expired, since the last event or bookmark of a watch.
    pub(super) expired: u32,
}

impl Failures {
    /// Counts a failure.
    pub(super) fn add(&mut self, now: Instant) {
        if self.last.is_none_or(|last| now - last > SETTLED) {
            (self.count, self.first) = (0, Some(now));
        }
        (self.count, self.last) = (self.count + 1, Some(now));
    }

    /// The API server has recovered: the next failure waits as the first one does.
    pub(super) fn clear(&mut self) {
        (self.count, self.first, self.last) = (0, None, None);
    }

    /// Failures so far.
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// The wait after the last failure.
    pub(super) fn wait(&self, pace: &Pace) -> Duration {
        jittered(doubled(pace, self.count).min(pace.most))
    }

    /// The wait before a list that follows an expired version: none after the first.
    pub(super) fn wait_expired(&self, pace: &Pace) -> Duration {
        match self.expired {
            0 | 1 => Duration::ZERO,
            more if more <= SOON => jittered(doubled(pace, more - 1).min(pace.outage)),
            more => jittered(doubled(pace, more - SOON).min(pace.most)),
        }
    }

    fn is_recent(&self, now: Instant) -> bool {
        self.first.is_some_and(|first| now - first < SCOUTING)
    }
}

fn doubled(pace: &Pace, count: u32) -> Duration {
    pace.first.saturating_mul(1 << count.saturating_sub(1).min(16))
}

/// Shared by the watches of all kinds.
#[derive(Debug)]
pub(super) struct Outage {
    /// Incremented with each kind that succeeds after a failure.
    recovered: watch::Sender<u64>,
    /// Held by the kind whose turn it is to retry soon.
    scout: Semaphore,
    /// Kinds whose last request did not fail.
    served: AtomicUsize,
    woke: Mutex<Option<Instant>>,
}

impl Outage {
    pub(super) fn new() -> Self {
        let (recovered, scout) = (watch::Sender::new(0), Semaphore::new(1));
        Self { recovered, scout, served: AtomicUsize::new(0), woke: Mutex::new(None) }
    }

    /// The count of recoveries so far; see [`Self::wait`].
    pub(super) fn subscribe(&self) -> watch::Receiver<u64> {
        self.recovered.subscribe()
    }

    /// A kind is served again, and `failed` before: wakes the others.
    pub(super) fn is_over(&self, failed: bool, pace: &Pace) {
        self.served.fetch_add(1, Ordering::AcqRel);
        let (now, apart, mut woke) = (Instant::now(), pace.outage * WAKES_APART, self.woke.lock());
        if failed && woke.is_none_or(|woke| now - woke > apart) {
            *woke = Some(now);
            self.recovered.send_modify(|count| *count += 1);
        }
    }

    /// A kind that was served is no longer.
    pub(super) fn begins(&self) {
        self.served.fetch_sub(1, Ordering::AcqRel);
    }

    /// Waits after a failure of a kind. Returns early when it is this kind's turn to scout, or when another
    /// kind has recovered since `recovered` was seen last; in that case it returns `true`.
    pub(super) async fn wait(
        &self,
        failures: &Failures,
        wait: Duration,
        pace: &Pace,
        recovered: &mut watch::Receiver<u64>,
    ) -> bool {
        let scouts = self.served.load(Ordering::Acquire) == 0 || failures.is_recent(Instant::now());
        tokio::select! {
            _ = recovered.changed() => return true,
            () = tokio::time::sleep(wait) => {}
            () = self.turn(pace), if scouts => {}
        }
        false
    }

    /// Waits until it is this kind's turn to scout.
    pub(super) async fn turn(&self, pace: &Pace) {
        // The queue of a semaphore is first in, first out.
        let _turn = self.scout.acquire().await;
        tokio::time::sleep(jittered(pace.outage)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(failures: u32, apart: Duration) -> Failures {
        let (mut all, began) = (Failures::default(), Instant::now());
        (0..failures).for_each(|n| all.add(began + apart * n));
        all
    }

    #[test]
    fn waits_grow_up_to_the_longest_and_the_first_expiry_waits_for_nothing() {
        let pace = Pace::default();
        let wait = |failures| after(failures, Duration::from_secs(20)).wait(&pace);
        assert!(wait(1) < Duration::from_millis(400) && wait(4) > Duration::from_secs(1));
        assert!(wait(90) <= pace.most.mul_f64(1.25));
        let settled = after(90, Duration::from_secs(40));
        assert_eq!(settled.count(), 1, "failures that are far apart are no row");
        let expired = |expired| Failures { expired, ..Failures::default() }.wait_expired(&pace);
        assert_eq!(expired(1), Duration::ZERO);
        assert!(expired(2) > Duration::ZERO && expired(SOON) < pace.outage.mul_f64(1.3));
        assert!(expired(SOON + 8) > Duration::from_secs(20));
    }
}
