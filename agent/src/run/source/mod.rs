//! The source of objects: a folder of manifests, or the API server.
//!
//! ```text
//! manifests (files, watched) ─┐
//!                             ├─ events ─▶ control loop ─▶ what is in force
//! API server (own thread) ────┘                │  ▲
//!                                              ▼  │ at the start
//!                                     saved state (own thread)
//! ```
//!
//! - `manifests`: files and folders under watch,
//! - `api_server`: the thread that watches the API server,
//! - `cluster`: the cluster that saved state belongs to,
//! - `state_writer`: the thread that saves the API server's objects, for a start without it.

mod api_server;
mod cluster;
mod manifests;
mod state_writer;

use std::collections::BTreeMap;
use std::time::SystemTime;

use control::Kind;
use control::api_server::Aggregate;

pub(super) use api_server::{ApiServer, Slots};
pub(super) use cluster::{ClusterRecord, names, sessions};
pub(super) use manifests::Manifests;
pub use manifests::ReadManifests;
pub(crate) use manifests::Reading;
pub(super) use state_writer::{StateWriter, load};

/// The source of objects. Dropping it ends its events.
#[derive(Default)]
pub(super) enum Source {
    /// No source: no pod is known.
    #[default]
    Nothing,
    /// Files and folders.
    Manifests(Manifests),
    /// The API server.
    ApiServer(ApiServer),
}

impl Source {
    /// Returns whether the source's thread made progress since the last call. A read that does not
    /// return blocks it.
    pub(super) fn responds(&self) -> bool {
        match self {
            Self::Nothing => true,
            Self::Manifests(manifests) => manifests.responds(),
            Self::ApiServer(api_server) => api_server.responds(),
        }
    }
}

/// The source, for display.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SourceInfo {
    /// `manifests`, `api-server` or `nothing`.
    pub kind: &'static str,
    /// Paths, or the address of the API server.
    pub place: String,
    /// Whether every kind was listed at least once; until then only a saved state may decide.
    pub synced: bool,
    /// When the last event was received.
    pub last_event: Option<SystemTime>,
    /// Requests that failed and were retried.
    pub retries: u64,
    /// Events that named no object.
    pub strange: u64,
    /// Events that said nothing new.
    pub unchanged: u64,
    /// Error of the last status write, if it failed.
    pub report_error: Option<String>,
    /// The watch of each kind.
    pub watches: BTreeMap<Kind, WatchInfo>,
    /// The aggregate that pods come from, if they are to.
    pub aggregate: Option<Aggregate>,
    /// Use of the saved state at the start.
    pub restored: Restored,
    /// When the state was last saved.
    pub saved_at: Option<SystemTime>,
    /// Error of the last save, if it failed.
    pub save_error: Option<String>,
}

/// A watch, for display.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchInfo {
    /// Its state.
    pub state: WatchState,
    /// Since when.
    pub since: SystemTime,
    /// Requests that failed.
    pub retries: u64,
}

/// The state of a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchState {
    /// Not answered yet.
    Asking,
    /// Answered; events may still be missing.
    Resuming,
    /// Answered and in sync.
    Watching,
    /// The API server does not have the kind; discovery is repeated.
    Absent,
    /// The last request failed and is retried.
    Failing(String),
}

impl WatchState {
    /// Its name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Asking => "asking",
            Self::Resuming => "resuming",
            Self::Watching => "watching",
            Self::Absent => "not-installed",
            Self::Failing(_) => "failing",
        }
    }
}

/// Use of the saved state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Restored {
    /// There was none.
    #[default]
    Nothing,
    /// It was saved at this time, and is in force until every kind is listed.
    From(SystemTime),
    /// It could not be used.
    Refused(String),
}

impl SourceInfo {
    /// Returns whether the known objects may decide.
    pub fn decides(&self) -> bool {
        self.synced || matches!(self.restored, Restored::From(_)) || self.kind != API_SERVER
    }

    /// One word for it: `in-sync`, `waiting` before everything is listed, `failing` while any
    /// request does, `resuming` while events of any watch may still be missing.
    pub fn state(&self) -> &'static str {
        let is_failing = |it: &WatchInfo| matches!(it.state, WatchState::Failing(_));
        let is_resuming = |it: &WatchInfo| it.state == WatchState::Resuming;
        match self.synced {
            _ if self.watches.values().any(is_failing) => "failing",
            false => "waiting",
            true if self.watches.values().any(is_resuming) => "resuming",
            true => "in-sync",
        }
    }
}

/// [`SourceInfo::kind`] of the API server.
pub(super) const API_SERVER: &str = "api-server";
