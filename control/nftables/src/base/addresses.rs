//! Address checks: each interface and each port of a bridge uses its own pod's addresses.

use super::Add;
use crate::ruleset::Family;

/// Matches neighbour discovery of hosts (RFC 4861): not forwarded by a router, and no longer than an address and two
/// options.
const DISCOVERY: &str = "ip6 hoplimit 255 ip6 length <= 56 icmpv6 type { 133, 135, 136 }";
/// Matches solicitations and advertisements between two hosts.
const NEIGHBOURS: &str = "ip6 hoplimit 255 ip6 length <= 56 icmpv6 type { 135, 136 }";
/// Matches reports of multicast listeners (RFC 2710, RFC 3810), for routers and bridges.
const REPORTS: &str =
    "ip6 hoplimit 1 ip6 daddr ff00::/8 ip6 length <= 1024 icmpv6 type { 131, 132, 143 }";
/// Queries of multicast routers.
const QUERIES: &str = "ip6 hoplimit 1 ip6 daddr ff00::/8 ip6 length <= 1024 icmpv6 type 130";
/// Advertisements of routers.
const ADVERTISEMENTS: &str = "ip6 hoplimit 255 icmpv6 type nd-router-advert";

/// Drops frames of VLANs, also of VLAN 0, whose tag a receiver strips: a bridge passes them around the `inet` hooks
/// (`net.bridge.bridge-nf-filter-vlan-tagged` is off).
const TAGGED: &str = "ether type { 0x8100, 0x88a8 } drop";

/// Adds the chains of table `inet`, for interfaces that the kernel routes for. `resets` precedes all rules of received
/// packets, `into_tunnels` all of sent ones.
pub(super) fn routed(resets: Option<String>, into_tunnels: Option<&str>, add: Add<'_>) {
    let inet = Family::Inet;
    let mut rules = Vec::from_iter(resets);
    rules.extend([
        "iifname @pod-interfaces goto from-interface".to_owned(),
        // Table bridge has checked those of its ports. By these a pod whose interface is not known yet is found.
        format!("{DISCOVERY} accept"),
        format!("{REPORTS} accept"),
        "ip saddr @pods-4 iifname . ip saddr != @ends-4 drop".to_owned(),
        "ip6 saddr @pods-6 iifname . ip6 saddr != @ends-6 drop".to_owned(),
        "iifname @pod-bridges goto from-bridge".to_owned(),
    ]);
    add(inet, "prerouting", "type filter hook prerouting priority raw", rules);
    let rules = vec![
        "iifname . ip saddr @ends-4 return".to_owned(),
        format!("ip6 saddr {{ fe80::/10, :: }} {DISCOVERY} return"),
        format!("ip6 saddr {{ fe80::/10, :: }} {REPORTS} return"),
        "iifname . ip6 saddr @ends-6 return".to_owned(),
        "drop".to_owned(),
    ];
    add(inet, "from-interface", "", rules);
    let rules = vec![
        "ip saddr @pods-4 return".to_owned(),
        "ip6 saddr @pods-6 return".to_owned(),
        "drop".to_owned(),
    ];
    add(inet, "from-bridge", "", rules);
    let rules = into_tunnels.into_iter().chain(["oifname @pod-interfaces goto to-interface"]);
    let rules = rules.map(str::to_owned).collect();
    add(inet, "postrouting", "type filter hook postrouting priority 300", rules);
    let rules = vec![
        "oifname . ip daddr @ends-4 return".to_owned(),
        "oifname . ip6 daddr @ends-6 return".to_owned(),
        format!("{NEIGHBOURS} return"),
        format!("{QUERIES} return"),
        format!("{ADVERTISEMENTS} return"),
        "drop".to_owned(),
    ];
    add(inet, "to-interface", "", rules);
    add(inet, "link", "", link());
}

/// Adds the chains of table `bridge`, for ports of bridges. If the `inet` hooks do not see their packets, none passes.
pub(super) fn bridged(is_filtered: bool, add: Add<'_>) {
    let bridge = Family::Bridge;
    let rules = vec![
        "iifname @ports goto from-port".to_owned(),
        "ip saddr @pods-4 drop".to_owned(),
        "arp saddr ip @pods-4 drop".to_owned(),
        "ip6 saddr @pods-6 drop".to_owned(),
        "icmpv6 type nd-neighbor-advert @th,64,128 @targets drop".to_owned(),
    ];
    add(bridge, "prerouting", "type filter hook prerouting priority -300", rules);
    let rules = vec![
        TAGGED.to_owned(),
        "iifname . arp saddr ip @ends-4 accept".to_owned(),
        // A probe for an address in use (RFC 5227).
        "arp saddr ip 0.0.0.0 accept".to_owned(),
        "ether type arp drop".to_owned(),
        "iifname . ip saddr @ends-4 accept".to_owned(),
        // Only the node is the gateway.
        "ip6 saddr @gateways drop".to_owned(),
        "icmpv6 type nd-neighbor-advert @th,64,128 @gateway-targets drop".to_owned(),
        "icmpv6 type nd-neighbor-advert @th,64,128 @targets iifname . @th,64,128 != @port-targets drop"
            .to_owned(),
        "iifname . ip6 saddr @ends-6 accept".to_owned(),
        format!("ip6 saddr {{ fe80::/10, :: }} {DISCOVERY} accept"),
        format!("ip6 saddr {{ fe80::/10, :: }} {REPORTS} accept"),
        "drop".to_owned(),
    ];
    add(bridge, "from-port", "", rules);
    let unfiltered = match is_filtered {
        true => Vec::new(),
        false => vec![
            "iifname @ports meta protocol { ip, ip6 } drop".to_owned(),
            "oifname @ports meta protocol { ip, ip6 } drop".to_owned(),
        ],
    };
    add(bridge, "forward", "type filter hook forward priority 100", unfiltered);
    let rules = vec!["oifname @ports goto to-port".to_owned()];
    add(bridge, "postrouting", "type filter hook postrouting priority 0", rules);
    let rules = vec![
        TAGGED.to_owned(),
        "ether type arp accept".to_owned(),
        // A solicitation for the address of another pod is not delivered to a port.
        "icmpv6 type nd-neighbor-solicit @th,64,128 @targets oifname . @th,64,128 != @port-targets drop"
            .to_owned(),
        format!("{NEIGHBOURS} accept"),
        format!("{QUERIES} accept"),
        format!("{ADVERTISEMENTS} accept"),
        "oifname . ip daddr @ends-4 accept".to_owned(),
        "oifname . ip6 daddr @ends-6 accept".to_owned(),
        "drop".to_owned(),
    ];
    add(bridge, "to-port", "", rules);
}

/// Rules for packets that conntrack does not track: neighbour discovery, and reports of multicast listeners. They are
/// not routed: in the hook `forward` they travel between ports of one bridge.
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
