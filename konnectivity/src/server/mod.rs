//! The server: the API server on one side, agents on the other.
//!
//! | file | part |
//! |---|---|
//! | `options.rs`, `proxy.rs` | options and shared state |
//! | `grpc_frontend.rs`, `connect_frontend.rs` | the API server, by either protocol |
//! | `listen.rs`, `lease.rs` | listeners with TLS or a unix socket; this server's lease |
//! | `agent_port.rs`, `agent_stream.rs` | agents: authentication, their streams |
//! | `backend.rs`, `backends.rs` | the connections of a stream; all streams, and the choice of one |
//! | `dial.rs`, `connection/` | a dial; one proxied connection |
//! | `metrics.rs` | its metrics |
//!
//! A dial takes the frontend's packet to an agent that the strategies choose; from the answer on
//! the agent's number stands for the connection, on that agent's stream.

mod agent_port;
mod agent_stream;
mod backend;
mod backends;
mod connect_frontend;
mod connection;
mod dial;
mod grpc_frontend;
mod lease;
mod listen;
mod metrics;
mod options;
mod proxy;

use std::net::SocketAddr;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

pub(crate) use agent_port::{PATH as AGENT_PATH, SETTINGS as AGENT_SETTINGS, WINDOW};
pub use options::{Frontend, Limits, Mode, Options, Strategy, TokenAuth};
use proxy::Proxy;

use telemetry::{Page, Pages};

use crate::memory::Trimmer;
use crate::tls;
use listen::{Socket, accept_tls, accept_unix, listen, listen_unix, serve_frontend};

/// A running server. Dropping it ends it at once.
#[derive(Debug)]
pub struct Server {
    proxy: Arc<Proxy>,
    tasks: JoinSet<()>,
    agents: SocketAddr,
    frontend: Option<SocketAddr>,
    socket: Option<Socket>,
    health: Vec<telemetry::Server>,
}

/// Error of a server's start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An option cannot be used.
    #[error("{0}")]
    Input(String),
    /// It cannot listen.
    #[error("{0}")]
    Failed(String),
}

/// Interval of checks of dials and pings.
const TICK: Duration = Duration::from_millis(250);

impl Server {
    /// Listens, and serves from then on, on the current tokio runtime.
    ///
    /// # Errors
    /// Names the file or address that cannot be used.
    pub async fn start(options: Options) -> Result<Self, StartError> {
        let agent_files = &options.agent_files;
        let agent_tls =
            tls::server_of_files("certificates for agents", agent_files, &options.tls, &["h2"])
                .map_err(StartError::Input)?;
        let protocols: &[&str] = match options.mode {
            Mode::Grpc => &["h2"],
            Mode::HttpConnect => &["http/1.1"],
        };
        let mut tasks = JoinSet::new();
        let proxy = Proxy::new(options);
        let (mut frontend, mut socket) = (None, None);
        match &proxy.options.frontend {
            Frontend::Unix { path, delete_existing } => {
                let listener = listen_unix(path, *delete_existing)?;
                socket = Some(Socket::of(path));
                tasks.spawn(accept_unix(Arc::clone(&proxy), listener));
            }
            Frontend::Tls { address, files } => {
                let policy = &proxy.options.tls;
                let tls =
                    tls::server_of_files("certificates of the frontend", files, policy, protocols)
                        .map_err(StartError::Input)?;
                let listener = listen(*address, "frontend").await?;
                frontend = listener.local_addr().ok();
                let serve = |proxy, io, who| async move { serve_frontend(&proxy, io, who).await };
                tasks.spawn(accept_tls(Arc::clone(&proxy), "frontend", listener, tls, serve));
            }
        }
        let listener = listen(proxy.options.agents, "agents").await?;
        let agents = listener.local_addr().unwrap_or(proxy.options.agents);
        let serve = |proxy, io, peer| async move { agent_port::serve(&proxy, io, peer).await };
        tasks.spawn(accept_tls(Arc::clone(&proxy), "agent", listener, agent_tls, serve));
        tasks.spawn(look_after(Arc::clone(&proxy)));
        if proxy.options.leases.is_some() {
            tasks.spawn(lease::keep(Arc::clone(&proxy)));
        }
        Ok(Self { proxy, tasks, agents, frontend, socket, health: Vec::new() })
    }

