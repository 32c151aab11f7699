//! Policies that are not taken while the process is short of memory.
//!
//! A new or larger policy of the namespace whose policies are the largest permits nothing then: its
//! pods are closed, and no other namespace's. What is in force stays. Once there is memory, the
//! policies are taken as they are.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use ahash::RandomState;

use super::Control;
use crate::model::{Direction, Key, NetworkPolicy};
use crate::{Kind, Object, ObjectRef};

/// Policies as their objects say, where the cache has them closed.
#[derive(Debug, Default)]
pub(super) struct Withheld {
    is_short: bool,
    policies: BTreeMap<Key, Arc<NetworkPolicy>>,
}

impl Control {
    /// Refuses new and larger policies of the namespace with the largest ones from now on, or takes
    /// those that were refused.
    pub fn set_memory_short(&mut self, is_short: bool) {
        if std::mem::replace(&mut self.withheld.is_short, is_short) && !is_short {
            for policy in std::mem::take(&mut self.withheld.policies).into_values() {
                self.apply(Object::NetworkPolicy(policy));
            }
        }
    }

    /// The policies that permit nothing because memory is short, as texts of their faults.
    pub fn withheld_faults(&self) -> impl Iterator<Item = String> {
        self.withheld.policies.keys().map(|key| {
            let object = ObjectRef {
                kind: Kind::NetworkPolicy,
                namespace: Some(Arc::clone(&key.namespace)),
                name: Arc::clone(&key.name),
            };
            format!(
                "{object}: spec: permits nothing: the switch is near its memory limit, and the policies of this \
                 namespace are the largest"
            )
        })
    }

    /// The object as it is taken.
    pub(super) fn admitted(&mut self, object: Object) -> Object {
        let Object::NetworkPolicy(policy) = object else { return object };
        self.withheld.policies.remove(&policy.key);
        if !self.withheld.is_short || !self.is_greediest(&policy) {
            return Object::NetworkPolicy(policy);
        }
        let mut closed = NetworkPolicy::clone(&policy);
        for rules in [&mut closed.ingress, &mut closed.egress].into_iter().flatten() {
            rules.clear();
        }
        self.withheld.policies.insert(policy.key.clone(), policy);
        Object::NetworkPolicy(Arc::new(closed))
    }

    /// An object is gone.
    pub(super) fn forget_withheld(&mut self, object: &ObjectRef) {
        if let (Kind::NetworkPolicy, Some(namespace)) = (object.kind, &object.namespace) {
            let key = Key { namespace: Arc::clone(namespace), name: Arc::clone(&object.name) };
            self.withheld.policies.remove(&key);
        }
    }

    /// Whether a policy grows the policies of the namespace that has the largest ones with it.
    fn is_greediest(&self, policy: &NetworkPolicy) -> bool {
        let mut sizes: HashMap<&Arc<str>, usize, RandomState> = HashMap::default();
        let mut before = 0;
        for (name, entry) in self.cache.namespaces() {
            for known in entry.policies.values() {
                if known.key == policy.key {
                    before = size(known);
                } else {
                    *sizes.entry(name).or_default() += size(known);
                }
            }
        }
        let own = sizes.remove(&policy.key.namespace).unwrap_or(0) + size(policy);
        size(policy) > before && sizes.into_values().all(|other| other <= own)
    }
}

/// Parts of a policy that take memory: rules, peers and ports.
fn size(policy: &NetworkPolicy) -> usize {
    let rules = Direction::BOTH.map(|direction| policy.direction(direction).iter().flatten());
    let of_rule = |rule: &crate::model::PolicyRule| {
        let peers = rule.peers.as_ref().map_or(0, Vec::len);
        1 + peers + rule.ports.as_ref().map_or(0, Vec::len)
    };
    rules.into_iter().flatten().map(of_rule).sum()
}
