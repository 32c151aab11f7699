//! `podgate konnectivity-server` and `podgate konnectivity-agent`: the API server network proxy,
//! with the flags of the original, so that its manifests work as they are.

pub mod agent;
mod check;
mod flags;
pub mod server;

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use crate::audit::{self, Audit};
use crate::rules::Rules;
use crate::server::StartError;
use clap::ValueEnum;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use telemetry::log::Format;
use tracing::Level;

use cli::{NO, UNUSABLE, fail};

/// Flags of the original's logging library. All but the verbosity mean nothing here: the log
/// goes to standard error.
#[derive(Debug, clap::Args)]
struct LogFlags {
    /// Verbosity: 0 to 2 tells connections of agents and servers, 4 and more everything
    #[arg(short = 'v', long = "v", value_name = "LEVEL", default_value_t = 0)]
    verbosity: u8,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true)]
    logtostderr: Option<Option<String>>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true)]
    alsologtostderr: Option<Option<String>>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true)]
    add_dir_header: Option<Option<String>>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true)]
    one_output: Option<Option<String>>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true)]
    skip_headers: Option<Option<String>>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true)]
    skip_log_headers: Option<Option<String>>,
    #[arg(long, hide = true)]
    stderrthreshold: Option<String>,
    #[arg(long, hide = true)]
    vmodule: Option<String>,
    #[arg(long, hide = true)]
    log_file: Option<String>,
    #[arg(long, hide = true)]
    log_file_max_size: Option<String>,
    #[arg(long, hide = true)]
    log_dir: Option<String>,
    #[arg(long, hide = true)]
    log_backtrace_at: Option<String>,
    #[arg(long, hide = true)]
    log_flush_frequency: Option<String>,
}

/// Flags of the original that both roles take so that manifests need no change, and that mean
/// nothing here.
#[derive(Debug, clap::Args)]
struct SpareFlags {
    #[arg(long, hide = true)]
    xfr_channel_size: Option<u32>,
    #[arg(long, hide = true)]
    kubeconfig_qps: Option<f32>,
    #[arg(long, hide = true)]
    kubeconfig_burst: Option<u32>,
    #[arg(long, hide = true)]
    kube_api_content_type: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true)]
    enable_profiling: Option<Option<String>>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true)]
    enable_contention_profiling: Option<Option<String>>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true)]
    warn_on_channel_limit: Option<Option<String>>,
}

/// Flags that are not the original's, for both roles.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Not in the original")]
struct OwnFlags {
    /// Bytes that may wait in one direction of one connection
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20)]
    connection_buffer_bytes: usize,
    /// For how long one connection's reader may take nothing while that many bytes wait, before
    /// this connection is closed; only if the other role is the original
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = flags::duration)]
    slow_reader_timeout: std::time::Duration,
    /// Dials without an answer that one agent may have
    #[arg(long, value_name = "COUNT", default_value_t = 10_000)]
    max_pending_dials: usize,
    /// Between two pings to the other role, to find out whether it is dead
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = flags::duration)]
    probe_time: std::time::Duration,
    /// File with session rules that are asked before each dial, YAML
    #[arg(long, value_name = "FILE")]
    session_rules: Option<PathBuf>,
    /// File that gets a line for each connection, '-' for standard output [default: the log]
    #[arg(long, value_name = "FILE")]
    audit_log: Option<PathBuf>,
    /// How such a line looks
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    audit_format: AuditFormat,
    /// How the log is written: text or json
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    log_format: Format,
    /// Threads [default: as many as there are cores]
    #[arg(long, value_name = "COUNT")]
    threads: Option<usize>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum AuditFormat {
    Text,
    Json,
}

impl OwnFlags {
    fn audit(&self) -> Result<Audit, StartError> {
        let format = match self.audit_format {
            AuditFormat::Text => audit::Format::Text,
            AuditFormat::Json => audit::Format::Json,
        };
        Audit::new(self.audit_log.as_deref(), format)
            .map_err(|error| StartError::Input(format!("--audit-log: {error}")))
    }

    fn rules(&self) -> Result<Option<Arc<Rules>>, StartError> {
        let rules = self.session_rules.as_deref().map(Rules::read).transpose();
        let named = |error| StartError::Input(format!("--session-rules: {error}"));
        Ok(rules.map_err(named)?.map(Arc::new))
    }
}

/// Runs a role until it has ended; the exit code says how.
fn run_role(
    log: &LogFlags,
    own: &OwnFlags,
    role: impl Future<Output = Result<(), StartError>>,
) -> ExitCode {
    let level = match log.verbosity {
        0..=3 => Level::INFO,
        4..=5 => Level::DEBUG,
        _ => Level::TRACE,
    };
    telemetry::log::start(level, own.log_format);
    raise_file_limit();
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    if let Some(threads) = own.threads {
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

/// An address to listen at; nothing is every address there is.
fn address(flag: &str, host: &str, port: u16) -> Result<SocketAddr, StartError> {
    if host.is_empty() {
        // Of both families, unless the kernel knows only one.
        let both = std::net::TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).is_ok();
        let any: IpAddr =
            if both { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
        return Ok((any, port).into());
    }
    let host = if host == "localhost" { "127.0.0.1" } else { host };
    host.parse::<IpAddr>()
        .map(|host| (host, port).into())
        .map_err(|_| StartError::Input(format!("--{flag}: '{host}' is no address")))
}

fn input(text: impl Into<String>) -> StartError {
    StartError::Input(text.into())
}
