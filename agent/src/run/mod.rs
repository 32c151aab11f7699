//! The running switch.
//!
//! ```text
//! source ─────▶ ┐                              ┌──▶ workers (dataplane::Switch)
//! local API ──▶ ├─ events ─▶ control loop ─────┤
//! interfaces ─▶ │   (one thread: Control,      └──▶ SharedStatus ─▶ status, metrics, show
//! signals ────▶ ┘    pods, ports)
//! workers ───── verdicts ─────────────────────────▶ EventBroker ───▶ observe, Hubble, flow export
//! ```
//!
//! Only the control loop changes the switch's state, so there is no lock order to keep. It never
//! waits for the kernel: one thread opens ports, others program the network configuration, and all
//! report by events. Pending attachments are checked each round.
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
//! - `events`, `control_loop`: the events, and the loop with its reconcilers,
//! - `pods`, `records`: the attached pods, in memory and on disk,
//! - `kernel`: the interface to the kernel, replaced in tests, and the threads that program it,
//! - `names`: domain names of policies and their addresses; `dns`: the threads that follow the DNS of pods,
//! - `source`: where objects come from,
//! - `shared_status`: state that other threads read; `status` and `show` format it,
//! - `api`, `capture`: the server side of the local API and of live captures,
//! - `http`: health, metrics, and pages for clients elsewhere,
//! - `hubble`: the Hubble Observer API.

mod api;
mod capture;
mod control_loop;
mod dns;
mod durations;
mod encryption;
mod error;
mod errors;
mod events;
mod http;
mod hubble;
mod identities;
mod input;
mod journal;
mod kernel;
mod memory;
mod names;
mod other_switch;
mod owners;
mod pairs;
mod pods;
mod policies;
mod port;
mod recent;
mod records;
mod session_rules;
mod shared_status;
mod show;
mod socket;
mod source;
mod state_dir;
mod status;
mod table;
mod thread;
mod waiting;
mod workers;

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc::Sender;

use dataplane::{Frame, Memory};
use observe::verdicts::{EventBroker, Past, Wanted};
use telemetry::TlsOptions;

use events::Event;
use journal::Journal;
use thread::Thread;

pub use control_loop::load_socket_policies;
pub use error::StartError;
pub use errors::all_errors;
pub use http::{FOLDER, audience};
pub use input::Input;
pub use kernel::{
    HostEnd, HostNetwork, InterfaceEvent, Interfaces, KernelError, KernelInterfaces, Opened,
    OpenedUplink, Undo, WithoutPorts,
};
pub use other_switch::other_switch;
pub use policies::POLICY_COLUMNS;
pub use shared_status::{FlowOffload, LostPort, PortInfo, PublishedState, SharedStatus};
pub use show::{STAGED_COLUMNS, TABLES};
pub use source::{ReadManifests, Restored, SourceInfo, WatchInfo, WatchState};
pub use state_dir::{await_end_of_another, make_folder};
pub use status::{
    AggregateStatus, EncryptionStatus, EvictedStatus, FlowOffloadStatus, FramesStatus, PartStatus,
    PeerStatus, PortStatus, SessionStatus, SocketPoliciesStatus, SourceStatus, Status, WatchStatus,
};
pub use table::{Condition, Selection, Table};

/// A switch that was started.
pub struct Running {
    shared: Arc<SharedStatus>,
    events: Sender<Event>,
    // Dropped in this order: the loop answers pending requests before the API's connections end.
    _control_loop: Thread,
    threads: Vec<Thread>,
    _dns: dns::DnsThreads,
    api: Option<api::Server>,
    http: telemetry::Server,
    https: Option<telemetry::Server>,
    hubble: Option<::hubble::Server>,
    /// Prevents a second switch from using the same folder.
    _lock: Arc<fs::File>,
}

/// Starts a switch whose frames are in `memory`. If it does not start, the interfaces and tables that it
/// has made are removed.
///
/// # Errors
/// Names what could not be set up.
pub fn start(
    input: Input,
    mut interfaces: Box<dyn Interfaces>,
    memory: &Arc<Memory>,
    frames: Vec<Frame>,
) -> Result<Running, StartError> {
    // Held until all is removed.
    let _lock = Arc::clone(&input.lock);
    let undo = interfaces.undo()?;
    start_parts(input, interfaces, memory, frames).inspect_err(|_| {
        if let Err(left) = undo() {
            tracing::warn!("left by the start: {left}");
        }
    })
}

