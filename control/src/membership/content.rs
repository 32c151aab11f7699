//! The content of every peer set, for renderers that write sets out address by address.
//!
//! Kept only on demand: the ACL renderer reads the address map instead. Versions share every set
//! that did not change.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use acl::PeerSetId;
use ipnet::IpNet;

use crate::blocks::Blocks;
use crate::peers::PeerSet;

/// The current content of one peer set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    /// Addresses of pods, nodes and names, each with the number of objects that hold it; `None` in
    /// a set of networks alone.
    addresses: Option<BTreeMap<IpAddr, u32>>,
    /// These stay while the set is there.
    blocks: Blocks,
}

/// Peer sets by number.
pub type PeerSets = BTreeMap<PeerSetId, Arc<Members>>;

/// The sets, changed in step with the address map.
#[derive(Debug, Default)]
pub(super) struct Content {
    sets: Arc<PeerSets>,
}

impl Members {
    /// A set of these addresses.
    pub fn of_addresses(addresses: impl IntoIterator<Item = IpAddr>) -> Self {
        let addresses = addresses.into_iter().map(|address| (address, 1)).collect();
        Self { addresses: Some(addresses), blocks: Blocks::default() }
    }

    /// A set of networks, each less its exceptions.
    pub fn of_blocks(blocks: &[(IpNet, Vec<IpNet>)]) -> Self {
        let blocks = blocks.iter().map(|(net, except)| (*net, &except[..]));
        Self { addresses: None, blocks: Blocks::covered(blocks, 1) }
    }

    /// Whether the address is in the set.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.addresses.as_ref().is_some_and(|known| known.contains_key(&address))
            || self.blocks.contains(address)
    }

    /// Whether addresses come and go, beside the networks.
    pub fn has_addresses(&self) -> bool {
        self.addresses.is_some()
    }

    /// The addresses of pods, nodes and names, be they in one of the networks or not; sorted.
    pub fn addresses(&self) -> impl Iterator<Item = &IpAddr> {
        self.addresses.iter().flat_map(BTreeMap::keys)
    }

    /// First and last addresses of the networks, sorted and disjoint.
    pub fn ranges(&self) -> &[(IpAddr, IpAddr)] {
        self.blocks.ranges()
    }

    /// Whether one of the networks holds the address.
    pub fn is_in_block(&self, address: IpAddr) -> bool {
        self.blocks.contains(address)
    }
}

impl Content {
    /// A set with its networks, and no address yet.
    pub(super) fn add(&mut self, id: PeerSetId, set: &PeerSet) {
        let addresses = (!set.is_of_blocks()).then(BTreeMap::new);
        let members = Members { addresses, blocks: set.blocks() };
        Arc::make_mut(&mut self.sets).insert(id, Arc::new(members));
    }

    pub(super) fn remove(&mut self, id: PeerSetId) {
        Arc::make_mut(&mut self.sets).remove(&id);
    }

    /// Moves an address of one object from some sets to others. Removed sets are passed over.
    pub(super) fn move_host(&mut self, address: IpAddr, from: &[PeerSetId], to: &[PeerSetId]) {
        let left = from.iter().filter(|id| !to.contains(id));
        let joined = to.iter().filter(|id| !from.contains(id));
        for (id, joins) in left.map(|id| (id, false)).chain(joined.map(|id| (id, true))) {
            let sets = Arc::make_mut(&mut self.sets);
            let Some(members) = sets.get_mut(id) else { continue };
            let Some(addresses) = &mut Arc::make_mut(members).addresses else { continue };
            if joins {
                *addresses.entry(address).or_default() += 1;
            } else if let Some(count) = addresses.get_mut(&address) {
                *count -= 1;
                if *count == 0 {
                    addresses.remove(&address);
                }
            }
        }
    }

    /// The sets as they are now; the same version while nothing changes.
    pub(super) fn version(&self) -> Arc<PeerSets> {
        Arc::clone(&self.sets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_two_objects_hold_stays_until_both_are_gone() {
        let address: IpAddr = "192.0.2.1".parse().unwrap();
        let id = PeerSetId(1);
        let mut content = Content::default();
        content.add(id, &PeerSet::FaultyNodes);
        let contains = |content: &Content| content.version()[&id].contains(address);
        content.move_host(address, &[], &[id]);
        content.move_host(address, &[], &[id]);
        let before = content.version();
        content.move_host(address, &[id], &[]);
        assert!(contains(&content));
        content.move_host(address, &[id], &[PeerSetId(9)]);
        assert!(!contains(&content));
        assert!(before[&id].contains(address), "versions do not change");
    }
}
