//! Messages of netlink families that no crate has types for (netlink(7)).

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use netlink_sys::{Socket, SocketAddr};

use super::sys;

/// Length of `struct nlmsghdr`.
pub(super) const HEADER: usize = 16;
/// Length of `struct nfgenmsg`, with which bodies of netfilter's families begin.
pub(super) const GENERIC: usize = 4;
/// `NLMSG_ERROR`; with error 0 it acknowledges.
pub(super) const ERROR: u16 = 2;
/// `NLMSG_DONE` ends a list.
pub(super) const DONE: u16 = 3;
/// Room for one datagram of answers; the kernel fills at most 32 KiB of it.
pub(super) const RECEIVE_BYTES: usize = 64 * 1024;
/// Timeout of an answer; the kernel normally answers at once.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// Opens a socket of a protocol (`NETLINK_…`) in the calling thread's network namespace.
pub(super) fn open(protocol: isize) -> io::Result<Socket> {
    let mut socket = Socket::new(protocol)?;
    socket.bind(&SocketAddr::new(0, 0))?;
    Ok(socket)
}

/// A message: its type, its flags, and its body behind the header.
pub(super) fn message(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
    let mut message = Vec::with_capacity(HEADER + body.len());
    message.extend(((HEADER + body.len()) as u32).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    message.extend([0; 8]);
    message.extend(body);
    message
}

/// An attribute, filled up to a multiple of four bytes.
pub(super) fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(4 + value.len().next_multiple_of(4));
    bytes.extend((4 + value.len() as u16).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// The messages of a datagram: type and body.
pub(super) fn messages(mut rest: &[u8]) -> Vec<(u16, &[u8])> {
    let mut found = Vec::new();
    while let Some(header) = rest.first_chunk::<HEADER>() {
        let length = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let Some(body) = rest.get(HEADER..length) else { break };
        found.push((u16::from_ne_bytes([header[4], header[5]]), body));
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    found
}

/// Sends a request and waits for its acknowledgement.
pub(super) fn request(socket: &Socket, message: &[u8]) -> io::Result<()> {
    socket.send(message, 0)?;
    let answer = answer(socket)?;
    let error = messages(&answer).into_iter().find(|(kind, _)| *kind == ERROR);
    match error.map(|(_, body)| refusal(body)) {
        Some(error) if error.raw_os_error() == Some(0) => Ok(()),
        Some(error) => Err(error),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Requests a list and passes the body of each message of type `kind` to `each`.
pub(super) fn list(
    socket: &Socket,
    request: &[u8],
    kind: u16,
    mut each: impl FnMut(&[u8]),
) -> io::Result<()> {
    socket.send(request, 0)?;
    while read_list(&answer(socket)?, kind, &mut each)? {}
    Ok(())
}

/// Reads one datagram of a list; returns whether more follow.
pub(super) fn read_list(
    datagram: &[u8],
    wanted: u16,
    mut each: impl FnMut(&[u8]),
) -> io::Result<bool> {
    for (kind, body) in messages(datagram) {
        match kind {
            DONE => return Ok(false),
            ERROR => return Err(refusal(body)),
            kind if kind == wanted => each(body),
            _ => {}
        }
    }
    Ok(true)
}

/// The next datagram of an answer.
pub(super) fn answer(socket: &Socket) -> io::Result<Vec<u8>> {
    receive(socket, PATIENCE)?.ok_or_else(|| io::ErrorKind::TimedOut.into())
}

/// The next datagram, if one comes within `timeout`.
pub(super) fn receive(socket: &Socket, timeout: Duration) -> io::Result<Option<Vec<u8>>> {
    if !sys::readable(socket.as_fd(), Some(timeout))? {
        return Ok(None);
    }
    let mut buffer = Vec::with_capacity(RECEIVE_BYTES);
    socket.recv(&mut buffer, 0)?;
    Ok(Some(buffer))
}

/// The error in the body of an [`ERROR`].
pub(super) fn refusal(body: &[u8]) -> io::Error {
    let code = body.first_chunk().map_or(-libc::EPROTO, |code| i32::from_ne_bytes(*code));
    io::Error::from_raw_os_error(-code)
}
