//! The options of `podgate run`, each in one place: name, meaning, default, variable. Help, file, defaults in force
//! and what `podgate show config` prints follow from it.
//!
//! The same struct is what flags and variables are read into and what the file is read into,
//! so an option cannot exist in one and not in the other. [`super::Config::resolve`] checks
//! the values.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use serde::Deserialize;

use super::choices::{
    Aggregate, Encryption, Enforcer, HugePages, LogFormat, LogLevel, Masquerade, RxMode,
    SocketError, SocketPolicies,
};
use super::define::{Given, Inner, help, options, text_of};
use super::headings::heading;
use super::text::{Bytes, Cores, HubbleAddress, OnOff, PortSpan};
use cli_runtime::{Networks, Span, Underlay};
use control::model::DeniedReply;
use dataplane::session::Timeouts;
use local_api::DEFAULT_SOCKET;

options! {
/// The options as given; `None` and empty lists are unset.
#[derive(Debug, Clone, Default, PartialEq, Eq, clap::Args, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Options {
    /// Name of this node, as in its Node object
    #[arg(long, visible_alias = "node", env = "PODGATE_NODE_NAME", value_name = "NAME")]
    pub node_name: Option<String> => "the host name",

    /// File or folder of manifests, watched for changes; may be repeated [env: PODGATE_MANIFESTS=, paths joined by
    /// ':']
    #[arg(long, value_name = "PATH")]
    #[serde(default)]
    pub manifests: Vec<PathBuf>,

    /// Kubeconfig of the API server to watch, instead of manifests. Inside a pod without either, its service account
    /// is used
    #[arg(long, env = "PODGATE_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// Unix socket of the local API
    #[arg(long, env = "PODGATE_SOCKET", value_name = "PATH")]
    pub socket: Option<PathBuf> = PathBuf::from(DEFAULT_SOCKET),

    /// Address for /healthz, /readyz and /metrics
    #[arg(long, env = "PODGATE_LISTEN", value_name = "ADDRESS:PORT")]
    pub listen: Option<SocketAddr> = SocketAddr::from(([127, 0, 0, 1], 9470)),

    /// Host names by which clients reach listen, beside addresses and localhost; may be repeated. Requests for other
    /// hosts get 421, which stops DNS rebinding
    #[arg(long, env = "PODGATE_LISTEN_NAMES", value_name = "NAME", value_delimiter = ',')]
    #[serde(default)]
    pub listen_names: Vec<String>,

    /// Serve a read-only page at the address of /metrics: allowed connections, live ones, traced packets
    #[arg(long, env = "PODGATE_WEB_PAGE", value_name = "on|off")]
    pub web_page: Option<OnOff> = OnOff::Off,

    /// Address for remote clients, over TLS: scrapers of /metrics, and kubectl podgate. The API server authenticates
    /// and authorizes them
    #[arg(long, env = "PODGATE_METRICS_LISTEN", value_name = "ADDRESS:PORT")]
    pub metrics_listen: Option<SocketAddr> => "none, loopback only",

    /// Certificate chain for metrics-listen, PEM; reloaded when it changes
    #[arg(long, env = "PODGATE_METRICS_CERT_FILE", value_name = "FILE")]
    pub metrics_cert_file: Option<PathBuf> => "none, self-signed at the start",

    /// Private key of that certificate, PEM
    #[arg(long, env = "PODGATE_METRICS_KEY_FILE", value_name = "FILE")]
    pub metrics_key_file: Option<PathBuf> => "none, made at the start",

    /// Folder for state that outlives the process: attached pods, and the last objects of the API server
    #[arg(long, env = "PODGATE_STATE_DIR", value_name = "PATH")]
    pub state_dir: Option<PathBuf> = PathBuf::from("/run/podgate"),

    /// Time that a start waits for a running switch with the same state folder to end
    #[arg(long, env = "PODGATE_TAKEOVER_WAIT", value_name = "TIME")]
    pub takeover_wait: Option<Span> => "none, the start fails at once",

    /// Take the pods of other nodes from PodgateAddresses, compact objects that one elected switch writes, instead of
    /// watching all pods (endpoints), for clusters of thousands of nodes
    #[arg(long, env = "PODGATE_AGGREGATE", value_name = "off|endpoints")]
    pub aggregate: Option<Aggregate> = Aggregate::Off,

    /// Cores to pin workers to, such as 2,4-6
    #[arg(long, env = "PODGATE_CORES", value_name = "LIST")]
    pub cores: Option<Cores> => "none, workers are not pinned",

    /// Number of workers, at least the number of cores
    #[arg(long, env = "PODGATE_WORKERS", value_name = "N")]
    pub workers: Option<usize> => "one for each core, else 1",

    /// Receive mode of workers
    #[arg(long, env = "PODGATE_RX_MODE", value_name = "MODE")]
    pub rx_mode: Option<RxMode> = RxMode::Adaptive,

    /// Enforcer of policies: the switch, for pods of podgate-cni (afxdp), or the kernel's nftables, for pods of
    /// another CNI plugin (nftables)
    #[arg(long, env = "PODGATE_ENFORCER", value_name = "afxdp|nftables")]
    pub enforcer: Option<Enforcer> = Enforcer::AfXdp,

    /// With nftables: networks from which another CNI plugin assigns pod addresses, beside the Node's podCIDRs;
    /// addresses of unknown pods in them are closed; may be repeated
    #[arg(long, env = "PODGATE_POD_NETWORKS", value_name = "CIDR", value_delimiter = ',')]
    #[serde(default)]
    pub pod_networks: Vec<IpNet>,

    /// Enforce policies for this node's host-network pods: at their sockets with socket-policies, else ingress at the
    /// ports that their containers declare
    #[arg(long, env = "PODGATE_HOST_NETWORK_POLICIES", value_name = "on|off")]
    pub host_network_policies: Option<OnOff> = OnOff::Off,

    /// Enforce egress at sockets too, by BPF on each pod's cgroup. closed: block new pods until their rules are loaded
    #[arg(long, env = "PODGATE_SOCKET_POLICIES", value_name = "off|on|closed")]
    pub socket_policies: Option<SocketPolicies> = SocketPolicies::Off,

    /// Error of a denied connect() or sendmsg()
    #[arg(long, env = "PODGATE_SOCKET_ERROR", value_name = "eperm|econnrefused")]
    pub socket_error: Option<SocketError> = SocketError::Eperm,

    /// Room for rules of socket policies: networks, and half as many ranges of ports. The pod that
    /// needs most is closed if there is none
    #[arg(long, env = "PODGATE_SOCKET_RULES", value_name = "N")]
    pub socket_rules: Option<u32> = 262_144,

    /// Room for endpoints of services with socket policies, and for half as many ports of services;
    /// 24 bytes each, twice. The namespace that needs most is closed if there is none
    #[arg(long, env = "PODGATE_SOCKET_ENDPOINTS", value_name = "N")]
    pub socket_endpoints: Option<u32> = 262_144,

    /// Exchanges of datagrams of each pod that socket policies remember, in each direction, rounded
    /// down to a power of two
    #[arg(long, env = "PODGATE_SOCKET_EXCHANGES", value_name = "N")]
    pub socket_exchanges: Option<u32> = 1_024,

    /// Root of the cgroup v2 hierarchy with the cgroups of pods
    #[arg(long, env = "PODGATE_CGROUP_ROOT", value_name = "PATH")]
    pub cgroup_root: Option<PathBuf> = PathBuf::from("/sys/fs/cgroup"),

    /// BPF file system in which programs at cgroups are pinned; they outlive the switch
    #[arg(long, env = "PODGATE_BPF_FS", value_name = "PATH")]
    pub bpf_fs: Option<PathBuf> = PathBuf::from("/sys/fs/bpf"),

    /// Reply to the initiator of a denied connection: nothing (drop); a TCP reset or ICMP administratively
    /// prohibited, to pods (reject), or to everybody (reject-all). The annotation podgate.io/denied-reply of a
    /// Namespace overrides it
    #[arg(long, env = "PODGATE_DENIED_REPLY", value_name = "drop|reject|reject-all")]
    pub denied_reply: Option<DeniedReply> = DeniedReply::default(),

    /// Enforce no policies but those with the annotation podgate.io/stage=enforced: report what the others would deny
    /// and open, for a first rollout on a running cluster
    #[arg(long, env = "PODGATE_STAGE_ALL", value_name = "on|off")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "on")]
    pub stage_all: Option<OnOff> = OnOff::Off,

    /// Once the switch is ready, set the condition NetworkUnavailable of its Node to False and remove the taint
    /// podgate.io/not-ready, which kubelet adds with --register-with-taints
    #[arg(long, env = "PODGATE_NODE_READINESS", value_name = "on|off")]
    pub node_readiness: Option<OnOff> = OnOff::Off,

    /// Packet buffers of 4096 bytes, shared by all ports. The default with flow offload is 8192 for each worker and
    /// 8192 more, or 512 for each core if that is more, up to 65536; without flow offload it is 65536
    #[arg(long, env = "PODGATE_UMEM_FRAMES", value_name = "N")]
    pub umem_frames: Option<u32> => "16384",

    /// Use huge pages for packet buffers; auto: if enough are free
    #[arg(long, env = "PODGATE_HUGEPAGES", value_name = "WHEN")]
    pub hugepages: Option<HugePages> = HugePages::Auto,

    /// Packet buffers posted to a port's fill ring; a busy port takes more
    #[arg(long, env = "PODGATE_FRAMES_PER_PORT", value_name = "N")]
    pub frames_per_port: Option<u32> = 256,

    /// Maximum number of ports: pods, and the host port
    #[arg(long, env = "PODGATE_MAX_PORTS", value_name = "N")]
    pub max_ports: Option<u16> = 1024,

    /// Size of the session table. The default is 1024 for each of max-ports, within a 64th of the memory, and at
    /// least 1048576
    #[arg(long, env = "PODGATE_SESSIONS", value_name = "N")]
    pub sessions: Option<u32> => "1048576",

    /// Idle timeout of established TCP connections
    #[arg(long, env = "PODGATE_TCP_ESTABLISHED_TIMEOUT", value_name = "TIME")]
    pub tcp_established_timeout: Option<Span> = Span(Timeouts::default().tcp_established),

    /// Time for which connections stay after their last packet that a policy denied
    #[arg(long, env = "PODGATE_TCP_TRANSIENT_TIMEOUT", value_name = "TIME")]
    pub tcp_transient_timeout: Option<Span> = Span(Timeouts::default().tcp_transient),

    /// Idle timeout of TCP connections after both FINs or a RST
    #[arg(long, env = "PODGATE_TCP_CLOSED_TIMEOUT", value_name = "TIME")]
    pub tcp_closed_timeout: Option<Span> = Span(Timeouts::default().tcp_closed),

    /// Idle timeout of UDP with several datagrams each way
    #[arg(long, env = "PODGATE_UDP_TIMEOUT", value_name = "TIME")]
    pub udp_timeout: Option<Span> = Span(Timeouts::default().udp),

    /// Idle timeout of UDP to port 53 after the answer
    #[arg(long, env = "PODGATE_DNS_TIMEOUT", value_name = "TIME")]
    pub dns_timeout: Option<Span> = Span(Timeouts::default().dns),

    /// Idle timeout of ICMP and ICMPv6
    #[arg(long, env = "PODGATE_ICMP_TIMEOUT", value_name = "TIME")]
    pub icmp_timeout: Option<Span> = Span(Timeouts::default().icmp),

    /// Idle timeout of other protocols
    #[arg(long, env = "PODGATE_OTHER_TIMEOUT", value_name = "TIME")]
    pub other_timeout: Option<Span> = Span(Timeouts::default().other),

    /// Idle timeout without a reply: TCP before its handshake is complete, UDP with a single exchange, other
    /// protocols before the first answer
    #[arg(long, env = "PODGATE_UNANSWERED_TIMEOUT", value_name = "TIME")]
    pub unanswered_timeout: Option<Span> = Span(Timeouts::default().opening),

    /// Count packets and bytes of each session, for `podgate show sessions`
    #[arg(long, env = "PODGATE_SESSION_ACCOUNTING", value_name = "on|off")]
    pub session_accounting: Option<OnOff> = OnOff::Off,

    /// Minimum time that an address of a domain name may be connected to, whatever its TTL
    #[arg(long, env = "PODGATE_DNS_MIN_TTL", value_name = "TIME")]
    pub dns_min_ttl: Option<Span> = Span(Duration::from_secs(30)),

    /// Maximum time that the first DNS answer with a new address is held until that address may be connected to
    #[arg(long, env = "PODGATE_DNS_MAX_HOLD", value_name = "TIME")]
    pub dns_max_hold: Option<Span> = Span(dataplane::dns::MAX_HOLD),

    /// Time that attaching a pod waits for its object and tables
    #[arg(long, env = "PODGATE_ATTACH_TIMEOUT", value_name = "TIME")]
    pub attach_timeout: Option<Span> = Span(Duration::from_secs(25)),

    /// Connect pods with this node's kernel
    #[arg(long, env = "PODGATE_HOST_PORT", value_name = "on|off")]
    pub host_port: Option<OnOff> = OnOff::On,

    /// Addresses of this node beyond those of its Node object; pods always accept connections from them; may be
    /// repeated
    #[arg(long, env = "PODGATE_NODE_ADDRESSES", value_name = "ADDRESS", value_delimiter = ',')]
    #[serde(default)]
    pub node_addresses: Vec<IpAddr>,

    /// MTU of the host port in bytes, up to 65000
    #[arg(long, env = "PODGATE_MTU", value_name = "BYTES")]
    pub mtu: Option<u32> = 1500,

    /// Interface towards other nodes, which the kernel keeps using; auto: the one with the node's address
    #[arg(long, env = "PODGATE_UPLINK", value_name = "INTERFACE|auto")]
    pub uplink: Option<String> => "none, only pods of this node are reached",

    /// Forwarding between nodes: VXLAN tunnels, or routed where the network passes pod addresses
    #[arg(long, env = "PODGATE_UNDERLAY", value_name = "HOW")]
    pub underlay: Option<Underlay> = Underlay::Vxlan,

    /// VXLAN network identifier, 1 to 16777215, the same on all nodes
    #[arg(long, env = "PODGATE_VXLAN_NETWORK", value_name = "N")]
    pub vxlan_network: Option<u32> = 4096,

    /// UDP port of the tunnels
    #[arg(long, env = "PODGATE_VXLAN_PORT", value_name = "PORT")]
    pub vxlan_port: Option<u16> = 4789,

    /// Carry the source's identity in the group policy field of tunnels
    #[arg(long, env = "PODGATE_VXLAN_GROUP", value_name = "on|off")]
    pub vxlan_group: Option<OnOff> = OnOff::Off,

    /// Source of pods' connections to the world: the node's address, by its kernel (kernel) or by the uplink
    /// (direct), or the pod's own (off)
    #[arg(long, env = "PODGATE_MASQUERADE", value_name = "HOW")]
    pub masquerade: Option<Masquerade> => "kernel with an uplink, else off",

    /// Ports of the node's addresses for masqueraded connections; the kernel must not use them
    #[arg(long, env = "PODGATE_TRANSLATION_PORTS", value_name = "FIRST-LAST")]
    pub translation_ports: Option<PortSpan> = PortSpan(61_000, 65_535),

    /// Link-local IPv4 destinations, such as a cloud's metadata service, that pods reach through the node's kernel if
    /// policies permit it
    #[arg(long, env = "PODGATE_LINK_LOCAL_DESTINATIONS", value_name = "off|CIDR,...")]
    pub link_local_destinations: Option<Networks> = Networks(vec![snapshot::METADATA_SERVICE.into()]),

    /// Networks from which services take external IPs (spec.externalIPs), never an address of a pod, a node, the API
    /// server or the cluster's networks; off: none
    #[arg(long, env = "PODGATE_EXTERNAL_IPS", value_name = "off|CIDR,...")]
    pub external_ips: Option<Networks> = Networks::default(),

    /// Networks of cluster IPs that the node's own processes reach through the switch; may be repeated
    #[arg(long, env = "PODGATE_SERVICE_NETWORKS", value_name = "CIDR", value_delimiter = ',')]
    #[serde(default)]
    pub service_networks: Vec<IpNet>,

    /// Encrypt traffic between pods of different nodes with WireGuard, and drop such traffic that arrives unencrypted.
    /// Needs an uplink, flow offload, and the kernel's WireGuard
    #[arg(long, env = "PODGATE_ENCRYPTION", value_name = "off|wireguard")]
    pub encryption: Option<Encryption> = Encryption::Off,

    /// UDP port of encrypted packets; the next one is used while a node changes its key
    #[arg(long, env = "PODGATE_ENCRYPTION_PORT", value_name = "PORT")]
    pub encryption_port: Option<u16> = 51_871,

    /// Encrypt also traffic between nodes with this option, of their processes and host-network pods; not from and to
    /// nodes that run the API server
    #[arg(long, env = "PODGATE_ENCRYPTION_HOST_NETWORK", value_name = "on|off")]
    pub encryption_host_network: Option<OnOff> = OnOff::Off,

    /// Forward established connections by programs in the kernel, under the switch's control. podgate status says why
    /// they are unavailable
    #[arg(long, env = "PODGATE_FLOW_OFFLOAD", value_name = "on|off")]
    pub flow_offload: Option<OnOff> = OnOff::On,

    /// Time that the programs keep forwarding after the switch has died; 0s: half a second, five heartbeats
    #[arg(long, env = "PODGATE_FLOW_OFFLOAD_GRACE", value_name = "TIME")]
    pub flow_offload_grace: Option<Span> = Span(flow_offload::Options::default().grace),

    /// File for verdicts, in the JSON lines of podgate observe -o json
    #[arg(long, env = "PODGATE_FLOW_EXPORT", value_name = "FILE")]
    pub flow_export: Option<PathBuf> => "none, no export",

    /// Size at which that file is rotated, in MB
    #[arg(long, env = "PODGATE_FLOW_EXPORT_MAX_SIZE_MB", value_name = "N")]
    pub flow_export_max_size_mb: Option<u32> = 10,

    /// Number of rotated files to keep; FILE.1 is the newest
    #[arg(long, env = "PODGATE_FLOW_EXPORT_MAX_BACKUPS", value_name = "N")]
    pub flow_export_max_backups: Option<u32> = 5,

    /// Filter of exported verdicts, in terms named as flags of podgate observe, such as 'verdict=dropped
    /// namespace=shop'
    #[arg(long, env = "PODGATE_FLOW_EXPORT_FILTER", value_name = "TERMS")]
    pub flow_export_filter: Option<String> => "none, all verdicts",

    /// Memory that the process may have. From 90 % of it on, new and larger NetworkPolicies of the
    /// namespace with the largest ones permit nothing, until 20 % are free
    #[arg(long, env = "PODGATE_MEMORY_LIMIT", value_name = "SIZE")]
    pub memory_limit: Option<Bytes> => "the limit of its cgroup, or none",

    /// Keep the connections of each hour within this size, for podgate policy replay-journal; 256MB is enough for
    /// weeks, and podgate check says for how long
    #[arg(long, env = "PODGATE_JOURNAL", value_name = "SIZE")]
    pub journal: Option<Bytes> => "none, off",

    /// Folder of the journal. The default is the folder journal of --state-dir if that is given
    #[arg(long, env = "PODGATE_JOURNAL_DIR", value_name = "PATH")]
    pub journal_dir: Option<PathBuf> => "/var/lib/podgate/journal",

    /// Verify the decision about one of N new connections by a linear scan of the rules; a difference is counted,
    /// logged and first in podgate status; 0: none
    #[arg(long, env = "PODGATE_VERIFY_DECISIONS", value_name = "N")]
    pub verify_decisions: Option<u32> = 0,

    /// Address of the Hubble Observer API: an address over TLS, or unix:PATH for this user. Clients authenticate by
    /// certificate, or by a token that the API server reviews
    #[arg(long, env = "PODGATE_HUBBLE_LISTEN", value_name = "ADDRESS:PORT|unix:PATH")]
    pub hubble_listen: Option<HubbleAddress> => "none, off",

    /// Certificate chain for hubble-listen, PEM; reloaded when it changes
    #[arg(long, env = "PODGATE_HUBBLE_CERT_FILE", value_name = "FILE")]
    pub hubble_cert_file: Option<PathBuf> => "none, self-signed at the start",

    /// Private key of that certificate, PEM
    #[arg(long, env = "PODGATE_HUBBLE_KEY_FILE", value_name = "FILE")]
    pub hubble_key_file: Option<PathBuf> => "none, made at the start",

    /// Authorities of client certificates, PEM; such a client needs no token
    #[arg(long, env = "PODGATE_HUBBLE_CLIENT_CA_FILE", value_name = "FILE")]
    pub hubble_client_ca_file: Option<PathBuf> => "none, tokens alone",

    /// Level of the log on stderr
    #[arg(long, env = "PODGATE_LOG_LEVEL", value_name = "LEVEL")]
    pub log_level: Option<LogLevel> = LogLevel::Info,

    /// Format of the log: text or json
    #[arg(long, env = "PODGATE_LOG_FORMAT", value_name = "FORMAT")]
    pub log_format: Option<LogFormat> = LogFormat::Text,
}
}
