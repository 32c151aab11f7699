//! The configuration of `podgate run`: flags override environment variables, which override the
//! file.
//!
//! ```text
//! flags, PODGATE_… ──▶ Options ──over──▶ Options ◀── file (YAML)
//!                                  │
//!                               resolve: defaults, checks
//!                                  ▼
//!                                Config
//! ```

mod choices;
mod define;
mod describe;
mod file;
mod flow_export;
mod headings;
mod hubble;
mod machine;
mod metrics;
mod network;
mod options;
mod text;

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use confine::capabilities::{self, CapabilitySet};
use ipnet::IpNet;

use control::api_server::Access;
use control::model::{DeniedReply, Stage};
use dataplane::session::Timeouts;
use dataplane::switch::RxMode as SwitchRxMode;
use observe::journal;

pub use self::hubble::Hubble;
pub use choices::{
    Aggregate, Encryption, Enforcer, HugePages, LogFormat, LogLevel, Masquerade, RxMode,
    SocketError, SocketPolicies,
};
pub use cli_runtime::Span;
pub use describe::rx_mode_name;
pub use flow_export::FlowExport;
pub use machine::{host_name, online_cores};
pub use metrics::Metrics;
pub use network::Network;
pub use options::Options;
pub use text::{Bytes, Cores, HubbleAddress, OnOff, PortSpan};

use file::parse;
use machine::{FRAMES, frames_of_flow_offload, usual_sessions};

/// The configuration a switch starts with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Name of this node.
    pub node_name: String,
    /// Files and folders with manifests.
    pub manifests: Vec<PathBuf>,
    /// Access to the API server; excludes manifests.
    pub api_server: Option<Access>,
    /// Unix socket of the local API.
    pub socket: PathBuf,
    /// Address of the HTTP server.
    pub listen: SocketAddr,
    /// Names by which its clients call it, beside addresses and `localhost`.
    pub listen_names: Vec<String>,
    /// True if HTTP also serves the page for browsers.
    pub web_page: bool,
    /// Listener for remote clients.
    pub metrics: Metrics,
    /// Folder for the state that outlives the process.
    pub state_dir: PathBuf,
    /// Time for which a start waits for another switch with this folder to end.
    pub takeover_wait: Option<Duration>,
    /// True if pods of other nodes are read from PodgateAddresses.
    pub aggregate: bool,
    /// Cores that workers are pinned to, in order.
    pub cores: Vec<usize>,
    /// Number of workers.
    pub workers: usize,
    /// Receive mode of workers.
    pub rx_mode: SwitchRxMode,
    /// The enforcer of policies.
    pub enforcer: Enforcer,
    /// Networks of this node's pods beside those of its Node, where another plugin gives
    /// the addresses.
    pub pod_networks: Vec<IpNet>,
    /// True if policies hold for pods on the host network.
    pub host_network_policies: bool,
    /// Enforcement at pods' sockets by programs at cgroups.
    pub socket_policies: SocketPolicies,
    /// The error of such a call.
    pub socket_error: SocketError,
    /// The hierarchy of cgroup v2.
    pub cgroup_root: PathBuf,
    /// `--socket-rules`, `--socket-endpoints` and `--socket-exchanges`.
    pub socket_room: [u32; 3],
    /// The file system of type bpf.
    pub bpf_fs: PathBuf,
    /// The reply where policies deny.
    pub denied_reply: DeniedReply,
    /// The stage of policies without an annotation.
    pub default_stage: Stage,
    /// Report that the Node is ready, and remove its taint.
    pub node_readiness: bool,
    /// Frames of the UMEM.
    pub umem_frames: u32,
    /// The same where flow offload is wanted and cannot run: each pod has sockets of its own then.
    pub umem_frames_without_offload: u32,
    /// Use of huge pages for frames.
    pub hugepages: HugePages,
    /// Frames in each port's fill ring.
    pub frames_per_port: u32,
    /// Maximum number of ports.
    pub max_ports: u16,
    /// Size of the session table.
    pub sessions: u32,
    /// Timeouts of idle sessions.
    pub timeouts: Timeouts,
    /// True if packets and bytes of sessions are counted.
    pub session_accounting: bool,
    /// Minimum lifetime of a domain name's address.
    pub dns_min_ttl: Duration,
    /// Longest time that an answer of DNS waits for its addresses.
    pub dns_max_hold: Duration,
    /// Timeout of attaching a pod.
    pub attach_timeout: Duration,
    /// True if there is a host port.
    pub host_port: bool,
    /// Addresses of the node beyond those of its object.
    pub node_addresses: Vec<IpAddr>,
    /// MTU of the host port in bytes.
    pub mtu: u32,
    /// Paths to other nodes and to the world.
    pub network: Network,
    /// True if programs in the kernel forward established connections.
    pub flow_offload: bool,
    /// Time that they stay valid without the switch.
    pub flow_offload_grace: Duration,
    /// The file that verdicts are written to.
    pub flow_export: FlowExport,
    /// Memory of the process; `None`: that of its cgroup.
    pub memory_limit: Option<Bytes>,
    /// Size of the journal; `None` for none.
    pub journal: Option<Bytes>,
    /// Folder of the journal.
    pub journal_dir: PathBuf,
    /// One of this many decisions about new connections is verified by the rules' definition; 0: none.
    pub verify_decisions: u32,
    /// Listener of the Hubble Observer API.
    pub hubble: Hubble,
    /// Level of the log.
    pub log_level: LogLevel,
    /// Format of the log.
    pub log_format: LogFormat,
    /// The options it was made of, with the values that depend on others.
    options: Options,
}

