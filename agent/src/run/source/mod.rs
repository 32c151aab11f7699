//! Where objects come from: a folder of manifests, or the API server.
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
//! - `api_server`: the thread that asks the API server,
//! - `saved`: the thread that writes what the API server told, for a start without it.

mod api_server;
mod manifests;
mod saved;

use std::collections::BTreeMap;
use std::time::SystemTime;

use control::Kind;

pub(super) use api_server::{ApiServer, Slot};
pub(super) use manifests::Manifests;
pub(crate) use manifests::Reading;
pub(super) use saved::{Saver, load};

/// What objects come from; they come for as long as this lives.
pub(super) enum Source {
    /// Nowhere: no pod is known.
    Nothing,
    /// Files and folders.
    Manifests(Manifests),
    /// The API server.
    ApiServer(ApiServer),
}

impl Source {
    /// Whether the source's thread is free, or was since this was asked last; a read that does not
    /// return holds it.
    pub(super) fn responds(&self) -> bool {
        match self {
            Self::Nothing => true,
            Self::Manifests(manifests) => manifests.responds(),
            Self::ApiServer(api_server) => api_server.responds(),
        }
    }
}

/// The source as people see it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SourceInfo {
    /// `manifests`, `api-server` or `nothing`.
    pub kind: &'static str,
    /// Paths, or the address of the API server.
    pub place: String,
    /// Whether everything has been told at least once; only then may it decide, unless a saved
    /// state does.
    pub synced: bool,
    /// When the source last told anything.
    pub last_event: Option<SystemTime>,
    /// Requests that failed and were tried again.
    pub retries: u64,
    /// Events that named no object.
    pub strange: u64,
    /// Why a status could not be written the last time.
    pub report_error: Option<String>,
    /// The watch of each kind.
    pub watches: BTreeMap<Kind, WatchInfo>,
    /// What was done with the saved state at the start.
    pub restored: Restored,
    /// When the state was last saved.
    pub saved_at: Option<SystemTime>,
    /// Why it could not be saved the last time.
    pub save_error: Option<String>,
}

/// A watch as people see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchInfo {
    /// How it is.
    pub state: WatchState,
    /// Since when.
    pub since: SystemTime,
    /// Requests that failed.
    pub retries: u64,
}

/// How a watch is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchState {
    /// It was not answered yet.
    Asking,
    /// It is answered, and events may still be missing.
    Resuming,
    /// It is answered, and nothing is missing.
    Watching,
    /// The API server does not have the kind; it is looked for by and by.
    Absent,
    /// The last request failed, and is tried again.
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

/// What was done with the saved state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Restored {
    /// There was none.
    #[default]
    Nothing,
    /// It is of this moment, and in force until the API server has told everything.
    From(SystemTime),
    /// It could not be used.
    Refused(String),
}

impl SourceInfo {
    /// Whether what is known may decide.
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
