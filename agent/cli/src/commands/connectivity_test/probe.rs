//! Servers that echo, and clients that wait for the echo. All of it runs in the calling thread's network
//! namespace.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use serde::Serialize;

/// Timeout of an answer that must not come, which each blocked connection takes.
const BLOCKED: Duration = Duration::from_millis(1500);
/// Timeout of one that must come, on busy machines too.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two datagrams of a client that has no answer yet.
const AGAIN: Duration = Duration::from_millis(300);
/// Bytes that a connection carries each way: after the first byte more than one segment.
const SEGMENTS: usize = 32 * 1024;

/// Result of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Found {
    Connects,
    Blocked,
    /// It opened, and then not everything passed.
    Stalls,
}

impl Found {
    /// Time limit for seeing that a connection does, or does not, what it must.
    fn patience(expected: Self) -> Duration {
        if expected == Self::Blocked { BLOCKED } else { PATIENCE }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Connects => "connects",
            Self::Blocked => "blocked",
            Self::Stalls => "stalls",
        }
    }
}

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
    let mut bytes = [0; 16 * 1024];
    while let Ok(length @ 1..) = stream.read(&mut bytes) {
        if stream.write_all(&bytes[..length]).is_err() {
            return;
        }
    }
}

/// Tries a connection that carries more than one segment each way.
pub(super) fn over_tcp(address: IpAddr, port: u16, expected: Found) -> Found {
    let Ok(stream) = open(address, port, expected) else { return Found::Blocked };
    let carries = [1, SEGMENTS, 1].into_iter().all(|length| is_echoed(&stream, length));
    if carries { Found::Connects } else { Found::Stalls }
}

/// Opens a connection.
pub(super) fn open(address: IpAddr, port: u16, expected: Found) -> std::io::Result<TcpStream> {
    let patience = Found::patience(expected);
    let stream = TcpStream::connect_timeout(&(address, port).into(), patience)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    Ok(stream)
}

/// Returns whether the bytes come back.
fn is_echoed(mut stream: &TcpStream, length: usize) -> bool {
    let sent = vec![b'x'; length];
    let mut received = vec![0; length];
    stream.write_all(&sent).and_then(|()| stream.read_exact(&mut received)).is_ok()
        && sent == received
}

/// Tries a connection that was open before a policy denied it.
pub(super) fn on_open(stream: &TcpStream, expected: Found) -> Found {
    let timeout = stream.set_read_timeout(Some(Found::patience(expected)));
    if timeout.is_ok() && is_echoed(stream, 1) { Found::Connects } else { Found::Blocked }
}

/// Whether a datagram is answered.
pub(super) fn over_udp(address: IpAddr, port: u16, expected: Found) -> Found {
    let any = match address {
        IpAddr::V4(_) => "0.0.0.0:0",
        IpAddr::V6(_) => "[::]:0",
    };
    let Ok(socket) = UdpSocket::bind(any) else { return Found::Blocked };
    if socket.connect((address, port)).is_err() || socket.set_read_timeout(Some(AGAIN)).is_err() {
        return Found::Blocked;
    }
    let tries = Found::patience(expected).as_millis() / AGAIN.as_millis();
    let is_answered =
        (0..tries).any(|_| socket.send(b"x").is_ok() && socket.recv(&mut [0; 8]).is_ok());
    if is_answered { Found::Connects } else { Found::Blocked }
}
