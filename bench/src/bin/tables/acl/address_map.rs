//! Times the address map: lookups, builds, updates.

use acl::{Address, AddressMapBuilder, Block, Identity, PeerSetId};
use anyhow::ensure;

use super::clock::now;
use super::lookups::{Rounds, time};
use super::rulesets::Random;

/// Changes made in one measurement.
const CHANGES: usize = 2000;

/// Figures of the address map.
pub(crate) struct MapCosts {
    pub(crate) name: String,
    pub(crate) networks: usize,
    /// Milliseconds to build.
    pub(crate) build: f64,
    pub(crate) bytes: usize,
    /// Nanoseconds for a lookup in a vector.
    pub(crate) lookup: Rounds,
    /// Microseconds for an address coming or going, new version included.
    pub(crate) average: f64,
    pub(crate) median: f64,
    pub(crate) worst: f64,
}

/// Maps of pods and networks of both families.
pub(crate) fn measure(rounds: usize) -> anyhow::Result<Vec<MapCosts>> {
    [
        ("IPv4", 100_000, true),
        ("IPv6", 100_000, false),
        ("IPv4", 1_000_000, true),
        ("IPv6", 1_000_000, false),
    ]
    .into_iter()
    .map(|(name, hosts, v4)| one_map(name, hosts, v4, rounds))
    .collect()
}

fn one_map(name: &str, hosts: u32, v4: bool, rounds: usize) -> anyhow::Result<MapCosts> {
    let mut random = Random(0x0add_4e55);
    let host = |number: u32| {
        // Pods in the /24s of their nodes, as networks that are handed out in order.
        let low = ((number / 200) << 8) | (number % 200 + 2);
        match v4 {
            true => Address::from_v4_bits(0x0a00_0000 + low),
            false => Address::from_bits(
                0xfd00 << 112 | u128::from(low >> 8) << 64 | u128::from(low & 255),
            ),
        }
    };
    let block = |address: Address, short: u8| Block {
        net: ipnet::IpNet::new_assert(address.to_ip(), if v4 { 32 } else { 128 } - short).trunc(),
        except: Vec::new(),
    };
    let mut builder = AddressMapBuilder::default();
    for number in 0..hosts {
        builder.add(PeerSetId(number % 1000), [block(host(number), 0)]);
    }
    for number in 0..10_000 {
        let address = match v4 {
            true => Address::from_v4_bits(random.next() as u32),
            false => Address::from_bits(0x2001_0db8 << 96 | u128::from(random.next()) << 32),
        };
        builder.add(PeerSetId(1000 + number % 100), [block(address, if v4 { 8 } else { 64 })]);
    }
    let start = now();
    let mut editor = builder.edit();
    let map = editor.version();
    let build = (now() - start) * 1e-6;

    let asked: Vec<Address> =
        (0..1_000_000).map(|_| host(random.below(u64::from(hosts)) as u32)).collect();
    let mut found = vec![Identity::NONE; asked.len()];
    let lookup = time(rounds, asked.len(), || map.lookup_vector(&asked, &mut found));
    let all = asked.iter().zip(&found).all(|(address, identity)| map.lookup(*address) == *identity);
    ensure!(all && found.iter().all(|identity| *identity != Identity::NONE), "{name}: lookups");

    let mut costs = Vec::with_capacity(CHANGES);
    // Readers still hold the versions before.
    let mut held = vec![map.clone(); 4];
    for change in 0..CHANGES {
        let number = random.below(u64::from(hosts)) as u32;
        let (set, block) = (PeerSetId(number % 1000), block(host(number), 0));
        let start = now();
        if change % 2 == 0 {
            editor.add(set, &block)
        } else {
            ensure!(editor.remove(set, &block))
        }
        held[change % 4] = editor.version();
        costs.push((now() - start) * 1e-3);
        if change % 2 == 1 {
            editor.add(set, &block);
        }
    }
    Ok(MapCosts {
        name: name.to_owned(),
        networks: hosts as usize + 10_000,
        build,
        bytes: map.bytes(),
        lookup,
        average: costs.iter().sum::<f64>() / costs.len() as f64,
        median: percentile(&mut costs, 0.5),
        worst: percentile(&mut costs, 1.0),
    })
}

fn percentile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let last = values.len().saturating_sub(1);
    values.get((last as f64 * share) as usize).copied().unwrap_or(0.0)
}