/// An unusable configuration; each line names an option and its fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(String);

/// The uplink that is to be found.
pub const AUTO: &str = "auto";
/// Descriptors of a port's fill ring.
const RING: u64 = 2048;
/// Smallest MTU that IPv6 works with (RFC 8200, section 5).
const LEAST_MTU: u32 = 1280;

/// Reads a configuration file.
///
/// # Errors
/// Names the file, and for its content the line.
pub fn read_file(path: &Path) -> Result<Options, ConfigError> {
    let refused = |what: String| ConfigError(format!("{}: {what}", path.display()));
    let text = fs::read_to_string(path).map_err(|error| refused(error.to_string()))?;
    parse(&text).map_err(refused)
}

/// The paths in `PODGATE_MANIFESTS`, joined by `:`.
pub fn manifests_of(variable: Option<std::ffi::OsString>) -> Vec<PathBuf> {
    let paths = variable.iter().flat_map(std::env::split_paths).collect::<Vec<_>>();
    paths.into_iter().filter(|path| !path.as_os_str().is_empty()).collect()
}

impl Config {
    /// The capabilities that the switch runs with.
    pub fn capabilities(&self) -> CapabilitySet {
        match self.enforcer {
            Enforcer::AfXdp => capabilities::SWITCH,
            Enforcer::Nftables if self.socket_policies != SocketPolicies::Off => {
                capabilities::NFTABLES_AND_SOCKETS
            }
            Enforcer::Nftables => capabilities::NFTABLES,
        }
    }

