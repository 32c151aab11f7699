//! Session rules and services in the form that programs look up.
//!
//! The kernel finds only the longest network of a table. So the verdict of every port is written out at each
//! network, with the rules of those around it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use ahash::RandomState;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use session_rules::{Action, Connection, Rule, Scope, Services, Transport, linear};

use crate::layout::{
    ACCEPTS, ALLOW, DENY, Endpoint, FRONT, LocalKey, NODE, NOTHING, Piece, Range, RuleKey,
    ServiceKey, bytes, number,
};

/// The first number of tables about what arrives at an address; those of pods are below, the ones about what
/// they accept from [`ACCEPTS`] on.
pub(crate) const LOCALS: u32 = 1 << 31;

/// Addresses of the node that are entered, which leaves room for its pods' in two generations.
const NODE_ADDRESSES: usize = 4_096;

/// Rules and services of one generation. Places of pieces count from 0.
#[derive(Debug, Default)]
pub(crate) struct Rendered {
    pub(crate) rules: Vec<(RuleKey, Piece)>,
    pub(crate) ranges: Vec<Range>,
    pub(crate) locals: Vec<(LocalKey, u32)>,
    pub(crate) services: Vec<(ServiceKey, Piece)>,
    pub(crate) endpoints: Vec<Endpoint>,
    /// Names of policies by number.
    pub(crate) names: Vec<Arc<str>>,
}

/// Renders the rules of the pods that have a number, and of all addresses; ports of the node are services
/// at its addresses `node`. `accepted` are rules about what a pod's own sockets accept.
pub(crate) fn render(
    rules: &[Rule],
    accepted: &[(Arc<str>, Rule)],
    services: &Services,
    node: &[IpAddr],
    pods: &HashMap<Arc<str>, u32>,
) -> Rendered {
    let mut by_table: BTreeMap<(u32, Transport), Vec<&Rule>> = BTreeMap::new();
    let mut locals: BTreeMap<IpAddr, u32> = BTreeMap::new();
    for rule in rules {
        let table = match (&rule.scope, rule.local.net) {
            (Scope::Local(pod), _) => pods.get(pod).copied(),
            (Scope::Global, Some(net)) if net.prefix_len() == net.max_prefix_len() => {
                let next = LOCALS + locals.len() as u32;
                Some(*locals.entry(net.addr()).or_insert(next))
            }
            // Rules for pods name their addresses.
            (Scope::Global, _) => None,
        };
        if let Some(table) = table {
            by_table.entry((table, rule.transport)).or_default().push(rule);
        }
    }
    for (pod, rule) in accepted {
        if let Some(number) = pods.get(pod) {
            by_table.entry((ACCEPTS | number, rule.transport)).or_default().push(rule);
        }
    }
    let mut rendered = Rendered::default();
    let mut shared = Shared::default();
    for ((table, transport), rules) in by_table {
        for any in [IpNet::V4(Ipv4Net::default()), IpNet::V6(Ipv6Net::default())] {
            for (net, ranges) in networks(&rules, any, &mut shared.names, &mut rendered.names) {
                let (family, address) = bytes(net.network());
                let (prefix, transport) = (FRONT + u32::from(net.prefix_len()), number(transport));
                let key =
                    RuleKey { prefix, table, family, transport, address, ..RuleKey::default() };
                let piece = *shared.pieces.entry(ranges).or_insert_with_key(|ranges| {
                    let first = rendered.ranges.len() as u32;
                    rendered.ranges.extend(ranges);
                    Piece { first, count: ranges.len() as u32 }
                });
                rendered.rules.push((key, piece));
            }
        }
    }
    // IPVS gives a node the address of each service. Those that find no room are as others to its pods.
    for address in node.iter().take(NODE_ADDRESSES) {
        locals.entry(*address).or_insert(NODE);
    }
    for (address, table) in locals {
        let (family, address) = bytes(address);
        let key = LocalKey { family: family.into(), address, ..LocalKey::default() };
        rendered.locals.push((key, table));
    }
    add_services(&mut rendered, services, node);
    rendered
}

/// Pieces that are written once.
#[derive(Default)]
struct Shared {
    pieces: HashMap<Vec<Range>, Piece, RandomState>,
    names: HashMap<Arc<str>, u32, RandomState>,
}

