//! Paces a worker's readings of the reports of programs. Where many connections open it reads some at a time, so that
//! it has the processor for a moment only: their clients and servers may share it.

use std::time::{Duration, Instant};

/// Connections that are read at a time.
const SOME: u32 = 32;
/// Bounds of the pause. From the longer one on the scan's interval is soon enough.
const SHORTEST: Duration = Duration::from_micros(100);
const LONGEST: Duration = Duration::from_millis(50);

/// The pause between two readings, by the rate at which connections opened before the last one.
pub(crate) struct Pace {
    read: Instant,
    pause: Option<Duration>,
}

impl Pace {
    pub(crate) fn new(now: Instant) -> Self {
        Self { read: now, pause: None }
    }

    /// Notes that so many connections were read.
    pub(crate) fn note(&mut self, opened: usize, now: Instant) {
        let pause = (now - self.read) * SOME / (opened as u32).max(1);
        self.pause = (pause < LONGEST).then_some(pause.max(SHORTEST));
        self.read = now;
    }

    /// Notes that there is nothing to read.
    pub(crate) fn note_none(&mut self, now: Instant) {
        if self.pause.is_some() && self.is_due(now) {
            self.pause = None;
        }
    }

    /// Time until the next reading; `None` if it is whenever the worker is awake.
    pub(crate) fn due(&self, now: Instant) -> Option<Duration> {
        self.pause.map(|pause| pause.saturating_sub(now - self.read))
    }

    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.due(now).is_none_or(|left| left.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_pause_is_the_time_in_which_some_connections_open() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        assert!(pace.is_due(start), "nothing opened yet");
        // Sixteen in a millisecond.
        pace.note(16, start + MS);
        assert_eq!(pace.due(start + MS), Some(2 * MS));
        assert!(!pace.is_due(start + 2 * MS) && pace.is_due(start + 3 * MS));
        // A flood.
        pace.note(4096, start + 3 * MS);
        assert_eq!(pace.due(start + 3 * MS), Some(SHORTEST));
        // No more of it.
        pace.note_none(start + 3 * MS);
        assert_eq!(pace.due(start + 3 * MS), Some(SHORTEST));
        pace.note_none(start + 4 * MS);
        assert_eq!(pace.due(start + 4 * MS), None);
        // Few, and none.
        pace.note(1, start + 5 * MS);
        assert_eq!(pace.due(start + 5 * MS), None);
        pace.note(16, start + 6 * MS);
        pace.note(0, start + 8 * MS);
        assert_eq!(pace.due(start + 8 * MS), None);
        assert!(pace.is_due(start + 8 * MS));
    }
}
