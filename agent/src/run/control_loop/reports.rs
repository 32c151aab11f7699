//! Writes conditions into the status of cluster policies.
//!
//! Every node evaluates the policies and would write the same conditions. One of them
//! writes, elected by a Lease; the others campaign only for conditions that differ from theirs, after
//! a delay that grows with the number of nodes.

use std::net::IpAddr;
use std::time::{Duration, Instant, SystemTime};

use control::api_server::{Event, Warning};
use control::model::{Condition, ConditionKind, Report};
use control::{Fault, ResolvedRule};

use super::reconciler::{Effects, Reconciler, Signal};
use observe::time::utc_seconds;

/// The time of the next comparison of the statuses with what they should be.
#[derive(Default)]
pub(super) struct Reports {
    due: Option<Instant>,
}

/// Interval of comparing all of them, in case a write was lost.
const AGAIN: Duration = Duration::from_secs(60);
/// Maximum of writes in one comparison.
const MOST: usize = 10;
/// Maximum length of the addresses of all rules, in bytes; the API takes 32 KiB.
const RULES: usize = 16 << 10;
/// Addresses of a rule that are named.
const ADDRESSES: usize = 16;
/// Maximum length of faults in a message, in bytes; with [`ENDING`] an Event takes it.
const MESSAGE: usize = Warning::LONGEST - ENDING.len() - "…".len();
/// The end of a message about faults.
const ENDING: &str = " (nothing opens by what is not enforced)";

impl Reconciler for Reports {
    fn is_due(&self, now: Instant) -> bool {
        self.due.is_some_and(|due| due <= now)
    }

    fn on(&mut self, signal: &Signal<'_>, effects: &mut Effects) {
        match signal {
            Signal::Source(event) if concerns_statuses(event) => {
                let spread = Duration::from_millis(2) * effects.control.view().nodes.len() as u32;
                let part = random_part(spread.clamp(Duration::from_millis(300), AGAIN));
                let due = Instant::now() + Duration::from_millis(200) + part;
                self.due = Some(self.due.map_or(due, |known| known.min(due)));
            }
            Signal::Due(now) => self.write(*now, effects),
            _ => {}
        }
    }
}

impl Reports {
    /// Writes the statuses that are out of date.
    fn write(&mut self, now: Instant, effects: &Effects) {
        let Some(api_server) = effects.input.listed_api_server() else { return };
        self.due = Some(now + AGAIN);
        let mut written = 0;
        for (object, report) in &effects.input.statuses {
            let moment = SystemTime::now();
            let accepted = condition(report, effects.input.faults.of(object), moment);
            let resolved = resolved(report, &effects.control.resolved(object), moment);
            for wanted in accepted.into_iter().chain(resolved) {
                if written == MOST || !api_server.report(object.clone(), wanted) {
                    self.due = Some(now + Duration::from_secs(3));
                    return;
                }
                written += 1;
            }
        }
    }
}

/// Whether a status may be another one after an event.
fn concerns_statuses(event: &Event) -> bool {
    match event {
        Event::Synced => true,
        Event::Apply(object, _) => object.kind().is_cluster_policy(),
        Event::Resync(kind, ..) => kind.is_cluster_policy(),
        _ => false,
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
    cut(faults.join("; "), MESSAGE) + ENDING
}

/// At most so many bytes of a text.
fn cut(mut text: String, most: usize) -> String {
    if text.len() > most {
        let end = (0..=most).rev().find(|at| text.is_char_boundary(*at));
        text.truncate(end.unwrap_or(0));
        text.push('…');
    }
    text
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

/// The condition that says which addresses the nodes and the API server of rules stand for; `None` if it is up to
/// date, or if there are no such rules.
fn resolved(report: &Report, rules: &[ResolvedRule], now: SystemTime) -> Option<Condition> {
    let words = |rule: &ResolvedRule| {
        let mut words: Vec<String> =
            rule.addresses.iter().take(ADDRESSES).map(IpAddr::to_string).collect();
        match rule.addresses.len().saturating_sub(ADDRESSES) {
            0 if words.is_empty() => words.push("no address".to_owned()),
            0 => {}
            more => words.push(format!("{more} more")),
        }
        format!("{}: {}", rule.field, words.join(", "))
    };
    let (holds, reason, message) = match rules {
        // The policy had such a rule before.
        [] => {
            report.condition(ConditionKind::Resolved)?;
            (true, "Written", "every address is written in the policy".to_owned())
        }
        _ => {
            let holds = rules.iter().all(|rule| !rule.addresses.is_empty());
            let reason = if holds { "Addresses" } else { "NoAddress" };
            let words: Vec<String> = rules.iter().map(words).collect();
            (holds, reason, cut(words.join("; "), RULES))
        }
    };
    renewed(report, ConditionKind::Resolved, holds, reason, message, now)
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
    use control::{FieldFault, Kind, ObjectRef};

    fn fault(field: &str) -> Fault {
        let object =
            ObjectRef { kind: Kind::ClusterNetworkPolicy, namespace: None, name: "c".into() };
        FieldFault { field: field.into(), problem: "is wrong".into() }.of(object)
    }

    #[test]
    fn a_status_names_the_addresses_of_nodes_and_says_where_there_are_none() {
        let at = SystemTime::UNIX_EPOCH;
        let mut report = Report { generation: Some(1), conditions: Vec::new() };
        let rule = |field: &str, count: u8| ResolvedRule {
            field: field.into(),
            addresses: (0..count).map(|n| [192, 0, 2, n].into()).collect(),
        };
        assert_eq!(resolved(&report, &[], at), None);
        let first = resolved(&report, &[rule("egress[0]", 2)], at).unwrap();
        assert_eq!((first.holds, &*first.message), (true, "egress[0]: 192.0.2.0, 192.0.2.1"));
        report.conditions = vec![first];
        assert_eq!(resolved(&report, &[rule("egress[0]", 2)], at), None, "it says so");
        let both = [rule("egress[0]", 0), rule("egress[2]", 20)];
        let second = resolved(&report, &both, at).unwrap();
        assert!(!second.holds && second.message.starts_with("egress[0]: no address; egress[2]: "));
        assert!(second.message.ends_with("192.0.2.15, 4 more"), "{}", second.message);
        assert_eq!(resolved(&report, &[], at).unwrap().reason, "Written");
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
