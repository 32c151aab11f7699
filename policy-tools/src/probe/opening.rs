//! The packet that opens a connection.

use std::net::IpAddr;

use control::model;
use dataplane::{SWITCH_MAC, wire};
use etherparse::{IpNumber, PacketBuilder};

/// The protocols that a question may be about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, clap::ValueEnum)]
#[value(rename_all = "UPPER")]
pub enum Protocol {
    /// TCP; a SYN opens it.
    Tcp,
    /// UDP; any datagram does.
    Udp,
    /// SCTP; an INIT chunk does (RFC 9260, section 5.1).
    Sctp,
    /// ICMP or ICMPv6, by the family of the addresses; an echo request does.
    Icmp,
}

impl Protocol {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Tcp, Self::Udp, Self::Sctp, Self::Icmp];

    /// The name, as Kubernetes spells protocols.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
            Self::Icmp => "ICMP",
        }
    }

    /// From that name; `None` for any other text.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|protocol| protocol.name() == name)
    }

    /// The protocol with this IP protocol number; ICMPv6 is ICMP.
    pub(crate) fn from_number(number: u8) -> Option<Self> {
        let has = |it: &Self| [false, true].map(|v6| it.number(v6)).contains(&number);
        Self::ALL.into_iter().find(has)
    }

    /// The IP protocol number; ICMPv6 is the one of IPv6.
    pub const fn number(self, v6: bool) -> u8 {
        match self {
            Self::Tcp => wire::protocol::TCP,
            Self::Udp => wire::protocol::UDP,
            Self::Sctp => wire::protocol::SCTP,
            Self::Icmp if v6 => wire::protocol::ICMPV6,
            Self::Icmp => wire::protocol::ICMP,
        }
    }

    /// The protocol as policies and services know it; `None` for ICMP, which has no ports.
    pub const fn with_ports(self) -> Option<model::Protocol> {
        match self {
            Self::Tcp => Some(model::Protocol::Tcp),
            Self::Udp => Some(model::Protocol::Udp),
            Self::Sctp => Some(model::Protocol::Sctp),
            Self::Icmp => None,
        }
    }
}

/// A connection about to be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening {
    /// The address that opens it.
    pub source: IpAddr,
    /// The address it is opened to, of the same family.
    pub destination: IpAddr,
    /// The protocol.
    pub protocol: Protocol,
    /// Source port, or the identifier of the echo request.
    pub source_port: u16,
    /// Destination port; ignored for ICMP.
    pub destination_port: u16,
}

/// The MAC address that opening packets come from: locally administered, "probe" for short.
const SENDER: [u8; 6] = [0x02, b'p', b'r', b'o', b'b', b'e'];
const HOPS: u8 = 64;

/// Bytes that the frame of any opening packet fits into.
pub const LARGEST: usize = 128;

impl Opening {
    /// Its flow.
    pub fn flow(&self) -> wire::Flow {
        wire::Flow {
            source: self.source.into(),
            destination: self.destination.into(),
            source_port: self.source_port,
            destination_port: self.destination_port,
            protocol: self.protocol.number(self.destination.is_ipv6()),
        }
    }

    /// The frame; `None` if the addresses are not of one family.
    pub fn frame(&self) -> Option<Vec<u8>> {
        let mut frame = Vec::with_capacity(LARGEST);
        let (from, to) = (self.source_port, self.destination_port);
        let ethernet = PacketBuilder::ethernet2(SENDER, SWITCH_MAC);
        let (ip, v4) = match (self.source, self.destination) {
            (IpAddr::V4(a), IpAddr::V4(b)) => (ethernet.ipv4(a.octets(), b.octets(), HOPS), true),
            (IpAddr::V6(a), IpAddr::V6(b)) => (ethernet.ipv6(a.octets(), b.octets(), HOPS), false),
            _ => return None,
        };
        let written = match self.protocol {
            Protocol::Tcp => ip.tcp(from, to, 0, u16::MAX).syn().write(&mut frame, &[]),
            Protocol::Udp => ip.udp(from, to).write(&mut frame, &[]),
            Protocol::Sctp => ip.write(&mut frame, IpNumber::SCTP, &sctp_init(from, to)),
            Protocol::Icmp if v4 => ip.icmpv4_echo_request(from, 1).write(&mut frame, &[]),
            Protocol::Icmp => ip.icmpv6_echo_request(from, 1).write(&mut frame, &[]),
        };
        written.ok().map(|()| frame)
    }
}

/// An SCTP packet with an INIT chunk (RFC 9260, sections 3.1 and 3.3.2).
fn sctp_init(from: u16, to: u16) -> [u8; 32] {
    let mut packet = [0; 32];
    packet[..2].copy_from_slice(&from.to_be_bytes());
    packet[2..4].copy_from_slice(&to.to_be_bytes());
    // Type, flags, length; initiate tag, receiver window, streams out and in, first TSN.
    packet[12..16].copy_from_slice(&[1, 0, 0, 20]);
    packet[16..20].copy_from_slice(&1_u32.to_be_bytes());
    packet[20..24].copy_from_slice(&65_536_u32.to_be_bytes());
    packet[24..28].copy_from_slice(&[0, 1, 0, 1]);
    packet[28..32].copy_from_slice(&1_u32.to_be_bytes());
    wire::crc32c::finish(&mut packet);
    packet
}

#[cfg(test)]
mod tests {
    use super::*;
    use dataplane::wire::Role;

    #[test]
    fn every_opening_packet_opens_what_it_says() {
        let families = [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")];
        for (source, destination) in families {
            let (source, destination) = (source.parse().unwrap(), destination.parse().unwrap());
            for protocol in Protocol::ALL {
                let (source_port, destination_port) = (40_000, 53);
                let opening =
                    Opening { source, destination, protocol, source_port, destination_port };
                let frame = opening.frame().unwrap();
                assert!(frame.len() <= LARGEST);
                let headers = wire::parse(&frame).unwrap();
                assert_eq!(headers.role, Role::Opens);
                assert_eq!(headers.flow.source.to_ip(), source);
                assert_eq!(headers.flow.destination.to_ip(), destination);
                assert_eq!(headers.flow.source_port, 40_000);
                let port = if protocol == Protocol::Icmp { 0 } else { 53 };
                assert_eq!(headers.flow.destination_port, port);
            }
        }
    }

    #[test]
    fn families_do_not_mix() {
        let opening = Opening {
            source: "10.0.0.1".parse().unwrap(),
            destination: "fd00::1".parse().unwrap(),
            protocol: Protocol::Tcp,
            source_port: 1,
            destination_port: 2,
        };
        assert_eq!(opening.frame(), None);
    }

    #[test]
    fn names_are_those_of_kubernetes() {
        assert_eq!(Protocol::from_name("SCTP"), Some(Protocol::Sctp));
        assert_eq!(Protocol::from_name("tcp"), None);
    }
}
