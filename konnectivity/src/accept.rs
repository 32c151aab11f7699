//! Accepts connections; retries after errors.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

/// Pause after an error of the listener, such as no file descriptor left.
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

/// Formats an address.
pub(crate) fn name(address: SocketAddr) -> String {
    SocketAddr::new(address.ip().to_canonical(), address.port()).to_string()
}

/// Describes why a connection ended.
pub(crate) fn reason(error: &io::Error) -> String {
    match error.kind() {
        // The TLS library's own text is too long.
        io::ErrorKind::UnexpectedEof => "the connection broke off".to_owned(),
        _ => error.to_string(),
    }
}

/// Sets TCP_NODELAY and keepalives.
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
