//! Bounds of lookups and of memory, in steps and bytes, whatever the order and the shape of the rules.

use super::*;

#[test]
fn structure_is_that_of_any_order() {
    let structure = |table: &Table| {
        let report = table.report();
        (report.tuples, report.pairs, report.by_set, report.loads)
    };
    for (count, v4) in [(300, true), (300, false), (4000, true), (4000, false)] {
        let mut networks = Networks::default();
        let sorted = nested(count, v4, &mut networks);
        let map = Arc::new(networks.map());
        let keys = &keys_of(&sorted, &networks, &map)[..600];
        let first = Table::compile(sorted.clone().into(), &map);
        check(&first, keys);
        let reversed: Vec<Rule> = sorted.iter().rev().cloned().collect();
        let mut shuffled = sorted;
        (0..shuffled.len()).for_each(|at| shuffled.swap(at, at * 7919 % count as usize));
        for rules in [reversed, shuffled] {
            let table = Table::compile(rules.into(), &map);
            check(&table, keys);
            assert_eq!(structure(&table), structure(&first), "{}", table.report());
        }
    }
}

/// A set costs no more for its order, and two joined sets no more than both of them.
#[test]
fn order_and_joining_cost_no_more() {
    let stars = |count: u32, networks: &mut Networks| -> Vec<Rule> {
        let host = |number: u32| ipnet::Ipv4Net::from(std::net::Ipv4Addr::from(number));
        let wide = |number: u32| {
            ipnet::Ipv4Net::new_assert((number << 20).into(), 12 + (number % 5) as u8)
        };
        let rule = |number: u32| {
            let host = networks.end(host(number.wrapping_mul(0x9e37_79b1)).into());
            let wide = networks.end(wide(number % 200).into());
            let (source, destination) =
                if number.is_multiple_of(2) { (wide, host) } else { (host, wide) };
            Rule::new(Action::Deny, "")
                .source(source)
                .destination(destination)
                .protocol(6)
                .destination_ports(PortRange::one((number % 50) as u16))
        };
        (0..count).map(rule).collect()
    };
    for count in [400, 5000] {
        let mut networks = Networks::default();
        let (some, others) = (nested(count, true, &mut networks), stars(count, &mut networks));
        let map = Arc::new(networks.map());
        let loads = |rules: Vec<Rule>| {
            let keys = keys_of(&rules, &networks, &map);
            let keys: Vec<Key> = keys.into_iter().step_by(1 + rules.len() / 200).collect();
            let table = Table::compile(rules.into(), &map);
            check(&table, &keys);
            table.report().loads
        };
        let in_turns: Vec<Rule> =
            some.iter().zip(&others).flat_map(|(a, b)| [a.clone(), b.clone()]).collect();
        let one_by_one: Vec<Rule> = some.iter().chain(&others).cloned().collect();
        let mut shuffled = in_turns.clone();
        (0..shuffled.len()).for_each(|at| shuffled.swap(at, at * 7919 % (at + 1)));
        let both = loads(some) + loads(others);
        let sorted = loads(one_by_one);
        assert!(sorted <= 2 * both, "{sorted} of {both}");
        assert_eq!(loads(in_turns), sorted);
        assert_eq!(loads(shuffled), sorted);
    }
}

#[test]
fn many_ranges_are_cut() {
    // Ranges side by side, and ranges of which fifty overlap.
    for width in [90, 1000] {
        let range = |number: u16| {
            let first = (u32::from(number) * 7919 % 3000 * 20) as u16;
            PortRange { first, last: first + width }
        };
        let rules: Arc<[Rule]> = (0..3000)
            .map(|number| {
                let rule = Rule::new(Action::Permit, "").protocol(6);
                rule.destination_ports(range(number))
                    .source_ports(range(number.wrapping_mul(31) % 3000))
            })
            .collect();
        let table = Table::compile(Arc::clone(&rules), &Arc::new(AddressMap::default()));
        assert_eq!(table.report().transport_classes, None);
        assert!(table.report().loads <= 30, "{}", table.report());
        let keys: Vec<Key> = rules
            .iter()
            .step_by(7)
            .map(|rule| Key {
                protocol: 6,
                source_port: rule.source_ports.last,
                destination_port: rule.destination_ports.first,
                ..Key::default()
            })
            .collect();
        check(&table, &keys);
    }
}

