//! Work for an instruction counter: `count-lookups CASE ROUNDS` looks the same keys up again
//! and again, or compiles the same rules. What more rounds add is what that costs.
//!
//! Without arguments, prints the cases, one a line, with the lookups or rules of a round.

#[path = "../../../acl/benches/lookup/networks.rs"]
mod networks;
#[path = "../../../acl/benches/lookup/rulesets.rs"]
mod rulesets;

use std::num::NonZeroU64;
use std::sync::Arc;

use acl::{
    Action, Address, AddressMap, AddressMapBuilder, Block, End, Identity, Key, PeerSetId,
    PortRange, Rule, Table,
};
use anyhow::{Context, bail, ensure};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use networks::Networks;
use rulesets::{Order, Shape};

const CASES: [&str; 5] =
    ["peer-sets", "address-port", "both-ends", "address-map-v4", "address-map-v6"];
const KEYS: usize = 8192;

/// Four thousand rules of a shape in an order, and of IPv4 or not.
const SHAPES: [(&str, Shape, Order, bool); 13] = [
    ("one-end-v6", Shape::OneEnd, Order::Sorted, false),
    ("hosts", Shape::Hosts, Order::Sorted, true),
    ("nested", Shape::Nested, Order::Sorted, true),
    ("nested-reversed", Shape::Nested, Order::Reversed, true),
    ("nested-shuffled", Shape::Nested, Order::Shuffled, true),
    ("nested-v6", Shape::Nested, Order::Sorted, false),
    ("stars", Shape::Stars, Order::Sorted, true),
    ("stars-reversed", Shape::Stars, Order::Reversed, true),
    ("stars-shuffled", Shape::Stars, Order::Shuffled, true),
    ("joined", Shape::Joined, Order::Sorted, true),
    ("joined-shuffled", Shape::Joined, Order::Shuffled, true),
    ("ports", Shape::Ports, Order::Sorted, true),
    ("ports-shuffled", Shape::Ports, Order::Shuffled, true),
];
const RULES: u32 = 4000;

/// A thousand rules of a shape, shuffled, that are compiled.
const COMPILED: [(&str, Shape); 3] = [
    ("compile-one-end", Shape::OneEnd),
    ("compile-joined", Shape::Joined),
    ("compile-ports", Shape::Ports),
];
const RULES_COMPILED: u32 = 1000;

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let Some(case) = arguments.next() else {
        let shapes = SHAPES.iter().map(|(case, ..)| case);
        CASES.iter().chain(shapes).for_each(|case| println!("{case} {KEYS}"));
        COMPILED.iter().for_each(|(case, _)| println!("{case} {RULES_COMPILED}"));
        return Ok(());
    };
    let rounds: usize = arguments.next().context("usage: count-lookups CASE ROUNDS")?.parse()?;
    // Where keys collide depends on the seed, and what a lookup costs on that.
    acl::fix_seed(NonZeroU64::new(0x9e37_79b9_7f4a_7c15).context("a seed")?);
    let mut random = Random(0x5eed);
    match case.as_str() {
        "peer-sets" => {
            let map = pods(&mut random, 1000, true);
            let rules = (0..1000).map(|number| {
                let set = End::Set(PeerSetId(number % 100));
                service(number / 100 * 7 % 30).source(set)
            });
            let pod = |end, random: &mut Random| match end {
                End::Set(_) => pod(random.below(1000), true).network().into(),
                End::Any => Address::from_v4_bits(random.below(u32::MAX)),
            };
            look_up(rules.chain([deny()]).collect(), &Arc::new(map), pod, &mut random, rounds)
        }
        "address-port" => {
            let mut networks = Networks::default();
            let rule = |number: u32| {
                let host = networks.end(pod(number / 4, true));
                service(number % 4 * 5 + number % 3).source(host)
            };
            let rules = (0..1000).map(rule).chain([deny()]).collect();
            look_up_networks(rules, &networks, &mut random, rounds)
        }
        "both-ends" => {
            let mut networks = Networks::default();
            let mut net = |random: &mut Random| {
                let length = [32, 32, 28, 24, 24, 16][random.below(6) as usize];
                let address = 0x0a00_0000 | random.below(1 << 12) << 6;
                networks.end(Ipv4Net::new_assert(address.into(), length).into())
            };
            let rules: Vec<Rule> = (0..1000)
                .map(|_| {
                    let (source, destination) = (net(&mut random), net(&mut random));
                    service(random.below(30)).source(source).destination(destination)
                })
                .collect();
            look_up_networks(rules.into(), &networks, &mut random, rounds)
        }
        "address-map-v4" => map_addresses(&mut random, true, rounds),
        "address-map-v6" => map_addresses(&mut random, false, rounds),
        other if let Some((_, shape)) = COMPILED.iter().find(|(case, _)| *case == other) => {
            let (rules, networks) = rulesets::rules(*shape, RULES_COMPILED, Order::Shuffled, true);
            compile(&rules.into(), &Arc::new(networks.map()), rounds);
            Ok(())
        }
        other => {
            let shape = SHAPES.iter().find(|(case, ..)| *case == other);
            let Some((_, shape, order, v4)) = shape else { bail!("unknown case {other}") };
            let (rules, networks) = rulesets::rules(*shape, RULES, *order, *v4);
            let map = Arc::new(networks.map());
            let keys = rulesets::keys((&rules, &networks), KEYS, &map);
            look_up_keys(&Table::compile(rules.into(), &map), &keys, rounds)
        }
    }
}

