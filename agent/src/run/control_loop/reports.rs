//! Writes conditions into the status of cluster policies.
//!
//! Every node evaluates the policies and would write the same conditions. One of them
//! writes, elected by a Lease; the others campaign only for conditions that differ from theirs, after
//! a delay that grows with the number of nodes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

use control::api_server::Warning;
use control::model::{Condition, ConditionKind, Report};
use control::{Fault, Object, ObjectRef};

use super::ControlLoop;
use crate::run::source::Source;
use observe::time::utc_seconds;

/// The known statuses of policies, and when to compare them next.
#[derive(Default)]
pub(super) struct Reports {
    known: BTreeMap<ObjectRef, Report>,
    due: Option<Instant>,
}

/// Interval of comparing all of them, in case a write was lost.
const AGAIN: Duration = Duration::from_secs(60);
/// Maximum of writes in one comparison.
const MOST: usize = 10;
/// Maximum length of faults in a message, in bytes; with [`ENDING`] an Event takes it.
const MESSAGE: usize = Warning::LONGEST - ENDING.len() - "…".len();
/// The end of a message about faults.
const ENDING: &str = " (nothing opens by what is not enforced)";

impl Reports {
    /// Records the status of an object.
    pub(super) fn note(&mut self, object: &Object) {
        let reference = object.reference();
        if let Some(report) = object.report().filter(|_| reference.kind.is_cluster_policy()) {
            self.known.insert(reference, report.clone());
        }
    }

    /// Forgets an object.
    pub(super) fn forget(&mut self, object: &ObjectRef) {
        self.known.remove(object);
    }

    /// Forgets all objects for which `goes` holds.
    pub(super) fn forget_if(&mut self, goes: impl Fn(&ObjectRef) -> bool) {
        self.known.retain(|object, _| !goes(object));
    }

    /// The statuses of cluster policies.
    pub(super) fn known(&self) -> &BTreeMap<ObjectRef, Report> {
        &self.known
    }

    /// Schedules a comparison after a random part of `spread`.
    pub(super) fn look_within(&mut self, spread: Duration) {
        let due = Instant::now() + Duration::from_millis(200) + random_part(spread);
        self.due = Some(self.due.map_or(due, |known| known.min(due)));
    }
}

impl ControlLoop {
    /// Schedules a comparison after a change of a policy or its faults.
    pub(super) fn report_soon(&mut self) {
        let nodes = self.control.view().nodes.len() as u32;
        let spread = Duration::from_millis(2) * nodes;
        self.reports.look_within(spread.clamp(Duration::from_millis(300), AGAIN));
    }

    /// Writes the statuses that are out of date.
    pub(super) fn write_reports(&mut self) {
        let Source::ApiServer(api_server) = &self.source else { return };
        let now = Instant::now();
        if self.initial_sync.is_some() || self.reports.due.is_none_or(|due| due > now) {
            return;
        }
        self.reports.due = Some(now + AGAIN);
        let mut written = 0;
        for (object, report) in &self.reports.known {
            let wanted = condition(report, self.faults.of(object), SystemTime::now());
            let Some(wanted) = wanted else { continue };
            if written == MOST || !api_server.report(object.clone(), wanted) {
                self.reports.due = Some(now + Duration::from_secs(3));
                return;
            }
            written += 1;
        }
    }
}

/// A random part of a time.
pub(super) fn random_part(of: Duration) -> Duration {
    // The low digits of the clock serve as a random number.
    let low = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    of.mul_f64(f64::from(low.subsec_nanos() % 1_000_003) / 1_000_003.0)
}

/// The faults of one object in a text of bounded length.
pub(super) fn summary(faults: &[Fault]) -> String {
    let faults: Vec<String> = faults.iter().map(|it| it.fault.to_string()).collect();
    let mut text = faults.join("; ");
    if text.len() > MESSAGE {
        let end = (0..=MESSAGE).rev().find(|at| text.is_char_boundary(*at));
        text.truncate(end.unwrap_or(0));
        text.push('…');
    }
    text + ENDING
}

/// Returns the condition to write, or `None` if the status is up to date.
fn condition(report: &Report, faults: &[Fault], now: SystemTime) -> Option<Condition> {
    // Those of a whole rule: a peer's field is at fault itself.
    let names = |fault: &Fault| {
        let field = &fault.fault.field;
        field.ends_with(".domainNames") && !field.contains(".to[")
    };
    let (accepted, reason) = match faults {
        [] => (true, "Enforced"),
        faults if faults.iter().all(names) => (false, "DomainNamesNotSupported"),
        _ => (false, "Invalid"),
    };
    let message = match accepted {
        true => "every rule is enforced as written".to_owned(),
        false => summary(faults),
    };
    renewed(report, ConditionKind::Accepted, accepted, reason, message, now)
}

/// The condition that says this; `None` if the status says so already. It keeps the time of the one before while it
/// holds as that did.
pub(super) fn renewed(
    report: &Report,
    kind: ConditionKind,
    holds: bool,
    reason: &str,
    message: String,
    now: SystemTime,
) -> Option<Condition> {
    let known = report.condition(kind);
    let is_said = known.is_some_and(|it| {
        it.holds == holds
            && it.reason == reason
            && it.message == message
            && it.observed_generation == report.generation
    });
    if is_said {
        return None;
    }
    let since = known.filter(|it| it.holds == holds && !it.last_transition_time.is_empty());
    let last_transition_time = match since {
        Some(known) => known.last_transition_time.clone(),
        None => utc_seconds(now),
    };
    Some(Condition {
        kind,
        holds,
        reason: reason.to_owned(),
        message,
        observed_generation: report.generation,
        last_transition_time,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::{FieldFault, Kind};

    fn fault(field: &str) -> Fault {
        let object =
            ObjectRef { kind: Kind::ClusterNetworkPolicy, namespace: None, name: "c".into() };
        FieldFault { field: field.into(), problem: "is wrong".into() }.of(object)
    }

    #[test]
    fn a_condition_is_written_when_it_differs_and_keeps_its_time_while_it_holds() {
        let at = SystemTime::UNIX_EPOCH + Duration::from_millis(1_500);
        let mut report = Report { generation: Some(1), conditions: Vec::new() };
        let first = condition(&report, &[], at).unwrap();
        assert_eq!((first.holds, first.reason.as_str()), (true, "Enforced"));
        assert_eq!(first.last_transition_time, "1970-01-01T00:00:01Z");
        report.conditions = vec![first];
        assert_eq!(condition(&report, &[], at), None, "it says so");
        report.generation = Some(2);
        let later = at + Duration::from_secs(60);
        let second = condition(&report, &[], later).unwrap();
        assert_eq!(second.observed_generation, Some(2));
        assert_eq!(second.last_transition_time, "1970-01-01T00:00:01Z", "it is accepted since");
        let names = [fault("spec.egress[0].domainNames")];
        let third = condition(&report, &names, later).unwrap();
        assert_eq!((third.holds, third.reason.as_str()), (false, "DomainNamesNotSupported"));
        assert_eq!(third.last_transition_time, "1970-01-01T00:01:01Z");
        let both = [fault("spec.egress[0].domainNames"), fault("spec.tier")];
        let fourth = condition(&report, &both, later).unwrap();
        assert_eq!(fourth.reason, "Invalid");
        assert!(fourth.message.contains("spec.tier: is wrong"), "{}", fourth.message);
        let many: Vec<Fault> = (0..500).map(|n| fault(&format!("spec.egress[{n}]"))).collect();
        assert!(condition(&report, &many, later).unwrap().message.len() <= Warning::LONGEST);
    }
}
