//! Session rules and services in the form that programs look up.
//!
//! The kernel finds only the longest network of a table. So the verdict of every port is written
//! out at each network, with the rules of those around it.

mod services;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use ahash::RandomState;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use session_rules::{Action, Ports, Rule, Scope, Services, Transport};

use crate::layout::{
    ACCEPTS, ALLOW, DENY, Endpoint, FRONT, LocalKey, NODE, NOTHING, Piece, Range, RuleKey,
    ServiceKey, bytes, number,
};
use crate::limits::Limits;

/// The first number of tables about what arrives at an address; those of pods are below, the ones
/// about what they accept from [`ACCEPTS`] on.
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
    /// Those that found no room.
    pub(crate) closed: Vec<Overflow>,
}

/// What found no room, and is closed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Overflow {
    /// The rules about what this pod opens and accepts.
    Pod(Arc<str>),
    /// The rules about what arrives at this address of a pod.
    Address(IpAddr),
    /// The services of this namespace.
    Namespace(Arc<str>),
}

impl fmt::Display for Overflow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod(pod) => write!(f, "the rules of pod {pod} find no room: it is closed"),
            Self::Address(address) => {
                write!(f, "the rules of {address} find no room: it is closed")
            }
            Self::Namespace(namespace) => {
                write!(f, "the services of namespace {namespace} find no room: they are closed")
            }
        }
    }
}

/// Name of the policy by which what finds no room is denied.
const NO_ROOM: &str = "no room for the rules of socket policies";

/// Ranges of a closed table at most; with more it is closed at every port.
const CLOSED_RANGES: usize = 64;

/// The rules of a table by transport.
type TableRules<'r> = BTreeMap<(u32, Transport), Vec<&'r Rule>>;
/// A table's network, and the verdicts there.
type Network = (RuleKey, Rc<[Range]>);

/// Renders the rules of the pods that have a number, and of all addresses; ports of the node are
/// services at its addresses `node`. `accepted` are rules about what a pod's own sockets accept.
pub(crate) fn render(
    rules: &[Rule],
    accepted: &[(Arc<str>, Rule)],
    services: &Services,
    node: &[IpAddr],
    pods: &HashMap<Arc<str>, u32>,
    limits: &Limits,
) -> Rendered {
    let mut by_owner: BTreeMap<Overflow, TableRules<'_>> = BTreeMap::new();
    let mut locals: BTreeMap<IpAddr, u32> = BTreeMap::new();
    for rule in rules {
        let found = match (&rule.scope, rule.local.net) {
            (Scope::Local(pod), _) => {
                pods.get(pod).map(|number| (Overflow::Pod(Arc::clone(pod)), *number))
            }
            (Scope::Global, Some(net)) if net.prefix_len() == net.max_prefix_len() => {
                let next = LOCALS + locals.len() as u32;
                let table = *locals.entry(net.addr()).or_insert(next);
                Some((Overflow::Address(net.addr()), table))
            }
            // Rules for pods name their addresses.
            (Scope::Global, _) => None,
        };
        if let Some((owner, table)) = found {
            let tables = by_owner.entry(owner).or_default();
            tables.entry((table, rule.transport)).or_default().push(rule);
        }
    }
    for (pod, rule) in accepted {
        if let Some(number) = pods.get(pod) {
            let tables = by_owner.entry(Overflow::Pod(Arc::clone(pod))).or_default();
            tables.entry((ACCEPTS | number, rule.transport)).or_default().push(rule);
        }
    }
    let mut rendered = Rendered::default();
    let mut shared = Shared::default();
    // Room for each owner's closed tables is kept.
    let tables: usize = by_owner.values().map(BTreeMap::len).sum();
    let networks = (limits.networks as usize).saturating_sub(2 * tables);
    let mut ordered: Vec<_> = by_owner.into_iter().collect();
    ordered.sort_by_key(|(_, tables)| tables.values().map(Vec::len).sum::<usize>());
    for (owner, tables) in ordered {
        let room = networks.saturating_sub(rendered.rules.len());
        let found = of_tables(&tables, room, limits.ranges as usize, &mut shared);
        let added = found.and_then(|found| shared.add(&mut rendered, found, limits));
        if added.is_none() {
            let closed = closed(&tables, &mut shared);
            shared.add(&mut rendered, closed, limits);
            rendered.closed.push(owner);
        }
    }
    rendered.names = shared.names.names;
    // IPVS gives a node the address of each service. Those that find no room are as others to its
    // pods.
    for address in node.iter().take(NODE_ADDRESSES) {
        locals.entry(*address).or_insert(NODE);
    }
    for (address, table) in locals {
        let (family, address) = bytes(address);
        let key = LocalKey { family: family.into(), address, ..LocalKey::default() };
        rendered.locals.push((key, table));
    }
    services::add(&mut rendered, services, node, limits);
    rendered.closed.sort_unstable();
    rendered
}

