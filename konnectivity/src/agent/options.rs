//! What an agent is told.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::audit::Audit;
use crate::kubernetes::{Cluster, LeaseOptions};
use crate::rules::Rules;
use crate::tls::TlsFiles;

/// How the number of servers is learnt.
#[derive(Clone, Debug, Default)]
pub enum ServerCount {
    /// What the last server said.
    #[default]
    Told,
    /// The largest number any server said that we are connected with.
    Largest,
    /// By leases that are valid.
    Leases(Arc<Cluster>, LeaseOptions),
}

/// What bounds an agent's memory and patience.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes that may wait for one target.
    pub connection_bytes: usize,
    /// For how long a target may take nothing while the above is full, before its connection is
    /// closed. A server of this implementation waits instead.
    pub slow_target: Duration,
    /// For how long a connection to a target may take to open.
    pub dial_timeout: Duration,
    /// Dials at a time, for each server.
    pub pending_dials: usize,
    /// Between two pings to a server of this implementation.
    pub probe: Duration,
    /// For how long a server may leave a ping without an answer.
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

/// What an agent is told.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name or address of the servers, or of what balances between them.
    pub server_host: String,
    /// Their port.
    pub server_port: u16,
    /// Our certificate, and the authority of theirs.
    pub files: TlsFiles,
    /// Protocols offered in the TLS handshake besides `h2`.
    pub alpn: Vec<String>,
    /// File with the token that is shown; read anew for each connection. Newlines at its end are
    /// left out.
    pub token: Option<PathBuf>,
    /// This agent's name.
    pub agent_id: String,
    /// What it reaches, as a URL query.
    pub identifiers: String,
    /// Between two looks for more servers, at first.
    pub sync_interval: Duration,
    /// And at most, after failures.
    pub sync_interval_cap: Duration,
    /// Between two looks whether the servers are still there.
    pub probe_interval: Duration,
    /// Whether to look for more servers when all are found.
    pub sync_forever: bool,
    /// How their number is learnt.
    pub server_count: ServerCount,
    /// Pings to servers that have been silent for this long.
    pub keepalive: Duration,
    /// Bounds.
    pub limits: Limits,
    /// Asked before each dial.
    pub rules: Option<Arc<Rules>>,
    /// Told of each connection.
    pub audit: Audit,
}
