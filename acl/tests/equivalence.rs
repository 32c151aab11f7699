//! Compiled forms against their definitions, over generated rule sets.

mod common;

use std::sync::Arc;

use acl::{Address, Block, Key, PeerSetId, Table, linear};
use common::{address, key, map, rule, sets};
use proptest::collection::vec;
use proptest::prelude::*;

/// Whether `address` is in `set`, by definition.
fn is_in(address: Address, set: PeerSetId, blocks: &[(PeerSetId, Block)]) -> bool {
    let ip = address.to_ip();
    blocks.iter().any(|(of, block)| {
        *of == set
            && block.net.contains(&ip)
            && !block.except.iter().any(|except| except.contains(&ip))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

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
    fn table_is_linear(
        blocks in sets(),
        rules in vec(rule(), 0..30),
        keys in vec(key(), 1..60),
    ) {
        let map = Arc::new(map(&blocks));
        let table = Table::compile(rules.into(), &map);
        for key in keys {
            let key = Key {
                source_identity: map.lookup(key.source),
                destination_identity: map.lookup(key.destination),
                ..key
            };
            prop_assert_eq!(
                table.lookup(&key),
                linear::lookup(table.rules(), &map, &key),
                "{:?}", key
            );
        }
    }
}
