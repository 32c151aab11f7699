//! What the control loop tells everybody else: the API's connections and HTTP read it here and
//! never make the loop wait.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use dataplane::{PortId, Snapshot, Switch};

use super::kernel::Programming;
use super::source::SourceInfo;
use crate::config::Config;
use observe::verdicts::Hub;

/// A running switch as seen from outside the control loop.
pub struct Board {
    /// How it was started.
    pub config: Config,
    /// The workers.
    pub switch: Arc<Switch>,
    /// The stream of verdicts.
    pub hub: Arc<Hub>,
    /// Packets that are followed.
    pub trace: observe::trace::Store,
    /// When it started, by the clock on the wall.
    pub started_at: SystemTime,
    /// Ports whose interfaces vanished under them.
    pub ports_lost: AtomicU64,
    started: Instant,
    ready: AtomicBool,
    deciding: AtomicBool,
    stalled: AtomicBool,
    source_stuck: AtomicBool,
    /// Milliseconds after the start at which the control loop last went round.
    heartbeat_ms: AtomicU64,
    state: Mutex<Arc<State>>,
}

/// What the control loop last worked out.
#[derive(Default)]
pub struct State {
    /// The snapshot handed to the workers.
    pub snapshot: Arc<Snapshot>,
    /// Its ports, and those that should be there.
    pub ports: Vec<PortInfo>,
    /// Pods whose attachment waits: name, and what for.
    pub waiting: Vec<(String, String)>,
    /// Ports lost lately, newest last.
    pub lost: Vec<LostPort>,
    /// Objects known, by kind.
    pub objects: BTreeMap<String, usize>,
    /// Documents of other kinds in the manifests, by kind.
    pub skipped: BTreeMap<String, usize>,
    /// What is wrong with the source's objects; the first of them.
    pub faults: Vec<String>,
    /// How much is wrong with them.
    pub faults_count: usize,
    /// Where objects come from.
    pub source: SourceInfo,
    /// How far the kernel's configuration follows.
    pub(super) programming: Vec<Programming>,
}

/// A port as people see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortInfo {
    /// Its number; `None` while it is not served.
    pub id: Option<PortId>,
    /// `ns/pod` or `host`.
    pub name: String,
    /// The interface it serves.
    pub interface: String,
    /// How frames reach it, or why it is not served.
    pub mode: String,
    /// Addresses behind it.
    pub addresses: Vec<String>,
    /// Whether policies are known for it; a port without them is closed.
    pub closed: bool,
}

/// A port whose interface vanished.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostPort {
    /// Its name.
    pub name: String,
    /// The interface.
    pub interface: String,
    /// When and why.
    pub when: SystemTime,
    /// What was noticed.
    pub why: String,
}

/// A control loop that has not gone round for so long hangs.
const LONGEST_ROUND: Duration = Duration::from_secs(15);

impl Board {
    pub(super) fn new(config: Config, switch: Arc<Switch>, hub: Arc<Hub>) -> Self {
        Self {
            config,
            switch,
            hub,
            trace: observe::trace::Store::default(),
            started_at: SystemTime::now(),
            ports_lost: AtomicU64::new(0),
            started: Instant::now(),
            ready: AtomicBool::new(false),
            deciding: AtomicBool::new(false),
            stalled: AtomicBool::new(false),
            source_stuck: AtomicBool::new(false),
            heartbeat_ms: AtomicU64::new(0),
            state: Mutex::default(),
        }
    }

    /// How long it has been running.
    pub fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    /// Whether pods can be attached: it has started, and knows a whole cluster to decide by.
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire) && self.deciding.load(Ordering::Acquire)
    }

    /// Why pods cannot be attached, if they cannot.
    pub fn unready(&self) -> Option<&'static str> {
        match (self.ready.load(Ordering::Acquire), self.deciding.load(Ordering::Acquire)) {
            (false, _) => Some("podgate is starting"),
            (true, false) => Some("the API server has not told everything yet"),
            (true, true) => None,
        }
    }

    /// What the control loop last worked out.
    pub fn state(&self) -> Arc<State> {
        Arc::clone(&self.lock())
    }

    /// What is not alive any more; empty if all is well.
    pub fn ailments(&self) -> Vec<&'static str> {
        let beat = Duration::from_millis(self.heartbeat_ms.load(Ordering::Acquire));
        let mut ailments = Vec::new();
        if !self.switch.is_alive() {
            ailments.push("a worker has ended");
        }
        if self.stalled.load(Ordering::Acquire) {
            ailments.push("a worker does not go round");
        }
        if self.source_stuck.load(Ordering::Acquire) {
            ailments.push("reading the manifests, or the API server's credentials, is stuck");
        }
        if self.uptime().saturating_sub(beat) > LONGEST_ROUND {
            ailments.push("the control loop does not go round");
        }
        ailments
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
    }

    pub(super) fn set_state(&self, state: State) {
        let old = std::mem::replace(&mut *self.lock(), Arc::new(state));
        drop(old);
    }

    fn lock(&self) -> MutexGuard<'_, Arc<State>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
