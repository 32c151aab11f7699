//! Addresses of pods: the pod that each one belongs to, and its sets.

use std::mem;
use std::net::IpAddr;
use std::sync::Arc;

use acl::PeerSetId;

use super::interests::Interest;
use super::{Membership, Sets};
use crate::PodKey;
use crate::cache::Cache;

/// An address of one pod, or of several that claim it.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) owner: PodKey,
    others: Vec<PodKey>,
    pub(super) sets: Sets,
}

impl Membership {
    /// The pod that an address is taken for.
    pub(crate) fn owner(&self, address: IpAddr) -> Option<&PodKey> {
        self.hosts.get(&address).map(|host| &host.owner)
    }

    /// Every address that is a pod's.
    pub(crate) fn owners(&self) -> impl Iterator<Item = (IpAddr, &PodKey)> {
        self.hosts.iter().map(|(address, host)| (*address, &host.owner))
    }

    /// A pod changed in the cache; it had the addresses `before` and has `now`.
    pub(crate) fn pod_changed(
        &mut self,
        cache: &Cache,
        key: &PodKey,
        before: &[IpAddr],
        now: &[IpAddr],
    ) {
        for address in before.iter().filter(|address| !now.contains(address)) {
            self.unclaim(*address, key);
        }
        for address in now.iter().filter(|address| !before.contains(address)) {
            self.claim(*address, key);
        }
        for address in before.iter().chain(now) {
            self.refresh(cache, *address);
        }
        self.refresh_numbers(cache, key);
    }

    /// The labels of a namespace changed in the cache.
    pub(crate) fn namespace_changed(&mut self, cache: &Cache, namespace: &Arc<str>) {
        self.interests.forget(namespace);
        let Some(entry) = cache.namespaces().get(namespace) else { return };
        for pod in entry.pods.values() {
            for address in cache.addresses_of(pod) {
                self.refresh(cache, *address);
            }
            self.refresh_numbers(cache, &pod.key);
        }
    }

    fn claim(&mut self, address: IpAddr, key: &PodKey) {
        match self.hosts.get_mut(&address) {
            Some(host) => host.others.push(key.clone()),
            None => {
                let host = Host { owner: key.clone(), others: Vec::new(), sets: Box::default() };
                self.hosts.insert(address, host);
            }
        }
    }

    fn unclaim(&mut self, address: IpAddr, key: &PodKey) {
        let Some(host) = self.hosts.get_mut(&address) else { return };
        host.others.retain(|other| other != key);
        if host.owner != *key {
            return;
        }
        match host.others.pop() {
            Some(other) => host.owner = other,
            None => {
                let sets = mem::take(&mut host.sets);
                self.hosts.remove(&address);
                self.dirty.entry(address).or_insert(sets);
            }
        }
    }

    /// Recomputes an address's owner and sets.
    fn refresh(&mut self, cache: &Cache, address: IpAddr) {
        let Some(host) = self.hosts.get_mut(&address) else { return };
        host.reconcile(cache);
        let entry = cache.namespaces().get(&host.owner.namespace);
        let found = entry.and_then(|entry| Some((entry, entry.pods.get(&host.owner.name)?)));
        let sets = match found {
            Some((entry, pod)) => {
                let covering = self.interests.covering(&host.owner.namespace, &entry.labels);
                let mut sets: Vec<PeerSetId> = covering
                    .iter()
                    .filter_map(|interest| match interest {
                        Interest::Set(id, set) if set.holds_pod(pod, address) => Some(*id),
                        _ => None,
                    })
                    .collect();
                sets.sort_unstable();
                sets.into_boxed_slice()
            }
            None => Box::default(),
        };
        if sets != host.sets {
            let before = mem::replace(&mut host.sets, sets);
            self.dirty.entry(address).or_insert(before);
        }
    }
}

impl Host {
    /// The address belongs to the pod bound here, else to the one created last.
    fn reconcile(&mut self, cache: &Cache) {
        if self.others.is_empty() {
            return;
        }
        let rank = |key: &PodKey| {
            let created = cache.pod(key).map_or(i64::MIN, |pod| pod.created);
            (cache.is_bound(key), created, key.clone())
        };
        self.others.push(self.owner.clone());
        self.others.sort_by_cached_key(rank);
        if let Some(owner) = self.others.pop() {
            self.owner = owner;
        }
    }

    /// Adds or removes a set; what was there before.
    pub(super) fn change(&mut self, id: PeerSetId, add: bool) -> Sets {
        let mut sets = self.sets.to_vec();
        match (sets.binary_search(&id), add) {
            (Err(at), true) => sets.insert(at, id),
            (Ok(at), false) => drop(sets.remove(at)),
            _ => {}
        }
        mem::replace(&mut self.sets, sets.into())
    }
}
