//! `podgate konnectivity-server` and `podgate konnectivity-agent`: the API server network proxy,
//! with the flags of the original, so that its manifests work as they are.

pub mod agent;
mod check;
mod flags;
pub mod server;

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use crate::audit::Audit;
use crate::rules::Rules;
use crate::server::StartError;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use telemetry::log::Format;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::Level;

use cli_runtime::{NO, UNUSABLE, fail};

/// Flags of the original's logging library. Those that shape its lines or choose among its files
/// are accepted and ignored.
#[derive(Debug, clap::Args)]
struct LogFlags {
    /// Verbosity: up to 3 connections of agents and servers, 4 and 5 details, 6 and more everything
    #[arg(short = 'v', long = "v", value_name = "LEVEL", default_value_t = 0)]
    verbosity: i32,
    /// Log to standard error; false needs --log-file
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "true")]
    #[arg(default_missing_value = "true", value_parser = flags::truth)]
    logtostderr: bool,
    /// File that gets the log, with --logtostderr=false
    #[arg(long, value_name = "FILE", default_value = "")]
    log_file: String,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_value = "false")]
    #[arg(default_missing_value = "true", value_parser = flags::truth)]
    alsologtostderr: bool,
    #[arg(long, hide = true, default_value = "")]
    log_dir: String,
    #[arg(long, hide = true, default_value = "")]
    vmodule: String,
    #[arg(long, hide = true, default_value = "")]
    log_backtrace_at: String,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true)]
    add_dir_header: Option<Option<String>>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true)]
    one_output: Option<Option<String>>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true)]
    skip_headers: Option<Option<String>>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true)]
    skip_log_headers: Option<Option<String>>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true)]
    legacy_stderr_threshold_behavior: Option<Option<String>>,
    #[arg(long, hide = true)]
    stderrthreshold: Option<String>,
    #[arg(long, hide = true)]
    alsologtostderrthreshold: Option<String>,
    #[arg(long, hide = true)]
    log_file_max_size: Option<String>,
    #[arg(long, hide = true)]
    log_flush_frequency: Option<String>,
}

impl LogFlags {
    /// Starts the log.
    fn start(&self, format: Format) -> Result<(), StartError> {
        for (flag, value) in [
            ("log-dir", &self.log_dir),
            ("vmodule", &self.vmodule),
            ("log-backtrace-at", &self.log_backtrace_at),
        ] {
            // The original's own default for no position.
            if !value.is_empty() && value != ":0" {
                return Err(input(format!("--{flag}: not supported; leave it out")));
            }
        }
        let level = match self.verbosity {
            ..=3 => Level::INFO,
            4..=5 => Level::DEBUG,
            _ => Level::TRACE,
        };
        if self.logtostderr {
            telemetry::log::start(level, format);
            return Ok(());
        }
        if self.log_file.is_empty() {
            return Err(input("--logtostderr=false: needs --log-file"));
        }
        let file = OpenOptions::new().create(true).append(true).open(&self.log_file);
        let file =
            file.map_err(|error| input(format!("--log-file: {}: {error}", self.log_file)))?;
        telemetry::log::start_in(file, self.alsologtostderr, level, format);
        Ok(())
    }
}

/// Flags of the original for both roles that have no effect here, and profiling, which is refused.
#[derive(Debug, clap::Args)]
struct SpareFlags {
    #[arg(long, hide = true, default_value_t = 10)]
    xfr_channel_size: i64,
    #[arg(long, hide = true)]
    kubeconfig_qps: Option<f32>,
    #[arg(long, hide = true)]
    kubeconfig_burst: Option<i64>,
    #[arg(long, hide = true)]
    kube_api_content_type: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_value = "false")]
    #[arg(default_missing_value = "true", value_parser = flags::truth)]
    enable_profiling: bool,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_value = "false")]
    #[arg(default_missing_value = "true", value_parser = flags::truth)]
    enable_contention_profiling: bool,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true)]
    warn_on_channel_limit: Option<Option<String>>,
}

