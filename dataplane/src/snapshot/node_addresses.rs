//! Addresses of this node: its own, and the networks of its pods.

use std::net::IpAddr;

use acl::Address;
use ipnet::IpNet;

/// The addresses at which this node's own processes are reached.
#[derive(Clone, Debug, Default)]
pub(super) struct NodeAddresses {
    all: Vec<Address>,
    /// Number of them, from the front, that are in the Node object.
    named: usize,
}

impl NodeAddresses {
    /// The addresses of the Node object, and the others. A link-local IPv6 address is reached on
    /// its link alone.
    pub(super) fn new(named: &[IpAddr], others: &[IpAddr]) -> Self {
        let mut all: Vec<Address> = Vec::new();
        let mut add = |addresses: &[IpAddr]| {
            for address in addresses.iter().map(|address| Address::from(*address)) {
                if !(all.contains(&address) || is_link_local(address) && !address.is_v4()) {
                    all.push(address);
                }
            }
            all.len()
        };
        let named = add(named);
        add(others);
        Self { all, named }
    }

    /// All of them, those of the Node object first.
    pub(super) fn all(&self) -> &[Address] {
        &self.all
    }

    /// Those of the Node object.
    pub(super) fn named(&self) -> &[Address] {
        &self.all[..self.named]
    }
}

/// Whether an address is valid on one link only (RFC 3927, section 2.1; RFC 4291, section 2.5.6).
pub(crate) fn is_link_local(address: Address) -> bool {
    match address.is_v4() {
        true => address.bits() as u32 >> 16 == 0xa9fe,
        false => address.bits() >> 118 == 0xfe80 >> 6,
    }
}

/// A short list of networks, searched linearly.
#[derive(Clone, Debug, Default)]
pub(super) struct Prefixes(Vec<(u128, u128)>);

impl Prefixes {
    pub(super) fn new(networks: &[IpNet]) -> Self {
        // An IPv4 address stands in the last 32 of 128 bits.
        let prefix = |network: &IpNet| {
            let host = u32::from(network.max_prefix_len() - network.prefix_len());
            let mask = u128::MAX.checked_shl(host).unwrap_or(0);
            (Address::from(network.addr()).bits() & mask, mask)
        };
        Self(networks.iter().map(prefix).collect())
    }

    #[inline]
    pub(super) fn contains(&self, address: Address) -> bool {
        self.0.iter().any(|(network, mask)| address.bits() & mask == *network)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn prefixes_hold_what_their_networks_hold() {
        let networks = ["10.1.0.0/24", "fd01::/64", "192.0.2.1/32"];
        let prefixes = Prefixes::new(&networks.map(|net| net.parse().unwrap()));
        for (address, held) in [
            ("10.1.0.77", true),
            ("10.1.1.77", false),
            ("192.0.2.1", true),
            ("192.0.2.2", false),
            ("fd01::77", true),
            ("fd01:0:0:1::77", false),
            ("::10.1.0.77", false),
        ] {
            assert_eq!(prefixes.contains(ip(address).into()), held, "{address}");
        }
        let everything = Prefixes::new(&["::/0".parse().unwrap()]);
        assert!(everything.contains(ip("2001:db8::1").into()));
    }

    #[test]
    fn an_address_counts_once_and_on_its_link_not_at_all() {
        let addresses = NodeAddresses::new(
            &[ip("192.0.2.1"), ip("fe80::1")],
            &[ip("10.1.0.1"), ip("192.0.2.1"), ip("169.254.1.1")],
        );
        let texts = |list: &[Address]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(texts(addresses.named()), ["192.0.2.1"]);
        assert_eq!(texts(addresses.all()), ["192.0.2.1", "10.1.0.1", "169.254.1.1"]);
    }
}
