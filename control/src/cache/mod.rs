//! All objects as the source reported them last, by kind and namespace.
//!
//! ```text
//! namespace ─┬─ labels (its own object's, or just its name if it is only mentioned)
//!            ├─ pods by name
//!            └─ policies by name
//! ```
//!
//! The newest version of an object is the one that counts, with its faults: see
//! [`crate::objects`].

mod bound;
mod claims;
mod listing;
mod published;
mod store;

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use ahash::RandomState;
use bound::Bound;
use claims::Claims;
use published::Published;
use store::Replaced;
pub(crate) use store::Store;

use crate::model::{
    ClusterEgressFirewall, ClusterHostFirewall, ClusterNetworkPolicy, DeniedReply, EndpointSlice,
    Key, Labels, Namespace, NetworkPolicy, Node, NodeAddresses, Pod, Service, Stage,
};
use crate::objects::shared_set;
use crate::{Kind, Object, ObjectRef, PodKey};

/// Every object known.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    namespaces: BTreeMap<Arc<str>, NamespaceEntry>,
    /// The nodes with those of their addresses and networks that are no other one's.
    nodes: Store<Arc<str>, Node>,
    /// The nodes as the source reported them.
    claimed_nodes: Store<Arc<str>, Node>,
    claims: Claims,
    /// By name, then kind: the order of equal priorities.
    cluster_policies: Store<(Arc<str>, Kind), ClusterNetworkPolicy>,
    firewalls: Store<Arc<str>, ClusterEgressFirewall>,
    host_firewalls: Store<Arc<str>, ClusterHostFirewall>,
    node_addresses: Store<Arc<str>, NodeAddresses>,
    published: Published,
    api_server: ApiServer,
    services: Store<Key, Service>,
    endpoint_slices: Store<Key, EndpointSlice>,
    /// Addresses of local pods, bound before the API has them.
    bound: HashMap<PodKey, Bound, RandomState>,
    /// Numbers of the objects that share a store with others: status asks with every event.
    sizes: BTreeMap<Kind, usize>,
}

/// A namespace and its objects; exists while it has a Namespace object or any other.
#[derive(Debug)]
pub(crate) struct NamespaceEntry {
    /// Its labels; the name label is always among them.
    pub(crate) labels: Arc<Labels>,
    /// Whether its object could be read to the end, if it has one.
    pub(crate) complete: bool,
    /// Its object's reply to denials.
    pub(crate) denied_reply: Option<DeniedReply>,
    /// The stage that its object gives its policies.
    pub(crate) stage: Option<Stage>,
    /// Whether there is a Namespace object.
    explicit: bool,
    /// Its pods by name.
    pub(crate) pods: Store<Arc<str>, Pod>,
    /// Its policies by name.
    pub(crate) policies: Store<Arc<str>, NetworkPolicy>,
}

/// The effect of an event on the cache.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// None.
    None,
    /// The labels of a namespace, whether they could be read, or its stage, which was this one.
    Namespace(Arc<str>, Option<Stage>),
    /// A pod, before and after.
    Pod(PodKey, Replaced<Pod>),
    /// A policy, before and after.
    NetworkPolicy(Option<Arc<NetworkPolicy>>, Option<Arc<NetworkPolicy>>),
    /// A cluster policy, before and after.
    ClusterNetworkPolicy(Option<Arc<ClusterNetworkPolicy>>, Option<Arc<ClusterNetworkPolicy>>),
    /// Nodes that came, went or changed, or have other addresses or networks.
    Nodes(Vec<Arc<str>>),
    /// The addresses that a node publishes.
    NodeAddresses,
    /// An egress firewall, before and after.
    ClusterEgressFirewall(Option<Arc<ClusterEgressFirewall>>, Option<Arc<ClusterEgressFirewall>>),
    /// A host firewall, before and after.
    ClusterHostFirewall(Option<Arc<ClusterHostFirewall>>, Option<Arc<ClusterHostFirewall>>),
    /// A service.
    Service(Key),
    /// Endpoint slices: the services that may have other endpoints.
    Endpoints(Vec<Key>),
}