    /// Address of the agents' listener.
    pub fn agent_address(&self) -> SocketAddr {
        self.agents
    }

    /// Address of the API server's listener, unless it is a unix socket.
    pub fn frontend_address(&self) -> Option<SocketAddr> {
        self.frontend
    }

    /// `/healthz`, `/readyz`, `/ready` and `/metrics` on this address, for as long as the server
    /// lives; the address it really is.
    ///
    /// # Errors
    /// Fails if it cannot listen there.
    pub fn serve_health(&mut self, address: SocketAddr) -> Result<SocketAddr, StartError> {
        let server = serve_pages(address, Arc::new(Health(Arc::clone(&self.proxy))))?;
        let bound = server.address();
        self.health.push(server);
        Ok(bound)
    }

    /// Established connections.
    pub fn established(&self) -> i64 {
        self.proxy.metrics.established.get()
    }

    /// Returns whether a connection or a dial is open, or a client's stream that may bring a dial.
    fn is_busy(&self) -> bool {
        let metrics = &self.proxy.metrics;
        let open = [
            &metrics.established,
            &metrics.pending,
            &metrics.proxy_streams,
            &metrics.http_connections,
        ];
        open.iter().any(|count| count.get() > 0)
    }

    /// Stops accepting dials, unless a connection should end first. A client that was accepted before may dial until
    /// then.
    fn end_if_idle(&self, in_any_case: bool) -> bool {
        let mut ended = self.proxy.ended.write().unwrap_or_else(PoisonError::into_inner);
        *ended = in_any_case || !self.is_busy();
        *ended
    }

    /// Agents' connections.
    pub fn agents(&self) -> usize {
        self.proxy.backends.count()
    }

    /// The page `/metrics`.
    pub fn metrics(&self) -> String {
        self.proxy.page()
    }

    /// Closes the listeners and waits until the open connections have ended, for `grace` at most;
    /// then ends them.
    pub async fn stop(self, grace: Duration) {
        self.proxy.stopping.send_replace(true);
        for backend in self.proxy.backends.all() {
            // The agent looks for a successor, which may have this server's name.
            backend.stream.link.drain("the server ends");
        }
        let begin = Instant::now();
        while !self.end_if_idle(begin.elapsed() >= grace) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        if let Some((cluster, leases)) = &self.proxy.options.leases {
            let name = lease::name(&self.proxy.options.server_id);
            if let Err(error) = cluster.remove(leases, &name, |_| ()).await {
                tracing::warn!("lease {name}: {error}");
            }
        }
        for backend in self.proxy.backends.all() {
            backend.end("the server ends");
            backend.stream.link.close(0, "the server ends");
        }
        // Lets the last bytes leave.
        tokio::time::sleep(Duration::from_millis(50)).await;
        drop(self);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.tasks.abort_all();
        for backend in self.proxy.backends.all() {
            backend.stream.link.abort();
        }
        if let Some(socket) = &self.socket {
            socket.remove();
        }
        self.proxy.options.audit.flush();
    }
}

/// Serves health pages at this address.
pub(crate) fn serve_pages(
    address: SocketAddr,
    pages: Arc<dyn Pages>,
) -> Result<telemetry::Server, StartError> {
    let server = std::net::TcpListener::bind(address)
        .and_then(|listener| telemetry::Server::start(listener, pages));
    server.map_err(|error| StartError::Failed(format!("listen for health at {address}: {error}")))
}

async fn look_after(proxy: Arc<Proxy>) {
    let mut ticks = tokio::time::interval(TICK);
    let mut trimmer = Trimmer::default();
    loop {
        ticks.tick().await;
        trimmer.tick(proxy.shares.busy(http2::millis()));
        for backend in proxy.backends.all() {
            backend.tick(&proxy.options);
        }
    }
}

struct Health(Arc<Proxy>);

impl Pages for Health {
    fn page(&self, path: &str, _query: &str) -> Option<Page> {
        match path {
            "/healthz" | "/livez" => Some(Page::new(200, "ok")),
            "/readyz" | "/ready" => Some(match self.0.backends.is_ready() {
                true => Page::new(200, "ok"),
                false => Page::new(500, "no agent fits the first proxy strategy"),
            }),
            "/metrics" => Some(Page::new(200, self.0.page())),
            _ => None,
        }
    }
}
