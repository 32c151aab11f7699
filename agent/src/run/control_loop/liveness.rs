//! Checks that workers and the source make progress and that ports keep their programs, for `/healthz`, `/readyz` and
//! `status`.

use std::time::{Duration, Instant};

use dataplane::Switch;

use super::reconciler::{Effects, Reconciler, Signal};
use crate::run::events::Event;
use crate::run::kernel::InterfaceEvent;
use crate::run::source::Source;
use crate::run::status::Contradictions;

/// Interval of the checks.
const CHECK: Duration = Duration::from_secs(1);
/// A worker without a round for this long has stalled; it makes four rounds a second when idle.
const LONGEST_WORKER_ROUND: Duration = Duration::from_secs(5);
/// A source that does not respond for this long is stuck.
const LONGEST_READING: Duration = Duration::from_secs(30);

/// The progress seen so far.
pub(super) struct Liveness {
    due: Instant,
    workers: Vec<Worker>,
    /// When the source last responded.
    source_seen: Instant,
    /// Decisions known that their rules contradict.
    contradicted: u64,
}

struct Worker {
    rounds: u64,
    seen: Instant,
}

impl Liveness {
    pub(super) fn new(switch: &Switch) -> Self {
        let now = Instant::now();
        let workers = switch.counters().map(|_| Worker { rounds: 0, seen: now }).collect();
        Self { due: now, workers, source_seen: now, contradicted: 0 }
    }

    /// Reports workers that make no progress, and a source that is stuck.
    fn check(&mut self, now: Instant, Effects { shared, input, .. }: &Effects) {
        for (worker, counters) in self.workers.iter_mut().zip(shared.switch.counters()) {
            let rounds = counters.busy_rounds.value() + counters.idle_rounds.value();
            if rounds != worker.rounds {
                *worker = Worker { rounds, seen: now };
            }
        }
        let is_stalled = |worker: &Worker| now - worker.seen > LONGEST_WORKER_ROUND;
        shared.set_stalled(self.workers.iter().any(is_stalled));
        shared.set_source_stuck(self.is_stuck(input.from.responds(), now));
        if let Some(found) = Contradictions::of(&shared.switch)
            && found.count > self.contradicted
        {
            self.contradicted = found.count;
            tracing::error!("{found}");
        }
        if let Source::ApiServer(api_server) = &input.from {
            api_server.report_ready(shared.config.node_readiness && shared.is_ready());
        }
    }

    /// Returns whether the source has not responded for too long.
    fn is_stuck(&mut self, responds: bool, now: Instant) -> bool {
        if responds {
            self.source_seen = now;
        }
        now - self.source_seen > LONGEST_READING
    }
}

impl Reconciler for Liveness {
    fn is_due(&self, now: Instant) -> bool {
        self.due <= now
    }

    fn on(&mut self, signal: &Signal<'_>, effects: &mut Effects) {
        let &Signal::Due(now) = signal else { return };
        self.due = now + CHECK;
        self.check(now, effects);
        for index in effects.ports.unguarded() {
            // The loop itself receives it.
            let _ = effects.events.send(Event::Interface(InterfaceEvent::ProgramLost(index)));
        }
        effects.ports.forget_losses();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_without_a_response_is_stuck_until_it_responds() {
        let began = Instant::now();
        let workers = Vec::new();
        let mut liveness = Liveness { due: began, workers, source_seen: began, contradicted: 0 };
        let looks = [(true, 100), (false, 101), (false, 130), (false, 131), (true, 132)];
        let stuck = looks.map(|(responds, after)| {
            liveness.is_stuck(responds, began + Duration::from_secs(after))
        });
        assert_eq!(stuck, [false, false, false, true, false]);
    }
}
