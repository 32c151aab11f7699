//! The state of the switch, in one object for people and scripts.

mod attention;
mod encryption;
mod flow_offload;
mod not_enforced;
mod socket_policies;
mod source;
mod text;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::Ordering;

use dataplane::port::RingFrames;
use dataplane::session::Evicted;
use dataplane::switch::PortPart;
use dataplane::{Outcome, Switch, Verdict};
use serde::{Deserialize, Serialize};

use super::control_loop::NFTABLES;
use super::journal::Files;
use super::kernel::Programming;
use super::shared_status::{PortInfo, SharedStatus};
use observe::time::utc;
use snapshot::UPLINK;

use crate::config::rx_mode_name;

pub use encryption::{EncryptionStatus, PeerStatus};
pub use flow_offload::FlowOffloadStatus;
pub(super) use not_enforced::{NotEnforced, Reason};
pub use socket_policies::SocketPoliciesStatus;
pub use source::{AggregateStatus, SourceStatus, WatchStatus};
pub(super) use text::port_and_frames_table;

/// The answer to `status`; the names of its fields are fixed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Name of the node.
    pub node: String,
    /// Version of the switch.
    pub version: String,
    /// Whether pods can be attached.
    pub ready: bool,
    /// Whether every part makes progress.
    #[serde(default = "healthy")]
    pub healthy: bool,
    /// The unhealthy parts, then what is not enforced, in words.
    #[serde(default)]
    pub problems: Vec<String>,
    /// What is not enforced.
    #[serde(default)]
    pub not_enforced: Vec<NotEnforced>,
    /// Decisions of the tables that are not those of their rules, if there are any.
    #[serde(default)]
    pub contradictions: Option<Contradictions>,
    /// When it was started, RFC 3339 in UTC.
    pub started: String,
    /// Seconds since then.
    pub uptime_s: u64,
    /// The last snapshot published.
    pub generation: u64,
    /// The oldest snapshot that a worker still decides by.
    pub generation_in_force: u64,
    /// `polling`, `adaptive` or `interrupt`.
    pub rx_mode: String,
    /// Each worker's rounds.
    pub workers: Vec<WorkerStatus>,
    /// Number of sessions.
    pub sessions: SessionStatus,
    /// Packets by verdict: `forward`, `drop`, `consume`.
    pub packets: BTreeMap<String, u64>,
    /// Objects known, by kind.
    pub objects: BTreeMap<String, usize>,
    /// Documents of other kinds in the manifests, by kind.
    pub skipped: BTreeMap<String, usize>,
    /// Their faults.
    pub faults: Vec<String>,
    /// Packets dropped in the last minute, by reason.
    #[serde(default)]
    pub drops_last_minute: BTreeMap<String, u64>,
    /// Networks of this node's pods.
    #[serde(default)]
    pub pod_networks: Vec<String>,
    /// Largest MTU of pods whose packets pass the uplink; absent without one.
    #[serde(default)]
    pub pod_mtu: Option<u32>,
    /// The source of objects.
    #[serde(default)]
    pub source: SourceStatus,
    /// The parts of the state that end with this process, since the state folder does not take them,
    /// with the reason: `sessions`, `names`.
    #[serde(default)]
    pub in_memory: BTreeMap<String, String>,
    /// The journal, if there is one.
    #[serde(default)]
    pub journal: Option<Files>,
    /// All ports.
    pub ports: Vec<PortStatus>,
    /// Frames of packets.
    #[serde(default)]
    pub frames: FramesStatus,
    /// Pending attachments.
    pub waiting: Vec<WaitingStatus>,
    /// Ports lost lately.
    pub lost: Vec<LostStatus>,
    /// Ports lost since the start.
    pub ports_lost: u64,
    /// Verdicts that were not delivered to observers.
    pub verdicts_lost: u64,
    /// The parts of the kernel's network configuration that the switch keeps.
    #[serde(default)]
    pub kernel: Vec<KernelStatus>,
    /// Privileges of the process.
    #[serde(default)]
    pub privileges: confine::Confinement,
    /// State of flow offload.
    #[serde(default)]
    pub flow_offload: FlowOffloadStatus,
    /// State of socket policies.
    #[serde(default)]
    pub socket_policies: SocketPoliciesStatus,
    /// State of encryption between nodes.
    #[serde(default)]
    pub encryption: EncryptionStatus,
}

