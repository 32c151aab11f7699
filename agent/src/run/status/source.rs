//! The source of objects, as part of `status`.

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

    /// Problems to point out.
    pub(super) fn troubles(&self) -> Vec<String> {
        let watches = self.watches.iter().filter_map(|watch| {
            let why = watch.error.as_ref()?;
            Some(format!("watch of {}, {} tries: {why}", watch.kind, watch.retries))
        });
        let restore = self.restore_error.iter().map(|why| format!("saved state not used: {why}"));
        let save = self.save_error.iter().map(|why| format!("state not saved: {why}"));
        let report = self.report_error.iter().map(|why| format!("status not written: {why}"));
        watches.chain(restore).chain(save).chain(report).collect()
    }
}
