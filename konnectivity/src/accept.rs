//! Accepting connections, for as long as it takes.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

/// After an error that is not the connection's own, such as no file descriptor left.
const PAUSE: Duration = Duration::from_millis(50);

/// The next connection.
pub(crate) async fn tcp(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                prepare(&stream);
                return stream;
            }
            Err(error) => {
                tracing::warn!("accept: {error}");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// The next connection.
pub(crate) async fn unix(listener: &UnixListener) -> UnixStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            Err(error) => {
                tracing::warn!("accept: {error}");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Resolves with an error when `first` has not happened within `limit`; else never.
pub(crate) async fn silence(limit: Duration, first: impl Future<Output = ()>) -> io::Error {
    match tokio::time::timeout(limit, first).await {
        Ok(()) => std::future::pending().await,
        Err(_) => io::Error::new(io::ErrorKind::TimedOut, format!("no request within {limit:?}")),
    }
}

/// An address as people write it.
pub(crate) fn name(address: SocketAddr) -> String {
    SocketAddr::new(address.ip().to_canonical(), address.port()).to_string()
}

/// Why a connection ended, in few words.
pub(crate) fn reason(error: &io::Error) -> String {
    match error.kind() {
        // TLS has more to say about this than anybody wants to read.
        io::ErrorKind::UnexpectedEof => "the connection broke off".to_owned(),
        _ => error.to_string(),
    }
}

/// No waiting for more to send, and dead peers are found.
pub(crate) fn prepare(stream: &TcpStream) {
    use rustix::net::sockopt;
    let set = stream
        .set_nodelay(true)
        .and_then(|()| Ok(sockopt::set_socket_keepalive(stream, true)?))
        .and_then(|()| Ok(sockopt::set_tcp_keepidle(stream, Duration::from_secs(30))?))
        .and_then(|()| Ok(sockopt::set_tcp_keepintvl(stream, Duration::from_secs(10))?));
    if let Err(error) = set {
        tracing::debug!("socket options: {error}");
    }
}
