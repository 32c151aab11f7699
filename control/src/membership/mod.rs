//! Maintains the members of peer sets.
//!
//! ```text
//!   peer set ──interest──► namespaces it covers        a pod of that namespace changes
//!   port name ─interest──►        │                               │
//!                                 ▼                               ▼
//!                     addresses with their sets ──dirty──► address map editor ─► version
//! ```
//!
//! A change of a pod is compared with the sets that cover its namespace and no others, so its cost
//! does not grow with the cluster. Changes are recorded per address and applied to the address map
//! once per commit, so an address that moves between sets never has a combination in between.

mod content;
mod domains;
mod interests;
mod names;
mod nets;
mod nodes;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::mem;
use std::net::IpAddr;
use std::sync::Arc;

use acl::{AddressMapBuilder, AddressMapEditor, Block, PeerSetId};
use ahash::RandomState;
use ipnet::IpNet;

use crate::PodKey;
use crate::cache::Cache;
use crate::model::{Labels, Pod};
use crate::peers::PeerSet;
use content::Content;
pub use content::{Members, PeerSets};
use domains::Domains;
pub(crate) use domains::Versions;
use interests::{Interest, Interests};
use names::Numbers;
pub(crate) use names::{NameId, NameOf};
pub(crate) use nets::Nets;
use nets::host;

/// Peer sets, port names and the addresses behind them.
#[derive(Debug, Default)]
pub(crate) struct Membership {
    ids: HashMap<Arc<PeerSet>, PeerSetId, RandomState>,
    sets: HashMap<PeerSetId, Used<PeerSet>, RandomState>,
    name_ids: HashMap<Arc<NameOf>, NameId, RandomState>,
    names: HashMap<NameId, (Used<NameOf>, Numbers), RandomState>,
    next: u32,
    /// Unused sets and names, to be removed at the end of the commit.
    idle_sets: BTreeSet<PeerSetId>,
    idle_names: BTreeSet<NameId>,
    /// Names whose numbers changed since the last commit.
    changed_names: HashSet<NameId, RandomState>,
    interests: Interests,
    hosts: HashMap<IpAddr, Host, RandomState>,
    /// The numbers each pod gives to the tracked names.
    published_numbers: HashMap<PodKey, Vec<(NameId, u16)>, RandomState>,
    /// The addresses of cluster nodes that are in any set.
    published_nodes: HashMap<Arc<str>, Vec<(IpAddr, Sets)>, RandomState>,
    domains: Domains,
    /// Addresses of names whose sets came or went.
    stale_domains: BTreeSet<IpAddr>,
    /// Addresses that changed, with the sets the editor still has for them.
    dirty: HashMap<IpAddr, Sets, RandomState>,
    editor: AddressMapEditor,
    /// The content of every set; only where a renderer writes sets out.
    content: Option<Content>,
    /// The editor differs from the last version.
    edited: bool,
    /// The editor has to be rebuilt from everything.
    rebuild: bool,
}

/// Sorted.
type Sets = Box<[PeerSetId]>;

#[derive(Debug)]
struct Used<T> {
    it: Arc<T>,
    /// Number of users.
    uses: usize,
}

