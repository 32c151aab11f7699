//! Changes of policy objects, for the log.

use std::sync::Arc;

use super::Control;
use crate::cache::Change;
use crate::model::{
    ClusterEgressFirewall, ClusterHostFirewall, ClusterNetworkPolicy, NetworkPolicy, Stage,
};
use crate::{Kind, ObjectRef};

/// A change of a policy object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyChange {
    /// The object.
    pub object: ObjectRef,
    /// The change.
    pub event: PolicyEvent,
    /// Whether the object is enforced; of a deleted one, whether it was.
    pub stage: Stage,
}

/// The event of a policy object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyEvent {
    /// No object of this name was known.
    Added,
    /// The object replaced a different one.
    Changed,
    /// The object was deleted.
    Removed,
}

impl Control {
    /// Returns the changes of policy objects since the last call, in their order. An object that
    /// equals the one known makes none.
    pub fn take_policy_changes(&mut self) -> Vec<PolicyChange> {
        std::mem::take(&mut self.policy_changes)
    }

    /// Notes `change` if it concerns a policy object.
    pub(super) fn note_policy_change(&mut self, change: &Change) {
        let default = self.stage;
        let change = match change {
            Change::NetworkPolicy(before, after) => {
                policy_change(before, after, |it: &NetworkPolicy| {
                    let namespace = self.cache.namespaces().get(&it.key.namespace);
                    let default = namespace.and_then(|it| it.stage).unwrap_or(default);
                    let object = (Kind::NetworkPolicy, Some(&it.key.namespace), &it.key.name);
                    (object, it.staging.stage(default))
                })
            }
            Change::ClusterNetworkPolicy(before, after) => {
                policy_change(before, after, |it: &ClusterNetworkPolicy| {
                    ((it.kind, None, &it.name), it.staging.stage(default))
                })
            }
            Change::ClusterEgressFirewall(before, after) => {
                policy_change(before, after, |it: &ClusterEgressFirewall| {
                    ((Kind::ClusterEgressFirewall, None, &it.name), it.staging.stage(default))
                })
            }
            Change::ClusterHostFirewall(before, after) => {
                policy_change(before, after, |it: &ClusterHostFirewall| {
                    ((Kind::ClusterHostFirewall, None, &it.name), it.staging.stage(default))
                })
            }
            Change::None
            | Change::Namespace(_)
            | Change::Pod(..)
            | Change::Node(_)
            | Change::NodeAddresses
            | Change::Service(_) => None,
        };
        self.policy_changes.extend(change);
    }
}

/// Kind, namespace and name of an object, and its stage.
type Described<'a> = ((Kind, Option<&'a Arc<str>>, &'a Arc<str>), Stage);

/// The change that an object's versions before and after amount to.
fn policy_change<T>(
    before: &Option<Arc<T>>,
    after: &Option<Arc<T>>,
    describe: impl Fn(&T) -> Described<'_>,
) -> Option<PolicyChange> {
    let event = match (before, after) {
        (None, Some(_)) => PolicyEvent::Added,
        (Some(_), Some(_)) => PolicyEvent::Changed,
        (Some(_), None) => PolicyEvent::Removed,
        (None, None) => return None,
    };
    let ((kind, namespace, name), stage) = describe(after.as_ref().or(before.as_ref())?);
    let object = ObjectRef { kind, namespace: namespace.cloned(), name: Arc::clone(name) };
    Some(PolicyChange { object, event, stage })
}
