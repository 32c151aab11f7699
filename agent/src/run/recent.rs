//! Drops of the last minute: totals noted every few seconds, and what was added since the oldest.

use std::collections::{BTreeMap, VecDeque};

use std::time::Duration;

use dataplane::{Outcome, Switch, Verdict};
use parking_lot::Mutex;

/// Span of the counts.
const SPAN: Duration = Duration::from_secs(60);
/// Between two totals.
const STEP: Duration = Duration::from_secs(5);

/// Totals by outcome, each with the time since the start at which it was taken.
#[derive(Default)]
pub(super) struct Recent(Mutex<VecDeque<(Duration, Vec<u64>)>>);

impl Recent {
    /// Notes the totals if the last ones are old enough. `uptime` only grows.
    pub(super) fn note(&self, uptime: Duration, switch: &Switch) {
        let mut noted = self.0.lock();
        if noted.back().is_none_or(|(at, _)| *at + STEP <= uptime) {
            noted.push_back((uptime, totals(switch)));
            // One total stays that is as old as the span.
            while noted.get(1).is_some_and(|(at, _)| *at + SPAN <= uptime) {
                noted.pop_front();
            }
        }
    }

    /// Drops since the oldest total, by the outcome's name; those without any are left out.
    pub(super) fn drops(&self, switch: &Switch) -> BTreeMap<String, u64> {
        let noted = self.0.lock();
        let before = noted.front().map_or(&[][..], |(_, totals)| totals);
        let now = totals(switch);
        let added = Outcome::ALL.iter().zip(now).enumerate().map(|(n, (outcome, now))| {
            (outcome, now.saturating_sub(before.get(n).copied().unwrap_or(0)))
        });
        let drops =
            added.filter(|(outcome, count)| outcome.verdict() == Verdict::Drop && *count > 0);
        drops.map(|(outcome, count)| (outcome.name().to_owned(), count)).collect()
    }
}

fn totals(switch: &Switch) -> Vec<u64> {
    let sum = |outcome: &Outcome| switch.counters().map(|worker| worker.of(*outcome)).sum();
    Outcome::ALL.iter().map(sum).collect()
}
