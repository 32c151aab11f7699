//! The nodes that keys belong to.
//!
//! Any node can publish the public key of another one, which it cannot use. A key is the node's
//! that had a session with it, also if the device had that session for an earlier process, and else
//! the node's that was alone in publishing it.

use std::collections::BTreeMap;
use std::iter;
use std::sync::Arc;

use control::model::WireGuard;
use ipnet::IpNet;
use linux_net::{WireGuardKey, WireGuardPeerState};

use super::plan::{Nodes, Published};

#[derive(Clone, Debug, Default)]
pub(super) struct Holders(BTreeMap<WireGuardKey, Holder>);

#[derive(Clone, Debug)]
struct Holder {
    node: Arc<str>,
    had_session: bool,
}

impl Holders {
    /// Follows the nodes and what they publish.
    pub(super) fn follow(&mut self, nodes: &Nodes, published: &Published) {
        self.0.retain(|key, holder| {
            let publishes = |it: &WireGuard| keys(it).any(|it| it == *key);
            if holder.had_session {
                nodes.contains_key(&holder.node)
            } else {
                published.get(&holder.node).is_some_and(publishes)
            }
        });
        for (key, publishers) in publishers(published) {
            if let ([node], None) = (&publishers[..], self.0.get(&key)) {
                self.0.insert(key, Holder { node: Arc::clone(node), had_session: false });
            }
        }
    }

    /// A node had a session with this key.
    pub(super) fn had_session(&mut self, key: WireGuardKey, node: &Arc<str>) {
        let is_known = self.0.get(&key).is_some_and(|holder| holder.had_session);
        if !is_known {
            self.0.insert(key, Holder { node: Arc::clone(node), had_session: true });
        }
    }

    /// The device had these peers for an earlier process.
    pub(super) fn had_peers(&mut self, nodes: &Nodes, peers: &[WireGuardPeerState]) {
        for peer in peers.iter().filter(|peer| peer.handshake_age.is_some()) {
            let is_its = |address| peer.networks.contains(&IpNet::from(address));
            let mut of =
                nodes.iter().filter(|(_, node)| node.addresses.iter().copied().any(is_its));
            if let Some((node, _)) = of.next() {
                self.had_session(peer.public_key, node);
            }
        }
    }

    /// The node that a key belongs to.
    pub(super) fn holder(&self, key: &WireGuardKey) -> Option<&str> {
        self.0.get(key).map(|holder| &*holder.node)
    }
}

/// The keys that a node publishes.
pub(super) fn keys(published: &WireGuard) -> impl Iterator<Item = WireGuardKey> + Clone {
    iter::once(published.public_key).chain(published.next)
}

/// The nodes that publish each key.
pub(super) fn publishers(published: &Published) -> BTreeMap<WireGuardKey, Vec<&Arc<str>>> {
    let mut publishers = BTreeMap::<WireGuardKey, Vec<&Arc<str>>>::new();
    for (node, it) in published {
        keys(it).for_each(|key| {
            let nodes = publishers.entry(key).or_default();
            if nodes.last() != Some(&node) {
                nodes.push(node);
            }
        });
    }
    publishers
}