/// The addresses of the API server, sorted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ApiServer {
    /// Those of its service and endpoints.
    pub(crate) endpoints: Arc<[IpAddr]>,
    /// The same, and all that the nodes have that an endpoint is on.
    pub(crate) hosts: Arc<[IpAddr]>,
}

/// Namespace and name of the service that is the API server's.
const API_SERVER: (&str, &str) = ("default", "kubernetes");

impl NamespaceEntry {
    fn mentioned(name: &Arc<str>) -> Self {
        Self {
            labels: Namespace::new(Arc::clone(name), &Labels::default()).labels,
            complete: true,
            denied_reply: None,
            stage: None,
            explicit: false,
            pods: Store::default(),
            policies: Store::default(),
        }
    }

    fn is_needless(&self) -> bool {
        !self.explicit && self.pods.is_empty() && self.policies.is_empty()
    }
}

impl Cache {
    /// Adds or replaces an object.
    pub(crate) fn apply(&mut self, object: Object) -> Change {
        let change = match object {
            Object::Namespace(namespace) => return self.apply_namespace(&namespace),
            Object::Pod(mut pod) => {
                let labels = shared_set(&pod.labels);
                if !Arc::ptr_eq(&labels, &pod.labels) {
                    Arc::make_mut(&mut pod).labels = labels;
                }
                let key = pod.key.clone();
                let pods = &mut self.entry(&key.namespace).pods;
                pods.apply(Arc::clone(&key.name), pod).map(|it| Change::Pod(key, it))
            }
            Object::NetworkPolicy(policy) => {
                let policies = &mut self.entry(&policy.key.namespace).policies;
                let replaced = policies.apply(Arc::clone(&policy.key.name), policy);
                replaced.map(|(before, after)| Change::NetworkPolicy(before, after))
            }
            Object::ClusterNetworkPolicy(policy) => {
                let name = (Arc::clone(&policy.name), policy.kind);
                let replaced = self.cluster_policies.apply(name, policy);
                replaced.map(|(before, after)| Change::ClusterNetworkPolicy(before, after))
            }
            Object::Node(node) => {
                let replaced = self.claimed_nodes.apply(Arc::clone(&node.name), node);
                replaced.map(|(before, after)| self.claim_node(before.as_deref(), after.as_deref()))
            }
            Object::NodeAddresses(addresses) => {
                let name = Arc::clone(&addresses.node);
                let replaced = self.node_addresses.apply(name, addresses);
                replaced.map(|_| Change::NodeAddresses)
            }
            Object::ClusterEgressFirewall(firewall) => {
                let replaced = self.firewalls.apply(Arc::clone(&firewall.name), firewall);
                replaced.map(|(before, after)| Change::ClusterEgressFirewall(before, after))
            }
            Object::ClusterHostFirewall(firewall) => {
                let replaced = self.host_firewalls.apply(Arc::clone(&firewall.name), firewall);
                replaced.map(|(before, after)| Change::ClusterHostFirewall(before, after))
            }
            Object::Service(service) => {
                let key = service.key.clone();
                self.services.apply(key.clone(), service).map(|_| Change::Service(key))
            }
            Object::EndpointSlice(slice) => {
                let replaced = self.endpoint_slices.apply(slice.key.clone(), slice);
                replaced.map(|(before, after)| services_of(before.iter().chain(&after)))
            }
        };
        self.counted(change)
    }

    fn apply_namespace(&mut self, namespace: &Namespace) -> Change {
        let labels = shared_set(&namespace.labels);
        let entry = self.entry(&namespace.name);
        let is_new = !entry.explicit;
        let same = entry.labels == labels
            && entry.complete == namespace.complete
            && entry.denied_reply == namespace.denied_reply
            && entry.stage == namespace.stage;
        (entry.explicit, entry.labels, entry.complete) = (true, labels, namespace.complete);
        entry.denied_reply = namespace.denied_reply;
        let stage = std::mem::replace(&mut entry.stage, namespace.stage);
        *self.sizes.entry(Kind::Namespace).or_default() += usize::from(is_new);
        if same { Change::None } else { Change::Namespace(Arc::clone(&namespace.name), stage) }
    }

