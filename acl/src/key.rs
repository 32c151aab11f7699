//! Lookup keys: the header fields of one packet.

use crate::{Address, Identity};

/// The header fields that rules look at, in host byte order.
// Fields stand where they are named, so that those of many keys can be gathered.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Key {
    /// Source address.
    pub source: Address,
    /// Destination address.
    pub destination: Address,
    /// The source's identity in the address map the table was compiled for.
    pub source_identity: Identity,
    /// The destination's identity in the same address map.
    pub destination_identity: Identity,
    /// Source port; for ICMP and ICMPv6 the type.
    pub source_port: u16,
    /// Destination port; for ICMP and ICMPv6 the code.
    pub destination_port: u16,
    /// IP protocol number (IANA "Assigned Internet Protocol Numbers").
    pub protocol: u8,
    /// Flags of the TCP header (its byte 13, RFC 9293); 0 for other protocols.
    pub tcp_flags: u8,
}
