//! Routes to other nodes.

use acl::{Address, PrefixMap};
use ahash::AHashMap;
use ipnet::IpNet;

use crate::wire::Mac;

/// Another node, and the path to its pods.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Peer {
    /// Name of the node.
    pub name: String,
    /// Addresses of its Node object.
    pub addresses: Vec<Address>,
    /// Other addresses at which its own processes are reached (its kernel's on the host port, say).
    pub more_addresses: Vec<Address>,
    /// Its pod networks.
    pub networks: Vec<IpNet>,
    /// Destination of its packets on the underlay; the address of the VXLAN tunnel's end, where
    /// there is an overlay.
    pub endpoint: Address,
    /// MAC address of the next hop towards it on the underlay; `None` while it is not known.
    pub next_hop: Option<Mac>,
    /// Bytes of the longest packet that the underlay takes on that path; 0 if the uplink's MTU
    /// alone decides.
    pub mtu: u16,
    /// Smallest hop limit that its tunnel packets arrive with: 255 where it is a neighbour on the
    /// uplink's link (RFC 5082), 0 where routers stand in between.
    pub least_hop_limit: u8,
}

/// Longest prefix match over the networks and addresses of other nodes.
#[derive(Clone, Debug, Default)]
pub struct Routes {
    peers: Vec<Peer>,
    networks: PrefixMap,
    /// By number of the peer.
    sole: Vec<Sole>,
    /// The peer whose processes are reached at an address, where its Node object has other addresses of
    /// the same family.
    nodes: AHashMap<Address, u16>,
}

/// Largest number of peers that an adjacency can encode.
const MOST_PEERS: usize = 1 << 14;

impl Routes {
    /// Routes to these peers. Of peers that claim the same network the first one has it; peers
    /// beyond 16,384 are not reached.
    pub fn new(mut peers: Vec<Peer>) -> Self {
        peers.truncate(MOST_PEERS);
        let mut nodes = AHashMap::new();
        let mut networks = Vec::new();
        for (n, peer) in peers.iter().enumerate() {
            for address in peer.addresses.iter().chain(&peer.more_addresses) {
                nodes.entry(*address).or_insert(n as u16);
            }
            let own = peer.addresses.iter().chain([&peer.endpoint]);
            let own = own.map(|address| IpNet::from(address.to_ip()));
            let all = peer.networks.iter().copied().chain(own);
            networks.extend(all.map(|network| (network, n as u32)));
        }
        nodes.retain(|address, n| {
            let is_other = |other: &Address| other != address && other.is_v4() == address.is_v4();
            peers[usize::from(*n)].addresses.iter().any(is_other)
        });
        let sole = sole(&networks, peers.len());
        Self { networks: PrefixMap::new(&networks), sole, peers, nodes }
    }

    /// All peers, in the order of their numbers.
    pub fn peers(&self) -> &[Peer] {
        &self.peers
    }

    /// The peer with this number.
    #[inline]
    pub fn peer(&self, n: u16) -> Option<&Peer> {
        self.peers.get(usize::from(n))
    }

    /// Longest prefix match: number of the peer that `address` is routed to.
    #[inline]
    pub fn find(&self, address: Address) -> Option<u16> {
        self.networks.find(address).map(|n| n as u16)
    }

    /// Whether `address` is routed to the peer with this number, as [`find`](Self::find) says.
    #[inline]
    pub fn leads_to(&self, peer: u16, address: Address) -> bool {
        let sole = self.sole.get(usize::from(peer)).is_some_and(|sole| sole.has(address));
        sole || self.find(address) == Some(peer)
    }

    /// Whether `address` is in another node's pod networks.
    #[inline]
    pub fn is_pod(&self, address: Address) -> bool {
        let Some(peer) = self.find(address).and_then(|n| self.peer(n)) else { return false };
        peer.endpoint != address && !peer.addresses.contains(&address)
    }

    /// The addresses of the Node object of the peer whose processes are reached at `address`; none
    /// where no other one is of the same family.
    #[inline]
    pub fn named_addresses(&self, address: Address) -> &[Address] {
        let peer = self.nodes.get(&address).and_then(|n| self.peer(*n));
        peer.map_or(&[], |peer| &peer.addresses)
    }

    /// Number of the peer whose tunnel ends at `endpoint`.
    pub fn peer_at(&self, endpoint: Address) -> Option<u16> {
        // A peer's endpoint is one of its addresses, and those are routes as well.
        let n = self.find(endpoint)?;
        (self.peers[usize::from(n)].endpoint == endpoint).then_some(n)
    }
}

/// A network of each family in which all addresses are one peer's, as pod networks usually are.
#[derive(Clone, Copy, Debug)]
struct Sole {
    v4: (u32, u32),
    v6: (u128, u128),
}

impl Sole {
    /// First address and mask of no network.
    const NONE: Self = Self { v4: (1, 0), v6: (1, 0) };

    #[inline(always)]
    fn has(&self, address: Address) -> bool {
        match address.is_v4() {
            true => address.bits() as u32 & self.v4.1 == self.v4.0,
            false => address.bits() & self.v6.1 == self.v6.0,
        }
    }
}

