//! Derives from the objects the other nodes as programs know them, and the peers of the device.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use control::ClusterNode;
use control::model::WireGuard;
use encryption::Node;
use ipnet::IpNet;
use linux_net::{WireGuardKey, WireGuardPeer};

use super::holders::{Holders, keys, publishers};

/// Nodes by name.
pub(super) type Nodes = BTreeMap<Arc<str>, Arc<ClusterNode>>;
/// Keys and ports that nodes publish, by name.
pub(super) type Published = BTreeMap<Arc<str>, WireGuard>;

/// Interval of keepalives of peers whose session is to begin without a packet, in seconds.
const KEEPALIVE: u16 = 5;

/// The desired state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// The other nodes.
    pub(super) nodes: Vec<(Arc<str>, Node)>,
    /// This node.
    pub(super) own: Node,
    /// The device's peers, and their nodes.
    pub(super) peers: Vec<(Arc<str>, WireGuardPeer)>,
    /// Those of the second device: the nodes that change their key, or all of them while this one does.
    pub(super) second: Vec<(Arc<str>, WireGuardPeer)>,
    /// Nodes that have changed their key, so that what is sent to them takes the first device again.
    pub(super) changed: BTreeSet<Arc<str>>,
    /// Nodes that nothing is sent to, each with the reason.
    pub(super) without: BTreeMap<Arc<str>, String>,
    /// Whether tunnels are of IPv4, which is of the nodes' first addresses.
    pub(super) is_v4: bool,
}

impl Plan {
    /// The plan of the node `name`, which publishes `own_keys`.
    pub(super) fn of(
        nodes: &Nodes,
        name: &str,
        published: &Published,
        own_keys: &WireGuard,
        is_routed: bool,
        holders: &Holders,
    ) -> Self {
        let own = nodes.get(name);
        let own_addresses = own.map_or(&[][..], |own| &own.addresses);
        // As `snapshot::peers` chooses tunnels' ends.
        let is_v4 = own_addresses.first().is_some_and(IpAddr::is_ipv4);
        let mut plan = Self {
            own: Node {
                addresses: own_addresses.to_vec(),
                networks: own.map(|own| own.pod_cidrs.clone()).unwrap_or_default(),
                ..Node::default()
            },
            is_v4,
            ..Self::default()
        };
        let publishers = publishers(published);
        let mut taken: BTreeMap<IpNet, &str> =
            own_addresses.iter().map(|address| (IpNet::from(*address), name)).collect();
        taken.extend(plan.own.networks.iter().map(|network| (network.trunc(), name)));
        for (other, node) in nodes.iter().filter(|(other, _)| ***other != *name) {
            let keys = published.get(other);
            let peer = keys
                .ok_or_else(|| "it publishes no key".to_owned())
                .and_then(|it| sole(other, it, &publishers, own_keys, holders))
                .and_then(|it| Ok((it, peer(node, it, is_v4, is_routed, &taken)?)));
            let node = Node {
                addresses: node.addresses.clone(),
                networks: node.pod_cidrs.clone(),
                has_peer: peer.is_ok(),
                host_network: own_keys.host_network && keys.is_some_and(|it| it.host_network),
                ..Node::default()
            };
            plan.nodes.push((Arc::clone(other), node));
            match peer {
                Ok((keys, mut peer)) => {
                    taken.extend(peer.networks.iter().map(|network| (*network, &**other)));
                    if own_keys.next.is_some() || keys.next.is_some() {
                        peer.keepalive = KEEPALIVE;
                        plan.second.push((Arc::clone(other), second(&peer, keys)));
                    }
                    if is_changed(own_keys) && is_changed(keys) {
                        plan.changed.insert(Arc::clone(other));
                    }
                    plan.peers.push((Arc::clone(other), peer));
                }
                Err(why) => {
                    plan.without.insert(Arc::clone(other), why);
                }
            }
        }
        plan
    }

    /// Whether any node is known, this one among them.
    pub(super) fn is_known(&self) -> bool {
        !self.nodes.is_empty() || !self.own.networks.is_empty()
    }
}

