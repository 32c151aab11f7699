//! Base chains: hooks, address checks and dispatch. They are the same for every node; what
//! differs stands in sets and maps.
//!
//! | set or map | key | meaning |
//! |---|---|---|
//! | `pods-F` | address | local pods that are rendered, in table bridge those on its ports; F is 4 or 6 |
//! | `networks-F` | address | where local pods get addresses from; closed but for rendered pods |
//! | `ends-F` | interface, address | the interface on which a local pod's address is found |
//! | `pod-interfaces` | interface | pods' own interfaces that the kernel routes for |
//! | `pod-bridges` | interface | bridges whose ports are all pods' |
//! | `ports` (table bridge) | interface | pods' own interfaces that are ports of a bridge |
//! | `itself-F` | two addresses | both of one pod |
//! | `tunnel-ports` | UDP port | tunnels of the kernel's own, if there are any |
//! | `clients-F` | address | pods of the cluster, where a rule asks for them |
//! | `from-WAY-F`, `to-WAY-F` | pod's address | verdict map: the chain of its rule list |
//! | `node-WAY-F` | pod's address | the same for what a pod opens to its own node |
//!
//! A packet of a pod is accepted only by an explicit rule; one that reaches the end of a chain is dropped. That happens
//! while a transaction is committed: a packet under way may look up a new element of a map and find a chain whose rules
//! it does not see yet.
//!
//! The hook forward has two base chains: the first evaluates the list of the initiator, the second that of the
//! responder. A single chain from every permission of one list to the other lists would have as many paths as the
//! product of both, and the kernel validates all of them at each change.
//!
//! For a TCP or SCTP connection that conntrack did not see open, it takes the end that sends next as the initiator: a
//! denied peer could send a reset, so that conntrack forgets the connection, and wait for the other end to send. So
//! such connections are marked and must be permitted with either end as the initiator (chains `…-unseen`).
//!
//! The evaluation identifies pods by address, because the `inet` hooks see the bridge as the interface and not its
//! ports. `prerouting` and `postrouting`, in table `bridge` for ports of a bridge and in table `inet` for routed
//! interfaces, restrict every interface to its pod's addresses in both directions, so that an address belongs to one
//! interface.

mod addresses;
mod connections;

use std::sync::Arc;

use crate::reject;
use crate::rules::Way;
use crate::ruleset::{Chain, Family};
pub(crate) use connections::{MARK, PERMIT, RELATED, UNSEEN};

/// Receives the chains: table, name, hook and priority (empty for a chain that others jump to), and rules.
type Add<'a> = &'a mut dyn FnMut(Family, &str, &'static str, Vec<String>);

/// Name, hook and priority of a base chain of table `inet`.
const FILTER: [(&str, &str); 4] = [
    ("forward", "type filter hook forward priority filter"),
    ("forward-to", "type filter hook forward priority 1"),
    ("input", "type filter hook input priority filter"),
    ("output", "type filter hook output priority filter"),
];

/// Conditions that select rules of the base chains.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Conditions {
    /// The kernel passes frames between ports of the pods' bridges to the `inet` hooks; without that, nothing
    /// passes there.
    pub(crate) bridged: bool,
    /// Denials are replied to.
    pub(crate) rejects: bool,
    /// The kernel has tunnels of its own.
    pub(crate) tunnels: bool,
}

/// The chains.
pub(crate) fn chains(conditions: Conditions) -> Vec<(Family, String, Chain)> {
    let Conditions { bridged, rejects, tunnels } = conditions;
    let mut chains = Vec::new();
    let mut add = |family, name: &str, properties, rules: Vec<String>| {
        chains.push((family, name.to_owned(), Chain { properties, rules: Arc::from(rules) }));
    };
    let resets = rejects.then(|| format!("iifname \"lo\" {}", reject::RESETS));
    addresses::routed(resets, tunnels.then_some(INTO_TUNNELS), &mut add);
    filters(tunnels, &mut add);
    connections::chains(rejects, &mut add);
    addresses::bridged(bridged, &mut add);
    chains
}