/// The largest such networks of each peer. Where two claim one, neither has it here.
fn sole(networks: &[(IpNet, u32)], peers: usize) -> Vec<Sole> {
    let mut sole = vec![Sole::NONE; peers];
    // A network stands in front of those inside it.
    let mut sorted: Vec<(IpNet, u32)> = networks.to_vec();
    sorted.sort_by_key(|(network, _)| (network.network(), network.prefix_len()));
    for (n, (network, peer)) in sorted.iter().enumerate() {
        let is_before =
            sorted[..n].last().is_some_and(|(before, _)| before.trunc() == network.trunc());
        let mut inside = sorted[n + 1..].iter().take_while(|(it, _)| network.contains(it));
        if is_before || inside.any(|(_, owner)| owner != peer) {
            continue;
        }
        // The largest one: the addresses of a node are networks too.
        let sole = &mut sole[*peer as usize];
        match network {
            IpNet::V4(network)
                if sole.v4 == Sole::NONE.v4 || sole.v4.1 > network.netmask().into() =>
            {
                sole.v4 = (network.network().into(), network.netmask().into());
            }
            IpNet::V6(network)
                if sole.v6 == Sole::NONE.v6 || sole.v6.1 > network.netmask().into() =>
            {
                sole.v6 = (network.network().into(), network.netmask().into());
            }
            _ => {}
        }
    }
    sole
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn peer(name: &str, address: &str, networks: &[&str]) -> Peer {
        let address: std::net::IpAddr = address.parse().unwrap();
        Peer {
            name: name.to_owned(),
            addresses: vec![address.into()],
            networks: networks.iter().map(|net| net.parse().unwrap()).collect(),
            endpoint: address.into(),
            ..Peer::default()
        }
    }

    fn find(routes: &Routes, address: &str) -> Option<u16> {
        routes.find(address.parse::<std::net::IpAddr>().unwrap().into())
    }

    #[test]
    fn the_longest_prefix_wins() {
        let routes = Routes::new(vec![
            peer("a", "192.0.2.1", &["10.1.0.0/16", "fd00:1::/32"]),
            peer("b", "192.0.2.2", &["10.1.7.0/24", "fd00:1:7::/48", "10.1.0.0/16"]),
            peer("c", "192.0.2.3", &["::/0"]),
        ]);
        let cases = [
            ("10.1.3.4", Some(0)),
            ("10.1.7.4", Some(1)),
            ("10.2.0.1", None),
            ("fd00:1:3::4", Some(0)),
            ("fd00:1:7::4", Some(1)),
            ("2001:db8::1", Some(2)),
            ("192.0.2.2", Some(1)),
            ("192.0.2.4", None),
        ];
        for (address, peer) in cases {
            assert_eq!(find(&routes, address), peer, "{address}");
        }
        let endpoint = |text: &str| text.parse::<std::net::IpAddr>().unwrap().into();
        assert_eq!(routes.peer_at(endpoint("192.0.2.2")), Some(1));
        assert_eq!(routes.peer_at(endpoint("10.1.7.4")), None, "behind it, but not its end");
    }

    fn network() -> impl Strategy<Value = IpNet> {
        let v4 = (0..4_u32, 0..=32_u8).prop_map(|(n, length)| {
            IpNet::new(std::net::Ipv4Addr::from(0x0a01_0000 | n << 6 | n).into(), length).unwrap()
        });
        let v6 = (0..4_u128, 0..=128_u8).prop_map(|(n, length)| {
            let address = std::net::Ipv6Addr::from(0xfd00 << 112 | n << 64 | n);
            IpNet::new(address.into(), length).unwrap()
        });
        prop_oneof![v4, v6]
    }

    proptest! {
        #[test]
        fn a_peers_own_network_says_what_the_longest_prefix_says(
            networks in prop::collection::vec(prop::collection::vec(network(), 0..4), 1..6),
            others in prop::collection::vec(network(), 20),
        ) {
            let peers = networks.iter().enumerate().map(|(n, networks)| Peer {
                networks: networks.clone(),
                ..peer("a", &format!("192.0.2.{n}"), &[])
            });
            let routes = Routes::new(peers.collect());
            for network in networks.iter().flatten().chain(&others) {
                for address in [network.addr(), network.network(), network.broadcast()] {
                    let address = address.into();
                    let found = routes.find(address);
                    for n in 0..=networks.len() as u16 {
                        prop_assert_eq!(routes.leads_to(n, address), found == Some(n), "{}", address);
                    }
                }
            }
        }

        #[test]
        fn disjoint_pod_networks_are_their_peers_own(count in 1_u16..300) {
            let peers = (0..count).map(|n| {
                let networks = [format!("10.{}.{}.0/24", n >> 8, n & 255), format!("fd00:{n:x}::/64")];
                peer("a", &format!("9.16.{}.{}", n >> 8, n & 255), &networks.each_ref().map(|it| &**it))
            });
            let routes = Routes::new(peers.collect());
            let own = |n: usize| (routes.sole[n].v4.1, routes.sole[n].v6.1 >> 64);
            prop_assert!((0..usize::from(count)).all(|n| own(n) == (0xffff_ff00, u128::from(u64::MAX))));
        }
    }
}