/// Whether a node uses the last key that it publishes.
fn is_changed(keys: &WireGuard) -> bool {
    keys.next.is_none_or(|next| next == keys.public_key)
}

/// The peer of the second device for that of the first one.
fn second(peer: &WireGuardPeer, keys: &WireGuard) -> WireGuardPeer {
    WireGuardPeer {
        public_key: keys.next.unwrap_or(keys.public_key),
        endpoint: SocketAddr::new(peer.endpoint.ip(), peer.endpoint.port().saturating_add(1)),
        ..peer.clone()
    }
}

/// Refuses what a node publishes if another one publishes the same key, unless the key is known to
/// be this node's.
fn sole<'p>(
    node: &str,
    wireguard: &'p WireGuard,
    publishers: &BTreeMap<WireGuardKey, Vec<&Arc<str>>>,
    own: &WireGuard,
    holders: &Holders,
) -> Result<&'p WireGuard, String> {
    if keys(wireguard).any(|key| key == own.public_key || Some(key) == own.next) {
        return Err("it publishes this node's key".to_owned());
    }
    let others = keys(wireguard).filter(|key| holders.holder(key) != Some(node));
    let held = { others.clone() }.find_map(|key| holders.holder(&key));
    let mut same = others.filter_map(|key| publishers.get(&key)).flatten().map(|it| &***it);
    match held.or_else(|| same.find(|other| *other != node)) {
        Some(other) => Err(format!("it publishes the same key as Node {other}")),
        None => Ok(wireguard),
    }
}

/// A node's peer, unless another node has one of its networks already: the device would take it from that one.
fn peer(
    node: &ClusterNode,
    wireguard: &WireGuard,
    is_v4: bool,
    is_routed: bool,
    taken: &BTreeMap<IpNet, &str>,
) -> Result<WireGuardPeer, String> {
    let endpoint = node.addresses.iter().find(|it| it.is_ipv4() == is_v4);
    let endpoint = endpoint.ok_or("it has no address of this node's family")?;
    let pods = node.pod_cidrs.iter().map(IpNet::trunc).filter(|_| is_routed);
    let networks: BTreeSet<IpNet> =
        node.addresses.iter().map(|it| IpNet::from(*it)).chain(pods).collect();
    let clash = networks.iter().find_map(|ours| {
        let (theirs, other) = overlapping(ours, taken)?;
        Some(format!("its {ours} and {theirs} of Node {other} overlap"))
    });
    match clash {
        Some(clash) => Err(clash),
        None => Ok(WireGuardPeer {
            public_key: wireguard.public_key,
            endpoint: SocketAddr::new(*endpoint, wireguard.port),
            networks,
            keepalive: 0,
        }),
    }
}

