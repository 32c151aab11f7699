//! Servers whose connection ended and that may come back: a restarted one is found again at the
//! shortest interval, whatever the leases say.

use std::time::Duration;

/// Time for which a server is expected back.
const RETURN: Duration = Duration::from_secs(30);

/// The number of servers before the last loss.
#[derive(Debug, Default)]
pub(super) struct Absent {
    count: usize,
    /// In milliseconds.
    until: u64,
}

impl Absent {
    /// Records that one of `before` connected servers went away. `now` is in milliseconds.
    pub(super) fn lost(&mut self, before: usize, now: u64) {
        self.count = self.expected(now).max(before);
        self.until = now + RETURN.as_millis() as u64;
    }

    /// The number of servers to look for; 0 without a recent loss.
    pub(super) fn expected(&self, now: u64) -> usize {
        if now < self.until { self.count } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_server_is_expected_back_for_a_while() {
        let mut absent = Absent::default();
        assert_eq!(absent.expected(0), 0);
        absent.lost(3, 1_000);
        // The next one of the same restart.
        absent.lost(2, 2_000);
        assert_eq!(absent.expected(31_999), 3);
        assert_eq!(absent.expected(32_000), 0);
        absent.lost(1, 40_000);
        assert_eq!(absent.expected(40_000), 1);
    }
}
