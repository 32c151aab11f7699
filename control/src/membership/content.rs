//! The content of every peer set, for renderers that write sets out address by address.
//!
//! Kept only on demand: the ACL renderer reads the address map instead. Versions share every set
//! that did not change.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use acl::PeerSetId;
use ipnet::IpNet;

/// The current content of one peer set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Members {
    /// Addresses of pods or nodes, each with the number of objects that hold it.
    Addresses(BTreeMap<IpAddr, u32>),
    /// A network less its exceptions.
    Block(IpNet, Vec<IpNet>),
}

/// Peer sets by number.
pub type PeerSets = BTreeMap<PeerSetId, Arc<Members>>;

/// The sets, changed in step with the address map.
#[derive(Debug, Default)]
pub(super) struct Content {
    sets: Arc<PeerSets>,
}

impl Members {
    /// Whether the address is in the set.
    pub fn contains(&self, address: IpAddr) -> bool {
        match self {
            Self::Addresses(addresses) => addresses.contains_key(&address),
            Self::Block(net, except) => {
                net.contains(&address) && !except.iter().any(|except| except.contains(&address))
            }
        }
    }
}

impl Content {
    /// A set that is a block, or one that holds no address yet.
    pub(super) fn add(&mut self, id: PeerSetId, block: Option<(IpNet, Vec<IpNet>)>) {
        let members = match block {
            Some((net, except)) => Members::Block(net, except),
            None => Members::Addresses(BTreeMap::new()),
        };
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
            let Members::Addresses(addresses) = Arc::make_mut(members) else { continue };
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
        content.add(id, None);
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
