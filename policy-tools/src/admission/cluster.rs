//! The policies and namespaces of a cluster, as they are watched.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use control::api_server::Event;
use control::model::{Namespace, Requirement, Selector, Test, Tier};
use control::{Kind, Object, ObjectRef};

use super::Change;
use super::decisions::Decisions;

/// The kinds that are watched.
pub const KINDS: [Kind; 8] = [
    Kind::Namespace,
    Kind::Node,
    Kind::NetworkPolicy,
    Kind::ClusterNetworkPolicy,
    Kind::AdminNetworkPolicy,
    Kind::BaselineAdminNetworkPolicy,
    Kind::ClusterEgressFirewall,
    Kind::ClusterHostFirewall,
];

/// Namespaces, nodes and policies.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    /// NetworkPolicies by namespace and name.
    policies: BTreeMap<Arc<str>, BTreeMap<Arc<str>, Object>>,
    namespaces: BTreeMap<Arc<str>, Object>,
    others: BTreeMap<ObjectRef, Object>,
    decisions: Decisions,
}

impl Cluster {
    /// Applies an event; returns whether it was [`Event::Synced`].
    pub fn handle(&mut self, event: Event) -> bool {
        match event {
            Event::Resync(kind, objects, _) => {
                match kind {
                    Kind::Namespace => self.namespaces.clear(),
                    Kind::NetworkPolicy => self.policies.clear(),
                    _ => self.others.retain(|object, _| object.kind != kind),
                }
                objects.into_iter().for_each(|object| self.show(object));
            }
            Event::Apply(object, _) => self.show(object),
            Event::Delete(object) => {
                self.decisions.shown(&object, None);
                self.delete(&object);
            }
            Event::Synced => return true,
            _ => {}
        }
        false
    }

    /// Takes an object that a watch shows.
    fn show(&mut self, object: Object) {
        self.decisions.shown(&object.reference(), Some(&object));
        self.set(object);
    }

    /// Notes a change that is allowed now, unless another one was since there were `before`: that
    /// one may have been judged without this one. Returns whether it is noted.
    pub fn decide(&mut self, change: Change, before: u64, now: Instant) -> bool {
        let is_newest = self.decisions.number == before;
        if is_newest {
            self.decisions.add(change, now);
        }
        is_newest
    }

    /// Number of changes that were allowed.
    pub fn decisions(&self) -> u64 {
        self.decisions.number
    }

    /// The cluster after the changes that were allowed and not shown yet; `None` without any.
    pub(super) fn decided(&self, now: Instant) -> Option<Self> {
        self.decisions.applied(self, now)
    }

    /// Adds or replaces an object.
    pub fn set(&mut self, object: Object) {
        let reference = object.reference();
        match (reference.kind, reference.namespace.clone()) {
            (Kind::Namespace, _) => drop(self.namespaces.insert(reference.name, object)),
            (Kind::NetworkPolicy, Some(namespace)) => {
                self.policies.entry(namespace).or_default().insert(reference.name, object);
            }
            _ => drop(self.others.insert(reference, object)),
        }
    }

    pub(super) fn delete(&mut self, object: &ObjectRef) {
        match (object.kind, &object.namespace) {
            (Kind::Namespace, _) => drop(self.namespaces.remove(&object.name)),
            (Kind::NetworkPolicy, Some(namespace)) => {
                let policies = self.policies.get_mut(namespace);
                drop(policies.and_then(|policies| policies.remove(&object.name)));
            }
            _ => drop(self.others.remove(object)),
        }
    }

    /// Number of policies.
    pub fn count(&self) -> usize {
        let of_namespaces: usize = self.policies.values().map(BTreeMap::len).sum();
        of_namespaces + self.others.keys().filter(|object| object.kind.closes()).count()
    }

    pub(super) fn has_namespace(&self, name: &str) -> bool {
        self.namespaces.contains_key(name)
    }

    /// All objects, after a change.
    pub(super) fn whole(&self, change: Option<&Change>) -> Vec<Object> {
        let policies = self.policies.values().flat_map(BTreeMap::values);
        let all = self.namespaces.values().chain(policies).chain(self.others.values());
        changed(all.cloned(), change)
    }

    /// The objects that concern the namespaces `inside`, after a change. Pods of other namespaces that exist are
    /// permitted what cluster-wide policies before the NetworkPolicies do not deny.
    pub(super) fn slice(
        &self,
        inside: &BTreeSet<Arc<str>>,
        change: Option<&Change>,
    ) -> Vec<Object> {
        let outside = self.namespaces.keys().filter(|name| !inside.contains(*name));
        let outside: BTreeSet<Arc<str>> = outside.cloned().collect();
        let policies = inside.iter().filter_map(|name| self.policies.get(name));
        let namespaces = inside.iter().filter_map(|name| self.namespaces.get(name));
        let all = policies.flat_map(BTreeMap::values).chain(namespaces);
        let mut objects = changed(all.chain(self.others.values()).cloned(), change);
        if outside.is_empty() {
            return objects;
        }
        let elsewhere =
            Requirement { key: Namespace::NAME_LABEL.into(), test: Test::NotIn(outside) };
        for object in &mut objects {
            if let Object::ClusterNetworkPolicy(policy) = object
                && policy.tier == Tier::Baseline
            {
                let policy = Arc::make_mut(policy);
                let own = policy.namespaces.requirements().iter().cloned();
                policy.namespaces = own.chain([elsewhere.clone()]).collect::<Selector>();
            }
        }
        objects
    }
}

/// The objects with one of them changed.
fn changed(objects: impl Iterator<Item = Object>, change: Option<&Change>) -> Vec<Object> {
    let Some(Change { object, after }) = change else { return objects.collect() };
    objects.filter(|it| it.reference() != *object).chain(after.clone()).collect()
}