/// The frames of all packets, as of the last second: without traffic, free ones and those that
/// ports have given to the kernel are all there are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FramesStatus {
    /// Frames there are.
    pub total: usize,
    /// Free ones.
    pub free: usize,
    /// Those that ports have given to the kernel, the punt link among them, by place.
    pub kernel: BTreeMap<String, u32>,
}

impl FramesStatus {
    fn of(shared: &SharedStatus) -> Self {
        let (total, free) = shared.switch.frames();
        let frames = shared.switch.ring_frames();
        let kernel = frames.places().map(|(place, count)| (place.to_owned(), count)).into();
        Self { total, free, kernel }
    }

    /// Those that are neither free nor the kernel's: on their way through workers.
    pub fn on_their_way(&self) -> usize {
        let kernel: u32 = self.kernel.values().sum();
        self.total.saturating_sub(self.free + kernel as usize)
    }
}

/// A switch that does not say so is of a version that said it by problems alone.
const fn healthy() -> bool {
    true
}

/// Decisions of the tables that are not those of their rules.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contradictions {
    /// Their number, among the decisions that were verified.
    pub count: u64,
    /// One of the last, in words.
    pub last: String,
}

impl Contradictions {
    /// Those of all workers; `None` if there are none.
    pub(crate) fn of(switch: &Switch) -> Option<Self> {
        let count = switch.counters().map(|it| it.contradicted.value()).sum();
        let last = switch.counters().find_map(|it| it.contradiction())?;
        (count > 0).then(|| Self { count, last: last.to_string() })
    }
}

impl fmt::Display for Contradictions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { count, last } = self;
        write!(f, "{count} decisions are not those of the rules, please report it: {last}")
    }
}

/// One worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerStatus {
    /// Its number.
    pub worker: usize,
    /// The core it is pinned to.
    pub core: Option<usize>,
    /// Rounds that found packets.
    pub busy_rounds: u64,
    /// Rounds that found none.
    pub idle_rounds: u64,
    /// Times it went to sleep.
    pub sleeps: u64,
}

/// The session table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionStatus {
    /// Sessions there are.
    pub used: u32,
    /// Sessions that fit.
    pub capacity: u32,
    /// Sessions that gave up their place for a new one of the same owner, since the start.
    #[serde(default)]
    pub evicted: EvictedStatus,
    /// Records of the last process that were damaged and dropped.
    #[serde(default)]
    pub damaged: u32,
}

/// Sessions that made room for others, by what they were.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvictedStatus {
    /// TCP that was closed or reset.
    pub closed: u64,
    /// Without a reply.
    pub unanswered: u64,
    /// Idle, other than established TCP.
    pub idle: u64,
    /// Established TCP.
    pub established: u64,
}

impl EvictedStatus {
    /// The number of each kind, with its name.
    pub fn by_state(&self) -> [(&'static str, u64); 4] {
        [
            ("closed", self.closed),
            ("unanswered", self.unanswered),
            ("idle", self.idle),
            ("established", self.established),
        ]
    }
}

impl From<Evicted> for EvictedStatus {
    fn from(Evicted { closed, unanswered, idle, established }: Evicted) -> Self {
        Self { closed, unanswered, idle, established }
    }
}

/// One port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortStatus {
    /// `ns/pod` or `host`.
    pub name: String,
    /// Its number; absent while it is not served.
    pub id: Option<u16>,
    /// The interface it serves.
    pub interface: String,
    /// Mode of the port (`native, copy`), or the reason why it is not served.
    pub mode: String,
    /// The worker that serves it; of several, the first.
    pub worker: Option<usize>,
    /// The workers that serve its queues.
    #[serde(default)]
    pub parts: Vec<PartStatus>,
    /// Addresses behind it.
    pub addresses: Vec<String>,
    /// Whether everything from and to it is dropped, because its policies are not known.
    pub closed: bool,
    /// Frames that came in, those that the kernel forwarded among them.
    pub received: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Frames that left, those that the kernel forwarded among them.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Frames that could not leave.
    pub refused: u64,
    /// Frames the kernel dropped because the port did not take them in time.
    pub missed: u64,
    /// Frames of the port that the kernel has, by place; as of the last second.
    #[serde(default)]
    pub frames: BTreeMap<String, u32>,
    /// Sessions opened from it.
    pub sessions: u32,
}

