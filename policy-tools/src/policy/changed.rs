//! Differences between two versions of manifests that decisions may depend on.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use control::model::{Namespaces, Peer, Pod, Selector};
use control::{Object, PodKey};

use super::labels::Cluster;
use super::matrix;
use crate::input::{Manifests, pods};

/// The objects that differ between two versions.
pub(super) struct Differing<'a> {
    /// All objects of the first version.
    pub(super) old: &'a [Object],
    /// All objects of the second version.
    new: &'a [Object],
    /// Objects of the second version that are new or changed.
    pub(super) fresh: Vec<&'a Object>,
    /// Objects of the first version that changed.
    replaced: Vec<&'a Object>,
    /// Objects of the first version that were removed.
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

/// Pods about which decisions may differ between the versions: those that a changed policy selects, and those that
/// changed themselves, at either end of a connection.
pub(super) struct Changed {
    pods: BTreeSet<PodKey>,
    /// True if every decision may differ.
    everything: bool,
    /// True if nodes or host firewalls changed.
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

    /// Every decision may differ.
    pub(super) fn everything() -> Self {
        Self { pods: BTreeSet::new(), everything: true, nodes: true }
    }

    /// Returns whether decisions about this pod may differ; `None` stands for any other end.
    pub(super) fn has(&self, pod: Option<&PodKey>) -> bool {
        self.everything || pod.map_or(self.nodes, |pod| self.pods.contains(pod))
    }
}

/// Returns whether a rule of these objects is about the API server.
pub(super) fn asks_api_server<'a>(objects: impl IntoIterator<Item = &'a Object>) -> bool {
    let mut found = false;
    matrix::each_rule(objects, |rule| {
        found |= rule.peers.iter().flatten().any(|peer| matches!(peer, Peer::ApiServer));
    });
    found
}
