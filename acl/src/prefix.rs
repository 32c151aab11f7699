//! Networks as prefixes of the 128-bit address form.

use ipnet::IpNet;

use crate::Address;

/// A network whose addresses share their first `length` bits (0 to 128).
///
/// IPv4 networks lie under `::ffff:0:0/96` and so have lengths from 96 on. An IPv6
/// prefix that is shorter covers their numbers but not their meaning, so
/// [`covers`](Self::covers) also looks at the family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Prefix {
    bits: u128,
    length: u8,
}

/// Bits that distinguish IPv4 from IPv6 in the common form.
pub(crate) const V4_BITS: u8 = 96;

impl Prefix {
    /// The prefix of `net`, host bits dropped; `None` for IPv6 networks made of
    /// IPv4-mapped addresses, which no packet carries.
    pub(crate) fn new(net: &IpNet) -> Option<Self> {
        let bits = Address::from(net.network()).bits();
        match net {
            IpNet::V4(v4) => Some(Self { bits, length: V4_BITS + v4.prefix_len() }),
            IpNet::V6(v6) if v6.prefix_len() >= V4_BITS && Address::from_bits(bits).is_v4() => None,
            IpNet::V6(v6) => Some(Self { bits, length: v6.prefix_len() }),
        }
    }

    /// The first `length` bits of `address`, which must be of the family meant.
    #[inline]
    pub(crate) fn of(address: Address, length: u8) -> Self {
        Self { bits: address.bits() & mask(length), length }
    }

    /// The network's first address.
    pub(crate) fn first(self) -> Address {
        Address::from_bits(self.bits)
    }

    /// Number of leading bits shared, counted in the 128-bit form.
    #[inline]
    pub(crate) fn length(self) -> u8 {
        self.length
    }

    /// Whether this is an IPv4 network.
    #[inline]
    pub(crate) fn is_v4(self) -> bool {
        self.length >= V4_BITS && self.first().is_v4()
    }

    /// Whether `other` lies in this network or is it.
    pub(crate) fn covers(self, other: Self) -> bool {
        self.length <= other.length
            && other.bits & mask(self.length) == self.bits
            && self.is_v4() == other.is_v4()
    }

    /// Sorts networks of one family together and each before those inside it.
    pub(crate) fn order(self) -> (bool, u128, u8) {
        (self.is_v4(), self.bits, self.length)
    }
}

/// The mask of a prefix of `length` bits.
#[inline]
pub(crate) fn mask(length: u8) -> u128 {
    if length == 0 { 0 } else { u128::MAX << (128 - u32::from(length.min(128))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> Option<Prefix> {
        Prefix::new(&text.parse().expect(text))
    }

    #[test]
    fn families_do_not_cover_each_other() {
        let (v4, v6) = (prefix("0.0.0.0/0").unwrap(), prefix("::/0").unwrap());
        let (host4, host6) = (prefix("10.0.0.1/32").unwrap(), prefix("2001:db8::1/128").unwrap());
        assert!(v4.covers(host4) && v6.covers(host6));
        assert!(!v4.covers(host6) && !v6.covers(host4) && !v6.covers(v4) && !v4.covers(v6));
    }

    #[test]
    fn mapped_networks_mean_nothing() {
        assert_eq!(prefix("::ffff:10.0.0.0/104"), None);
        assert_eq!(prefix("::ffff:0:0/96"), None);
        assert!(prefix("::/95").is_some());
    }

    #[test]
    fn host_bits_are_dropped() {
        assert_eq!(prefix("10.1.2.3/8"), prefix("10.0.0.0/8"));
    }
}
