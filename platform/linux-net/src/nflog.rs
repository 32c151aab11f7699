//! Packets that rules of nftables log to a group (`log group N`), over netlink.
//!
//! The messages are those of `linux/netfilter/nfnetlink_log.h`.

use std::io;
use std::time::Duration;

use netlink_packet_core::{NLM_F_ACK, NLM_F_REQUEST, NlasIterator};
use netlink_sys::{Socket, protocols::NETLINK_NETFILTER};

use super::error::Error;
use super::raw_netlink::{self, GENERIC, attribute, message, messages, receive, request};

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

/// `NFNL_SUBSYS_ULOG` in the upper byte of a message's type; its two messages.
const PACKET: u16 = 4 << 8;
const CONFIGURE: u16 = PACKET | 1;
/// Attributes of a configuration, and the command that asks for a group.
const COMMAND: u16 = 1;
const MODE: u16 = 2;
const BIND: u8 = 1;
const COPY_PACKET: u8 = 2;
/// Attributes of a packet.
const PAYLOAD: u16 = 9;
const PREFIX: u16 = 10;

impl LoggedPackets {
    /// Receives what is logged to `group` in the calling thread's network namespace from now on, with
    /// the first `bytes` of each packet.
    ///
    /// # Errors
    /// Fails if the kernel gives no socket, or another process has the group.
    pub fn open(group: u16, bytes: u32) -> Result<Self, Error> {
        let failed = |cause| Error::new(format!("receive packets logged to group {group}"), cause);
        let socket = raw_netlink::open(NETLINK_NETFILTER).map_err(failed)?;
        let configure = |kind, value: &[u8]| {
            request(&socket, &configuration(group, kind, value)).map_err(failed)
        };
        configure(COMMAND, &[BIND])?;
        let [a, b, c, d] = bytes.to_be_bytes();
        configure(MODE, &[a, b, c, d, COPY_PACKET, 0])?;
        Ok(Self { socket })
    }

    /// The packets that wait, or come within `timeout`. Packets that came faster than they were read
    /// are lost.
    ///
    /// # Errors
    /// Fails if the socket is broken.
    pub fn receive(&mut self, timeout: Duration) -> io::Result<Vec<LoggedPacket>> {
        match receive(&self.socket, timeout) {
            Ok(datagram) => Ok(datagram.as_deref().map_or_else(Vec::new, packets)),
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }
}

/// A request to configure a group, with one attribute.
fn configuration(group: u16, kind: u16, value: &[u8]) -> Vec<u8> {
    // struct nfgenmsg.
    let mut body = vec![libc::AF_UNSPEC as u8, 0];
    body.extend(group.to_be_bytes());
    body.extend(attribute(kind, value));
    message(CONFIGURE, NLM_F_REQUEST | NLM_F_ACK, &body)
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

    fn of(kind: u16, attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let attributes = attributes.iter().flat_map(|(kind, value)| attribute(*kind, value));
        let body: Vec<u8> = [2, 0, 0, 7].into_iter().chain(attributes).collect();
        message(kind, 0, &body)
    }

    #[test]
    fn packets_with_their_prefixes_are_read() {
        let mut datagram =
            of(PACKET, &[(1, &[8, 0, 3, 0]), (PREFIX, b"a b\0"), (PAYLOAD, &[0x45, 1])]);
        datagram.extend(of(3, &[]));
        datagram.extend(of(PACKET, &[(PAYLOAD, &[0x60])]));
        let read = packets(&datagram);
        let wanted = [("a b", vec![0x45, 1]), ("", vec![0x60])]
            .map(|(prefix, bytes)| LoggedPacket { prefix: prefix.into(), bytes });
        assert_eq!(read, wanted);
        // A datagram cut off anywhere gives no packet, and no panic.
        for length in 0..datagram.len() {
            assert!(packets(&datagram[..length]).len() <= 2);
        }
    }
}
