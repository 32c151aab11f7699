//! The parts of the cluster in which two versions are compared.
//!
//! Decisions about a connection depend on its two ends, their namespaces, the policies of these and cluster-wide
//! objects, but on no other pod. So each part has some of the namespaces, and with them every pod whose decisions may
//! have changed. Tables are sized by the addresses of a part, and are freed with it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;

use control::{Object, PodKey};

use crate::input::Manifests;
use crate::policy::changed::{Changed, Differing, asks_api_server};
use crate::probe::DomainAddresses;

/// Pods of a part, where no more than half as many are in every part.
const PODS: usize = 512;

/// Both versions, complete and with the same pods, nodes and namespaces.
pub(super) struct Versions<'a> {
    pub(super) names: &'a Manifests,
    differing: &'a Differing<'a>,
    changed: HashSet<&'a PodKey>,
    pub(super) nodes_changed: bool,
    /// Addresses that stand for the names of rules.
    pub(super) addresses: &'a DomainAddresses,
    /// The pods that every part has: changed ones, and those that share an address with another one.
    everywhere: HashSet<&'a PodKey>,
    /// The namespaces of these.
    namespaces: HashSet<&'a str>,
    /// True if rules are about the API server, whose addresses are those of a service.
    needs_services: bool,
}

/// A part: the pods of some namespaces.
#[derive(Default)]
pub(super) struct Part<'a> {
    namespaces: HashSet<&'a str>,
    pub(super) is_first: bool,
}

impl<'a> Versions<'a> {
    pub(super) fn new(
        names: &'a Manifests,
        differing: &'a Differing<'a>,
        changed: &Changed,
        addresses: &'a DomainAddresses,
    ) -> Self {
        let keys = names.pods().map(|pod| &pod.key);
        let of_changed: HashSet<&PodKey> = keys.filter(|key| changed.has(Some(key))).collect();
        let everywhere: HashSet<&PodKey> =
            of_changed.iter().copied().chain(sharing_addresses(differing)).collect();
        Self {
            names,
            differing,
            nodes_changed: changed.has(None),
            addresses,
            namespaces: everywhere.iter().map(|key| &*key.namespace).collect(),
            needs_services: asks_api_server(differing.all()),
            changed: of_changed,
            everywhere,
        }
    }

    /// Returns whether decisions about a pod may have changed, as those about either end of a connection.
    pub(super) fn has_changed(&self, pod: &PodKey) -> bool {
        self.changed.contains(pod)
    }

    /// Returns whether every part has a pod.
    pub(super) fn is_everywhere(&self, pod: &PodKey) -> bool {
        self.everywhere.contains(pod)
    }

    /// The parts, at least one; of so many pods beside those of every part.
    pub(super) fn parts(&self, pods: Option<usize>) -> Vec<Part<'a>> {
        let mut of_namespaces: BTreeMap<&str, usize> = BTreeMap::new();
        for pod in self.names.pods().filter(|pod| !self.everywhere.contains(&pod.key)) {
            *of_namespaces.entry(&pod.key.namespace).or_default() += 1;
        }
        let of_all = Part::default();
        let of_all = self.names.objects.iter().filter(|it| self.has(&of_all, it)).count();
        let most = pods.unwrap_or(PODS.max(of_all).max(2 * self.everywhere.len()));
        let mut parts = vec![Part { is_first: true, ..Part::default() }];
        let mut count = 0;
        for (namespace, pods) in of_namespaces {
            if count > 0 && count + pods > most {
                parts.push(Part::default());
                count = 0;
            }
            count += pods;
            if let Some(part) = parts.last_mut() {
                part.namespaces.insert(namespace);
            }
        }
        parts
    }

    /// The objects of the first version.
    pub(super) fn old<'b>(&'b self, part: &'b Part<'a>) -> impl Iterator<Item = &'a Object> + 'b {
        self.differing.old.iter().filter(|object| self.has(part, object))
    }

    /// The objects of the second version.
    pub(super) fn new_ones<'b>(
        &'b self,
        part: &'b Part<'a>,
    ) -> impl Iterator<Item = &'a Object> + 'b {
        self.names.objects.iter().filter(|object| self.has(part, object))
    }

    /// The objects that the second version alone has so.
    pub(super) fn fresh<'b>(&'b self, part: &'b Part<'a>) -> impl Iterator<Item = &'a Object> + 'b {
        self.differing.fresh.iter().copied().filter(|object| self.has(part, object))
    }

    /// The objects that the second version lacks.
    pub(super) fn gone<'b>(&'b self, part: &'b Part<'a>) -> impl Iterator<Item = &'a Object> + 'b {
        self.differing.gone.iter().copied().filter(|object| self.has(part, object))
    }

    fn has(&self, part: &Part<'_>, object: &Object) -> bool {
        let in_namespace = |name: &str| part.namespaces.contains(name);
        let in_either = |name: &str| in_namespace(name) || self.namespaces.contains(name);
        match object {
            Object::Pod(pod) => {
                in_namespace(&pod.key.namespace) || self.everywhere.contains(&pod.key)
            }
            Object::NetworkPolicy(policy) => in_either(&policy.key.namespace),
            Object::Namespace(namespace) => in_either(&namespace.name),
            Object::Service(_) | Object::EndpointSlice(_) => self.needs_services,
            _ => true,
        }
    }
}

/// The pods whose address another one claims too: which of them has it depends on all of them.
fn sharing_addresses<'a>(differing: &Differing<'a>) -> HashSet<&'a PodKey> {
    let mut owners: HashMap<IpAddr, &PodKey> = HashMap::new();
    let mut sharing = HashSet::new();
    for pod in differing.all_pods().filter(|pod| pod.is_on_pod_network()) {
        for address in &pod.addresses {
            let owner = *owners.entry(*address).or_insert(&pod.key);
            if *owner != pod.key {
                sharing.extend([owner, &pod.key]);
            }
        }
    }
    sharing
}