    /// Fills in defaults and checks every value. `host_name` is the kernel's, `cores` are the cores
    /// that are online.
    ///
    /// # Errors
    /// Every option with an unusable value, one a line.
    pub fn resolve(
        options: Options,
        host_name: &str,
        online: &BTreeSet<usize>,
    ) -> Result<Self, ConfigError> {
        let mut faults = Faults::default();
        let network = Network::resolve(&options, &mut faults);
        let metrics = Metrics::resolve(&options, &mut faults);
        let flow_export = FlowExport::resolve(&options, &mut faults);
        let hubble = Hubble::resolve(&options, &mut faults);
        let cores = options.cores.clone().unwrap_or_default().0;
        for core in cores.iter().filter(|core| !online.contains(core)) {
            faults.add("cores", format_args!("there is no core {core} online here"));
        }
        let workers = options.workers.unwrap_or(cores.len().max(1));
        faults.range("workers", workers as u64, cores.len().max(1) as u64, 254);
        let enforcer = options.enforcer();
        let flow_offload = enforcer == Enforcer::AfXdp && options.flow_offload() == OnOff::On;
        let umem_frames_without_offload = options.umem_frames.unwrap_or(FRAMES);
        let umem_frames = match options.umem_frames {
            None if flow_offload => frames_of_flow_offload(workers, online.len()),
            _ => umem_frames_without_offload,
        };
        faults.range("umem-frames", umem_frames.into(), 1024, 1 << 24);
        let frames_per_port = options.frames_per_port();
        faults.range("frames-per-port", frames_per_port.into(), 64, RING);
        if u64::from(frames_per_port) * 2 > umem_frames.into() {
            let text = format!("{umem_frames} leave no room for ports of {frames_per_port} frames");
            faults.add("umem-frames", format_args!("{text}"));
        }
        let socket_room = [
            ("socket-rules", options.socket_rules(), 1_024),
            ("socket-endpoints", options.socket_endpoints(), 1_024),
            ("socket-exchanges", options.socket_exchanges(), 16),
        ]
        .map(|(name, value, least)| {
            faults.range(name, value.into(), least, 1 << 22);
            value
        });
        let max_ports = options.max_ports();
        faults.range("max-ports", max_ports.into(), 2, 16_384);
        let sessions = options.sessions.unwrap_or_else(|| usual_sessions(max_ports));
        faults.range("sessions", sessions.into(), 64, 1 << 26);
        let mtu = options.mtu();
        faults.range("mtu", mtu.into(), LEAST_MTU.into(), linux_net::MAX_MTU.into());
        let mut span = |name: &str, span: Span| {
            if span.0 < Duration::from_secs(1) {
                faults.add(name, format_args!("{span} is less than a second"));
            }
            span.0
        };
        let timeouts = Timeouts {
            tcp_established: span("tcp-established-timeout", options.tcp_established_timeout()),
            tcp_transient: span("tcp-transient-timeout", options.tcp_transient_timeout()),
            tcp_closed: span("tcp-closed-timeout", options.tcp_closed_timeout()),
            udp: span("udp-timeout", options.udp_timeout()),
            dns: span("dns-timeout", options.dns_timeout()),
            icmp: span("icmp-timeout", options.icmp_timeout()),
            other: span("other-timeout", options.other_timeout()),
            opening: span("unanswered-timeout", options.unanswered_timeout()),
        };
        let dns_min_ttl = span("dns-min-ttl", options.dns_min_ttl());
        let dns_max_hold = span("dns-max-hold", options.dns_max_hold());
        let attach_timeout = span("attach-timeout", options.attach_timeout());
        // Kubelet registers the node under the host's name in lower case.
        let node_name = options.node_name.clone().unwrap_or_else(|| host_name.to_lowercase());
        if node_name.is_empty() || node_name.contains(|c: char| !c.is_ascii_graphic() || c == '/') {
            let name = node_name.escape_debug();
            faults.add("node-name", format_args!("'{name}' is not a valid node name"));
        }
        for address in &options.node_addresses {
            if address.is_unspecified() || address.is_loopback() || address.is_multicast() {
                let text = format_args!("{address} is not the address of a single node");
                faults.add("node-addresses", text);
            }
        }
        if let (Some(path), [_, ..]) = (&options.kubeconfig, &options.manifests[..]) {
            let path = path.display();
            let text =
                format_args!("{path} is given beside manifests; objects come from one source");
            faults.add("kubeconfig", text);
        }
        match enforcer {
            Enforcer::AfXdp if !options.pod_networks.is_empty() => {
                faults.add("pod-networks", format_args!("goes with enforcer nftables"));
            }
            Enforcer::Nftables if options.uplink.is_some() => {
                faults.add("uplink", format_args!("goes with enforcer afxdp"));
            }
            Enforcer::Nftables if options.flow_offload == Some(OnOff::On) => {
                faults.add("flow-offload", format_args!("goes with enforcer afxdp"));
            }
            Enforcer::Nftables if options.stage_all == Some(OnOff::On) => {
                let text =
                    format_args!("goes with enforcer afxdp: nftables evaluates no staged policy");
                faults.add("stage-all", text);
            }
            _ => {}
        }
        if network.encryption_port().is_some() && !flow_offload {
            let text = "wireguard goes with flow-offload on: its programs stand at the uplink";
            faults.add("encryption", format_args!("{text}"));
        }
        let host_port = enforcer == Enforcer::AfXdp && options.host_port() == OnOff::On;
        let options = Options {
            node_name: Some(node_name.clone()),
            workers: Some(workers),
            sessions: Some(sessions),
            masquerade: Some(network.masquerade),
            host_port: Some(host_port.into()),
            flow_offload: Some(flow_offload.into()),
            ..options
        };
        let config = Self {
            node_name,
            manifests: options.manifests.clone(),
            api_server: options.kubeconfig.clone().map(Access::Kubeconfig),
            socket: options.socket(),
            listen: options.listen(),
            listen_names: options.listen_names.clone(),
            web_page: options.web_page() == OnOff::On,
            metrics,
            state_dir: options.state_dir(),
            takeover_wait: options.takeover_wait.map(|span| span.0),
            aggregate: options.aggregate() == Aggregate::Endpoints,
            cores,
            workers,
            rx_mode: match options.rx_mode() {
                RxMode::Polling => SwitchRxMode::Polling,
                RxMode::Adaptive => SwitchRxMode::Adaptive,
                RxMode::Interrupt => SwitchRxMode::Interrupt,
            },
            enforcer,
            pod_networks: options.pod_networks.clone(),
            host_network_policies: options.host_network_policies() == OnOff::On,
            socket_policies: options.socket_policies(),
            socket_error: options.socket_error(),
            cgroup_root: options.cgroup_root(),
            socket_room,
            bpf_fs: options.bpf_fs(),
            denied_reply: options.denied_reply(),
            node_readiness: options.node_readiness() == OnOff::On,
            default_stage: match options.stage_all() {
                OnOff::On => Stage::Staged,
                OnOff::Off => Stage::Enforced,
            },
            umem_frames,
            umem_frames_without_offload,
            hugepages: options.hugepages(),
            frames_per_port,
            max_ports,
            sessions,
            timeouts,
            session_accounting: options.session_accounting() == OnOff::On,
            dns_min_ttl,
            dns_max_hold,
            attach_timeout,
            host_port,
            node_addresses: options.node_addresses.clone(),
            mtu,
            network,
            flow_offload,
            flow_offload_grace: options.flow_offload_grace().0,
            flow_export,
            memory_limit: options.memory_limit,
            journal: options.journal,
            journal_dir: options.journal_dir.clone().unwrap_or_else(|| match &options.state_dir {
                Some(state) => state.join("journal"),
                None => journal::FOLDER.into(),
            }),
            verify_decisions: options.verify_decisions(),
            hubble,
            log_level: options.log_level(),
            log_format: options.log_format(),
            options,
        };
        faults.into_result().map(|()| config)
    }
}

#[derive(Default)]
struct Faults(Vec<String>);

impl Faults {
    fn add(&mut self, option: &str, what: std::fmt::Arguments<'_>) {
        self.0.push(format!("{option}: {what}"));
    }

    fn range(&mut self, option: &str, value: u64, least: u64, most: u64) {
        if !(least..=most).contains(&value) {
            self.add(option, format_args!("{value} is not between {least} and {most}"));
        }
    }

    fn into_result(self) -> Result<(), ConfigError> {
        if self.0.is_empty() { Ok(()) } else { Err(ConfigError(self.0.join("\n"))) }
    }
}

#[cfg(test)]
mod tests;
