//! Lists of the cache's objects: for resyncs, the saved state and `status`.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use super::{Cache, NamespaceEntry};
use crate::model::{Namespace, Pod};
use crate::{Kind, Object, ObjectRef};
use ahash::RandomState;

impl Cache {
    /// References of all objects.
    pub(crate) fn references(&self) -> HashSet<ObjectRef, RandomState> {
        Kind::ALL.into_iter().flat_map(|kind| self.references_of(kind)).collect()
    }

    /// References of all objects of a kind.
    pub(crate) fn references_of(&self, kind: Kind) -> HashSet<ObjectRef, RandomState> {
        let named = |name: &Arc<str>| ObjectRef { kind, namespace: None, name: Arc::clone(name) };
        let within = |namespace: &Arc<str>, name: &Arc<str>| ObjectRef {
            namespace: Some(Arc::clone(namespace)),
            ..named(name)
        };
        let mut all = HashSet::default();
        match kind {
            Kind::Namespace => {
                let explicit = self.namespaces.iter().filter(|(_, entry)| entry.explicit);
                all.extend(explicit.map(|(name, _)| named(name)));
            }
            Kind::Pod => {
                for (namespace, entry) in &self.namespaces {
                    all.extend(entry.pods.keys().map(|name| within(namespace, name)));
                }
            }
            Kind::NetworkPolicy => {
                for (namespace, entry) in &self.namespaces {
                    all.extend(entry.policies.keys().map(|name| within(namespace, name)));
                }
            }
            Kind::Node => all.extend(self.claimed_nodes.keys().map(named)),
            Kind::ClusterNetworkPolicy
            | Kind::AdminNetworkPolicy
            | Kind::BaselineAdminNetworkPolicy => {
                let keys = self.cluster_policies.keys().filter(|(_, of)| *of == kind);
                all.extend(keys.map(|(name, _)| named(name)));
            }
            Kind::ClusterEgressFirewall => all.extend(self.firewalls.keys().map(named)),
            Kind::ClusterHostFirewall => all.extend(self.host_firewalls.keys().map(named)),
            Kind::NodeAddresses => all.extend(self.node_addresses.keys().map(named)),
            Kind::Service => {
                all.extend(self.services.keys().map(|key| within(&key.namespace, &key.name)));
            }
            Kind::EndpointSlice => {
                let keys = self.endpoint_slices.keys();
                all.extend(keys.map(|key| within(&key.namespace, &key.name)));
            }
        }
        all
    }

    /// All pods.
    pub(crate) fn pods(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.namespaces.values().flat_map(|entry| entry.pods.values())
    }

    /// All objects, namespaces first.
    pub(crate) fn objects(&self) -> impl Iterator<Item = Object> {
        let explicit = self.namespaces.iter().filter(|(_, entry)| entry.explicit);
        let namespaces = explicit.map(|(name, entry)| {
            let (name, labels) = (Arc::clone(name), Arc::clone(&entry.labels));
            let NamespaceEntry { complete, denied_reply, stage, .. } = *entry;
            let namespace = Namespace { name, labels, complete, denied_reply, stage };
            Object::Namespace(Arc::new(namespace))
        });
        let entries = || self.namespaces.values();
        let policies = entries().flat_map(|entry| entry.policies.values());
        let cluster_policies = self.cluster_policies.values();
        let firewalls = self.firewalls.values();
        let host_firewalls = self.host_firewalls.values();
        let node_addresses = self.node_addresses.values();
        let (services, slices) = (self.services.values(), self.endpoint_slices.values());
        namespaces
            .chain(self.claimed_nodes.values().map(|it| Object::Node(Arc::clone(it))))
            .chain(self.pods().map(|it| Object::Pod(Arc::clone(it))))
            .chain(policies.map(|it| Object::NetworkPolicy(Arc::clone(it))))
            .chain(cluster_policies.map(|it| Object::ClusterNetworkPolicy(Arc::clone(it))))
            .chain(firewalls.map(|it| Object::ClusterEgressFirewall(Arc::clone(it))))
            .chain(host_firewalls.map(|it| Object::ClusterHostFirewall(Arc::clone(it))))
            .chain(node_addresses.map(|it| Object::NodeAddresses(Arc::clone(it))))
            .chain(services.map(|it| Object::Service(Arc::clone(it))))
            .chain(slices.map(|it| Object::EndpointSlice(Arc::clone(it))))
    }

    /// Number of objects by kind; kinds without any are left out.
    pub(crate) fn counts(&self) -> BTreeMap<Kind, usize> {
        let whole = [
            (Kind::Node, self.claimed_nodes.len()),
            (Kind::Service, self.services.len()),
            (Kind::EndpointSlice, self.endpoint_slices.len()),
            (Kind::ClusterEgressFirewall, self.firewalls.len()),
            (Kind::ClusterHostFirewall, self.host_firewalls.len()),
            (Kind::NodeAddresses, self.node_addresses.len()),
        ];
        let counts =
            whole.into_iter().chain(self.sizes.iter().map(|(kind, count)| (*kind, *count)));
        counts.filter(|(_, count)| *count > 0).collect()
    }
}
