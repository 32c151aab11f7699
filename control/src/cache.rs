//! All objects as they were last told, and who is in which namespace.
//!
//! ```text
//! namespace ─┬─ labels (its own object's, or just its name if it is only mentioned)
//!            ├─ pods by name
//!            └─ policies by name
//! ```
//!
//! The cache is where the last valid version of an object survives an invalid one.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use crate::model::{EndpointSlice, Key, Labels, Namespace, NetworkPolicy, Node, Pod, Service};
use crate::{Kind, Object, ObjectRef, PodKey};

/// Every object known.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    namespaces: BTreeMap<Arc<str>, NamespaceEntry>,
    nodes: BTreeMap<Arc<str>, Arc<Node>>,
    services: BTreeMap<Key, Arc<Service>>,
    endpoint_slices: BTreeMap<Key, Arc<EndpointSlice>>,
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

/// What an object was before a change; tells whether anything changed at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Nothing that matters.
    None,
    /// It was added, replaced or removed.
    Some,
}

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
        match object {
            Object::Namespace(namespace) => {
                let labels = self.shared(namespace.labels);
                let entry = self.entry(&namespace.name);
                let before = std::mem::replace(&mut entry.labels, labels);
                let was_explicit = std::mem::replace(&mut entry.explicit, true);
                changed(before != entry.labels || !was_explicit)
            }
            Object::Pod(mut pod) => {
                pod.labels = self.shared(pod.labels);
                let (namespace, name) = (Arc::clone(&pod.key.namespace), Arc::clone(&pod.key.name));
                let pod = Arc::new(pod);
                let before = self.entry(&namespace).pods.insert(name, Arc::clone(&pod));
                changed(before.is_none_or(|before| before != pod))
            }
            Object::NetworkPolicy(policy) => {
                let (namespace, name) =
                    (Arc::clone(&policy.key.namespace), Arc::clone(&policy.key.name));
                let policies = &mut self.entry(&namespace).policies;
                match policies.get(&name) {
                    Some(before) if before.complete && !policy.complete => Change::None,
                    Some(before) if **before == policy => Change::None,
                    _ => {
                        policies.insert(name, Arc::new(policy));
                        Change::Some
                    }
                }
            }
            Object::Node(node) => {
                let node = Arc::new(node);
                let before = self.nodes.insert(Arc::clone(&node.name), Arc::clone(&node));
                changed(before.is_none_or(|before| before != node))
            }
            Object::Service(service) => {
                let service = Arc::new(service);
                let before = self.services.insert(service.key.clone(), Arc::clone(&service));
                changed(before.is_none_or(|before| before != service))
            }
            Object::EndpointSlice(slice) => {
                let slice = Arc::new(slice);
                let before = self.endpoint_slices.insert(slice.key.clone(), Arc::clone(&slice));
                changed(before.is_none_or(|before| before != slice))
            }
            Object::Unreadable(_) => Change::None,
        }
    }

    /// Forgets an object; one that is not known is nothing to complain about.
    pub(crate) fn delete(&mut self, reference: &ObjectRef) -> Change {
        let name = &reference.name;
        let key = || Key {
            namespace: reference.namespace.clone().unwrap_or_else(|| "default".into()),
            name: Arc::clone(name),
        };
        let gone = match reference.kind {
            Kind::Namespace => match self.namespaces.get_mut(name) {
                Some(entry) if entry.explicit => {
                    let NamespaceEntry { labels, .. } = NamespaceEntry::mentioned(name);
                    (entry.labels, entry.explicit) = (labels, false);
                    true
                }
                _ => false,
            },
            Kind::Pod => self.within(&key()).is_some_and(|it| it.pods.remove(name).is_some()),
            Kind::NetworkPolicy => {
                self.within(&key()).is_some_and(|it| it.policies.remove(name).is_some())
            }
            Kind::Node => self.nodes.remove(name).is_some(),
            Kind::Service => self.services.remove(&key()).is_some(),
            Kind::EndpointSlice => self.endpoint_slices.remove(&key()).is_some(),
        };
        let namespace = reference.namespace.as_ref().unwrap_or(name);
        if self.namespaces.get(namespace).is_some_and(NamespaceEntry::is_needless) {
            self.namespaces.remove(namespace);
        }
        changed(gone)
    }

    /// All objects there are.
    pub(crate) fn references(&self) -> HashSet<ObjectRef> {
        let mut all = HashSet::new();
        let mut add = |kind, namespace: Option<&Arc<str>>, name: &Arc<str>| {
            all.insert(ObjectRef { kind, namespace: namespace.cloned(), name: Arc::clone(name) });
        };
        for (namespace, entry) in &self.namespaces {
            if entry.explicit {
                add(Kind::Namespace, None, namespace);
            }
            entry.pods.keys().for_each(|name| add(Kind::Pod, Some(namespace), name));
            entry.policies.keys().for_each(|name| add(Kind::NetworkPolicy, Some(namespace), name));
        }
        self.nodes.keys().for_each(|name| add(Kind::Node, None, name));
        for key in self.services.keys() {
            add(Kind::Service, Some(&key.namespace), &key.name);
        }
        for key in self.endpoint_slices.keys() {
            add(Kind::EndpointSlice, Some(&key.namespace), &key.name);
        }
        all
    }

    /// All namespaces, in order.
    pub(crate) fn namespaces(&self) -> &BTreeMap<Arc<str>, NamespaceEntry> {
        &self.namespaces
    }

    /// All cluster nodes, in order.
    pub(crate) fn nodes(&self) -> &BTreeMap<Arc<str>, Arc<Node>> {
        &self.nodes
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

    fn within(&mut self, key: &Key) -> Option<&mut NamespaceEntry> {
        self.namespaces.get_mut(&key.namespace)
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

fn changed(is: bool) -> Change {
    if is { Change::Some } else { Change::None }
}
