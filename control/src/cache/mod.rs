//! All objects as they were last told, and who is in which namespace.
//!
//! ```text
//! namespace ─┬─ labels (its own object's, or just its name if it is only mentioned)
//!            ├─ pods by name
//!            └─ policies by name
//! ```
//!
//! The cache is where the last valid version of an object survives an invalid one.

mod bound;
mod listing;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use bound::Bound;

use crate::model::{
    ClusterEgressFirewall, ClusterNetworkPolicy, EndpointSlice, Key, Labels, Namespace,
    NetworkPolicy, Node, Pod, Service,
};
use crate::{Kind, Object, ObjectRef, PodKey};

/// Every object known.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    namespaces: BTreeMap<Arc<str>, NamespaceEntry>,
    nodes: BTreeMap<Arc<str>, Arc<Node>>,
    cluster_policies: BTreeMap<Arc<str>, Arc<ClusterNetworkPolicy>>,
    firewalls: BTreeMap<Arc<str>, Arc<ClusterEgressFirewall>>,
    /// Where the API server is, as its service and endpoints say; sorted.
    api_server: Arc<[IpAddr]>,
    services: BTreeMap<Key, Arc<Service>>,
    endpoint_slices: BTreeMap<Key, Arc<EndpointSlice>>,
    /// Addresses of local pods that were told before the API knew them.
    bound: HashMap<PodKey, Bound>,
    /// Objects that could be read only in part and have no earlier version that was whole.
    uncertain: HashSet<ObjectRef>,
    /// Label sets in use, so that equal ones are held once.
    labels: HashSet<Arc<Labels>>,
}

/// A namespace and what is in it; exists while it has an object or anything in it.
#[derive(Debug)]
pub(crate) struct NamespaceEntry {
    /// Its labels; the name label is always among them.
    pub(crate) labels: Arc<Labels>,
    /// Whether there is a Namespace object.
    explicit: bool,
    /// Its pods by name.
    pub(crate) pods: HashMap<Arc<str>, Arc<Pod>>,
    /// Its policies by name.
    pub(crate) policies: BTreeMap<Arc<str>, Arc<NetworkPolicy>>,
}

/// What a told object did to the cache.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// Nothing that matters.
    None,
    /// The labels of a namespace, from these.
    Namespace(Arc<str>),
    /// A pod came, went or changed.
    Pod(PodKey),
    /// A policy, before and after.
    NetworkPolicy(Option<Arc<NetworkPolicy>>, Option<Arc<NetworkPolicy>>),
    /// A cluster policy, before and after.
    ClusterNetworkPolicy(Option<Arc<ClusterNetworkPolicy>>, Option<Arc<ClusterNetworkPolicy>>),
    /// A cluster node came, went or changed.
    Node(Arc<str>),
    /// An egress firewall, before and after.
    ClusterEgressFirewall(Option<Arc<ClusterEgressFirewall>>, Option<Arc<ClusterEgressFirewall>>),
    /// A service or its endpoints: the services that may be different.
    Service(Vec<Key>),
}

/// Namespace and name of the service that is the API server's.
const API_SERVER: (&str, &str) = ("default", "kubernetes");

impl NamespaceEntry {
    fn mentioned(name: &Arc<str>) -> Self {
        Self {
            labels: Namespace::new(Arc::clone(name), &Labels::default()).labels,
            explicit: false,
            pods: HashMap::new(),
            policies: BTreeMap::new(),
        }
    }

    fn is_needless(&self) -> bool {
        !self.explicit && self.pods.is_empty() && self.policies.is_empty()
    }
}

