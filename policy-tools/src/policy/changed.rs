//! Differences between two versions of manifests, as far as decisions depend on them.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use control::model::{Namespaces, Peer, Pod, Selector};
use control::{Object, PodKey};

use super::labels::Cluster;
use super::matrix;
use crate::input::{Manifests, pods};

/// The objects that are not the same in two versions.
pub(super) struct Differing<'a> {
    /// All objects of the first version.
    pub(super) old: &'a [Object],
    /// All objects of the second version.
    new: &'a [Object],
    /// Those of the second version that the first lacks, or has otherwise.
    pub(super) fresh: Vec<&'a Object>,
    /// Those of the first version that the second has otherwise.
    replaced: Vec<&'a Object>,
    /// Those of the first version that the second lacks.
    pub(super) gone: Vec<&'a Object>,
}

impl<'a> Differing<'a> {
    pub(super) fn new(old: &'a Manifests, new: &'a Manifests) -> Self {
        let (old, new) = (&old.objects[..], &new.objects[..]);
        let mut before: HashMap<_, &Object> = old.iter().map(|it| (it.reference(), it)).collect();
        let (mut fresh, mut replaced) = (Vec::new(), Vec::new());
        for object in new {
            let same = before.remove(&object.reference());
            if same != Some(object) {
                fresh.push(object);
                replaced.extend(same);
            }
        }
        Self { old, new, fresh, replaced, gone: before.into_values().collect() }
    }

    /// Every object of both versions; the same in both once.
    pub(super) fn all(&self) -> impl Iterator<Item = &'a Object> + '_ {
        self.old.iter().chain(self.fresh.iter().copied())
    }

    /// Every pod of both versions; the same in both once.
    pub(super) fn all_pods(&self) -> impl Iterator<Item = &'a Pod> + '_ {
        self.all().filter_map(|object| match object {
            Object::Pod(pod) => Some(&**pod),
            _ => None,
        })
    }

    fn each(&self) -> impl Iterator<Item = &'a Object> + '_ {
        [&self.fresh, &self.replaced, &self.gone].into_iter().flatten().copied()
    }
}

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
    pub(super) fn between(differing: &Differing<'_>) -> Self {
        let mut found = Self { pods: BTreeSet::new(), everything: false, nodes: false };
        let versions = [differing.old, differing.new];
        let clusters = versions.map(Cluster::new);
        for object in differing.each() {
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
                    matrix::each_policy([object], |policy| {
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
                    let pods = versions.into_iter().flat_map(pods);
                    let pods = pods.filter(|pod| pod.node.as_ref() == Some(&node.name));
                    found.pods.extend(pods.map(|pod| pod.key.clone()));
                }
                Object::ClusterHostFirewall(_) => found.nodes = true,
                // Endpoints matter to rules about the API server.
                _ => found.everything |= asks_api_server(differing.all()),
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

/// Whether a rule of these objects is about the API server.
pub(super) fn asks_api_server<'a>(objects: impl IntoIterator<Item = &'a Object>) -> bool {
    let mut found = false;
    matrix::each_rule(objects, |rule| {
        found |= rule.peers.iter().flatten().any(|peer| matches!(peer, Peer::ApiServer));
    });
    found
}
