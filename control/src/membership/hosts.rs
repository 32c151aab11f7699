//! Addresses of pods: the pod that each one belongs to, and its sets.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use acl::PeerSetId;
use ahash::RandomState;

use super::Membership;
use super::interests::Interest;
use crate::cache::Cache;
use crate::model::Pod;
use crate::objects::shared_sets;
use crate::{Fault, FieldFault, Kind, ObjectRef, PodKey};

/// Changes that wait for [`Membership::settle`] at most.
const PENDING: usize = 1 << 20;

impl Membership {
    /// The pod that an address is taken for.
    pub(crate) fn owner(&self, address: IpAddr) -> Option<&PodKey> {
        self.owners.get(address).map(|pod| &pod.key)
    }

    /// Every address that is a pod's.
    pub(crate) fn owners(&self) -> impl Iterator<Item = (IpAddr, &PodKey)> {
        self.owners.iter().map(|(address, pod)| (address, &pod.key))
    }

    /// The sets that an address is in by its pod, sorted.
    pub(super) fn sets_of_host(&self, address: IpAddr) -> &[PeerSetId] {
        self.inside.get(address).map_or(&[], |sets| sets)
    }

    /// A pod changed in the cache; it had the addresses `before` and has `now`.
    pub(crate) fn pod_changed(
        &mut self,
        cache: &Cache,
        key: &PodKey,
        before: &[IpAddr],
        now: &[IpAddr],
    ) {
        self.settle();
        for address in before.iter().filter(|address| !now.contains(address)) {
            self.unclaim(cache, *address, key);
        }
        for address in now.iter().filter(|address| !before.contains(address)) {
            self.claim(cache, *address, key);
        }
        for address in now.iter().filter(|address| before.contains(address)) {
            self.check_claim(cache, *address, key);
        }
        for address in before.iter().chain(now) {
            self.refresh(cache, *address);
        }
        self.refresh_numbers(cache, key);
    }

    /// The labels of a namespace changed in the cache.
    pub(crate) fn namespace_changed(&mut self, cache: &Cache, namespace: &Arc<str>) {
        self.settle();
        self.interests.forget(namespace);
        let Some(entry) = cache.namespaces().get(namespace) else { return };
        for pod in entry.pods.values() {
            for address in cache.addresses_of(pod) {
                self.refresh(cache, *address);
            }
            self.refresh_numbers(cache, &pod.key);
        }
    }

    /// Decides anew which pods are at an address of another node; returns the addresses that are
    /// another pod's now, or none's.
    pub(crate) fn check_foreign(&mut self, cache: &Cache) -> Vec<IpAddr> {
        let owners = self.owners.iter().map(|(address, pod)| (address, &pod.key));
        let others = self.rivals.iter().chain(&self.foreign);
        let others = others.flat_map(|(address, keys)| keys.iter().map(|key| (*address, key)));
        let is_wrong = |(address, key): &(IpAddr, &PodKey)| {
            cache.pod(key).is_some_and(|pod| {
                cache.foreign(pod, *address).is_some() != self.is_foreign(*address, key)
            })
        };
        let wrong = owners.chain(others).filter(is_wrong);
        let wrong: Vec<_> = wrong.map(|(address, key)| (address, key.clone())).collect();
        let mut moved = Vec::new();
        for (address, key) in wrong {
            let before = self.owner(address).cloned();
            self.check_claim(cache, address, &key);
            self.refresh(cache, address);
            if self.owner(address) != before.as_ref() {
                moved.push(address);
            }
        }
        moved
    }

    /// The pods that do not have an address that they claim, as faults of their objects.
    pub(crate) fn refused_claims(&self, cache: &Cache) -> impl Iterator<Item = Fault> {
        let fault = |pod: &Pod, problem: String| {
            let object = ObjectRef {
                kind: Kind::Pod,
                namespace: Some(Arc::clone(&pod.key.namespace)),
                name: Arc::clone(&pod.key.name),
            };
            FieldFault::new("status.podIPs", format!("{problem}; it is ignored")).of(object)
        };
        let of = |claims: &HashMap<IpAddr, Vec<PodKey>, RandomState>| {
            let pods =
                claims.iter().flat_map(|(address, keys)| keys.iter().map(|it| (*address, it)));
            let pods = pods.filter_map(|(address, key)| Some((address, cache.pod(key)?)));
            // One that is being deleted leaves its address to the next pod.
            let pods = pods.filter(|(_, pod)| !pod.is_terminating);
            pods.map(|(address, pod)| (address, Arc::clone(pod))).collect::<Vec<_>>()
        };
        let foreign = of(&self.foreign).into_iter().filter_map(|(address, pod)| {
            Some(fault(&pod, format!("{address} {}", cache.foreign(&pod, address)?)))
        });
        let rivals = of(&self.rivals).into_iter().filter_map(|(address, pod)| {
            Some(fault(&pod, format!("{address} is an address of Pod {}", self.owner(address)?)))
        });
        let mut all: Vec<Fault> = foreign.chain(rivals).collect();
        all.sort_unstable();
        all.into_iter()
    }

    fn is_foreign(&self, address: IpAddr, key: &PodKey) -> bool {
        self.foreign.get(&address).is_some_and(|keys| keys.contains(key))
    }

    /// Puts a claim among those that stand or those of addresses of other nodes, if it is not
    /// there.
    fn check_claim(&mut self, cache: &Cache, address: IpAddr, key: &PodKey) {
        let is_foreign = cache.pod(key).is_some_and(|it| cache.foreign(it, address).is_some());
        if is_foreign != self.is_foreign(address, key) {
            self.unclaim(cache, address, key);
            self.claim(cache, address, key);
        }
    }

