//! Rule sets of the generator of `cargo bench -p acl`: other shapes and orders than ClassBench's, and IPv6.

#[path = "../../../../acl/benches/lookup/rulesets.rs"]
mod shapes;

use std::sync::Arc;

use acl::{AddressMap, Report, Rule, Table, linear};
use anyhow::ensure;
use shapes::{Order, Shape};

use crate::clock::now;
use crate::lookups::{Rounds, time};

const SHAPES: [Shape; 6] =
    [Shape::OneEnd, Shape::Hosts, Shape::Nested, Shape::Stars, Shape::Joined, Shape::Ports];

/// Keys that are looked up.
const KEYS: usize = 100_000;

/// What was measured of an IPv6 set.
pub(crate) struct V6 {
    pub(crate) name: String,
    /// Seconds to build.
    pub(crate) build: f64,
    pub(crate) report: Report,
    /// Nanoseconds for a lookup in a vector.
    pub(crate) lookup: Rounds,
}

/// IPv4 sets of so many rules, each in every order.
pub(crate) fn v4(count: u32) -> impl Iterator<Item = (String, Vec<Rule>)> {
    let orders = [Order::Sorted, Order::Reversed, Order::Shuffled];
    SHAPES.into_iter().flat_map(move |shape| {
        orders.map(|order| {
            let name = format!("{shape:?} {order:?} {count}").to_lowercase();
            (name, shapes::rules(shape, count, order, true))
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
    let nothing = Arc::new(AddressMap::default());
    let rules: Arc<[Rule]> = shapes::rules(shape, count, Order::Shuffled, false).into();
    let start = now();
    let table = Table::compile(Arc::clone(&rules), &nothing);
    let build = (now() - start) * 1e-9;
    let keys = shapes::keys(&rules, KEYS);
    let mut found = vec![0; keys.len()];
    let lookup = time(rounds, keys.len(), || table.lookup_vector(&keys, &mut found));
    let some = (20_000_000 / rules.len().max(1)).clamp(100, keys.len());
    for (key, found) in keys.iter().zip(found).take(some) {
        let expected = linear::lookup(&rules, &nothing, key).map_or(Table::NONE, |at| at as u32);
        ensure!(found == expected, "{name}: {key:?}: {found} instead of {expected}");
    }
    Ok(V6 { name, build, report: table.report(), lookup })
}
