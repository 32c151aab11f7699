//! Lookups in tables agree with the linear form, whatever structure is chosen.

mod bounds;

use super::*;
use crate::simd::tests::in_each_form;
use crate::{Action, Address, AddressMapBuilder, Block, End, Key, PeerSetId, PortRange, linear};
use networks::Networks;
use proptest::collection::vec;
use proptest::prelude::*;

#[allow(dead_code, unreachable_pub, reason = "shared with the tests of the public interface")]
#[path = "../../../tests/common/mod.rs"]
mod common;
#[path = "../../../benches/lookup/networks.rs"]
pub(super) mod networks;

fn compiled(rules: &Arc<[Rule]>, addresses: &Arc<AddressMap>, parts: Parts) -> Table {
    let (rules, addresses) = (Arc::clone(rules), Arc::clone(addresses));
    Table { permits: permits(&rules), rules, addresses, parts }
}

/// Compares a table, in all forms of its loops, with the scan that defines it.
fn check(table: &Table, keys: &[Key]) {
    let expected: Vec<Option<usize>> =
        keys.iter().map(|key| linear::lookup(table.rules(), &table.addresses, key)).collect();
    for (key, expected) in keys.iter().zip(&expected) {
        assert_eq!(table.lookup(key), *expected, "{key:?} in {}", table.report());
    }
    in_each_form(|form| {
        let mut found = vec![0; keys.len()];
        table.lookup_vector(keys, &mut found);
        for ((key, found), expected) in keys.iter().zip(found).zip(&expected) {
            let expected = expected.map_or(NONE, |at| at as u32);
            assert_eq!(found, expected, "{form:?}: {key:?} in {}", table.report());
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn every_structure_is_linear(
        blocks in common::sets(),
        rules in vec(common::rule(), 0..40),
        keys in vec(common::key(), 1..60),
    ) {
        let map = Arc::new(common::map(&blocks));
        let identities = |key: Key| Key {
            source_identity: map.lookup(key.source),
            destination_identity: map.lookup(key.destination),
            ..key
        };
        let keys: Vec<Key> = keys.into_iter().map(identities).collect();
        let rules: Arc<[Rule]> = rules.into();
        for parts in plan::all(&rules, &map) {
            check(&compiled(&rules, &map, parts), &keys);
        }
        map.index_sets();
        for parts in plan::all(&rules, &map) {
            check(&compiled(&rules, &map, parts), &keys);
        }
    }
}

/// Rules over networks nested in each other on both ends, each with ports of its own.
fn nested(count: u32, v4: bool, networks: &mut Networks) -> Vec<Rule> {
    let mut end = |number: u32| {
        let (bits, length) = (number.wrapping_mul(0x9e37_79b1), number % 25 + 8);
        networks.end(match v4 {
            true => ipnet::Ipv4Net::new_assert((bits & 0xff3f_0f07).into(), length as u8).into(),
            false => {
                let bits = 0x2001_0db8 << 96 | u128::from(bits & 0xff3f_0f07) << 40;
                ipnet::Ipv6Net::new_assert(bits.into(), 24 + 2 * length as u8).into()
            }
        })
    };
    (0..count)
        .map(|number| {
            let first = (number * 37 % 50_000) as u16;
            Rule::new(Action::Deny, "")
                .source(end(number))
                .destination(end(number.wrapping_mul(7) + 3))
                .protocol(if number % 3 == 0 { 17 } else { 6 })
                .destination_ports(PortRange { first, last: first + (number % 4 * 300) as u16 })
        })
        .collect()
}

/// A key inside each rule, and one beside it; with their identities.
fn keys_of(rules: &[Rule], networks: &Networks, map: &AddressMap) -> Vec<Key> {
    let keys = rules.iter().enumerate().flat_map(|(number, rule)| {
        let low = (number as u128 * 0x9e37) & 0xff;
        let key = Key {
            source: networks.inside(rule.source, low),
            destination: networks.inside(rule.destination, low),
            protocol: rule.protocol.unwrap_or(6),
            destination_port: rule.destination_ports.first,
            ..Key::default()
        };
        [key, Key { destination_port: key.destination_port ^ 1, ..key }]
    });
    identified(keys.collect(), map)
}

fn identified(mut keys: Vec<Key>, map: &AddressMap) -> Vec<Key> {
    map.identify_sources(&mut keys);
    map.identify_destinations(&mut keys);
    keys
}

/// The lookup that `docs/classifier.md` follows.
#[test]
fn worked_example() {
    let mut builder = AddressMapBuilder::default();
    let nets = ["10.1.0.0/16", "10.1.7.0/24", "192.0.2.0/24", "192.0.2.9/32"];
    for (set, net) in (1..).zip(nets) {
        builder.add(PeerSetId(set), [Block { net: net.parse().unwrap(), except: vec![] }]);
    }
    let map = Arc::new(builder.build());
    let set = |number| End::Set(PeerSetId(number));
    let tcp = |action, source, destination, first, last| {
        let rule = Rule::new(action, "").source(source).destination(destination).protocol(6);
        rule.destination_ports(PortRange { first, last })
    };
    let rules: Arc<[Rule]> = [
        tcp(Action::Permit, set(1), set(3), 80, 80),
        tcp(Action::Deny, set(2), set(3), 80, 443),
        tcp(Action::Permit, End::Any, set(4), 443, 443),
        Rule::new(Action::Deny, ""),
    ]
    .into();
    let report = Table::compile(Arc::clone(&rules), &map).report();
    assert_eq!((report.in_lists, report.tuples, report.pairs, report.by_set), (2, 1, 2, 0));
    assert_eq!(report.transport_classes, Some(5));
    let key = Key {
        source: Address::from_v4_bits(0x0a01_0705),
        destination: Address::from_v4_bits(0xc000_0209),
        protocol: 6,
        destination_port: 443,
        ..Key::default()
    };
    let keys = identified(vec![key], &map);
    for parts in plan::all(&rules, &map) {
        let table = compiled(&rules, &map, parts);
        assert_eq!(table.lookup(&keys[0]), Some(1), "{}", table.report());
        check(&table, &keys);
    }
}

/// Pairs of identities are too many for an array however few the rules are: compiling comes to its end.
#[test]
fn many_identities_on_both_ends() {
    let mut builder = AddressMapBuilder::default();
    let host = |number: u32| ipnet::Ipv4Net::from(std::net::Ipv4Addr::from(0x0a00_0000 | number));
    for number in 0..2000 {
        for set in [number % 45, 45 + number / 45] {
            let net = host(number).into();
            builder.add(PeerSetId(set), [Block { net, except: vec![] }]);
        }
    }
    let map = Arc::new(builder.build());
    let rules: Vec<Rule> = (0..90)
        .map(|set| {
            let rule = Rule::new(Action::Permit, "").source(End::Set(PeerSetId(set)));
            rule.destination(End::Set(PeerSetId(89 - set)))
        })
        .collect();
    let mut keys: Vec<Key> = (0..200)
        .map(|number| Key {
            source: Address::from_v4_bits(0x0a00_0000 | (number * 7)),
            destination: Address::from_v4_bits(0x0a00_0000 | (number * 31 % 2000)),
            ..Key::default()
        })
        .collect();
    map.identify_sources(&mut keys);
    map.identify_destinations(&mut keys);
    check(&Table::compile(rules.into(), &map), &keys);
}

/// Pods are in many sets each, so that nearly every pod is a class of its own, and a set covers hundreds of them: neither
/// tuples nor lists grow with what rules cover, and few rules are tried.
#[test]
fn overlapping_peer_sets() {
    let host = |number: u32| Address::from_v4_bits(0x0a00_0000 | number);
    let numbers = |seed: u32| {
        let mut state = seed;
        move |below: u32| {
            state = state.wrapping_mul(0x9e37_79b1).wrapping_add(0x85eb_ca77);
            (state >> 8) % below
        }
    };
    for (pods, sets_of_each, sets, count) in [(1000, 20, 200, 2500), (300, 10, 100, 1500)] {
        let mut below = numbers(pods);
        let mut builder = AddressMapBuilder::default();
        for pod in 0..pods {
            let net = host(pod).to_ip().into();
            for _ in 0..sets_of_each {
                builder.add(PeerSetId(below(sets)), [Block { net, except: vec![] }]);
            }
        }
        for number in 0..200 {
            let net = host(below(pods)).to_ip();
            let net = ipnet::IpNet::new_assert(net, 24 + below(9) as u8).trunc();
            builder.add(PeerSetId(10_000 + number), [Block { net, except: vec![] }]);
        }
        let map = Arc::new(builder.build());
        let mut keys: Vec<Key> = (0..150)
            .map(|_| Key {
                source: host(below(pods + 10)),
                destination: host(below(pods + 10)),
                protocol: 6,
                destination_port: 80 + below(20) as u16,
                ..Key::default()
            })
            .collect();
        map.identify_sources(&mut keys);
        map.identify_destinations(&mut keys);
        // Over one end, over both, over a set and a network, and all of these.
        for shape in 0..4 {
            let mut rule = |number: u32| {
                let rule = Rule::new(Action::Permit, "").protocol(6);
                let rule = rule.destination_ports(PortRange::one(80 + below(20) as u16));
                let set = End::Set(PeerSetId(below(sets)));
                let other = End::Set(PeerSetId(below(sets)));
                let net = End::Set(PeerSetId(10_000 + below(200)));
                match if shape == 3 { number % 4 } else { shape } {
                    0 => rule.source(set),
                    1 => rule.source(set).destination(other),
                    2 => rule.source(net).destination(set),
                    _ => rule.destination(set),
                }
            };
            let rules: Arc<[Rule]> = (0..count).map(&mut rule).collect();
            let table = Table::compile(Arc::clone(&rules), &map);
            check(&table, &keys);
            let report = table.report();
            assert!(report.pairs <= 4 * rules.len() + 2048 * report.tuples, "{report}");
            assert!(report.loads <= rules.len() / 2, "{report}");
            assert!(report.bytes <= 400 * rules.len(), "{report}");
            assert!(report.by_set > 0 || [0, 2].contains(&shape), "{report}");
            if shape == 3 {
                for parts in plan::all(&rules[..200], &map) {
                    check(&compiled(&rules[..200].into(), &map, parts), &keys[..50]);
                }
            }
        }
    }
}

/// Networks of every length around each other on both ends, as sets: addresses are in up to 32 of them.
#[test]
fn chains_of_networks() {
    for v4 in [true, false] {
        let mut networks = Networks::default();
        let mut net = |number: u32, step: u32| {
            let length = (number / step % 32 + 1) as u8;
            let bits = number.wrapping_mul(0x9e37_79b1) & 0x1111_1111;
            networks.end(match v4 {
                true => ipnet::Ipv4Net::new_assert(bits.into(), length).into(),
                false => {
                    let bits = u128::from(bits) << 96 | u128::from(bits);
                    ipnet::Ipv6Net::new_assert(bits.into(), 4 * length).into()
                }
            })
        };
        let rule = |number: u32| {
            let rule = Rule::new(Action::Deny, "").protocol(6);
            let rule = rule.destination_ports(PortRange::one((number % 40) as u16));
            match number % 50 {
                0 => rule.source(net(number, 50)),
                1 => rule.destination(net(number, 50)),
                _ => rule.source(net(number, 1)).destination(net(number.wrapping_mul(31), 32)),
            }
        };
        let rules: Vec<Rule> = (0..1200).map(rule).collect();
        let map = Arc::new(networks.map());
        let keys: Vec<Key> = keys_of(&rules, &networks, &map).into_iter().step_by(29).collect();
        let reversed: Vec<Rule> = rules.iter().rev().cloned().collect();
        let mut shuffled = rules.clone();
        (0..shuffled.len()).for_each(|at| shuffled.swap(at, at * 7919 % 1200));
        for rules in [rules, reversed, shuffled] {
            let rules: Arc<[Rule]> = rules.into();
            let report = Table::compile(Arc::clone(&rules), &map).report();
            assert!(report.loads <= 200 && report.bytes <= 1000 * rules.len(), "{report}");
            for parts in plan::all(&rules, &map) {
                check(&compiled(&rules, &map, parts), &keys);
            }
        }
    }
}

/// The filter has 2,048 bits, so sets whose numbers differ by 2,048 set the same one. A set that the filter lets through
/// is looked for among the identity's own, so the wrong one is not found.
#[test]
fn thousands_of_peer_sets() {
    let host = |number: u32| Address::from_v4_bits(0x0a00_0000 | number);
    let mut builder = AddressMapBuilder::default();
    for number in 0..2200 {
        let net = host(number).to_ip().into();
        builder.add(PeerSetId(number), [Block { net, except: vec![] }]);
    }
    let map = Arc::new(builder.build());
    let end = |number| End::Set(PeerSetId(number));
    let rules: Arc<[Rule]> = (0..2200)
        .map(|number| Rule::new(Action::Deny, "").source(end(number)).destination(end(number)))
        .collect();
    let key = |source, destination| Key {
        source: host(source),
        destination: host(destination),
        ..Key::default()
    };
    let mut keys: Vec<Key> = (0..150)
        .flat_map(|number| {
            [key(number, number), key(number, number + 2048), key(number + 2048, number)]
        })
        .collect();
    map.identify_sources(&mut keys);
    map.identify_destinations(&mut keys);
    for parts in plan::all(&rules, &map) {
        check(&compiled(&rules, &map, parts), &keys[..60]);
    }
}

/// Cells of 16 bits do not hold all of these rules.
#[test]
fn tells_many_rules_apart() {
    let mut networks = Networks::default();
    let host = |number: u32| ipnet::Ipv4Net::from(std::net::Ipv4Addr::from(number));
    let rules: Arc<[Rule]> = (0..40_000_u32)
        .map(|number| {
            let host = networks.end(host(number).into());
            let rule = Rule::new(Action::Permit, "").source(host).protocol(6);
            rule.destination_ports(PortRange::one((number % 2) as u16))
        })
        .collect();
    let map = Arc::new(networks.map());
    let table = Table::compile(rules, &map);
    let keys = |number: u32| Key {
        source: Address::from_v4_bits(number),
        destination_port: (number % 2) as u16,
        protocol: 6,
        ..Key::default()
    };
    let keys = [0, 32_766, 32_767, 32_768, 39_999, 40_000].map(keys).to_vec();
    let keys = identified(keys, &map);
    let expected = [Some(0), Some(32_766), Some(32_767), Some(32_768), Some(39_999), None];
    assert_eq!(keys.iter().map(|key| table.lookup(key)).collect::<Vec<_>>(), expected);
    check(&table, &keys);
}

#[test]
fn permits_what_rules_permit() {
    let action = |number| if number % 3 == 0 { Action::Permit } else { Action::Deny };
    let rules: Arc<[Rule]> = (0..130).map(|number| Rule::new(action(number), "")).collect();
    let table = Table::compile(rules, &Arc::new(AddressMap::default()));
    for number in 0..130 {
        assert_eq!(table.permits(number), number % 3 == 0, "{number}");
    }
    assert!(!table.permits(132) && !table.permits(1 << 20) && !table.permits(Table::NONE));
}

#[test]
fn tells_all_protocols_apart() {
    let rules: Arc<[Rule]> =
        (0..=255).rev().map(|number| Rule::new(Action::Deny, "").protocol(number)).collect();
    let table = Table::compile(rules, &Arc::new(AddressMap::default()));
    for protocol in 0..=255 {
        let key = Key { protocol, ..Key::default() };
        assert_eq!(table.lookup(&key), Some(255 - usize::from(protocol)), "{protocol}");
    }
}

#[test]
fn says_what_it_found() {
    let mut networks = Networks::default();
    let mut end = |net: &str| networks.end(net.parse().unwrap());
    let (peers, net) = (end("10.0.0.1/32"), end("10.0.0.0/8"));
    let permit = Rule::new(Action::Permit, "a").protocol(6);
    let rules = [
        permit.clone().source(peers).destination_ports(PortRange::one(80)),
        permit.clone().source(peers).destination_ports(PortRange::one(443)),
        permit.clone().source(net),
        permit.source(peers).destination(net),
    ];
    let report = Table::compile(rules.into(), &Arc::new(networks.map())).report();
    let text = report.to_string();
    let found = "4 rules, found: 4 transport classes, 3 rules in lists of one end, 1 in 1 tuples";
    assert!(text.starts_with(found), "{text}");
    assert!(report.bytes > 0);
}
