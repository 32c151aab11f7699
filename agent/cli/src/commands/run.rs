//! `podgate run`: the switch of this node, until a signal ends it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use control::api_server::Access;
use dataplane::port::af_xdp::{AfXdpError, Programs, RegisteredUmem, Umem, UmemConfig};
use linux_net::Netlink;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tracing::Level;

use super::Ended;
use agent::config::{
    Config, ConfigError, Enforcer, HugePages, LogFormat, LogLevel, Options, SocketPolicies,
    host_name, manifests_of, online_cores, read_file,
};
use agent::run::{
    Input, KernelInterfaces, ReadManifests, StartError, WithoutPorts, await_end_of_another,
    load_socket_policies, make_folder, other_switch, start,
};
use cli_runtime::{NO, UNUSABLE, fail};
use socket_policy::SocketPolicy;

/// Arguments of `podgate run`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Precedence: flag, environment variable, file (names without dashes).

SIGTERM or SIGINT ends the switch. Attached pods are cut off until the next start, which continues with them.

Objects come from the API server (--kubeconfig, or the service account inside a pod) or from manifests, never \
from both.

Example:
  podgate run --node node-a --kubeconfig /etc/podgate/kubeconfig --cores 2,3
  podgate run --node node-a --manifests /etc/podgate/manifests

Example of a file:
  node-name: node-a
  manifests: [/etc/podgate/manifests]
  cores: 2,3
  rx-mode: adaptive")]
pub struct Args {
    /// File with options, YAML
    #[arg(long, env = "PODGATE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,

    #[command(flatten)]
    options: Options,
}

/// Runs until a signal ends it.
pub(super) fn run(args: &Args) -> Ended {
    let config = read(args).map_err(|error| fail(UNUSABLE, error))?;
    // Also before another switch ends for this one.
    if config.enforcer == Enforcer::AfXdp
        && let Some(fault) = dataplane::kernel::refuses_af_xdp()
    {
        return Err(fail(UNUSABLE, fault));
    }
    let level = match config.log_level {
        LogLevel::Error => Level::ERROR,
        LogLevel::Warn => Level::WARN,
        LogLevel::Info => Level::INFO,
        LogLevel::Debug => Level::DEBUG,
        LogLevel::Trace => Level::TRACE,
    };
    let format = match config.log_format {
        LogFormat::Text => telemetry::log::Format::Text,
        LogFormat::Json => telemetry::log::Format::Json,
    };
    telemetry::log::start(level, format);
    // From here on a signal stays pending until it is read, also during the start.
    let unhandled = |error| fail(NO, format_args!("handle signals: {error}"));
    let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(unhandled)?;
    // Before the other switch's programs are looked for: until its end there may be more of them.
    let mut prepared = Prepared::default();
    if let Some(timeout) = config.takeover_wait {
        let prepare = || Prepared::of(&config).map(|it| prepared = it);
        let is_cancelled = || signals.pending().next().is_some();
        let ended = await_end_of_another(&config.state_dir, timeout, prepare, is_cancelled);
        if !ended.map_err(failed)? {
            return Ok(ExitCode::SUCCESS);
        }
    }
    let links = Netlink::open().and_then(|mut netlink| netlink.links()).unwrap_or_default();
    Umem::recognize_programs(&links);
    flow_offload::recognize_programs(links.iter().map(|link| link.index));
    let sockets = load_socket_policies(&config);
    prepared.load_programs(&config);
    // A confined process cannot see the namespaces of one that is not in the same confinement.
    let other = other_switch();
    // Inherited by the threads that follow.
    confine_thread(&config).map_err(failed)?;
    let running = switch(config, prepared, sockets, other).map_err(failed)?;
    let config = &running.shared().config;
    let state = match running.shared().unready() {
        None => "ready".to_owned(),
        Some(why) => format!("running, but {why}"),
    };
    tracing::info!(
        "{state}: node {}, local API at {}, http://{}/metrics",
        config.node_name,
        config.socket.display(),
        running.http_address()
    );
    let signal = signals.forever().next();
    tracing::info!("signal {}: ending", signal.unwrap_or_default());
    Ok(ExitCode::SUCCESS)
}

