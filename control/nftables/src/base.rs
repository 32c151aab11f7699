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
//! A packet of a pod is accepted only where a chain says so. One that falls off the end of a chain is
//! dropped: that happens while a transaction is committed, when a packet finds a chain by a map
//! that is new to it, and the chain's rules are not there yet for packets that were already under way.
//!
//! The hook forward has two base chains: the first asks the list of the pod that opened the connection,
//! the second that of the other end. One chain that led from every permission of the one to the lists of
//! the other would have as many paths as the product of both, and the kernel looks through all of them
//! at each change.
//!
//! Conntrack takes a TCP or SCTP connection that it finds in the middle for one of the end that sends next: a
//! peer that is denied could have it forget the connection by a reset, and wait for what the other end
//! sends. So these connections are marked, and have to be permitted as of either end (chains `…-unseen`).
//!
//! Addresses stand for pods in the evaluation because a bridge's ports do not show at the `inet`
//! hooks: there, the interface is the bridge. `prerouting` and `postrouting`, in table `bridge` for
//! ports of a bridge and in table `inet` for routed interfaces, hold every interface to its pod's
//! addresses in both directions, so an address does stand for one interface.

use std::sync::Arc;

use crate::reject;
use crate::rules::Way;
use crate::ruleset::{Chain, Family};

/// Neighbour discovery (RFC 4861): what hosts send on a link. No router has passed it on, and what is longer
/// than an address and two options holds something else.
const DISCOVERY: &str = "ip6 hoplimit 255 ip6 length <= 56 icmpv6 type { 133, 135, 136 }";
/// The same between two of them: solicitations and advertisements.
const NEIGHBOURS: &str = "ip6 hoplimit 255 ip6 length <= 56 icmpv6 type { 135, 136 }";
/// Reports of multicast listeners (RFC 2710, RFC 3810), which routers and bridges hear.
const REPORTS: &str =
    "ip6 hoplimit 1 ip6 daddr ff00::/8 ip6 length <= 1024 icmpv6 type { 131, 132, 143 }";
/// Queries of multicast routers.
const QUERIES: &str = "ip6 hoplimit 1 ip6 daddr ff00::/8 ip6 length <= 1024 icmpv6 type 130";
/// Advertisements of routers.
const ADVERTISEMENTS: &str = "ip6 hoplimit 255 icmpv6 type nd-router-advert";

/// Frames of VLANs, VLAN 0 among them, behind which a receiver looks: a bridge passes them by the `inet`
/// hooks (`net.bridge.bridge-nf-filter-vlan-tagged` is off).
const TAGGED: &str = "ether type { 0x8100, 0x88a8 } drop";