impl SpareFlags {
    fn check(&self) -> Result<(), StartError> {
        if self.xfr_channel_size <= 0 {
            let size = self.xfr_channel_size;
            return Err(input(format!("--xfr-channel-size: {size} is not greater than 0")));
        }
        if self.enable_contention_profiling && !self.enable_profiling {
            return Err(input("--enable-contention-profiling: needs --enable-profiling"));
        }
        if self.enable_profiling {
            let text = "--enable-profiling: pprof is Go's; this program is profiled with perf";
            return Err(input(text));
        }
        Ok(())
    }
}

/// Flags that are not the original's, for both roles.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Not in the original")]
struct OwnFlags {
    /// Maximum of bytes queued in one direction of one connection
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20)]
    connection_buffer_bytes: usize,
    /// Timeout of a reader that takes no bytes while its queue is full; only if the other role is
    /// the original implementation
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = flags::duration)]
    slow_reader_timeout: std::time::Duration,
    /// Maximum of unanswered dials for each agent
    #[arg(long, value_name = "COUNT", default_value_t = 10_000)]
    max_pending_dials: usize,
    /// Interval of pings that detect a dead peer
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = flags::duration)]
    probe_time: std::time::Duration,
    /// File with session rules that are evaluated before each dial, YAML
    #[arg(long, value_name = "FILE")]
    session_rules: Option<PathBuf>,
    /// File for the audit log, one line a connection; '-' for standard output [default: the log]
    #[arg(long, value_name = "FILE")]
    audit_log: Option<PathBuf>,
    /// Format of the audit log: text or json
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    audit_format: Format,
    /// Format of the log: text or json
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    log_format: Format,
    /// Threads [default: as many as there are cores]
    #[arg(long, value_name = "COUNT")]
    threads: Option<usize>,
}

impl OwnFlags {
    fn audit(&self) -> Result<Audit, StartError> {
        Audit::new(self.audit_log.as_deref(), self.audit_format)
            .map_err(|error| StartError::Input(format!("--audit-log: {error}")))
    }

    /// Rules of the file, and of the switch behind `socket`.
    fn rules(&self, socket: Option<&Path>) -> Result<Option<Arc<Rules>>, StartError> {
        let file = self.session_rules.as_deref();
        if file.is_none() && socket.is_none() {
            return Ok(None);
        }
        let rules = Rules::new(file, socket);
        let rules = rules.map_err(|error| input(format!("--session-rules: {error}")))?;
        Ok(Some(Arc::new(rules)))
    }
}

/// Flags of both roles.
#[derive(Debug, clap::Args)]
struct RoleFlags {
    #[command(flatten)]
    spare: SpareFlags,
    #[command(flatten)]
    own: OwnFlags,
    #[command(flatten)]
    log: LogFlags,
}

impl RoleFlags {
    fn start(&self) -> Result<(), StartError> {
        self.spare.check()?;
        if self.own.connection_buffer_bytes == 0 {
            return Err(input("--connection-buffer-bytes: 0 would let nothing through"));
        }
        self.log.start(self.own.log_format)
    }
}

/// The signals that end a role.
struct EndSignals([Signal; 2]);

impl EndSignals {
    fn new() -> Result<Self, StartError> {
        let failed = |error| StartError::Failed(format!("handle signals: {error}"));
        let kinds = [SignalKind::terminate(), SignalKind::interrupt()];
        let [terminate, interrupt] = kinds.map(|kind| signal(kind).map_err(failed));
        Ok(Self([terminate?, interrupt?]))
    }

    /// Waits for the next one.
    async fn next(&mut self) {
        let [terminate, interrupt] = &mut self.0;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    }
}