impl Cache {
    /// Takes over an object. One that could not be read leaves things as they are; a policy
    /// that could be read in part does so too if there is a version that was read in full.
    pub(crate) fn apply(&mut self, object: Object) -> Change {
        if self.keeps(&object) {
            return Change::None;
        }
        match object {
            Object::Namespace(namespace) => {
                let labels = self.shared(namespace.labels);
                let entry = self.entry(&namespace.name);
                entry.explicit = true;
                let before = std::mem::replace(&mut entry.labels, labels);
                let same = before == entry.labels;
                if same { Change::None } else { Change::Namespace(namespace.name) }
            }
            Object::Pod(mut pod) => {
                pod.labels = self.shared(pod.labels);
                let key = pod.key.clone();
                let pods = &mut self.entry(&key.namespace).pods;
                if pods.get(&key.name).is_some_and(|before| **before == pod) {
                    return Change::None;
                }
                pods.insert(Arc::clone(&key.name), Arc::new(pod));
                Change::Pod(key)
            }
            Object::NetworkPolicy(policy) => {
                let policies = &mut self.entry(&policy.key.namespace).policies;
                let before = policies.get(&policy.key.name).cloned();
                let keep = before.as_ref().is_some_and(|before| {
                    **before == policy || before.complete && !policy.complete
                });
                if keep {
                    return Change::None;
                }
                let policy = Arc::new(policy);
                policies.insert(Arc::clone(&policy.key.name), Arc::clone(&policy));
                Change::NetworkPolicy(before, Some(policy))
            }
            Object::ClusterNetworkPolicy(policy) => {
                let before = self.cluster_policies.get(&policy.name).cloned();
                let keep = before.as_ref().is_some_and(|before| {
                    **before == policy || before.complete && !policy.complete
                });
                if keep {
                    return Change::None;
                }
                let policy = Arc::new(policy);
                self.cluster_policies.insert(Arc::clone(&policy.name), Arc::clone(&policy));
                Change::ClusterNetworkPolicy(before, Some(policy))
            }
            Object::Node(node) => {
                let name = Arc::clone(&node.name);
                if self.nodes.get(&name).is_some_and(|before| **before == node) {
                    return Change::None;
                }
                self.nodes.insert(Arc::clone(&name), Arc::new(node));
                Change::Node(name)
            }
            Object::ClusterEgressFirewall(firewall) => {
                let before = self.firewalls.get(&firewall.name).cloned();
                let keep = before.as_ref().is_some_and(|before| {
                    **before == firewall || before.complete && !firewall.complete
                });
                if keep {
                    return Change::None;
                }
                let firewall = Arc::new(firewall);
                self.firewalls.insert(Arc::clone(&firewall.name), Arc::clone(&firewall));
                Change::ClusterEgressFirewall(before, Some(firewall))
            }
            Object::Service(service) => {
                let service = Arc::new(service);
                let before = self.services.insert(service.key.clone(), Arc::clone(&service));
                if before.as_ref() == Some(&service) {
                    return Change::None;
                }
                Change::Service(vec![service.key.clone()])
            }
            Object::EndpointSlice(slice) => {
                let slice = Arc::new(slice);
                let before = self.endpoint_slices.insert(slice.key.clone(), Arc::clone(&slice));
                if before.as_ref() == Some(&slice) {
                    return Change::None;
                }
                Change::Service(before.iter().chain([&slice]).filter_map(service_of).collect())
            }
            Object::Unreadable(_) => Change::None,
        }
    }

    /// Whether a pod, namespace or cluster node that could be read only in part leaves an
    /// earlier, whole version in place; notes it if there is none.
    fn keeps(&mut self, object: &Object) -> bool {
        let (complete, known) = match object {
            Object::Namespace(it) => {
                let known = self.namespaces.get(&it.name);
                let whole = known.is_some_and(|it| it.explicit && !it.labels.is_partial());
                (!it.labels.is_partial(), whole)
            }
            Object::Pod(it) => (it.complete, self.pod(&it.key).is_some_and(|it| it.complete)),
            Object::Node(it) => {
                (it.complete, self.nodes.get(&it.name).is_some_and(|it| it.complete))
            }
            _ => return false,
        };
        if !complete && known {
            return true;
        }
        if !complete {
            self.uncertain.insert(object.reference());
        } else if self.is_uncertain() {
            self.uncertain.remove(&object.reference());
        }
        false
    }

    /// Whether there are pods, namespaces or cluster nodes of which not all could be read.
    pub(crate) fn is_uncertain(&self) -> bool {
        !self.uncertain.is_empty()
    }

