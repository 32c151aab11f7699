//! Lookups in tables and in the address map, and the time to compile.

mod networks;
mod rulesets;

use std::hint::black_box;
use std::sync::Arc;

use acl::{Address, AddressMapBuilder, Block, Identity, PeerSetId, Rule, Table};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rulesets::{Order, Shape, keys, rules};

const KEYS: usize = 4096;

/// Every shape in every order, and in IPv6.
fn tables(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("table");
    group.throughput(Throughput::Elements(KEYS as u64));
    let shapes =
        [Shape::OneEnd, Shape::Hosts, Shape::Nested, Shape::Stars, Shape::Joined, Shape::Ports];
    let orders = [Order::Sorted, Order::Reversed, Order::Shuffled];
    let forms = orders.map(|order| (order, true)).into_iter().chain([(Order::Sorted, false)]);
    for (shape, (order, v4)) in
        shapes.iter().flat_map(|shape| forms.clone().map(|form| (*shape, form)))
    {
        for count in [1000, 10_000] {
            let (rules, networks) = rules(shape, count, order, v4);
            let map = Arc::new(networks.map());
            let keys = keys((&rules, &networks), KEYS, &map);
            let table = Table::compile(rules.into(), &map);
            let family = if v4 { "v4" } else { "v6" };
            let name = format!("{shape:?}/{order:?}/{family}").to_lowercase();
            let mut found = vec![0; KEYS];
            group.bench_with_input(BenchmarkId::new(name, count), &keys, |bencher, keys| {
                bencher.iter(|| table.lookup_vector(black_box(keys), &mut found));
            });
        }
    }
    group.finish();
}

fn compile(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("compile");
    group.sample_size(10);
    for (shape, count) in [
        (Shape::OneEnd, 1000),
        (Shape::OneEnd, 100_000),
        (Shape::Hosts, 1000),
        (Shape::Nested, 1000),
        (Shape::Nested, 10_000),
    ] {
        let (rules, networks) = rules(shape, count, Order::Sorted, true);
        let (rules, addresses) = (Arc::<[Rule]>::from(rules), Arc::new(networks.map()));
        group.bench_function(
            BenchmarkId::new(format!("{shape:?}").to_lowercase(), count),
            |bencher| {
                bencher.iter(|| Table::compile(Arc::clone(&rules), &addresses));
            },
        );
    }
    group.finish();
}

fn address_map(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("address-map");
    for (family, v4) in [("v4", true), ("v6", false)] {
        let host = |number: u32| match v4 {
            true => Address::from_v4_bits(0x0a00_0000 + ((number / 200) << 8) + number % 200),
            false => Address::from_bits(
                0xfd00 << 112 | u128::from(number / 200) << 64 | u128::from(number % 200),
            ),
        };
        let block = |number| Block { net: host(number).to_ip().into(), except: Vec::new() };
        let mut builder = AddressMapBuilder::default();
        (0..20_000).for_each(|number| builder.add(PeerSetId(number % 100), [block(number)]));
        let mut editor = builder.edit();
        let map = editor.version();
        let mut random = fastrand::Rng::with_seed(7);
        let asked: Vec<Address> = (0..KEYS).map(|_| host(random.u32(0..20_000))).collect();
        let mut found = vec![Identity::NONE; KEYS];
        group.throughput(Throughput::Elements(KEYS as u64));
        group.bench_function(BenchmarkId::new("lookup", family), |bencher| {
            bencher.iter(|| map.lookup_vector(black_box(&asked), &mut found));
        });
        group.throughput(Throughput::Elements(1));
        group.bench_function(BenchmarkId::new("update", family), |bencher| {
            let mut number = 0;
            bencher.iter(|| {
                number += 1;
                let set = PeerSetId(number % 100 + 100);
                editor.add(set, &block(number * 7919 % 20_000));
                let version = editor.version();
                assert!(editor.remove(set, &block(number * 7919 % 20_000)));
                version
            });
        });
    }
    group.finish();
}

criterion_group!(benches, tables, compile, address_map);
criterion_main!(benches);