    /// Removes an object, if it is known.
    pub(crate) fn delete(&mut self, reference: &ObjectRef) -> Change {
        let name = &reference.name;
        let namespace = reference.namespace.clone().unwrap_or_else(|| "default".into());
        let key = Key { namespace: Arc::clone(&namespace), name: Arc::clone(name) };
        let change = match reference.kind {
            Kind::Namespace => self.delete_namespace(name),
            Kind::Pod => {
                let entry = self.namespaces.get_mut(&namespace);
                let replaced = entry.and_then(|entry| entry.pods.delete(name));
                let key = PodKey { namespace, name: Arc::clone(name) };
                replaced.map(|replaced| Change::Pod(key, replaced))
            }
            Kind::NetworkPolicy => {
                let entry = self.namespaces.get_mut(&namespace);
                let replaced = entry.and_then(|entry| entry.policies.delete(name));
                replaced.map(|(before, after)| Change::NetworkPolicy(before, after))
            }
            Kind::ClusterNetworkPolicy
            | Kind::AdminNetworkPolicy
            | Kind::BaselineAdminNetworkPolicy => {
                let replaced = self.cluster_policies.delete(&(Arc::clone(name), reference.kind));
                replaced.map(|(before, after)| Change::ClusterNetworkPolicy(before, after))
            }
            Kind::Node => {
                let replaced = self.claimed_nodes.delete(name);
                replaced.map(|(before, after)| self.claim_node(before.as_deref(), after.as_deref()))
            }
            Kind::ClusterEgressFirewall => {
                let replaced = self.firewalls.delete(name);
                replaced.map(|(before, after)| Change::ClusterEgressFirewall(before, after))
            }
            Kind::ClusterHostFirewall => {
                let replaced = self.host_firewalls.delete(name);
                replaced.map(|(before, after)| Change::ClusterHostFirewall(before, after))
            }
            Kind::NodeAddresses => self.node_addresses.delete(name).map(|_| Change::NodeAddresses),
            Kind::Service => self.services.delete(&key).map(|_| Change::Service(key)),
            Kind::EndpointSlice => {
                let replaced = self.endpoint_slices.delete(&key);
                replaced.map(|(before, _)| services_of(before.iter()))
            }
        };
        let namespace = reference.namespace.as_ref().unwrap_or(name);
        if self.namespaces.get(namespace).is_some_and(NamespaceEntry::is_needless) {
            self.namespaces.remove(namespace);
        }
        self.counted(change)
    }

    fn delete_namespace(&mut self, name: &Arc<str>) -> Option<Change> {
        let entry = self.namespaces.get_mut(name).filter(|entry| entry.explicit)?;
        let bare = NamespaceEntry::mentioned(name);
        let same = entry.labels == bare.labels
            && entry.complete
            && entry.denied_reply.is_none()
            && entry.stage.is_none();
        (entry.explicit, entry.labels, entry.complete) = (false, bare.labels, true);
        entry.denied_reply = None;
        let stage = entry.stage.take();
        *self.sizes.entry(Kind::Namespace).or_default() -= 1;
        (!same).then(|| Change::Namespace(Arc::clone(name), stage))
    }

    /// A change, whose objects are counted.
    fn counted(&mut self, change: Option<Change>) -> Change {
        let change = change.unwrap_or(Change::None);
        let (kind, before, after) = match &change {
            Change::Pod(_, (before, after)) => (Kind::Pod, before.is_some(), after.is_some()),
            Change::NetworkPolicy(before, after) => {
                (Kind::NetworkPolicy, before.is_some(), after.is_some())
            }
            Change::ClusterNetworkPolicy(before, after) => {
                let Some(policy) = after.as_ref().or(before.as_ref()) else { return change };
                (policy.kind, before.is_some(), after.is_some())
            }
            _ => return change,
        };
        let count = self.sizes.entry(kind).or_default();
        *count = *count + usize::from(after) - usize::from(before);
        change
    }

    /// Gives memory back that is unused after a list of a namespace's objects, which comes in order.
    pub(crate) fn pack_namespace(&mut self, name: &str) {
        if let Some(entry) = self.namespaces.get_mut(name) {
            entry.pods.pack();
            entry.policies.pack();
        }
    }