    fn claim(&mut self, cache: &Cache, address: IpAddr, key: &PodKey) {
        if cache.pod(key).is_some_and(|pod| cache.foreign(pod, address).is_some()) {
            self.foreign.entry(address).or_default().push(key.clone());
            return;
        }
        match (self.owner(address), cache.pod(key)) {
            (Some(_), _) => self.rivals.entry(address).or_default().push(key.clone()),
            (None, Some(pod)) => drop(self.owners.insert(address, Arc::clone(pod))),
            (None, None) => {}
        }
    }

    fn unclaim(&mut self, cache: &Cache, address: IpAddr, key: &PodKey) {
        for claims in [&mut self.rivals, &mut self.foreign] {
            if let Some(keys) = claims.get_mut(&address) {
                keys.retain(|it| it != key);
                if keys.is_empty() {
                    claims.remove(&address);
                }
            }
        }
        if self.owner(address) != Some(key) {
            return;
        }
        // The pod that has it now is decided among all, as after every other change.
        let next = self.rivals.get_mut(&address).and_then(Vec::pop);
        match next.and_then(|next| cache.pod(&next)) {
            Some(next) => drop(self.owners.insert(address, Arc::clone(next))),
            None => {
                self.owners.remove(address);
                self.put_in(address, &[]);
            }
        }
    }

    /// Recomputes an address's owner and sets.
    fn refresh(&mut self, cache: &Cache, address: IpAddr) {
        self.reconcile(cache, address);
        let Some(owner) = self.owners.get_mut(address) else { return };
        let entry = cache.namespaces().get(&owner.key.namespace);
        let found = entry.and_then(|entry| Some((entry, entry.pods.get(&owner.key.name)?)));
        let sets = match found {
            Some((entry, pod)) => {
                // The pod as it was would be kept in memory with its last address.
                *owner = Arc::clone(pod);
                let covering = self.interests.covering(&pod.key.namespace, &entry.labels);
                let mut sets: Vec<PeerSetId> = covering
                    .iter()
                    .filter_map(|interest| match interest {
                        Interest::Set(id, set) if set.holds_pod(pod, &entry.labels, address) => {
                            Some(*id)
                        }
                        _ => None,
                    })
                    .collect();
                sets.sort_unstable();
                sets
            }
            None => Vec::new(),
        };
        self.put_in(address, &sets);
    }

    /// An address that several pods claim belongs to the one bound here, else to one that is not
    /// being deleted, else to the one created first. (Whether a pod is ready its author says, by
    /// its probes.)
    fn reconcile(&mut self, cache: &Cache, address: IpAddr) {
        let Some(mut rivals) = self.rivals.remove(&address).filter(|it| !it.is_empty()) else {
            return;
        };
        let rank = |key: &PodKey| {
            let pod = cache.pod(key).map(|pod| (!pod.is_terminating, Reverse(pod.created)));
            (cache.is_bound(key), pod, key.clone())
        };
        rivals.extend(self.owner(address).cloned());
        rivals.sort_by_cached_key(rank);
        if let Some(pod) = rivals.pop().and_then(|owner| cache.pod(&owner)) {
            self.owners.insert(address, Arc::clone(pod));
        }
        if !rivals.is_empty() {
            self.rivals.insert(address, rivals);
        }
    }

    /// Sets the sets of an address; notes what the editor has for it.
    fn put_in(&mut self, address: IpAddr, sets: &[PeerSetId]) {
        if sets == self.sets_of_host(address) {
            return;
        }
        let before = match sets.is_empty() {
            true => self.inside.remove(address),
            false => self.inside.insert(address, shared_sets(sets)),
        };
        if self.dirty.get(address).is_none() {
            self.dirty.insert(address, before.unwrap_or_default());
        }
    }

    /// Adds an address to a set or removes it, before the next version and the next change of a
    /// pod.
    pub(super) fn put(&mut self, address: IpAddr, id: PeerSetId, add: bool) {
        self.pending.push((address, id, add));
        if self.pending.len() >= PENDING {
            self.settle();
        }
    }

    /// Enters what is pending, address by address: a set at a time would cost each address all the
    /// sets that it is in.
    pub(super) fn settle(&mut self) {
        let mut pending = std::mem::take(&mut self.pending);
        // Stable: what came later counts.
        pending.sort_by_key(|(address, id, _)| (*address, *id));
        for of_address in pending.chunk_by(|a, b| a.0 == b.0) {
            let address = of_address[0].0;
            let known = self.sets_of_host(address);
            let last = |same: &[(IpAddr, PeerSetId, bool)]| same.last().map(|it| (it.1, it.2));
            let changes: BTreeMap<PeerSetId, bool> =
                of_address.chunk_by(|a, b| a.1 == b.1).filter_map(last).collect();
            let stay = known.iter().filter(|id| !changes.contains_key(id)).copied();
            let come = changes.iter().filter(|(_, add)| **add).map(|(id, _)| *id);
            let mut sets: Vec<PeerSetId> = stay.chain(come).collect();
            sets.sort_unstable();
            self.put_in(address, &sets);
        }
    }

    /// The pod that owns an address, as it is now.
    pub(super) fn is_owner(&self, pod: &Pod, address: IpAddr) -> bool {
        self.owner(address) == Some(&pod.key)
    }
}
