//! Networks to numbers, by the longest prefix.

use ipnet::IpNet;

use crate::Address;
use crate::lpm::{Editor, Lpm};
use crate::prefix::Prefix;

/// An immutable map from networks to numbers below 2^30 - 1.
#[derive(Clone, Debug, Default)]
pub struct PrefixMap(Lpm);

impl PrefixMap {
    /// A map of these networks. The first number of a network wins. Networks of IPv4-mapped addresses
    /// are left out: no packet carries such addresses.
    pub fn new(networks: &[(IpNet, u32)]) -> Self {
        let mut editor = Editor::default();
        for (network, number) in networks.iter().rev() {
            if let Some(prefix) = Prefix::new(network) {
                editor.set(prefix, Some(*number));
            }
        }
        Self(editor.version())
    }

    /// Looks up the number of the longest network that contains `address`.
    #[inline]
    pub fn find(&self, address: Address) -> Option<u32> {
        self.0.lookup(address).checked_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn network() -> impl Strategy<Value = IpNet> {
        let v4 = (0..4_u32, 0..=32_u8).prop_map(|(n, length)| {
            let address = std::net::Ipv4Addr::from(0x0a01_0000 | n << 6 | n);
            IpNet::new(address.into(), length).unwrap()
        });
        let v6 = (0..4_u128, 0..=128_u8).prop_map(|(n, length)| {
            let address = std::net::Ipv6Addr::from(0xfd00 << 112 | n << 64 | n);
            IpNet::new(address.into(), length).unwrap()
        });
        prop_oneof![v4, v6]
    }

    proptest! {
        #[test]
        fn finds_what_a_scan_finds(
            networks in prop::collection::vec(network(), 0..20),
            keys in prop::collection::vec(network(), 20),
        ) {
            let numbered: Vec<_> = networks.iter().copied().zip(0..).collect();
            let map = PrefixMap::new(&numbered);
            for key in keys {
                let address = key.addr();
                let covering = numbered.iter().filter(|(network, _)| network.contains(&address));
                let longest = covering.rev().max_by_key(|(network, _)| network.prefix_len());
                prop_assert_eq!(map.find(address.into()), longest.map(|(_, number)| *number));
            }
        }
    }
}
