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

mod by_address;
mod content;
mod domains;
mod hosts;
mod interests;
mod names;
mod nets;
mod nodes;
mod sets;

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
use crate::peers::{NameId, NameOf, PeerSet};
use by_address::ByAddress;
use content::Content;
pub use content::{Members, PeerSets};
use domains::Domains;
pub(crate) use domains::Versions;
use interests::Interests;
use names::Numbers;
pub(crate) use nets::Nets;
use nets::host;
use sets::acl_blocks;

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
    /// The pod that each address belongs to.
    owners: ByAddress<Arc<Pod>>,
    /// Other pods that claim an address.
    rivals: HashMap<IpAddr, Vec<PodKey>, RandomState>,
    /// Pods that claim an address that is another node's.
    foreign: HashMap<IpAddr, Vec<PodKey>, RandomState>,
    /// The addresses of pods that are in any set.
    inside: ByAddress<Sets>,
    /// The numbers each pod gives to the tracked names.
    published_numbers: HashMap<PodKey, Vec<(NameId, u16)>, RandomState>,
    /// The addresses of nodes that are in any set.
    published_nodes: HashMap<Arc<str>, Vec<(IpAddr, Sets)>, RandomState>,
    domains: Domains,
    /// Addresses of names whose sets came or went.
    stale_domains: BTreeSet<IpAddr>,
    /// Addresses of pods that sets get or lose, not yet entered.
    pending: Vec<(IpAddr, PeerSetId, bool)>,
    /// Addresses that changed, with the sets the editor still has for them.
    dirty: ByAddress<Sets>,
    editor: AddressMapEditor,
    /// The content of every set; only where a renderer writes sets out.
    content: Option<Content>,
    /// The editor differs from the last version.
    edited: bool,
    /// The editor has to be rebuilt from everything.
    rebuild: bool,
}

/// Sorted.
type Sets = Arc<[PeerSetId]>;

#[derive(Debug)]
struct Used<T> {
    it: Arc<T>,
    /// Number of users.
    uses: usize,
}

impl Membership {
    /// Returns the address map with all changes applied; `None` if it did not change.
    pub(crate) fn version(&mut self) -> Option<Versions> {
        self.settle();
        let dirty = mem::take(&mut self.dirty);
        // Many single edits cost more than sorting everything once.
        let many = dirty.len() > 4096 && dirty.len() > self.inside.len() / 4;
        if many || mem::take(&mut self.rebuild) {
            self.editor = self.build().edit();
            self.edited = false;
            if self.content.is_some() {
                self.list_content();
            }
            return Some(self.versions());
        }
        for (address, before) in dirty.iter() {
            let now = self.inside.get(address).map_or(&[][..], |sets| sets);
            if **before != *now {
                self.editor.move_host(address, before, now);
                if let Some(content) = &mut self.content {
                    content.move_host(address, before, now);
                }
                self.edited = true;
            }
        }
        mem::take(&mut self.edited).then(|| self.versions())
    }

    /// Keeps the content of every set from now on.
    pub(crate) fn list_content(&mut self) {
        let mut content = Content::default();
        self.sets.iter().for_each(|(id, entry)| content.add(*id, &entry.it));
        for (address, sets) in self.inside.iter() {
            // The next version moves these in the editor and in the content.
            let sets = self.dirty.get(address).unwrap_or(sets);
            content.move_host(address, &[], sets);
        }
        let is_gone = |(address, _): &(IpAddr, &Sets)| self.inside.get(*address).is_none();
        for (address, before) in self.dirty.iter().filter(is_gone) {
            content.move_host(address, &[], before);
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
            let blocks = entry.it.blocks();
            if !blocks.is_empty() {
                nets.entry(*id).or_default().extend(blocks.iter().cloned());
            }
        }
        for (address, sets) in self.hosts() {
            sets.iter().for_each(|id| nets.entry(*id).or_default().push(host(address)));
        }
        nets
    }

    /// The addresses of pods, nodes and names that are in any set.
    fn hosts(&self) -> impl Iterator<Item = (IpAddr, &Sets)> {
        let nodes = self.published_nodes.values().flatten().map(|(address, sets)| (*address, sets));
        let names = self.domains.published.iter().map(|(address, sets)| (*address, sets));
        self.inside.iter().chain(nodes).chain(names)
    }

    fn build(&self) -> AddressMapBuilder {
        let mut builder = AddressMapBuilder::default();
        let single = |address| Block { net: IpNet::from(address), except: Vec::new() };
        for (id, entry) in &self.sets {
            builder.add(*id, acl_blocks(&entry.it));
        }
        for (address, sets) in self.hosts() {
            sets.iter().for_each(|id| builder.add(*id, [single(address)]));
        }
        builder
    }
}

/// All pods of the namespaces that `covers` wants, with the labels of these.
fn pods_in<'c>(
    cache: &'c Cache,
    covers: impl Fn(&str, &Labels) -> bool + 'c,
) -> impl Iterator<Item = (&'c Labels, &'c Arc<Pod>)> {
    cache
        .namespaces()
        .iter()
        .filter(move |(name, entry)| covers(name, &entry.labels))
        .flat_map(|(_, entry)| entry.pods.values().map(|pod| (&*entry.labels, pod)))
}
