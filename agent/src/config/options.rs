//! The options of `podgate run`, each in one place: name, meaning, default, variable.
//!
//! The same struct is what flags and variables are read into and what the file is read into,
//! so an option cannot exist in one and not in the other. [`super::Config::resolve`] checks
//! the values.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use ipnet::IpNet;
use serde::Deserialize;

use super::choices::{Enforcer, HugePages, LogFormat, LogLevel, Masquerade, RxMode};
use super::text::{Cores, HubbleAddress, OnOff, PortSpan};
use cli_runtime::{Networks, Span, Underlay};

/// The options as given; `None` and empty lists are unset.
#[derive(Debug, Clone, Default, PartialEq, Eq, clap::Args, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Options {
    /// Name of this cluster node, as its Node object has it [default: the host's name]
    #[arg(long, visible_alias = "node", env = "PODGATE_NODE_NAME", value_name = "NAME")]
    pub node_name: Option<String>,

    /// File or folder with manifests; may be given several times; watched for change [env:
    /// PODGATE_MANIFESTS=, paths joined by ':']
    #[arg(long, value_name = "PATH")]
    #[serde(default)]
    pub manifests: Vec<PathBuf>,

    /// File that says how to reach the API server, whose objects count instead of manifests.
    /// Where neither is given, inside a pod, its service account does
    #[arg(long, env = "PODGATE_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// Unix socket of the local API [default: /run/podgate/podgate.sock]
    #[arg(long, env = "PODGATE_SOCKET", value_name = "PATH")]
    pub socket: Option<PathBuf>,

    /// Address for /healthz, /readyz and /metrics [default: 127.0.0.1:9470]
    #[arg(long, env = "PODGATE_LISTEN", value_name = "ADDRESS:PORT")]
    pub listen: Option<SocketAddr>,

    /// Names by which clients call it, beside addresses and localhost; may be given several times.
    /// Requests for other hosts are refused (421): a page in a browser must not read it
    #[arg(long, env = "PODGATE_LISTEN_NAMES", value_name = "NAME", value_delimiter = ',')]
    #[serde(default)]
    pub listen_names: Vec<String>,

    /// Whether the address of /metrics also has a page for browsers: what policies allow, live
    /// connections and traced packets, read-only [default: off]
    #[arg(long, env = "PODGATE_WEB_PAGE", value_name = "on|off")]
    pub web_page: Option<OnOff>,

    /// Address for clients elsewhere, over TLS: /metrics for a scraper, and what kubectl podgate asks
    /// for. The API server authenticates and authorizes each of them [default: none, loopback only]
    #[arg(long, env = "PODGATE_METRICS_LISTEN", value_name = "ADDRESS:PORT")]
    pub metrics_listen: Option<SocketAddr>,

    /// Certificate chain for it, PEM, read again when it changes [default: none, made at the start]
    #[arg(long, env = "PODGATE_METRICS_CERT_FILE", value_name = "FILE")]
    pub metrics_cert_file: Option<PathBuf>,

    /// The certificate's key, PEM [default: none, made at the start]
    #[arg(long, env = "PODGATE_METRICS_KEY_FILE", value_name = "FILE")]
    pub metrics_key_file: Option<PathBuf>,

    /// Folder for state that outlives the process: attached pods, and the last objects received
    /// from the API server [default: /run/podgate]
    #[arg(long, env = "PODGATE_STATE_DIR", value_name = "PATH")]
    pub state_dir: Option<PathBuf>,

    /// How long a start waits for a running switch with the same state folder to end, before it
    /// takes its place [default: none, the start fails at once]
    #[arg(long, env = "PODGATE_TAKEOVER_WAIT", value_name = "TIME")]
    pub takeover_wait: Option<Span>,

    /// Cores to pin workers to, as in 2,4-6 [default: none, workers float]
    #[arg(long, env = "PODGATE_CORES", value_name = "LIST")]
    pub cores: Option<Cores>,

    /// Number of workers, at least as many as cores [default: one a core given, else 1]
    #[arg(long, env = "PODGATE_WORKERS", value_name = "N")]
    pub workers: Option<usize>,

    /// When workers look for packets [default: adaptive]
    #[arg(long, env = "PODGATE_RX_MODE", value_name = "MODE")]
    pub rx_mode: Option<RxMode>,

    /// How policies are enforced: by the switch, on pods that podgate-cni attached (afxdp), or by the
    /// kernel's nftables, on pods of another CNI plugin (nftables) [default: afxdp]
    #[arg(long, env = "PODGATE_ENFORCER", value_name = "afxdp|nftables")]
    pub enforcer: Option<Enforcer>,

    /// With nftables: networks from which another CNI plugin takes the addresses of this cluster
    /// node's pods, beside podCIDRs of its Node; closed for pods that are not known yet; may be given
    /// several times
    #[arg(long, env = "PODGATE_POD_NETWORKS", value_name = "CIDR", value_delimiter = ',')]
    #[serde(default)]
    pub pod_networks: Vec<IpNet>,

    /// Whether policies hold for pods on the host network of this cluster node, at the ports that their
    /// containers declare [default: off]
    #[arg(long, env = "PODGATE_HOST_NETWORK_POLICIES", value_name = "on|off")]
    pub host_network_policies: Option<OnOff>,

    /// Frames of 4096 bytes that packets live in, shared by all ports [default: 65536]
    #[arg(long, env = "PODGATE_UMEM_FRAMES", value_name = "N")]
    pub umem_frames: Option<u32>,

    /// Whether frames stand in huge pages; auto: if there are any [default: auto]
    #[arg(long, env = "PODGATE_HUGEPAGES", value_name = "WHEN")]
    pub hugepages: Option<HugePages>,

    /// Frames a port keeps ready for what it receives; one that is busy takes more [default: 256]
    #[arg(long, env = "PODGATE_FRAMES_PER_PORT", value_name = "N")]
    pub frames_per_port: Option<u32>,

    /// Ports there may be: pods, and the host port [default: 1024]
    #[arg(long, env = "PODGATE_MAX_PORTS", value_name = "N")]
    pub max_ports: Option<u16>,

    /// Sessions that fit. By default 1024 for each of max-ports, as far as a 64th of the memory has
    /// room for them, and not less than 1048576 [default: 1048576]
    #[arg(long, env = "PODGATE_SESSIONS", value_name = "N")]
    pub sessions: Option<u32>,

    /// Time without a packet after which the session of an established TCP connection ends [default: 1d]
    #[arg(long, env = "PODGATE_TCP_ESTABLISHED_TIMEOUT", value_name = "TIME")]
    pub tcp_established_timeout: Option<Span>,

    /// The same for TCP after one end has closed [default: 2m]
    #[arg(long, env = "PODGATE_TCP_TRANSIENT_TIMEOUT", value_name = "TIME")]
    pub tcp_transient_timeout: Option<Span>,

    /// The same for TCP after both ends have closed, or after a reset [default: 10s]
    #[arg(long, env = "PODGATE_TCP_CLOSED_TIMEOUT", value_name = "TIME")]
    pub tcp_closed_timeout: Option<Span>,

    /// The same for UDP with several datagrams each way [default: 2m]
    #[arg(long, env = "PODGATE_UDP_TIMEOUT", value_name = "TIME")]
    pub udp_timeout: Option<Span>,

    /// The same for UDP to port 53 after the answer [default: 5s]
    #[arg(long, env = "PODGATE_DNS_TIMEOUT", value_name = "TIME")]
    pub dns_timeout: Option<Span>,

    /// The same for ICMP and ICMPv6 [default: 10s]
    #[arg(long, env = "PODGATE_ICMP_TIMEOUT", value_name = "TIME")]
    pub icmp_timeout: Option<Span>,

    /// The same for all other protocols [default: 10m]
    #[arg(long, env = "PODGATE_OTHER_TIMEOUT", value_name = "TIME")]
    pub other_timeout: Option<Span>,

    /// The same for connections without a reply: TCP before its handshake is complete, UDP with a single
    /// exchange, and any other protocol before the first answer [default: 30s]
    #[arg(long, env = "PODGATE_UNANSWERED_TIMEOUT", value_name = "TIME")]
    pub unanswered_timeout: Option<Span>,

    /// Whether packets and bytes of each session are counted, for `podgate show sessions`
    /// [default: off]
    #[arg(long, env = "PODGATE_SESSION_ACCOUNTING", value_name = "on|off")]
    pub session_accounting: Option<OnOff>,

    /// Least time that an address of a domain name may be connected to after an answer, whatever its
    /// TTL [default: 30s]
    #[arg(long, env = "PODGATE_DNS_MIN_TTL", value_name = "TIME")]
    pub dns_min_ttl: Option<Span>,

    /// How long attaching a pod waits for its object and tables [default: 25s]
    #[arg(long, env = "PODGATE_ATTACH_TIMEOUT", value_name = "TIME")]
    pub attach_timeout: Option<Span>,

    /// Whether there is a way between pods and this cluster node's kernel [default: on]
    #[arg(long, env = "PODGATE_HOST_PORT", value_name = "on|off")]
    pub host_port: Option<OnOff>,

    /// Addresses of this cluster node beyond those of its Node object; what comes from them
    /// is always let in to pods; may be given several times
    #[arg(long, env = "PODGATE_NODE_ADDRESSES", value_name = "ADDRESS", value_delimiter = ',')]
    #[serde(default)]
    pub node_addresses: Vec<IpAddr>,

    /// Largest packet of the host port in bytes, without the Ethernet header, up to 65000
    /// [default: 1500]
    #[arg(long, env = "PODGATE_MTU", value_name = "BYTES")]
    pub mtu: Option<u32>,

    /// Interface towards the other cluster nodes, which stays the kernel's as well; auto: the one
    /// with the cluster node's address [default: none, only pods of this cluster node are reached]
    #[arg(long, env = "PODGATE_UPLINK", value_name = "INTERFACE|auto")]
    pub uplink: Option<String>,

    /// How packets travel between cluster nodes: in VXLAN tunnels, or as they are, where the
    /// network between them lets pods' addresses pass [default: vxlan]
    #[arg(long, env = "PODGATE_UNDERLAY", value_name = "HOW")]
    pub underlay: Option<Underlay>,

    /// VXLAN network identifier, 1 to 16777215, the same on all cluster nodes [default: 4096]
    #[arg(long, env = "PODGATE_VXLAN_NETWORK", value_name = "N")]
    pub vxlan_network: Option<u32>,

    /// UDP port of the tunnels' ends [default: 4789]
    #[arg(long, env = "PODGATE_VXLAN_PORT", value_name = "PORT")]
    pub vxlan_port: Option<u16>,

    /// Whether tunnels carry the source's identity in the group policy field [default: off]
    #[arg(long, env = "PODGATE_VXLAN_GROUP", value_name = "on|off")]
    pub vxlan_group: Option<OnOff>,

    /// How pods reach the world outside the cluster: as the cluster node, through its kernel
    /// (kernel) or by the uplink (direct), or as themselves through its kernel (off)
    /// [default: kernel with an uplink, else off]
    #[arg(long, env = "PODGATE_MASQUERADE", value_name = "HOW")]
    pub masquerade: Option<Masquerade>,

    /// Ports of the cluster node's addresses for connections that seem to come from it; the kernel
    /// must not use them [default: 61000-65535]
    #[arg(long, env = "PODGATE_TRANSLATION_PORTS", value_name = "FIRST-LAST")]
    pub translation_ports: Option<PortSpan>,

    /// Link-local IPv4 destinations, such as the metadata service of clouds, that pods reach through
    /// the cluster node's kernel if policies permit it [default: 169.254.169.254]
    #[arg(long, env = "PODGATE_LINK_LOCAL_DESTINATIONS", value_name = "off|CIDR,...")]
    pub link_local_destinations: Option<Networks>,

    /// Networks of which services take external IPs (spec.externalIPs). They never take an address of
    /// a pod, a node, the API server or the cluster's networks; off: services take none [default: off]
    #[arg(long, env = "PODGATE_EXTERNAL_IPS", value_name = "off|CIDR,...")]
    pub external_ips: Option<Networks>,

    /// Networks of services' cluster addresses, which the cluster node's own processes are to reach
    /// through the switch; may be given several times
    #[arg(long, env = "PODGATE_SERVICE_NETWORKS", value_name = "CIDR", value_delimiter = ',')]
    #[serde(default)]
    pub service_networks: Vec<IpNet>,

    /// Whether programs in the kernel forward established connections, under the switch's control.
    /// Where the kernel lacks something they do not, and podgate status says why [default: on]
    #[arg(long, env = "PODGATE_FLOW_OFFLOAD", value_name = "on|off")]
    pub flow_offload: Option<OnOff>,

    /// How long they go on after the switch has died, so that a restart loses no packet; 0s: half a
    /// second, since the switch shows ten times a second that it lives [default: 30s]
    #[arg(long, env = "PODGATE_FLOW_OFFLOAD_GRACE", value_name = "TIME")]
    pub flow_offload_grace: Option<Span>,

    /// File that verdicts are written to, one JSON line each, as podgate observe -o json prints them
    /// [default: none, no export]
    #[arg(long, env = "PODGATE_FLOW_EXPORT", value_name = "FILE")]
    pub flow_export: Option<PathBuf>,

    /// Size at which that file is rotated, in MB [default: 10]
    #[arg(long, env = "PODGATE_FLOW_EXPORT_MAX_SIZE_MB", value_name = "N")]
    pub flow_export_max_size_mb: Option<u32>,

    /// Rotated files kept beside it, FILE.1 the newest [default: 5]
    #[arg(long, env = "PODGATE_FLOW_EXPORT_MAX_BACKUPS", value_name = "N")]
    pub flow_export_max_backups: Option<u32>,

    /// Only these verdicts: terms named as flags of podgate observe, such as 'verdict=dropped
    /// namespace=shop' [default: none, all verdicts]
    #[arg(long, env = "PODGATE_FLOW_EXPORT_FILTER", value_name = "TERMS")]
    pub flow_export_filter: Option<String>,

    /// Where the Hubble Observer API is answered: an address over TLS, or unix:PATH for this user.
    /// Clients of an address show a certificate or a token that the API server reviews
    /// [default: none, it is not]
    #[arg(long, env = "PODGATE_HUBBLE_LISTEN", value_name = "ADDRESS:PORT|unix:PATH")]
    pub hubble_listen: Option<HubbleAddress>,

    /// Certificate chain for it, PEM, read again when it changes [default: none, made at the start]
    #[arg(long, env = "PODGATE_HUBBLE_CERT_FILE", value_name = "FILE")]
    pub hubble_cert_file: Option<PathBuf>,

    /// The certificate's key, PEM [default: none, made at the start]
    #[arg(long, env = "PODGATE_HUBBLE_KEY_FILE", value_name = "FILE")]
    pub hubble_key_file: Option<PathBuf>,

    /// Authorities of clients' certificates, PEM; a client with such a certificate needs no token
    /// [default: none, tokens alone]
    #[arg(long, env = "PODGATE_HUBBLE_CLIENT_CA_FILE", value_name = "FILE")]
    pub hubble_client_ca_file: Option<PathBuf>,

    /// How much is logged to stderr [default: info]
    #[arg(long, env = "PODGATE_LOG_LEVEL", value_name = "LEVEL")]
    pub log_level: Option<LogLevel>,

    /// How the log is written [default: text]
    #[arg(long, env = "PODGATE_LOG_FORMAT", value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,
}

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

macro_rules! each_over {
    ($given:ident, $other:ident: $($field:ident)*) => {
        Self { $($field: Given::or($given.$field, $other.$field)),* }
    };
}

impl Options {
    /// Returns these options, completed by the others where these are unset.
    #[must_use]
    pub fn over(self, file: Self) -> Self {
        each_over! { self, file:
            node_name manifests kubeconfig socket listen listen_names web_page metrics_listen metrics_cert_file
            metrics_key_file state_dir takeover_wait cores workers rx_mode enforcer pod_networks
            host_network_policies umem_frames hugepages frames_per_port max_ports sessions
            tcp_established_timeout tcp_transient_timeout tcp_closed_timeout udp_timeout
            dns_timeout icmp_timeout other_timeout unanswered_timeout session_accounting dns_min_ttl attach_timeout host_port
            node_addresses mtu uplink underlay vxlan_network vxlan_port vxlan_group masquerade
            translation_ports link_local_destinations external_ips service_networks flow_offload flow_offload_grace flow_export
            flow_export_max_size_mb flow_export_max_backups flow_export_filter hubble_listen
            hubble_cert_file hubble_key_file hubble_client_ca_file log_level log_format
        }
    }
}
