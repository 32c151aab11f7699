//! Options of a server.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use crate::audit::Audit;
use crate::kubernetes::{Cluster, LeaseOptions};
use crate::rules::Rules;
use crate::tls::{TlsFiles, TlsPolicy};

/// Protocol of the API server's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// gRPC.
    Grpc,
    /// HTTP/1.1 CONNECT.
    HttpConnect,
}

/// Listener for the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frontend {
    /// A unix socket.
    Unix {
        /// Its path.
        path: PathBuf,
        /// Removes a file that is there already.
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

/// A strategy of choosing an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// Any.
    Default,
    /// One whose identifiers name the target's host.
    DestHost,
    /// One with `default-route=true`.
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
                format!("'{text}' is not a strategy; there are default, destHost, defaultRoute")
            })
    }
}

/// Verification of agents' service account tokens.
#[derive(Clone, Debug)]
pub struct TokenAuth {
    /// The API server that reviews them.
    pub cluster: Arc<Cluster>,
    /// The audience they must be for.
    pub audience: String,
    /// The namespace of the agents' service account.
    pub namespace: String,
    /// Its name.
    pub service_account: String,
}

/// Limits on a server's memory and waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum of bytes queued in one direction of one connection.
    pub connection_bytes: usize,
    /// Timeout of a reader that takes no bytes while its queue is full. Not used with an agent of
    /// this implementation.
    pub slow_reader: Duration,
    /// Timeout of a dial's answer; zero for none.
    pub dial_timeout: Duration,
    /// Maximum of unanswered dials for each agent.
    pub pending_dials: usize,
    /// Ping intervals for agents of this implementation and of the original.
    pub probe: Duration,
    /// Timeouts of a ping: after the first the agent is not chosen, after the second it is
    /// disconnected.
    pub probe_timeout: Duration,
    /// Timeout of a target that sends nothing after its client has sent everything.
    pub half_closed: Duration,
    /// Timeout of a TLS handshake or a CONNECT request.
    pub handshake: Duration,
    /// Timeout of a connection's first request, and of an agent's authentication.
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
            half_closed: Duration::from_secs(10),
            handshake: Duration::from_secs(10),
            greeting: Duration::from_secs(20),
            reviews: 16,
        }
    }
}

/// Options of a server.
#[derive(Clone, Debug)]
pub struct Options {
    /// Protocol of the API server's connections.
    pub mode: Mode,
    /// The listener.
    pub frontend: Frontend,
    /// Address of the listener for agents.
    pub agents: SocketAddr,
    /// Its certificate; with `ca` set agents need one too.
    pub agent_files: TlsFiles,
    /// Versions and ciphers of TLS on both.
    pub tls: TlsPolicy,
    /// Verification of agents' tokens, if they must show them.
    pub tokens: Option<TokenAuth>,
    /// This server's name, unique among its peers.
    pub server_id: String,
    /// The number of servers.
    pub server_count: usize,
    /// Leases to hold and to count, if any.
    pub leases: Option<(Arc<Cluster>, LeaseOptions)>,
    /// Strategies of choosing an agent, in order; never empty.
    pub strategies: Vec<Strategy>,
    /// Pings to agents that have been silent for this long.
    pub keepalive: Duration,
    /// Bounds.
    pub limits: Limits,
    /// Rules evaluated before each dial.
    pub rules: Option<Arc<Rules>>,
    /// Audit log of connections.
    pub audit: Audit,
}
