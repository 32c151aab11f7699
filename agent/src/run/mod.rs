//! The running switch.
//!
//! ```text
//! source ─────▶ ┐                              ┌──▶ workers (dataplane::Switch)
//! local API ──▶ ├─ events ─▶ control loop ─────┤
//! interfaces ─▶ │   (one thread: Control,      └──▶ SharedStatus ─▶ status, metrics, show
//! signals ────▶ ┘    pods, ports)
//! workers ───── verdicts ─────────────────────────▶ EventBroker ───▶ observe
//! ```
//!
//! Only the control loop changes the switch's state, so there is no lock order to keep. It never
//! waits: pending attachments are checked each round, and other threads program the kernel's
//! network configuration.
//!
//! The order of the start keeps everything closed until policies are in force:
//!
//! 1. Manifests are read before anything else. They, or the state saved last, become the first
//!    snapshot, which is in force on every worker before any port opens.
//! 2. The ports of the host and of the pods that an earlier process had attached are opened.
//! 3. The local API answers, and the watches of the API server start. `/readyz` succeeds once every
//!    kind is listed.
//!
//! While no process runs, however it ended, the XDP programs on the pods' interfaces drop
//! everything: a pod without a switch is closed.
//!
//! - `input`: the switch's input, read before anything else,
//! - `control_loop`: the loop and what it does for each event,
//! - `pods`, `records`: the attached pods, in memory and on disk,
//! - `kernel`: the interface to the kernel, replaced in tests, and the threads that program it,
//! - `source`: where objects come from,
//! - `shared_status`: state that other threads read; `status` and `show` format it.

mod control_loop;
mod durations;
mod input;
mod kernel;
mod pairs;
mod pods;
mod recent;
mod records;
mod session_rules;
mod shared_status;
mod show;
mod source;
mod status;
mod table;

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;
use std::time::Duration;

use control::{Object, PodKey, SessionRules};
use dataplane::session::Sessions;
use dataplane::switch;
use dataplane::wire::Mac;
use dataplane::{Frame, Memory, Switch};

use crate::config::Config;
use crate::http;
use local_api::{self, Answer, Request};
use observe::verdicts::EventBroker;

pub use input::Input;
pub use kernel::{
    HostNetwork, InterfaceEvent, Interfaces, KernelInterfaces, Opened, OpenedUplink, WithoutPorts,
};
pub(crate) use pairs::{PairOfEnds, pairs_of_ends};
pub(crate) use session_rules::Follower;
pub use shared_status::{FlowOffload, LostPort, PortInfo, SharedStatus, State};
pub use show::TABLES;
pub(crate) use show::show;
pub use source::{Restored, SourceInfo, WatchInfo, WatchState};
pub use status::{FlowOffloadStatus, PartStatus, PortStatus, SourceStatus, Status, WatchStatus};
pub use table::{Condition, Selection, Table};

/// Why the switch did not start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// The input is unusable.
    #[error("{0}")]
    Input(String),
    /// A system resource could not be set up.
    #[error("{0}")]
    Failed(String),
}

/// Events of the control loop.
pub(crate) enum Event {
    /// The manifests, after a change.
    Manifests(source::Reading),
    /// An event of the API server's watches.
    Source(control::api_server::Event, source::Slot),
    /// A request of the local API, and where its answer goes.
    Request(Request, Sender<Answer>),
    /// A request for the session rules of a pod, or of all; the requesting thread computes them.
    SessionRules(Option<PodKey>, Sender<Option<SessionRules>>),
    /// A request for all objects that policies are made of.
    Objects(Sender<Vec<Object>>),
    /// An event of the kernel's interfaces.
    Interface(InterfaceEvent),
    /// The host port was made or verified; the MAC address of the kernel's end.
    HostPort(Mac),
    /// New or changed next hops.
    NextHops(Vec<(kernel::Destination, kernel::Hop)>),
    /// Ends the loop.
    Stop,
}

/// A switch that was started.
pub struct Running {
    shared: Arc<SharedStatus>,
    events: Sender<Event>,
    control_loop: Option<JoinHandle<()>>,
    broker: Option<JoinHandle<()>>,
    api: Option<crate::Server>,
    http: Option<telemetry::Server>,
    /// Prevents a second switch from using the same folder.
    _lock: fs::File,
}

/// Timeout until the first snapshot is in force.
const FIRST_SNAPSHOT: Duration = Duration::from_secs(30);

/// How long the start waits for the kernel's configuration; retries go on afterwards.
const FIRST_PROGRAMMING: Duration = Duration::from_secs(3);

impl StartError {
    pub(crate) fn thread(error: std::io::Error) -> Self {
        Self::Failed(format!("start a thread: {error}"))
    }
}

