//! Nodes in peer sets.

use std::net::IpAddr;
use std::sync::Arc;

use acl::PeerSetId;

use super::{Membership, Sets};
use crate::cache::Cache;
use crate::model::Node;
use crate::peers::PeerSet;

impl Membership {
    /// A node changed in the cache.
    pub(crate) fn node_changed(&mut self, cache: &Cache, name: &Arc<str>) {
        let sets: Vec<(PeerSetId, Arc<PeerSet>)> = self.sets_of_nodes();
        self.refresh_node(cache, name, &sets);
    }

    pub(super) fn sets_of_nodes(&self) -> Vec<(PeerSetId, Arc<PeerSet>)> {
        let of_nodes = self.sets.iter().filter(|(_, entry)| entry.it.is_of_nodes());
        of_nodes.map(|(id, entry)| (*id, Arc::clone(&entry.it))).collect()
    }

    pub(super) fn refresh_node(
        &mut self,
        cache: &Cache,
        name: &Arc<str>,
        sets: &[(PeerSetId, Arc<PeerSet>)],
    ) {
        let inside = |node: &Arc<Node>| {
            let of = |address: &IpAddr, is_published: bool| -> (IpAddr, Sets) {
                let holds = |set: &PeerSet| set.holds_node(node, *address, is_published);
                let held = sets.iter().filter(|(_, set)| holds(set));
                let mut held: Vec<PeerSetId> = held.map(|(id, _)| *id).collect();
                held.sort_unstable();
                (*address, held.into())
            };
            let listed = node.addresses.iter().map(|address| of(address, false));
            let published = cache.published(name).iter().map(|address| of(address, true));
            listed.chain(published).collect()
        };
        let mut now: Vec<(IpAddr, Sets)> = cache.nodes().get(name).map(inside).unwrap_or_default();
        now.retain(|(_, sets)| !sets.is_empty());
        let before = match now.is_empty() {
            true => self.published_nodes.remove(name),
            false => self.published_nodes.insert(Arc::clone(name), now.clone()),
        };
        let before = before.unwrap_or_default();
        if before == now || self.rebuild {
            return;
        }
        self.edited = true;
        for (address, sets) in &before {
            let still = now.iter().find(|(it, _)| it == address).map_or(&[][..], |(_, it)| it);
            self.editor.move_host(*address, sets, still);
            if let Some(content) = &mut self.content {
                content.move_host(*address, sets, still);
            }
        }
        let known = |address: &IpAddr| before.iter().any(|(it, _)| it == address);
        for (address, sets) in now.iter().filter(|(address, _)| !known(address)) {
            self.editor.move_host(*address, &[], sets);
            if let Some(content) = &mut self.content {
                content.move_host(*address, &[], sets);
            }
        }
    }
}
