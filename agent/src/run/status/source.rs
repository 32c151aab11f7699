//! The source of objects, as part of `status`.

use std::time::SystemTime;

use control::api_server::Aggregate;
use serde::{Deserialize, Serialize};

use crate::run::source::{Restored, SourceInfo, WatchState};
use observe::time::utc;

/// The source of objects; the names of its fields are fixed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceStatus {
    /// `manifests`, `api-server` or `nothing`.
    pub kind: String,
    /// Paths, or the address of the API server.
    pub place: String,
    /// `in-sync`; `waiting` before everything is listed; `failing` while any request does;
    /// `resuming` while events of any watch may still be missing.
    pub state: String,
    /// Whether every kind was listed at least once since the start.
    pub synced: bool,
    /// When the last event was received, RFC 3339 in UTC.
    pub last_event: Option<String>,
    /// Requests that failed and were retried.
    pub retries: u64,
    /// Events that named no object.
    pub strange_events: u64,
    /// The watch of each kind.
    pub watches: Vec<WatchStatus>,
    /// The aggregate that pods come from; absent without the option.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aggregate: Option<AggregateStatus>,
    /// Time of the saved state that is in force until every kind is listed.
    pub restored_from: Option<String>,
    /// Why the saved state was refused.
    pub restore_error: Option<String>,
    /// When the state was last saved.
    pub saved: Option<String>,
    /// Error of the last save, if it failed.
    pub save_error: Option<String>,
    /// Error of the last status write, if it failed.
    pub report_error: Option<String>,
}

/// The aggregate of pods.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AggregateStatus {
    /// `reading` while pods of other nodes come from it; `watching` while this switch watches all pods by itself,
    /// `writing` if it writes them for others, `standby` if it takes over; `starting` before that is decided.
    pub role: String,
    /// Why pods do not come from it, or will not for much longer.
    pub reason: Option<String>,
    /// The node that writes.
    pub writer: Option<String>,
    /// The node that takes over.
    pub standby: Option<String>,
    /// Sequence number of the newest object.
    pub sequence: u64,
    /// Resource version of the pods that the writer had then.
    pub resource_version: Option<String>,
    /// When that was, by the writer's clock, RFC 3339.
    pub written: Option<String>,
    /// Age of the writer's view by this node's clock, in milliseconds.
    pub age_ms: Option<u64>,
}

impl AggregateStatus {
    fn of(aggregate: &Aggregate) -> Self {
        let some = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        let since = |at: SystemTime| SystemTime::now().duration_since(at).unwrap_or_default();
        let age = aggregate.received.map(|at| since(at) + aggregate.age);
        Self {
            role: aggregate.role.name().to_owned(),
            reason: aggregate.reason.clone(),
            writer: some(&aggregate.writer),
            standby: some(&aggregate.standby),
            sequence: aggregate.sequence,
            resource_version: some(&aggregate.version),
            written: some(&aggregate.written),
            age_ms: age.map(|age| age.as_millis() as u64),
        }
    }

    /// One line.
    fn line(&self) -> String {
        let what = match self.role.as_str() {
            "reading" => "of other nodes from PodgateAddresses",
            "writing" => "watched, and written to PodgateAddresses",
            "standby" => "watched, to take over writing PodgateAddresses",
            "watching" => "watched by this switch itself",
            _ => "waiting for PodgateAddresses",
        };
        let writer = self.writer.iter().map(|node| {
            let version = self.resource_version.as_deref().unwrap_or("?");
            let age = self.age_ms.unwrap_or(0) as f64 / 1e3;
            format!(", those of node {node} at resource version {version}, {age:.1} s old")
        });
        format!("{what}{}", writer.collect::<String>())
    }
}

/// One kind's watch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchStatus {
    /// The kind.
    pub kind: String,
    /// `asking`, `resuming`, `watching`, `not-installed` or `failing`.
    pub state: String,
    /// Why it fails.
    pub error: Option<String>,
    /// Time of the last change of its state, RFC 3339 in UTC.
    pub since: String,
    /// Requests that failed.
    pub retries: u64,
}

