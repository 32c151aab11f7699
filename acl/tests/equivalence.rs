//! Compiled forms against their definitions, over generated rule sets.

use std::sync::Arc;

use crate::common::{address, key, map, rule, sets};
use acl::{Address, AddressMap, AddressMapEditor, Block, Identity, Key, PeerSetId, Table, linear};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

/// Whether `address` is in `set`, by definition.
fn is_in(address: Address, set: PeerSetId, blocks: &[(PeerSetId, Block)]) -> bool {
    let ip = address.to_ip();
    blocks.iter().any(|(of, block)| {
        *of == set
            && block.net.contains(&ip)
            && !block.except.iter().any(|except| except.contains(&ip))
    })
}

fn with_identities(key: Key, map: &AddressMap) -> Key {
    Key {
        source_identity: map.lookup(key.source),
        destination_identity: map.lookup(key.destination),
        ..key
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn address_map_is_membership(blocks in sets(), addresses in vec(address(), 1..40)) {
        let map = map(&blocks);
        for address in addresses {
            let identity = map.lookup(address);
            for set in (0..7).map(PeerSetId) {
                prop_assert_eq!(
                    map.is_member(identity, set),
                    is_in(address, set, &blocks),
                    "{} in {:?}", address, set
                );
            }
        }
    }

    #[test]
    fn edited_address_map_is_membership(
        steps in vec((any::<bool>(), any::<Index>(), sets()), 1..12),
        addresses in vec(address(), 1..40),
    ) {
        let mut editor = AddressMapEditor::default();
        let mut blocks: Vec<(PeerSetId, Block)> = Vec::new();
        let mut versions = Vec::new();
        for (remove, index, added) in steps {
            if remove && !blocks.is_empty() {
                let (set, block) = blocks.swap_remove(index.index(blocks.len()));
                let nothing = map(&[(set, block.clone())]).identities().count() == 1;
                prop_assert!(editor.remove(set, &block) || nothing);
                let left = blocks.iter().any(|(of, other)| *of == set && other.net.trunc() == block.net.trunc());
                prop_assert!(left || !editor.remove(set, &block), "it is gone");
            } else {
                added.iter().for_each(|(set, block)| editor.add(*set, block));
                blocks.extend(added);
            }
            versions.push((editor.version(), blocks.clone()));
        }
        let last = versions[versions.len() - 1].0.clone();
        for (map, blocks) in versions {
            let mut identities = vec![Identity::NONE; addresses.len()];
            map.lookup_vector(&addresses, &mut identities);
            for (address, identity) in addresses.iter().zip(identities) {
                prop_assert_eq!(identity, map.lookup(*address));
                prop_assert!(map.same_lineage(&last));
                prop_assert_eq!(map.members(identity), last.members(identity));
                for set in (0..7).map(PeerSetId) {
                    prop_assert_eq!(map.is_member(identity, set), is_in(*address, set, &blocks));
                }
            }
        }
    }

    #[test]
    fn table_is_linear(
        blocks in sets(),
        rules in vec(rule(), 0..30),
        keys in vec(key(), 1..60),
    ) {
        let map = Arc::new(map(&blocks));
        let table = Table::compile(rules.into(), &map);
        let keys: Vec<Key> = keys.into_iter().map(|key| with_identities(key, &map)).collect();
        let mut again: Vec<Key> = keys
            .iter()
            .map(|key| Key {
                source_identity: Identity::NONE,
                destination_identity: Identity::NONE,
                ..*key
            })
            .collect();
        map.identify_sources(&mut again);
        map.identify_destinations(&mut again);
        prop_assert_eq!(&again, &keys);
        let mut found = vec![0; keys.len()];
        table.lookup_vector(&keys, &mut found);
        for (key, found) in keys.iter().zip(found) {
            let expected = linear::lookup(table.rules(), &map, key);
            prop_assert_eq!(table.lookup(key), expected, "{:?}", key);
            prop_assert_eq!(found, expected.map_or(Table::NONE, |at| at as u32), "{:?}", key);
        }
    }
}
