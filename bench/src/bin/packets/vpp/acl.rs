//! Rules as VPP's ACL plugin takes them.

use std::fmt::Write;

use acl::{Action, End, PeerSetId, PortRange, Rule};
use ipnet::IpNet;

/// An ACL for [`Vpp::add_acl`](super::Vpp): what is permitted makes a session, what no rule
/// matches is refused. A peer set, which VPP has none of, becomes a rule for each of its networks.
/// Where all is denied, a rule that no packet matches permits something: only then VPP looks sessions
/// up first, as Podgate does.
///
/// # Panics
/// At rules with what the benchmarks' have not: a destination, source ports.
pub(crate) fn acl(rules: &[Rule], members: impl Fn(PeerSetId) -> Vec<IpNet>) -> String {
    let mut text = String::new();
    for rule in rules.iter().filter(|rule| **rule != rest(rule)) {
        assert!(rule.destination == End::Any && rule.source_ports == PortRange::ANY, "{rule:?}");
        let sources = match &rule.source {
            End::Any => vec!["0.0.0.0/0".to_owned()],
            End::Set(set) => members(*set).iter().map(ToString::to_string).collect(),
        };
        let action = if rule.action == Action::Permit { "permit+reflect" } else { "deny" };
        let protocol = rule.protocol.unwrap_or_default();
        let PortRange { first, last } = rule.destination_ports;
        for source in sources {
            let comma = if text.is_empty() { "" } else { ", " };
            // Nothing fails that writes to memory.
            let _ =
                write!(text, "{comma}{action} src {source} proto {protocol} dport {first}-{last}");
        }
    }
    if rules.iter().all(|rule| rule.action == Action::Deny) {
        text += ", permit+reflect src 0.0.0.0/0 proto 6 dport 0-0";
    }
    text
}

/// The rule at the end of a list, which refuses what no other rule matches.
fn rest(rule: &Rule) -> Rule {
    Rule::new(Action::Deny, rule.origin.clone())
}
