//! Counters of the programs.

use super::Kernel;
use crate::layout::{
    CLEAR_TEXT, COUNTERS, FORWARDED, FORWARDED_BYTES, NO_PORT, OPENED, OVER_SHARE, Reason,
};

/// Counters of the programs, since they were loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets forwarded by entries; segments that are still to be cut count each.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Frames that went to the switch, by reason.
    pub punted: Vec<(Reason, u64)>,
    /// Frames dropped whose interface or tag belongs to no port.
    pub no_port: u64,
    /// Frames dropped because their port had used up its share of the punt link.
    pub over_share: u64,
    /// Connections that templates opened.
    pub opened: u64,
    /// Packets dropped that other nodes should have encrypted.
    pub clear_text: u64,
}

impl Counters {
    /// Rates by the second, if these were the counters `before` so many seconds ago.
    pub(crate) fn per_second(&self, before: &Self, seconds: f64) -> Self {
        let rate = |now: u64, then: u64| (now.saturating_sub(then) as f64 / seconds) as u64;
        let then = |reason: &Reason| before.of(*reason);
        Self {
            packets: rate(self.packets, before.packets),
            bytes: rate(self.bytes, before.bytes),
            punted: self.punted.iter().map(|(why, now)| (*why, rate(*now, then(why)))).collect(),
            no_port: rate(self.no_port, before.no_port),
            over_share: rate(self.over_share, before.over_share),
            opened: rate(self.opened, before.opened),
            clear_text: rate(self.clear_text, before.clear_text),
        }
    }

    /// Frames that went to the switch for a reason.
    pub fn of(&self, reason: Reason) -> u64 {
        self.punted.iter().find(|(why, _)| *why == reason).map_or(0, |(_, count)| *count)
    }
}

impl Kernel {
    /// Sets the counters to zero; programs that run now may count on.
    pub(crate) fn clear_counters(&self) {
        (0..COUNTERS as u32).for_each(|n| self.counters.clear(n));
    }

    /// Counters of the programs.
    pub fn counters(&self) -> Counters {
        let values: Vec<u64> = (0..COUNTERS as u32).map(|n| self.counters.sum(n)).collect();
        Counters {
            packets: values[FORWARDED],
            bytes: values[FORWARDED_BYTES],
            punted: Reason::all().map(|reason| (reason, values[reason.counter()])).collect(),
            no_port: values[NO_PORT],
            over_share: values[OVER_SHARE],
            opened: values[OPENED],
            clear_text: values[CLEAR_TEXT],
        }
    }
}