/// The networks of a family that rules name, with the verdict of every port there.
fn networks(
    rules: &[&Rule],
    any: IpNet,
    numbers: &mut HashMap<Arc<str>, u32, RandomState>,
    names: &mut Vec<Arc<str>>,
) -> Vec<(IpNet, Vec<Range>)> {
    let mut by_net: BTreeMap<IpNet, Vec<&Rule>> = BTreeMap::from([(any, Vec::new())]);
    for rule in rules {
        let net = rule.remote.net.map_or(any, |net| net.trunc());
        if any.contains(&net) {
            by_net.entry(net).or_default().push(rule);
        }
    }
    // Outer networks come before those inside them.
    let mut around: Vec<(IpNet, &Vec<&Rule>)> = Vec::new();
    let mut found = Vec::new();
    for (net, own) in &by_net {
        while around.last().is_some_and(|(outer, _)| !outer.contains(net)) {
            around.pop();
        }
        around.push((*net, own));
        let rules: Vec<Rule> =
            around.iter().flat_map(|(_, rules)| rules.iter().map(|it| (*it).clone())).collect();
        if rules.is_empty() {
            continue;
        }
        let mut number = |tag: &Arc<str>| {
            *numbers.entry(Arc::clone(tag)).or_insert_with(|| {
                names.push(Arc::clone(tag));
                names.len() as u32 - 1
            })
        };
        found.push((*net, ranges(&rules, net.network(), &mut number)));
    }
    found
}

/// The verdict of each port for an address that all of these rules are about.
fn ranges(rules: &[Rule], remote: IpAddr, number: &mut impl FnMut(&Arc<str>) -> u32) -> Vec<Range> {
    let ports = |rule: &Rule| match rule.scope {
        Scope::Local(_) => rule.remote.ports,
        Scope::Global => rule.local.ports,
    };
    let mut starts = BTreeSet::from([0_u16]);
    for ports in rules.iter().map(ports) {
        starts.insert(ports.first);
        starts.extend(ports.last.checked_add(1));
    }
    let mut found: Vec<Range> = Vec::new();
    let mut starts = starts.into_iter().peekable();
    while let Some(first) = starts.next() {
        let last = starts.peek().map_or(u16::MAX, |next| next - 1);
        let deciding = linear::lookup(rules, &connection(&rules[0], remote, first));
        let verdict = match deciding.map(|rule| rule.action) {
            Some(Action::Deny) => DENY,
            Some(Action::Allow) => ALLOW,
            Some(Action::DoNothing | Action::Redirect(_)) | None => NOTHING,
        };
        let by = deciding.map_or(u32::MAX, |rule| number(&rule.tag));
        match found.last_mut() {
            Some(before) if (before.verdict, before.by) == (verdict, by) => before.last = last,
            _ => found.push(Range { first, last, verdict, by }),
        }
    }
    found
}

