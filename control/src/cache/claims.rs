//! Nodes that claim one address or network, and pods at addresses of others.
//!
//! The kubelet of a node writes the addresses of its Node object and those of its pods, so a node
//! that was taken over, or an object that is out of date, may name anybody's. One claim stands;
//! whoever loses has neither the address nor its network, and the fault names both objects.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::{Cache, Change};
use crate::model::{Node, Pod};
use crate::{Fault, FieldFault, Kind, ObjectRef};

/// What nodes claim.
#[derive(Debug, Default)]
pub(super) struct Claims {
    addresses: BTreeMap<IpAddr, Vec<Claim>>,
    /// Pod networks.
    networks: BTreeMap<IpNet, Vec<Claim>>,
    /// Number of the networks of each prefix length.
    lengths: BTreeMap<u8, usize>,
    /// The claims that do not stand, by node.
    refused: BTreeMap<Arc<str>, Vec<FieldFault>>,
    /// Number of the event, or of the list, that is applied.
    event: u64,
    /// The node of this switch, whose claims stand.
    own: Option<Arc<str>>,
    /// What pods are held against may have changed.
    is_stale: bool,
}

/// A node's claim to an address or network.
#[derive(Debug)]
struct Claim {
    node: Arc<str>,
    /// The event with which it began.
    since: u64,
}

/// Orders claims: the greatest one stands.
type Rank<'n> = (bool, bool, Reverse<u64>, Reverse<u32>, Reverse<&'n str>);

impl Cache {
    /// The cache of the switch of a node.
    pub(crate) fn of_node(name: Arc<str>) -> Self {
        Self { claims: Claims { own: Some(name), ..Claims::default() }, ..Self::default() }
    }

    /// Begins an event, or a list: what it brings is claimed at one time.
    pub(crate) fn begin_event(&mut self) {
        self.claims.event += 1;
    }

    /// A node came, went or changed; decides anew about all nodes whose claims that concerns.
    pub(super) fn claim_node(&mut self, before: Option<&Node>, after: Option<&Node>) -> Change {
        let mut concerned: BTreeSet<Arc<str>> =
            before.iter().chain(&after).map(|node| Arc::clone(&node.name)).collect();
        let either = || before.into_iter().chain(after);
        for address in either().flat_map(|node| &node.addresses) {
            self.claims.note_address(*address, before, after);
            let claims = self.claims.addresses.get(address).into_iter().flatten();
            concerned.extend(claims.map(|it| Arc::clone(&it.node)));
        }
        for network in either().flat_map(|node| &node.pod_cidrs).map(IpNet::trunc) {
            self.claims.note_network(network, before, after);
            let claims = self.claims.overlapping(&network).flat_map(|(_, claims)| claims);
            concerned.extend(claims.map(|it| Arc::clone(&it.node)));
            let within = self.claims.addresses.range(network.network()..=network.broadcast());
            concerned.extend(within.flat_map(|(_, claims)| claims).map(|it| Arc::clone(&it.node)));
        }
        let mut changed = Vec::new();
        for name in concerned {
            let replaced = match self.claimed_nodes.get(&name).map(|it| self.with_claims(it)) {
                Some((node, faults)) => {
                    self.claims.set_refused(&name, faults);
                    self.nodes.apply(Arc::clone(&name), node)
                }
                None => {
                    self.claims.refused.remove(&name);
                    self.nodes.delete(&name)
                }
            };
            if replaced.is_some() || either().any(|node| node.name == name) {
                changed.push(name);
            }
        }
        self.claims.is_stale = true;
        Change::Nodes(changed)
    }

    /// The node with those of its claims that stand, and the others.
    fn with_claims(&self, node: &Arc<Node>) -> (Arc<Node>, Vec<FieldFault>) {
        let mut faults = Vec::new();
        let mut stands = |field: &str, what: String, holder: Option<String>| {
            let problem = holder.as_ref().map(|holder| format!("{what} {holder}; it is ignored"));
            faults.extend(problem.map(|problem| FieldFault::new(field, problem)));
            holder.is_none()
        };
        let addresses = node.addresses.iter().copied();
        let addresses: Vec<IpAddr> = addresses
            .filter(|it| stands("status.addresses", it.to_string(), self.holder(node, *it)))
            .collect();
        let networks = node.pod_cidrs.iter().copied();
        let pod_cidrs: Vec<IpNet> = networks
            .filter(|it| stands("spec.podCIDRs", it.to_string(), self.network_holder(node, it)))
            .collect();
        if faults.is_empty() {
            return (Arc::clone(node), faults);
        }
        (Arc::new(Node { addresses, pod_cidrs, ..Node::clone(node) }), faults)
    }

    /// Whose a node's address is, if it is another one's.
    fn holder(&self, node: &Node, address: IpAddr) -> Option<String> {
        if self.claims.own.as_ref() == Some(&node.name) {
            return None;
        }
        let best = self.best(self.claims.addresses.get(&address)?)?;
        if best.node != node.name {
            return Some(format!("is an address of Node {}", best.node));
        }
        // Its kernel has some in its own network.
        let other = self.network_of(address).filter(|other| ***other != *node.name)?;
        Some(format!("is in the pod network of Node {other}"))
    }

    /// Whose a node's network is, if it is another one's.
    fn network_holder(&self, node: &Node, network: &IpNet) -> Option<String> {
        let network = network.trunc();
        let claims = self.claims.networks.get(&network)?;
        let own = claims.iter().find(|it| it.node == node.name)?;
        let all = self.claims.overlapping(&network);
        let better = all.flat_map(|(theirs, claims)| claims.iter().map(move |it| (theirs, it)));
        let better = better.filter(|(_, it)| it.node != own.node && self.rank(it) > self.rank(own));
        let (theirs, holder) = better.max_by_key(|(_, it)| self.rank(it))?;
        Some(format!("and {theirs} of Node {} overlap", holder.node))
    }

