//! Echo servers and their clients.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use testkit::Namespace;

use super::BLOCKED;
use crate::cluster_node::PATIENCE;

/// Echoes what TCP clients of both families send.
pub(crate) fn serve(namespace: &Namespace, port: u16) {
    let any = SocketAddr::new("::".parse().unwrap(), port);
    let listener = namespace.enter(|| TcpListener::bind(any).unwrap());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut bytes = [0; 64];
                while let Ok(count @ 1..) = stream.read(&mut bytes) {
                    let _ = stream.write_all(&bytes[..count]);
                }
            });
        }
    });
}

/// Echoes datagrams: ports of DHCP over IPv4 over that alone.
pub(crate) fn serve_datagrams(namespace: &Namespace, port: u16) {
    let any = if [67, 68].contains(&port) { "0.0.0.0" } else { "::" };
    let any = SocketAddr::new(any.parse().unwrap(), port);
    let socket = namespace.enter(|| UdpSocket::bind(any).unwrap());
    std::thread::spawn(move || {
        let mut bytes = [0; 64];
        while let Ok((count, from)) = socket.recv_from(&mut bytes) {
            let _ = socket.send_to(&bytes[..count], from);
        }
    });
}

/// Opens a connection that has to open, however busy the machine is.
pub(crate) fn connect(from: &Namespace, to: &str, port: u16) -> std::io::Result<TcpStream> {
    let to = SocketAddr::new(to.parse().unwrap(), port);
    from.enter(|| TcpStream::connect_timeout(&to, PATIENCE))
}

/// Returns whether a connection does not open.
pub(crate) fn is_denied(from: &Namespace, to: &str, port: u16) -> bool {
    let to = SocketAddr::new(to.parse().unwrap(), port);
    from.enter(|| TcpStream::connect_timeout(&to, BLOCKED)).is_err()
}

/// Returns whether an open connection goes on, which it has to.
pub(crate) fn echoes(stream: &mut TcpStream) -> bool {
    echoes_within(stream, PATIENCE)
}

/// Returns whether an open connection has ended.
pub(crate) fn has_ended(stream: &mut TcpStream) -> bool {
    !echoes_within(stream, BLOCKED)
}

fn echoes_within(stream: &mut TcpStream, patience: Duration) -> bool {
    stream.set_read_timeout(Some(patience)).unwrap();
    stream.write_all(b"x").is_ok() && stream.read_exact(&mut [0]).is_ok()
}

/// Sends a datagram from a new port and waits for its echo, which has to come.
pub(crate) fn answered(from: &Namespace, to: &str, port: u16) -> std::io::Result<()> {
    answered_within(from, to, port, PATIENCE)
}

/// Returns whether a datagram has no echo.
pub(crate) fn is_silent(from: &Namespace, to: &str, port: u16) -> bool {
    answered_within(from, to, port, BLOCKED).is_err()
}

fn answered_within(
    from: &Namespace,
    to: &str,
    port: u16,
    patience: Duration,
) -> std::io::Result<()> {
    let to = SocketAddr::new(to.parse().unwrap(), port);
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = from.enter(|| UdpSocket::bind(any))?;
    socket.set_read_timeout(Some(patience))?;
    socket.connect(to)?;
    // The kernel reports a packet that a rule of its own drops.
    socket.send(b"x")?;
    socket.recv(&mut [0; 8]).map(drop)
}
