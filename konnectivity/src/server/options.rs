//! What a server is told.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use crate::audit::Audit;
use crate::kubernetes::{Cluster, LeaseOptions};
use crate::rules::Rules;
use crate::tls::{TlsFiles, TlsPolicy};

/// What the API server speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// gRPC.
    Grpc,
    /// HTTP/1.1 CONNECT.
    HttpConnect,
}

/// Where the API server is listened for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frontend {
    /// A unix socket.
    Unix {
        /// Its path.
        path: PathBuf,
        /// Whether a file that is there already is removed.
        delete_existing: bool,
    },
    /// TLS, with client certificates from the authority in the files.
    Tls {
        /// The address.
        address: SocketAddr,
        /// Certificate, key, authority.
        files: TlsFiles,
    },
}

/// How an agent is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// Any.
    Default,
    /// One whose identifiers name the target's host.
    DestHost,
    /// One that said `default-route=true`.
    DefaultRoute,
}

impl Strategy {
    /// Its name in options and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::DestHost => "destHost",
            Self::DefaultRoute => "defaultRoute",
        }
    }
}

impl FromStr for Strategy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::Default, Self::DestHost, Self::DefaultRoute]
            .into_iter()
            .find(|strategy| strategy.name() == text)
            .ok_or_else(|| {
                format!("'{text}' is no strategy; there are default, destHost, defaultRoute")
            })
    }
}

/// Service account tokens that agents show.
#[derive(Clone, Debug)]
pub struct TokenAuth {
    /// Who is asked about them.
    pub cluster: Arc<Cluster>,
    /// The audience they must be for.
    pub audience: String,
    /// The namespace of the agents' service account.
    pub namespace: String,
    /// Its name.
    pub service_account: String,
}

/// What bounds a server's memory and patience.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes that may wait in one direction of one connection.
    pub connection_bytes: usize,
    /// For how long one connection's reader may take nothing while the above is full, before
    /// that connection is closed. Between two ends of this implementation it may take its time.
    pub slow_reader: Duration,
    /// For how long a dial may go without an answer; zero for ever.
    pub dial_timeout: Duration,
    /// Dials one agent may have before it.
    pub pending_dials: usize,
    /// Between two pings to an agent of this implementation, or of the original.
    pub probe: Duration,
    /// For how long it may leave one without an answer: not chosen after the first of these,
    /// given up after both.
    pub probe_timeout: Duration,
    /// For how long a TLS handshake or a CONNECT request may take.
    pub handshake: Duration,
    /// For how long a connection may go without its first request, an agent's without being
    /// authenticated.
    pub greeting: Duration,
    /// TokenReviews at a time.
    pub reviews: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connection_bytes: 1 << 20,
            slow_reader: Duration::from_secs(1),
            dial_timeout: Duration::from_secs(30),
            pending_dials: 10_000,
            probe: Duration::from_secs(5),
            probe_timeout: Duration::from_secs(5),
            handshake: Duration::from_secs(10),
            greeting: Duration::from_secs(20),
            reviews: 16,
        }
    }
}

/// What a server is told.
#[derive(Clone, Debug)]
pub struct Options {
    /// What the API server speaks.
    pub mode: Mode,
    /// Where.
    pub frontend: Frontend,
    /// Where agents come.
    pub agents: SocketAddr,
    /// With which certificate; `ca` set: they need one too.
    pub agent_files: TlsFiles,
    /// What TLS may be on both.
    pub tls: TlsPolicy,
    /// Whether agents must show tokens.
    pub tokens: Option<TokenAuth>,
    /// This server's name, unique among its peers.
    pub server_id: String,
    /// How many servers there are.
    pub server_count: usize,
    /// Whether this server's being there is told by a lease, and others are counted so.
    pub leases: Option<(Arc<Cluster>, LeaseOptions)>,
    /// How an agent is chosen, in order; never empty.
    pub strategies: Vec<Strategy>,
    /// Pings to agents that have been silent for this long.
    pub keepalive: Duration,
    /// Bounds.
    pub limits: Limits,
    /// Asked before each dial.
    pub rules: Option<Arc<Rules>>,
    /// Told of each connection.
    pub audit: Audit,
}