/// A network that has addresses of `network`, if there is one.
fn overlapping<'t>(
    network: &IpNet,
    taken: &'t BTreeMap<IpNet, &str>,
) -> Option<(&'t IpNet, &'t str)> {
    let around = (0..=network.prefix_len()).filter_map(|length| {
        let around = IpNet::new(network.addr(), length).ok()?.trunc();
        taken.get_key_value(&around)
    });
    // In their order, those inside follow the network.
    let inside = taken.range(*network..).take(1).filter(|(theirs, _)| network.contains(*theirs));
    around.chain(inside).next().map(|(theirs, other)| (theirs, *other))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use linux_net::WireGuardPeerState;

    use super::*;

    fn node(addresses: &[&str], network: &str) -> Arc<ClusterNode> {
        Arc::new(ClusterNode {
            addresses: addresses.iter().map(|it| it.parse().unwrap()).collect(),
            pod_cidrs: vec![network.parse().unwrap()],
            zone: None,
        })
    }

    fn nodes() -> Nodes {
        [
            ("a", node(&["192.0.2.1", "2001:db8::1"], "10.1.0.0/24")),
            ("b", node(&["2001:db8::2", "192.0.2.2"], "10.2.0.0/24")),
            ("c", node(&["192.0.2.3"], "10.3.0.0/24")),
        ]
        .map(|(name, node)| (name.into(), node))
        .into()
    }

    fn keys(keys: &[(&str, u8)]) -> BTreeMap<Arc<str>, WireGuard> {
        let key = |(name, key): &(&str, u8)| ((*name).into(), published(*key));
        keys.iter().map(key).collect()
    }

    fn published(key: u8) -> WireGuard {
        WireGuard { public_key: [key; 32], port: 7, next: None, host_network: false }
    }

    fn plan(nodes: &Nodes, given: &[(&str, u8)], is_routed: bool) -> Plan {
        Plan::of(nodes, "a", &keys(given), &published(1), is_routed, &Holders::default())
    }

    #[test]
    fn a_node_that_changes_its_key_is_a_peer_of_the_second_device_as_well() {
        let mut given = keys(&[("a", 1), ("b", 2), ("c", 3)]);
        let b = |given: &mut Published, now: u8, next: Option<u8>| {
            let next = next.map(|key| [key; 32]);
            given.insert("b".into(), WireGuard { next, ..published(now) });
        };
        let of = |given: &Published, own: &WireGuard| {
            Plan::of(&nodes(), "a", given, own, false, &Holders::default())
        };
        assert!(of(&given, &published(1)).second.is_empty());
        b(&mut given, 2, Some(9));
        let plan = of(&given, &published(1));
        let [(name, second)] = &plan.second[..] else { panic!("{plan:?}") };
        assert_eq!((&**name, second.public_key), ("b", [9; 32]));
        assert_eq!(second.endpoint, "192.0.2.2:8".parse().unwrap());
        assert_eq!((plan.peers[0].1.public_key, second.keepalive), ([2; 32], KEEPALIVE));
        assert_eq!(second.networks, plan.peers[0].1.networks);
        assert!(!plan.changed.contains("b"), "{plan:?}");
        b(&mut given, 9, Some(9));
        let plan = of(&given, &published(1));
        assert_eq!((plan.second.len(), plan.peers[0].1.public_key), (1, [9; 32]));
        assert!(plan.changed.contains("b"), "{plan:?}");
        // While this node changes its own, everyone is.
        let own = WireGuard { next: Some([8; 32]), ..published(1) };
        let plan = of(&given, &own);
        assert_eq!((plan.second.len(), plan.changed.len()), (2, 0));
        // A key that another one has or goes to.
        for taken in [1, 3, 8] {
            b(&mut given, 2, Some(taken));
            assert!(of(&given, &own).without.contains_key("b"), "{taken}");
        }
    }

    #[test]
    fn processes_of_nodes_speak_encrypted_where_both_nodes_say_so() {
        let mut given = keys(&[("a", 1), ("b", 2), ("c", 3)]);
        given.get_mut("b").unwrap().host_network = true;
        let hosts = |own: bool| {
            let own = WireGuard { host_network: own, ..published(1) };
            let plan = Plan::of(&nodes(), "a", &given, &own, false, &Holders::default());
            plan.nodes.iter().map(|(_, node)| node.host_network).collect::<Vec<_>>()
        };
        assert_eq!((hosts(false), hosts(true)), (vec![false, false], vec![true, false]));
    }

    #[test]
    fn peers_have_their_nodes_addresses_and_where_routed_its_pods() {
        for is_routed in [false, true] {
            let plan = plan(&nodes(), &[("a", 1), ("b", 2), ("c", 3)], is_routed);
            let [(_, b), (_, c)] = &plan.peers[..] else { panic!("{plan:?}") };
            assert_eq!(b.endpoint, "192.0.2.2:7".parse().unwrap(), "of this node's family");
            let addresses = ["192.0.2.2/32", "2001:db8::2/128"];
            let pods = is_routed.then_some("10.2.0.0/24");
            let networks = addresses.into_iter().chain(pods).map(|it| it.parse().unwrap());
            assert_eq!(b.networks, networks.collect());
            assert_eq!(c.public_key, [3; 32]);
            assert!(plan.without.is_empty() && plan.nodes.iter().all(|(_, it)| it.has_peer));
        }
    }

    #[test]
    fn nothing_is_sent_to_a_node_whose_key_is_not_its_own() {
        let why = |given: &[(&str, u8)]| {
            let plan = plan(&nodes(), given, true);
            assert_eq!(plan.nodes.len(), 2, "what goes to them is known");
            plan.without.into_iter().map(|(node, why)| format!("{node}: {why}")).collect::<Vec<_>>()
        };
        assert_eq!(why(&[("b", 2)]), ["c: it publishes no key"]);
        assert_eq!(why(&[("b", 1), ("c", 3)]), ["b: it publishes this node's key"]);
        let both =
            ["b: it publishes the same key as Node c", "c: it publishes the same key as Node b"];
        assert_eq!(why(&[("b", 2), ("c", 2)]), both);
    }

    #[test]
    fn a_key_is_the_nodes_that_had_it_before_another_one_published_it() {
        let without = |given: &Published, holders: &Holders| {
            let plan = Plan::of(&nodes(), "a", given, &published(1), false, holders);
            plan.without.into_iter().map(|(node, why)| format!("{node}: {why}")).collect::<Vec<_>>()
        };
        let (alone, both) = (keys(&[("c", 2)]), keys(&[("b", 2), ("c", 2)]));
        let mut holders = Holders::default();
        holders.follow(&nodes(), &alone);
        holders.follow(&nodes(), &both);
        let refused = ["b: it publishes the same key as Node c"];
        assert_eq!(without(&both, &holders), refused, "c was alone with it");
        let only_b = keys(&[("b", 2)]);
        holders.follow(&nodes(), &only_b);
        assert_eq!(
            without(&only_b, &holders),
            ["c: it publishes no key"],
            "it has another one now"
        );
        // The one that it changes to as well: it is published before there is a session.
        let mut given = keys(&[("b", 2), ("c", 3)]);
        let next = Some([9; 32]);
        given.insert("b".into(), WireGuard { next, ..published(2) });
        let mut holders = Holders::default();
        holders.follow(&nodes(), &given);
        given.insert("c".into(), WireGuard { next, ..published(3) });
        holders.follow(&nodes(), &given);
        assert_eq!(without(&given, &holders), ["c: it publishes the same key as Node b"]);
        // Who had a session keeps its key while it does not publish it, and over a restart.
        let peer = |networks: [&str; 1], age| WireGuardPeerState {
            public_key: [2; 32],
            networks: networks.map(|it| it.parse().unwrap()).into(),
            handshake_age: age,
            ..WireGuardPeerState::default()
        };
        let (refused, age) = ("b: it publishes the same key as Node c", Some(Duration::ZERO));
        let mut holders = Holders::default();
        holders.had_peers(&nodes(), &[peer(["192.0.2.3/32"], None)]);
        holders.follow(&nodes(), &both);
        assert_eq!(without(&both, &holders).len(), 2, "nobody knows");
        holders.had_peers(&nodes(), &[peer(["192.0.2.3/32"], age)]);
        for given in [&both, &only_b, &both] {
            holders.follow(&nodes(), given);
            assert_eq!(without(given, &holders)[0], refused);
        }
        holders.had_session([2; 32], &"b".into());
        assert_eq!(without(&both, &holders), [refused], "a session is had by one node");
    }

    #[test]
    fn a_node_that_claims_anothers_addresses_or_pods_is_refused() {
        let given = [("b", 2), ("c", 3), ("d", 4)];
        for (claimed, network) in [
            ("192.0.2.2", "10.4.0.0/24"),
            ("192.0.2.1", "10.4.0.0/24"),
            ("192.0.2.4", "10.2.0.0/16"),
            ("192.0.2.4", "10.1.0.0/25"),
            ("10.3.0.7", "10.4.0.0/24"),
        ] {
            let mut nodes = nodes();
            nodes.insert("d".into(), node(&[claimed], network));
            let plan = plan(&nodes, &given, true);
            assert_eq!(plan.peers.len(), 2, "{claimed} {network}");
            assert!(plan.without["d"].contains("overlap"), "{:?}", plan.without);
        }
    }
}