fn look_up_networks(
    rules: Arc<[Rule]>,
    networks: &Networks,
    random: &mut Random,
    rounds: usize,
) -> anyhow::Result<()> {
    let inside = |end, random: &mut Random| match end {
        End::Set(_) => networks.inside(end, 0),
        End::Any => networks.inside(end, random.below(u32::MAX).into()),
    };
    look_up(rules, &Arc::new(networks.map()), inside, random, rounds)
}

fn look_up(
    rules: Arc<[Rule]>,
    map: &Arc<AddressMap>,
    address: impl Fn(End, &mut Random) -> Address,
    random: &mut Random,
    rounds: usize,
) -> anyhow::Result<()> {
    let table = Table::compile(Arc::clone(&rules), map);
    let keys: Vec<Key> = (0..KEYS)
        .map(|_| {
            let rule = &rules[random.below(rules.len() as u32) as usize];
            let (source, destination) =
                (address(rule.source, random), address(rule.destination, random));
            Key {
                source,
                destination,
                source_identity: map.lookup(source),
                destination_identity: map.lookup(destination),
                protocol: rule.protocol.unwrap_or(6),
                source_port: random.below(1 << 16) as u16,
                destination_port: rule.destination_ports.first,
                ..Key::default()
            }
        })
        .collect();
    look_up_keys(&table, &keys, rounds)
}

fn look_up_keys(table: &Table, keys: &[Key], rounds: usize) -> anyhow::Result<()> {
    if rounds == 0 {
        println!("{}", table.report());
    }
    let mut found = vec![Table::NONE; keys.len()];
    for _ in 0..rounds {
        table.lookup_vector(keys, &mut found);
    }
    ensure!(rounds == 0 || found.iter().any(|found| *found != Table::NONE), "nothing matched");
    Ok(())
}

fn compile(rules: &Arc<[Rule]>, map: &Arc<AddressMap>, rounds: usize) {
    for _ in 0..rounds {
        std::hint::black_box(Table::compile(Arc::clone(rules), map));
    }
}

fn map_addresses(random: &mut Random, v4: bool, rounds: usize) -> anyhow::Result<()> {
    let map = pods(random, 20_000, v4);
    let addresses: Vec<Address> =
        (0..KEYS).map(|_| pod(random.below(20_000), v4).network().into()).collect();
    let mut found = vec![Identity::NONE; KEYS];
    for _ in 0..rounds {
        map.lookup_vector(&addresses, &mut found);
    }
    ensure!(rounds == 0 || found.iter().all(|found| *found != Identity::NONE), "pods are known");
    Ok(())
}

/// Pods in a hundred sets, and some networks around and beside them.
fn pods(random: &mut Random, count: u32, v4: bool) -> AddressMap {
    let mut builder = AddressMapBuilder::default();
    for number in 0..count {
        let block = Block { net: pod(number, v4), except: Vec::new() };
        builder.add(PeerSetId(number % 100), [block]);
    }
    for _ in 0..500 {
        let net: IpNet = match v4 {
            true => Ipv4Net::new_assert(random.below(u32::MAX).into(), 20).trunc().into(),
            false => {
                let bits = 0x2001_0db8 << 96 | u128::from(random.below(u32::MAX)) << 64;
                Ipv6Net::new_assert(bits.into(), 64).into()
            }
        };
        builder.add(PeerSetId(100 + random.below(20)), [Block { net, except: Vec::new() }]);
    }
    builder.build()
}

fn pod(number: u32, v4: bool) -> IpNet {
    let address = match v4 {
        true => Address::from_v4_bits(0x0a40_0000 + number),
        false => Address::from_bits(0xfd00 << 112 | u128::from(number)),
    };
    address.to_ip().into()
}

fn service(number: u32) -> Rule {
    Rule::new(Action::Permit, "")
        .protocol(6)
        .destination_ports(PortRange::one(8000 + number as u16))
}

fn deny() -> Rule {
    Rule::new(Action::Deny, "")
}

/// Pseudo-random numbers that are the same in every run (xorshift64*, Vigna 2016).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u32) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let high = (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) as u32;
        ((u64::from(high) * u64::from(bound)) >> 32) as u32
    }
}