/// The list of a wide set is cut once, not again for each identity in it.
#[test]
fn lists_of_wide_sets_are_not_copied() {
    let mut networks = Networks::default();
    let ports = |number: u32| PortRange { first: number as u16, last: (number * 7) as u16 };
    let mut end = |net: &str| networks.end(net.parse().unwrap());
    let mut of_host = |number: u32| {
        let host = end(&format!("{}/32", std::net::Ipv4Addr::from(0x0a00_0000 | number)));
        Rule::new(Action::Permit, "").source(host).protocol(6).destination_ports(ports(number))
    };
    let mut rules: Vec<Rule> = (1..3000).map(&mut of_host).collect();
    let wide = end("10.0.0.0/8");
    let of_wide = |number: u32| {
        Rule::new(Action::Deny, "").source(wide).protocol(17).destination_ports(ports(number))
    };
    rules.extend((1..30).map(of_wide));
    let map = Arc::new(networks.map());
    let table = Table::compile(rules.clone().into(), &map);
    let report = table.report();
    assert_eq!(report.transport_classes, None);
    assert!(report.bytes <= 64 * rules.len(), "{report}");
    let keys: Vec<Key> = keys_of(&rules, &networks, &map).into_iter().step_by(11).collect();
    let inside = |protocol| keys.iter().map(move |key| Key { protocol, ..*key });
    check(&table, &inside(6).chain(inside(17)).collect::<Vec<_>>());
}

/// Rules behind one over no end that matches all that they match take no memory, wherever that stands.
#[test]
fn hidden_rules_are_left_out() {
    let deny = Rule::new(Action::Deny, "");
    let mut networks = Networks::default();
    let mut rules = nested(400, true, &mut networks);
    rules.insert(100, deny.clone().protocol(17));
    rules.insert(
        200,
        deny.clone().protocol(6).destination_ports(PortRange { first: 0, last: 9000 }),
    );
    rules.insert(300, deny);
    let map = Arc::new(networks.map());
    let keys = keys_of(&rules, &networks, &map);
    let shorter: Vec<Rule> = rules[..301].to_vec();
    let hidden = |rules: &[Rule]| {
        let earlier = |at: usize| rules[..at].iter().filter(|rule| rule.source == End::Any);
        let covers = |of: &Rule, rule: &Rule| {
            of.protocol.is_none_or(|protocol| rule.protocol == Some(protocol))
                && of.destination_ports.last >= rule.destination_ports.last
        };
        (0..rules.len()).filter(|at| earlier(*at).any(|of| covers(of, &rules[*at]))).count()
    };
    for rules in [rules, shorter] {
        let table = Table::compile(rules.clone().into(), &map);
        assert_eq!(table.report().hidden, hidden(&rules), "{}", table.report());
        assert!(table.report().hidden > 50);
        check(&table, &keys);
        let rules: Arc<[Rule]> = rules.into();
        for parts in plan::all(&rules, &map) {
            check(&compiled(&rules, &map, parts), &keys[..100]);
        }
    }
}

/// A row has a cell for each transport class: of rules that all have their own ports, rows would take megabytes.
#[test]
fn small_tables_stay_small() {
    for both in [false, true] {
        let mut networks = Networks::default();
        let mut host = |number: u32| {
            let address = std::net::Ipv4Addr::from(0x0a00_0000 | (number % 800));
            networks.end(ipnet::Ipv4Net::from(address).into())
        };
        let rules: Arc<[Rule]> = (0..900)
            .map(|number| {
                let rule = Rule::new(Action::Permit, "").source(host(number)).protocol(6);
                let rule = rule.destination_ports(PortRange::one((number * 61) as u16));
                if both { rule.destination(host(number * 7)) } else { rule }
            })
            .collect();
        let map = Arc::new(networks.map());
        let table = Table::compile(Arc::clone(&rules), &map);
        let report = table.report();
        assert!(report.bytes <= 256 * rules.len(), "{report}");
        check(&table, &keys_of(&rules, &networks, &map));
    }
}
