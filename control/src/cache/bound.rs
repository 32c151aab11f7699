//! Pods of this node, bound by the runtime before the API server reports them.

use std::net::IpAddr;

use super::Cache;
use crate::PodKey;
use crate::model::{Pod, Uid};

/// The binding of a local pod.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Bound {
    /// Uid of the pod; `None` matches any pod of the name.
    uid: Option<Uid>,
    addresses: Vec<IpAddr>,
}

impl Bound {
    /// Returns whether it is for this pod, rather than an earlier or later one of its name.
    fn is_about(&self, pod: &Pod) -> bool {
        match (&self.uid, &pod.uid) {
            (Some(given), Some(known)) => given == known,
            _ => true,
        }
    }
}

impl Cache {
    /// Binds a pod to addresses; returns whether that is a change.
    pub(crate) fn bind(&mut self, pod: &PodKey, uid: Option<Uid>, addresses: Vec<IpAddr>) -> bool {
        let bound = Bound { uid, addresses };
        if self.bound.get(pod) == Some(&bound) {
            return false;
        }
        self.bound.insert(pod.clone(), bound);
        true
    }

    /// Removes the binding; returns whether there was one.
    pub(crate) fn unbind(&mut self, pod: &PodKey) -> bool {
        self.bound.remove(pod).is_some()
    }

    /// Returns whether this pod is bound.
    pub(crate) fn is_bound(&self, pod: &PodKey) -> bool {
        self.bound.contains_key(pod)
    }

    /// The addresses at which a pod takes part in policies: those it is bound to, else those
    /// in its status; none if it is on the host network, finished or not known, or if another
    /// pod of its name is bound.
    pub(crate) fn addresses(&self, pod: &PodKey) -> &[IpAddr] {
        self.pod(pod).map_or(&[], |pod| self.addresses_of(pod))
    }

    /// The same for a pod that was found.
    pub(crate) fn addresses_of<'p>(&'p self, pod: &'p Pod) -> &'p [IpAddr] {
        if !pod.is_on_pod_network() {
            return &[];
        }
        match self.bound.get(&pod.key) {
            None => &pod.addresses,
            Some(bound) if bound.is_about(pod) => &bound.addresses,
            Some(_) => &[],
        }
    }

    /// Returns whether the known pod of this name is another one than the one bound.
    pub(crate) fn is_namesake(&self, key: &PodKey) -> bool {
        match (self.pod(key), self.bound.get(key)) {
            (Some(pod), Some(bound)) => !bound.is_about(pod),
            _ => false,
        }
    }
}