/// Marks a connection that was not seen to open, by a label of conntrack.
pub(crate) const MARK: [&str; 2] = [
    "ct state new tcp flags & (fin | syn | rst | ack) != syn ct label set 112",
    // Its first chunk is no INIT.
    "ct state new meta l4proto 132 @th,96,8 != 1 ct label set 112",
];
/// Matches packets of such connections.
pub(crate) const UNSEEN: &str = "ct label 112";

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
    let inet = Family::Inet;
    let resets = rejects.then(|| format!("iifname \"lo\" {}", reject::RESETS));
    add(
        inet,
        "prerouting",
        "type filter hook prerouting priority raw",
        [
            resets.into_iter().collect(),
            vec![
                "iifname @pod-interfaces goto from-interface".to_owned(),
                // Table bridge has looked at those of its ports; a pod that is not found yet says
                // where it is by these.
                format!("{DISCOVERY} accept"),
                format!("{REPORTS} accept"),
                "ip saddr @pods-4 iifname . ip saddr != @ends-4 drop".to_owned(),
                "ip6 saddr @pods-6 iifname . ip6 saddr != @ends-6 drop".to_owned(),
                "iifname @pod-bridges goto from-bridge".to_owned(),
            ],
        ]
        .concat(),
    );
    add(
        inet,
        "from-interface",
        "",
        vec![
            "iifname . ip saddr @ends-4 return".to_owned(),
            format!("ip6 saddr {{ fe80::/10, :: }} {DISCOVERY} return"),
            format!("ip6 saddr {{ fe80::/10, :: }} {REPORTS} return"),
            "iifname . ip6 saddr @ends-6 return".to_owned(),
            "drop".to_owned(),
        ],
    );
    add(
        inet,
        "from-bridge",
        "",
        vec![
            "ip saddr @pods-4 return".to_owned(),
            "ip6 saddr @pods-6 return".to_owned(),
            "drop".to_owned(),
        ],
    );
    let into_tunnels = tunnels.then_some(INTO_TUNNELS).into_iter();
    add(
        inet,
        "postrouting",
        "type filter hook postrouting priority 300",
        into_tunnels
            .chain(["oifname @pod-interfaces goto to-interface"])
            .map(str::to_owned)
            .collect(),
    );
    add(
        inet,
        "to-interface",
        "",
        vec![
            "oifname . ip daddr @ends-4 return".to_owned(),
            "oifname . ip6 daddr @ends-6 return".to_owned(),
            format!("{NEIGHBOURS} return"),
            format!("{QUERIES} return"),
            format!("{ADVERTISEMENTS} return"),
            "drop".to_owned(),
        ],
    );
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
        add(inet, hook, properties, rules);
    }
    add(inet, "link", "", link());
    add(inet, "errors", "", errors());
    add(inet, "forward-pod", "", forward());
    add(inet, "forward-to-pod", "", forward_to());
    for (chain, end) in [("replies", "from"), ("replies-to", "to"), ("replies-node", "node")] {
        add(inet, chain, "", vec![format!("jump {end}-reply"), "drop".to_owned()]);
    }
    let questions = vec!["jump node-original".to_owned(), "drop".to_owned()];
    add(inet, "questions-node", "", questions);
    for (base, properties, end, replies) in UNSEEN_FORWARDED {
        let chain = format!("{end}-unseen");
        add(inet, base, properties, vec![format!("{UNSEEN} goto {chain}")]);
        add(inet, &chain, "", unseen(end, replies));
    }
    add(inet, "input-pod", "", input());
    add(inet, "output-pod", "", output(rejects));
    for way in Way::BOTH {
        let [source, destination, _] = way.fields();
        add(inet, &format!("from-{}", way.name()), "", dispatch("from", way, source));
        add(inet, &format!("to-{}", way.name()), "", dispatch("to", way, destination));
        add(inet, &format!("node-{}", way.name()), "", dispatch("node", way, source));
    }
    let bridge = Family::Bridge;
    add(
        bridge,
        "prerouting",
        "type filter hook prerouting priority -300",
        vec![
            "iifname @ports goto from-port".to_owned(),
            "ip saddr @pods-4 drop".to_owned(),
            "arp saddr ip @pods-4 drop".to_owned(),
            "ip6 saddr @pods-6 drop".to_owned(),
            "icmpv6 type nd-neighbor-advert @th,64,128 @targets drop".to_owned(),
        ],
    );
    add(
        bridge,
        "from-port",
        "",
        vec![
            TAGGED.to_owned(),
            "iifname . arp saddr ip @ends-4 accept".to_owned(),
            // A probe for an address in use (RFC 5227).
            "arp saddr ip 0.0.0.0 accept".to_owned(),
            "ether type arp drop".to_owned(),
            "iifname . ip saddr @ends-4 accept".to_owned(),
            // Nobody but the node is the gateway.
            "ip6 saddr @gateways drop".to_owned(),
            "icmpv6 type nd-neighbor-advert @th,64,128 @gateway-targets drop".to_owned(),
            "icmpv6 type nd-neighbor-advert @th,64,128 @targets iifname . @th,64,128 != @port-targets drop"
                .to_owned(),
            "iifname . ip6 saddr @ends-6 accept".to_owned(),
            format!("ip6 saddr {{ fe80::/10, :: }} {DISCOVERY} accept"),
            format!("ip6 saddr {{ fe80::/10, :: }} {REPORTS} accept"),
            "drop".to_owned(),
        ],
    );
    let unfiltered = match bridged {
        true => Vec::new(),
        false => vec![
            "iifname @ports meta protocol { ip, ip6 } drop".to_owned(),
            "oifname @ports meta protocol { ip, ip6 } drop".to_owned(),
        ],
    };
    add(bridge, "forward", "type filter hook forward priority 100", unfiltered);
    add(
        bridge,
        "postrouting",
        "type filter hook postrouting priority 0",
        vec!["oifname @ports goto to-port".to_owned()],
    );
    add(
        bridge,
        "to-port",
        "",
        vec![
            TAGGED.to_owned(),
            "ether type arp accept".to_owned(),
            // Nobody is asked for an address of another pod.
            "icmpv6 type nd-neighbor-solicit @th,64,128 @targets oifname . @th,64,128 != @port-targets drop"
                .to_owned(),
            format!("{NEIGHBOURS} accept"),
            format!("{QUERIES} accept"),
            format!("{ADVERTISEMENTS} accept"),
            "oifname . ip daddr @ends-4 accept".to_owned(),
            "oifname . ip6 daddr @ends-6 accept".to_owned(),
            "drop".to_owned(),
        ],
    );
    chains
}

/// Marks what a process sends by a tunnel device, or by a device that may stand on one. The mark stays on the packet that the
/// tunnel makes of it, as its socket does, and a process sets none without `CAP_NET_ADMIN` or `CAP_NET_RAW`.
const INTO_TUNNELS: &str = "meta skuid 0-4294967295 \
    meta oifkind { \"vxlan\", \"geneve\", \"bridge\", \"openvswitch\", \"vlan\", \"vrf\" } meta mark set meta mark | 0x1000";
/// Drops what a process sends to a tunnel's port itself. What the kernel sends without a socket, such as neighbour
/// discovery in a tunnel, has no user.
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

/// Rules for what conntrack does not track: neighbour discovery, and reports of multicast listeners. None of it is
/// routed: in the hook `forward`, it is on its way between ports of one bridge.
fn link() -> Vec<String> {
    vec![
        format!("iifname . oifname @same-bridge {NEIGHBOURS} accept"),
        "iif != 0 oif != 0 drop".to_owned(),
        format!("{DISCOVERY} accept"),
        format!("{REPORTS} accept"),
        format!("{QUERIES} accept"),
        format!("{ADVERTISEMENTS} accept"),
        "drop".to_owned(),
    ]
}

