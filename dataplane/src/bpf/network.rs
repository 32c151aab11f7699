//! Keys of maps that find addresses and networks, as `bpf/ip.h` has them.

#![allow(unsafe_code, reason = "values that the kernel reads byte by byte")]

use std::net::IpAddr;

use ipnet::IpNet;

use super::Plain;

/// `struct address`: an IPv6 address, or an IPv4 address mapped to one.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct AddressKey([u8; 16]);

/// `struct network`, for maps of longest prefixes; the length in host byte order.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct NetworkKey {
    length: u32,
    address: AddressKey,
}

// SAFETY: bytes have no padding.
unsafe impl Plain for AddressKey {}
// SAFETY: the fields fill the structure.
unsafe impl Plain for NetworkKey {}

impl AddressKey {
    /// The key of an address.
    pub fn of(address: IpAddr) -> Self {
        Self(match address {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => address.octets(),
        })
    }
}

impl NetworkKey {
    /// The key of a network.
    pub fn of(network: &IpNet) -> Self {
        let outer = if network.addr().is_ipv4() { 96 } else { 0 };
        let length = outer + u32::from(network.prefix_len());
        Self { length, address: AddressKey::of(network.network()) }
    }
}
