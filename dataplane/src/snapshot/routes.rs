//! Routes to other cluster nodes.

use acl::{Address, PrefixMap};
use ahash::AHashMap;
use ipnet::IpNet;

use crate::wire::Mac;

/// Another cluster node, and the path to its pods.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Peer {
    /// Name of the cluster node.
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
    /// Smallest hop limit that its tunnel packets arrive with: 255 where it is a neighbour on the
    /// uplink's link (RFC 5082), 0 where routers stand in between.
    pub least_hop_limit: u8,
}

/// Longest prefix match over the networks and addresses of other cluster nodes.
#[derive(Clone, Debug, Default)]
pub struct Routes {
    peers: Vec<Peer>,
    networks: PrefixMap,
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
        Self { networks: PrefixMap::new(&networks), peers, nodes }
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

    /// Whether `address` is in another cluster node's pod networks.
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

#[cfg(test)]
mod tests {
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
}
