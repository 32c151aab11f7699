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
    /// Its stage if it had no annotation.
    pub default_stage: Stage,
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

    /// Notes `change` if it concerns policy objects.
    pub(super) fn note_policy_change(&mut self, change: &Change) {
        let default = self.stage;
        let change = match change {
            Change::Namespace(name, before) => return self.note_stage_of(name, *before),
            Change::NetworkPolicy(before, after) => {
                policy_change(before, after, |it: &NetworkPolicy| {
                    let namespace = self.cache.namespaces().get(&it.key.namespace);
                    let default = namespace.and_then(|it| it.stage).unwrap_or(default);
                    (of_namespace(it), it.staging.stage(default), default)
                })
            }
            Change::ClusterNetworkPolicy(before, after) => {
                policy_change(before, after, |it: &ClusterNetworkPolicy| {
                    (of_cluster(it.kind, &it.name), it.staging.stage(default), default)
                })
            }
            Change::ClusterEgressFirewall(before, after) => {
                policy_change(before, after, |it: &ClusterEgressFirewall| {
                    let object = of_cluster(Kind::ClusterEgressFirewall, &it.name);
                    (object, it.staging.stage(default), default)
                })
            }
            Change::ClusterHostFirewall(before, after) => {
                policy_change(before, after, |it: &ClusterHostFirewall| {
                    let object = of_cluster(Kind::ClusterHostFirewall, &it.name);
                    (object, it.staging.stage(default), default)
                })
            }
            Change::None
            | Change::Pod(..)
            | Change::Nodes(_)
            | Change::NodeAddresses
            | Change::Service(_)
            | Change::Endpoints(_) => None,
        };
        self.policy_changes.extend(change);
    }

    /// Notes the policies whose stage is another one by that of their namespace, which was `before`.
    fn note_stage_of(&mut self, namespace: &Arc<str>, before: Option<Stage>) {
        let Some(entry) = self.cache.namespaces().get(namespace) else { return };
        let [before, default_stage] = [before, entry.stage].map(|it| it.unwrap_or(self.stage));
        if before == default_stage {
            return;
        }
        let changes = entry.policies.values().map(|policy| PolicyChange {
            object: of_namespace(policy),
            event: PolicyEvent::Changed,
            stage: policy.staging.stage(default_stage),
            default_stage,
        });
        let changes: Vec<PolicyChange> = changes.collect();
        self.policy_changes.extend(changes);
    }
}

fn of_namespace(policy: &NetworkPolicy) -> ObjectRef {
    let (namespace, name) = (Some(Arc::clone(&policy.key.namespace)), Arc::clone(&policy.key.name));
    ObjectRef { kind: Kind::NetworkPolicy, namespace, name }
}

fn of_cluster(kind: Kind, name: &Arc<str>) -> ObjectRef {
    ObjectRef { kind, namespace: None, name: Arc::clone(name) }
}

/// The change that an object's versions before and after amount to; `describe` returns its name, its stage,
/// and its stage if it had no annotation.
fn policy_change<T>(
    before: &Option<Arc<T>>,
    after: &Option<Arc<T>>,
    describe: impl Fn(&T) -> (ObjectRef, Stage, Stage),
) -> Option<PolicyChange> {
    let event = match (before, after) {
        (None, Some(_)) => PolicyEvent::Added,
        (Some(_), Some(_)) => PolicyEvent::Changed,
        (Some(_), None) => PolicyEvent::Removed,
        (None, None) => return None,
    };
    let (object, stage, default_stage) = describe(after.as_ref().or(before.as_ref())?);
    Some(PolicyChange { object, event, stage, default_stage })
}