/// The networks of an owner's tables; `None` if they are more than `room`, or have more distinct
/// ranges than `max_ranges`.
fn of_tables(
    tables: &TableRules<'_>,
    room: usize,
    max_ranges: usize,
    shared: &mut Shared,
) -> Option<Vec<Network>> {
    let (mut all, mut sum) = (Vec::new(), 0);
    let mut distinct = HashSet::<Rc<[Range]>, RandomState>::default();
    for ((table, transport), rules) in tables {
        for any in families() {
            for (net, rules) in networks(rules, any) {
                let ranges = ranges(&rules, &mut shared.names);
                let known = distinct.get(&*ranges).cloned();
                let ranges = known.unwrap_or_else(|| {
                    let ranges: Rc<[Range]> = ranges.into();
                    sum += ranges.len();
                    distinct.insert(Rc::clone(&ranges));
                    ranges
                });
                all.push((key(*table, *transport, net), ranges));
                if all.len() > room || sum > max_ranges {
                    return None;
                }
            }
        }
    }
    Some(all)
}

/// Tables that deny every port which any of their rules may be about, to everyone.
fn closed(tables: &TableRules<'_>, shared: &mut Shared) -> Vec<Network> {
    let by = shared.names.number(&NO_ROOM.into());
    let of_table = |((table, transport), rules): (&(u32, Transport), &Vec<&Rule>)| {
        let mut all: Vec<Ports> = rules.iter().map(|rule| ports(rule)).collect();
        all.sort_unstable_by_key(|it| it.first);
        let mut found: Vec<Range> = Vec::new();
        for Ports { first, last } in all {
            match found.last_mut() {
                Some(before) if u32::from(first) <= u32::from(before.last) + 1 => {
                    before.last = before.last.max(last);
                }
                _ => found.push(Range { first, last, verdict: DENY, by }),
            }
        }
        if found.len() > CLOSED_RANGES {
            found = vec![Range { first: 0, last: u16::MAX, verdict: DENY, by }];
        }
        let found: Rc<[Range]> = found.into();
        families().map(|any| (key(*table, *transport, any), Rc::clone(&found)))
    };
    tables.iter().flat_map(of_table).collect()
}

fn families() -> [IpNet; 2] {
    [IpNet::V4(Ipv4Net::default()), IpNet::V6(Ipv6Net::default())]
}

fn key(table: u32, transport: Transport, net: IpNet) -> RuleKey {
    let (family, address) = bytes(net.network());
    let (prefix, transport) = (FRONT + u32::from(net.prefix_len()), number(transport));
    RuleKey { prefix, table, family, transport, address, ..RuleKey::default() }
}

/// Pieces that are written once.
#[derive(Default)]
struct Shared {
    pieces: HashMap<Rc<[Range]>, Piece, RandomState>,
    names: Names,
}

/// Names of policies, and their numbers.
#[derive(Default)]
struct Names {
    numbers: HashMap<Arc<str>, u32, RandomState>,
    names: Vec<Arc<str>>,
}

