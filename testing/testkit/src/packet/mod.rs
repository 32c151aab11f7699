//! Frames for tests, terse enough to be read in a column.
//!
//! ```
//! use testkit::packet::{ping, tcp};
//!
//! let open = tcp("10.1.1.2:40000", "10.1.1.3:6379").syn().build();
//! let echo = ping("fd00::2", "fd00::3", 7, 1).payload(b"hello").build();
//! let tagged = tcp("10.1.1.2:40000", "10.1.1.3:6379").syn().vlan(100).build();
//! # assert_eq!((open.len(), echo.len(), tagged.len()), (54, 67, 58));
//! ```
//!
//! Lengths and checksums come out right by themselves; [`patch`], [`cut`] and
//! the setters for single fields make them wrong again. MAC addresses follow
//! from IP addresses ([`mac_of`]). A malformed *argument* is the test's fault and panics.

mod arp;
mod internet;
mod transport;

use std::net::{IpAddr, SocketAddr};

pub use arp::{Arp, arp_announcement, arp_probe, arp_reply, arp_request};
use etherparse::TcpHeader;
use internet::Internet;
use transport::Transport;

/// A MAC address.
pub type Mac = [u8; 6];

/// Default destination MAC address of test frames: the switch's.
pub const SWITCH_MAC: Mac = [0x02, 0x70, 0x6f, 0x64, 0x67, 0x74];

/// The MAC address that the owner of `address` has in tests: locally administered,
/// with the address's last four bytes; the second byte distinguishes the families.
pub fn mac_of(address: IpAddr) -> Mac {
    let (family, [.., a, b, c, d]) = match address {
        IpAddr::V4(v4) => (4, v4.to_ipv6_mapped().octets()),
        IpAddr::V6(v6) => (6, v6.octets()),
    };
    [0x02, family, a, b, c, d]
}

/// A TCP segment between two `address:port`; no flags are set.
#[track_caller]
pub fn tcp(from: &str, to: &str) -> Packet {
    let (from, to) = (socket(from), socket(to));
    let header = TcpHeader::new(from.port(), to.port(), 1000, 64240);
    Packet::new(from.ip(), to.ip(), Transport::Tcp(Box::new(header)))
}

/// A UDP datagram between two `address:port`.
#[track_caller]
pub fn udp(from: &str, to: &str) -> Packet {
    let (from, to) = (socket(from), socket(to));
    Packet::new(from.ip(), to.ip(), Transport::Udp { ports: [from.port(), to.port()] })
}

/// An SCTP packet between two `address:port` with one empty chunk of type `chunk`
/// (1 is INIT, 2 INIT ACK, 0 DATA; RFC 9260, section 3.2).
#[track_caller]
pub fn sctp(from: &str, to: &str, chunk: u8) -> Packet {
    let (from, to) = (socket(from), socket(to));
    Packet::new(from.ip(), to.ip(), Transport::Sctp { ports: [from.port(), to.port()], chunk })
}

/// An echo request, of the addresses' family.
#[track_caller]
pub fn ping(from: &str, to: &str, identifier: u16, sequence: u16) -> Packet {
    let kind = if address(from).is_ipv4() { 8 } else { 128 };
    icmp(from, to, kind, 0).rest(echo(identifier, sequence))
}

/// An echo reply, of the addresses' family.
#[track_caller]
pub fn pong(from: &str, to: &str, identifier: u16, sequence: u16) -> Packet {
    let kind = if address(from).is_ipv4() { 0 } else { 129 };
    icmp(from, to, kind, 0).rest(echo(identifier, sequence))
}

/// An ICMP or ICMPv6 message, of the addresses' family.
#[track_caller]
pub fn icmp(from: &str, to: &str, kind: u8, code: u8) -> Packet {
    Packet::new(address(from), address(to), Transport::Icmp { kind, code, rest: [0; 4] })
}

/// An ICMP or ICMPv6 error about `quoted`: its IP header and the first 8 bytes behind it
/// (RFC 792), or as much as fits (RFC 4443, section 3).
#[track_caller]
pub fn icmp_error(from: &str, to: &str, kind: u8, code: u8, quoted: &Packet) -> Packet {
    let mut quote = quoted.internet_packet();
    if quoted.internet.source.is_ipv4() {
        quote.truncate(quoted.internet.header_length() + 8);
    } else {
        quote.truncate(1232);
    }
    icmp(from, to, kind, code).payload(&quote)
}

