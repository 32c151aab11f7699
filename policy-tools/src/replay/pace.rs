//! The capture's time, and how fast it passes.

use std::thread;
use std::time::{Duration, Instant};

use dataplane::Now;

/// Pace of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Speed {
    /// As fast as they can be handled.
    Max,
    /// As they were captured.
    Real,
}

const LATEST: Duration = Duration::from_secs(u32::MAX as u64);

/// Turns times of capture into the time since the first packet. Where a capture goes back in
/// time, the clock stands still; after 136 years, where the switch's seconds end, too.
#[derive(Debug, Default)]
pub(super) struct Clock {
    first: Option<Duration>,
    now: Duration,
}

impl Clock {
    pub(super) fn at(&mut self, time: Duration) -> Now {
        let first = *self.first.get_or_insert(time);
        self.now = self.now.max(time.saturating_sub(first)).min(LATEST);
        Now(self.now)
    }
}

/// Waits for the moment of a packet, if it should.
#[derive(Debug)]
pub(super) struct Pace {
    speed: Speed,
    started: Instant,
}

impl Pace {
    pub(super) fn new(speed: Speed) -> Self {
        Self { speed, started: Instant::now() }
    }

    /// Returns whether there is any waiting.
    pub(super) fn waits(&self) -> bool {
        self.speed == Speed::Real
    }

    /// Sleeps until as much time has passed as in the capture.
    pub(super) fn wait_for(&mut self, now: Now) {
        thread::sleep(now.0.saturating_sub(self.started.elapsed()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_counts_from_the_first_packet_and_never_goes_back() {
        let mut clock = Clock::default();
        let times = [100, 101, 99, 101, 110].map(|s| clock.at(Duration::from_secs(s)).0.as_secs());
        assert_eq!(times, [0, 1, 1, 1, 10]);
        assert_eq!(clock.at(Duration::MAX).0, LATEST);
    }
}
