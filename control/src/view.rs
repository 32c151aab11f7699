//! The pipeline's output: one immutable [`View`] per change.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use acl::{AddressMap, Rule, Table};
use domain_names::DomainPattern;
use ipnet::IpNet;

use crate::membership::PeerSets;
use crate::model::{DeniedReply, HostPort, Key, PodKey, Protocol};
use crate::services::ServiceView;

/// The ACL of one direction of a pod.
#[derive(Clone, Debug, Default)]
pub enum PodAcl {
    /// No policy selects the pod for this direction: everything is permitted.
    #[default]
    Open,
    /// The compiled rules; pods with equal rules share one table. A lookup always
    /// finds a rule: the last one matches everything.
    Table(Arc<Table>),
}

impl PodAcl {
    /// Whether both are open, or the same table.
    pub fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Open, Self::Open) => true,
            (Self::Table(one), Self::Table(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }

    /// The same of both directions, where there are any.
    pub fn are_same(some: Option<&[Self; 2]>, others: Option<&[Self; 2]>) -> bool {
        match (some, others) {
            (Some(some), Some(others)) => {
                some.iter().zip(others).all(|(one, other)| one.is_same(other))
            }
            (some, others) => some.is_none() && others.is_none(),
        }
    }
}

/// A pod whose tables this view holds.
#[derive(Clone, Debug)]
pub struct PodView {
    /// The node the pod runs on, as `spec.nodeName` says.
    pub node: Arc<str>,
    /// The pod's addresses; never empty.
    pub addresses: Vec<IpAddr>,
    /// ACL of connections towards the pod (its ingress in Kubernetes); the peer is the source of
    /// the packet.
    pub to_pod: PodAcl,
    /// ACL of connections that the pod opens (its egress in Kubernetes); the peer is the
    /// destination of the packet.
    pub from_pod: PodAcl,
    /// The domain names of its egress rules, sorted: its DNS answers give their addresses.
    pub names: Arc<[DomainPattern]>,
    /// Ports of its node that lead to it.
    pub host_ports: Arc<[HostPort]>,
    /// The reply where its policies deny.
    pub denied_reply: DeniedReply,
    /// `to_pod` and `from_pod` if staged policies were enforced; `None` if that changes nothing.
    pub staged: Option<[PodAcl; 2]>,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ClusterNode {
    /// All addresses of `status.addresses` that are IP addresses.
    pub addresses: Vec<IpAddr>,
    /// `spec.podCIDRs` (or `spec.podCIDR` where the list is absent).
    pub pod_cidrs: Vec<IpNet>,
    /// Its label `topology.kubernetes.io/zone`.
    pub zone: Option<Arc<str>>,
}

/// A ClusterHostFirewall that selects this node. It permits a connection by the first rule
/// that matches, which there always is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostFirewall {
    /// Its name.
    pub name: Arc<str>,
    /// Whether it leaves the failsafe ports open.
    pub failsafe: bool,
    /// About what comes to the node itself; the peer is the source.
    pub ingress: Arc<[Rule]>,
    /// About what its own processes open; the peer is the destination.
    pub egress: Arc<[Rule]>,
}

/// A ClusterHostFirewall, compiled. A lookup always finds a rule.
#[derive(Clone, Debug)]
pub struct HostAcl {
    /// Its name.
    pub name: Arc<str>,
    /// Whether it leaves the failsafe ports open.
    pub failsafe: bool,
    /// ACL of connections to the node itself; the peer is the source of the packet.
    pub ingress: Arc<Table>,
    /// ACL of connections that its own processes open; the peer is the destination of the packet.
    pub egress: Arc<Table>,
}

/// A pod on the host network of this node that policies select.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPod {
    /// Its namespace and name.
    pub key: PodKey,
    /// The node's ports that are the pod's, sorted.
    pub ports: Arc<[(Protocol, u16)]>,
    /// About connections to these ports; the peer is the source. The last rule matches everything.
    pub ingress: Arc<[Rule]>,
}

/// Rules for the sockets of a pod on the host network.
#[derive(Clone, Debug)]
pub struct HostSockets {
    /// About what it opens; the peer is the destination.
    pub opens: PodAcl,
    /// About what it accepts; the peer is the source.
    pub accepts: PodAcl,
}

impl HostSockets {
    /// Whether both are the same, and not only equal.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.opens.is_same(&other.opens) && self.accepts.is_same(&other.accepts)
    }
}

/// Everything the dataplane needs from the control side, immutable.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// Incremented with each published view, from 1.
    pub generation: u64,
    /// Maps addresses to the identities the tables were compiled for.
    pub addresses: Arc<AddressMap>,
    /// The same for connections that are open: addresses of names that have expired are still in
    /// the sets which they were in.
    pub live_addresses: Arc<AddressMap>,
    /// The pods of the nodes in scope that have an address, are not finished
    /// and are not on the host network.
    pub pods: Arc<BTreeMap<PodKey, Arc<PodView>>>,
    /// All nodes.
    pub nodes: Arc<BTreeMap<Arc<str>, Arc<ClusterNode>>>,
    /// The content of every peer set; empty unless [`Control::list_peer_sets`](crate::Control::list_peer_sets)
    /// was called.
    pub peer_sets: Arc<PeerSets>,
    /// The host firewalls that select this node, by name.
    pub host_firewalls: Arc<[HostFirewall]>,
    /// Pods on the host network of this node that policies select, by name; empty unless
    /// [`Control::enforce_host_network`](crate::Control::enforce_host_network) was called.
    pub host_pods: Arc<[HostPod]>,
    /// Rules for the sockets of the pods on the host network of this node that policies select; empty unless
    /// [`Control::enforce_host_sockets`](crate::Control::enforce_host_sockets) was called.
    pub host_sockets: Arc<BTreeMap<PodKey, HostSockets>>,
    /// Rules of egress firewalls for the whole cluster about clients outside whom services lead to
    /// addresses that are no pods'; the peer is the destination.
    pub outside: PodAcl,
    /// For each node in scope that host firewalls select, what they say together about connections that services
    /// lead to its own processes (the peer is the source), and that these open by services (the peer is the
    /// destination).
    pub host_services: Arc<BTreeMap<Arc<str>, [PodAcl; 2]>>,
    /// The host firewalls that select each node, by name; empty unless the scope is
    /// [`Scope::All`](crate::Scope::All).
    pub host_acls: Arc<BTreeMap<Arc<str>, Vec<HostAcl>>>,
    /// All services with their endpoints.
    pub services: Arc<BTreeMap<Key, Arc<ServiceView>>>,
}

impl View {
    /// Whether it has rules about the node itself.
    pub fn has_host_rules(&self) -> bool {
        !self.host_firewalls.is_empty() || !self.host_pods.is_empty()
    }
}