    /// Forgets an object; one that is not known is nothing to complain about.
    pub(crate) fn delete(&mut self, reference: &ObjectRef) -> Change {
        self.uncertain.remove(reference);
        let name = &reference.name;
        let namespace = reference.namespace.clone().unwrap_or_else(|| "default".into());
        let key = Key { namespace: Arc::clone(&namespace), name: Arc::clone(name) };
        let within = self.namespaces.get_mut(&namespace);
        let change = match reference.kind {
            Kind::Namespace => match self.namespaces.get_mut(name) {
                Some(entry) if entry.explicit => {
                    entry.explicit = false;
                    let bare = NamespaceEntry::mentioned(name).labels;
                    let same = std::mem::replace(&mut entry.labels, bare) == entry.labels;
                    if same { Change::None } else { Change::Namespace(Arc::clone(name)) }
                }
                _ => Change::None,
            },
            Kind::Pod => match within.and_then(|it| it.pods.remove(name)) {
                Some(pod) => Change::Pod(pod.key.clone()),
                None => Change::None,
            },
            Kind::NetworkPolicy => match within.and_then(|it| it.policies.remove(name)) {
                Some(policy) => Change::NetworkPolicy(Some(policy), None),
                None => Change::None,
            },
            Kind::ClusterNetworkPolicy => match self.cluster_policies.remove(name) {
                Some(policy) => Change::ClusterNetworkPolicy(Some(policy), None),
                None => Change::None,
            },
            Kind::Node => match self.nodes.remove(name) {
                Some(_) => Change::Node(Arc::clone(name)),
                None => Change::None,
            },
            Kind::ClusterEgressFirewall => match self.firewalls.remove(name) {
                Some(firewall) => Change::ClusterEgressFirewall(Some(firewall), None),
                None => Change::None,
            },
            Kind::Service => match self.services.remove(&key) {
                Some(_) => Change::Service(vec![key]),
                None => Change::None,
            },
            Kind::EndpointSlice => match self.endpoint_slices.remove(&key) {
                Some(slice) => Change::Service(service_of(&slice).into_iter().collect()),
                None => Change::None,
            },
        };
        let namespace = reference.namespace.as_ref().unwrap_or(name);
        if self.namespaces.get(namespace).is_some_and(NamespaceEntry::is_needless) {
            self.namespaces.remove(namespace);
        }
        change
    }

    /// All namespaces, in order.
    #[must_use]
    pub(crate) fn namespaces(&self) -> &BTreeMap<Arc<str>, NamespaceEntry> {
        &self.namespaces
    }

    /// All cluster nodes, in order.
    pub(crate) fn nodes(&self) -> &BTreeMap<Arc<str>, Arc<Node>> {
        &self.nodes
    }

    /// All cluster network policies, by name.
    pub(crate) fn cluster_policies(&self) -> &BTreeMap<Arc<str>, Arc<ClusterNetworkPolicy>> {
        &self.cluster_policies
    }

    /// All egress firewalls, by name.
    pub(crate) fn firewalls(&self) -> &BTreeMap<Arc<str>, Arc<ClusterEgressFirewall>> {
        &self.firewalls
    }

    /// The addresses of the API server.
    pub(crate) fn api_server(&self) -> &Arc<[IpAddr]> {
        &self.api_server
    }

    /// Works out where the API server is, after a change of these services; whether it is
    /// elsewhere now.
    pub(crate) fn find_api_server(&mut self, changed: &[Key]) -> bool {
        let service = Key { namespace: API_SERVER.0.into(), name: API_SERVER.1.into() };
        if !changed.contains(&service) {
            return false;
        }
        let endpoints = self.slices_of(&service).flat_map(|slice| &slice.endpoints);
        let mut addresses: Vec<IpAddr> =
            endpoints.flat_map(|endpoint| endpoint.addresses.iter().copied()).collect();
        addresses.extend(self.services.get(&service).iter().flat_map(|it| &it.cluster_ips));
        addresses.sort_unstable();
        addresses.dedup();
        let is_elsewhere = *addresses != *self.api_server;
        if is_elsewhere {
            self.api_server = addresses.into();
        }
        is_elsewhere
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
    pub(crate) fn services(&self) -> &BTreeMap<Key, Arc<Service>> {
        &self.services
    }

    /// All endpoint slices, in order.
    pub(crate) fn endpoint_slices(&self) -> &BTreeMap<Key, Arc<EndpointSlice>> {
        &self.endpoint_slices
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

    /// The one copy of equal label sets.
    fn shared(&mut self, labels: Arc<Labels>) -> Arc<Labels> {
        if let Some(known) = self.labels.get(&labels) {
            return Arc::clone(known);
        }
        // Sweep unused sets whenever the table would have to grow: amortised constant.
        if self.labels.len() == self.labels.capacity() {
            self.labels.retain(|labels| Arc::strong_count(labels) > 1);
        }
        self.labels.insert(Arc::clone(&labels));
        labels
    }
}
/// The service that an endpoint slice belongs to.
fn service_of(slice: &Arc<EndpointSlice>) -> Option<Key> {
    let name = slice.service.clone()?;
    Some(Key { namespace: Arc::clone(&slice.key.namespace), name })
}
