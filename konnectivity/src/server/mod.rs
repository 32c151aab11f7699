//! The server: the API server on one side, agents on the other.
//!
//! | file | part |
//! |---|---|
//! | `options.rs`, `proxy.rs` | options and shared state |
//! | `grpc_frontend.rs`, `connect_frontend.rs` | the API server, in either language |
//! | `agent_port.rs`, `backend.rs`, `backends.rs` | agents: let in, served, chosen |
//! | `connection.rs` | one proxied connection |
//! | `metrics.rs` | what a scraper is told |
//!
//! A dial takes the frontend's packet to an agent that the strategies choose; from the answer on
//! the agent's number stands for the connection, on that agent's stream.

mod agent_port;
mod backend;
mod backends;
mod connect_frontend;
mod connection;
mod grpc_frontend;
mod metrics;
mod options;
mod proxy;

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

pub(crate) use agent_port::{PATH as AGENT_PATH, SETTINGS as AGENT_SETTINGS, WINDOW};
pub use options::{Frontend, Limits, Mode, Options, Strategy, TokenAuth};
use proxy::Proxy;

use telemetry::{Page, Pages};

use crate::reload::Reloaded;
use crate::{accept, tls};

/// A running server. Dropping it ends it at once.
#[derive(Debug)]
pub struct Server {
    proxy: Arc<Proxy>,
    tasks: JoinSet<()>,
    agents: SocketAddr,
    frontend: Option<SocketAddr>,
    socket: Option<PathBuf>,
    health: Vec<telemetry::Server>,
}

/// Why a server does not start.
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
                socket = Some(path.clone());
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
            tasks.spawn(keep_lease(Arc::clone(&proxy)));
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
    /// When it cannot listen there.
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

    /// Whether a connection or a dial is open, or a client's stream that may bring a dial.
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

    /// Agents' connections.
    pub fn agents(&self) -> usize {
        self.proxy.backends.count()
    }

    /// What `/metrics` shows.
    pub fn metrics(&self) -> String {
        self.proxy.page()
    }

    /// Stops accepting connections and waits until the open ones have ended, for `grace` at most;
    /// then ends them.
    pub async fn stop(self, grace: Duration) {
        self.proxy.stopping.store(true, Ordering::Relaxed);
        let begin = Instant::now();
        while self.is_busy() && begin.elapsed() < grace {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        if let Some((cluster, leases)) = &self.proxy.options.leases {
            let name = lease_name(&self.proxy.options.server_id);
            if let Err(error) = cluster.remove(leases, &name, |_| ()).await {
                tracing::warn!("lease {name}: {error}");
            }
        }
        for backend in self.proxy.backends.all() {
            backend.end("the server ends");
            backend.link.close(0, "the server ends");
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
            backend.link.abort();
        }
        if let Some(socket) = &self.socket
            && let Err(error) = std::fs::remove_file(socket)
        {
            tracing::debug!("{}: {error}", socket.display());
        }
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

async fn listen(address: SocketAddr, what: &str) -> Result<TcpListener, StartError> {
    let listener = TcpListener::bind(address).await;
    listener.map_err(|error| StartError::Failed(format!("listen for {what} at {address}: {error}")))
}

fn listen_unix(path: &Path, delete_existing: bool) -> Result<UnixListener, StartError> {
    let failed =
        |error: &dyn fmt::Display| StartError::Failed(format!("{}: {error}", path.display()));
    if let Ok(found) = std::fs::symlink_metadata(path) {
        if !delete_existing {
            return Err(failed(&"there is a file already (see --delete-existing-uds-file)"));
        }
        if !found.file_type().is_socket() {
            return Err(failed(&"this is no socket; it is not removed"));
        }
        std::fs::remove_file(path).map_err(|error| failed(&error))?;
    }
    bind_unix(path).map_err(|error| failed(&error))
}

/// Mode of the frontend's socket: its owner and group may connect, whatever the umask says.
const SOCKET_MODE: u32 = 0o660;

/// Binds a unix socket that never has more permissions than [`SOCKET_MODE`].
fn bind_unix(path: &Path) -> std::io::Result<UnixListener> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // Before it has a path: the file gets this mode, less what the umask takes.
    rustix::fs::fchmod(&socket, rustix::fs::Mode::from_raw_mode(SOCKET_MODE))?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(SOCKET_MODE))?;
    rustix::net::listen(&socket, 1024)?;
    UnixListener::from_std(socket.into())
}