/// Runs a role to its end; returns the exit code.
fn run_role(flags: &RoleFlags, role: impl Future<Output = Result<(), StartError>>) -> ExitCode {
    if let Err(error) = flags.start() {
        return fail(UNUSABLE, error);
    }
    raise_file_limit();
    if let Err(error) = confine::keep(confine::capabilities::NONE) {
        return fail(NO, format_args!("give up privileges: {error}"));
    }
    let confine::Confinement { capabilities, no_new_privileges, .. } = confine::Confinement::now();
    tracing::info!(
        "privileges: {} capabilities, no-new-privileges {}",
        capabilities.len(),
        if no_new_privileges { "on" } else { "off" }
    );
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    if let Some(threads) = flags.own.threads {
        builder.worker_threads(threads.max(1));
    }
    let runtime = match builder.enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(NO, format_args!("start threads: {error}")),
    };
    let result = runtime.block_on(role);
    runtime.shutdown_background();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(StartError::Input(error)) => fail(UNUSABLE, error),
        Err(StartError::Failed(error)) => fail(NO, error),
    }
}

/// Every connection is a file; the soft limit is often 1024.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::debug!("open files: the limit stays {:?}: {error}", limit.current);
    }
}

/// The address to listen on: an IP address, a host name's first address, or, for an empty
/// `host`, every address.
fn address(flag: &str, host: &str, port: u16) -> Result<SocketAddr, StartError> {
    if host.is_empty() {
        // Of both families, unless the kernel knows only one.
        let both = std::net::TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).is_ok();
        let any: IpAddr =
            if both { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
        return Ok((any, port).into());
    }
    let host = host.strip_prefix('[').and_then(|it| it.strip_suffix(']')).unwrap_or(host);
    let found = (host, port).to_socket_addrs().map(Iterator::collect::<Vec<_>>);
    let found = found.map_err(|error| input(format!("--{flag}: '{host}': {error}")))?;
    // As the original's library: IPv4 first.
    let first = found.iter().find(|it| it.is_ipv4()).or(found.first()).copied();
    first.ok_or_else(|| input(format!("--{flag}: '{host}' has no address")))
}

/// The kubeconfig file; none stands for the pod's own service account.
fn kubeconfig(text: &str) -> Result<Option<PathBuf>, StartError> {
    if text.is_empty() {
        return Ok(None);
    }
    match std::fs::metadata(text) {
        Ok(_) => Ok(Some(text.into())),
        Err(error) => Err(input(format!("--kubeconfig: {text}: {error}"))),
    }
}

/// Spells a role's flags as they are defined: the original also takes underscores for hyphens.
pub fn arguments(given: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut given: Vec<OsString> = given.into_iter().collect();
    let is_role = |it: &OsString| it.to_str().is_some_and(|it| it.starts_with("konnectivity-"));
    if given.get(1).is_none_or(|it| !is_role(it)) {
        return given;
    }
    for argument in &mut given[2..] {
        let Some(text) = argument.to_str().filter(|it| it.starts_with("--")) else { continue };
        let (name, value) = text.split_at(text.find('=').unwrap_or(text.len()));
        *argument = (name.replace('_', "-") + value).into();
    }
    given
}

fn input(text: impl Into<String>) -> StartError {
    StartError::Input(text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn underscores_in_flags_of_the_roles() {
        let given = |words: &[&str]| arguments(words.iter().map(OsString::from));
        assert_eq!(
            given(&["podgate", "konnectivity-agent", "--log_file=a_b", "--agent_id", "c_d"]),
            ["podgate", "konnectivity-agent", "--log-file=a_b", "--agent-id", "c_d"]
        );
        assert_eq!(given(&["podgate", "run", "--a_b"]), ["podgate", "run", "--a_b"]);
    }

    #[test]
    fn bind_addresses() {
        let bound = |host: &str| address("x", host, 1).map(|it| it.to_string()).unwrap();
        assert_eq!(bound("127.0.0.2"), "127.0.0.2:1");
        assert_eq!(bound("::1"), "[::1]:1");
        assert_eq!(bound("[::1]"), "[::1]:1");
        assert_eq!(bound("localhost"), "127.0.0.1:1");
        assert!(address("x", "nobody.invalid", 1).unwrap_err().to_string().contains("--x"));
    }
}
