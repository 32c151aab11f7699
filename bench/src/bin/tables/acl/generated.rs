//! Rule sets of the generator of `cargo bench -p acl`: other shapes and orders than ClassBench's, and IPv6.

#[path = "../../../../../acl/benches/lookup/rulesets.rs"]
mod shapes;

use std::sync::Arc;

use acl::{End, Report, Rule, Table, linear};
use anyhow::ensure;
use ipnet::IpNet;
use shapes::{Order, Shape};

use super::clock::now;
use super::lookups::{Rounds, time};
use super::networks;
use super::rulesets::Filter;

const SHAPES: [Shape; 6] =
    [Shape::OneEnd, Shape::Hosts, Shape::Nested, Shape::Stars, Shape::Joined, Shape::Ports];

/// Keys that are looked up.
const KEYS: usize = 100_000;

/// Measurements of an IPv6 set.
pub(crate) struct V6 {
    pub(crate) name: String,
    /// Seconds to build.
    pub(crate) build: f64,
    pub(crate) report: Report,
    /// Nanoseconds for a lookup in a vector.
    pub(crate) lookup: Rounds,
}

/// IPv4 sets of so many rules, each in every order.
pub(crate) fn v4(count: u32) -> impl Iterator<Item = (String, Vec<Filter>)> {
    let orders = [Order::Sorted, Order::Reversed, Order::Shuffled];
    SHAPES.into_iter().flat_map(move |shape| {
        orders.map(|order| {
            let name = format!("{shape:?} {order:?} {count}").to_lowercase();
            let (rules, networks) = shapes::rules(shape, count, order, true);
            let net = |end: End| match networks.net(end) {
                Some(IpNet::V4(net)) => Some(net),
                _ => None,
            };
            let filter = |rule: Rule| Filter {
                source: net(rule.source),
                destination: net(rule.destination),
                rule: rule.source(End::Any).destination(End::Any),
            };
            (name, rules.into_iter().map(filter).collect())
        })
    })
}

/// Measures IPv6 sets of so many rules.
pub(crate) fn v6(count: u32, rounds: usize) -> anyhow::Result<Vec<V6>> {
    let shapes = SHAPES.into_iter();
    shapes.map(|shape| one_set(shape, count, rounds)).collect()
}

fn one_set(shape: Shape, count: u32, rounds: usize) -> anyhow::Result<V6> {
    let name = format!("{shape:?} {count}").to_lowercase();
    let (rules, networks) = shapes::rules(shape, count, Order::Shuffled, false);
    let (rules, map) = (Arc::<[Rule]>::from(rules), Arc::new(networks.map()));
    let start = now();
    let table = Table::compile(Arc::clone(&rules), &map);
    let build = (now() - start) * 1e-9;
    let mut keys = shapes::keys((&rules, &networks), KEYS, &map);
    let mut found = vec![0; keys.len()];
    let lookup = time(rounds, keys.len(), || {
        map.identify_sources(&mut keys);
        map.identify_destinations(&mut keys);
        table.lookup_vector(&keys, &mut found);
    });
    let some = (20_000_000 / rules.len().max(1)).clamp(100, keys.len());
    for (key, found) in keys.iter().zip(found).take(some) {
        let expected = linear::lookup(&rules, &map, key).map_or(Table::NONE, |at| at as u32);
        ensure!(found == expected, "{name}: {key:?}: {found} instead of {expected}");
    }
    Ok(V6 { name, build, report: table.report(), lookup })
}
