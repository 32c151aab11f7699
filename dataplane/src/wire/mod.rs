//! Wire formats: headers are checked once, then read freely.
//!
//! [`parse`] looks at a whole frame and either refuses it by an [`Outcome`] or
//! gives its [`Headers`]; nothing behind it checks a length again.
//!
//! A packet may span several frames; this module reads the first. All headers must be in it, and
//! messages to the switch itself (neighbours, ICMP errors) as a whole.

pub mod checksum;
pub mod crc32c;
pub(crate) mod datagram;
pub(crate) mod fragment;
mod icmp;
pub mod icmp_error;
mod ip;
pub mod neighbour;
pub(crate) mod nested;
pub mod partial_checksum;
mod plain;
pub mod traffic_class;
pub mod translate;
mod transport;
pub mod vxlan;

use acl::Address;

use crate::Outcome;
pub(crate) use plain::{parse_plain_v4, parse_plain_v6};

/// A MAC address, in the order of the wire.
pub type Mac = [u8; 6];

/// A MAC address as one number, to be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct MacWord(u64);

impl MacWord {
    /// The source of a frame, from the two addresses it starts with.
    #[inline]
    pub fn source_of(addresses: &[u8; 12]) -> Self {
        let last: [u8; 8] = addresses[4..].try_into().expect("eight bytes");
        // The first two are the destination's last.
        Self(u64::from_le_bytes(last) >> 16)
    }

    /// Its bytes in the order of the wire.
    #[inline]
    pub fn bytes(self) -> Mac {
        let [a, b, c, d, e, f, _, _] = self.0.to_le_bytes();
        [a, b, c, d, e, f]
    }

    /// Whether it is a group's address, which no frame may come from.
    #[inline]
    pub(crate) fn is_multicast(self) -> bool {
        self.0 & 1 != 0
    }
}

impl From<Mac> for MacWord {
    #[inline]
    fn from([a, b, c, d, e, f]: Mac) -> Self {
        Self(u64::from_le_bytes([a, b, c, d, e, f, 0, 0]))
    }
}

/// The switch's own MAC address on every port: locally administered, "podgt".
pub const SWITCH_MAC: Mac = [0x02, b'p', b'o', b'd', b'g', b't'];

/// IP protocol numbers (IANA) that the switch looks into.
pub mod protocol {
    /// ICMP (RFC 792).
    pub const ICMP: u8 = 1;
    /// TCP (RFC 9293).
    pub const TCP: u8 = 6;
    /// UDP (RFC 768).
    pub const UDP: u8 = 17;
    /// ICMPv6 (RFC 4443).
    pub const ICMPV6: u8 = 58;
    /// SCTP (RFC 9260).
    pub const SCTP: u8 = 132;
}

/// TCP flags (RFC 9293, section 3.1).
pub mod tcp_flags {
    /// No more data from the sender.
    pub const FIN: u8 = 0x01;
    /// Synchronise sequence numbers.
    pub const SYN: u8 = 0x02;
    /// Reset the connection.
    pub const RST: u8 = 0x04;
    /// There is data, and it is to be delivered.
    pub const PSH: u8 = 0x08;
    /// The acknowledgment field is significant.
    pub const ACK: u8 = 0x10;
}

/// Both ends of a connection as one packet shows them, in host byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Flow {
    /// Source address.
    pub source: Address,
    /// Destination address.
    pub destination: Address,
    /// Source port. For an ICMP echo request the identifier, for a reply 0.
    pub source_port: u16,
    /// Destination port. For an ICMP echo reply the identifier, for a request 0.
    pub destination_port: u16,
    /// IP protocol number.
    pub protocol: u8,
}

impl Flow {
    /// The same connection as the other end's packets show it.
    #[must_use]
    #[inline]
    pub fn reversed(&self) -> Self {
        Self {
            source: self.destination,
            destination: self.source,
            source_port: self.destination_port,
            destination_port: self.source_port,
            protocol: self.protocol,
        }
    }
}

/// Effect that a packet may have on connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Role {
    /// It may open one (TCP SYN, UDP, echo request, other protocols).
    #[default]
    Opens,
    /// It only makes sense inside one (TCP without SYN, echo reply).
    Follows,
    /// It reports an error about the connection whose packet it quotes; see [`quoted`].
    Quotes,
}