/// Rules for ICMP errors about connections. A pod forwards nothing, so its errors are about connections of its own:
/// others would hand data to a pod that it may not reach.
fn errors() -> Vec<String> {
    let mut rules = Vec::new();
    for (family, v) in [("ip", 4), ("ip6", 6)] {
        for way in ["original", "reply"] {
            rules.push(format!("{family} saddr . ct {way} {family} saddr @itself-{v} accept"));
        }
        rules.push(format!("{family} saddr @pods-{v} drop"));
        rules.push(format!("{family} saddr @networks-{v} drop"));
    }
    rules.push("accept".to_owned());
    rules
}

/// Rules about conntrack's state, which come first; `errors` is the one about ICMP errors. Of ICMP only echo requests
/// open a connection.
fn tracked(errors: &str) -> Vec<String> {
    let mut rules = ["ct state invalid drop", "ct state untracked goto link", errors]
        .map(str::to_owned)
        .to_vec();
    rules.extend(MARK.map(str::to_owned));
    rules
}

/// Checks the sender of an ICMP error.
const ERRORS: &str = "ct state related meta l4proto { 1, 58 } goto errors";

/// Accepts ICMP errors about connections.
pub(crate) const RELATED: &str = "ct state related meta l4proto { 1, 58 } accept";

const ECHO: [&str; 2] = [
    "ct state new meta l4proto 1 icmp type != echo-request drop",
    "ct state new meta l4proto 58 icmpv6 type != echo-request drop",
];

fn forward() -> Vec<String> {
    let mut rules = tracked(ERRORS);
    rules.extend(ITSELF.map(str::to_owned));
    rules.push("ct direction reply goto replies".to_owned());
    rules.extend(ECHO.map(str::to_owned));
    // Nobody but this node has its addresses, and it does not forward its own packets.
    rules.push("fib saddr type local drop".to_owned());
    rules.push("jump from-original".to_owned());
    rules.push("drop".to_owned());
    rules
}

/// A pod always talks to itself, through a service too.
const ITSELF: [&str; 2] =
    ["ip saddr . ip daddr @itself-4 accept", "ip6 saddr . ip6 daddr @itself-6 accept"];

/// Rules for the other end of packets that the first chain of the hook accepted.
fn forward_to() -> Vec<String> {
    let mut rules = vec!["ct state untracked goto link".to_owned(), RELATED.to_owned()];
    rules.extend(ITSELF.map(str::to_owned));
    rules.push("ct direction reply goto replies-to".to_owned());
    rules.push("jump to-original".to_owned());
    rules.push("drop".to_owned());
    rules
}

/// Base chain and its properties, the end whose list it asks, and the chain for replies.
const UNSEEN_FORWARDED: [(&str, &str, &str, &str); 2] = [
    ("forward-unseen", "type filter hook forward priority 2", "from", "replies"),
    ("forward-to-unseen", "type filter hook forward priority 3", "to", "replies-to"),
];

/// Asks the list that the other direction of the connection would be for.
fn unseen(end: &str, replies: &str) -> Vec<String> {
    let mut rules = vec![RELATED.to_owned()];
    rules.extend(ITSELF.map(str::to_owned));
    rules.push(format!("ct direction original goto {replies}"));
    rules.push(format!("jump {end}-original"));
    rules.push("drop".to_owned());
    rules
}

fn input() -> Vec<String> {
    let mut rules = tracked(ERRORS);
    // The node always talks to its own pods.
    rules.push(format!("{UNSEEN} goto questions-node"));
    rules.push("ct direction reply accept".to_owned());
    rules.extend(ECHO.map(str::to_owned));
    rules.push("goto questions-node".to_owned());
    rules
}

fn output(rejects: bool) -> Vec<String> {
    // The node's own errors come from its address on a pod's interface, which may be one of the pods' networks.
    let mut rules: Vec<String> = rejects.then(|| reject::RESETS.to_owned()).into_iter().collect();
    rules.extend(tracked(RELATED));
    rules.push(format!("{UNSEEN} goto replies-node"));
    rules.push("ct direction original accept".to_owned());
    rules.push("goto replies-node".to_owned());
    rules
}

/// A pod's address leads to its chain; the rest of its networks is closed. What is no pod's goes on.
fn dispatch(map: &str, way: Way, field: &str) -> Vec<String> {
    let name = way.name();
    let mut rules = Vec::new();
    for (family, v) in [("ip", 4), ("ip6", 6)] {
        rules.push(format!("{family} {field} vmap @{map}-{name}-{v}"));
        rules.push(format!("{family} {field} @pods-{v} drop"));
        rules.push(format!("{family} {field} @networks-{v} drop"));
    }
    rules.push(PERMIT.to_owned());
    rules
}

/// Verdict of a map's chain on a packet that it permits.
pub(crate) const PERMIT: &str = "accept";