fn failed(error: StartError) -> ExitCode {
    match error {
        StartError::Input(error) => fail(UNUSABLE, error),
        StartError::Failed(error) => fail(NO, error),
    }
}

/// Gives up the privileges of the calling thread that the switch does not need. It writes files of
/// its state, its socket, the export of verdicts, the journal, and pins of programs.
fn confine_thread(config: &Config) -> Result<(), StartError> {
    fn folder(file: &Path) -> &Path {
        file.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new("."))
    }
    let (state, socket) = (config.state_dir.as_path(), folder(&config.socket));
    // Rules are about what is there. Errors are reported where the folders are used.
    let _ = make_folder(state).and_then(|()| make_folder(socket));
    let export = config.flow_export.file.as_deref().map(folder);
    let journal = config.journal.map(|_| config.journal_dir.as_path());
    if let Some(Err(error)) = journal.map(make_folder) {
        let folder = config.journal_dir.display();
        tracing::error!("journal-dir: {folder}: {error}; no journal can be written");
    }
    let pins = Some(config.bpf_fs.as_path());
    let pins = pins.filter(|_| config.socket_policies != SocketPolicies::Off);
    let folders = [state, socket].into_iter().chain(export).chain(journal).chain(pins);
    let has_landlock = confine::restrict(config.capabilities(), folders)
        .map_err(|error| StartError::Failed(format!("give up privileges: {error}")))?;
    if !has_landlock {
        tracing::warn!(
            "the kernel has no Landlock: nothing keeps the switch from writing other files"
        );
    }
    Ok(())
}

fn read(args: &Args) -> Result<Config, ConfigError> {
    let mut options = args.options.clone();
    if options.manifests.is_empty() {
        options.manifests = manifests_of(std::env::var_os("PODGATE_MANIFESTS"));
    }
    let file = args.config.as_deref().map(read_file).transpose()?;
    let options = options.over(file.unwrap_or_default());
    let mut config = Config::resolve(options, &host_name(), &online_cores())?;
    if config.api_server.is_none() && config.manifests.is_empty() {
        config.api_server = Access::in_cluster();
    }
    Ok(config)
}

/// Starts the switch; `other` names another one on this node.
fn switch(
    config: Config,
    prepared: Prepared,
    sockets: Result<Option<SocketPolicy>, String>,
    other: Option<String>,
) -> Result<agent::run::Running, StartError> {
    if config.manifests.is_empty() && config.api_server.is_none() {
        tracing::warn!(
            "no kubeconfig and no manifests: no pod is known, so every pod stays closed"
        );
    }
    let Prepared { umem, programs, manifests } = prepared;
    let mut input = Input::read(config, manifests)?;
    input.socket_policies = sockets;
    let config = &input.config;
    if config.enforcer == Enforcer::Nftables {
        // Only what the switch itself needs to run without ports.
        let (memory, frames) = dataplane::Memory::heap(FRAME, FRAMES);
        let interfaces = WithoutPorts::new()?;
        return start(input, Box::new(interfaces), &memory, frames);
    }
    let failed = |error: AfXdpError| {
        let text = error.to_string();
        let text = match error.cause.kind() {
            std::io::ErrorKind::PermissionDenied => text + "; podgate run needs root",
            std::io::ErrorKind::ResourceBusy => other.clone().unwrap_or(text),
            _ => text,
        };
        let needed = dataplane::kernel::too_old();
        StartError::Failed(needed.map_or(text.clone(), |needed| format!("{text}; {needed}")))
    };
    let programs = programs.unwrap_or_else(|| BpfPrograms::load(config));
    let has_offload = programs.has_offload();
    let BpfPrograms { ports, offload, encryption } = programs;
    let ports = ports.map_err(failed)?;
    let umem = umem.map_or_else(|| register(config, has_offload), Ok);
    let (umem, memory, frames) = umem.and_then(|it| it.bind(ports)).map_err(failed)?;
    input.config.umem_frames = umem.frames();
    input.encryption = encryption;
    let interfaces = KernelInterfaces::new(umem, input.config.frames_per_port, offload)?;
    start(input, Box::new(interfaces), &memory, frames)
}

