//! Addresses to identities.
//!
//! ```text
//!   peer sets             networks, nested            identities
//!   A: 10.0.0.0/8         10.0.0.0/8     in A         1 = {A}
//!      but 10.2.0.0/16      10.1.0.0/16  in A, B      2 = {A, B}
//!   B: 10.1.0.0/16          10.2.0.0/16  in none      0 = {}
//! ```
//!
//! Blocks and exceptions of all sets become one tree of nested networks; a network's
//! membership is that of the network around it, changed by what begins at it. Networks
//! with equal membership share one identity.
//!
//! An [`AddressMap`] is one version, never changed. An [`AddressMapEditor`] makes versions;
//! each shares all unchanged parts with the ones before.

mod by_set;
mod editor;
mod identities;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use ipnet::IpNet;

use crate::addresses::Addresses;
use crate::lpm::Lpm;
use crate::paged::Paged;
use crate::simd::{self, VECTOR};
use crate::{Address, Identity, Key};
use by_set::BySet;
pub use editor::AddressMapEditor;

/// A peer set: the addresses that one policy peer stands for right now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerSetId(pub u32);

/// Part of a peer set: a network less some exceptions inside it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Block {
    /// The network; a single address is a /32 or /128.
    pub net: IpNet,
    /// Networks inside `net` that do not belong to the block.
    pub except: Vec<IpNet>,
}

/// Collects peer sets; [`build`](Self::build) gives every address its identity.
#[derive(Clone, Debug, Default)]
pub struct AddressMapBuilder {
    sets: BTreeMap<PeerSetId, Vec<Block>>,
}

impl AddressMapBuilder {
    /// Adds blocks to a peer set (which exists from then on, be it empty).
    pub fn add(&mut self, set: PeerSetId, blocks: impl IntoIterator<Item = Block>) {
        self.sets.entry(set).or_default().extend(blocks);
    }

    /// The map of all that was added. Sorts once, then one pass: n log n in the number
    /// of networks, times the sets around each.
    pub fn build(&self) -> AddressMap {
        self.edit().version()
    }

    /// An editor that holds all that was added.
    pub fn edit(&self) -> AddressMapEditor {
        let blocks = self.sets.iter().flat_map(|(set, blocks)| blocks.iter().map(|b| (*set, b)));
        AddressMapEditor::from_blocks(blocks)
    }
}

/// Gives every address its identity, longest prefix first. A clone is cheap and shares.
#[derive(Clone, Debug)]
pub struct AddressMap {
    nets: Lpm,
    /// Sorted peer sets of each identity.
    members: Arc<Paged<Arc<[PeerSetId]>, 64>>,
    identities: u32,
    /// Made for [`index_sets`](Self::index_sets).
    by_set: Arc<OnceLock<BySet>>,
    /// Maps of one lineage give an identity the same meaning; see [`same_lineage`](Self::same_lineage).
    lineage: u64,
}

impl Default for AddressMap {
    fn default() -> Self {
        let none: Arc<[PeerSetId]> = Arc::default();
        Self {
            nets: Lpm::default(),
            members: Arc::new(Paged::filled(1, &none)),
            identities: 1,
            by_set: Arc::default(),
            lineage: 0,
        }
    }
}

impl AddressMap {
    /// The identity of `address`.
    #[inline]
    pub fn lookup(&self, address: Address) -> Identity {
        // Numbers are held plus one; no number is no set.
        Identity(self.nets.lookup(address).saturating_sub(1))
    }

    /// The identities of many addresses, overlapping their memory accesses; as many as the
    /// shorter of both slices has.
    pub fn lookup_vector(&self, addresses: &[Address], identities: &mut [Identity]) {
        let mut found = [0; VECTOR];
        for (addresses, identities) in addresses.chunks(VECTOR).zip(identities.chunks_mut(VECTOR)) {
            let found = &mut found[..addresses.len()];
            self.identities_of(Addresses::of(addresses), found);
            for (identity, found) in identities.iter_mut().zip(found) {
                *identity = Identity(*found);
            }
        }
    }

    /// Fills in the identities of the keys' sources, overlapping their memory accesses.
    pub fn identify_sources(&self, keys: &mut [Key]) {
        let set = |key: &mut Key, identity| key.source_identity = identity;
        self.identify(keys, |keys| Addresses::sources(keys), set);
    }

    /// Fills in the identities of the keys' destinations likewise.
    pub fn identify_destinations(&self, keys: &mut [Key]) {
        let set = |key: &mut Key, identity| key.destination_identity = identity;
        self.identify(keys, |keys| Addresses::destinations(keys), set);
    }

    #[inline(always)]
    fn identify(
        &self,
        keys: &mut [Key],
        addresses: impl Fn(&[Key]) -> Addresses<'_>,
        set: impl Fn(&mut Key, Identity),
    ) {
        let mut found = [0; VECTOR];
        for keys in keys.chunks_mut(VECTOR) {
            let found = &mut found[..keys.len()];
            self.identities_of(addresses(keys), found);
            for (key, found) in keys.iter_mut().zip(found) {
                set(key, Identity(*found));
            }
        }
    }

    /// The identities of [`VECTOR`] addresses at most.
    #[inline(always)]
    fn identities_of(&self, addresses: Addresses<'_>, found: &mut [u32]) {
        simd::widest(
            #[inline(always)]
            || {
                self.nets.lookup_each(addresses, found);
                found.iter_mut().for_each(|found| *found = found.saturating_sub(1));
            },
        );
    }

    /// The peer sets that addresses of this identity are in, sorted.
    pub fn members(&self, identity: Identity) -> &[PeerSetId] {
        if identity.0 < self.identities { self.members.get(identity.0 as usize) } else { &[] }
    }

