//! Host firewalls: what reaches the cluster node itself, and what its own processes open.
//!
//! ```text
//!   input, output ─▶ firewalls without failsafe ─▶ failsafe ports ─▶ other firewalls ─▶ accept
//!                     (each permits, or drops)      (accept)          (each permits, or drops)
//! ```
//!
//! As for pods, every packet is evaluated, and replies by the rules of the direction that opened the
//! connection: a denial stops live connections. Loopback, neighbour discovery and ICMP errors of
//! connections are always accepted. What the kernel forwards does not come here.

use std::collections::BTreeSet;
use std::sync::Arc;

use acl::{End, Rule};
use control::{HostFirewall, PeerSets, View};

use crate::render::insert_peer_set;
use crate::rules::{self, Way};
use crate::ruleset::{Chain, Family, Ruleset};

/// Names of the tables of host firewalls; see [`TABLES`](crate::TABLES).
pub const HOST_TABLES: [&str; 2] = ["podgate-host-a", "podgate-host-b"];

/// Ports that a firewall closes only if its object says `failsafePorts: Closed`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failsafe {
    /// TCP ports of this cluster node.
    pub tcp_in: BTreeSet<u16>,
    /// TCP ports that this cluster node opens connections to.
    pub tcp_out: BTreeSet<u16>,
    /// UDP ports of this cluster node.
    pub udp_in: BTreeSet<u16>,
    /// UDP ports that this cluster node sends to.
    pub udp_out: BTreeSet<u16>,
}

const SSH: u16 = 22;
const API_SERVER: u16 = 6443;
const KUBELET: u16 = 10250;
/// DHCP's ports, of IPv4 and IPv6 (RFC 2131, RFC 9915).
const DHCP_CLIENTS: [u16; 2] = [68, 546];
const DHCP_SERVERS: [u16; 2] = [67, 547];

impl Default for Failsafe {
    /// Of ssh, the API server, kubelet and DHCP.
    fn default() -> Self {
        Self {
            tcp_in: [SSH, API_SERVER, KUBELET].into(),
            tcp_out: [API_SERVER, KUBELET].into(),
            udp_in: DHCP_CLIENTS.into(),
            udp_out: DHCP_SERVERS.into(),
        }
    }
}

/// A hook of the cluster node's own traffic, and the direction of a connection there.
#[derive(Clone, Copy)]
struct Place {
    hook: &'static str,
    way: Way,
}

impl Place {
    /// Whether the connection was opened from outside.
    fn is_ingress(self) -> bool {
        (self.hook == "input") == (self.way == Way::Original)
    }

    fn chain(self, stage: usize) -> String {
        format!("{}-{}-{stage}", self.hook, self.way.name())
    }
}

/// The ruleset of the host firewalls in a view that was published with peer sets; empty if there are
/// none.
pub fn host_ruleset(view: &View, failsafe: &Failsafe) -> Ruleset {
    let mut ruleset = Ruleset::default();
    if view.host_firewalls.is_empty() {
        return ruleset;
    }
    let (kept, strict): (Vec<&HostFirewall>, Vec<&HostFirewall>) =
        view.host_firewalls.iter().partition(|firewall| firewall.failsafe);
    for (hook, properties, interface) in [
        ("input", "type filter hook input priority filter", "iifname"),
        ("output", "type filter hook output priority filter", "oifname"),
    ] {
        let base = vec![
            format!("{interface} \"lo\" accept"),
            "icmpv6 type { 130-137, 143 } accept".to_owned(),
            "ct state related meta l4proto { 1, 58 } accept".to_owned(),
            format!("ct direction reply goto {}", Place { hook, way: Way::Reply }.chain(0)),
            format!("goto {}", Place { hook, way: Way::Original }.chain(0)),
        ];
        add(&mut ruleset, hook.to_owned(), properties, base);
        for way in Way::BOTH {
            let place = Place { hook, way };
            let stages = kept.len() + strict.len() + 1;
            for stage in 0..stages {
                let permit = match stage + 1 == stages {
                    true => "accept".to_owned(),
                    false => format!("goto {}", place.chain(stage + 1)),
                };
                let rules = if stage == strict.len() {
                    accept(failsafe, place, &permit)
                } else {
                    let firewall = match stage < strict.len() {
                        true => strict[stage],
                        false => kept[stage - strict.len() - 1],
                    };
                    let list = list(firewall, place);
                    rules::chain(list, way, &view.peer_sets, [true, true], &permit)
                };
                add(&mut ruleset, place.chain(stage), "", rules);
            }
        }
    }
    for firewall in view.host_firewalls.iter() {
        add_sets(&mut ruleset, &firewall.ingress, &view.peer_sets);
        add_sets(&mut ruleset, &firewall.egress, &view.peer_sets);
    }
    ruleset
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

/// Accepts the failsafe ports; the rest goes on.
fn accept(failsafe: &Failsafe, place: Place, next: &str) -> Vec<String> {
    let Failsafe { tcp_in, tcp_out, udp_in, udp_out } = failsafe;
    let (tcp, udp) = if place.is_ingress() { (tcp_in, udp_in) } else { (tcp_out, udp_out) };
    let [_, _, port] = place.way.fields();
    let mut rules = Vec::new();
    for (protocol, ports) in [(6, tcp), (17, udp)] {
        let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
        if !ports.is_empty() {
            let ports = ports.join(", ");
            rules.push(format!("meta l4proto {protocol} th {port} {{ {ports} }} accept"));
        }
    }
    rules.push(next.to_owned());
    rules
}
