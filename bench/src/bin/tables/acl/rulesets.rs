//! Rule sets and the headers to look up in them.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use acl::{Action, AddressMapBuilder, Block, End, Key, PeerSetId, PortRange, Rule};
use anyhow::{Context, ensure};
use ipnet::Ipv4Net;

use super::networks::Networks;

/// The header fields of one packet, IPv4, in host byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) source: u32,
    pub(crate) destination: u32,
    pub(crate) source_port: u16,
    pub(crate) destination_port: u16,
    pub(crate) protocol: u8,
}

/// A rule over networks, or over any address. What else it matches stands in a rule without ends.
#[derive(Clone, Debug)]
pub(crate) struct Filter {
    pub(crate) source: Option<Ipv4Net>,
    pub(crate) destination: Option<Ipv4Net>,
    pub(crate) rule: Rule,
}

/// Filters as rules over peer sets, one for each distinct network.
pub(crate) fn rules(filters: &[Filter]) -> (Vec<Rule>, Networks) {
    let mut networks = Networks::default();
    let mut end = |net: Option<Ipv4Net>| net.map_or(End::Any, |net| networks.end(net.into()));
    let rule = |filter: &Filter| {
        filter.rule.clone().source(end(filter.source)).destination(end(filter.destination))
    };
    (filters.iter().map(rule).collect(), networks)
}

/// Reads a ClassBench filter file (Taylor and Turner, INFOCOM 2005), compressed with xz or not.
pub(crate) fn load(path: &Path) -> anyhow::Result<Vec<Filter>> {
    let name = path.display();
    let bytes = if path.extension().is_some_and(|extension| extension == "xz") {
        let output = Command::new("xz").arg("-dc").arg(path).output().context("cannot run xz")?;
        ensure!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    } else {
        std::fs::read(path).with_context(|| name.to_string())?
    };
    let text = String::from_utf8(bytes).with_context(|| name.to_string())?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let filters = lines.map(|(at, line)| {
        filter(line).with_context(|| format!("{name}: line {}: {line:?} is no filter", at + 1))
    });
    filters.collect()
}

/// Reads a line `@source/len destination/len low : high low : high protocol/mask flags/mask`. The flags are not used: their
/// sixteen bits are not those of any header.
fn filter(line: &str) -> Option<Filter> {
    let words: Vec<&str> = line.strip_prefix('@')?.split_whitespace().collect();
    let (&[source, destination, a, ":", b, c, ":", d, protocol], [] | [_]) =
        words.split_first_chunk()?
    else {
        return None;
    };
    let net = |text: &str| {
        let net: Ipv4Net = text.parse().ok()?;
        Some((net.prefix_len() > 0).then_some(net))
    };
    let range = |first: &str, last: &str| {
        Some(PortRange { first: first.parse().ok()?, last: last.parse().ok()? })
    };
    let rule = Rule::new(Action::Permit, "");
    let rule = rule.source_ports(range(a, b)?).destination_ports(range(c, d)?);
    let rule = match protocol.split_once('/')? {
        (_, "0x00") => rule,
        (number, "0xFF") => rule.protocol(u8::from_str_radix(number.strip_prefix("0x")?, 16).ok()?),
        _ => return None,
    };
    Some(Filter { source: net(source)?, destination: net(destination)?, rule })
}

/// Pseudo-random numbers that are the same in every run (xorshift64*, Vigna 2016).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

/// The rules in an order without a pattern.
pub(crate) fn shuffled(rules: &[Filter]) -> Vec<Filter> {
    let mut random = Random(0x0b5e_55ed);
    let mut rules = rules.to_vec();
    for at in (1..rules.len()).rev() {
        rules.swap(at, random.below(at as u64 + 1) as usize);
    }
    rules
}

/// Both sets in one, a rule of each in turn.
pub(crate) fn in_turns(some: &[Filter], others: &[Filter]) -> Vec<Filter> {
    let longest = some.len().max(others.len());
    (0..longest).flat_map(|at| [some.get(at), others.get(at)]).flatten().cloned().collect()
}

/// Headers for a rule set: for each a rule picked uniformly, then a point inside it picked
/// uniformly; with `misses`, one in ten is any header instead.
pub(crate) fn headers(filters: &[Filter], count: usize, misses: bool) -> Vec<Header> {
    let mut random = Random(0x5eed_ac1b_e4c4);
    let address = |random: &mut Random, net: Option<Ipv4Net>| {
        let any = random.next() as u32;
        net.map_or(any, |net| u32::from(net.network()) | any & u32::from(net.hostmask()))
    };
    let port = |random: &mut Random, range: PortRange| {
        range.first + random.below(u64::from(range.last - range.first) + 1) as u16
    };
    (0..count)
        .map(|_| {
            if misses && random.below(10) == 0 {
                let ports = random.next();
                return Header {
                    source: random.next() as u32,
                    destination: random.next() as u32,
                    source_port: ports as u16,
                    destination_port: (ports >> 16) as u16,
                    protocol: if ports >> 32 & 1 == 0 { 6 } else { 17 },
                };
            }
            let Filter { source, destination, rule } =
                &filters[random.below(filters.len() as u64) as usize];
            Header {
                source: address(&mut random, *source),
                destination: address(&mut random, *destination),
                source_port: port(&mut random, rule.source_ports),
                destination_port: port(&mut random, rule.destination_ports),
                protocol: rule.protocol.unwrap_or_else(|| random.next() as u8),
            }
        })
        .collect()
}

/// A one-sided rule set in peer-set form.
pub(crate) struct PeerSets {
    pub(crate) rules: Vec<Rule>,
    pub(crate) addresses: AddressMapBuilder,
}

/// Peers of equal prefix length with equal lists of services form one set. Sets of longer
/// prefixes come first.
pub(crate) fn peer_sets(filters: &[Filter]) -> PeerSets {
    let mut lists: BTreeMap<Ipv4Net, Vec<&Rule>> = BTreeMap::new();
    for filter in filters {
        if let Some(net) = filter.source {
            lists.entry(net).or_default().push(&filter.rule);
        }
    }
    let service = |rule: &Rule| (rule.protocol, rule.source_ports, rule.destination_ports);
    let mut groups: BTreeMap<_, Vec<(Ipv4Net, Vec<&Rule>)>> = BTreeMap::new();
    for (net, list) in lists {
        let services: Vec<_> = list.iter().map(|rule| service(rule)).collect();
        groups.entry((u8::MAX - net.prefix_len(), services)).or_default().push((net, list));
    }
    let mut sets = PeerSets { rules: Vec::new(), addresses: AddressMapBuilder::default() };
    for (number, members) in groups.values().enumerate() {
        let set = PeerSetId(number as u32);
        let blocks =
            members.iter().map(|(net, _)| Block { net: (*net).into(), except: Vec::new() });
        sets.addresses.add(set, blocks);
        let of_set = |rule: &&Rule| Rule { source: End::Set(set), ..(*rule).clone() };
        sets.rules.extend(members[0].1.iter().map(of_set));
    }
    let others = filters.iter().filter(|filter| filter.source.is_none());
    sets.rules.extend(others.map(|filter| filter.rule.clone()));
    sets
}

impl Header {
    /// As a key without identities.
    #[inline]
    pub(crate) fn key(&self) -> Key {
        Key {
            source: acl::Address::from_v4_bits(self.source),
            destination: acl::Address::from_v4_bits(self.destination),
            source_port: self.source_port,
            destination_port: self.destination_port,
            protocol: self.protocol,
            ..Key::default()
        }
    }
}