/// Adds the base chains of the filter hooks, which pass packets of pods to further chains.
fn filters(tunnels: bool, add: Add<'_>) {
    for (hook, properties) in FILTER {
        let own: &[&str] = match hook {
            "input" => &["iifname \"lo\" accept"],
            // Tunnels of this node are reached by it too.
            "output" if tunnels => &[OUTSIDE_TUNNELS, "oifname \"lo\" accept"],
            "output" => &["oifname \"lo\" accept"],
            _ => &[],
        };
        let mut rules: Vec<String> = own.iter().copied().map(str::to_owned).collect();
        if tunnels {
            rules.extend(outside_tunnels(hook).map(str::to_owned));
        }
        let fields: &[&str] = match hook {
            "input" => &["saddr"],
            "output" => &["daddr"],
            _ => &["saddr", "daddr"],
        };
        for (family, v) in [("ip", 4), ("ip6", 6)] {
            for field in fields {
                for set in ["pods", "networks"] {
                    rules.push(format!("{family} {field} @{set}-{v} goto {hook}-pod"));
                }
            }
        }
        add(Family::Inet, hook, properties, rules);
    }
}

/// Marks packets of processes that leave by a tunnel device, or by a device that may be stacked on one. The mark stays
/// on the encapsulated packet, as its socket does; a process needs `CAP_NET_ADMIN` or `CAP_NET_RAW` to set one.
const INTO_TUNNELS: &str = "meta skuid 0-4294967295 \
    meta oifkind { \"vxlan\", \"geneve\", \"bridge\", \"openvswitch\", \"vlan\", \"vrf\" } meta mark set meta mark | 0x1000";
/// Drops packets that a process itself sends to a tunnel's port. Packets without a socket, such as neighbour discovery
/// in a tunnel, have no user.
const OUTSIDE_TUNNELS: &str =
    "udp dport @tunnel-ports meta skuid 0-4294967295 meta mark & 0x1000 == 0 drop";

/// A tunnel device accepts packets from any sender and trusts their inner source address. So no pod of the cluster
/// sends to this node's, and none of this node's pods to another's.
fn outside_tunnels(hook: &str) -> impl Iterator<Item = &'static str> {
    let rules: &[&str] = match hook {
        "input" => &[
            "ip saddr @clients-4 udp dport @tunnel-ports drop",
            "ip6 saddr @clients-6 udp dport @tunnel-ports drop",
        ],
        "forward" => &[
            "ip saddr @pods-4 ip daddr != @clients-4 udp dport @tunnel-ports drop",
            "ip6 saddr @pods-6 ip6 daddr != @clients-6 udp dport @tunnel-ports drop",
        ],
        _ => &[],
    };
    rules.iter().copied()
}

/// Sets and maps of the base chains: table, kind, name and properties.
pub(crate) fn sets() -> Vec<(Family, &'static str, String, &'static str)> {
    let (inet, bridge) = (Family::Inet, Family::Bridge);
    let mut sets = vec![
        (inet, "set", "pod-interfaces".to_owned(), "type ifname"),
        (inet, "set", "pod-bridges".to_owned(), "type ifname"),
        // Each bridge of a pod, with itself.
        (inet, "set", "same-bridge".to_owned(), "type ifname . ifname"),
        (inet, "set", "tunnel-ports".to_owned(), "type inet_service"),
        (bridge, "set", "ports".to_owned(), "type ifname"),
        (bridge, "set", "gateways".to_owned(), "type ipv6_addr"),
        (bridge, "set", "gateway-targets".to_owned(), "typeof @th,64,128"),
        (bridge, "set", "targets".to_owned(), "typeof @th,64,128"),
        (bridge, "set", "port-targets".to_owned(), "typeof iifname . @th,64,128"),
    ];
    let types = [
        ("4", "type ipv4_addr", "type ifname . ipv4_addr", "type ipv4_addr . ipv4_addr"),
        ("6", "type ipv6_addr", "type ifname . ipv6_addr", "type ipv6_addr . ipv6_addr"),
    ];
    for (v, address, end, pair) in types {
        for family in [inet, bridge] {
            sets.push((family, "set", format!("pods-{v}"), address));
            sets.push((family, "set", format!("ends-{v}"), end));
        }
        sets.push((inet, "set", format!("itself-{v}"), pair));
        let (interval, verdict) = match v {
            "4" => ("type ipv4_addr; flags interval", "type ipv4_addr : verdict"),
            _ => ("type ipv6_addr; flags interval", "type ipv6_addr : verdict"),
        };
        sets.push((inet, "set", format!("networks-{v}"), interval));
        for way in Way::BOTH {
            for map in ["from", "to", "node"] {
                sets.push((inet, "map", format!("{map}-{}-{v}", way.name()), verdict));
            }
        }
    }
    sets
}