/// Kind of a frame's packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Kind {
    /// IPv4.
    #[default]
    Ipv4,
    /// IPv6.
    Ipv6,
    /// ARP (RFC 826).
    Arp,
    /// Neighbour discovery (RFC 4861), router discovery and multicast listener reports included.
    NeighbourDiscovery,
}

/// A packet's place in a fragmented datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Fragment {
    /// Not fragmented.
    #[default]
    Whole,
    /// The fragment with the transport header; more follow.
    First(u32),
    /// A fragment behind the first; the number is the datagram's identification.
    Later(u32),
}

/// Result of [`parse`]; offsets count from the start of the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    /// Kind of packet.
    pub kind: Kind,
    /// Effect that it may have on connections.
    pub role: Role,
    /// TCP flags, or 0.
    pub tcp_flags: u8,
    /// ICMP or ICMPv6 type, or 0.
    pub icmp_type: u8,
    /// VLAN tags (4 bytes each) in front of the ethertype.
    pub vlan_tags: u8,
    /// Time to live, or hop limit.
    pub ttl: u8,
    /// Start of the IP or ARP header.
    pub l3: u16,
    /// Start of the transport header.
    pub l4: u16,
    /// End of the IP packet (frames may carry padding behind it), which may lie behind the first
    /// of several frames.
    pub end: u16,
    /// Place in a fragmented datagram.
    pub fragment: Fragment,
    /// Source MAC address.
    pub source_mac: MacWord,
    /// Both ends of the packet itself. (For the flow that an ICMP error quotes, see [`quoted`].)
    pub flow: Flow,
}

/// Length of an Ethernet header without tags.
pub const ETHERNET: usize = 14;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_ARP: u16 = 0x0806;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPE_VLAN: u16 = 0x8100;
const ETHERTYPE_QINQ: u16 = 0x88a8;
const MOST_VLAN_TAGS: u8 = 2;

impl Headers {
    /// The headers of a packet that was not parsed.
    pub const NONE: Self = Self {
        kind: Kind::Ipv4,
        role: Role::Opens,
        tcp_flags: 0,
        icmp_type: 0,
        vlan_tags: 0,
        ttl: 0,
        l3: 0,
        l4: 0,
        end: 0,
        fragment: Fragment::Whole,
        source_mac: MacWord(0),
        flow: Flow {
            source: Address::from_bits(0),
            destination: Address::from_bits(0),
            source_port: 0,
            destination_port: 0,
            protocol: 0,
        },
    };

    /// The transport header and what follows it, as far as it is in the first frame.
    #[inline]
    pub(crate) fn segment<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        &frame[usize::from(self.l4)..self.end_in(frame)]
    }

    /// The end of the IP packet, or of the first frame.
    #[inline]
    pub(crate) fn end_in(&self, frame: &[u8]) -> usize {
        usize::from(self.end).min(frame.len())
    }

    /// Bytes behind the IP header and its extensions, in all frames.
    #[inline]
    pub(crate) fn payload(&self) -> usize {
        usize::from(self.end - self.l4)
    }
}

/// A packet that a fast path of the parser took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plain {
    /// Whether the transport checksum equals the sum of the pseudo header modulo 0xffff. Otherwise it
    /// is not partial.
    pub(crate) may_be_partial: bool,
}

/// An IP packet as a frame without MAC addresses.
pub fn frame_of(packet: &[u8]) -> Vec<u8> {
    let is_v6 = packet.first().is_some_and(|byte| byte >> 4 == 6);
    let ethertype = if is_v6 { [0x86, 0xdd] } else { [0x08, 0x00] };
    [&[0; 12], &ethertype[..], packet].concat()
}

/// Parses and checks a whole frame.
pub fn parse(frame: &[u8]) -> Result<Headers, Outcome> {
    parse_prefix(frame, frame.len())
}

/// The same for a packet of `length` bytes, of which `prefix` are the first.
pub fn parse_prefix(prefix: &[u8], length: usize) -> Result<Headers, Outcome> {
    let mut headers = Headers::NONE;
    parse_into(prefix, length, &mut headers).map(|_| headers)
}

