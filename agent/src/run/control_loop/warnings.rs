//! Schedules Kubernetes Events about policies with faults.
//!
//! Every node finds the same faults; the holder of the Lease of statuses writes the Events,
//! requests of the others are discarded. An Event is requested when the faults of an object change,
//! once more a minute later, in case the holder has just gone, and then twice an hour: the API server
//! forgets Events after an hour. [`control::api_server::Warnings`] leaves out repetitions.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use control::api_server::{Severity, Warning};
use control::{Fault, ObjectRef};

use super::reconciler::{Effects, Reconciler, Signal};
use super::reports::summary;

/// Requested Events, and how many more may be requested now.
pub(super) struct WarningSchedule {
    requested: BTreeMap<ObjectRef, Requested>,
    /// Whole Events that may be requested; refills by one in [`REFILL`].
    tokens: u32,
    refilled: Instant,
    due: Instant,
}

struct Requested {
    message: String,
    at: Instant,
    times: u32,
}

/// Events that may be requested at once.
const BURST: u32 = 25;
/// Time for one more.
const REFILL: Duration = Duration::from_secs(6);
/// Least time between two Events about one object.
const OBJECT_REST: Duration = Duration::from_secs(10);
/// Second request of the same Event.
const SECOND: Duration = Duration::from_secs(60);
/// Further ones.
const FURTHER: Duration = Duration::from_secs(30 * 60);
/// Interval of comparing faults with requested Events.
const INTERVAL: Duration = Duration::from_millis(500);

/// The reason in an Event.
const REASON: &str = "InvalidPolicy";

impl WarningSchedule {
    pub(super) fn new(now: Instant) -> Self {
        Self { requested: BTreeMap::new(), tokens: BURST, refilled: now, due: now }
    }

    /// Returns the Events to request now; `send` takes one, or returns `false` if there is no room.
    fn request<'f>(
        &mut self,
        faulty: impl Iterator<Item = (&'f ObjectRef, &'f [Fault])>,
        now: Instant,
        mut send: impl FnMut(Warning) -> bool,
    ) {
        let refill = (now - self.refilled).as_secs() / REFILL.as_secs();
        self.refilled += REFILL * refill as u32;
        self.tokens = BURST.min(self.tokens.saturating_add(refill as u32));
        // A fault that comes again at once is no news.
        self.requested.retain(|_, it| now - it.at < FURTHER + SECOND);
        for (object, faults) in faulty.filter(|(object, _)| object.kind.closes()) {
            let message = summary(faults);
            let known = self.requested.get(object);
            let rest = match known {
                None => Duration::ZERO,
                Some(known) if known.message != message => OBJECT_REST,
                Some(known) if known.times < 2 => SECOND,
                Some(_) => FURTHER,
            };
            if known.is_some_and(|known| now - known.at < rest) {
                continue;
            }
            let warning = Warning {
                severity: Severity::Warning,
                object: object.clone(),
                reason: REASON,
                message: message.clone(),
            };
            if self.tokens == 0 || !send(warning) {
                return;
            }
            self.tokens -= 1;
            let times = known.filter(|it| it.message == message).map_or(1, |it| it.times + 1);
            self.requested.insert(object.clone(), Requested { message, at: now, times });
        }
    }
}

impl Reconciler for WarningSchedule {
    fn is_due(&self, now: Instant) -> bool {
        self.due <= now
    }

    fn on(&mut self, signal: &Signal<'_>, effects: &mut Effects) {
        if let Signal::Due(now) = signal
            && let Some(api_server) = effects.input.listed_api_server()
        {
            self.due = *now + INTERVAL;
            let faulty = effects.input.faults.by_object();
            self.request(faulty, *now, |warning| api_server.warn(warning));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::{FieldFault, Kind};

    fn fault(name: &str, problem: &str) -> (ObjectRef, Vec<Fault>) {
        let kind = Kind::NetworkPolicy;
        let object = ObjectRef { kind, namespace: Some("x".into()), name: name.into() };
        let fault = FieldFault { field: "spec".into(), problem: problem.into() };
        (object.clone(), vec![fault.of(object)])
    }

    fn requested(
        schedule: &mut WarningSchedule,
        faults: &[(ObjectRef, Vec<Fault>)],
        now: Instant,
    ) -> Vec<String> {
        let mut sent = Vec::new();
        let faulty = faults.iter().map(|(object, faults)| (object, &faults[..]));
        schedule.request(faulty, now, |warning| {
            sent.push(format!("{} {}", warning.object.name, warning.message));
            true
        });
        sent
    }

    #[test]
    fn an_event_is_requested_again_after_a_minute_and_then_twice_an_hour() {
        let begin = Instant::now();
        let mut schedule = WarningSchedule::new(begin);
        let faults = [fault("db", "is wrong")];
        let mut times = Vec::new();
        for second in 0..2 * 3600 {
            let now = begin + Duration::from_secs(second);
            if !requested(&mut schedule, &faults, now).is_empty() {
                times.push(second);
            }
        }
        assert_eq!(times, [0, 60, 1860, 3660, 5460]);
    }

    #[test]
    fn one_object_has_a_pace_and_all_have_one() {
        let begin = Instant::now();
        let mut schedule = WarningSchedule::new(begin);
        let mut count = 0;
        for second in 0..20 {
            let now = begin + Duration::from_secs(second);
            count += requested(&mut schedule, &[fault("db", &second.to_string())], now).len();
        }
        assert_eq!(count, 2, "one each ten seconds");
        let many: Vec<_> = (0..1000).map(|n| fault(&format!("p{n:03}"), "is wrong")).collect();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let mut all = requested(&mut schedule, &many, at(20));
        assert_eq!(all.len(), BURST as usize);
        assert!(requested(&mut schedule, &many, at(20)).is_empty());
        // Those that had to wait come one after the other.
        for second in 21..79 {
            all.extend(requested(&mut schedule, &many, at(second)));
        }
        assert_eq!(all.len(), BURST as usize + 10);
        all.dedup();
        assert_eq!(all.len(), BURST as usize + 10, "each of another object");
    }

    #[test]
    fn a_full_queue_is_tried_again_and_other_kinds_are_left_out() {
        let begin = Instant::now();
        let mut schedule = WarningSchedule::new(begin);
        let (mut pod, faults) = fault("db", "is wrong");
        let object = pod.clone();
        let mut offered = 0;
        schedule.request([(&object, &faults[..])].into_iter(), begin, |_| {
            offered += 1;
            false
        });
        assert_eq!(offered, 1);
        assert_eq!(requested(&mut schedule, &[(object, faults.clone())], begin).len(), 1);
        pod.kind = Kind::Pod;
        assert!(requested(&mut schedule, &[(pod, faults)], begin).is_empty());
    }
}
