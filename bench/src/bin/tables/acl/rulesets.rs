//! Rule sets and the headers to look up in them.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use acl::{Action, AddressMapBuilder, Block, End, Key, PeerSetId, PortRange, Rule};
use anyhow::{Context, ensure};
use fastrand::Rng;
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

/// Headers for a rule set: for each a rule picked uniformly, then a point inside it picked
/// uniformly; with `misses`, one in ten is any header instead.
pub(crate) fn headers(filters: &[Filter], count: usize, misses: bool) -> Vec<Header> {
    let mut rng = Rng::with_seed(0x5eed_ac1b_e4c4);
    let address = |rng: &mut Rng, net: Option<Ipv4Net>| {
        let any = rng.u32(..);
        net.map_or(any, |net| u32::from(net.network()) | any & u32::from(net.hostmask()))
    };
    let header = |_| {
        if misses && rng.u8(..10) == 0 {
            return Header {
                source: rng.u32(..),
                destination: rng.u32(..),
                source_port: rng.u16(..),
                destination_port: rng.u16(..),
                protocol: if rng.bool() { 6 } else { 17 },
            };
        }
        let Filter { source, destination, rule } = &filters[rng.usize(..filters.len())];
        Header {
            source: address(&mut rng, *source),
            destination: address(&mut rng, *destination),
            source_port: rng.u16(rule.source_ports.first..=rule.source_ports.last),
            destination_port: rng.u16(rule.destination_ports.first..=rule.destination_ports.last),
            protocol: rule.protocol.unwrap_or_else(|| rng.u8(..)),
        }
    };
    (0..count).map(header).collect()
}

/// A one-sided rule set in peer-set form: the rules, and the addresses of their sets. Peers of equal prefix length with
/// equal lists of services form one set. Sets of longer prefixes come first.
pub(crate) fn peer_sets(filters: &[Filter]) -> (Vec<Rule>, AddressMapBuilder) {
    let mut lists: BTreeMap<Ipv4Net, Vec<&Rule>> = BTreeMap::new();
    for filter in filters {
        if let Some(net) = filter.source {
            lists.entry(net).or_default().push(&filter.rule);
        }
    }
    let service = |rule: &&Rule| (rule.protocol, rule.source_ports, rule.destination_ports);
    let mut groups: BTreeMap<_, Vec<(Ipv4Net, Vec<&Rule>)>> = BTreeMap::new();
    for (net, list) in lists {
        let services: Vec<_> = list.iter().map(service).collect();
        groups.entry((u8::MAX - net.prefix_len(), services)).or_default().push((net, list));
    }
    let (mut rules, mut addresses) = (Vec::new(), AddressMapBuilder::default());
    for (number, members) in groups.values().enumerate() {
        let set = PeerSetId(number as u32);
        let block = |net: &Ipv4Net| Block { net: (*net).into(), except: Vec::new() };
        addresses.add(set, members.iter().map(|(net, _)| block(net)));
        let of_set = |rule: &&Rule| Rule { source: End::Set(set), ..(*rule).clone() };
        rules.extend(members[0].1.iter().map(of_set));
    }
    let others = filters.iter().filter(|filter| filter.source.is_none());
    rules.extend(others.map(|filter| filter.rule.clone()));
    (rules, addresses)
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