/// Starts a switch whose frames are in `memory`.
///
/// # Errors
/// Names what could not be set up.
pub fn start(
    input: Input,
    mut interfaces: Box<dyn Interfaces>,
    memory: &Arc<Memory>,
    frames: Vec<Frame>,
) -> Result<Running, StartError> {
    let Input { config, source, reading, events, received } = input;
    let lock = lock_folder(&config.state_dir)?;
    let listener = TcpListener::bind(config.listen)
        .map_err(|error| StartError::Failed(format!("listen: {}: {error}", config.listen)))?;
    let tell = events.clone();
    interfaces
        .watch(Box::new(move |event| {
            let _ = tell.send(Event::Interface(event));
        }))
        .map_err(StartError::Failed)?;
    let broker = EventBroker::new(&config.node_name, config.workers);
    let switch = start_workers(&config, memory, frames, &broker)?;
    let shared = Arc::new(SharedStatus::new(config, Arc::new(switch), Arc::clone(&broker)));
    let http =
        telemetry::Server::start(listener, Arc::new(http::SwitchPages::new(&shared, &events)))
            .map_err(|error| StartError::Failed(format!("start the HTTP server: {error}")))?;
    let channel = (events.clone(), received);
    let mut control_loop =
        control_loop::ControlLoop::new(Arc::clone(&shared), interfaces, source, channel)?;
    if let Some(reading) = reading {
        control_loop.take_manifests(reading);
    }
    if shared.config.api_server.is_some() {
        control_loop.take_saved();
    }
    control_loop.first_snapshot(FIRST_SNAPSHOT)?;
    control_loop.start_programming()?;
    control_loop.set_up_flow_offload();
    control_loop.set_up_host_port()?;
    control_loop.set_up_uplink()?;
    control_loop.take_up_pods()?;
    control_loop.wait_for_kernel(FIRST_PROGRAMMING);
    let failed = StartError::thread;
    let thread = |name: &str| std::thread::Builder::new().name(name.to_owned());
    let control_loop = thread("control").spawn(move || control_loop.run()).map_err(failed)?;
    let fetcher = Arc::clone(&broker);
    let broker = thread("verdicts").spawn(move || fetcher.run()).map_err(failed)?;
    let socket = shared.config.socket.clone();
    let api = crate::Server::start(&socket, Arc::clone(&shared), events.clone())
        .map_err(|error| StartError::Failed(format!("socket: {}: {error}", socket.display())))?;
    shared.set_ready(true);
    Ok(Running {
        shared,
        events,
        control_loop: Some(control_loop),
        broker: Some(broker),
        api: Some(api),
        http: Some(http),
        _lock: lock,
    })
}

impl Running {
    /// The state that other threads read.
    pub fn shared(&self) -> &Arc<SharedStatus> {
        &self.shared
    }

    /// Address of the HTTP server; with the port that the kernel chose, if it was left to it.
    pub fn http_address(&self) -> SocketAddr {
        self.http.as_ref().map_or(self.shared.config.listen, telemetry::Server::address)
    }
}

impl Drop for Running {
    /// Ends everything. The pods' interfaces keep their programs, which now drop what arrives.
    fn drop(&mut self) {
        self.shared.set_ready(false);
        // The loop answers pending requests before it ends; the API's connections end after that.
        let _ = self.events.send(Event::Stop);
        self.shared.broker.stop();
        for thread in [self.control_loop.take(), self.broker.take()].into_iter().flatten() {
            // A thread that panicked has said so.
            let _ = thread.join();
        }
        drop(self.api.take());
        drop(self.http.take());
    }
}

fn start_workers(
    config: &Config,
    memory: &Arc<Memory>,
    frames: Vec<Frame>,
    broker: &Arc<EventBroker>,
) -> Result<Switch, StartError> {
    let file = config.state_dir.join("sessions");
    let session_accounting = config.session_accounting;
    let config = switch::Config {
        workers: config.workers,
        cores: config.cores.clone(),
        rx_mode: config.rx_mode,
        sessions: config.sessions,
        ports: config.max_ports,
        timeouts: config.timeouts,
    };
    let sessions = Sessions::in_file(&file, config.sessions, config.ports, config.timeouts);
    let sessions = sessions.unwrap_or_else(|error| {
        tracing::warn!("connections will not outlive this process: {}: {error}", file.display());
        Sessions::new(config.sessions, config.ports, config.timeouts)
    });
    sessions.count_packets(session_accounting);
    Switch::start_over(&config, sessions, memory, frames, |worker| broker.inspector(worker))
        .map_err(|error| StartError::Failed(format!("start the workers: {error}")))
}

fn lock_folder(folder: &Path) -> Result<fs::File, StartError> {
    let failed = |path: &Path, error: std::io::Error| {
        StartError::Failed(format!("state-dir: {}: {error}", path.display()))
    };
    make_folder(folder).map_err(|error| failed(folder, error))?;
    // An existing folder may be open to other users, who could hold the lock.
    let mode = fs::Permissions::from_mode(0o700);
    fs::set_permissions(folder, mode).map_err(|error| failed(folder, error))?;
    let path: PathBuf = folder.join("lock");
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let file = options.open(&path).map_err(|error| failed(&path, error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => Err(StartError::Failed(format!(
            "state-dir: {}: another podgate is running with this folder",
            folder.display()
        ))),
        Err(fs::TryLockError::Error(error)) => Err(failed(&path, error)),
    }
}

/// Creates a folder that only its owner may enter, unless it exists.
pub(crate) fn make_folder(folder: &Path) -> std::io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

// The CNI plugin and the graph must agree on which pods leave checksums unfinished.
const _: () = assert!(linux_net::SINGLE_FRAME_MTU == dataplane::frame::ONE_PIECE);