/// A neighbour solicitation of `from` for `target`, sent to the target's solicited-node
/// address with a source link-layer address option (RFC 4861, section 4.3).
#[track_caller]
pub fn neighbour_solicitation(from: &str, target: &str) -> Packet {
    let IpAddr::V6(wanted) = address(target) else { panic!("{target} is not an IPv6 address") };
    let [.., a, b, c] = wanted.octets();
    let group = format!("ff02::1:ff{a:02x}:{b:02x}{c:02x}");
    let mut body = wanted.octets().to_vec();
    if !address(from).is_unspecified() {
        body.extend([1, 1]);
        body.extend(mac_of(address(from)));
    }
    let message = icmp(from, &group, 135, 0).payload(&body).ttl(255);
    message.to_mac([0x33, 0x33, 0xff, a, b, c])
}

/// A solicited neighbour advertisement from `from` to `to` (RFC 4861, section 4.4).
#[track_caller]
pub fn neighbour_advertisement(from: &str, to: &str) -> Packet {
    let IpAddr::V6(target) = address(from) else { panic!("{from} is not an IPv6 address") };
    let mut body = target.octets().to_vec();
    body.extend([2, 1]);
    body.extend(mac_of(target.into()));
    icmp(from, to, 136, 0).rest([0x60, 0, 0, 0]).payload(&body).ttl(255)
}

/// A packet of some other IP protocol.
#[track_caller]
pub fn other(from: &str, to: &str, protocol: u8) -> Packet {
    Packet::new(address(from), address(to), Transport::Other(protocol))
}

/// A packet being put together: Ethernet, IP and above.
#[derive(Clone, Debug)]
pub struct Packet {
    destination: Mac,
    source: Mac,
    /// VLAN tags from the outside in: protocol (0x8100, 0x88a8) and VLAN number.
    tags: Vec<(u16, u16)>,
    internet: Internet,
    transport: Transport,
    payload: Vec<u8>,
}

impl Packet {
    fn new(source: IpAddr, destination: IpAddr, transport: Transport) -> Self {
        Self {
            destination: SWITCH_MAC,
            source: mac_of(source),
            tags: Vec::new(),
            internet: Internet::new(source, destination),
            transport,
            payload: Vec::new(),
        }
    }

    /// The whole frame.
    pub fn build(&self) -> Vec<u8> {
        self.frame(self.internet_packet())
    }

    /// The IP packet without Ethernet.
    pub fn internet_packet(&self) -> Vec<u8> {
        let protocol = self.transport.protocol(self.internet.source);
        self.internet.around(protocol, &self.transport_bytes())
    }

    /// Transport header and payload.
    pub fn transport_bytes(&self) -> Vec<u8> {
        let Internet { source, destination, .. } = self.internet;
        self.transport.bytes(source, destination, &self.payload)
    }

    /// The frames of the packet's fragments, each with at most `size` bytes behind its IP
    /// headers (a multiple of 8), in order.
    pub fn fragments(&self, size: usize) -> Vec<Vec<u8>> {
        assert!(size > 0 && size.is_multiple_of(8), "fragments hold multiples of 8 bytes");
        let bytes = self.transport_bytes();
        let count = bytes.len().div_ceil(size);
        bytes
            .chunks(size)
            .enumerate()
            .map(|(index, chunk)| self.fragment(index * size, index + 1 < count, chunk))
            .collect()
    }

    /// The frame of one fragment made by hand: `bytes` stand at `offset` (a multiple of 8).
    pub fn fragment(&self, offset: usize, more: bool, bytes: &[u8]) -> Vec<u8> {
        let protocol = self.transport.protocol(self.internet.source);
        self.frame(self.internet.around_fragment(protocol, offset, more, bytes))
    }

    fn frame(&self, internet_packet: Vec<u8>) -> Vec<u8> {
        let mut frame = [self.destination, self.source].concat();
        for (protocol, tag) in &self.tags {
            frame.extend(protocol.to_be_bytes());
            frame.extend(tag.to_be_bytes());
        }
        let kind: u16 = if self.internet.source.is_ipv4() { 0x0800 } else { 0x86dd };
        frame.extend(kind.to_be_bytes());
        frame.extend(internet_packet);
        frame
    }

    /// Sets the source MAC address.
    pub fn from_mac(mut self, mac: Mac) -> Self {
        self.source = mac;
        self
    }

    /// Sets the destination MAC address.
    pub fn to_mac(mut self, mac: Mac) -> Self {
        self.destination = mac;
        self
    }

    /// Adds an 802.1Q tag inside those that are there.
    pub fn vlan(mut self, number: u16) -> Self {
        self.tags.push((0x8100, number));
        self
    }

    /// Adds an 802.1ad service tag (QinQ) inside those that are there.
    pub fn service_vlan(mut self, number: u16) -> Self {
        self.tags.push((0x88a8, number));
        self
    }

    /// Sets the IPv4 time to live or IPv6 hop limit (64 unless set).
    pub fn ttl(mut self, hops: u8) -> Self {
        self.internet.hop_limit = hops;
        self
    }

    /// Sets the identification that fragments share (1 unless set).
    pub fn ip_id(mut self, identification: u32) -> Self {
        self.internet.identification = identification;
        self
    }

