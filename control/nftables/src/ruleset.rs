//! The content of the kernel's tables as a value, and the transactions that lead to it.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::IpAddr;
use std::sync::Arc;

use acl::PortRange;
use control::Members;

use crate::ports;

/// Names of the tables, of families `inet` and `bridge`. One pair enforces; the other takes its place when everything
/// is written anew.
pub const TABLES: [&str; 2] = ["podgate-policy-a", "podgate-policy-b"];

/// The transactions from one state to the next, in order; empty ones are left out.
///
/// Rules and elements change atomically for later packets, but a packet under way keeps the rules it began with and
/// looks up elements as they are at that moment. So everything is added before a rule or map refers to it, and removed
/// after the last reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transactions(pub Vec<String>);

/// Address family of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Family {
    Inet,
    Bridge,
}

/// Table and name.
pub(crate) type Name = (Family, Arc<str>);

/// Sets, maps and chains by name.
#[derive(Clone, Debug, Default)]
pub struct Ruleset {
    pub(crate) sets: BTreeMap<Name, Set>,
    pub(crate) chains: BTreeMap<Name, Chain>,
}

/// A set or a map.
#[derive(Clone, Debug)]
pub(crate) struct Set {
    /// `set` or `map`.
    pub(crate) kind: &'static str,
    /// The text between the braces of its declaration.
    pub(crate) properties: &'static str,
    pub(crate) elements: Elements,
}

/// The elements of a set.
#[derive(Clone, Debug)]
pub(crate) enum Elements {
    /// The addresses of one family of a peer set.
    Members(Arc<Members>, bool),
    /// Intervals of ports.
    Ports(Arc<[PortRange]>),
    /// Keys, with the values of a map; sets have empty ones.
    Keyed(BTreeMap<String, Arc<str>>),
}

/// A chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chain {
    /// Hook and priority; empty for a chain that others jump to.
    pub(crate) properties: &'static str,
    pub(crate) rules: Arc<[String]>,
}

/// Elements in one command.
const ELEMENTS: usize = 1000;

impl Family {
    const ALL: [Self; 2] = [Self::Inet, Self::Bridge];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Inet => "inet",
            Self::Bridge => "bridge",
        }
    }
}

impl Ruleset {
    /// Returns the script that replaces the tables of this name by this state. They must not be the ones that enforce.
    pub fn whole(&self, table: &str) -> String {
        let mut script = String::new();
        for family in Family::ALL.map(Family::name) {
            if self.counts(family) == [0; 3] {
                continue;
            }
            let _ = writeln!(script, "add table {family} {table}\ndelete table {family} {table}");
            let _ = writeln!(script, "add table {family} {table}");
        }
        script + &Self::default().difference(self, table).0.concat()
    }

    /// The script that removes tables.
    pub fn removal(tables: &[&str]) -> String {
        let remove = |table: &&str| {
            let remove = |family: Family| {
                let family = family.name();
                format!("add table {family} {table}\ndelete table {family} {table}\n")
            };
            Family::ALL.map(remove).concat()
        };
        tables.iter().map(remove).collect()
    }

    /// Returns the transactions that lead from this state of the tables to `next`. Elements of sets are added and
    /// deleted one by one.
    pub fn difference(&self, next: &Self, table: &str) -> Transactions {
        let [mut prepare, mut switch, mut clean] = [const { String::new() }; 3];
        let full = |(family, name): &Name| format!("{} {table} {name}", family.name());
        for (name, set) in &next.sets {
            let known = self.sets.get(name).map(|set| &set.elements);
            if known.is_none() {
                let set = (set.kind, full(name), set.properties);
                let _ = writeln!(prepare, "add {} {} {{ {}; }}", set.0, set.1, set.2);
            }
            let (gone, added) = changes(known, &set.elements);
            // Maps lead to chains.
            let script = match (known, set.kind) {
                (None, "set") => &mut prepare,
                _ => &mut switch,
            };
            commands(script, "delete", &full(name), &gone);
            commands(script, "add", &full(name), &added);
        }
        let mut rules = String::new();
        for (name, chain) in &next.chains {
            let script = match self.chains.get(name) {
                Some(known) if known == chain => continue,
                Some(_) => {
                    let _ = writeln!(switch, "flush chain {}", full(name));
                    &mut switch
                }
                None => {
                    let _ = write!(prepare, "add chain {}", full(name));
                    let _ = match chain.properties {
                        "" => writeln!(prepare),
                        properties => writeln!(prepare, " {{ {properties}; policy accept; }}"),
                    };
                    &mut rules
                }
            };
            for rule in chain.rules.iter() {
                let _ = writeln!(script, "add rule {} {rule}", full(name));
            }
        }
        prepare += &rules;
        let gone = || self.chains.keys().filter(|name| !next.chains.contains_key(*name));
        for command in ["flush", "delete"] {
            for name in gone() {
                let _ = writeln!(clean, "{command} chain {}", full(name));
            }
        }
        for (name, set) in &self.sets {
            if !next.sets.contains_key(name) {
                let _ = writeln!(clean, "delete {} {}", set.kind, full(name));
            }
        }
        let mut scripts = vec![prepare, switch, clean];
        scripts.retain(|script| !script.is_empty());
        Transactions(scripts)
    }

