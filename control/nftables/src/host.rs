//! Rules for the node itself: connections to it and of its own processes.
//!
//! ```text
//!   input, output ─▶ firewalls without failsafe ─▶ failsafe ports ─▶ other firewalls ─▶ host-network pods ─▶ accept
//!                     (each permits, or drops)      (accept)          (each permits, or drops)
//! ```
//!
//! As for pods, every packet is evaluated, replies by the rules of the connection's original direction: a denial stops
//! live connections. A connection that conntrack did not see open must be permitted with either end as the initiator
//! (see `base/`), except at failsafe ports of the node. Loopback, neighbour discovery and ICMP errors of connections
//! are always accepted. Forwarded packets do not pass these hooks.
//!
//! A pod on the host network has its node's addresses. Its rules decide about connections to the ports that it
//! declares.
//!
//! Each list is a chain that a rule jumps to, and which returns on permission: the kernel follows at most 16 nested
//! chains, and validates every path at each change. Rules and not maps lead to these chains, so no packet sees one
//! before it is filled.

use std::sync::Arc;

use acl::{End, Rule};
use control::model::Protocol;
use control::{Failsafe, HostFirewall, HostPod, PeerSets, View};

use crate::base::{MARK, RELATED, UNSEEN};
use crate::ports::{self, Grouped};
use crate::render::insert_peer_set;
use crate::rules::{self, Way};
use crate::ruleset::{Chain, Family, Ruleset};

/// Names of the tables of host firewalls; see [`TABLES`](crate::TABLES).
pub const HOST_TABLES: [&str; 2] = ["podgate-host-a", "podgate-host-b"];

/// Accepts neighbour discovery that no router has forwarded (RFC 4861). Solicitations and advertisements hold an
/// address and two options; router advertisements and redirects may be longer.
const DISCOVERY: [&str; 2] = [
    "ip6 hoplimit 255 ip6 length <= 56 icmpv6 type { 133, 135, 136 } accept",
    "ip6 hoplimit 255 icmpv6 type { 134, 137 } accept",
];
/// Accepts queries and reports of multicast listeners (RFC 2710, RFC 3810).
const REPORTS: &str = "ip6 hoplimit 1 icmpv6 type { 130-132, 143 } accept";

/// A hook of the node's own traffic, and the direction of a connection there.
#[derive(Clone, Copy)]
struct Place {
    hook: &'static str,
    way: Way,
}

impl Place {
    /// Returns whether the connection was opened from outside.
    fn is_ingress(self) -> bool {
        (self.hook == "input") == (self.way == Way::Original)
    }

    /// The chain with the stages.
    fn stages(self) -> String {
        format!("{}-{}", self.hook, self.way.name())
    }

    /// The protocol and port of a rule: the port at the end that did not open the connection.
    fn ports(self, protocol: u8, ports: impl IntoIterator<Item = u16>) -> Option<String> {
        let [_, _, port] = self.way.fields();
        let ports: Vec<String> = ports.into_iter().map(|it| it.to_string()).collect();
        let ports = ports.join(", ");
        (!ports.is_empty()).then(|| format!("meta l4proto {protocol} th {port} {{ {ports} }}"))
    }
}

/// A hook, the properties of its base chain and of the one behind it, the match for interfaces, and the
/// direction there of connections to the node.
const HOOKS: [(&str, [&str; 2], &str, Way); 2] = [
    (
        "input",
        ["type filter hook input priority filter", "type filter hook input priority 1"],
        "iifname",
        Way::Original,
    ),
    (
        "output",
        ["type filter hook output priority filter", "type filter hook output priority 1"],
        "oifname",
        Way::Reply,
    ),
];

/// Both hooks in both directions of connections.
const PLACES: [Place; 4] = [
    Place { hook: "input", way: Way::Original },
    Place { hook: "input", way: Way::Reply },
    Place { hook: "output", way: Way::Original },
    Place { hook: "output", way: Way::Reply },
];