impl PortStatus {
    /// Whether it is not served: nftables serves pods without a port of the switch.
    pub fn is_down(&self) -> bool {
        self.id.is_none() && (self.closed || self.mode != NFTABLES)
    }
}

/// The part of a port that one worker serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartStatus {
    /// The worker.
    pub worker: usize,
    /// The queues.
    pub queues: Vec<usize>,
    /// Frames that came in by them.
    pub received: u64,
    /// Frames that left by them.
    pub sent: u64,
}

/// A pending attachment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingStatus {
    /// `ns/pod`
    pub pod: String,
    /// The reason why it waits.
    pub reason: String,
}

/// A part of the kernel's configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelStatus {
    /// `host-port`, `interfaces`, or the table: `masquerade`, `filter`, `redirects`, `nftables`,
    /// `host-firewall`.
    pub part: String,
    /// Whether the kernel has the desired state.
    pub in_sync: bool,
    /// Error of the last attempt.
    pub error: Option<String>,
}

impl KernelStatus {
    fn of(programming: &Programming) -> Self {
        let Programming { name, in_sync, error } = programming;
        Self { part: (*name).to_owned(), in_sync: *in_sync, error: error.clone() }
    }
}

/// A port whose interface was lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostStatus {
    /// `ns/pod` or `host`.
    pub name: String,
    /// The interface.
    pub interface: String,
    /// When it was noticed, RFC 3339 in UTC.
    pub when: String,
    /// The reason.
    pub why: String,
}

impl Status {
    /// As of now.
    pub fn of(shared: &SharedStatus) -> Self {
        let (state, switch, config) = (shared.state(), &shared.switch, &shared.config);
        let (unhealthy, not_enforced) = (shared.unhealthy_reasons(), NotEnforced::all(shared));
        let unenforced = not_enforced.iter().map(ToString::to_string);
        let workers = switch.counters().enumerate().map(|(worker, counters)| WorkerStatus {
            worker,
            core: config.cores.get(worker).copied(),
            busy_rounds: counters.busy_rounds.value(),
            idle_rounds: counters.idle_rounds.value(),
            sleeps: counters.sleeps.value(),
        });
        Self {
            node: config.node_name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ready: shared.is_ready(),
            healthy: unhealthy.is_empty(),
            problems: unhealthy.into_iter().map(str::to_owned).chain(unenforced).collect(),
            not_enforced,
            contradictions: Contradictions::of(&shared.switch),
            started: utc(shared.started_at),
            uptime_s: shared.uptime().as_secs(),
            generation: state.snapshot.generation,
            generation_in_force: switch.generation(),
            rx_mode: rx_mode_name(config.rx_mode).to_owned(),
            workers: workers.collect(),
            sessions: SessionStatus {
                used: switch.sessions().used(),
                capacity: switch.sessions().capacity(),
                evicted: switch.sessions().evicted().into(),
                damaged: switch.sessions().damaged(),
            },
            packets: packets(shared),
            objects: state.objects.clone(),
            skipped: state.skipped.clone(),
            faults: state.faults.clone(),
            drops_last_minute: shared.drops_last_minute(),
            pod_networks: state.pod_networks.iter().map(ToString::to_string).collect(),
            pod_mtu: state.pod_mtu,
            source: SourceStatus::of(&state.source),
            in_memory: shared.in_memory(),
            journal: config.journal.map(|_| shared.journal.files.lock().clone()),
            ports: ports(shared),
            frames: FramesStatus::of(shared),
            waiting: state.waiting.clone(),
            lost: state
                .lost
                .iter()
                .map(|lost| LostStatus {
                    name: lost.name.clone(),
                    interface: lost.interface.clone(),
                    when: utc(lost.when),
                    why: lost.why.clone(),
                })
                .collect(),
            ports_lost: shared.ports_lost.load(Ordering::Relaxed),
            verdicts_lost: shared.broker.lost(),
            kernel: state.programming.iter().map(KernelStatus::of).collect(),
            privileges: confine::Confinement::now(),
            flow_offload: FlowOffloadStatus::of(shared),
            socket_policies: shared.socket_policies(),
            encryption: EncryptionStatus::of(shared),
        }
    }
}

