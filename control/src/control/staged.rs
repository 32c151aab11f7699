//! The policies that select a pod: those that are enforced, and those that would be if the staged ones
//! were.

use std::collections::HashSet;
use std::sync::Arc;

use super::{Acl, Control, Shared};
use crate::Object;
use crate::cache::Store;
use crate::configurator::{ClusterWide, Policies};
use crate::model::{
    ClusterEgressFirewall, ClusterNetworkPolicy, Direction, Kind, NetworkPolicy, Pod, Stage,
    Staging, Tier,
};

/// A policy that may be staged.
trait Staged {
    /// Its name among policies that share a store, of which another one may replace it.
    fn name(&self) -> (Kind, &Arc<str>);
    fn staging(&self) -> &Staging;
}

impl Staged for NetworkPolicy {
    fn name(&self) -> (Kind, &Arc<str>) {
        (Kind::NetworkPolicy, &self.key.name)
    }

    fn staging(&self) -> &Staging {
        &self.staging
    }
}

impl Staged for ClusterNetworkPolicy {
    fn name(&self) -> (Kind, &Arc<str>) {
        (self.kind, &self.name)
    }

    fn staging(&self) -> &Staging {
        &self.staging
    }
}

impl Staged for ClusterEgressFirewall {
    fn name(&self) -> (Kind, &Arc<str>) {
        (Kind::ClusterEgressFirewall, &self.name)
    }

    fn staging(&self) -> &Staging {
        &self.staging
    }
}

/// A set of policies to configure by.
#[derive(Clone, Copy)]
struct View {
    /// [`Stage::Enforced`] leaves out staged policies; [`Stage::Staged`] those that staged ones replace.
    of: Stage,
    /// The stage of policies without an annotation.
    default: Stage,
}

impl View {
    /// The policies of one kind in this view; names are compared with those in `policies` alone.
    fn select<K, P: Staged>(self, policies: &Store<K, P>) -> impl Iterator<Item = &Arc<P>> {
        let replacing = policies.values().filter(|_| self.of == Stage::Staged);
        let replaced: HashSet<(Kind, &Arc<str>)> = replacing
            .filter_map(|it| {
                let (kind, own) = it.name();
                Some((kind, it.staging().replaces.as_ref().filter(|name| *name != own)?))
            })
            .collect();
        policies.values().filter(move |it| match self.of {
            Stage::Enforced => it.staging().stage(self.default) == Stage::Enforced,
            Stage::Staged => !replaced.contains(&it.name()),
        })
    }
}

impl Control {
    /// Gives policies without an annotation this stage; before any object.
    pub fn stage_policies(&mut self, stage: Stage) {
        self.stage = stage;
    }

    /// Whether a policy in no namespace is enforced.
    pub(super) fn is_enforced(&self, staging: &Staging) -> bool {
        staging.stage(self.stage) == Stage::Enforced
    }

    /// Every known object, without the policies that are staged.
    pub fn enforced_objects(&self) -> impl Iterator<Item = Object> {
        self.objects().filter(|object| match object {
            Object::NetworkPolicy(policy) => {
                let entry = self.cache.namespaces().get(&policy.key.namespace);
                let stage = entry.and_then(|entry| entry.stage).unwrap_or(self.stage);
                policy.staging.stage(stage) == Stage::Enforced
            }
            Object::ClusterNetworkPolicy(policy) => self.is_enforced(&policy.staging),
            Object::ClusterEgressFirewall(firewall) => self.is_enforced(&firewall.staging),
            Object::ClusterHostFirewall(firewall) => self.is_enforced(&firewall.staging),
            Object::Namespace(_)
            | Object::Pod(_)
            | Object::Node(_)
            | Object::Service(_)
            | Object::EndpointSlice(_)
            | Object::NodeAddresses(_) => true,
        })
    }

    /// The enforced policies that select a pod, in order.
    pub(crate) fn policies_of(&self, pod: &Pod) -> Policies {
        self.policies_in(Stage::Enforced, pod)
    }

    fn policies_in(&self, of: Stage, pod: &Pod) -> Policies {
        let Some(entry) = self.cache.namespaces().get(&pod.key.namespace) else {
            return Policies::default();
        };
        let view = View { of, default: self.stage };
        let (namespace, pod_labels) = (&entry.labels, &pod.labels);
        let cluster = |tier: Tier| {
            let policies = view.select(self.cache.cluster_policies());
            let mut list: Vec<ClusterWide> = policies
                .filter(|it| it.tier == tier && it.selects(namespace, pod_labels))
                .map(|policy| ClusterWide::Policy(Arc::clone(policy)))
                .collect();
            // Stable: equal priorities stay in the order of their names, then kinds.
            list.sort_by_key(ClusterWide::priority);
            list
        };
        let firewalls = view.select(self.cache.firewalls());
        let node = pod.node.as_ref().and_then(|name| self.cache.nodes().get(name));
        let node = node.map(|node| &**node);
        let firewalls = firewalls.filter(|it| it.selects(namespace, pod_labels, node));
        let own = View { default: entry.stage.unwrap_or(self.stage), ..view };
        let namespaced = own.select(&entry.policies);
        let namespaced = namespaced.filter(|it| it.selector.matches(pod_labels));
        Policies {
            firewalls: firewalls.map(|it| ClusterWide::Firewall(Arc::clone(it))).collect(),
            admin: cluster(Tier::Admin),
            namespaced: namespaced.cloned().collect(),
            baseline: cluster(Tier::Baseline),
            api_server: self.cache.api_server().clone(),
        }
    }

    /// The ACLs of a pod if staged policies were enforced; `None` if that changes nothing. `enforced` are the
    /// policies that are.
    pub(super) fn staged_acls(
        &mut self,
        pod: &Pod,
        enforced: &Policies,
        shared: &mut Shared,
    ) -> Option<[Option<Acl>; 2]> {
        let staged = self.policies_in(Stage::Staged, pod);
        let is_other = !staged.is_same(enforced);
        is_other.then(|| Direction::BOTH.map(|it| self.shared_acl(pod, &staged, it, shared)))
    }
}