/// An address of one pod, or of several that claim it.
#[derive(Debug)]
struct Host {
    owner: PodKey,
    others: Vec<PodKey>,
    sets: Sets,
}

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
            content.add(id, block_of(&set));
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
        let inside = self.hosts.values().filter(|host| host.sets.binary_search(&id).is_ok());
        let pods: BTreeSet<PodKey> = inside.map(|host| host.owner.clone()).collect();
        pods.into_iter().collect()
    }

    /// The pod that an address is taken for.
    pub(crate) fn owner(&self, address: IpAddr) -> Option<&PodKey> {
        self.hosts.get(&address).map(|host| &host.owner)
    }

    /// Every address that is a pod's.
    pub(crate) fn owners(&self) -> impl Iterator<Item = (IpAddr, &PodKey)> {
        self.hosts.iter().map(|(address, host)| (*address, &host.owner))
    }

    /// A pod changed in the cache; `before` are the addresses it had.
    pub(crate) fn pod_changed(&mut self, cache: &Cache, key: &PodKey, before: &[IpAddr]) {
        let now = cache.addresses(key);
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
            for address in cache.addresses(&pod.key) {
                self.refresh(cache, *address);
            }
            self.refresh_numbers(cache, &pod.key);
        }
    }

    /// Puts a set's addresses in or takes them out.
    fn fill(&mut self, cache: &Cache, id: PeerSetId, set: &Arc<PeerSet>, add: bool) {
        self.fill_domains(id, set, add);
        if let PeerSet::Block(net, except) = &**set {
            let block = Block { net: *net, except: except.clone() };
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
            let inside = |pod: &&Arc<Pod>, address: &IpAddr| set.holds_pod(pod, *address);
            let mut touch = |pod: &Arc<Pod>| {
                for address in cache.addresses(&pod.key).iter().filter(|it| inside(&pod, it)) {
                    let Some(host) = self.hosts.get_mut(address) else { continue };
                    if host.owner == pod.key {
                        let before = host.change(id, add);
                        self.dirty.entry(*address).or_insert(before);
                    }
                }
            };
            match set.only_namespace() {
                Some(name) => {
                    let entry = cache.namespaces().get(name);
                    let entry = entry.filter(|entry| covers(name, &entry.labels));
                    entry.into_iter().flat_map(|it| it.pods.values()).for_each(&mut touch);
                }
                None => pods_in(cache, covers).for_each(|(_, pod)| touch(pod)),
            }
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
        let sets = match (cache.pod(&host.owner), cache.namespaces().get(&host.owner.namespace)) {
            (Some(pod), Some(entry)) => {
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
            _ => Box::default(),
        };
        if sets != host.sets {
            let before = mem::replace(&mut host.sets, sets);
            self.dirty.entry(address).or_insert(before);
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

    /// Returns the address map with all changes applied; `None` if it did not change.
    pub(crate) fn version(&mut self) -> Option<Versions> {
        let dirty = mem::take(&mut self.dirty);
        // Many single edits cost more than sorting everything once.
        let many = dirty.len() > 4096 && dirty.len() > self.hosts.len() / 4;
        if many || mem::take(&mut self.rebuild) {
            self.editor = self.build().edit();
            self.edited = false;
            if self.content.is_some() {
                self.list_content();
            }
            return Some(self.versions());
        }
        for (address, before) in dirty {
            let now = self.hosts.get(&address).map_or(&[][..], |host| &host.sets);
            if *before != *now {
                self.editor.move_host(address, &before, now);
                if let Some(content) = &mut self.content {
                    content.move_host(address, &before, now);
                }
                self.edited = true;
            }
        }
        mem::take(&mut self.edited).then(|| self.versions())
    }

    /// Keeps the content of every set from now on.
    pub(crate) fn list_content(&mut self) {
        let mut content = Content::default();
        self.sets.iter().for_each(|(id, entry)| content.add(*id, block_of(&entry.it)));
        for (address, host) in &self.hosts {
            // The next version moves these in the editor and in the content.
            let sets = self.dirty.get(address).unwrap_or(&host.sets);
            content.move_host(*address, &[], sets);
        }
        for (address, before) in self.dirty.iter().filter(|(it, _)| !self.hosts.contains_key(it)) {
            content.move_host(*address, &[], before);
        }
        for (address, sets) in self.published_nodes.values().flatten() {
            content.move_host(*address, &[], sets);
        }
        for (address, sets) in &self.domains.published {
            content.move_host(*address, &[], sets);
        }
        self.content = Some(content);
    }

    /// The content of every set; empty unless it is kept.
    pub(crate) fn content(&self) -> Arc<PeerSets> {
        self.content.as_ref().map(Content::version).unwrap_or_default()
    }

    /// The networks of every set.
    pub(crate) fn nets(&self) -> HashMap<PeerSetId, Nets, RandomState> {
        let mut nets: HashMap<PeerSetId, Nets, RandomState> = HashMap::default();
        for (id, entry) in &self.sets {
            if let PeerSet::Block(net, except) = &*entry.it {
                nets.entry(*id).or_default().push((*net, except.clone()));
            }
        }
        let hosts = self.hosts.iter().map(|(address, host)| (address, &host.sets));
        let nodes = self.published_nodes.values().flatten().map(|(address, sets)| (address, sets));
        for (address, sets) in hosts.chain(nodes).chain(&self.domains.published) {
            sets.iter().for_each(|id| nets.entry(*id).or_default().push(host(*address)));
        }
        nets
    }

    fn build(&self) -> AddressMapBuilder {
        let mut builder = AddressMapBuilder::default();
        let single = |address: &IpAddr| Block { net: IpNet::from(*address), except: Vec::new() };
        for (id, entry) in &self.sets {
            if let PeerSet::Block(net, except) = &*entry.it {
                builder.add(*id, [Block { net: *net, except: except.clone() }]);
            }
        }
        let hosts = self.hosts.iter().map(|(address, host)| (address, &host.sets));
        let nodes = self.published_nodes.values().flatten().map(|(address, sets)| (address, sets));
        for (address, sets) in hosts.chain(nodes).chain(&self.domains.published) {
            sets.iter().for_each(|id| builder.add(*id, [single(address)]));
        }
        builder
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
    fn change(&mut self, id: PeerSetId, add: bool) -> Sets {
        let mut sets = self.sets.to_vec();
        match (sets.binary_search(&id), add) {
            (Err(at), true) => sets.insert(at, id),
            (Ok(at), false) => drop(sets.remove(at)),
            _ => {}
        }
        mem::replace(&mut self.sets, sets.into())
    }
}

/// The network of a set that is one, with its exceptions.
fn block_of(set: &PeerSet) -> Option<(IpNet, Vec<IpNet>)> {
    match set {
        PeerSet::Block(net, except) => Some((*net, except.clone())),
        _ => None,
    }
}

/// All pods of the namespaces that `covers` wants.
fn pods_in<'c>(
    cache: &'c Cache,
    covers: impl Fn(&str, &Labels) -> bool + 'c,
) -> impl Iterator<Item = (&'c Arc<str>, &'c Arc<Pod>)> {
    cache
        .namespaces()
        .iter()
        .filter(move |(name, entry)| covers(name, &entry.labels))
        .flat_map(|(name, entry)| entry.pods.values().map(move |pod| (name, pod)))
}
