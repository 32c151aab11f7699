//! Peer sets: their numbers, their users, and the addresses of a set that comes or goes.

use std::collections::BTreeSet;
use std::mem;
use std::net::IpAddr;
use std::sync::Arc;

use acl::{Block, PeerSetId};

use super::interests::Interest;
use super::{Membership, Used, pods_in};
use crate::PodKey;
use crate::cache::Cache;
use crate::model::{Labels, Pod};
use crate::peers::PeerSet;

impl Membership {
    /// The number of a peer set, which exists from now on.
    pub(crate) fn set(&mut self, cache: &Cache, set: PeerSet) -> PeerSetId {
        if let Some(id) = self.ids.get(&set) {
            return *id;
        }
        let set = Arc::new(set);
        let id = self.fresh_id();
        self.ids.insert(Arc::clone(&set), id);
        self.sets.insert(id, Used { it: Arc::clone(&set), uses: 0 });
        self.idle_sets.insert(id);
        self.interests.add(Interest::Set(id, Arc::clone(&set)));
        if let Some(content) = &mut self.content {
            content.add(id, &set);
        }
        self.fill(cache, id, &set, true);
        id
    }

    fn fresh_id(&mut self) -> PeerSetId {
        while self.sets.contains_key(&PeerSetId(self.next)) {
            self.next = self.next.wrapping_add(1);
        }
        let id = PeerSetId(self.next);
        self.next = self.next.wrapping_add(1);
        id
    }

    /// Adds a user to a set.
    pub(crate) fn retain(&mut self, id: PeerSetId) {
        if let Some(entry) = self.sets.get_mut(&id) {
            entry.uses += 1;
            self.idle_sets.remove(&id);
        }
    }

    /// Removes a user.
    pub(crate) fn release(&mut self, id: PeerSetId) {
        if let Some(entry) = self.sets.get_mut(&id) {
            entry.uses = entry.uses.saturating_sub(1);
            if entry.uses == 0 {
                self.idle_sets.insert(id);
            }
        }
    }

    /// Returns the meaning of a set.
    pub(crate) fn meaning(&self, id: PeerSetId) -> Option<&PeerSet> {
        self.sets.get(&id).map(|entry| &*entry.it)
    }

    /// The pods that are in a set now, sorted.
    pub(crate) fn pods_of(&self, id: PeerSetId) -> Vec<PodKey> {
        let inside = self.inside.iter().filter(|(_, sets)| sets.binary_search(&id).is_ok());
        let pods = inside.filter_map(|(address, _)| self.owner(address).cloned());
        let pods: BTreeSet<PodKey> = pods.collect();
        pods.into_iter().collect()
    }

    /// Puts a set's addresses in or takes them out.
    fn fill(&mut self, cache: &Cache, id: PeerSetId, set: &Arc<PeerSet>, add: bool) {
        self.fill_domains(id, set, add);
        for block in acl_blocks(set) {
            match (self.rebuild, add) {
                (true, _) => {}
                (false, true) => self.editor.add(id, &block),
                (false, false) => drop(self.editor.remove(id, &block)),
            }
            self.edited = true;
        }
        if set.is_of_nodes() {
            let sets = self.sets_of_nodes();
            cache.nodes().keys().for_each(|name| self.refresh_node(cache, name, &sets));
        }
        if set.is_of_pods() {
            let covers = |name: &str, labels: &Labels| set.covers_namespace(name, labels);
            let mut touch = |(namespace, pod): (&Labels, &Arc<Pod>)| {
                let inside = |address: &&IpAddr| set.holds_pod(pod, namespace, **address);
                for address in cache.addresses_of(pod).iter().filter(inside) {
                    if self.is_owner(pod, *address) {
                        self.put(*address, id, add);
                    }
                }
            };
            match set.only_namespace() {
                Some(name) => {
                    let entry = cache.namespaces().get(name);
                    let entry = entry.filter(|entry| covers(name, &entry.labels));
                    let pods = entry
                        .into_iter()
                        .flat_map(|it| it.pods.values().map(|pod| (&*it.labels, pod)));
                    pods.for_each(&mut touch);
                }
                None => pods_in(cache, covers).for_each(touch),
            }
        }
    }

    /// Removes unused sets and names.
    pub(crate) fn sweep(&mut self, cache: &Cache) {
        for id in mem::take(&mut self.idle_sets) {
            let Some(entry) = self.sets.remove(&id) else { continue };
            self.ids.remove(&entry.it);
            self.interests.remove(&Interest::Set(id, Arc::clone(&entry.it)));
            if let Some(content) = &mut self.content {
                content.remove(id);
            }
            self.fill(cache, id, &entry.it, false);
        }
        self.sweep_names();
    }
}

/// The networks of a set, for an address map.
pub(super) fn acl_blocks(set: &PeerSet) -> Vec<Block> {
    let blocks = set.blocks();
    blocks.iter().map(|(net, except)| Block { net: *net, except: except.clone() }).collect()
}
