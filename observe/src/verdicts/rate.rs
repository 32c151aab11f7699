//! Events a second, over the last minute.

use std::time::Duration;

/// Seconds that are looked at.
const WINDOW: usize = 60;

/// Counts events by the second in which they came.
#[derive(Debug)]
pub(super) struct Rate {
    /// A ring of the last seconds.
    counts: [u32; WINDOW],
    /// The second that was counted last.
    last: u64,
}

impl Default for Rate {
    fn default() -> Self {
        Self { counts: [0; WINDOW], last: 0 }
    }
}

impl Rate {
    /// Counts an event at this time since the start.
    pub(super) fn count(&mut self, now: Duration) {
        let now = now.as_secs();
        for second in self.last + 1..=now.min(self.last + WINDOW as u64) {
            self.counts[place(second)] = 0;
        }
        self.last = now;
        self.counts[place(now)] += 1;
    }

    /// The mean over the last minute, or since the start.
    pub(super) fn per_second(&self, now: Duration) -> f64 {
        let first = (now.as_secs() + 1).saturating_sub(WINDOW as u64);
        let seconds = first..self.last + 1;
        let events: u64 = seconds.map(|it| u64::from(self.counts[place(it)])).sum();
        events as f64 / (now.as_secs() + 1).min(WINDOW as u64) as f64
    }
}

fn place(second: u64) -> usize {
    (second % WINDOW as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_minute_counts() {
        let at = Duration::from_secs;
        let mut rate = Rate::default();
        assert_eq!(rate.per_second(at(0)), 0.0);
        (0..30).for_each(|_| rate.count(at(0)));
        assert_eq!(rate.per_second(at(9)), 3.0);
        (0..90).for_each(|_| rate.count(at(59)));
        assert_eq!(rate.per_second(at(59)), 2.0);
        assert_eq!(rate.per_second(at(60)), 1.5, "the first second is over");
        rate.count(at(1_000));
        assert_eq!(rate.per_second(at(1_000)), 1.0 / 60.0);
        assert_eq!(rate.per_second(at(2_000)), 0.0);
    }
}