    fn best<'c>(&self, claims: &'c [Claim]) -> Option<&'c Claim> {
        claims.iter().max_by_key(|it| self.rank(it))
    }

    /// This node's claim stands, then that of a Ready node, then that which is known for longest,
    /// then that of the node that was created first.
    fn rank<'c>(&self, claim: &'c Claim) -> Rank<'c> {
        let node = self.claimed_nodes.get(&claim.node);
        let is_own = self.claims.own.as_ref() == Some(&claim.node);
        let ready = node.is_some_and(|node| node.ready);
        let created = node.map_or(u32::MAX, |node| node.created);
        (is_own, ready, Reverse(claim.since), Reverse(created), Reverse(&claim.node))
    }

    /// The node that has a pod network around this address. Networks that stand do not overlap.
    fn network_of(&self, address: IpAddr) -> Option<&Arc<str>> {
        let stands = |(network, claim): &(&IpNet, &Claim)| {
            let node = self.claimed_nodes.get(&claim.node);
            node.is_some_and(|node| self.network_holder(node, network).is_none())
        };
        let mut claims = self.claims.around(address);
        let found =
            claims.find_map(|(network, claims)| Some((network, self.best(claims)?)).filter(stands));
        found.map(|(_, claim)| &claim.node)
    }

    /// Why a pod does not have an address of its status: it is another node's, or in another node's
    /// pod network.
    pub(crate) fn foreign(&self, pod: &Pod, address: IpAddr) -> Option<String> {
        // The runtime's word, and objects that no kubelet wrote.
        let node = pod.node.as_ref().filter(|_| !self.is_bound(&pod.key))?;
        if let Some(holder) = self.claims.addresses.get(&address).and_then(|it| self.best(it)) {
            return Some(format!("is an address of Node {}", holder.node));
        }
        let other = self.network_of(address).filter(|other| *other != node)?;
        Some(format!("is in the pod network of Node {other}"))
    }

    /// Whether nodes changed since the last call: pods may be at others' addresses, or no longer.
    pub(crate) fn take_claims_changed(&mut self) -> bool {
        std::mem::take(&mut self.claims.is_stale)
    }

    /// The claims of nodes that do not stand, as faults of the objects.
    pub(crate) fn refused_claims(&self) -> impl Iterator<Item = Fault> {
        self.claims.refused.iter().flat_map(|(name, faults)| {
            let object = ObjectRef { kind: Kind::Node, namespace: None, name: Arc::clone(name) };
            faults.iter().map(move |fault| fault.clone().of(object.clone()))
        })
    }
}

impl Claims {
    fn note_address(&mut self, address: IpAddr, before: Option<&Node>, after: Option<&Node>) {
        let claims = self.addresses.entry(address).or_default();
        note(claims, self.event, before, after.filter(|it| it.addresses.contains(&address)));
        if claims.is_empty() {
            self.addresses.remove(&address);
        }
    }

    fn note_network(&mut self, network: IpNet, before: Option<&Node>, after: Option<&Node>) {
        let is_new = !self.networks.contains_key(&network);
        let has = |node: &&Node| node.pod_cidrs.iter().any(|it| it.trunc() == network);
        let claims = self.networks.entry(network).or_default();
        note(claims, self.event, before, after.filter(has));
        let is_gone = claims.is_empty();
        if is_gone {
            self.networks.remove(&network);
        }
        let count = self.lengths.entry(network.prefix_len()).or_default();
        *count = *count + usize::from(is_new) - usize::from(is_gone);
        if *count == 0 {
            self.lengths.remove(&network.prefix_len());
        }
    }

    /// The claims to networks around an address, from the widest on.
    fn around(&self, address: IpAddr) -> impl Iterator<Item = (&IpNet, &Vec<Claim>)> {
        let around = move |length: &u8| Some(IpNet::new(address, *length).ok()?.trunc());
        self.lengths
            .keys()
            .filter_map(around)
            .filter_map(|network| self.networks.get_key_value(&network))
    }

    /// The networks that have addresses of this one, itself among them.
    fn overlapping(&self, network: &IpNet) -> impl Iterator<Item = (&IpNet, &Vec<Claim>)> {
        let (address, own) = (network.addr(), network.prefix_len());
        let lengths = self.lengths.keys().filter(move |length| **length < own);
        let around =
            lengths.filter_map(move |length| Some(IpNet::new(address, *length).ok()?.trunc()));
        let around = around.filter_map(|network| self.networks.get_key_value(&network));
        // In their order, those inside follow the network.
        let network = *network;
        let inside =
            self.networks.range(network..).take_while(move |(it, _)| network.contains(*it));
        around.chain(inside)
    }

    fn set_refused(&mut self, node: &Arc<str>, faults: Vec<FieldFault>) {
        let known = self.refused.get(node).map_or(&[][..], Vec::as_slice);
        for fault in faults.iter().filter(|fault| !known.contains(fault)) {
            tracing::warn!("Node {node}: {fault}");
        }
        if faults.is_empty() {
            self.refused.remove(node);
        } else {
            self.refused.insert(Arc::clone(node), faults);
        }
    }
}

/// Notes that a node, whose object was `before`, claims or does not claim any more.
fn note(claims: &mut Vec<Claim>, event: u64, before: Option<&Node>, claimant: Option<&Node>) {
    match claimant {
        None => claims.retain(|it| before.is_none_or(|before| it.node != before.name)),
        Some(node) if claims.iter().any(|it| it.node == node.name) => {}
        Some(node) => claims.push(Claim { node: Arc::clone(&node.name), since: event }),
    }
}
