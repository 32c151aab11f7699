//! Rules that differ in their ports alone, as one rule.
//!
//! A few intervals stand in the rule itself. More are a set of their own: the kernel takes seconds
//! for thousands of them in a rule, and evaluates thousands of rules one after the other.

use std::sync::Arc;

use acl::{PortRange, Rule, TcpFlags};

use crate::ruleset::{Elements, Family, Ruleset, Set};

/// Intervals that stand in a rule.
const LISTED: usize = 16;

/// The rules of a list, those of one rule of a policy and one protocol together.
#[derive(Debug, Default)]
pub(crate) struct Grouped<'a> {
    /// The first rule of each group, and what matches all its ports.
    pub(crate) rules: Vec<(&'a Rule, String)>,
    sets: Vec<PortSet>,
}

/// A set of ports: its name and content.
pub(crate) type PortSet = (Arc<str>, Arc<[PortRange]>);

impl<'a> Grouped<'a> {
    /// Groups a list, the name of which no other list has.
    pub(crate) fn new(list: &'a [Rule], name: &str) -> Self {
        let mut grouped = Self::default();
        for rules in list.chunk_by(is_of_one) {
            let first = &rules[0];
            let text = match rules {
                _ if first.destination_ports == PortRange::ANY => String::new(),
                [one] => text(&one.destination_ports),
                few if few.len() <= LISTED => {
                    let texts: Vec<String> =
                        few.iter().map(|rule| text(&rule.destination_ports)).collect();
                    format!("{{ {} }}", texts.join(", "))
                }
                many => {
                    let set: Arc<str> = format!("ports-{name}-{}", grouped.sets.len()).into();
                    let text = format!("@{set}");
                    let ports = many.iter().map(|rule| rule.destination_ports).collect();
                    grouped.sets.push((set, ports));
                    text
                }
            };
            grouped.rules.push((first, text));
        }
        grouped
    }

    /// The sets that the texts name.
    pub(crate) fn into_sets(self) -> Vec<PortSet> {
        self.sets
    }
}

/// Adds sets of ports.
pub(crate) fn insert(ruleset: &mut Ruleset, sets: &[PortSet]) {
    for (name, ports) in sets {
        let elements = Elements::Ports(Arc::clone(ports));
        let set = Set { kind: "set", properties: "type inet_service; flags interval", elements };
        ruleset.sets.insert((Family::Inet, Arc::clone(name)), set);
    }
}

/// An interval, as nft writes it.
pub(crate) fn text(PortRange { first, last }: &PortRange) -> String {
    if first == last { first.to_string() } else { format!("{first}-{last}") }
}

/// Whether two rules say the same about different ports, which do not overlap.
fn is_of_one(a: &Rule, b: &Rule) -> bool {
    let is_plain = |rule: &Rule| {
        rule.source_ports == PortRange::ANY
            && rule.tcp_flags == TcpFlags::ANY
            && rule.destination_ports != PortRange::ANY
    };
    a.protocol.is_some()
        && is_plain(a)
        && is_plain(b)
        && a.destination_ports.last < b.destination_ports.first
        && (a.source, a.destination, a.protocol) == (b.source, b.destination, b.protocol)
        && (a.action, a.is_default) == (b.action, b.is_default)
        && a.origin == b.origin
}