impl Names {
    fn number(&mut self, name: &Arc<str>) -> u32 {
        *self.numbers.entry(Arc::clone(name)).or_insert_with(|| {
            self.names.push(Arc::clone(name));
            self.names.len() as u32 - 1
        })
    }
}

impl Shared {
    /// Adds an owner's networks, all or, if there is no room for their ranges, none.
    fn add(
        &mut self,
        rendered: &mut Rendered,
        networks: Vec<Network>,
        limits: &Limits,
    ) -> Option<()> {
        let (rules, ranges) = (rendered.rules.len(), rendered.ranges.len());
        for (key, found) in networks {
            let piece = *self.pieces.entry(found).or_insert_with_key(|found| {
                let first = rendered.ranges.len() as u32;
                rendered.ranges.extend(found.iter());
                Piece { first, count: found.len() as u32 }
            });
            rendered.rules.push((key, piece));
        }
        if rendered.ranges.len() <= limits.ranges as usize {
            return Some(());
        }
        rendered.rules.truncate(rules);
        rendered.ranges.truncate(ranges);
        self.pieces.retain(|_, piece| (piece.first as usize) < ranges);
        None
    }
}

/// The networks of a family that rules name, with the rules about each.
fn networks<'r>(
    rules: &[&'r Rule],
    any: IpNet,
) -> impl Iterator<Item = (IpNet, Vec<&'r Rule>)> + use<'r> {
    let mut by_net: BTreeMap<IpNet, Vec<&Rule>> = BTreeMap::from([(any, Vec::new())]);
    for rule in rules {
        let net = rule.remote.net.map_or(any, |net| net.trunc());
        if any.contains(&net) {
            by_net.entry(net).or_default().push(rule);
        }
    }
    // Outer networks come before those inside them.
    let mut around: Vec<(IpNet, Vec<&Rule>)> = Vec::new();
    by_net.into_iter().filter_map(move |(net, own)| {
        while around.last().is_some_and(|(outer, _)| !outer.contains(&net)) {
            around.pop();
        }
        around.push((net, own));
        let rules: Vec<&Rule> = around.iter().flat_map(|(_, rules)| rules).copied().collect();
        (!rules.is_empty()).then_some((net, rules))
    })
}

/// The ports that a table's rule is about.
fn ports(rule: &Rule) -> Ports {
    match rule.scope {
        Scope::Local(_) => rule.remote.ports,
        Scope::Global => rule.local.ports,
    }
}

/// The verdict of each port for an address that all of these rules are about: that of the most
/// specific one, of equally specific ones the first.
fn ranges(rules: &[&Rule], names: &mut Names) -> Vec<Range> {
    let mut ranked: Vec<&Rule> = rules.to_vec();
    ranked.sort_by_key(|rule| std::cmp::Reverse(rule.specificity()));
    let mut changes: BTreeMap<u32, [Vec<usize>; 2]> = BTreeMap::from([(0, Default::default())]);
    for (rank, rule) in ranked.iter().enumerate() {
        let Ports { first, last } = ports(rule);
        changes.entry(first.into()).or_default()[0].push(rank);
        changes.entry(u32::from(last) + 1).or_default()[1].push(rank);
    }
    let mut active = BTreeSet::new();
    let mut found: Vec<Range> = Vec::new();
    let mut changes = changes.into_iter().peekable();
    while let Some((first, [begin, end])) = changes.next() {
        let Ok(first) = u16::try_from(first) else { break };
        for rank in end {
            active.remove(&rank);
        }
        active.extend(begin);
        let last = changes.peek().map_or(u16::MAX, |(next, _)| (next - 1) as u16);
        let deciding = active.first().map(|rank| ranked[*rank]);
        let verdict = match deciding.map(|rule| rule.action) {
            Some(Action::Deny) => DENY,
            Some(Action::Allow) => ALLOW,
            Some(Action::DoNothing | Action::Redirect(_)) | None => NOTHING,
        };
        let by = deciding.map_or(u32::MAX, |rule| names.number(&rule.tag));
        match found.last_mut() {
            Some(before) if (before.verdict, before.by) == (verdict, by) => before.last = last,
            _ => found.push(Range { first, last, verdict, by }),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use proptest::prelude::*;
    use session_rules::{Connection, End, Table};

    use super::*;

    /// The entry that the programs find in a table: the longest network, then the range of the
    /// port.
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
            let rendered = render(&rules, &[], &Services::default(), &[], &pods, &Limits::default());
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

    /// Rules of a pod that allow so many networks so many ports each, and deny all else.
    fn allowing(pod: &str, networks: u32, ports: u16) -> Vec<Rule> {
        let rule = |net: Option<IpNet>, ports, action| Rule {
            scope: Scope::Local(pod.into()),
            transport: Transport::Tcp,
            local: End::ANY,
            remote: End { net, ports },
            action,
            tag: pod.into(),
        };
        let net = |n: u32| IpNet::new(IpAddr::from((0x0b00_0000 + n).to_be_bytes()), 32).ok();
        let allowed = (0..networks).flat_map(|n| {
            (0..ports).map(move |port| rule(net(n), Ports::one(2 * port), Action::Allow))
        });
        allowed.chain([rule(None, Ports::ANY, Action::Deny)]).collect()
    }

    #[test]
    fn a_pod_that_finds_no_room_is_closed_alone() {
        let limits = Limits { networks: 1_000, ranges: 1_000, ..Limits::default() };
        let names = ["x/small", "x/networks", "x/ports", "x/other"];
        let pods: HashMap<Arc<str>, u32> = names.map(Arc::from).into_iter().zip(1..).collect();
        let rules =
            [("x/small", 2, 2), ("x/networks", 1_200, 1), ("x/ports", 1, 600), ("x/other", 600, 3)];
        let rules: Vec<Rule> = rules
            .into_iter()
            .flat_map(|(pod, networks, ports)| allowing(pod, networks, ports))
            .collect();
        let rendered = render(&rules, &[], &Services::default(), &[], &pods, &limits);
        let closed = ["x/networks", "x/ports"].map(|pod| Overflow::Pod(pod.into()));
        assert_eq!(rendered.closed, closed);
        assert!(rendered.rules.len() <= 1_000 && rendered.ranges.len() <= 1_000);
        let at = |table, address: [u8; 4], port| {
            find(&rendered, table, Transport::Tcp, address.into(), port)
        };
        for (table, allowed) in [(1, ALLOW), (2, DENY), (3, DENY), (4, ALLOW)] {
            assert_eq!(at(table, [11, 0, 0, 0], 0), allowed, "{table}");
            assert_eq!(at(table, [11, 0, 0, 0], 1), DENY, "{table}");
            assert_eq!(at(table, [192, 0, 2, 1], 0), DENY, "{table}");
        }
        // What no rule is about stays as it is.
        let some = Rule { remote: End { net: None, ports: Ports::one(53) }, ..rules[0].clone() };
        let some: Vec<Rule> = (0..9)
            .map(|n| {
                let net = IpNet::new(IpAddr::from([12, 0, 0, n]), 32).ok();
                Rule { remote: End { net, ..some.remote }, action: Action::Deny, ..some.clone() }
            })
            .collect();
        let limits = Limits { networks: 8, ..limits };
        let rendered = render(&some, &[], &Services::default(), &[], &pods, &limits);
        let at = |port| find(&rendered, 1, Transport::Tcp, [12, 1, 0, 0].into(), port);
        assert_eq!([at(52), at(53), at(54)], [NOTHING, DENY, NOTHING]);
    }

    #[test]
    fn many_ports_at_many_networks_take_one_range_for_each_port_and_one_entry_for_each_network() {
        let pods = HashMap::from([(Arc::from("x/a"), 1)]);
        let rules = allowing("x/a", 300, 300);
        let rendered = render(&rules, &[], &Services::default(), &[], &pods, &Limits::default());
        assert_eq!((rendered.rules.len(), rendered.closed.len()), (302, 0));
        assert_eq!(rendered.ranges.len(), 600 + 1);
    }
}
