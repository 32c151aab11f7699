//! Limits on frames that cost the peer little and this side much.

use super::{Fault, code};

/// Allows a number of events a second, and as many at once.
#[derive(Clone, Copy, Debug)]
struct Rate {
    a_second: u32,
    /// Thousandths of events that are still allowed.
    left: u64,
    /// Time of the last update of `left`, in milliseconds.
    at: u64,
}

impl Rate {
    const fn new(a_second: u32) -> Self {
        Self { a_second, left: a_second as u64 * 1_000, at: 0 }
    }

    fn take(&mut self, now: u64) -> bool {
        let most = u64::from(self.a_second) * 1_000;
        let more = now.saturating_sub(self.at).saturating_mul(u64::from(self.a_second));
        self.at = now;
        self.left = self.left.saturating_add(more).min(most);
        let allowed = self.left >= 1_000;
        if allowed {
            self.left -= 1_000;
        }
        allowed
    }
}

/// Limits the frames of each kind that a peer sends a second.
#[derive(Debug)]
pub(crate) struct Limits {
    resets: Rate,
    settings: Rate,
    pings: Rate,
    empty: Rate,
}

/// Streams a second that a peer cancels, is refused, or makes this side reset.
const RESETS: u32 = 200;
/// SETTINGS frames a second. Each may change the window of every stream.
const SETTINGS: u32 = 50;
/// PING frames a second. gRPC sends one each round-trip time while it measures the link.
const PINGS: u32 = 20_000;
/// Frames a second that carry nothing: empty DATA, PRIORITY, unknown types, updates of streams
/// that have ended.
const EMPTY: u32 = 2_000;

impl Default for Limits {
    fn default() -> Self {
        Self {
            resets: Rate::new(RESETS),
            settings: Rate::new(SETTINGS),
            pings: Rate::new(PINGS),
            empty: Rate::new(EMPTY),
        }
    }
}

impl Limits {
    pub(crate) fn reset(&mut self, now: u64) -> Result<(), Fault> {
        check(self.resets.take(now), "resets", RESETS)
    }

    pub(crate) fn settings(&mut self, now: u64) -> Result<(), Fault> {
        check(self.settings.take(now), "SETTINGS", SETTINGS)
    }

    pub(crate) fn ping(&mut self, now: u64) -> Result<(), Fault> {
        check(self.pings.take(now), "pings", PINGS)
    }

    pub(crate) fn empty(&mut self, now: u64) -> Result<(), Fault> {
        check(self.empty.take(now), "frames that carry nothing", EMPTY)
    }
}

fn check(allowed: bool, what: &str, a_second: u32) -> Result<(), Fault> {
    match allowed {
        true => Ok(()),
        false => {
            let text = format!("more than {a_second} {what} a second");
            Err(Fault::new(code::ENHANCE_YOUR_CALM, text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_held_over_time() {
        let mut rate = Rate::new(10);
        assert_eq!((0..20).filter(|_| rate.take(1_000)).count(), 10);
        // A tenth of a second brings one.
        assert_eq!((0..20).filter(|_| rate.take(1_100)).count(), 1);
        // A minute of silence allows no more than a second does.
        assert_eq!((0..20).filter(|_| rate.take(61_100)).count(), 10);
    }
}
