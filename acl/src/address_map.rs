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

use std::collections::{BTreeMap, HashMap};

use ahash::RandomState;
use ipnet::IpNet;

use crate::Address;
use crate::lpm::Lpm;
use crate::prefix::Prefix;

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

    /// The map of all that was added. Sorts once, then one pass: n log n in the number
    /// of networks, times the sets around each.
    pub fn build(&self) -> AddressMap {
        let mut changes = Vec::new();
        for (set, blocks) in &self.sets {
            for block in blocks {
                gather(*set, block, &mut changes);
            }
        }
        changes.sort_unstable_by_key(|change: &Change| change.prefix.order());

        let mut map = AddressMap::default();
        let mut known: HashMap<Box<[PeerSetId]>, Identity, RandomState> = HashMap::default();
        known.insert(Box::default(), Identity::NONE);
        // The networks around the current one, outermost first.
        let mut around: Vec<(Prefix, Counts)> = Vec::new();
        for same in changes.chunk_by(|a, b| a.prefix == b.prefix) {
            let prefix = same[0].prefix;
            while around.last().is_some_and(|(outer, _)| !outer.covers(prefix)) {
                around.pop();
            }
            let mut counts = around.last().map_or_else(Counts::new, |(_, counts)| counts.clone());
            for change in same {
                change.apply(&mut counts);
            }
            let members: Box<[PeerSetId]> = counts.iter().map(|(set, _)| *set).collect();
            let identity = match known.get(&members) {
                Some(identity) => *identity,
                None => {
                    let identity = Identity(map.members.len() as u32);
                    map.members.push(members.clone());
                    known.insert(members, identity);
                    identity
                }
            };
            map.nets.insert(prefix, identity.0);
            around.push((prefix, counts));
        }
        map
    }
}

/// What begins at a network: a block of a set, or an exception of one.
struct Change {
    prefix: Prefix,
    set: PeerSetId,
    step: i32,
}

/// How many blocks of each set cover a network, sorted by set, without zeros.
type Counts = Vec<(PeerSetId, i32)>;

impl Change {
    fn apply(&self, counts: &mut Counts) {
        match counts.binary_search_by_key(&self.set, |(set, _)| *set) {
            Ok(at) => {
                counts[at].1 += self.step;
                if counts[at].1 == 0 {
                    counts.remove(at);
                }
            }
            Err(at) => counts.insert(at, (self.set, self.step)),
        }
    }
}

/// The changes that a block stands for. Each address inside sees the block at most once
/// and as often taken away as an exception covers it: exceptions are made disjoint first.
fn gather(set: PeerSetId, block: &Block, changes: &mut Vec<Change>) {
    let Some(net) = Prefix::new(&block.net) else { return };
    let mut except: Vec<Prefix> = block.except.iter().filter_map(Prefix::new).collect();
    if except.iter().any(|except| except.covers(net)) {
        return;
    }
    except.retain(|except| net.covers(*except));
    except.sort_unstable_by_key(|except| except.order());
    // Sorted, an outer network comes right before all that it covers.
    except.dedup_by(|inner, outer| outer.covers(*inner));
    changes.push(Change { prefix: net, set, step: 1 });
    changes.extend(except.into_iter().map(|prefix| Change { prefix, set, step: -1 }));
}

/// Gives every address its identity, longest prefix first.
#[derive(Clone, Debug)]
pub struct AddressMap {
    nets: Lpm,
    /// Sorted peer sets of each identity.
    members: Vec<Box<[PeerSetId]>>,
}

impl Default for AddressMap {
    fn default() -> Self {
        Self { nets: Lpm::default(), members: vec![Box::default()] }
    }
}

impl AddressMap {
    /// The identity of `address`.
    #[inline]
    pub fn lookup(&self, address: Address) -> Identity {
        self.nets.lookup(address).map_or(Identity::NONE, Identity)
    }

    /// The peer sets that addresses of this identity are in, sorted.
    pub fn members(&self, identity: Identity) -> &[PeerSetId] {
        self.members.get(identity.0 as usize).map_or(&[], |members| members)
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
}
