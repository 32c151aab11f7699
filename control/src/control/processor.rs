//! The processor: finds the pods that a change affects, before and after it.

use std::net::IpAddr;
use std::sync::Arc;

use super::{Control, PodChange, Scope};
use crate::PodKey;
use crate::cache::{Cache, Change};
use crate::model::{Key, Labels, NetworkPolicy, Pod};

impl Control {
    /// The processor: finds the pods that a change affects, before and after it. Returns the pod that changed, if one
    /// did.
    pub(super) fn process(
        &mut self,
        change: Change,
        addresses_before: &[IpAddr],
    ) -> Option<PodChange> {
        if !matches!(change, Change::None) {
            self.revision += 1;
        }
        self.note_policy_change(&change);
        match &change {
            Change::Pod(..) => {}
            Change::Namespace(..)
            | Change::NetworkPolicy(..)
            | Change::ClusterNetworkPolicy(..)
            | Change::ClusterEgressFirewall(..) => self.note_host_policies(),
            Change::None
            | Change::ClusterHostFirewall(..)
            | Change::Nodes(_)
            | Change::NodeAddresses
            | Change::Service(_)
            | Change::Endpoints(_) => {}
        }
        match change {
            Change::None => {}
            Change::Service(key) => {
                self.cache.service_changed(&key);
                self.service_changed(key);
            }
            Change::Endpoints(keys) => {
                // Those of the API server say where it is.
                let (own, others): (Vec<_>, Vec<_>) =
                    keys.into_iter().partition(Cache::is_api_server);
                own.into_iter().for_each(|key| self.service_changed(key));
                others.into_iter().for_each(|key| self.services.endpoints_changed(key));
            }
            Change::ClusterEgressFirewall(before, after) => {
                self.outside.is_stale = true;
                self.mark(|pod, namespace| {
                    let mut either = before.iter().chain(&after);
                    either.any(|firewall| {
                        firewall.selects(namespace, &pod.labels, None)
                            || firewall.staging.replaces.is_some()
                    })
                });
            }
            Change::ClusterHostFirewall(..) => self.host_acls.is_stale = true,
            Change::Pod(key, (before, after)) => {
                let pod = after.as_ref();
                let now = self.addresses_of(pod);
                self.note_host_pod(&key, pod);
                let touched = addresses_before.iter().chain(&now).copied().collect();
                let [uid_before, uid] = [&before, &after].map(|pod| pod.as_ref()?.uid.as_ref());
                let is_other = addresses_before != now || uid_before != uid;
                if is_other && matches!(self.scope, Scope::Node(_)) {
                    self.moved.extend(&touched);
                }
                self.services.pod_changed(&touched);
                self.cache.addresses_moved(&touched);
                let owned = |address: &IpAddr| Some((*address, self.pod_at(*address)?.clone()));
                let owners: Vec<(IpAddr, PodKey)> =
                    addresses_before.iter().chain(&now).filter_map(owned).collect();
                self.membership.pod_changed(&self.cache, &key, addresses_before, &now);
                self.refresh_domains(addresses_before, &now);
                let departed = owners.into_iter().filter(|(it, pod)| self.pod_at(*it) != Some(pod));
                let departed: Vec<IpAddr> = departed.map(|(address, _)| address).collect();
                self.note_departed(departed);
                if self.local.contains_key(&key) || pod.is_some_and(|pod| self.is_local(pod)) {
                    self.dirty.insert(key.clone());
                }
                return Some(PodChange { key, before, after });
            }
            Change::Namespace(name, _) => {
                self.membership.namespace_changed(&self.cache, &name);
                // Cluster policies may select the pods in it, or no longer do; a fault closes them.
                let entry = self.cache.namespaces().get(&name);
                let pods = entry.into_iter().flat_map(|entry| entry.pods.values());
                let pods = pods.filter(|it| self.local.contains_key(&it.key) || self.is_local(it));
                let keys: Vec<PodKey> = pods.map(|pod| pod.key.clone()).collect();
                self.dirty.extend(keys);
            }
            Change::NetworkPolicy(before, after) => {
                let selects = |policy: &Arc<NetworkPolicy>, pod: &Pod| {
                    policy.selector.matches(&pod.labels) || policy.staging.replaces.is_some()
                };
                let either: Vec<_> = before.iter().chain(&after).collect();
                let policy = either.first()?;
                let namespace = Arc::clone(&policy.key.namespace);
                let first = PodKey { namespace: Arc::clone(&namespace), name: "".into() };
                let there = self.local.range(first..).map(|(key, _)| key);
                let there = there.take_while(|key| key.namespace == namespace);
                let selected = there.filter(|key| {
                    let pod = self.cache.pod(key);
                    pod.is_some_and(|pod| either.iter().any(|policy| selects(policy, pod)))
                });
                self.dirty.extend(selected.cloned());
            }
            Change::ClusterNetworkPolicy(before, after) => {
                self.mark(|pod, namespace| {
                    let mut either = before.iter().chain(&after);
                    either.any(|policy| {
                        policy.selects(namespace, &pod.labels) || policy.staging.replaces.is_some()
                    })
                });
            }
            Change::Nodes(names) => {
                self.nodes_changed = true;
                if self.cache.firewalls().values().any(|it| !it.nodes.is_everything()) {
                    self.outside.is_stale = true;
                    self.note_host_policies();
                    self.mark(|pod, _| pod.node.as_ref().is_some_and(|node| names.contains(node)));
                }
                self.host_acls.is_stale = true;
                self.services.surroundings_changed();
                self.domains.changed();
                self.cache.nodes_changed();
                names.iter().for_each(|name| self.membership.node_changed(&self.cache, name));
            }
            Change::NodeAddresses => self.cache.nodes_changed(),
        }
        None
    }

