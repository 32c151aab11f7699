//! The structures that programs and switch share (`bpf/socket.h`). Numbers are in host byte order, ports
//! and addresses in that of the wire.

#![allow(unsafe_code, reason = "promises about the layout of plain structures")]

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use dataplane::bpf::Plain;
use session_rules::Transport;

/// `UNKNOWN`.
pub(crate) const UNKNOWN: u32 = u32::MAX;
/// `WAYS`.
pub(crate) const WAYS: u32 = 4;
/// Bits of a rule's key in front of the address.
pub(crate) const FRONT: u32 = 96;

const V4: u8 = 4;
const V6: u8 = 6;

/// Data of a pod's cgroup (`struct pod`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Pod {
    pub(crate) number: u32,
    pub(crate) flags: u32,
    pub(crate) own: [[u8; 16]; 2],
    pub(crate) reported: u64,
}

/// `POD_KNOWN`.
pub(crate) const POD_KNOWN: u32 = 1;

/// `POD_HOST`.
pub(crate) const POD_HOST: u32 = 2;

/// `POD_DATAGRAMS`.
pub(crate) const POD_DATAGRAMS: u32 = 4;

/// `POD_NO_RAW`.
pub(crate) const POD_NO_RAW: u32 = 8;

/// `NODE`.
pub(crate) const NODE: u32 = 0;

/// `ACCEPTS`.
pub(crate) const ACCEPTS: u32 = 1 << 30;

/// `struct settings`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Settings {
    pub(crate) generation: u32,
    pub(crate) closed: u32,
    pub(crate) error: i32,
    pub(crate) sets: u32,
}

/// `struct rule_key`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub(crate) struct RuleKey {
    pub(crate) prefix: u32,
    pub(crate) generation: u32,
    pub(crate) table: u32,
    pub(crate) family: u8,
    pub(crate) transport: u8,
    pub(crate) zero: [u8; 2],
    pub(crate) address: [u8; 16],
}

/// `struct piece`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub(crate) struct Piece {
    pub(crate) first: u32,
    pub(crate) count: u32,
}

/// `struct range`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub(crate) struct Range {
    pub(crate) first: u16,
    pub(crate) last: u16,
    pub(crate) verdict: u32,
    pub(crate) by: u32,
}

/// `enum verdict`.
pub(crate) const NOTHING: u32 = 0;
pub(crate) const ALLOW: u32 = 1;
pub(crate) const DENY: u32 = 2;

/// `struct local_key`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub(crate) struct LocalKey {
    pub(crate) generation: u32,
    pub(crate) family: u32,
    pub(crate) address: [u8; 16],
}

/// `struct service_key`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub(crate) struct ServiceKey {
    pub(crate) generation: u32,
    pub(crate) family: u8,
    pub(crate) transport: u8,
    pub(crate) port: [u8; 2],
    pub(crate) address: [u8; 16],
}

/// `struct endpoint`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Endpoint {
    pub(crate) address: [u8; 16],
    pub(crate) port: [u8; 2],
    pub(crate) family: u8,
    pub(crate) zero: [u8; 5],
}

/// `struct exchange_place`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub(crate) struct ExchangePlace {
    pub(crate) pod: u32,
    pub(crate) place: u32,
}

/// `struct exchange`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Exchange {
    pub(crate) address: [u8; 16],
    pub(crate) own_port: u16,
    pub(crate) port: [u8; 2],
    pub(crate) family: u8,
    pub(crate) zero: [u8; 3],
    pub(crate) seen: u64,
}

/// `struct event`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Event {
    pub(crate) pod: u32,
    pub(crate) by: u32,
    pub(crate) generation: u32,
    pub(crate) process: u32,
    pub(crate) user: u32,
    pub(crate) family: u8,
    pub(crate) transport: u8,
    pub(crate) port: [u8; 2],
    pub(crate) address: [u8; 16],
    pub(crate) command: [u8; 16],
    pub(crate) own_port: u16,
    pub(crate) zero: [u8; 6],
}

/// `enum counter`.
pub(crate) const ASKED_ABOUT: u32 = 0;
pub(crate) const DENIED: u32 = 1;
pub(crate) const CLOSED: u32 = 2;
pub(crate) const LOST: u32 = 3;
pub(crate) const KEPT_OUT: u32 = 4;
pub(crate) const RAW: u32 = 5;

// SAFETY: of these, no type has padding, and every pattern of bytes is a value.
unsafe impl Plain for Pod {}
// SAFETY: as above.
unsafe impl Plain for Settings {}
// SAFETY: as above.
unsafe impl Plain for RuleKey {}
// SAFETY: as above.
unsafe impl Plain for Piece {}
// SAFETY: as above.
unsafe impl Plain for Range {}
// SAFETY: as above.
unsafe impl Plain for LocalKey {}
// SAFETY: as above.
unsafe impl Plain for ServiceKey {}
// SAFETY: as above.
unsafe impl Plain for Endpoint {}
// SAFETY: as above.
unsafe impl Plain for ExchangePlace {}
// SAFETY: as above.
unsafe impl Plain for Exchange {}

const _: () = {
    assert!(size_of::<Pod>() == 48);
    assert!(size_of::<Settings>() == 16);
    assert!(size_of::<RuleKey>() == 32);
    assert!(size_of::<Range>() == 12);
    assert!(size_of::<LocalKey>() == 24);
    assert!(size_of::<ServiceKey>() == 24);
    assert!(size_of::<Endpoint>() == 24);
    assert!(size_of::<Exchange>() == 32);
    assert!(size_of::<Event>() == 64);
};

/// The family of an address, and its bytes; those of IPv4 stand in front.
pub(crate) fn bytes(address: IpAddr) -> (u8, [u8; 16]) {
    match address {
        IpAddr::V4(it) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&it.octets());
            (V4, bytes)
        }
        IpAddr::V6(it) => (V6, it.octets()),
    }
}

/// The number of a protocol.
pub(crate) const fn number(transport: Transport) -> u8 {
    match transport {
        Transport::Tcp => 6,
        Transport::Udp => 17,
    }
}

impl Event {
    /// The other end.
    pub(crate) fn other(&self) -> SocketAddr {
        let address = match self.family {
            V4 => [self.address[0], self.address[1], self.address[2], self.address[3]].into(),
            _ => Ipv6Addr::from(self.address).into(),
        };
        SocketAddr::new(address, u16::from_be_bytes(self.port))
    }
}
