//! `podgate check`: what this machine allows, before the switch is started on it.

use std::path::PathBuf;
use std::process::ExitCode;

use cli_runtime::{Output, UNUSABLE, fail};
use dataplane::Underlay;
use observe::journal::Reach;
use setup::preflight::{Journal, Wanted};

use super::Ended;
use super::call::print_whole;
use agent::config::{
    self, Bytes, Config, ConfigError, Enforcer, Masquerade, Options, SocketPolicies, host_name,
    online_cores, read_file,
};

/// Arguments of `podgate check`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit code: 0 without warnings, 1 if the switch runs with warnings, 2 if it \
cannot run here or the configuration is invalid. A note names a missing optional feature; it is no \
warning.

Changes nothing: AF_XDP, flow offload and nftables are tried in a temporary network namespace, with the \
privileges that podgate run keeps.

Example:
  podgate check --pods 250 --config /etc/podgate/config.yaml
  podgate check -o json | jq -r '.findings[] | select(.level == \"warning\") | .detail'"
)]
pub struct Args {
    /// Configuration file of podgate run, YAML
    #[arg(long, env = "PODGATE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,

    /// Number of pods to estimate memory for
    #[arg(long, value_name = "N", default_value_t = 110)]
    pods: u32,

    /// Folder of CNI configurations
    #[arg(long, value_name = "PATH", default_value = "/etc/cni/net.d")]
    cni_folder: PathBuf,

    /// Output format
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// Looks, and writes what was found to stdout.
pub(super) fn run(args: &Args) -> Ended {
    let config = read(args).map_err(|error| fail(UNUSABLE, error))?;
    let report = setup::preflight::inspect(&wanted(args, config));
    let written = print_whole(&report, args.output);
    match report.exit_code() {
        0 => written,
        code => Ok(ExitCode::from(code)),
    }
}

fn read(args: &Args) -> Result<Config, ConfigError> {
    let options = args.config.as_deref().map(read_file).transpose()?;
    Config::resolve(options.unwrap_or_else(Options::default), &host_name(), &online_cores())
}

fn wanted(args: &Args, config: Config) -> Wanted {
    let af_xdp = config.enforcer == Enforcer::AfXdp;
    // Without sockets there are no frames.
    let frames = |configured| if af_xdp { configured } else { 0 };
    Wanted {
        capabilities: config.capabilities(),
        af_xdp,
        socket_policies: config.socket_policies != SocketPolicies::Off,
        pods: args.pods,
        max_ports: config.max_ports.into(),
        umem_frames: frames(config.umem_frames),
        umem_frames_without_offload: frames(config.umem_frames_without_offload),
        frames_per_port: config.frames_per_port,
        hugepages: match config.hugepages {
            config::HugePages::Auto => setup::preflight::HugePages::Auto,
            config::HugePages::On => setup::preflight::HugePages::On,
            config::HugePages::Off => setup::preflight::HugePages::Off,
        },
        flow_offload: config.flow_offload,
        workers: config.workers as u32,
        sessions: config.sessions,
        mtu: config.mtu,
        host_port: config.host_port,
        masquerade: config.network.masquerade == Masquerade::Kernel,
        encryption: config.network.encryption_port().is_some(),
        uplink: config.network.uplink,
        node_addresses: config.node_addresses,
        tunnels: matches!(config.network.underlay, Underlay::Overlay(_)),
        rx_mode: config::rx_mode_name(config.rx_mode).to_owned(),
        cni_folder: args.cni_folder.clone(),
        journal: config.journal.map(|Bytes(bytes)| {
            let Reach { usual_hours, least_hours } = Reach::of(bytes);
            Journal { folder: config.journal_dir, bytes, usual_hours, least_hours }
        }),
    }
}
