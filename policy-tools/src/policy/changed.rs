//! What differs between two versions of manifests, as far as decisions depend on it.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use control::model::{Namespaces, Peer, Selector};
use control::{Object, PodKey};

use super::labels::Cluster;
use super::matrix;
use crate::input::Manifests;

/// The pods whose decisions may be others in the second version: those that a policy selects which is
/// another one there, and those that are others themselves, as their own end or as a peer.
pub(super) struct Changed {
    pods: BTreeSet<PodKey>,
    /// Whether nothing is known to be the same.
    everything: bool,
    /// Whether nodes, or firewalls of nodes, are others.
    nodes: bool,
}

impl Changed {
    /// Compares two versions that have the same objects beside policies.
    pub(super) fn between(old: &Manifests, new: &Manifests) -> Self {
        let mut found = Self { pods: BTreeSet::new(), everything: false, nodes: false };
        let mut before: HashMap<_, &Object> =
            old.objects.iter().map(|it| (it.reference(), it)).collect();
        let mut others: Vec<&Object> = Vec::new();
        for object in &new.objects {
            match before.remove(&object.reference()) {
                Some(same) if same == object => {}
                other => others.extend(other.into_iter().chain([object])),
            }
        }
        others.extend(before.into_values());
        let clusters = [Cluster::new(&old.objects), Cluster::new(&new.objects)];
        for object in others {
            let mut select = |namespaces: &Namespaces, pods: &Selector| {
                for cluster in &clusters {
                    let selected = cluster.select(namespaces, pods);
                    found.pods.extend(selected.map(|pod| pod.key.clone()));
                }
            };
            match object {
                Object::NetworkPolicy(_)
                | Object::ClusterNetworkPolicy(_)
                | Object::ClusterEgressFirewall(_) => {
                    matrix::each_policy(std::slice::from_ref(object), |policy| {
                        if let Some((namespaces, pods)) = &policy.subject {
                            select(namespaces, pods);
                        }
                    });
                }
                Object::Pod(pod) => {
                    found.pods.insert(pod.key.clone());
                }
                Object::Namespace(namespace) => {
                    select(&Namespaces::Own(Arc::clone(&namespace.name)), &Selector::default());
                }
                Object::Node(node) => {
                    found.nodes = true;
                    // Firewalls may be about the pods on it.
                    let pods = old.pods().chain(new.pods());
                    let pods = pods.filter(|pod| pod.node.as_ref() == Some(&node.name));
                    found.pods.extend(pods.map(|pod| pod.key.clone()));
                }
                Object::ClusterHostFirewall(_) => found.nodes = true,
                // Endpoints matter to rules about the API server.
                _ => found.everything |= asks_api_server(old) || asks_api_server(new),
            }
        }
        found
    }

    /// Nothing is known to be the same.
    pub(super) fn everything() -> Self {
        Self { pods: BTreeSet::new(), everything: true, nodes: true }
    }

    /// Whether decisions about this pod, or without one about any other end, may be others.
    pub(super) fn has(&self, pod: Option<&PodKey>) -> bool {
        self.everything || pod.map_or(self.nodes, |pod| self.pods.contains(pod))
    }
}

fn asks_api_server(manifests: &Manifests) -> bool {
    let mut found = false;
    matrix::each_rule(&manifests.objects, |rule| {
        found |= rule.peers.iter().flatten().any(|peer| matches!(peer, Peer::ApiServer));
    });
    found
}
