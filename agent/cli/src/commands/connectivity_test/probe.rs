//! Servers that echo, and clients that wait for the echo. All of it runs in the calling thread's network
//! namespace.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

/// Timeout of an answer; a blocked connection takes this long.
const PATIENCE: Duration = Duration::from_millis(1500);
/// Between two datagrams of a client that has no answer yet.
const AGAIN: Duration = Duration::from_millis(300);

/// An address family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    V4,
    V6,
}

impl Family {
    pub(super) const ALL: [Self; 2] = [Self::V4, Self::V6];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::V4 => "v4",
            Self::V6 => "v6",
        }
    }

    pub(super) fn is_of(self, address: IpAddr) -> bool {
        address.is_ipv4() == (self == Self::V4)
    }
}

/// Starts servers on a port, TCP and UDP, both families; they last as long as the process.
pub(super) fn serve(port: u16) -> std::io::Result<()> {
    let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
    let listener = TcpListener::bind(any)?;
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || echo(stream));
        }
    });
    let socket = UdpSocket::bind(any)?;
    std::thread::spawn(move || {
        let mut bytes = [0; 64];
        while let Ok((length, from)) = socket.recv_from(&mut bytes) {
            let _ = socket.send_to(&bytes[..length], from);
        }
    });
    Ok(())
}

fn echo(mut stream: TcpStream) {
    let mut bytes = [0; 64];
    while let Ok(length @ 1..) = stream.read(&mut bytes) {
        if stream.write_all(&bytes[..length]).is_err() {
            return;
        }
    }
}

/// Whether a connection opens and is answered.
pub(super) fn connects_tcp(address: IpAddr, port: u16) -> bool {
    open(address, port).is_ok_and(|stream| is_answered(&stream))
}

/// Opens a connection.
pub(super) fn open(address: IpAddr, port: u16) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&(address, port).into(), PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Whether a connection carries packets both ways.
pub(super) fn is_answered(mut stream: &TcpStream) -> bool {
    let mut byte = [0];
    stream.write_all(b"x").and_then(|()| stream.read_exact(&mut byte)).is_ok()
}

/// Whether a datagram is answered.
pub(super) fn connects_udp(address: IpAddr, port: u16) -> bool {
    let any = match address {
        IpAddr::V4(_) => "0.0.0.0:0",
        IpAddr::V6(_) => "[::]:0",
    };
    let Ok(socket) = UdpSocket::bind(any) else { return false };
    if socket.connect((address, port)).is_err() || socket.set_read_timeout(Some(AGAIN)).is_err() {
        return false;
    }
    let tries = PATIENCE.as_millis() / AGAIN.as_millis();
    (0..tries).any(|_| socket.send(b"x").is_ok() && socket.recv(&mut [0; 8]).is_ok())
}