/// The connection of a table's other end at a port.
fn connection(rule: &Rule, remote: IpAddr, port: u16) -> Connection {
    let any: IpAddr = match remote {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let own = rule.local.net.map_or(any, |net| net.addr());
    let (local, remote) = match rule.scope {
        Scope::Local(_) => ((own, 0), (remote, port)),
        Scope::Global => ((own, port), (remote, 0)),
    };
    Connection { scope: rule.scope.clone(), transport: rule.transport, local, remote }
}

fn add_services(rendered: &mut Rendered, services: &Services, node: &[IpAddr]) {
    for (at, transport, service) in services.iter() {
        let first = rendered.endpoints.len() as u32;
        rendered.endpoints.extend(service.endpoints.iter().map(|endpoint| {
            let (family, address) = bytes(endpoint.ip());
            let port = endpoint.port().to_be_bytes();
            Endpoint { address, port, family, zero: [0; 5] }
        }));
        let piece = Piece { first, count: service.endpoints.len() as u32 };
        let of_family = |it: &&IpAddr| it.is_ipv4() == at.is_ipv4();
        let own = node.iter().filter(of_family).copied();
        let addresses: Vec<IpAddr> =
            if at.ip().is_unspecified() { own.collect() } else { vec![at.ip()] };
        for address in addresses {
            // A service that names the address comes first.
            let named = (address, at.port()).into();
            if address != at.ip() && services.find(named, transport, || false).is_some() {
                continue;
            }
            let (family, address) = bytes(address);
            let (transport, port) = (number(transport), at.port().to_be_bytes());
            let key = ServiceKey { family, transport, port, address, ..ServiceKey::default() };
            rendered.services.push((key, piece));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use session_rules::{End, Ports, Table};

    use super::*;

    /// The entry that the programs find in a table: the longest network, then the range of the port.
    fn find(
        rendered: &Rendered,
        table: u32,
        transport: Transport,
        other: IpAddr,
        port: u16,
    ) -> u32 {
        let (family, address) = bytes(other);
        let is_in = |key: &RuleKey| {
            let bits = (key.prefix - FRONT) as usize;
            let same = |bit: usize| {
                let mask = 0x80 >> (bit % 8);
                key.address[bit / 8] & mask == address[bit / 8] & mask
            };
            (key.table, key.family, key.transport) == (table, family, number(transport))
                && (0..bits).all(same)
        };
        let longest = rendered.rules.iter().filter(|(key, _)| is_in(key));
        let Some((_, piece)) = longest.max_by_key(|(key, _)| key.prefix) else { return NOTHING };
        let ranges = &rendered.ranges[piece.first as usize..(piece.first + piece.count) as usize];
        ranges
            .iter()
            .find(|it| it.first <= port && port <= it.last)
            .map_or(NOTHING, |it| it.verdict)
    }

    fn net() -> impl Strategy<Value = Option<IpNet>> {
        let v4 = (0_u8..3, 0_u8..3, 0_u8..=32).prop_map(|(b, d, length)| {
            Some(IpNet::new(IpAddr::from([10, b, 0, d]), length).unwrap().trunc())
        });
        let v6 = (0_u16..3, 0_u8..=128).prop_map(|(d, length)| {
            let address = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, d);
            Some(IpNet::new(address.into(), length).unwrap().trunc())
        });
        prop_oneof![Just(None), v4, v6]
    }

    fn ports() -> impl Strategy<Value = Ports> {
        let some =
            (0_u16..5, 0_u16..3).prop_map(|(first, more)| Ports { first, last: first + more });
        prop_oneof![Just(Ports::ANY), some, Just(Ports { first: 2, last: u16::MAX })]
    }

    fn rule() -> impl Strategy<Value = Rule> {
        let transport = prop_oneof![Just(Transport::Tcp), Just(Transport::Udp)];
        let action = prop_oneof![Just(Action::Deny), Just(Action::Allow), Just(Action::DoNothing)];
        (any::<bool>(), 0_u8..2, transport, net(), ports(), action).prop_map(
            |(is_local, own, transport, net, ports, action)| {
                let (any, own) = (Ports::ANY, IpAddr::from([10, 9, 0, own]));
                let (scope, local, remote) = match is_local {
                    true => (Scope::Local("a/b".into()), End::ANY, End { net, ports }),
                    false => (
                        Scope::Global,
                        End { net: Some(own.into()), ports },
                        End { net, ports: any },
                    ),
                };
                Rule { scope, transport, local, remote, action, tag: "t".into() }
            },
        )
    }

    proptest! {
        #[test]
        fn the_programs_find_what_the_rules_say(
            rules in prop::collection::vec(rule(), 0..12),
            asked in prop::collection::vec((0_u8..3, 0_u8..4, any::<bool>(), 0_u16..8), 20),
        ) {
            let pods = HashMap::from([(Arc::from("a/b"), 7)]);
            let rendered = render(&rules, &[], &Services::default(), &[], &pods);
            let table = Table::compile(rules);
            let verdict = |connection: &Connection| match table.lookup(connection).map(|it| it.action) {
                Some(Action::Deny) => DENY,
                Some(Action::Allow) => ALLOW,
                _ => NOTHING,
            };
            for (b, d, is_v6, port) in asked {
                let other: IpAddr = match is_v6 {
                    false => [10, b, 0, d].into(),
                    true => Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, d.into()).into(),
                };
                for transport in [Transport::Tcp, Transport::Udp] {
                    let scope = Scope::Local("a/b".into());
                    let (local, remote) = ((IpAddr::from([10, 9, 0, 0]), 0), (other, port));
                    let wanted = verdict(&Connection { scope, transport, local, remote });
                    prop_assert_eq!(find(&rendered, 7, transport, other, port), wanted);
                    for own in 0..2_u8 {
                        let own = IpAddr::from([10, 9, 0, own]);
                        let (local, remote) = ((own, port), (other, 0));
                        let wanted = verdict(&Connection { scope: Scope::Global, transport, local, remote });
                        let (_, address) = bytes(own);
                        let number = rendered.locals.iter().find(|(key, _)| key.address == address);
                        let found = number.map_or(NOTHING, |(_, number)| {
                            find(&rendered, *number, transport, other, port)
                        });
                        prop_assert_eq!(found, wanted);
                    }
                }
            }
        }
    }

    #[test]
    fn ports_of_the_node_are_services_at_its_addresses() {
        let mut services = Services::default();
        let endpoints = vec!["10.1.0.2:8080".parse().unwrap()];
        let service = session_rules::Service { endpoints, ..Default::default() };
        for at in ["0.0.0.0:30080", "10.96.0.1:80", "192.0.2.1:30080"] {
            services.set(at.parse().unwrap(), Transport::Tcp, Some(service.clone()));
        }
        let node = ["192.0.2.1", "192.0.2.2", "2001:db8::1"].map(|it| it.parse().unwrap());
        let rendered = render(&[], &[], &services, &node, &HashMap::new());
        let mut found: Vec<(IpAddr, u16)> = rendered
            .services
            .iter()
            .map(|(key, _)| {
                let [a, b, c, d, ..] = key.address;
                ([a, b, c, d].into(), u16::from_be_bytes(key.port))
            })
            .collect();
        found.sort_unstable();
        let wanted = [("10.96.0.1", 80), ("192.0.2.1", 30080), ("192.0.2.2", 30080)];
        assert_eq!(found, wanted.map(|(address, port)| (address.parse().unwrap(), port)));
    }
}
