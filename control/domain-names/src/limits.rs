//! Bounds of a name table, and the pace of answers that open addresses.

use std::time::Duration;

/// Bounds of a [`NameTable`](crate::NameTable).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Addresses count at least this long.
    pub least: Duration,
    /// Addresses count no longer than this after an answer.
    pub most: Duration,
    /// Added to the TTL, for a client that uses an address up to its last second.
    pub grace: Duration,
    /// Open addresses of one name.
    pub per_name: usize,
    /// Open addresses of one pod, and as many lingering ones.
    pub per_pod: usize,
    /// Answers of one pod that may open addresses at once; each has a snapshot made.
    pub burst: u32,
    /// The same in each second.
    pub per_second: u32,
    /// Addresses of all pods' changes together at once, in equal shares; see [`Turns`](crate::Turns).
    pub burst_of_all: u32,
    /// The same in each second.
    pub per_second_of_all: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            least: Duration::from_secs(30),
            most: Duration::from_secs(24 * 60 * 60),
            grace: Duration::from_secs(5),
            per_name: 64,
            per_pod: 1024,
            burst: 128,
            per_second: 32,
            burst_of_all: 512,
            per_second_of_all: 2048,
        }
    }
}

/// Events lately; falls by a number in each second.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    recent: u32,
    since: Duration,
}

impl Pace {
    /// The events that are left `now` of those counted, at `per_second`.
    pub(crate) fn left(&mut self, per_second: u32, now: Duration) -> u32 {
        let passed = now.saturating_sub(self.since).as_millis();
        let over = passed * u128::from(per_second) / 1000;
        if over > 0 {
            let over = over.min(u128::from(u32::MAX)) as u32;
            *self = Self { recent: self.recent.saturating_sub(over), since: now };
        }
        self.recent
    }

    /// Counts events.
    pub(crate) fn count(&mut self, events: u32) {
        self.recent = self.recent.saturating_add(events);
    }
}
