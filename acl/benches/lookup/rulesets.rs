//! Rule sets of several shapes, orders and both families, and keys to look up in them.

use acl::{Action, AddressMap, End, Key, PortRange, Rule};
use ipnet::IpNet;

use super::networks::Networks;

/// The shape of a rule's ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Shape {
    /// Hosts on both ends, each pair with a port.
    Hosts,
    /// Networks nested in each other on both ends, with ranges of ports.
    Nested,
    /// One end a host, the other a wide network around many hosts, in turns.
    Stars,
    /// Nested networks and stars in turns, as of two sets that were joined.
    Joined,
    /// Few networks, thousands of overlapping ranges of ports.
    Ports,
    /// Peers by address and port, and a rule against everything else.
    OneEnd,
}

/// The order of rules.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Order {
    /// Longer networks first.
    Sorted,
    /// Shorter networks first.
    Reversed,
    /// At random.
    Shuffled,
}

/// Rules of a shape in an order, and the networks that they name.
pub(crate) fn rules(shape: Shape, count: u32, order: Order, v4: bool) -> (Vec<Rule>, Networks) {
    let mut random = fastrand::Rng::with_seed(0x5eed);
    let mut networks = Networks::default();
    let mut rules: Vec<Rule> = (0..count)
        .map(|number| rule(shape, number, count, v4, &mut random, &mut networks))
        .collect();
    let length = |end: End| networks.net(end).map_or(0, |net| u16::from(net.prefix_len()));
    rules.sort_by_key(|rule| u16::MAX - length(rule.source) - length(rule.destination));
    if let Shape::OneEnd = shape {
        rules.push(Rule::new(Action::Deny, ""));
    }
    match order {
        Order::Sorted => {}
        Order::Reversed => rules.reverse(),
        Order::Shuffled => random.shuffle(&mut rules),
    }
    (rules, networks)
}

fn rule(
    shape: Shape,
    number: u32,
    count: u32,
    v4: bool,
    random: &mut fastrand::Rng,
    networks: &mut Networks,
) -> Rule {
    let mut end = |net| networks.end(net);
    let host = |random: &mut fastrand::Rng| net(random.u32(0..count), 32, v4);
    let wide = |random: &mut fastrand::Rng| net(random.u32(0..count), random.u8(12..20), v4);
    let mut nested = || {
        // Every step inwards is taken half the time, to one of few networks.
        let steps = (0..).find(|_| random.bool()).unwrap_or(0).min(6_u8);
        net(random.u32(0..64) << 14 | random.u32(0..1 << 14), 8 + 4 * steps, v4)
    };
    let permit = Rule::new(Action::Permit, "").protocol(6);
    let shape = match shape {
        Shape::Joined if number % 4 < 2 => Shape::Nested,
        Shape::Joined => Shape::Stars,
        shape => shape,
    };
    match shape {
        Shape::Nested => {
            let (source, destination) = (nested(), nested());
            let first = random.u16(0..30) * 1000;
            let ports = match random.u8(0..3) {
                0 => PortRange::ANY,
                1 => PortRange::one(first),
                _ => PortRange { first, last: first + random.u16(1..4) * 5000 },
            };
            permit.source(end(source)).destination(end(destination)).destination_ports(ports)
        }
        Shape::Hosts => {
            let (source, destination) = (host(random), host(random));
            let port = PortRange::one(8000 + random.u16(0..100));
            permit.source(end(source)).destination(end(destination)).destination_ports(port)
        }
        Shape::Stars | Shape::Joined => {
            let (mut source, mut destination) = (host(random), wide(random));
            if number.is_multiple_of(2) {
                std::mem::swap(&mut source, &mut destination);
            }
            let port = PortRange::one(8000 + random.u16(0..100));
            permit.source(end(source)).destination(end(destination)).destination_ports(port)
        }
        Shape::Ports => {
            let first = random.u16(0..60_000);
            let ports = PortRange { first, last: first + random.u16(0..1000) };
            let source = net(number % 4, 8 + 8 * (number % 4) as u8, v4);
            let first = random.u16(0..60_000);
            let source_ports = PortRange { first, last: first + random.u16(0..5000) };
            permit.source(end(source)).source_ports(source_ports).destination_ports(ports)
        }
        Shape::OneEnd => {
            let port = PortRange::one(8000 + (number % 4 * 5 + number % 3) as u16);
            permit.source(end(net(number / 4, 32, v4))).destination_ports(port)
        }
    }
}

/// A network of an IPv4 length, or one of twice as many bits and 32 more.
fn net(bits: u32, length: u8, v4: bool) -> IpNet {
    let bits = 0x0a00_0000 ^ bits.wrapping_mul(0x0101_0141);
    match v4 {
        true => ipnet::Ipv4Net::new_assert(bits.into(), length).into(),
        false => {
            let bits = 0x2001_0db8 << 96 | u128::from(bits) << 64 | u128::from(bits) << 32;
            ipnet::Ipv6Net::new_assert(bits.into(), if length == 32 { 128 } else { 32 + length })
                .into()
        }
    }
}

/// A key inside a rule picked at random, for each; with its identities in a map.
pub(crate) fn keys(
    (rules, networks): (&[Rule], &Networks),
    count: usize,
    map: &AddressMap,
) -> Vec<Key> {
    let mut random = fastrand::Rng::with_seed(0x6e75);
    let mut keys: Vec<Key> = (0..count)
        .map(|_| {
            let rule = &rules[random.usize(0..rules.len())];
            let port =
                |random: &mut fastrand::Rng, ports: PortRange| random.u16(ports.first..=ports.last);
            Key {
                source: networks.inside(rule.source, random.u128(..)),
                destination: networks.inside(rule.destination, random.u128(..)),
                protocol: rule.protocol.unwrap_or(6),
                source_port: port(&mut random, rule.source_ports),
                destination_port: port(&mut random, rule.destination_ports),
                ..Key::default()
            }
        })
        .collect();
    map.identify_sources(&mut keys);
    map.identify_destinations(&mut keys);
    keys
}
