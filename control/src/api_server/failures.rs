//! Waits between requests, and the events that end them early.
//!
//! Three counters, each reset by another event:
//!
//! | failure | ended by |
//! |---|---|
//! | a request that does not reach the API server, or an answer of status 5xx | any other answer |
//! | an answer that brought nothing | a complete list, an event, a bookmark |
//! | a version that had expired | an event or bookmark of a watch |
//!
//! While the API server does not answer, one kind at a time retries about once a second; the waits
//! of the others grow. The first answer wakes them all.

use std::time::Duration;

use tokio::sync::{Semaphore, watch};

use super::{Pace, jittered};

/// Failures in a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Failures {
    pub(super) unanswered: u32,
    pub(super) fruitless: u32,
    pub(super) expired: u32,
}

impl Failures {
    /// The longest of the three waits.
    pub(super) fn wait(&self, pace: &Pace) -> Duration {
        let longest = self.unanswered.max(self.fruitless);
        let doubled = pace.first.saturating_mul(1 << longest.saturating_sub(1).min(16));
        jittered(doubled.min(pace.most))
    }

    /// The wait before a list that follows an expired version: none after the first.
    pub(super) fn wait_expired(&self, pace: &Pace) -> Duration {
        match self.expired {
            0 | 1 => Duration::ZERO,
            more => Self { fruitless: more - 1, ..Self::default() }.wait(pace),
        }
    }
}

/// Shared by the watches of all kinds.
#[derive(Debug)]
pub(super) struct Outage {
    /// Incremented with each kind that is answered after a failure.
    answered: watch::Sender<u64>,
    /// Held by the kind that retries often.
    scout: Semaphore,
}

impl Outage {
    pub(super) fn new() -> Self {
        Self { answered: watch::Sender::new(0), scout: Semaphore::new(1) }
    }

    /// The count of answers so far; see [`Self::wait`].
    pub(super) fn subscribe(&self) -> watch::Receiver<u64> {
        self.answered.subscribe()
    }

    /// Wakes the other kinds after the first answer.
    pub(super) fn is_over(&self) {
        self.answered.send_modify(|count| *count += 1);
    }

    /// Waits for `wait`, or `often` for one kind at a time; no longer than until a kind is
    /// answered, and not at all if one was since `answers` was seen last.
    pub(super) async fn wait(
        &self,
        wait: Duration,
        often: Duration,
        answers: &mut watch::Receiver<u64>,
    ) {
        let scout = self.scout.try_acquire();
        let wait = if scout.is_ok() { wait.min(jittered(often)) } else { wait };
        tokio::select! {
            _ = answers.changed() => {}
            () = tokio::time::sleep(wait) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_up_to_the_longest_and_the_first_expiry_waits_for_nothing() {
        let pace = Pace::default();
        let wait = |fruitless| Failures { fruitless, ..Failures::default() }.wait(&pace);
        assert!(wait(1) < Duration::from_millis(400) && wait(4) > Duration::from_secs(1));
        assert!(wait(90) <= pace.most.mul_f64(1.25));
        let expired = |expired| Failures { expired, ..Failures::default() }.wait_expired(&pace);
        assert_eq!(expired(1), Duration::ZERO);
        assert!(expired(2) > Duration::ZERO && expired(6) > Duration::from_secs(2));
    }
}
