//! One representation for IPv4 and IPv6 addresses.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An IP address as one 128-bit number in host byte order; IPv4 addresses are
/// held in their IPv4-mapped form `::ffff:a.b.c.d` (RFC 4291, section 2.5.5.2).
///
/// Frames that carry IPv4-mapped addresses *on the wire* inside IPv6 headers are
/// refused by the dataplane's parser, so the two families never mix.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Address(u128);

const MAPPED: u128 = 0xffff_0000_0000;

impl Address {
    /// From an IPv4 address as a 32-bit number in host byte order.
    #[inline]
    pub const fn from_v4_bits(bits: u32) -> Self {
        Self(MAPPED | bits as u128)
    }

    /// From the 128-bit form in host byte order (IPv4 as IPv4-mapped).
    #[inline]
    pub const fn from_bits(bits: u128) -> Self {
        Self(bits)
    }

    /// The 128-bit form in host byte order (IPv4 as IPv4-mapped).
    #[inline]
    pub const fn bits(self) -> u128 {
        self.0
    }

    /// Whether this is an IPv4 address.
    #[inline]
    pub const fn is_v4(self) -> bool {
        // By halves, which is cheaper than shifting 128 bits.
        ((self.0 >> 64) as u64 | (self.0 as u64 >> 32 ^ 0xffff)) == 0
    }

    /// Bits that are 0 in an IPv4 address alone, whose value is in the low 32 bits. The OR over
    /// many addresses is 0 if all of them are IPv4.
    #[inline(always)]
    pub(crate) const fn beyond_v4(self) -> u128 {
        self.0 ^ MAPPED
    }

    /// The standard library's form.
    pub fn to_ip(self) -> IpAddr {
        if self.is_v4() {
            IpAddr::V4(Ipv4Addr::from(self.0 as u32))
        } else {
            IpAddr::V6(Ipv6Addr::from(self.0))
        }
    }
}

impl From<IpAddr> for Address {
    fn from(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(v4) => v4.into(),
            IpAddr::V6(v6) => v6.into(),
        }
    }
}

impl From<Ipv4Addr> for Address {
    fn from(ip: Ipv4Addr) -> Self {
        Self::from_v4_bits(u32::from(ip))
    }
}

impl From<Ipv6Addr> for Address {
    fn from(ip: Ipv6Addr) -> Self {
        Self(u128::from(ip))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_ip().fmt(f)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_ip().fmt(f)
    }
}
