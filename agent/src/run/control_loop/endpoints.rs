//! The pace of publishing services' endpoints.
//!
//! The workers' map of services is made anew as a whole, which takes milliseconds with ten thousand of them, and in
//! such a cluster endpoint slices change many times a second. A change after a pause is published at once. The next one
//! waits until publishing takes no more than a tenth of the time, a second at most, as kube-proxy does by default
//! (`--iptables-min-sync-period`). Policies never wait.

use std::time::{Duration, Instant};

/// The time from the beginning of one publication to the next, in times of what the first one took.
const SPACING: u32 = 10;
/// Upper bound on the wait for the next one.
const LONGEST: Duration = Duration::from_secs(1);

/// When changes of endpoints are published next.
#[derive(Debug)]
pub(super) struct EndpointPace {
    due: Instant,
}

impl EndpointPace {
    /// The first change is published at once.
    pub(super) fn new(now: Instant) -> Self {
        Self { due: now }
    }

    /// The time until changes are published.
    pub(super) fn wait(&self, now: Instant) -> Duration {
        self.due.saturating_duration_since(now)
    }

    /// Notes that changes were published, which began at this time and is done.
    pub(super) fn published(&mut self, began: Instant, now: Instant) {
        let spacing = now.saturating_duration_since(began) * SPACING;
        self.due = (began + spacing).min(now + LONGEST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn publishing_takes_a_tenth_of_the_time_and_no_change_waits_longer_than_a_second() {
        let began = Instant::now();
        let mut pace = EndpointPace::new(began);
        assert_eq!(pace.wait(began), Duration::ZERO);
        for (took_ms, wait_ms) in [(0, 0), (1, 9), (15, 135), (500, 1_000)] {
            let now = began + Duration::from_millis(took_ms);
            pace.published(began, now);
            assert_eq!(pace.wait(now), Duration::from_millis(wait_ms));
            assert_eq!(pace.wait(now + LONGEST), Duration::ZERO);
        }
    }
}
