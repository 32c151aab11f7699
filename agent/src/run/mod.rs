//! The running switch.
//!
//! ```text
//! source ─────▶ ┐                              ┌──▶ workers (dataplane::Switch)
//! local API ──▶ ├─ events ─▶ control loop ─────┤
//! interfaces ─▶ │   (one thread: Control,      └──▶ Board ─▶ status, metrics, show
//! signals ────▶ ┘    pods, ports)
//! workers ───── verdicts ─────────────────────────▶ Hub ───▶ observe
//! ```
//!
//! Only the control loop changes anything, so there is no order of locks to keep. It never
//! waits: an attachment that is not in force yet is noted and looked at again, and the kernel's
//! network configuration is programmed by threads of its own.
//!
//! The order of the start keeps everything closed until it is judged:
//!
//! 1. manifests are read before anything else; they or the state saved last become the first
//!    snapshot, which is in force on every worker,
//! 2. the host port, and the pods that an earlier process had attached, get their ports,
//! 3. the local API answers and the API server is watched; `/readyz` says so once a whole cluster
//!    is known.
//!
//! Before, and after the process has ended in whatever way, the XDP programs on the pods'
//! interfaces drop everything: a pod without a switch is closed.
//!
//! - `input`: what the switch is given, read before anything else,
//! - `control_loop`: the loop and what it does for each event,
//! - `pods`, `records`: the attached pods, in memory and on disk,
//! - `kernel`: the way to the kernel, replaced in tests, and the threads that program it,
//! - `source`: where objects come from,
//! - `board`: what others may know; `status` and `show` put it into words.

mod board;
mod control_loop;
mod input;
mod kernel;
mod pods;
mod records;
mod session_rules;
mod show;
mod source;
mod status;

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;
use std::time::Duration;

use control::{PodKey, SessionRules};
use dataplane::session::Sessions;
use dataplane::switch;
use dataplane::wire::Mac;
use dataplane::{Frame, Memory, Switch};

use crate::config::Config;
use crate::http;
use local_api::{self, Answer, Request};
use observe::verdicts::Hub;

pub use board::{Board, LostPort, PortInfo, State};
pub use input::Input;
pub use kernel::{HostNetwork, InterfaceEvent, Interfaces, KernelInterfaces, Opened, OpenedUplink};
pub(crate) use session_rules::Follower;
pub(crate) use show::show;
pub use show::{TABLES, Table};
pub use source::{Restored, SourceInfo, WatchInfo, WatchState};
pub use status::{PartStatus, PortStatus, SourceStatus, Status, WatchStatus};

/// Why the switch did not start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// What it was given cannot be used.
    #[error("{0}")]
    Input(String),
    /// Something in its node_context does not work.
    #[error("{0}")]
    Failed(String),
}

/// What the control loop hears.
pub(crate) enum Event {
    /// The manifests, after a change.
    Manifests(source::Reading),
    /// An event of the API server's watches.
    Source(control::api_server::Event, source::Slot),
    /// Somebody wants something.
    Request(Request, Sender<Answer>),
    /// Somebody wants the session rules of a pod, or of all; they are worked out on their side.
    SessionRules(Option<PodKey>, Sender<Option<SessionRules>>),
    /// Something happened to interfaces.
    Interface(InterfaceEvent),
    /// The host port was made or verified; the MAC address of the kernel's end.
    HostPort(Mac),
    /// First hops that are new or different.
    NextHops(Vec<(kernel::Destination, kernel::Hop)>),
    /// The end.
    Stop,
}

/// A switch that was started.
pub struct Running {
    board: Arc<Board>,
    events: Sender<Event>,
    control_loop: Option<JoinHandle<()>>,
    hub: Option<JoinHandle<()>>,
    api: Option<crate::Server>,
    http: Option<telemetry::Server>,
    /// Held until the end, so that no second switch uses the same folder.
    _lock: fs::File,
}

/// How long the first snapshot may take to be in force.
const FIRST_SNAPSHOT: Duration = Duration::from_secs(30);