/// Bytes of a frame, and frames, where there are no ports.
const FRAME: usize = 2048;
const FRAMES: u32 = 64;

/// Parts that a start can make while another switch still runs. A part that fails is tried again after that
/// one's end.
#[derive(Default)]
struct Prepared {
    umem: Option<RegisteredUmem>,
    programs: Option<BpfPrograms>,
    manifests: Option<ReadManifests>,
}

/// All programs of the kernel that the switch may attach, but for those at cgroups, or why they are
/// not to be had. They are loaded before privileges are given up: without these the kernel verifies
/// more strictly.
struct BpfPrograms {
    ports: Result<Programs, AfXdpError>,
    /// Those of flow offload, if it is wanted.
    offload: Option<flow_offload::Programs>,
    encryption: Option<Result<encryption::Programs, encryption::Error>>,
}

impl BpfPrograms {
    fn load(config: &Config) -> Self {
        let entries = flow_offload::Options::default().entries;
        let is_encrypted = config.network.encryption_port().is_some();
        Self {
            ports: Programs::load(),
            offload: config.flow_offload.then(|| flow_offload::Programs::load(entries)),
            encryption: is_encrypted.then(encryption::Programs::load),
        }
    }

    fn has_offload(&self) -> bool {
        self.offload.as_ref().is_some_and(flow_offload::Programs::are_usable)
    }

    /// Whether none failed.
    fn is_complete(&self) -> bool {
        let has_failed = self.offload.as_ref().is_some_and(|it| !it.are_usable())
            || matches!(self.encryption, Some(Err(_)));
        self.ports.is_ok() && !has_failed
    }
}

impl Prepared {
    /// # Errors
    /// If the manifests are unusable: the other switch goes on.
    fn of(config: &Config) -> Result<Self, StartError> {
        let read = || {
            confine_thread(config)?;
            ReadManifests::read(&config.manifests)
        };
        // A thread of its own gives up its privileges: they are still needed here.
        let read = || match std::thread::scope(|scope| scope.spawn(read).join()) {
            Ok(read) => read,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        let manifests = (!config.manifests.is_empty()).then(read).transpose()?;
        if config.enforcer == Enforcer::Nftables {
            return Ok(Self { manifests, ..Self::default() });
        }
        // Huge pages are mostly the other switch's until then.
        let uses_huge_pages = config.hugepages != HugePages::Off && has_huge_pages();
        let programs = BpfPrograms::load(config);
        let register = || register(config, programs.has_offload()).ok();
        let umem = (!uses_huge_pages).then(register).flatten();
        let programs = Some(programs).filter(BpfPrograms::is_complete);
        Ok(Self { manifests, umem, programs })
    }

    /// Loads the programs, unless that is done.
    fn load_programs(&mut self, config: &Config) {
        if self.programs.is_none() && config.enforcer == Enforcer::AfXdp {
            self.programs = Some(BpfPrograms::load(config));
        }
    }
}

/// Whether the machine keeps huge pages of 2 MB.
fn has_huge_pages() -> bool {
    let count = std::fs::read_to_string("/proc/sys/vm/nr_hugepages");
    count.is_ok_and(|count| count.trim() != "0")
}

/// Registers the packet buffers, those of flow offload or those of sockets for each pod.
fn register(config: &Config, has_programs: bool) -> Result<RegisteredUmem, AfXdpError> {
    let frames = match has_programs {
        true => config.umem_frames,
        false => config.umem_frames_without_offload,
    };
    let create = |hugepages| RegisteredUmem::create(&UmemConfig { frames, hugepages });
    match config.hugepages {
        HugePages::On => create(true),
        HugePages::Off => create(false),
        HugePages::Auto => create(true).or_else(|error| {
            tracing::debug!("without huge pages: {error}");
            create(false)
        }),
    }
}