    /// Returns whether the ruleset is empty.
    pub fn is_empty(&self) -> bool {
        self.sets.is_empty() && self.chains.is_empty()
    }

    /// Numbers of sets, chains and rules in the table of a family.
    pub(crate) fn counts(&self, family: &str) -> [usize; 3] {
        let sets = self.sets.keys().filter(|name| name.0.name() == family).count();
        let chains = self.chains.iter().filter(|(name, _)| name.0.name() == family);
        let rules = chains.clone().map(|(_, chain)| chain.rules.len()).sum();
        [sets, chains.count(), rules]
    }

    /// Numbers of sets, elements in them, chains, and rules in these.
    pub fn sizes(&self) -> [usize; 4] {
        let elements = self.sets.values().map(|set| match &set.elements {
            Elements::Members(members, v6) => outside(members, *v6).count(),
            Elements::Ports(ports) => ports.len(),
            Elements::Keyed(keys) => keys.len(),
        });
        let rules = self.chains.values().map(|chain| chain.rules.len()).sum();
        [self.sets.len(), elements.sum(), self.chains.len(), rules]
    }
}

fn commands(script: &mut String, command: &str, name: &str, elements: &[String]) {
    for elements in elements.chunks(ELEMENTS) {
        let _ = writeln!(script, "{command} element {name} {{ {} }}", elements.join(", "));
    }
}

/// The elements to delete, then those to add.
fn changes(known: Option<&Elements>, next: &Elements) -> (Vec<String>, Vec<String>) {
    let none = BTreeMap::new();
    match (known, next) {
        (Some(Elements::Members(known, _)), Elements::Members(next, _))
            if Arc::ptr_eq(known, next) =>
        {
            Default::default()
        }
        (known, Elements::Members(next, v6)) => {
            let known = match known {
                Some(Elements::Members(known, _)) => Some(known),
                _ => None,
            };
            let text = |address: &IpAddr| address.to_string();
            let before = known.into_iter().flat_map(|known| outside(known, *v6));
            let gone = before.filter(|it| !next.contains(**it)).map(text).collect();
            let is_new = |it: &&IpAddr| known.is_none_or(|known| !known.contains(**it));
            // The networks of a set never change: others are another set.
            let ranges = next.ranges().iter().filter(|_| known.is_none());
            let of_family = |(first, _): &&(IpAddr, IpAddr)| first.is_ipv6() == *v6;
            let mut added: Vec<String> = ranges.filter(of_family).map(range).collect();
            added.extend(outside(next, *v6).filter(is_new).map(text));
            (gone, added)
        }
        (known, Elements::Ports(next)) => {
            let known = match known {
                Some(Elements::Ports(known)) if known == next => return Default::default(),
                Some(Elements::Ports(known)) => &known[..],
                _ => &[],
            };
            let texts = |ports: &[PortRange]| ports.iter().map(ports::text).collect();
            (texts(known), texts(next))
        }
        (known, Elements::Keyed(next)) => {
            let known = match known {
                Some(Elements::Keyed(known)) => known,
                _ => &none,
            };
            let differ = |a: &BTreeMap<String, Arc<str>>, b: &BTreeMap<String, Arc<str>>| {
                let element = |(key, value): (&String, &Arc<str>)| match &**value {
                    "" => key.clone(),
                    value => format!("{key} : {value}"),
                };
                let other = a.iter().filter(|(key, value)| b.get(*key) != Some(value));
                other.map(element).collect()
            };
            (differ(known, next), differ(next, known))
        }
    }
}