/// The same for a packet of `length` bytes whose first frame this is, written into `headers`. On an
/// error `headers` holds the fields read so far.
#[inline]
pub(crate) fn parse_into(
    frame: &[u8],
    length: usize,
    headers: &mut Headers,
) -> Result<Option<Plain>, Outcome> {
    let plain =
        parse_plain_v4(frame, length, headers).or_else(|| parse_plain_v6(frame, length, headers));
    match plain {
        Some(plain) => Ok(Some(plain)),
        None => parse_any(frame, length, headers).map(|()| None),
    }
}

/// Whether a frame with so many tags is of a VLAN: number 0 says a priority alone (IEEE 802.1Q).
pub(crate) fn is_of_vlan(frame: &[u8], tags: u8) -> bool {
    const NUMBER: u16 = 0xfff;
    let number = |tag: u8| be16(frame, 14 + 4 * usize::from(tag)).map_or(0, |it| it & NUMBER);
    (0..tags).any(|tag| number(tag) != 0)
}

/// The same for packets of every kind.
pub(crate) fn parse_any(frame: &[u8], length: usize, headers: &mut Headers) -> Result<(), Outcome> {
    let Some(addresses) = frame.first_chunk().filter(|_| frame.len() >= ETHERNET) else {
        return Err(Outcome::Truncated);
    };
    let Ok(end) = u16::try_from(length) else { return Err(Outcome::MalformedEthernet) };
    if frame[6] & 1 != 0 {
        return Err(Outcome::MalformedEthernet);
    }
    let source_mac = MacWord::source_of(addresses);
    *headers = Headers { end, source_mac, ..Headers::NONE };
    let mut at = 12;
    let ethertype = loop {
        let Some(ethertype) = be16(frame, at) else { return Err(Outcome::Truncated) };
        if ethertype != ETHERTYPE_VLAN && ethertype != ETHERTYPE_QINQ {
            break ethertype;
        }
        headers.vlan_tags += 1;
        if headers.vlan_tags > MOST_VLAN_TAGS {
            return Err(Outcome::MalformedEthernet);
        }
        at += 4;
    };
    headers.l3 = (at + 2) as u16;
    match ethertype {
        ETHERTYPE_IPV4 => ip::parse_v4(frame, headers)?,
        ETHERTYPE_IPV6 => ip::parse_v6(frame, headers)?,
        ETHERTYPE_ARP => return neighbour::check_arp(frame, headers),
        _ => return Err(Outcome::UnknownEthertype),
    }
    parse_transport(frame, headers)
}

/// Reads the transport header, unless this is a later fragment.
#[inline]
fn parse_transport(frame: &[u8], headers: &mut Headers) -> Result<(), Outcome> {
    if matches!(headers.fragment, Fragment::Later(_)) {
        headers.role = Role::Follows;
        return ip::refuse_multicast(headers);
    }
    let segment = headers.segment(frame);
    let whole = headers.fragment == Fragment::Whole;
    match headers.flow.protocol {
        protocol::TCP => transport::tcp(segment, headers)?,
        protocol::UDP => transport::udp(segment, whole, headers)?,
        protocol::SCTP => transport::sctp(segment, headers)?,
        protocol::ICMP if headers.flow.source.is_v4() => return icmp::parse_v4(segment, headers),
        protocol::ICMPV6 if !headers.flow.source.is_v4() => {
            return icmp::parse_v6(segment, headers);
        }
        _ => {}
    }
    ip::refuse_multicast(headers)
}

/// The flow that an ICMP error ([`Role::Quotes`]) quotes, as the packet it is about showed it.
pub fn quoted(frame: &[u8], headers: &Headers) -> Option<Flow> {
    icmp::quoted(headers.segment(frame), headers)
}

/// A big-endian 16-bit number, if the bytes reach that far.
#[inline]
pub(crate) fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2).map(|field| u16::from_be_bytes([field[0], field[1]]))
}

/// An IPv4 address at `at`, which the caller has checked to be inside.
#[inline]
pub(crate) fn v4_at(bytes: &[u8], at: usize) -> Address {
    let field: [u8; 4] = bytes[at..at + 4].try_into().expect("four bytes");
    Address::from_v4_bits(u32::from_be_bytes(field))
}

/// An IPv6 address at `at`, which the caller has checked to be inside.
#[inline]
pub(crate) fn v6_at(bytes: &[u8], at: usize) -> Address {
    let field: [u8; 16] = bytes[at..at + 16].try_into().expect("sixteen bytes");
    Address::from_bits(u128::from_be_bytes(field))
}
