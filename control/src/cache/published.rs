//! The addresses that switches publish of their nodes, as far as they count.
//!
//! A node's word opens nothing, and it must not close what is another's: an address that a pod, a
//! service, the API server or another node has is not taken from it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use ahash::RandomState;
use ipnet::IpNet;

use super::Cache;
use crate::addresses::is_special;
use crate::model::{Key, Node, NodeAddresses, WireGuard};
use crate::{Fault, FieldFault, Kind, ObjectRef};

/// The addresses that nodes publish, and those that count.
#[derive(Debug, Default)]
pub(super) struct Published {
    /// The addresses that count, by node; nodes without any are left out.
    taken: BTreeMap<Arc<str>, Vec<IpAddr>>,
    /// Every address that any node publishes.
    claimed: HashSet<IpAddr, RandomState>,
    refused: Vec<Fault>,
    is_stale: bool,
}

/// The addresses that others have.
struct Others<'c> {
    cache: &'c Cache,
    nodes: HashMap<IpAddr, &'c Arc<str>, RandomState>,
    /// Pod networks and the nodes that have them.
    networks: HashMap<IpNet, &'c Arc<str>, RandomState>,
    /// The prefix lengths among them.
    lengths: Vec<u8>,
    services: HashMap<IpAddr, &'c Key, RandomState>,
}

impl Cache {
    /// The addresses that count of those that a node publishes; its object's are not among them.
    pub(crate) fn published(&self, node: &str) -> &[IpAddr] {
        self.published.taken.get(node).map_or(&[], Vec::as_slice)
    }

    /// Iterates over the WireGuard keys and ports that nodes publish; an object without a Node does not count.
    pub(crate) fn wireguard(&self) -> impl Iterator<Item = (&Arc<str>, &WireGuard)> {
        let known = self.node_addresses.values().filter(|it| self.nodes.get(&it.node).is_some());
        known.filter_map(|it| Some((&it.node, it.wireguard.as_ref()?)))
    }

    /// Addresses that are not taken from a node, as faults of the objects.
    pub(crate) fn refused_addresses(&self) -> &[Fault] {
        &self.published.refused
    }

    /// Nodes, or what they publish, changed.
    pub(crate) fn nodes_changed(&mut self) {
        self.published.is_stale = true;
    }

    /// Pods or services came to these addresses or went from them.
    pub(crate) fn addresses_moved<'a>(&mut self, addresses: impl IntoIterator<Item = &'a IpAddr>) {
        let Published { claimed, is_stale, .. } = &mut self.published;
        *is_stale |= addresses.into_iter().any(|address| claimed.contains(address));
    }

    /// A service came, went or changed.
    pub(crate) fn service_changed(&mut self, key: &Key) {
        // One that went may have had an address that was refused.
        self.published.is_stale |= !self.published.refused.is_empty();
        if let Some(service) = self.services.get(key).cloned() {
            self.addresses_moved(service.given_addresses());
        }
    }

    /// Whether the next [`Self::check_published`] decides anything.
    pub(crate) fn is_checking(&self) -> bool {
        self.published.is_stale
    }

    /// Decides anew what counts, if that may have changed; returns the nodes of which something else
    /// counts now. `is_pods` says whether a pod has an address.
    pub(crate) fn check_published(&mut self, is_pods: impl Fn(IpAddr) -> bool) -> Vec<Arc<str>> {
        if !std::mem::take(&mut self.published.is_stale) {
            return Vec::new();
        }
        let before = std::mem::take(&mut self.published);
        let mut now = Published::default();
        if !self.node_addresses.is_empty() {
            let others = Others::of(self);
            for claim in self.node_addresses.values() {
                now.claimed.extend(&claim.addresses);
                let Some(node) = self.nodes.get(&claim.node) else { continue };
                let taken = now.take(node, claim, &others, &is_pods);
                if !taken.is_empty() {
                    now.taken.insert(Arc::clone(&node.name), taken);
                }
            }
        }
        let names = before.taken.keys().chain(now.taken.keys());
        let is_other = |name: &&Arc<str>| before.taken.get(*name) != now.taken.get(*name);
        let mut changed: Vec<Arc<str>> = names.filter(is_other).cloned().collect();
        changed.dedup();
        for fault in now.refused.iter().filter(|fault| !before.refused.contains(fault)) {
            tracing::warn!("{fault}");
        }
        self.published = now;
        changed
    }

    /// Those of a node's addresses that it may publish, [`NodeAddresses::MOST`] at most.
    pub(crate) fn publishable(
        &self,
        node: &str,
        addresses: impl Iterator<Item = IpAddr>,
        is_pods: impl Fn(IpAddr) -> bool,
    ) -> Vec<IpAddr> {
        let Some(node) = self.nodes.get(node) else { return Vec::new() };
        let others = Others::of(self);
        let mut own: Vec<IpAddr> = addresses
            .filter(|it| {
                !node.addresses.contains(it) && others.reason(node, *it, &is_pods).is_none()
            })
            .collect();
        own.sort_unstable();
        own.dedup();
        own.truncate(NodeAddresses::MOST);
        own
    }
}