/// The addresses of a family that are in no network of the set.
fn outside(members: &Members, v6: bool) -> impl Iterator<Item = &IpAddr> {
    let own = members.addresses().filter(move |address| address.is_ipv6() == v6);
    own.filter(|address| !members.is_in_block(**address))
}

fn range((first, last): &(IpAddr, IpAddr)) -> String {
    if first == last { first.to_string() } else { format!("{first}-{last}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exceptions_leave_disjoint_ranges() {
        let of = |text: &str, except: &[&str]| {
            let except = except.iter().map(|it| it.parse().unwrap()).collect();
            let members = Members::of_blocks(&[(text.parse().unwrap(), except)]);
            members.ranges().iter().map(range).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(of("10.0.0.0/8", &[]), "10.0.0.0-10.255.255.255");
        assert_eq!(of("0.0.0.0/0", &[]), "0.0.0.0-255.255.255.255");
        assert_eq!(of("::/0", &["8000::/1"]), "::-7fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff");
        assert_eq!(
            of("10.0.0.0/24", &["10.0.0.1/32", "10.0.0.128/25", "10.0.0.2/31", "11.0.0.0/8"]),
            "10.0.0.0 10.0.0.4-10.0.0.127"
        );
        assert_eq!(of("10.0.0.0/24", &["10.0.0.0/8"]), "");
        assert_eq!(of("10.0.0.7/32", &["fd00::/8"]), "10.0.0.7");
    }

    #[test]
    fn a_difference_holds_single_elements_and_whole_chains() {
        let members = |list: &[&str]| {
            Arc::new(Members::of_addresses(list.iter().map(|it| it.parse().unwrap())))
        };
        let ruleset = |peers: &[&str], value: &str, rules: &[(&str, &str)]| {
            let set = |kind, elements| Set { kind, properties: "type ipv4_addr", elements };
            let keyed = BTreeMap::from([("10.0.0.1".to_owned(), Arc::from(value))]);
            let chains = rules.iter().map(|(name, rule)| {
                let rules = Arc::from([(*rule).to_owned()]);
                ((Family::Inet, Arc::from(*name)), Chain { properties: "", rules })
            });
            let mut sets = BTreeMap::from([(
                (Family::Inet, Arc::from("m")),
                set("map", Elements::Keyed(keyed)),
            )]);
            if !peers.is_empty() {
                let elements = Elements::Members(members(peers), false);
                sets.insert((Family::Inet, Arc::from("s")), set("set", elements));
            }
            Ruleset { sets, chains: chains.collect() }
        };
        let first = ruleset(&["10.0.0.2", "10.0.0.3", "fd00::1"], "goto a", &[("a", "drop")]);
        let second =
            ruleset(&["10.0.0.3", "10.0.0.4"], "goto b", &[("a", "return"), ("b", "drop")]);
        let scripts = |a: &Ruleset, b: &Ruleset| a.difference(b, "t").0;
        assert_eq!(
            scripts(&first, &second),
            [
                "add chain inet t b\nadd rule inet t b drop\n",
                "delete element inet t m { 10.0.0.1 : goto a }\n\
                 add element inet t m { 10.0.0.1 : goto b }\n\
                 delete element inet t s { 10.0.0.2 }\n\
                 add element inet t s { 10.0.0.4 }\n\
                 flush chain inet t a\n\
                 add rule inet t a return\n",
            ]
        );
        let third = ruleset(&[], "drop", &[]);
        assert_eq!(
            scripts(&second, &third),
            [
                "delete element inet t m { 10.0.0.1 : goto b }\n\
                 add element inet t m { 10.0.0.1 : drop }\n",
                "flush chain inet t a\n\
                 flush chain inet t b\n\
                 delete chain inet t a\n\
                 delete chain inet t b\n\
                 delete set inet t s\n",
            ]
        );
        assert!(scripts(&third, &third).is_empty());
    }
}
