//! Resets of live connections that the kernel's rules deny, as far as the kernel does not send them itself: to the end
//! that a denied packet is for (`nftables::ABORT`), and to senders that dialed a service (`nftables::RESET`).

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use acl::Address;
use dataplane::wire::icmp_error::{IcmpError, LONGEST, write, write_abort};
use dataplane::wire::{ETHERNET, Fragment, Headers, frame_of, parse_prefix, protocol};
use rustix::net::{
    AddressFamily, SendFlags, SocketFlags, SocketType, ipproto, sendto, socket_with,
};

/// Sends resets, by raw sockets of both families (raw(7)).
#[derive(Default)]
pub(super) struct Resets {
    sockets: [Option<OwnedFd>; 2],
    /// Whether a failure was logged.
    is_reported: bool,
}

impl Resets {
    /// Sends a segment, if there is one.
    pub(super) fn send(&mut self, segment: Option<Segment>) {
        let Some(segment) = segment else { return };
        if let Err(error) = self.try_send(&segment)
            && !self.is_reported
        {
            self.is_reported = true;
            let to = segment.to;
            tracing::warn!(
                "an end of a connection that a policy has ended is not reset: {to}: {error}"
            );
        }
    }

    fn try_send(&mut self, segment: &Segment) -> io::Result<()> {
        let Segment { to, bytes } = segment;
        let (index, family) =
            if to.is_ipv4() { (0, AddressFamily::INET) } else { (1, AddressFamily::INET6) };
        let socket = match &mut self.sockets[index] {
            Some(socket) => socket,
            none => {
                let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
                none.insert(socket_with(family, SocketType::RAW, flags, Some(ipproto::RAW))?)
            }
        };
        sendto(socket, bytes, SendFlags::empty(), &SocketAddr::new(*to, 0))?;
        Ok(())
    }
}

/// A reset with its IP header.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Segment {
    to: IpAddr,
    bytes: Vec<u8>,
}

/// The reset by which the sender of a TCP packet would end its connection. `packet` begins with the IP header,
/// and may be cut off behind the TCP header.
pub(super) fn abort(packet: &[u8]) -> Option<Segment> {
    segment(packet, |frame, headers, text| {
        Some((headers.flow.destination, write_abort(frame, headers, text)))
    })
}

/// The reset that tells the sender of such a packet that its connection has ended.
pub(super) fn reset(packet: &[u8]) -> Option<Segment> {
    segment(packet, |frame, headers, text| {
        let from = headers.flow.destination;
        Some((headers.flow.source, write(IcmpError::Prohibited, frame, headers, from, text)?))
    })
}

fn segment(
    packet: &[u8],
    write: impl FnOnce(&[u8], &Headers, &mut [u8; LONGEST]) -> Option<(Address, usize)>,
) -> Option<Segment> {
    let frame = frame_of(packet);
    let headers = parse_prefix(&frame, usize::from(u16::MAX)).ok()?;
    if headers.flow.protocol != protocol::TCP || headers.fragment != Fragment::Whole {
        return None;
    }
    let mut text = [0; LONGEST];
    let (to, length) = write(&frame, &headers, &mut text)?;
    Some(Segment { to: to.to_ip(), bytes: text[ETHERNET..length].to_vec() })
}

#[cfg(test)]
mod tests {
    use dataplane::wire::parse;
    use testkit::packet::{tcp, udp};

    use super::*;

    #[test]
    fn resets_continue_what_each_end_has_sent() {
        for (from, to) in [("10.1.0.2:5", "10.2.0.3:80"), ("[fd00::2]:5", "[fd02::3]:80")] {
            let data = tcp(from, to).data(&[7; 1000]).tcp_header(|tcp| {
                (tcp.sequence_number, tcp.acknowledgment_number) = (41, 77);
            });
            let frame = data.build();
            let (flow, packet) = (parse(&frame).unwrap().flow, &frame[ETHERNET..]);
            let ends = [from, to].map(|it| it.parse::<SocketAddr>().unwrap().ip());
            // The log has the first bytes.
            for packet in [&packet[..128], packet] {
                let sent = [(abort(packet), flow, 41_u32), (reset(packet), flow.reversed(), 77)];
                for ((sent, flow, sequence), to) in sent.into_iter().zip([ends[1], ends[0]]) {
                    let sent = sent.unwrap();
                    let headers = parse(&frame_of(&sent.bytes)).unwrap();
                    assert_eq!((sent.to, headers.flow), (to, flow));
                    assert_eq!(headers.tcp_flags & 4, 4);
                    let segment = &sent.bytes[sent.bytes.len() - 20..];
                    assert_eq!(segment[4..8], sequence.to_be_bytes());
                }
            }
            for length in [0, 1, 20, 39] {
                assert_eq!(abort(&packet[..length]), None, "{length}");
                assert_eq!(reset(&packet[..length]), None, "{length}");
            }
        }
        let question = udp("10.1.0.2:5", "10.2.0.3:80").build();
        assert_eq!(abort(&question[ETHERNET..]), None);
    }
}
