//! State that the control loop publishes. The local API and HTTP read it without delaying the loop.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use dataplane::graph::trace::{Filter, Tracing};
use dataplane::wire::Flow;
use dataplane::{PortId, Snapshot, Switch};
use flow_offload::{Followed, Offload};
use ipnet::IpNet;
use parking_lot::Mutex;

use super::durations::Durations;
use super::encryption::Encryption;
use super::journal::JournalState;
use super::kernel::Programming;
use super::names::Names;
use super::policies::Policies;
use super::recent::Recent;
use super::source::SourceInfo;
use super::status::{SocketPoliciesStatus, WaitingStatus};
use crate::config::Config;
use observe::verdicts::EventBroker;

/// A running switch, as other threads see it.
pub struct SharedStatus {
    /// The configuration.
    pub config: Config,
    /// The workers.
    pub switch: Arc<Switch>,
    /// The stream of verdicts.
    pub broker: Arc<EventBroker>,
    /// Addresses of domain names.
    pub(crate) names: Arc<Names>,
    /// The packet trace.
    pub trace: observe::trace::Store,
    /// Counts of exported and lost verdicts.
    pub(crate) flow_export: Arc<observe::export::ExportCounts>,
    /// State of the journal.
    pub(crate) journal: Arc<JournalState>,
    /// The policies, and what is in force of them.
    pub(super) policies: Arc<Policies>,
    /// State of flow offload.
    flow_offload: Mutex<FlowOffload>,
    /// Encryption between nodes, if it is on.
    pub(super) encryption: Option<Arc<Encryption>>,
    /// State of programs at pods' cgroups.
    socket_policies: Mutex<SocketPoliciesStatus>,
    /// Keeps the connections of the packet trace out of the kernel's hands.
    traced: Mutex<Option<Followed>>,
    /// Wall-clock time of the start.
    pub started_at: SystemTime,
    /// Ports whose interfaces were lost.
    pub ports_lost: AtomicU64,
    /// Durations of what it does.
    pub(crate) durations: Durations,
    started: Instant,
    ready: AtomicBool,
    deciding: AtomicBool,
    stalled: AtomicBool,
    source_stuck: AtomicBool,
    /// Time of the control loop's last round, in milliseconds after the start.
    heartbeat_ms: AtomicU64,
    state: Mutex<Arc<PublishedState>>,
    recent: Recent,
    /// The parts of the state that cannot be saved, with the reason.
    in_memory: Mutex<BTreeMap<&'static str, String>>,
}

/// State of flow offload.
#[derive(Clone, Default)]
pub enum FlowOffload {
    /// Not requested.
    #[default]
    Off,
    /// Nothing, for this reason.
    Unavailable(String),
    /// Programs in the kernel, and the port of the punt link.
    On(Arc<Offload>, PortId),
}

impl FlowOffload {
    /// Returns the running offload, if there is one.
    pub fn running(&self) -> Option<&Arc<Offload>> {
        match self {
            Self::On(offload, _) => Some(offload),
            Self::Off | Self::Unavailable(_) => None,
        }
    }
}

/// State published by the control loop.
#[derive(Default)]
pub struct PublishedState {
    /// The snapshot handed to the workers.
    pub snapshot: Arc<Snapshot>,
    /// The snapshot with the rules in force: the same one; where nftables enforces, one with a port for
    /// each pod whose interface is known.
    pub rules: Arc<Snapshot>,
    /// Its ports, and those that failed.
    pub ports: Arc<[PortInfo]>,
    /// Pending attachments.
    pub waiting: Vec<WaitingStatus>,
    /// Ports lost lately, newest last.
    pub lost: Vec<LostPort>,
    /// Objects known, by kind.
    pub objects: BTreeMap<String, usize>,
    /// Documents of other kinds in the manifests, by kind.
    pub skipped: BTreeMap<String, usize>,
    /// The first faults in the source's objects.
    pub faults: Vec<String>,
    /// Number of faults in the source's objects.
    pub faults_count: usize,
    /// Policies that are not enforced as written, since they have faults.
    pub closed_policies: Vec<String>,
    /// Files that cannot be read; their last readable versions are in force.
    pub refused_files: Vec<String>,
    /// The source of objects.
    pub source: SourceInfo,
    /// Networks of this node's pods.
    pub pod_networks: Vec<IpNet>,
    /// Bytes of the uplink's largest packet, less a tunnel's headers; `None` without an uplink.
    pub pod_mtu: Option<u32>,
    /// State of the kernel's configuration, by part.
    pub(super) programming: Vec<Programming>,
}

