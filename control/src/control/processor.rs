//! The processor: who is affected by a change, before it and after it.

use std::net::IpAddr;
use std::sync::Arc;

use super::{Control, Scope};
use crate::PodKey;
use crate::cache::Change;
use crate::configurator::{ClusterWide, Policies, Selecting};
use crate::model::{Labels, NetworkPolicy, Pod, Tier};

impl Control {
    /// The processor: who is affected by a change, before it and after it.
    pub(super) fn process(&mut self, change: Change, addresses_before: &[IpAddr]) {
        if !matches!(change, Change::None) {
            self.revision += 1;
        }
        match change {
            Change::None => {}
            Change::Service(keys) => {
                if self.cache.find_api_server(&keys) && !self.cache.firewalls().is_empty() {
                    self.dirty.extend(self.local.keys().cloned());
                }
                keys.into_iter().for_each(|key| self.services.service_changed(key));
            }
            Change::ClusterEgressFirewall(before, after) => {
                self.mark(|pod, namespace| {
                    let mut either = before.iter().chain(&after);
                    either.any(|firewall| firewall.may_select(namespace, &pod.labels))
                });
            }
            Change::Pod(key) => {
                self.services.pod_changed();
                self.membership.pod_changed(&self.cache, &key, addresses_before);
                if self.local.contains_key(&key) || self.is_local(&key) {
                    self.dirty.insert(key);
                }
            }
            Change::Namespace(name) => {
                self.membership.namespace_changed(&self.cache, &name);
                // Cluster policies may select the pods in it, or no longer do.
                let policies = self.cache.cluster_policies().len() + self.cache.firewalls().len();
                if policies > 0 {
                    self.mark(|pod, _| pod.key.namespace == name);
                }
            }
            Change::NetworkPolicy(before, after) => {
                let selects = |policy: &Arc<NetworkPolicy>, pod: &Pod| {
                    policy.key.namespace == pod.key.namespace
                        && policy.selector.matches(&pod.labels)
                };
                self.mark(|pod, _| before.iter().chain(&after).any(|policy| selects(policy, pod)));
            }
            Change::ClusterNetworkPolicy(before, after) => {
                self.mark(|pod, namespace| {
                    let mut either = before.iter().chain(&after);
                    either.any(|policy| policy.may_select(namespace, &pod.labels))
                });
            }
            Change::Node(name) => {
                self.nodes_changed = true;
                self.membership.node_changed(&self.cache, &name);
            }
        }
    }

    /// Notes the local pods that `affected` says, given the labels of their namespace.
    fn mark(&mut self, affected: impl Fn(&Pod, &Labels) -> bool) {
        for key in self.local.keys() {
            if let Some(pod) = self.cache.pod(key)
                && let Some(entry) = self.cache.namespaces().get(&key.namespace)
                && affected(pod, &entry.labels)
            {
                self.dirty.insert(key.clone());
            }
        }
    }

    /// Whether the pod gets tables: it is in scope and takes part in policies.
    pub(super) fn is_local(&self, key: &PodKey) -> bool {
        let Some(pod) = self.cache.pod(key) else { return false };
        // What it is could not be read, so what may reach it is not known.
        if !pod.complete {
            return false;
        }
        let in_scope = match &self.scope {
            Scope::All => true,
            Scope::Node(name) => pod.node.as_ref() == Some(name) || self.cache.is_bound(key),
        };
        in_scope && !self.cache.addresses(key).is_empty()
    }

    /// The policies that select a pod, in order.
    pub(crate) fn policies_of(&self, pod: &Pod) -> Policies {
        let Some(entry) = self.cache.namespaces().get(&pod.key.namespace) else {
            return Policies::default();
        };
        let (namespace, pod_labels) = (&entry.labels, &pod.labels);
        let cluster = |tier: Tier| {
            let policies = self.cache.cluster_policies().values();
            let mut list: Vec<Selecting> = policies
                .filter(|it| it.tier == tier && it.may_select(namespace, pod_labels))
                .map(|policy| Selecting {
                    policy: ClusterWide::Policy(Arc::clone(policy)),
                    certain: policy.selects(namespace, pod_labels),
                })
                .collect();
            // Stable: equal priorities stay in the order of their names.
            list.sort_by_key(|it| it.policy.priority());
            list
        };
        let firewalls = self.cache.firewalls().values();
        let firewalls = firewalls.filter(|it| it.may_select(namespace, pod_labels));
        let namespaced = entry.policies.values().filter(|it| it.selector.matches(&pod.labels));
        Policies {
            firewalls: firewalls
                .map(|firewall| Selecting {
                    policy: ClusterWide::Firewall(Arc::clone(firewall)),
                    certain: firewall.selects(namespace, pod_labels),
                })
                .collect(),
            admin: cluster(Tier::Admin),
            namespaced: namespaced.cloned().collect(),
            baseline: cluster(Tier::Baseline),
            uncertain: self.cache.is_uncertain(),
            api_server: Arc::clone(self.cache.api_server()),
        }
    }
}
