//! Pods of this cluster node, as the runtime tells of them before the API does.

use std::net::IpAddr;
use std::sync::Arc;

use super::Cache;
use crate::PodKey;
use crate::model::Pod;

/// What was told of a local pod.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Bound {
    /// Of which pod of the name; `None` is any.
    uid: Option<Arc<str>>,
    addresses: Vec<IpAddr>,
}

impl Bound {
    /// Whether it is about this pod, and not about an earlier or later one of its name.
    fn is_about(&self, pod: &Pod) -> bool {
        match (&self.uid, &pod.uid) {
            (Some(told), Some(known)) => told == known,
            _ => true,
        }
    }
}

impl Cache {
    /// Tells the addresses of a pod before its object does; whether that is news.
    pub(crate) fn bind(
        &mut self,
        pod: &PodKey,
        uid: Option<Arc<str>>,
        addresses: Vec<IpAddr>,
    ) -> bool {
        let bound = Bound { uid, addresses };
        if self.bound.get(pod) == Some(&bound) {
            return false;
        }
        self.bound.insert(pod.clone(), bound);
        true
    }

    /// Takes that back; whether there was anything.
    pub(crate) fn unbind(&mut self, pod: &PodKey) -> bool {
        self.bound.remove(pod).is_some()
    }

    /// Whether addresses were told for this pod.
    pub(crate) fn is_bound(&self, pod: &PodKey) -> bool {
        self.bound.contains_key(pod)
    }

    /// The addresses at which a pod takes part in policies: those it is bound to, else those
    /// in its status; none if it is on the host network, finished or not known, or if another
    /// pod of its name is bound.
    pub(crate) fn addresses(&self, pod: &PodKey) -> &[IpAddr] {
        let Some(pod) = self.pod(pod).filter(|pod| pod.is_on_pod_network()) else { return &[] };
        match self.bound.get(&pod.key) {
            None => &pod.addresses,
            Some(bound) if bound.is_about(pod) => &bound.addresses,
            Some(_) => &[],
        }
    }

    /// Whether the pod of this name that is known is another one than the one bound.
    pub(crate) fn is_namesake(&self, key: &PodKey) -> bool {
        match (self.pod(key), self.bound.get(key)) {
            (Some(pod), Some(bound)) => !bound.is_about(pod),
            _ => false,
        }
    }
}