impl Published {
    /// The addresses that count of a node's; notes the others.
    fn take(
        &mut self,
        node: &Node,
        claim: &NodeAddresses,
        others: &Others<'_>,
        is_pods: &impl Fn(IpAddr) -> bool,
    ) -> Vec<IpAddr> {
        let mut taken = Vec::new();
        for (index, address) in claim.addresses.iter().enumerate() {
            match others.reason(node, *address, is_pods) {
                None if node.addresses.contains(address) => {}
                None => taken.push(*address),
                Some(why) => {
                    let object = ObjectRef {
                        kind: Kind::NodeAddresses,
                        namespace: None,
                        name: Arc::clone(&claim.node),
                    };
                    let field = format!("spec.addresses[{index}]");
                    let problem = format!("{address} {why}; it is ignored");
                    self.refused.push(FieldFault::new(field, problem).of(object));
                }
            }
        }
        taken
    }
}

impl<'c> Others<'c> {
    fn of(cache: &'c Cache) -> Self {
        let mut others = Self {
            cache,
            nodes: HashMap::default(),
            networks: HashMap::default(),
            lengths: Vec::new(),
            services: HashMap::default(),
        };
        for node in cache.nodes.values() {
            others.nodes.extend(node.addresses.iter().map(|it| (*it, &node.name)));
            others.networks.extend(node.pod_cidrs.iter().map(|it| (it.trunc(), &node.name)));
        }
        others.lengths = others.networks.keys().map(IpNet::prefix_len).collect();
        others.lengths.sort_unstable();
        others.lengths.dedup();
        for (key, service) in cache.services.iter() {
            others.services.extend(service.given_addresses().map(|it| (*it, key)));
        }
        others
    }

    /// Why an address is not the node's own.
    fn reason(
        &self,
        node: &Node,
        address: IpAddr,
        is_pods: &impl Fn(IpAddr) -> bool,
    ) -> Option<String> {
        if is_special(address) {
            return Some("is no address that other hosts reach".to_owned());
        }
        if is_pods(address) {
            return Some("is an address of a pod".to_owned());
        }
        if let Some(other) = self.nodes.get(&address).filter(|other| ***other != node.name) {
            return Some(format!("is an address of Node {other}"));
        }
        // The node's kernel has some in its own pod network.
        let network = |length: &u8| IpNet::new(address, *length).ok().map(|it| it.trunc());
        let holders =
            self.lengths.iter().filter_map(network).filter_map(|it| self.networks.get(&it));
        if let Some(other) = holders.into_iter().find(|other| ***other != node.name) {
            return Some(format!("is in the pod network of Node {other}"));
        }
        if let Some(service) = self.services.get(&address) {
            return Some(format!("is an address of Service {service}"));
        }
        let is_own = node.addresses.contains(&address);
        (self.cache.api_server.endpoints.contains(&address) && !is_own)
            .then(|| "is an address of the API server".to_owned())
    }
}