    /// The same of a list of objects of the whole cluster, and of services.
    pub(crate) fn pack(&mut self) {
        self.nodes.pack();
        self.claimed_nodes.pack();
        self.services.pack();
        self.endpoint_slices.pack();
    }

    /// All namespaces, in order.
    pub(crate) fn namespaces(&self) -> &BTreeMap<Arc<str>, NamespaceEntry> {
        &self.namespaces
    }

    /// All nodes, in order, with those of their addresses and networks that are no other one's.
    pub(crate) fn nodes(&self) -> &Store<Arc<str>, Node> {
        &self.nodes
    }

    /// All cluster network policies and admin network policies, by name, then kind.
    pub(crate) fn cluster_policies(&self) -> &Store<(Arc<str>, Kind), ClusterNetworkPolicy> {
        &self.cluster_policies
    }

    /// All host firewalls, by name.
    pub(crate) fn host_firewalls(&self) -> &Store<Arc<str>, ClusterHostFirewall> {
        &self.host_firewalls
    }

    /// All egress firewalls, by name.
    pub(crate) fn firewalls(&self) -> &Store<Arc<str>, ClusterEgressFirewall> {
        &self.firewalls
    }

    /// The addresses of the API server.
    pub(crate) fn api_server(&self) -> &ApiServer {
        &self.api_server
    }

    /// Whether this is the API server's service.
    pub(crate) fn is_api_server(service: &Key) -> bool {
        (&*service.namespace, &*service.name) == API_SERVER
    }

    /// Updates the API server's addresses after a change of its service or of nodes; returns whether
    /// they changed.
    pub(crate) fn find_api_server(&mut self) -> bool {
        let service = Key { namespace: API_SERVER.0.into(), name: API_SERVER.1.into() };
        let endpoints = self.slices_of(&service).flat_map(|slice| slice.endpoints.iter());
        let mut addresses: Vec<IpAddr> =
            endpoints.flat_map(|endpoint| endpoint.addresses.iter().copied()).collect();
        addresses.extend(self.services.get(&service).iter().flat_map(|it| &it.cluster_ips));
        let is_host = |node: &&Arc<Node>| node.addresses.iter().any(|it| addresses.contains(it));
        let mut hosts = addresses.clone();
        for node in self.nodes.values().filter(is_host) {
            hosts.extend(node.addresses.iter().chain(self.published(&node.name)));
        }
        let sorted = |mut addresses: Vec<IpAddr>| -> Arc<[IpAddr]> {
            addresses.sort_unstable();
            addresses.dedup();
            addresses.into()
        };
        let found = ApiServer { endpoints: sorted(addresses), hosts: sorted(hosts) };
        let is_other = found != self.api_server;
        self.api_server = found;
        is_other
    }

    /// The endpoint slices of a service, in order.
    pub(crate) fn slices_of(&self, service: &Key) -> impl Iterator<Item = &Arc<EndpointSlice>> {
        let first = Key { namespace: Arc::clone(&service.namespace), name: "".into() };
        let in_namespace = self.endpoint_slices.range(first..);
        let in_namespace = in_namespace.take_while(|(key, _)| key.namespace == service.namespace);
        let slices = in_namespace.map(|(_, slice)| slice);
        slices.filter(|slice| slice.service.as_ref() == Some(&service.name))
    }

    /// All services, in order.
    pub(crate) fn services(&self) -> &Store<Key, Service> {
        &self.services
    }

    /// The pod of this name.
    pub(crate) fn pod(&self, key: &PodKey) -> Option<&Arc<Pod>> {
        self.namespaces.get(&key.namespace)?.pods.get(&key.name)
    }

    fn entry(&mut self, namespace: &Arc<str>) -> &mut NamespaceEntry {
        self.namespaces
            .entry(Arc::clone(namespace))
            .or_insert_with(|| NamespaceEntry::mentioned(namespace))
    }
}

/// The services that these endpoint slices belong to.
fn services_of<'s>(slices: impl Iterator<Item = &'s Arc<EndpointSlice>>) -> Change {
    let key = |slice: &'s Arc<EndpointSlice>| {
        let name = slice.service.clone()?;
        Some(Key { namespace: Arc::clone(&slice.key.namespace), name })
    };
    Change::Endpoints(slices.filter_map(key).collect())
}