impl SourceStatus {
    pub(super) fn of(info: &SourceInfo) -> Self {
        let time = |at: Option<std::time::SystemTime>| at.map(utc);
        let watches = info.watches.iter().map(|(kind, watch)| WatchStatus {
            kind: kind.name().to_owned(),
            state: watch.state.name().to_owned(),
            error: match &watch.state {
                WatchState::Failing(why) => Some(why.clone()),
                _ => None,
            },
            since: utc(watch.since),
            retries: watch.retries,
        });
        let (restored_from, restore_error) = match &info.restored {
            Restored::Nothing => (None, None),
            Restored::From(at) => (time(Some(*at)), None),
            Restored::Refused(why) => (None, Some(why.clone())),
        };
        Self {
            kind: info.kind.to_owned(),
            place: info.place.clone(),
            state: info.state().to_owned(),
            synced: info.synced,
            last_event: time(info.last_event),
            retries: info.retries,
            strange_events: info.strange,
            watches: watches.collect(),
            aggregate: info.aggregate.as_ref().map(AggregateStatus::of),
            restored_from,
            restore_error,
            saved: time(info.saved_at),
            save_error: info.save_error.clone(),
            report_error: info.report_error.clone(),
        }
    }

    /// One line.
    pub(super) fn line(&self) -> String {
        let what = match (self.kind.as_str(), self.place.as_str()) {
            ("nothing", _) => return "none: no kubeconfig, no manifests".to_owned(),
            ("api-server", place) => format!("API server {place}"),
            (kind, place) => format!("{kind} {place}"),
        };
        let state = match (self.state.as_str(), self.synced, &self.restored_from) {
            ("in-sync", ..) => "in sync".to_owned(),
            (state, true, _) => state.to_owned(),
            (state, false, Some(at)) => format!("{state}; the state of {at} counts"),
            (state, false, None) => format!("{state}; everything is closed"),
        };
        let last = self.last_event.iter().map(|at| format!(", last event {at}"));
        format!("{what} ({state}{})", last.collect::<String>())
    }

    /// One line about the aggregate of pods.
    pub(super) fn pods(&self) -> Option<String> {
        self.aggregate.as_ref().map(AggregateStatus::line)
    }

    /// Problems to point out.
    pub(super) fn troubles(&self) -> Vec<String> {
        let watches = self.watches.iter().filter_map(|watch| {
            let why = watch.error.as_ref()?;
            Some(format!("watch of {}, {} tries: {why}", watch.kind, watch.retries))
        });
        let restore = self.restore_error.iter().map(|why| format!("saved state not used: {why}"));
        let save = self.save_error.iter().map(|why| format!("state not saved: {why}"));
        let report = self.report_error.iter().map(|why| format!("status not written: {why}"));
        let late = self
            .aggregate
            .iter()
            .filter_map(|it| Some(format!("PodgateAddresses: {}", it.reason.as_ref()?)));
        watches.chain(late).chain(restore).chain(save).chain(report).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use control::api_server::AggregateRole;

    use super::*;

    #[test]
    fn status_says_where_pods_come_from_and_how_old_they_are() {
        let received = SystemTime::now() - Duration::from_secs(3);
        let mut aggregate = Aggregate {
            role: AggregateRole::Reading,
            writer: "n1".into(),
            sequence: 7,
            version: "81".into(),
            age: Duration::from_secs(60),
            received: Some(received),
            ..Aggregate::default()
        };
        let status = AggregateStatus::of(&aggregate);
        assert!(status.age_ms.unwrap() >= 63_000, "{status:?}");
        assert_eq!((status.standby.as_ref(), status.written.as_ref()), (None, None));
        let line = status.line();
        let expected =
            "of other nodes from PodgateAddresses, those of node n1 at resource version 81, 63.";
        assert!(line.starts_with(expected), "{line}");
        (aggregate.role, aggregate.reason) = (AggregateRole::Watching, Some("404".into()));
        let source = SourceStatus {
            aggregate: Some(AggregateStatus::of(&aggregate)),
            ..SourceStatus::default()
        };
        assert!(source.pods().unwrap().starts_with("watched by this switch itself"));
        assert_eq!(source.troubles(), ["PodgateAddresses: 404"]);
        let json = serde_json::to_value(&source).unwrap();
        assert_eq!(json["aggregate"]["role"], "watching");
        assert_eq!(serde_json::from_value::<SourceStatus>(json).unwrap(), source);
        let without = serde_json::to_value(SourceStatus::default()).unwrap();
        assert!(without.get("aggregate").is_none());
    }
}
