//! Addresses to identities.

use std::collections::{BTreeMap, HashMap};

use ipnet::IpNet;

use crate::Address;

/// A peer set: the addresses that one policy peer stands for right now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerSetId(pub u32);

/// Stands for "in exactly these peer sets"; [`Identity::NONE`] is in none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Identity(pub u32);

impl Identity {
    /// The identity of an address that is in no peer set.
    pub const NONE: Self = Self(0);
}

/// Part of a peer set: a network less some exceptions inside it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Block {
    /// The network; a single address is a /32 or /128.
    pub net: IpNet,
    /// Networks inside `net` that do not belong to the block.
    pub except: Vec<IpNet>,
}

/// Gathers peer sets; [`build`](Self::build) gives every address its identity.
#[derive(Clone, Debug, Default)]
pub struct AddressMapBuilder {
    sets: BTreeMap<PeerSetId, Vec<Block>>,
}

impl AddressMapBuilder {
    /// Adds blocks to a peer set (which exists from then on, be it empty).
    pub fn add(&mut self, set: PeerSetId, blocks: impl IntoIterator<Item = Block>) {
        self.sets.entry(set).or_default().extend(blocks);
    }

    /// The map of all that was added.
    pub fn build(&self) -> AddressMap {
        let mut nets: Vec<IpNet> = self
            .sets
            .values()
            .flatten()
            .flat_map(|block| block.except.iter().chain([&block.net]))
            .map(IpNet::trunc)
            .collect();
        nets.sort_unstable();
        nets.dedup();
        let mut map = AddressMap::default();
        let mut known: HashMap<Vec<PeerSetId>, Identity> =
            HashMap::from([(Vec::new(), Identity::NONE)]);
        for net in nets {
            let inside = |block: &Block| {
                block.net.contains(&net) && !block.except.iter().any(|except| except.contains(&net))
            };
            let members: Vec<PeerSetId> = self
                .sets
                .iter()
                .filter(|(_, blocks)| blocks.iter().any(inside))
                .map(|(set, _)| *set)
                .collect();
            let next = Identity(known.len() as u32);
            let identity = *known.entry(members.clone()).or_insert_with(|| {
                map.members.push(members);
                next
            });
            map.nets.push((net, identity));
        }
        map
    }
}

/// Gives every address its identity, longest prefix first.
#[derive(Clone, Debug)]
pub struct AddressMap {
    nets: Vec<(IpNet, Identity)>,
    /// Sorted peer sets of each identity.
    members: Vec<Vec<PeerSetId>>,
}

impl Default for AddressMap {
    fn default() -> Self {
        Self { nets: Vec::new(), members: vec![Vec::new()] }
    }
}

impl AddressMap {
    /// The identity of `address`.
    pub fn lookup(&self, address: Address) -> Identity {
        let ip = address.to_ip();
        self.nets
            .iter()
            .filter(|(net, _)| net.contains(&ip))
            .max_by_key(|(net, _)| net.prefix_len())
            .map_or(Identity::NONE, |(_, identity)| *identity)
    }

    /// The peer sets that addresses of this identity are in, sorted.
    pub fn members(&self, identity: Identity) -> &[PeerSetId] {
        self.members.get(identity.0 as usize).map_or(&[], Vec::as_slice)
    }

    /// Whether addresses of this identity are in `set`.
    pub fn is_member(&self, identity: Identity, set: PeerSetId) -> bool {
        self.members(identity).binary_search(&set).is_ok()
    }

    /// All identities, [`Identity::NONE`] first.
    pub fn identities(&self) -> impl Iterator<Item = Identity> + '_ {
        (0..self.members.len() as u32).map(Identity)
    }
}