    /// Sets the IPv4 options, a multiple of 4 bytes.
    pub fn ip_options(mut self, options: &[u8]) -> Self {
        self.internet.options = options.to_vec();
        self
    }

    /// Adds an IPv6 extension header with `body` behind its first two bytes; it is padded
    /// to a multiple of 8 bytes with a PadN option (RFC 8200, section 4.2).
    pub fn extension(mut self, number: u8, body: &[u8]) -> Self {
        self.internet.extensions.push((number, body.to_vec()));
        self
    }

    /// Sets what stands behind the transport header.
    pub fn payload(mut self, bytes: &[u8]) -> Self {
        self.payload = bytes.to_vec();
        self
    }

    /// Sets the second half of an ICMP header.
    #[track_caller]
    pub fn rest(mut self, bytes: [u8; 4]) -> Self {
        match &mut self.transport {
            Transport::Icmp { rest, .. } => *rest = bytes,
            other => panic!("{other:?} has no second half of an ICMP header"),
        }
        self
    }

    /// TCP: opens a connection.
    #[track_caller]
    pub fn syn(self) -> Self {
        self.tcp_header(|tcp| tcp.syn = true)
    }

    /// TCP: agrees to a connection.
    #[track_caller]
    pub fn syn_ack(self) -> Self {
        self.syn().ack()
    }

    /// TCP: acknowledges.
    #[track_caller]
    pub fn ack(self) -> Self {
        self.tcp_header(|tcp| {
            tcp.ack = true;
            tcp.acknowledgment_number = 2000;
        })
    }

    /// TCP: carries `bytes`, pushed and acknowledging.
    #[track_caller]
    pub fn data(self, bytes: &[u8]) -> Self {
        self.ack().tcp_header(|tcp| tcp.psh = true).payload(bytes)
    }

    /// TCP: has nothing more to send.
    #[track_caller]
    pub fn fin(self) -> Self {
        self.tcp_header(|tcp| tcp.fin = true)
    }

    /// TCP: resets the connection.
    #[track_caller]
    pub fn rst(self) -> Self {
        self.tcp_header(|tcp| tcp.rst = true)
    }

    /// TCP: changes any field; the checksum is computed later.
    #[track_caller]
    pub fn tcp_header(mut self, change: impl FnOnce(&mut TcpHeader)) -> Self {
        match &mut self.transport {
            Transport::Tcp(header) => change(header),
            other => panic!("{other:?} is not TCP"),
        }
        self
    }
}

impl From<Packet> for Vec<u8> {
    fn from(packet: Packet) -> Self {
        packet.build()
    }
}

/// The first `length` bytes of a frame.
#[track_caller]
pub fn cut(frame: impl Into<Vec<u8>>, length: usize) -> Vec<u8> {
    let mut frame = frame.into();
    assert!(length <= frame.len(), "a frame of {} bytes cannot be cut at {length}", frame.len());
    frame.truncate(length);
    frame
}

/// The frame with `bytes` written over it at `offset`.
#[track_caller]
pub fn patch(frame: impl Into<Vec<u8>>, offset: usize, bytes: &[u8]) -> Vec<u8> {
    let mut frame = frame.into();
    frame[offset..offset + bytes.len()].copy_from_slice(bytes);
    frame
}

/// As [`patch`], then makes the header checksum of the untagged IPv4 packet right again.
#[track_caller]
pub fn patch_ipv4(frame: impl Into<Vec<u8>>, offset: usize, bytes: &[u8]) -> Vec<u8> {
    let mut frame = patch(patch(frame, offset, bytes), 24, &[0; 2]);
    let end = (14 + usize::from(frame[14] & 0xf) * 4).min(frame.len());
    let sum = etherparse::checksum::Sum16BitWords::new().add_slice(&frame[14..end]);
    // The sum is in the byte order of the machine, as the bytes were.
    let sum = sum.ones_complement().to_ne_bytes();
    frame[24..26].copy_from_slice(&sum);
    frame
}

/// The frame of an IPv4 packet that routers may cut.
pub fn divisible(frame: impl Into<Vec<u8>>) -> Vec<u8> {
    patch_ipv4(frame, 20, &[0])
}

fn echo(identifier: u16, sequence: u16) -> [u8; 4] {
    let ([a, b], [c, d]) = (identifier.to_be_bytes(), sequence.to_be_bytes());
    [a, b, c, d]
}

#[track_caller]
fn address(text: &str) -> IpAddr {
    text.parse().unwrap_or_else(|_| panic!("{text:?} is not an IP address"))
}

#[track_caller]
fn socket(text: &str) -> SocketAddr {
    text.parse().unwrap_or_else(|_| panic!("{text:?} is not an address:port"))
}

#[cfg(test)]
mod tests;
