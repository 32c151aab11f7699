//! Options of an agent.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::http_proxy::HttpProxy;
use crate::audit::Audit;
use crate::kubernetes::{Cluster, LeaseOptions};
use crate::rules::Rules;
use crate::tls::TlsFiles;

/// The source of the number of servers.
#[derive(Clone, Debug, Default)]
pub enum ServerCount {
    /// The last server's count.
    #[default]
    Reported,
    /// The largest count of all connected servers.
    Largest,
    /// The number of valid leases.
    Leases(Arc<Cluster>, LeaseOptions),
}

/// Limits on an agent's memory and waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum of bytes queued for one target.
    pub connection_bytes: usize,
    /// Timeout of a target that takes no bytes while its queue is full. Not used with a server of
    /// this implementation, which waits instead.
    pub slow_target: Duration,
    /// Timeout of opening a connection to a target.
    pub dial_timeout: Duration,
    /// Maximum of concurrent dials, for each server.
    pub pending_dials: usize,
    /// Between two pings to a server of this implementation.
    pub probe: Duration,
    /// Timeout of a ping.
    pub probe_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connection_bytes: 1 << 20,
            slow_target: Duration::from_secs(1),
            dial_timeout: Duration::from_secs(5),
            pending_dials: 10_000,
            probe: Duration::from_secs(5),
            probe_timeout: Duration::from_secs(10),
        }
    }
}

/// Options of an agent.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name or address of the servers, or of their load balancer.
    pub server_host: String,
    /// Their port.
    pub server_port: u16,
    /// The HTTP proxy on the way to them.
    pub proxy: Option<HttpProxy>,
    /// Our certificate, and the authority of theirs.
    pub files: TlsFiles,
    /// Protocols offered in the TLS handshake besides `h2`.
    pub alpn: Vec<String>,
    /// File with the token; read again for each connection. Trailing newlines are removed.
    pub token: Option<PathBuf>,
    /// This agent's name.
    pub agent_id: String,
    /// Its identifiers, as a URL query.
    pub identifiers: String,
    /// Initial interval of the search for more servers.
    pub sync_interval: Duration,
    /// Longest interval, after failures.
    pub sync_interval_cap: Duration,
    /// Interval of checks of the connected servers.
    pub probe_interval: Duration,
    /// Searches for more servers when all are connected.
    pub sync_forever: bool,
    /// The source of their number.
    pub server_count: ServerCount,
    /// Idle time before a ping to a server.
    pub keepalive: Duration,
    /// Bounds.
    pub limits: Limits,
    /// Rules evaluated before each dial.
    pub rules: Option<Arc<Rules>>,
    /// Audit log of connections.
    pub audit: Audit,
}