fn start_parts(
    input: Input,
    mut interfaces: Box<dyn Interfaces>,
    memory: &Arc<Memory>,
    frames: Vec<Frame>,
) -> Result<Running, StartError> {
    let Input {
        config,
        source,
        readings,
        events,
        received,
        socket_policies,
        encryption: programs,
        lock,
    } = input;
    let listener = TcpListener::bind(config.listen)
        .map_err(|error| StartError::Failed(format!("listen: {}: {error}", config.listen)))?;
    let report = events.clone();
    interfaces.watch(Box::new(move |event| {
        let _ = report.send(Event::Interface(event));
    }))?;
    let mut cluster = source::ClusterRecord::open(&config.state_dir);
    let refused = match &source {
        source::Source::ApiServer(api_server) => {
            api_server.cluster.as_ref().and_then(|uid| cluster.verify_at_start(uid))
        }
        _ => None,
    };
    let broker = EventBroker::new(&config.node_name, config.workers);
    let export = config.flow_export.export();
    if config.hubble.listen.is_some() || export.is_some_and(|it| it.filter.needs_labels()) {
        broker.directory().keep_labels();
    }
    let (switch, unsaved) = workers::start_workers(&config, memory, frames, &broker)?;
    let (names, copies) = names::Names::open(&config);
    let encryption = encryption::Encryption::start(&config, programs)?;
    let switch = Arc::new(switch);
    let shared = SharedStatus::new(config, switch, Arc::clone(&broker), names, encryption);
    let shared = Arc::new(shared);
    shared.note_saved("sessions", unsaved.map_or(Ok(()), Err));
    let http =
        telemetry::Server::start(listener, Arc::new(http::SwitchPages::new(&shared, &events)))
            .map_err(|error| StartError::Failed(format!("start the HTTP server: {error}")))?;
    let https = start_https(&shared, &events)?;
    let hubble = hubble::start(&shared)?;
    let channel = (events.clone(), received);
    let (dns, published) = dns::DnsThreads::start(&shared, &events, copies)?;
    let control_loop = control_loop::ControlLoop::start(
        Arc::clone(&shared),
        interfaces,
        (source, readings),
        (cluster, refused),
        channel,
        published,
        socket_policies,
    )?;
    let control_loop = Thread::start("control", move || control_loop.run())?;
    let mut running = Running {
        shared,
        events,
        _control_loop: control_loop,
        threads: Vec::new(),
        _dns: dns,
        api: None,
        http,
        https,
        hubble,
        _lock: lock,
    };
    // From here on a failure ends what runs.
    let shared = &running.shared;
    if let Some(export) = shared.config.flow_export.export() {
        let observer = broker.observe(export.filter.clone());
        let counts = Arc::clone(&shared.flow_export);
        let run = move || observe::export::run(&observer, &export, &counts);
        running.threads.push(Thread::start("flow-export", run)?);
    }
    if let Some(journal) = Journal::of(&shared.config) {
        let all = Box::new(|_: &_| true);
        let wanted = Wanted { matches: all, past: Past::Newest(0), follow: true };
        let observer = broker.observe(wanted);
        let state = Arc::clone(&shared.journal);
        let run = move || journal::run(&observer, &journal, &state);
        running.threads.push(Thread::start("journal", run)?);
    }
    running.threads.push(Thread::start("verdicts", move || broker.run())?);
    let socket = &shared.config.socket;
    let api = api::Server::start(socket, Arc::clone(shared), running.events.clone())
        .map_err(|error| StartError::Failed(format!("socket: {}: {error}", socket.display())))?;
    running.api = Some(api);
    running.shared.set_ready(true);
    Ok(running)
}

impl Running {
    /// The state that other threads read.
    pub fn shared(&self) -> &Arc<SharedStatus> {
        &self.shared
    }

    /// Address of the server for clients elsewhere, if there is one.
    pub fn https_address(&self) -> Option<SocketAddr> {
        self.https.as_ref().map(telemetry::Server::address)
    }

    /// Address of the Hubble Observer API, if it is answered at one.
    pub fn hubble_address(&self) -> Option<SocketAddr> {
        self.hubble.as_ref().and_then(::hubble::Server::address)
    }

    /// Address of the HTTP server; with the port that the kernel chose, if it was left to it.
    pub fn http_address(&self) -> SocketAddr {
        self.http.address()
    }
}

/// Starts the server for clients elsewhere, if one is configured.
fn start_https(
    shared: &Arc<SharedStatus>,
    events: &Sender<Event>,
) -> Result<Option<telemetry::Server>, StartError> {
    let config = &shared.config;
    let Some(address) = config.metrics.listen else { return Ok(None) };
    let input = |what: String| StartError::Input(format!("metrics-listen: {what}"));
    let Some(access) = config.api_server.clone() else {
        return Err(input("needs an API server, which reviews the clients' tokens".to_owned()));
    };
    let (files, options) = (config.metrics.certificate.as_ref(), TlsOptions::default());
    let identity = telemetry::Identity::new(files, &config.node_name, options);
    let guard = telemetry::Guard {
        identity: identity.map_err(input)?,
        authorize: Some(Box::new(http::Reviews::new(access, &config.node_name))),
    };
    let failed = |error| StartError::Failed(format!("metrics-listen: {address}: {error}"));
    let listener = TcpListener::bind(address).map_err(failed)?;
    let pages = Arc::new(http::Remote::new(shared, events));
    telemetry::Server::start_guarded(listener, pages, guard).map(Some).map_err(failed)
}

impl Drop for Running {
    /// Ends everything. The pods' interfaces keep their programs, which now drop what arrives.
    fn drop(&mut self) {
        self.shared.set_ready(false);
        // The loop may have ended.
        let _ = self.events.send(Event::Stop);
        self.shared.broker.stop();
    }
}

// The CNI plugin and the graph must agree on which pods leave checksums unfinished.
const _: () = assert!(linux_net::SINGLE_FRAME_MTU == dataplane::frame::ONE_PIECE);
