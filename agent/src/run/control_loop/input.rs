//! The source of objects, and what is known of it: its watches, its faults, the statuses of policies.

use std::collections::BTreeMap;
use std::time::{Instant, SystemTime};

use control::api_server::{Event, InitialSync};
use control::model::Report;
use control::{Kind, Object, ObjectRef};

use super::faults::{self, Faults};
use super::unenforced::unenforced;
use crate::config::{Config, Enforcer};
use crate::run::source::{
    API_SERVER, ApiServer, ClusterRecord, Source, SourceInfo, WatchInfo, WatchState,
};

/// The source of objects, and what is known of it.
#[derive(Default)]
pub(super) struct Input {
    /// Sends events until it is dropped.
    pub(super) from: Source,
    pub(super) info: SourceInfo,
    /// Buffers events until every kind is listed.
    pub(super) initial_sync: Option<Initial>,
    /// The cluster that the saved state belongs to; with an API server.
    pub(super) cluster: Option<ClusterRecord>,
    /// Number of the last reading of the manifests.
    pub(super) reading: u64,
    pub(super) skipped: BTreeMap<String, usize>,
    pub(super) faults: Faults,
    /// The statuses of cluster policies.
    pub(super) statuses: BTreeMap<ObjectRef, Report>,
}

impl Input {
    /// Nothing is known of the source yet.
    pub(super) fn new(from: Source, config: &Config) -> Self {
        let mut info = SourceInfo::default();
        (info.kind, info.place) = match &from {
            Source::Nothing => ("nothing", String::new()),
            Source::Manifests(_) => {
                let paths = config.manifests.iter().map(|path| path.display().to_string());
                ("manifests", paths.collect::<Vec<_>>().join(", "))
            }
            Source::ApiServer(api_server) => (API_SERVER, api_server.server.clone()),
        };
        let asks = matches!(from, Source::ApiServer(_));
        Self { from, info, initial_sync: asks.then(Initial::default), ..Self::default() }
    }

    /// Returns whether every kind is listed.
    pub(super) fn is_listed(&self) -> bool {
        self.initial_sync.is_none()
    }

    /// The API server, once every kind is listed.
    pub(super) fn listed_api_server(&self) -> Option<&ApiServer> {
        match &self.from {
            Source::ApiServer(api_server) if self.is_listed() => Some(api_server),
            _ => None,
        }
    }

    /// Records an event for `status` and the log.
    pub(super) fn note(&mut self, event: &Event, enforcer: Enforcer) {
        let now = SystemTime::now();
        let info = &mut self.info;
        let mut become_ = |kind: Kind, state: WatchState| {
            let unknown = WatchInfo { state: WatchState::Asking, since: now, retries: 0 };
            let watch = info.watches.entry(kind).or_insert(unknown);
            if matches!(state, WatchState::Failing(_)) {
                watch.retries += 1;
                info.retries += 1;
            }
            if std::mem::discriminant(&watch.state) != std::mem::discriminant(&state) {
                watch.since = now;
                let name = kind.name();
                match (&watch.state, &state) {
                    (_, WatchState::Failing(why)) => tracing::warn!("watch of {name}: {why}"),
                    (WatchState::Failing(_), _) => {
                        tracing::info!("watch of {name}: answered again")
                    }
                    (_, WatchState::Absent) => tracing::info!("{name} is not installed"),
                    (_, WatchState::Watching) => tracing::debug!("watch of {name}: in sync"),
                    (_, WatchState::Asking | WatchState::Resuming) => {}
                }
            }
            watch.state = state;
        };
        match event {
            Event::Cluster(_) | Event::Responded(..) | Event::Published(_) | Event::Synced => {}
            Event::PassedOver(_, count) => {
                info.last_event = Some(now);
                info.unchanged += count;
            }
            Event::Answered(kind) => become_(*kind, WatchState::Resuming),
            Event::Current(kind) => become_(*kind, WatchState::Watching),
            Event::Absent(kind) => become_(*kind, WatchState::Absent),
            Event::Trouble(kind, why) => become_(*kind, WatchState::Failing(why.clone())),
            Event::Fault(fault) => {
                faults::log(fault);
                info.strange += 1;
            }
            Event::Aggregate(now) => {
                let before = info.aggregate.replace(now.clone());
                if before.is_none_or(|before| before.role != now.role) {
                    tracing::info!("pods: {}", now.role.name());
                }
            }
            Event::Reported(_) => info.report_error = None,
            Event::NotReported(object, why) => {
                let why = format!("{object}: {why}");
                if info.report_error.as_ref() != Some(&why) {
                    tracing::warn!("write about {why}");
                }
                info.report_error = Some(why);
            }
            Event::Apply(object, faults) => {
                info.last_event = Some(now);
                self.note_status(object);
                let others = unenforced(enforcer, object);
                if !faults.is_empty() || !others.is_empty() || !self.faults.objects.is_empty() {
                    let object = object.reference();
                    let faults = faults.iter().map(|it| it.clone().of(object.clone()));
                    let faults = faults.chain(others).collect();
                    self.faults.set(object, faults);
                }
            }
            Event::Delete(reference) => {
                info.last_event = Some(now);
                self.faults.objects.remove(reference);
                self.statuses.remove(reference);
            }
            Event::Resync(kind, objects, faults) => {
                info.last_event = Some(now);
                self.statuses.retain(|object, _| object.kind != *kind);
                objects.iter().for_each(|object| self.note_status(object));
                let others = objects.iter().flat_map(|it| unenforced(enforcer, it));
                let faults = faults.iter().cloned().chain(others).collect();
                self.faults.set_kind(*kind, faults);
            }
        }
    }

    fn note_status(&mut self, object: &Object) {
        if let Some(report) = object.report().filter(|_| object.kind().is_cluster_policy()) {
            self.statuses.insert(object.reference(), report.clone());
        }
    }
}

/// Initial-sync buffer: events before every kind is listed.
#[derive(Default)]
pub(super) struct Initial {
    pub(super) buffer: InitialSync,
    /// When the first kind was listed.
    pub(super) began: Option<Instant>,
    /// The API server has said which cluster it is of.
    pub(super) is_identified: bool,
}
