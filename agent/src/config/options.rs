//! The options of `podgate run`, each in one place: name, meaning, default, variable.
//!
//! The same struct is what flags and variables are read into and what the file is read into,
//! so an option cannot exist in one and not in the other. [`super::Config::resolve`] checks
//! the values.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use ipnet::IpNet;
use serde::Deserialize;

use super::choices::{
    Aggregate, Encryption, Enforcer, HugePages, LogFormat, LogLevel, Masquerade, RxMode,
    SocketError, SocketPolicies,
};
use super::text::{Bytes, Cores, HubbleAddress, OnOff, PortSpan};
use cli_runtime::{Networks, Span, Underlay};
use control::model::DeniedReply;

/// Values of which those given count, else others.
trait Given {
    fn or(self, other: Self) -> Self;
}

impl<T> Given for Option<T> {
    fn or(self, other: Self) -> Self {
        self.or(other)
    }
}

/// A list given replaces the other whole.
impl<T> Given for Vec<T> {
    fn or(self, other: Self) -> Self {
        if self.is_empty() { other } else { self }
    }
}

/// Defines the options, and what the fields do alike.
macro_rules! options {
    ($(#[$($meta:tt)*])* pub struct $name:ident {
        $($(#[$($attribute:tt)*])* pub $field:ident: $type:ty,)*
    }) => {
        $(#[$($meta)*])*
        pub struct $name {
            $($(#[$($attribute)*])* pub $field: $type,)*
        }

        impl $name {
            /// Returns these options, completed by the others where these are unset.
            #[must_use]
            pub fn over(self, file: Self) -> Self {
                Self { $($field: Given::or(self.$field, file.$field)),* }
            }
        }
    };
}

options! {
/// The options as given; `None` and empty lists are unset.
#[derive(Debug, Clone, Default, PartialEq, Eq, clap::Args, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Options {
    /// Name of this node, as in its Node object [default: the host name]
    #[arg(long, visible_alias = "node", env = "PODGATE_NODE_NAME", value_name = "NAME")]
    pub node_name: Option<String>,

    /// File or folder of manifests, watched for changes; may be repeated [env: PODGATE_MANIFESTS=,
    /// paths joined by ':']
    #[arg(long, value_name = "PATH")]
    #[serde(default)]
    pub manifests: Vec<PathBuf>,

    /// Kubeconfig of the API server to watch, instead of manifests. Inside a pod without either, its service
    /// account is used
    #[arg(long, env = "PODGATE_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// Unix socket of the local API [default: /run/podgate/podgate.sock]
    #[arg(long, env = "PODGATE_SOCKET", value_name = "PATH")]
    pub socket: Option<PathBuf>,

    /// Address for /healthz, /readyz and /metrics [default: 127.0.0.1:9470]
    #[arg(long, env = "PODGATE_LISTEN", value_name = "ADDRESS:PORT")]
    pub listen: Option<SocketAddr>,

    /// Host names that clients use for it, beside addresses and localhost; may be repeated. Requests
    /// for other hosts get 421, which stops DNS rebinding
    #[arg(long, env = "PODGATE_LISTEN_NAMES", value_name = "NAME", value_delimiter = ',')]
    #[serde(default)]
    pub listen_names: Vec<String>,

    /// Serve a read-only page at the address of /metrics: allowed connections, live ones, traced
    /// packets [default: off]
    #[arg(long, env = "PODGATE_WEB_PAGE", value_name = "on|off")]
    pub web_page: Option<OnOff>,

    /// Address for remote clients, over TLS: scrapers of /metrics, and kubectl podgate. The API server
    /// authenticates and authorizes them [default: none, loopback only]
    #[arg(long, env = "PODGATE_METRICS_LISTEN", value_name = "ADDRESS:PORT")]
    pub metrics_listen: Option<SocketAddr>,

    /// Certificate chain of it, PEM; reloaded when it changes [default: none, self-signed at the start]
    #[arg(long, env = "PODGATE_METRICS_CERT_FILE", value_name = "FILE")]
    pub metrics_cert_file: Option<PathBuf>,

    /// Private key of the certificate, PEM [default: none, made at the start]
    #[arg(long, env = "PODGATE_METRICS_KEY_FILE", value_name = "FILE")]
    pub metrics_key_file: Option<PathBuf>,

    /// Folder for state that outlives the process: attached pods, and the last objects of the API
    /// server [default: /run/podgate]
    #[arg(long, env = "PODGATE_STATE_DIR", value_name = "PATH")]
    pub state_dir: Option<PathBuf>,

    /// Time that a start waits for a running switch with the same state folder to end [default: none,
    /// the start fails at once]
    #[arg(long, env = "PODGATE_TAKEOVER_WAIT", value_name = "TIME")]
    pub takeover_wait: Option<Span>,

    /// Take the pods of other nodes from PodgateAddresses, compact objects that one elected switch writes, instead
    /// of watching all pods (endpoints), for clusters of thousands of nodes [default: off]
    #[arg(long, env = "PODGATE_AGGREGATE", value_name = "off|endpoints")]
    pub aggregate: Option<Aggregate>,

    /// Cores to pin workers to, such as 2,4-6 [default: none, workers are not pinned]
    #[arg(long, env = "PODGATE_CORES", value_name = "LIST")]
    pub cores: Option<Cores>,

    /// Number of workers, at least the number of cores [default: one for each core, else 1]
    #[arg(long, env = "PODGATE_WORKERS", value_name = "N")]
    pub workers: Option<usize>,

    /// Receive mode of workers [default: adaptive]
    #[arg(long, env = "PODGATE_RX_MODE", value_name = "MODE")]
    pub rx_mode: Option<RxMode>,

    /// Enforcer of policies: the switch, for pods of podgate-cni (afxdp), or the kernel's nftables, for
    /// pods of another CNI plugin (nftables) [default: afxdp]
    #[arg(long, env = "PODGATE_ENFORCER", value_name = "afxdp|nftables")]
    pub enforcer: Option<Enforcer>,

    /// With nftables: networks from which another CNI plugin assigns pod addresses, beside the Node's
    /// podCIDRs; addresses of unknown pods in them are closed; may be repeated
    #[arg(long, env = "PODGATE_POD_NETWORKS", value_name = "CIDR", value_delimiter = ',')]
    #[serde(default)]
    pub pod_networks: Vec<IpNet>,

    /// Enforce policies for this node's host-network pods: at their sockets with socket-policies, else ingress at the
    /// ports that their containers declare [default: off]
    #[arg(long, env = "PODGATE_HOST_NETWORK_POLICIES", value_name = "on|off")]
    pub host_network_policies: Option<OnOff>,

    /// Deny connect() and sendmsg() of pods by programs at their cgroups (cgroup v2), beside the enforcer; closed:
    /// also until the rules of a new pod are there. podgate status says why they are unavailable [default: off]
    #[arg(long, env = "PODGATE_SOCKET_POLICIES", value_name = "off|on|closed")]
    pub socket_policies: Option<SocketPolicies>,

    /// Error of a denied connect() or sendmsg() [default: eperm]
    #[arg(long, env = "PODGATE_SOCKET_ERROR", value_name = "eperm|econnrefused")]
    pub socket_error: Option<SocketError>,

    /// Hierarchy of cgroup v2 with the cgroups of pods [default: /sys/fs/cgroup]
    #[arg(long, env = "PODGATE_CGROUP_ROOT", value_name = "PATH")]
    pub cgroup_root: Option<PathBuf>,

    /// File system of type bpf, in which programs at cgroups are pinned: they stay when the switch ends
    /// [default: /sys/fs/bpf]
    #[arg(long, env = "PODGATE_BPF_FS", value_name = "PATH")]
    pub bpf_fs: Option<PathBuf>,

    /// Reply to the initiator of a denied connection: nothing (drop); a TCP reset or ICMP administratively
    /// prohibited, to pods (reject), or to everybody (reject-all). The annotation podgate.io/denied-reply of
    /// a Namespace overrides it [default: drop]
    #[arg(long, env = "PODGATE_DENIED_REPLY", value_name = "drop|reject|reject-all")]
    pub denied_reply: Option<DeniedReply>,

    /// Enforce no policies but those with the annotation podgate.io/stage=enforced: report what the others
    /// would deny and open, for a first rollout on a running cluster [default: off]
    #[arg(long, env = "PODGATE_STAGE_ALL", value_name = "on|off")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "on")]
    pub stage_all: Option<OnOff>,

    /// Once the switch is ready, set the condition NetworkUnavailable of its Node to False and remove the taint
    /// podgate.io/not-ready, which kubelet adds with --register-with-taints [default: off]
    #[arg(long, env = "PODGATE_NODE_READINESS", value_name = "on|off")]
    pub node_readiness: Option<OnOff>,

    /// Packet buffers of 4096 bytes, shared by all ports. With flow offload the default is 8192 for each worker and 8192
    /// more, or 512 for each core if that is more, up to 65536, which it is without [default: 16384]
    #[arg(long, env = "PODGATE_UMEM_FRAMES", value_name = "N")]
    pub umem_frames: Option<u32>,

    /// Use huge pages for packet buffers; auto: if there are any [default: auto]
    #[arg(long, env = "PODGATE_HUGEPAGES", value_name = "WHEN")]
    pub hugepages: Option<HugePages>,

    /// Packet buffers posted to a port's fill ring; a busy port takes more [default: 256]
    #[arg(long, env = "PODGATE_FRAMES_PER_PORT", value_name = "N")]
    pub frames_per_port: Option<u32>,

    /// Maximum number of ports: pods, and the host port [default: 1024]
    #[arg(long, env = "PODGATE_MAX_PORTS", value_name = "N")]
    pub max_ports: Option<u16>,

    /// Size of the session table. The default is 1024 for each of max-ports, within a 64th of the memory, and
    /// at least 1048576 [default: 1048576]
    #[arg(long, env = "PODGATE_SESSIONS", value_name = "N")]
    pub sessions: Option<u32>,

    /// Idle timeout of established TCP connections [default: 1d]
    #[arg(long, env = "PODGATE_TCP_ESTABLISHED_TIMEOUT", value_name = "TIME")]
    pub tcp_established_timeout: Option<Span>,

    /// Idle timeout of TCP connections that one end has closed [default: 2m]
    #[arg(long, env = "PODGATE_TCP_TRANSIENT_TIMEOUT", value_name = "TIME")]
    pub tcp_transient_timeout: Option<Span>,

    /// Idle timeout of TCP connections after both FINs or a RST [default: 10s]
    #[arg(long, env = "PODGATE_TCP_CLOSED_TIMEOUT", value_name = "TIME")]
    pub tcp_closed_timeout: Option<Span>,

    /// Idle timeout of UDP with several datagrams each way [default: 2m]
    #[arg(long, env = "PODGATE_UDP_TIMEOUT", value_name = "TIME")]
    pub udp_timeout: Option<Span>,

    /// Idle timeout of UDP to port 53 after the answer [default: 5s]
    #[arg(long, env = "PODGATE_DNS_TIMEOUT", value_name = "TIME")]
    pub dns_timeout: Option<Span>,

    /// Idle timeout of ICMP and ICMPv6 [default: 10s]
    #[arg(long, env = "PODGATE_ICMP_TIMEOUT", value_name = "TIME")]
    pub icmp_timeout: Option<Span>,

    /// Idle timeout of other protocols [default: 10m]
    #[arg(long, env = "PODGATE_OTHER_TIMEOUT", value_name = "TIME")]
    pub other_timeout: Option<Span>,

    /// Idle timeout without a reply: TCP before its handshake is complete, UDP with a single exchange,
    /// other protocols before the first answer [default: 30s]
    #[arg(long, env = "PODGATE_UNANSWERED_TIMEOUT", value_name = "TIME")]
    pub unanswered_timeout: Option<Span>,

    /// Count packets and bytes of each session, for `podgate show sessions` [default: off]
    #[arg(long, env = "PODGATE_SESSION_ACCOUNTING", value_name = "on|off")]
    pub session_accounting: Option<OnOff>,

    /// Minimum time that an address of a domain name may be connected to, whatever its TTL [default:
    /// 30s]
    #[arg(long, env = "PODGATE_DNS_MIN_TTL", value_name = "TIME")]
    pub dns_min_ttl: Option<Span>,

    /// Time that attaching a pod waits for its object and tables [default: 25s]
    #[arg(long, env = "PODGATE_ATTACH_TIMEOUT", value_name = "TIME")]
    pub attach_timeout: Option<Span>,

    /// Connect pods with this node's kernel [default: on]
    #[arg(long, env = "PODGATE_HOST_PORT", value_name = "on|off")]
    pub host_port: Option<OnOff>,

    /// Addresses of this node beyond those of its Node object; pods always accept connections from
    /// them; may be repeated
    #[arg(long, env = "PODGATE_NODE_ADDRESSES", value_name = "ADDRESS", value_delimiter = ',')]
    #[serde(default)]
    pub node_addresses: Vec<IpAddr>,

    /// MTU of the host port in bytes, up to 65000 [default: 1500]
    #[arg(long, env = "PODGATE_MTU", value_name = "BYTES")]
    pub mtu: Option<u32>,

    /// Interface towards other nodes, which the kernel keeps using; auto: the one with the node's
    /// address [default: none, only pods of this node are reached]
    #[arg(long, env = "PODGATE_UPLINK", value_name = "INTERFACE|auto")]
    pub uplink: Option<String>,

    /// Forwarding between nodes: VXLAN tunnels, or routed where the network passes pod addresses
    /// [default: vxlan]
    #[arg(long, env = "PODGATE_UNDERLAY", value_name = "HOW")]
    pub underlay: Option<Underlay>,

    /// VXLAN network identifier, 1 to 16777215, the same on all nodes [default: 4096]
    #[arg(long, env = "PODGATE_VXLAN_NETWORK", value_name = "N")]
    pub vxlan_network: Option<u32>,

    /// UDP port of the tunnels [default: 4789]
    #[arg(long, env = "PODGATE_VXLAN_PORT", value_name = "PORT")]
    pub vxlan_port: Option<u16>,

    /// Carry the source's identity in the group policy field of tunnels [default: off]
    #[arg(long, env = "PODGATE_VXLAN_GROUP", value_name = "on|off")]
    pub vxlan_group: Option<OnOff>,

    /// Source of pods' connections to the world: the node's address, by its kernel (kernel) or by the
    /// uplink (direct), or the pod's own (off) [default: kernel with an uplink, else off]
    #[arg(long, env = "PODGATE_MASQUERADE", value_name = "HOW")]
    pub masquerade: Option<Masquerade>,

    /// Ports of the node's addresses for masqueraded connections; the kernel must not use them
    /// [default: 61000-65535]
    #[arg(long, env = "PODGATE_TRANSLATION_PORTS", value_name = "FIRST-LAST")]
    pub translation_ports: Option<PortSpan>,

    /// Link-local IPv4 destinations, such as a cloud's metadata service, that pods reach through the
    /// node's kernel if policies permit it [default: 169.254.169.254]
    #[arg(long, env = "PODGATE_LINK_LOCAL_DESTINATIONS", value_name = "off|CIDR,...")]
    pub link_local_destinations: Option<Networks>,

    /// Networks from which services take external IPs (spec.externalIPs), never an address of a pod, a
    /// node, the API server or the cluster's networks; off: none [default: off]
    #[arg(long, env = "PODGATE_EXTERNAL_IPS", value_name = "off|CIDR,...")]
    pub external_ips: Option<Networks>,

    /// Networks of cluster IPs that the node's own processes reach through the switch; may be repeated
    #[arg(long, env = "PODGATE_SERVICE_NETWORKS", value_name = "CIDR", value_delimiter = ',')]
    #[serde(default)]
    pub service_networks: Vec<IpNet>,

    /// Encrypt what pods of different nodes say to each other by a WireGuard device, and drop what arrives in
    /// clear. Needs an uplink, flow offload, and the kernel's WireGuard [default: off]
    #[arg(long, env = "PODGATE_ENCRYPTION", value_name = "off|wireguard")]
    pub encryption: Option<Encryption>,

    /// UDP port of encrypted packets [default: 51871]
    #[arg(long, env = "PODGATE_ENCRYPTION_PORT", value_name = "PORT")]
    pub encryption_port: Option<u16>,

    /// Forward established connections by programs in the kernel, under the switch's control. podgate
    /// status says why they are unavailable [default: on]
    #[arg(long, env = "PODGATE_FLOW_OFFLOAD", value_name = "on|off")]
    pub flow_offload: Option<OnOff>,

    /// Time that the programs keep forwarding after the switch has died; 0s: half a second, five
    /// heartbeats [default: 30s]
    #[arg(long, env = "PODGATE_FLOW_OFFLOAD_GRACE", value_name = "TIME")]
    pub flow_offload_grace: Option<Span>,

    /// File for verdicts, in the JSON lines of podgate observe -o json [default: none, no export]
    #[arg(long, env = "PODGATE_FLOW_EXPORT", value_name = "FILE")]
    pub flow_export: Option<PathBuf>,

    /// Size at which that file is rotated, in MB [default: 10]
    #[arg(long, env = "PODGATE_FLOW_EXPORT_MAX_SIZE_MB", value_name = "N")]
    pub flow_export_max_size_mb: Option<u32>,

    /// Number of rotated files to keep; FILE.1 is the newest [default: 5]
    #[arg(long, env = "PODGATE_FLOW_EXPORT_MAX_BACKUPS", value_name = "N")]
    pub flow_export_max_backups: Option<u32>,

    /// Filter of exported verdicts, in terms named as flags of podgate observe, such as
    /// 'verdict=dropped namespace=shop' [default: none, all verdicts]
    #[arg(long, env = "PODGATE_FLOW_EXPORT_FILTER", value_name = "TERMS")]
    pub flow_export_filter: Option<String>,

    /// Keep the connections of each hour in the folder journal of the state directory, within this size, for
    /// podgate policy replay-journal; 256MB is enough for weeks [default: none, off]
    #[arg(long, env = "PODGATE_JOURNAL", value_name = "SIZE")]
    pub journal: Option<Bytes>,

    /// Decide about one of N new connections again, by trying the rules one after the other; a difference is
    /// counted, logged and first in podgate status; 0 is none [default: 0]
    #[arg(long, env = "PODGATE_VERIFY_DECISIONS", value_name = "N")]
    pub verify_decisions: Option<u32>,

    /// Address of the Hubble Observer API: an address over TLS, or unix:PATH for this user. Clients
    /// authenticate by certificate, or by a token that the API server reviews [default: none, off]
    #[arg(long, env = "PODGATE_HUBBLE_LISTEN", value_name = "ADDRESS:PORT|unix:PATH")]
    pub hubble_listen: Option<HubbleAddress>,

    /// Certificate chain of it, PEM; reloaded when it changes [default: none, self-signed at the start]
    #[arg(long, env = "PODGATE_HUBBLE_CERT_FILE", value_name = "FILE")]
    pub hubble_cert_file: Option<PathBuf>,

    /// Private key of the certificate, PEM [default: none, made at the start]
    #[arg(long, env = "PODGATE_HUBBLE_KEY_FILE", value_name = "FILE")]
    pub hubble_key_file: Option<PathBuf>,

    /// Authorities of client certificates, PEM; such a client needs no token [default: none, tokens
    /// alone]
    #[arg(long, env = "PODGATE_HUBBLE_CLIENT_CA_FILE", value_name = "FILE")]
    pub hubble_client_ca_file: Option<PathBuf>,

    /// Level of the log on stderr [default: info]
    #[arg(long, env = "PODGATE_LOG_LEVEL", value_name = "LEVEL")]
    pub log_level: Option<LogLevel>,

    /// Format of the log: text or json [default: text]
    #[arg(long, env = "PODGATE_LOG_FORMAT", value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,
}
}