/// How long the start waits for the kernel's configuration; it is tried again afterwards.
const FIRST_PROGRAMMING: Duration = Duration::from_secs(3);

impl StartError {
    pub(crate) fn thread(error: std::io::Error) -> Self {
        Self::Failed(format!("start a thread: {error}"))
    }
}

/// Starts a switch whose frames stand in `memory`.
///
/// # Errors
/// Tells what does not work.
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
    let hub = Hub::new(&config.node_name, config.workers);
    let switch = start_workers(&config, memory, frames, &hub)?;
    let board = Arc::new(Board::new(config, Arc::new(switch), Arc::clone(&hub)));
    let http = telemetry::Server::start(listener, Arc::new(http::Health(Arc::clone(&board))))
        .map_err(|error| StartError::Failed(format!("start the HTTP server: {error}")))?;
    let channel = (events.clone(), received);
    let mut control_loop =
        control_loop::ControlLoop::new(Arc::clone(&board), interfaces, source, channel)?;
    if let Some(reading) = reading {
        control_loop.take_manifests(reading);
    }
    if board.config.api_server.is_some() {
        control_loop.take_saved();
    }
    control_loop.first_snapshot(FIRST_SNAPSHOT)?;
    control_loop.start_programming()?;
    control_loop.set_up_host_port()?;
    control_loop.set_up_uplink()?;
    control_loop.take_up_pods()?;
    control_loop.wait_for_kernel(FIRST_PROGRAMMING);
    let failed = StartError::thread;
    let thread = |name: &str| std::thread::Builder::new().name(name.to_owned());
    let control_loop = thread("control").spawn(move || control_loop.run()).map_err(failed)?;
    let fetcher = Arc::clone(&hub);
    let hub = thread("verdicts").spawn(move || fetcher.run()).map_err(failed)?;
    let socket = board.config.socket.clone();
    let api = crate::Server::start(&socket, Arc::clone(&board), events.clone())
        .map_err(|error| StartError::Failed(format!("socket: {}: {error}", socket.display())))?;
    board.set_ready(true);
    Ok(Running {
        board,
        events,
        control_loop: Some(control_loop),
        hub: Some(hub),
        api: Some(api),
        http: Some(http),
        _lock: lock,
    })
}

impl Running {
    /// What others may know about it.
    pub fn board(&self) -> &Arc<Board> {
        &self.board
    }

    /// Where HTTP is answered; tells the port if it was left to the kernel.
    pub fn http_address(&self) -> SocketAddr {
        self.http.as_ref().map_or(self.board.config.listen, telemetry::Server::address)
    }
}

impl Drop for Running {
    /// Ends everything. The pods' interfaces keep their programs, which now drop what arrives.
    fn drop(&mut self) {
        self.board.set_ready(false);
        // The loop answers those who wait before it ends; the API's connections end after that.
        let _ = self.events.send(Event::Stop);
        self.board.hub.stop();
        for thread in [self.control_loop.take(), self.hub.take()].into_iter().flatten() {
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
    hub: &Arc<Hub>,
) -> Result<Switch, StartError> {
    let file = config.state_dir.join("sessions");
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
    Switch::start_over(&config, sessions, memory, frames, |worker| hub.inspector(worker))
        .map_err(|error| StartError::Failed(format!("start the workers: {error}")))
}

fn lock_folder(folder: &Path) -> Result<fs::File, StartError> {
    let failed = |path: &Path, error: std::io::Error| {
        StartError::Failed(format!("state-dir: {}: {error}", path.display()))
    };
    make_folder(folder).map_err(|error| failed(folder, error))?;
    // One that is there may be open to others, who could hold the lock.
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

/// Makes a folder that only its owner may enter, unless it is there.
pub(crate) fn make_folder(folder: &Path) -> std::io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

// The CNI plugin and the graph must agree on which pods leave checksums unfinished.
const _: () = assert!(linux_net::SINGLE_FRAME_MTU == dataplane::frame::ONE_PIECE);
