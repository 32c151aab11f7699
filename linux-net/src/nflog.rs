//! Packets that rules of nftables log to a group (`log group N`), over netlink.
//!
//! The messages are those of `linux/netfilter/nfnetlink_log.h`.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use netlink_packet_core::{NLM_F_ACK, NLM_F_REQUEST, NlasIterator};
use netlink_sys::{Socket, SocketAddr};

use super::error::Error;
use super::sys;

/// Packets logged to one group.
#[derive(Debug)]
pub struct LoggedPackets {
    socket: Socket,
}

/// One packet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoggedPacket {
    /// The prefix that the rule gave.
    pub prefix: String,
    /// The packet from its IP header on, up to the requested length.
    pub bytes: Vec<u8>,
}

/// `NETLINK_NETFILTER` of netlink(7).
const NETFILTER: isize = 12;
/// `NFNL_SUBSYS_ULOG` in the upper byte of a message's type; its two messages.
const PACKET: u16 = 4 << 8;
const CONFIGURE: u16 = PACKET | 1;
/// `NLMSG_ERROR`; with error 0 it acknowledges.
const ERROR: u16 = 2;
/// Lengths of `nlmsghdr` and `nfgenmsg`.
pub(super) const HEADER: usize = 16;
const GENERIC: usize = 4;
/// Attributes of a configuration, and the command that asks for a group.
const COMMAND: u16 = 1;
const MODE: u16 = 2;
const BIND: u8 = 1;
const COPY_PACKET: u8 = 2;
/// Attributes of a packet.
const PAYLOAD: u16 = 9;
const PREFIX: u16 = 10;

/// Room for what the kernel sends at once.
const RECEIVE_BYTES: usize = 64 * 1024;
/// Timeout of an answer.
const PATIENCE: Duration = Duration::from_secs(10);

impl LoggedPackets {
    /// Receives what is logged to `group` in the calling thread's network namespace from now on, with
    /// the first `bytes` of each packet.
    ///
    /// # Errors
    /// If the kernel gives no socket, or another process has the group.
    pub fn open(group: u16, bytes: u32) -> Result<Self, Error> {
        let failed = |cause| Error::new(format!("receive packets logged to group {group}"), cause);
        let mut socket = Socket::new(NETFILTER).map_err(failed)?;
        socket.bind(&SocketAddr::new(0, 0)).map_err(failed)?;
        let mut opened = Self { socket };
        opened.configure(group, COMMAND, &[BIND]).map_err(failed)?;
        let [a, b, c, d] = bytes.to_be_bytes();
        opened.configure(group, MODE, &[a, b, c, d, COPY_PACKET, 0]).map_err(failed)?;
        Ok(opened)
    }

    fn configure(&mut self, group: u16, attribute: u16, value: &[u8]) -> io::Result<()> {
        let message = configuration(group, attribute, value);
        self.socket.send(&message, 0)?;
        if !sys::readable(self.socket.as_fd(), Some(PATIENCE))? {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let mut buffer = Vec::with_capacity(RECEIVE_BYTES);
        self.socket.recv(&mut buffer, 0)?;
        for (kind, body) in messages(&buffer) {
            if let (ERROR, Some(code)) = (kind, body.first_chunk()) {
                return match i32::from_ne_bytes(*code) {
                    0 => Ok(()),
                    code => Err(io::Error::from_raw_os_error(-code)),
                };
            }
        }
        Err(io::ErrorKind::InvalidData.into())
    }

    /// The packets that wait, or come within `timeout`. Packets that came faster than they were read
    /// are lost.
    ///
    /// # Errors
    /// If the socket is broken.
    pub fn receive(&mut self, timeout: Duration) -> io::Result<Vec<LoggedPacket>> {
        if !sys::readable(self.socket.as_fd(), Some(timeout))? {
            return Ok(Vec::new());
        }
        let mut buffer = Vec::with_capacity(RECEIVE_BYTES);
        match self.socket.recv(&mut buffer, 0) {
            Ok(_) => Ok(packets(&buffer)),
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }
}

/// A request to configure a group, with one attribute.
fn configuration(group: u16, attribute: u16, value: &[u8]) -> Vec<u8> {
    let mut body = vec![libc::AF_UNSPEC as u8, 0];
    body.extend(group.to_be_bytes());
    body.extend((4 + value.len() as u16).to_ne_bytes());
    body.extend(attribute.to_ne_bytes());
    body.extend(value);
    body.resize(body.len().next_multiple_of(4), 0);
    let mut message = Vec::with_capacity(HEADER + body.len());
    message.extend(((HEADER + body.len()) as u32).to_ne_bytes());
    message.extend(CONFIGURE.to_ne_bytes());
    message.extend((NLM_F_REQUEST | NLM_F_ACK).to_ne_bytes());
    message.extend([0; 8]);
    message.extend(body);
    message
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

fn packets(datagram: &[u8]) -> Vec<LoggedPacket> {
    let of_packets = messages(datagram).into_iter().filter(|(kind, _)| *kind == PACKET);
    of_packets.filter_map(|(_, body)| body.get(GENERIC..)).map(packet).collect()
}

fn packet(attributes: &[u8]) -> LoggedPacket {
    let mut packet = LoggedPacket::default();
    for attribute in NlasIterator::new(attributes).map_while(Result::ok) {
        match attribute.kind() {
            PREFIX => {
                let text = attribute.value().split(|byte| *byte == 0).next().unwrap_or_default();
                packet.prefix = String::from_utf8_lossy(text).into_owned();
            }
            PAYLOAD => packet.bytes = attribute.value().to_vec(),
            _ => {}
        }
    }
    packet
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut body = vec![2, 0, 0, 7];
        for (kind, value) in attributes {
            body.extend((4 + value.len() as u16).to_ne_bytes());
            body.extend(kind.to_ne_bytes());
            body.extend(*value);
            body.resize(body.len().next_multiple_of(4), 0);
        }
        let mut message = ((HEADER + body.len()) as u32).to_ne_bytes().to_vec();
        message.extend(kind.to_ne_bytes());
        message.extend([0; 10]);
        message.extend(body);
        message
    }

    #[test]
    fn packets_with_their_prefixes_are_read() {
        let mut datagram =
            message(PACKET, &[(1, &[8, 0, 3, 0]), (PREFIX, b"a b\0"), (PAYLOAD, &[0x45, 1])]);
        datagram.extend(message(3, &[]));
        datagram.extend(message(PACKET, &[(PAYLOAD, &[0x60])]));
        let read = packets(&datagram);
        let wanted = [("a b", vec![0x45, 1]), ("", vec![0x60])]
            .map(|(prefix, bytes)| LoggedPacket { prefix: prefix.into(), bytes });
        assert_eq!(read, wanted);
        // What is cut off anywhere is no packet, and never a panic.
        for length in 0..datagram.len() {
            assert!(packets(&datagram[..length]).len() <= 2);
        }
    }
}
