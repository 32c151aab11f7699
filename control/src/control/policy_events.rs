//! Changes of policy objects, for the log.

use std::sync::Arc;

use super::Control;
use crate::cache::Change;
use crate::model::{
    ClusterEgressFirewall, ClusterHostFirewall, ClusterNetworkPolicy, NetworkPolicy,
};
use crate::{Kind, ObjectRef};

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
    /// Returns the events of policy objects since the last call, in their order. An object that
    /// equals the one known makes none.
    pub fn take_policy_events(&mut self) -> Vec<(ObjectRef, PolicyEvent)> {
        std::mem::take(&mut self.policy_events)
    }

    /// Notes `change` if it concerns a policy object.
    pub(super) fn note_policy_event(&mut self, change: &Change) {
        let event = match change {
            Change::NetworkPolicy(before, after) => event(before, after, |it: &NetworkPolicy| {
                (Kind::NetworkPolicy, Some(&it.key.namespace), &it.key.name)
            }),
            Change::ClusterNetworkPolicy(before, after) => {
                event(before, after, |it: &ClusterNetworkPolicy| {
                    (Kind::ClusterNetworkPolicy, None, &it.name)
                })
            }
            Change::ClusterEgressFirewall(before, after) => {
                event(before, after, |it: &ClusterEgressFirewall| {
                    (Kind::ClusterEgressFirewall, None, &it.name)
                })
            }
            Change::ClusterHostFirewall(before, after) => {
                event(before, after, |it: &ClusterHostFirewall| {
                    (Kind::ClusterHostFirewall, None, &it.name)
                })
            }
            Change::None
            | Change::Namespace(_)
            | Change::Pod(..)
            | Change::Node(_)
            | Change::Service(_) => None,
        };
        self.policy_events.extend(event);
    }
}

/// The event that an object's versions before and after a change amount to.
fn event<T>(
    before: &Option<Arc<T>>,
    after: &Option<Arc<T>>,
    reference: impl Fn(&T) -> (Kind, Option<&Arc<str>>, &Arc<str>),
) -> Option<(ObjectRef, PolicyEvent)> {
    let event = match (before, after) {
        (None, Some(_)) => PolicyEvent::Added,
        (Some(_), Some(_)) => PolicyEvent::Changed,
        (Some(_), None) => PolicyEvent::Removed,
        (None, None) => return None,
    };
    let (kind, namespace, name) = reference(after.as_ref().or(before.as_ref())?);
    Some((ObjectRef { kind, namespace: namespace.cloned(), name: Arc::clone(name) }, event))
}
