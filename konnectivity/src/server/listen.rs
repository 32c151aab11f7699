//! The server's listeners.

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::options::Mode;
use super::proxy::Proxy;
use super::{StartError, connect_frontend, grpc_frontend};
use crate::{accept, tls};
use telemetry::Reloaded;

pub(super) async fn listen(address: SocketAddr, what: &str) -> Result<TcpListener, StartError> {
    let listener = TcpListener::bind(address).await;
    listener.map_err(|error| StartError::Failed(format!("listen for {what} at {address}: {error}")))
}

pub(super) fn listen_unix(path: &Path, delete_existing: bool) -> Result<UnixListener, StartError> {
    let failed =
        |error: &dyn fmt::Display| StartError::Failed(format!("{}: {error}", path.display()));
    if let Ok(found) = std::fs::symlink_metadata(path) {
        if !delete_existing {
            return Err(failed(&"there is a file already (see --delete-existing-uds-file)"));
        }
        if !found.file_type().is_socket() {
            return Err(failed(&"this is not a socket; it is not removed"));
        }
        std::fs::remove_file(path).map_err(|error| failed(&error))?;
    }
    bind_unix(path).map_err(|error| failed(&error))
}

/// The file of the frontend's socket.
#[derive(Debug)]
pub(super) struct Socket {
    path: PathBuf,
    /// Device and inode.
    identity: Option<(u64, u64)>,
}

impl Socket {
    /// The file that was just made at `path`.
    pub(super) fn of(path: &Path) -> Self {
        Self { path: path.to_owned(), identity: identity(path) }
    }

    /// Removes the file, unless a successor has made its own.
    pub(super) fn remove(&self) {
        if identity(&self.path) == self.identity
            && let Err(error) = std::fs::remove_file(&self.path)
        {
            tracing::debug!("{}: {error}", self.path.display());
        }
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|it| crate::file::identity(&it))
}

/// Mode of the frontend's socket: its owner and group may connect, whatever the umask says.
const SOCKET_MODE: u32 = 0o660;

fn bind_unix(path: &Path) -> std::io::Result<UnixListener> {
    let listener = local_api::listen(path, SOCKET_MODE)?;
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

pub(super) async fn serve_frontend<I>(proxy: &Arc<Proxy>, io: I, who: String) -> std::io::Result<()>
where
    I: AsyncRead + AsyncWrite + Unpin + Send,
{
    match proxy.options.mode {
        Mode::Grpc => grpc_frontend::serve(proxy, io, who).await,
        Mode::HttpConnect => connect_frontend::serve(proxy, io, who).await,
    }
}

pub(super) async fn accept_unix(proxy: Arc<Proxy>, listener: UnixListener) {
    // A set, so that the end of this task ends its connections.
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = proxy.stopped() => break,
            stream = accept::unix(&listener) => {
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
    // A successor may listen here.
    drop(listener);
    connections.join_all().await;
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

pub(super) async fn accept_tls<F, R>(
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
            () = proxy.stopped() => break,
            stream = accept::tcp(&listener) => {
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
    // A successor may listen here.
    drop(listener);
    connections.join_all().await;
}