fn packets(shared: &SharedStatus) -> BTreeMap<String, u64> {
    let mut packets = BTreeMap::new();
    let by_kernel = shared.flow_offload().running().map_or(0, |it| it.state().counters.packets);
    for verdict in [Verdict::Forward, Verdict::Drop, Verdict::Consume] {
        let outcomes = || Outcome::ALL.iter().filter(|outcome| outcome.verdict() == verdict);
        let of_worker =
            |worker: &dataplane::Counters| outcomes().map(|o| worker.of(*o)).sum::<u64>();
        let all: u64 = shared.switch.counters().map(|worker| of_worker(worker)).sum();
        let beside = if verdict == Verdict::Forward { by_kernel } else { 0 };
        packets.insert(verdict.name().to_owned(), all + beside);
    }
    packets
}

/// Frames that the kernel has of these parts of a port; empty where the port has no rings of its
/// own.
fn frames(parts: &[PortPart]) -> BTreeMap<String, u32> {
    if parts.iter().all(|part| part.queues.is_empty()) {
        return BTreeMap::new();
    }
    let all = parts.iter().map(|part| part.counters.ring_frames());
    let sum = all.fold(RingFrames::default(), |sum, it| sum + it);
    sum.places().map(|(place, count)| (place.to_owned(), count)).into()
}

/// All ports as of now.
pub(super) fn ports(shared: &SharedStatus) -> Vec<PortStatus> {
    let state = shared.state();
    let flow_offload = shared.flow_offload();
    let by_kernel = flow_offload.running().map(|offload| offload.of_ports()).unwrap_or_default();
    let status = |port: &PortInfo| {
        let parts = port.id.map_or_else(Vec::new, |id| shared.switch.parts(id));
        let count = |read: fn(&dataplane::counters::PortCounters) -> u64| {
            parts.iter().map(|part| read(&part.counters)).sum::<u64>()
        };
        let usage = port.id.and_then(|id| by_kernel.get(&id)).copied().unwrap_or_default();
        let over_share = flow_offload
            .running()
            .zip(port.id)
            .map_or(0, |(offload, id)| offload.kernel().over_share(id));
        let part = |part: &PortPart| PartStatus {
            worker: part.worker,
            queues: part.queues.clone().collect(),
            received: part.counters.received.value(),
            sent: part.counters.sent.value(),
        };
        PortStatus {
            name: port.name.clone(),
            id: port.id.map(|id| id.0),
            interface: port.interface.clone(),
            mode: port.mode.clone(),
            worker: parts.first().map(|part| part.worker),
            parts: parts.iter().map(part).collect(),
            addresses: port.addresses.clone(),
            closed: port.closed,
            received: count(|it| it.received.value()) + usage.received,
            received_bytes: count(|it| it.received_bytes.value()) + usage.received_bytes,
            sent: count(|it| it.sent.value()) + usage.sent,
            sent_bytes: count(|it| it.sent_bytes.value()) + usage.sent_bytes,
            refused: count(|it| it.refused.value()),
            missed: count(|it| it.missed.value()) + over_share,
            frames: frames(&parts),
            sessions: port.id.map_or(0, |id| {
                let sessions = shared.switch.sessions();
                // Counts sessions that remote senders opened, through any port.
                let remote = if port.name == UPLINK { sessions.used_by_remote() } else { 0 };
                sessions.used_by(id) + remote
            }),
        }
    };
    state.ports.iter().map(status).collect()
}
