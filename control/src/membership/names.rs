//! Port names of peers, and the numbers they stand for at the moment.
//!
//! An egress rule that names a port means another number on every pod that gives the name another
//! number. A name is tracked like a set: a pod that changes is compared with the names that cover
//! its namespace. Rules change only when a number gets its first pod or loses its last.

use std::collections::{BTreeMap, HashSet};
use std::mem;
use std::sync::Arc;

use ahash::RandomState;

use super::interests::Interest;
use super::{Membership, Used, pods_in};
use crate::PodKey;
use crate::cache::Cache;
use crate::model::{Labels, Pod};
use crate::peers::{NameId, NameOf};

/// Number of pods for each port number.
pub(super) type Numbers = BTreeMap<u16, u32>;

impl Membership {
    /// Returns the number of a port name and the numbers it stands for, sorted; tracks it from now
    /// on.
    pub(crate) fn name(&mut self, cache: &Cache, name: NameOf) -> (NameId, Vec<u16>) {
        let id = match self.name_ids.get(&name) {
            Some(id) => *id,
            None => self.follow(cache, Arc::new(name)),
        };
        let numbers = self.names.get(&id).into_iter().flat_map(|(_, numbers)| numbers.keys());
        (id, numbers.copied().collect())
    }

    fn follow(&mut self, cache: &Cache, name: Arc<NameOf>) -> NameId {
        while self.names.contains_key(&self.next) {
            self.next = self.next.wrapping_add(1);
        }
        let id = self.next;
        self.next = self.next.wrapping_add(1);
        let mut numbers = Numbers::new();
        let covers = |namespace: &str, labels: &Labels| name.peers.may_mean(namespace, labels);
        for (labels, pod) in pods_in(cache, covers) {
            for number in name.numbers(cache, labels, pod) {
                *numbers.entry(number).or_default() += 1;
                self.published_numbers.entry(pod.key.clone()).or_default().push((id, number));
            }
        }
        self.name_ids.insert(Arc::clone(&name), id);
        self.interests.add(Interest::Name(id, Arc::clone(&name)));
        self.names.insert(id, (Used { it: name, uses: 0 }, numbers));
        self.idle_names.insert(id);
        id
    }

    /// Adds a user to a port name.
    pub(crate) fn retain_name(&mut self, id: NameId) {
        if let Some((entry, _)) = self.names.get_mut(&id) {
            entry.uses += 1;
            self.idle_names.remove(&id);
        }
    }

    /// Removes a user.
    pub(crate) fn release_name(&mut self, id: NameId) {
        if let Some((entry, _)) = self.names.get_mut(&id) {
            entry.uses = entry.uses.saturating_sub(1);
            if entry.uses == 0 {
                self.idle_names.insert(id);
            }
        }
    }

    /// Returns the port names whose numbers changed since the last call.
    pub(crate) fn take_changed_names(&mut self) -> HashSet<NameId, RandomState> {
        mem::take(&mut self.changed_names)
    }

    /// Recomputes the numbers a pod gives to names.
    pub(super) fn refresh_numbers(&mut self, cache: &Cache, key: &PodKey) {
        let mut now: Vec<(NameId, u16)> = Vec::new();
        if !self.names.is_empty()
            && let Some(entry) = cache.namespaces().get(&key.namespace)
            && let Some(pod) = entry.pods.get(&key.name)
        {
            let covering = self.interests.covering(&key.namespace, &entry.labels);
            for interest in covering.iter() {
                if let Interest::Name(id, name) = interest {
                    now.extend(name.numbers(cache, &entry.labels, pod).map(|number| (*id, number)));
                }
            }
        }
        let before = match now.is_empty() {
            true => self.published_numbers.remove(key),
            false => self.published_numbers.insert(key.clone(), now.clone()),
        };
        for (id, number) in before.iter().flatten().filter(|it| !now.contains(it)) {
            let Some((_, numbers)) = self.names.get_mut(id) else { continue };
            let count = numbers.entry(*number).or_default();
            *count = count.saturating_sub(1);
            if *count == 0 {
                numbers.remove(number);
                self.changed_names.insert(*id);
            }
        }
        let before = before.unwrap_or_default();
        for (id, number) in now.iter().filter(|it| !before.contains(it)) {
            let Some((_, numbers)) = self.names.get_mut(id) else { continue };
            let count = numbers.entry(*number).or_default();
            *count += 1;
            if *count == 1 {
                self.changed_names.insert(*id);
            }
        }
    }

    /// Removes unused names.
    pub(super) fn sweep_names(&mut self) {
        for id in mem::take(&mut self.idle_names) {
            let Some((entry, _)) = self.names.remove(&id) else { continue };
            self.name_ids.remove(&entry.it);
            self.interests.remove(&Interest::Name(id, entry.it));
            self.changed_names.remove(&id);
            self.published_numbers.retain(|_, published| {
                published.retain(|(name, _)| *name != id);
                !published.is_empty()
            });
        }
    }
}

impl NameOf {
    /// The numbers that a pod of a namespace with these labels gives the name, if it is one of the
    /// peers.
    pub(super) fn numbers<'a>(
        &'a self,
        cache: &Cache,
        namespace: &Labels,
        pod: &'a Pod,
    ) -> impl Iterator<Item = u16> + use<'a> {
        let mut addresses = cache.addresses_of(pod).iter();
        // Most pods have no such port.
        let is_named = pod.named_port(&self.name, self.protocol).is_some();
        let meant = is_named && addresses.any(|it| self.peers.means_pod(pod, namespace, *it));
        pod.named_ports(&self.name, self.protocol).filter(move |_| meant)
    }
}