/// A port, for display.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortInfo {
    /// Its number; `None` while it is not served.
    pub id: Option<PortId>,
    /// `ns/pod` or `host`.
    pub name: String,
    /// The interface it serves.
    pub interface: String,
    /// Mode of the port, or the reason why it is not served.
    pub mode: String,
    /// Addresses behind it.
    pub addresses: Vec<String>,
    /// Whether policies are known for it; a port without them is closed.
    pub closed: bool,
}

/// A port whose interface was lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostPort {
    /// Its name.
    pub name: String,
    /// The interface.
    pub interface: String,
    /// When it was noticed.
    pub when: SystemTime,
    /// The reason.
    pub why: String,
}

/// A control loop without a round for this long hangs.
const LONGEST_ROUND: Duration = Duration::from_secs(15);

impl SharedStatus {
    pub(super) fn new(
        config: Config,
        switch: Arc<Switch>,
        broker: Arc<EventBroker>,
        names: Arc<Names>,
        encryption: Option<Arc<Encryption>>,
    ) -> Self {
        Self {
            config,
            switch,
            broker,
            names,
            trace: observe::trace::Store::default(),
            flow_export: Arc::default(),
            journal: Arc::default(),
            policies: Arc::default(),
            flow_offload: Mutex::default(),
            encryption,
            socket_policies: Mutex::new(SocketPoliciesStatus::without(None)),
            traced: Mutex::default(),
            started_at: SystemTime::now(),
            ports_lost: AtomicU64::new(0),
            durations: Durations::default(),
            started: Instant::now(),
            ready: AtomicBool::new(false),
            deciding: AtomicBool::new(false),
            stalled: AtomicBool::new(false),
            source_stuck: AtomicBool::new(false),
            heartbeat_ms: AtomicU64::new(0),
            state: Mutex::default(),
            recent: Recent::default(),
            in_memory: Mutex::default(),
        }
    }

    /// Notes whether a part of the state is on disk.
    pub(super) fn note_saved(&self, part: &'static str, saved: Result<(), String>) {
        let mut in_memory = self.in_memory.lock();
        match saved {
            Ok(()) => {
                if in_memory.remove(part).is_some() {
                    tracing::info!("{part}: saved again");
                }
            }
            Err(why) if in_memory.get(part) == Some(&why) => {}
            Err(why) => {
                tracing::warn!("{part} in memory only: {why}");
                in_memory.insert(part, why);
            }
        }
    }

    /// The parts of the state that end with this process, since they cannot be saved, with the reason.
    pub(super) fn in_memory(&self) -> BTreeMap<String, String> {
        let in_memory = self.in_memory.lock();
        in_memory.iter().map(|(part, why)| ((*part).to_owned(), why.clone())).collect()
    }