    fn service_changed(&mut self, key: Key) {
        self.domains.changed();
        if Cache::is_api_server(&key) {
            self.find_api_server();
            self.cache.nodes_changed();
        }
        self.services.service_changed(key);
    }

    /// Decides which pods are at addresses of other nodes, after changes of nodes.
    pub(super) fn check_claims(&mut self) {
        if !self.cache.take_claims_changed() {
            return;
        }
        let moved = self.membership.check_foreign(&self.cache);
        if matches!(self.scope, Scope::Node(_)) {
            self.moved.extend(&moved);
        }
        self.services.pod_changed(&moved.iter().copied().collect());
        self.cache.addresses_moved(&moved);
        self.refresh_domains(&moved, &[]);
        self.note_departed(moved);
    }

    /// Decides what counts of the addresses that nodes publish, after changes of whatever that depends
    /// on.
    pub(super) fn check_published(&mut self) {
        let nodes_changed = self.cache.is_checking();
        let is_pods = |address| self.membership.owner(address).is_some();
        for node in self.cache.check_published(is_pods) {
            self.domains.changed();
            self.membership.node_changed(&self.cache, &node);
        }
        if nodes_changed {
            self.find_api_server();
        }
    }

    fn find_api_server(&mut self) {
        if self.cache.find_api_server() {
            self.services.surroundings_changed();
            self.outside.is_stale = true;
            self.host_acls.is_stale = true;
            if !self.cache.firewalls().is_empty() {
                self.dirty.extend(self.local.keys().cloned());
            }
        }
    }

    /// Marks the local pods for which `affected` holds, given the labels of their namespace.
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

    /// Whether pod and namespace are without faults; otherwise the pod's policies are unknown, and it
    /// is closed.
    pub(super) fn is_readable(&self, pod: &Pod) -> bool {
        let namespace = self.cache.namespaces().get(&pod.key.namespace);
        pod.complete && namespace.is_some_and(|entry| entry.complete)
    }

    /// Whether the pod gets tables: it is in scope and takes part in policies.
    pub(super) fn is_local(&self, pod: &Pod) -> bool {
        let in_scope = match &self.scope {
            Scope::All => true,
            Scope::Node(name) => pod.node.as_ref() == Some(name) || self.cache.is_bound(&pod.key),
        };
        in_scope && self.is_readable(pod) && !self.cache.addresses_of(pod).is_empty()
    }
}