    /// Whether addresses of this identity are in `set`.
    pub fn is_member(&self, identity: Identity, set: PeerSetId) -> bool {
        self.members(identity).binary_search(&set).is_ok()
    }

    /// Finds the identities of every set, once: worth its time before several tables are compiled.
    pub fn index_sets(&self) {
        self.by_set.get_or_init(|| BySet::new(self.identities().map(|it| self.members(it))));
    }

    /// The identities in a set, ascending; `None` before [`index_sets`](Self::index_sets).
    pub(crate) fn identities_in(&self, set: PeerSetId) -> Option<&[Identity]> {
        Some(self.by_set.get()?.of(set))
    }

    /// All identities, [`Identity::NONE`] first. Some may have no address any more.
    pub fn identities(&self) -> impl Iterator<Item = Identity> + Clone + '_ {
        (0..self.identities).map(Identity)
    }

    /// Whether both maps come from one editor that has not renumbered in between: an
    /// identity that both know stands for the same peer sets, and the one with more
    /// identities is the later one.
    pub fn same_lineage(&self, other: &Self) -> bool {
        self.lineage == other.lineage
    }

    /// Memory of this version, whatever other versions share of it.
    pub fn bytes(&self) -> usize {
        let sets: usize = self
            .identities()
            .map(|id| size_of_val(self.members(id)) + 2 * size_of::<usize>())
            .sum();
        let by_set = self.by_set.get().map_or(0, BySet::bytes);
        self.nets.bytes() + self.members.bytes() + sets + by_set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A map from lines such as `1 10.0.0.0/8 -10.1.0.0/16`: set, network, exceptions.
    fn map(text: &str) -> AddressMap {
        let mut builder = AddressMapBuilder::default();
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            let mut words = line.split_whitespace();
            let set = PeerSetId(words.next().unwrap().parse().unwrap());
            let block = words.next().map(|net| Block {
                net: net.parse().unwrap(),
                except: words.map(|word| word[1..].parse().unwrap()).collect(),
            });
            builder.add(set, block);
        }
        builder.build()
    }

    fn sets(map: &AddressMap, address: &str) -> Vec<u32> {
        let address: std::net::IpAddr = address.parse().unwrap();
        map.members(map.lookup(address.into())).iter().map(|set| set.0).collect()
    }

    #[test]
    fn nested_networks_and_exceptions() {
        let map = map("
            1 10.0.0.0/8 -10.1.0.0/16 -10.1.2.0/24
            2 10.1.0.0/16
            3 10.1.2.3/32
            4
        ");
        assert_eq!(sets(&map, "10.2.0.1"), [1]);
        assert_eq!(sets(&map, "10.1.0.1"), [2]);
        assert_eq!(sets(&map, "10.1.2.4"), [2]);
        assert_eq!(sets(&map, "10.1.2.3"), [2, 3]);
        assert_eq!(sets(&map, "11.0.0.1"), [0; 0]);
    }

    #[test]
    fn one_block_excepts_what_another_holds() {
        let map = map("
            1 10.0.0.0/8 -10.1.0.0/16
            1 10.1.2.0/24
            1 10.0.0.0/9
        ");
        assert_eq!(sets(&map, "10.1.0.1"), [1], "held by the /9");
        assert_eq!(sets(&map, "10.200.0.1"), [1]);
    }

    #[test]
    fn families_stay_apart() {
        let map = map("
            4 0.0.0.0/0
            6 ::/0
            7 ::ffff:10.0.0.0/104
            8 10.0.0.0/8 -::/0
        ");
        assert_eq!(sets(&map, "10.0.0.1"), [4, 8]);
        assert_eq!(sets(&map, "2001:db8::1"), [6]);
    }

    #[test]
    fn equal_membership_shares_an_identity() {
        let map = map("
            1 10.0.0.1/32
            1 10.0.0.2/32
            1 2001:db8::/32
        ");
        assert_eq!(map.identities().count(), 2);
        assert_eq!(sets(&map, "2001:db8::7"), [1]);
    }

    #[test]
    fn a_set_has_the_identities_that_are_in_it() {
        let map = map("
            1 10.0.0.0/8 -10.1.0.0/16
            2 10.1.0.0/16
            3 10.1.2.3/32 2001:db8::/32
            4
        ");
        assert_eq!(map.identities_in(PeerSetId(1)), None);
        map.index_sets();
        for set in (0..6).map(PeerSetId) {
            let wanted: Vec<Identity> =
                map.identities().filter(|it| map.is_member(*it, set)).collect();
            assert_eq!(map.identities_in(set), Some(&wanted[..]), "{set:?}");
        }
        assert_eq!(map.clone().identities_in(PeerSetId(2)).map(<[_]>::len), Some(2));
    }

    #[test]
    fn identities_are_numbered_anew_when_most_are_out_of_use() {
        let block = |net: &str| Block { net: net.parse().unwrap(), except: vec![] };
        let mut editor = AddressMapEditor::default();
        editor.add(PeerSetId(0), &block("10.0.0.0/8"));
        let first = editor.version();
        let is_numbered_anew = |set: &u32| {
            editor.add(PeerSetId(*set), &block("10.0.0.1/32"));
            let map = editor.version();
            assert!(editor.remove(PeerSetId(*set), &block("10.0.0.1/32")));
            !map.same_lineage(&first)
        };
        assert!((1..9000).find(is_numbered_anew).is_some());
        editor.add(PeerSetId(7), &block("10.0.0.1/32"));
        let last = editor.version();
        assert!(!last.same_lineage(&first) && last.identities().count() < 10);
        assert_eq!(sets(&last, "10.0.0.1"), [0, 7]);
        assert_eq!(sets(&first, "10.0.0.1"), [0]);
    }
}
