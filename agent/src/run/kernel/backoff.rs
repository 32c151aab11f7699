//! Pauses before failed attempts are repeated: they double up to a bound.

use std::time::{Duration, Instant};

/// Pause after the first failure.
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(30);

/// The retry timer of one thing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::run) struct Backoff {
    pause: Option<Duration>,
    failed: Option<Instant>,
    due: Option<Instant>,
}

impl Backoff {
    /// Schedules the next attempt after a failure. A failure long after the last one counts as the
    /// first.
    pub(in crate::run) fn fail(&mut self, now: Instant) {
        let is_new = self.failed.is_none_or(|failed| now - failed > 2 * LONGEST);
        let doubled = self.pause.filter(|_| !is_new).map(|pause| (pause * 2).min(LONGEST));
        let pause = doubled.unwrap_or(FIRST);
        (self.pause, self.failed, self.due) = (Some(pause), Some(now), Some(now + pause));
    }

    /// Makes the next attempt due at once.
    pub(in crate::run) fn hurry(&mut self, now: Instant) {
        self.due = Some(now);
    }

    /// Ends the retries: an attempt is under way, or succeeded.
    pub(in crate::run) fn stop(&mut self) {
        self.due = None;
    }

    /// The time of the next attempt, if one is scheduled.
    pub(in crate::run) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Returns whether the next attempt is due.
    pub(in crate::run) fn is_due(&self, now: Instant) -> bool {
        self.due.is_some_and(|due| due <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_bound_and_start_over_after_a_quiet_time() {
        let mut now = Instant::now();
        let mut backoff = Backoff::default();
        assert!(!backoff.is_due(now), "nothing has failed");
        for pause in [1, 2, 4, 8, 16, 30, 30].map(Duration::from_secs) {
            backoff.fail(now);
            assert!(!backoff.is_due(now + pause - Duration::from_millis(1)));
            now += pause;
            assert!(backoff.is_due(now));
            // The attempt that is due succeeds for the moment.
            backoff.stop();
            assert!(!backoff.is_due(now));
        }
        now += 3 * LONGEST;
        backoff.fail(now);
        assert_eq!(backoff.due(), Some(now + FIRST));
        backoff.hurry(now);
        assert!(backoff.is_due(now));
    }
}