async fn serve_frontend<I>(proxy: &Arc<Proxy>, io: I, who: String) -> std::io::Result<()>
where
    I: AsyncRead + AsyncWrite + Unpin + Send,
{
    match proxy.options.mode {
        Mode::Grpc => grpc_frontend::serve(proxy, io, who).await,
        Mode::HttpConnect => connect_frontend::serve(proxy, io, who).await,
    }
}

async fn accept_unix(proxy: Arc<Proxy>, listener: UnixListener) {
    // A set, so that the end of this task ends its connections.
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            stream = accept::unix(&listener) => {
                if proxy.stopping.load(Ordering::Relaxed) {
                    continue;
                }
                let proxy = Arc::clone(&proxy);
                connections.spawn(async move {
                    let who = unix_peer(&stream);
                    if let Err(error) = serve_frontend(&proxy, stream, who).await {
                        tracing::debug!("frontend: {error}");
                    }
                });
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

fn unix_peer(stream: &UnixStream) -> String {
    match stream.peer_cred() {
        Ok(peer) => match peer.pid() {
            Some(pid) => format!("uid {} pid {pid}", peer.uid()),
            None => format!("uid {}", peer.uid()),
        },
        Err(_) => "unix socket".to_owned(),
    }
}

type Stream = tokio_rustls::server::TlsStream<TcpStream>;

async fn accept_tls<F, R>(
    proxy: Arc<Proxy>,
    port: &'static str,
    listener: TcpListener,
    tls: Reloaded<ServerConfig>,
    serve: F,
) where
    F: Fn(Arc<Proxy>, Stream, String) -> R + Copy + Send + 'static,
    R: Future<Output = std::io::Result<()>> + Send,
{
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            stream = accept::tcp(&listener) => {
                if proxy.stopping.load(Ordering::Relaxed) {
                    continue;
                }
                let (proxy, acceptor) = (Arc::clone(&proxy), TlsAcceptor::from(tls.current()));
                connections.spawn(async move {
                    let peer = stream.peer_addr().map_or_else(|_| "?".to_owned(), accept::name);
                    let shaken =
                        tokio::time::timeout(proxy.options.limits.handshake, acceptor.accept(stream));
                    let shaken = match shaken.await {
                        Ok(Ok(stream)) => Ok(stream),
                        Ok(Err(error)) => Err(tls::refusal("the peer", &error)
                            .unwrap_or_else(|| error.to_string())),
                        Err(_) => Err("no handshake in time".to_owned()),
                    };
                    let stream = match shaken {
                        Ok(stream) => stream,
                        Err(error) => {
                            proxy.metrics.tls_failures.with_label_values(&[port]).inc();
                            return tracing::warn!("{port} {peer}: TLS: {error}");
                        }
                    };
                    let certificate = stream.get_ref().1.peer_certificates().and_then(|all| all.first());
                    let name = certificate.and_then(|it| tls::common_name(it));
                    let who = match name {
                        Some(name) => format!("CN={name} {peer}"),
                        None => peer,
                    };
                    if let Err(error) = serve(proxy, stream, who.clone()).await {
                        tracing::debug!("{who}: {error}");
                    }
                });
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn look_after(proxy: Arc<Proxy>) {
    let mut ticks = tokio::time::interval(TICK);
    loop {
        ticks.tick().await;
        for backend in proxy.backends.all() {
            backend.tick(&proxy);
        }
    }
}

/// The name of a server's lease.
fn lease_name(server_id: &str) -> String {
    format!("konnectivity-proxy-server-{server_id}")
}

/// Renews this server's lease, deletes expired ones, and counts the others.
async fn keep_lease(proxy: Arc<Proxy>) {
    let Some((cluster, options)) = proxy.options.leases.clone() else { return };
    let server = &proxy.options.server_id;
    let name = lease_name(server);
    let mut ticks = tokio::time::interval(crate::kubernetes::RENEWAL);
    loop {
        ticks.tick().await;
        if let Err(error) = cluster.renew(&options, &name, server).await {
            tracing::warn!("lease {name}: {error}");
        }
        match cluster.count(&options, |it| proxy.metrics.lease_listed(it)).await {
            Err(error) => tracing::warn!("leases: {error}"),
            Ok((valid, expired)) => {
                proxy.set_server_count(valid.max(1));
                for lease in expired {
                    let observe = |it: &_| proxy.metrics.lease_deleted(it);
                    match cluster.remove(&options, &lease, observe).await {
                        Ok(()) => proxy.metrics.culled_leases.inc(),
                        Err(error) => tracing::warn!("lease {lease}: {error}"),
                    }
                }
            }
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