    /// Time since the start.
    pub fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    /// Returns whether pods can be attached: the switch has started and the cluster's state is
    /// complete.
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire) && self.deciding.load(Ordering::Acquire)
    }

    /// Returns why pods cannot be attached, if they cannot.
    pub fn unready(&self) -> Option<&'static str> {
        match (self.ready.load(Ordering::Acquire), self.deciding.load(Ordering::Acquire)) {
            (false, _) => Some("podgate is starting"),
            (true, false) => Some("the API server's objects are not all listed yet"),
            (true, true) => None,
        }
    }

    /// State published by the control loop.
    pub fn state(&self) -> Arc<PublishedState> {
        Arc::clone(&self.state.lock())
    }

    /// The unhealthy parts; empty if the switch is healthy.
    pub fn unhealthy_reasons(&self) -> Vec<&'static str> {
        let beat = Duration::from_millis(self.heartbeat_ms.load(Ordering::Acquire));
        let mut unhealthy_reasons = Vec::new();
        if !self.switch.is_alive() {
            unhealthy_reasons.push("a worker has ended");
        }
        if self.stalled.load(Ordering::Acquire) {
            unhealthy_reasons.push("a worker makes no progress");
        }
        if self.source_stuck.load(Ordering::Acquire) {
            unhealthy_reasons
                .push("reading the manifests, or the API server's credentials, is stuck");
        }
        if self.uptime().saturating_sub(beat) > LONGEST_ROUND {
            unhealthy_reasons.push("the control loop makes no progress");
        }
        unhealthy_reasons
    }

    /// State of flow offload.
    pub fn flow_offload(&self) -> FlowOffload {
        self.flow_offload.lock().clone()
    }

    /// Names the object of a filter of verdicts that is not known here.
    pub(crate) fn unknown(&self, filter: &observe::verdicts::Filter) -> Option<String> {
        self.broker.unknown(filter, &self.state().rules)
    }

    /// Begins a trace of `count` packets. The connections that they may belong to come back to the
    /// switch first; others stay in the kernel.
    pub(crate) fn begin_trace(&self, filter: Filter, count: u32) {
        let flow_offload = self.flow_offload();
        let tracing = Arc::new(Tracing::new(filter.clone(), count));
        let followed = flow_offload.running().map(|offload| {
            let tracing = Arc::clone(&tracing);
            offload.follow(move |connection| {
                let may_match =
                    |(ports, flows): ([&str; 2], [Flow; 2])| filter.matches_session(ports, &flows);
                !tracing.is_over() && connection.directions().into_iter().any(may_match)
            })
        });
        self.trace.begin(&self.switch, tracing, count);
        *self.traced.lock() = followed;
    }

    /// Ends the trace and forgets it.
    pub(crate) fn clear_trace(&self) {
        self.trace.clear(&self.switch);
        *self.traced.lock() = None;
    }

    pub(super) fn set_flow_offload(&self, now: FlowOffload) {
        *self.flow_offload.lock() = now;
    }

    /// State of programs at pods' cgroups.
    pub(super) fn socket_policies(&self) -> SocketPoliciesStatus {
        self.socket_policies.lock().clone()
    }

    pub(super) fn set_socket_policies(&self, now: SocketPoliciesStatus) {
        *self.socket_policies.lock() = now;
    }

    /// Drops of the last minute, by the outcome's name.
    pub(super) fn drops_last_minute(&self) -> BTreeMap<String, u64> {
        self.recent.drops(&self.switch)
    }

    pub(super) fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Ordering::Release);
    }

    pub(super) fn set_deciding(&self, deciding: bool) {
        self.deciding.store(deciding, Ordering::Release);
    }

    pub(super) fn set_stalled(&self, stalled: bool) {
        self.stalled.store(stalled, Ordering::Release);
    }

    pub(super) fn set_source_stuck(&self, stuck: bool) {
        self.source_stuck.store(stuck, Ordering::Release);
    }

    pub(super) fn beat(&self) {
        let now = self.uptime().as_millis().try_into().unwrap_or(u64::MAX);
        self.heartbeat_ms.store(now, Ordering::Release);
        self.recent.note(self.uptime(), &self.switch);
    }

    pub(super) fn set_state(&self, state: PublishedState) {
        let old = std::mem::replace(&mut *self.state.lock(), Arc::new(state));
        drop(old);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;
    use crate::config::Options;
    use crate::run::status::Status;
    use crate::run::workers::start_workers;

    /// A switch with one worker, whose state is below `folder`.
    pub(in crate::run) fn started(folder: &Path) -> SharedStatus {
        started_with(folder, |_| {})
    }

    /// A switch with one worker, whose state is below `folder`, with these options as well.
    pub(in crate::run) fn started_with(
        folder: &Path,
        set: impl FnOnce(&mut Options),
    ) -> SharedStatus {
        let state_dir = Some(folder.to_owned());
        let mut options = Options { state_dir, workers: Some(1), ..Options::default() };
        set(&mut options);
        let config = Config::resolve(options, "node-a", &BTreeSet::new()).unwrap();
        let (memory, frames) = dataplane::Memory::heap(2048, 64);
        let broker = EventBroker::new("node-a", 1);
        let (switch, _) = start_workers(&config, &memory, frames, &broker).unwrap();
        let (names, _) = crate::run::names::Names::open(&config);
        SharedStatus::new(config, Arc::new(switch), broker, names, None)
    }

    #[test]
    fn a_stuck_source_shows_in_status_and_health() {
        let folder = testkit::TempDir::new("stuck");
        let shared = started(folder.path());
        assert_eq!(Status::of(&shared).problems, Vec::<String>::new());
        shared.set_source_stuck(true);
        let status = Status::of(&shared);
        assert!(status.problems[0].contains("is stuck"), "{:?}", status.problems);
        assert!(status.to_string().contains("is stuck"), "{status}");
        shared.set_source_stuck(false);
        assert_eq!(Status::of(&shared).problems, Vec::<String>::new());
    }
}