/// The ruleset of the host firewalls and of the host-network pods in a view that was published with
/// peer sets; empty if there are none.
pub fn host_ruleset(view: &View, failsafe: &Failsafe) -> Ruleset {
    let mut ruleset = Ruleset::default();
    if !view.has_host_rules() {
        return ruleset;
    }
    for (hook, [properties, behind], interface, of_own_ports) in HOOKS {
        let [original, reply] = Way::BOTH.map(|way| Place { hook, way }.stages());
        let loopback = format!("{interface} \"lo\" accept");
        let mut base = vec![loopback.clone()];
        base.extend(DISCOVERY.map(str::to_owned));
        base.extend([REPORTS, RELATED].map(str::to_owned));
        base.extend(MARK.map(str::to_owned));
        base.push(format!("ct direction reply goto {reply}"));
        base.push(format!("goto {original}"));
        add(&mut ruleset, hook.to_owned(), properties, base);
        let mut unseen = vec![loopback, RELATED.to_owned()];
        let own_ports = failsafe_ports(failsafe, Place { hook, way: of_own_ports });
        let direction = of_own_ports.name();
        unseen.extend(own_ports.map(|it| format!("{UNSEEN} ct direction {direction} {it} accept")));
        unseen.push(format!("{UNSEEN} ct direction original goto {reply}"));
        unseen.push(format!("{UNSEEN} goto {original}"));
        add(&mut ruleset, format!("{hook}-unseen"), behind, unseen);
    }
    for place in PLACES {
        add_stages(&mut ruleset, view, failsafe, place);
    }
    let firewalls = view.host_firewalls.iter().flat_map(|it| [&it.ingress, &it.egress]);
    for list in firewalls.chain(view.host_pods.iter().map(|pod| &pod.ingress)) {
        add_sets(&mut ruleset, list, &view.peer_sets);
    }
    ruleset
}

/// The stages of one place, each a rule that jumps to a list.
fn add_stages(ruleset: &mut Ruleset, view: &View, failsafe: &Failsafe, place: Place) {
    let (kept, strict): (Vec<&HostFirewall>, Vec<&HostFirewall>) =
        view.host_firewalls.iter().partition(|firewall| firewall.failsafe);
    let (mut stages, mut lists) = (Vec::new(), 0);
    let mut add_list = |list: &[Rule]| {
        let name = format!("{}-{lists}", place.stages());
        lists += 1;
        let grouped = Grouped::new(list, &name);
        let rules =
            rules::chain(&grouped, place.way, &view.peer_sets, [true, true], ["return", "drop"]);
        add(ruleset, name.clone(), "", rules);
        ports::insert(ruleset, &grouped.into_sets());
        format!("jump {name}")
    };
    stages.extend(strict.into_iter().map(|firewall| add_list(list(firewall, place))));
    stages.extend(failsafe_ports(failsafe, place).map(|ports| format!("{ports} accept")));
    stages.extend(kept.into_iter().map(|firewall| add_list(list(firewall, place))));
    for HostPod { ports, ingress, .. } in view.host_pods.iter().filter(|_| place.is_ingress()) {
        let jump = add_list(ingress);
        for protocol in Protocol::ALL {
            let of_protocol = ports.iter().filter(|(it, _)| *it == protocol).map(|(_, port)| *port);
            let ports = place.ports(protocol.number(), of_protocol);
            stages.extend(ports.map(|ports| format!("{ports} {jump}")));
        }
    }
    stages.push("accept".to_owned());
    add(ruleset, place.stages(), "", stages);
}

fn add(ruleset: &mut Ruleset, name: String, properties: &'static str, rules: Vec<String>) {
    let chain = Chain { properties, rules: Arc::from(rules) };
    ruleset.chains.insert((Family::Inet, name.into()), chain);
}

fn list(firewall: &HostFirewall, place: Place) -> &[Rule] {
    if place.is_ingress() { &firewall.ingress } else { &firewall.egress }
}

fn add_sets(ruleset: &mut Ruleset, rules: &[Rule], sets: &PeerSets) {
    for end in rules.iter().flat_map(|rule| [rule.source, rule.destination]) {
        if let End::Set(id) = end
            && let Some(members) = sets.get(&id)
        {
            insert_peer_set(ruleset, id, members, [true, true]);
        }
    }
}

/// The failsafe ports as matches of rules.
fn failsafe_ports(failsafe: &Failsafe, place: Place) -> impl Iterator<Item = String> {
    let Failsafe { tcp_in, tcp_out, udp_in, udp_out } = failsafe;
    let (tcp, udp) = if place.is_ingress() { (tcp_in, udp_in) } else { (tcp_out, udp_out) };
    [(6, tcp), (17, udp)]
        .into_iter()
        .filter_map(move |(protocol, ports)| place.ports(protocol, ports.iter().copied()))
}
