//! Redirects packets from processes of the node to services into the switch.
//!
//! ```text
//!   process ── 192.0.2.1:30080 ──▶ output: dnat ──▶ 169.254.1.2:30080 ── podgate-host ══ switch
//! ```
//!
//! A packet to one of the node's own addresses never leaves the kernel, and one to an
//! external address would leave through the uplink. Both are translated to an address of the
//! switch, at the port that it maps to the service. Connection tracking translates the answers
//! back.
//!
//! One nftables table has three rules and four sets for each address family; changes of services
//! change elements of the sets.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};

use super::error::Error;
use super::nft;

/// The redirects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Redirects {
    /// The node's addresses at which `node_ports` count. Loopback addresses never do:
    /// packets to them have loopback sources and cannot leave the kernel.
    pub node: BTreeSet<IpAddr>,
    /// Node ports at all of these addresses: protocol, port, and target. They hold for the target's address family.
    pub node_ports: BTreeSet<(u8, u16, SocketAddr)>,
    /// Targets of packets by address, protocol and port; of one family.
    pub addresses: BTreeMap<(IpAddr, u8, u16), SocketAddr>,
    /// TCP destinations that are never redirected.
    pub bypass: BTreeSet<SocketAddr>,
}

/// The kernel's table, as written last.
#[derive(Debug)]
pub struct Redirector {
    table: nft::Table,
    /// Its elements; `None` if they are not known.
    elements: Option<Elements>,
}

impl Default for Redirector {
    fn default() -> Self {
        Self { table: nft::Table::new(TABLE), elements: None }
    }
}

/// The value of each element, by its set and key; sets without values have empty ones.
type Elements = BTreeMap<(Set, String), String>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Set {
    kind: Kind,
    v6: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Bypass,
    Node,
    NodePorts,
    Addresses,
}

/// Name of the table.
pub(crate) const TABLE: &str = "podgate-services";

impl Redirector {
    /// Brings the kernel into this state, in one transaction of the differences. A call with the
    /// same redirects writes only if another program changed the table.
    ///
    /// # Errors
    /// With the output of `nft`; the next call writes the whole table.
    pub fn set(&mut self, wanted: &Redirects) -> Result<(), Error> {
        let wanted = elements(wanted);
        let known = match self.elements.take() {
            Some(known) if self.table.is_intact()? => Some(known),
            Some(_) => {
                tracing::warn!("table {TABLE} was changed by another program; it is restored");
                None
            }
            None => None,
        };
        if known.as_ref() != Some(&wanted) {
            let is_changed =
                known.is_some_and(|known| self.table.change(&difference(&known, &wanted)).is_ok());
            if !is_changed {
                self.table.change(&whole(&wanted))?;
            }
        }
        self.elements = Some(wanted);
        Ok(())
    }

    /// Removes all redirects. The table stays, empty: the kernel continues to translate open
    /// connections, so they survive a restart.
    ///
    /// # Errors
    /// With the output of `nft`.
    pub fn release(&mut self) -> Result<(), Error> {
        match &self.elements {
            None => Ok(()),
            Some(_) => self.set(&Redirects::default()),
        }
    }
}

impl Set {
    const ALL: [Self; 8] = [
        Self { kind: Kind::Bypass, v6: false },
        Self { kind: Kind::Node, v6: false },
        Self { kind: Kind::NodePorts, v6: false },
        Self { kind: Kind::Addresses, v6: false },
        Self { kind: Kind::Bypass, v6: true },
        Self { kind: Kind::Node, v6: true },
        Self { kind: Kind::NodePorts, v6: true },
        Self { kind: Kind::Addresses, v6: true },
    ];

    fn name(self) -> String {
        let kind = match self.kind {
            Kind::Bypass => "bypass",
            Kind::Node => "node",
            Kind::NodePorts => "node-ports",
            Kind::Addresses => "addresses",
        };
        format!("{kind}{}", if self.v6 { 6 } else { 4 })
    }

    fn declaration(self) -> String {
        let (name, address) = (self.name(), if self.v6 { "ipv6_addr" } else { "ipv4_addr" });
        let target = format!("{address} . inet_service");
        match self.kind {
            Kind::Bypass => format!("set {name} {{ type {target}; }}"),
            Kind::Node => format!("set {name} {{ type {address}; }}"),
            Kind::NodePorts => {
                format!("map {name} {{ type inet_proto . inet_service : {target}; }}")
            }
            Kind::Addresses => {
                format!("map {name} {{ type {address} . inet_proto . inet_service : {target}; }}")
            }
        }
    }
}

fn elements(redirects: &Redirects) -> Elements {
    let mut elements = Elements::new();
    let mut add = |kind, v6, key, value| elements.insert((Set { kind, v6 }, key), value);
    for to in &redirects.bypass {
        add(Kind::Bypass, to.is_ipv6(), format!("{} . {}", to.ip(), to.port()), String::new());
    }
    for address in redirects.node.iter().filter(|address| !address.is_loopback()) {
        add(Kind::Node, address.is_ipv6(), address.to_string(), String::new());
    }
    let target = |target: &SocketAddr| format!("{} . {}", target.ip(), target.port());
    for (protocol, port, to) in &redirects.node_ports {
        add(Kind::NodePorts, to.is_ipv6(), format!("{protocol} . {port}"), target(to));
    }
    for ((address, protocol, port), to) in &redirects.addresses {
        if !address.is_loopback() && address.is_ipv6() == to.is_ipv6() {
            let key = format!("{address} . {protocol} . {port}");
            add(Kind::Addresses, to.is_ipv6(), key, target(to));
        }
    }
    elements
}

/// The table as `nft` reads it: replaced.
fn whole(wanted: &Elements) -> String {
    let mut content = String::new();
    for set in Set::ALL {
        content += &format!("  {}\n", set.declaration());
    }
    // Priority of destination NAT, which `nft` knows by name in other hooks only.
    content += "  chain output {\n    type nat hook output priority -100; policy accept;\n";
    for (family, n) in [("ip", 4), ("ip6", 6)] {
        let to = format!("dnat {family} to");
        content += &format!(
            "    {family} daddr . tcp dport @bypass{n} accept\n    \
             {to} {family} daddr . meta l4proto . th dport map @addresses{n}\n    \
             {family} daddr @node{n} {to} meta l4proto . th dport map @node-ports{n}\n"
        );
    }
    nft::replaced(TABLE, &(content + "  }\n")) + &difference(&Elements::new(), wanted)
}

fn difference(known: &Elements, wanted: &Elements) -> String {
    let less = |these: &Elements, those: &Elements| -> Elements {
        let new = these.iter().filter(|(key, value)| those.get(key) != Some(value));
        new.map(|(key, value)| (key.clone(), value.clone())).collect()
    };
    change("delete", &less(known, wanted)) + &change("add", &less(wanted, known))
}

fn change(verb: &str, elements: &Elements) -> String {
    let mut script = String::new();
    for set in Set::ALL {
        let of_set = elements.range((set, String::new())..).take_while(|((it, _), _)| *it == set);
        let mut list = String::new();
        for ((_, key), value) in of_set {
            let comma = if list.is_empty() { "" } else { ", " };
            let colon = if value.is_empty() { "" } else { " : " };
            // Writing to a string does not fail.
            let _ = write!(list, "{comma}{key}{colon}{value}");
        }
        if !list.is_empty() {
            script += &format!("{verb} element inet {TABLE} {} {{ {list} }}\n", set.name());
        }
    }
    script
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redirects(node_ports: &[u16]) -> Redirects {
        let to = |port| SocketAddr::from(([169, 254, 1, 2], port));
        let external = ("2001:db8::7".parse().unwrap(), 17, 53);
        Redirects {
            node: ["192.0.2.1", "127.0.0.1", "::1"].map(|it| it.parse().unwrap()).into(),
            node_ports: node_ports.iter().map(|port| (6, *port, to(*port))).collect(),
            addresses: [(external, "[fd70::1]:9".parse().unwrap())].into(),
            bypass: ["192.0.2.1:6443".parse().unwrap()].into(),
        }
    }

    #[test]
    fn the_table_is_made_whole_at_first() {
        let script = whole(&elements(&redirects(&[30080, 30443])));
        for line in [
            "add element inet podgate-services node4 { 192.0.2.1 }",
            "add element inet podgate-services node-ports4 { 6 . 30080 : 169.254.1.2 . 30080, \
             6 . 30443 : 169.254.1.2 . 30443 }",
            "add element inet podgate-services addresses6 { 2001:db8::7 . 17 . 53 : fd70::1 . 9 }",
            "add element inet podgate-services bypass4 { 192.0.2.1 . 6443 }",
            "    ip daddr . tcp dport @bypass4 accept",
            "    ip daddr @node4 dnat ip to meta l4proto . th dport map @node-ports4",
        ] {
            assert!(script.lines().any(|it| it == line), "{line}\n{script}");
        }
        assert!(!script.contains("node6 {  }") && !script.contains("127.0.0.1"));
    }

    #[test]
    fn what_is_different_alone_is_told() {
        let [before, after] = [&[30080, 30443][..], &[30080, 30444]].map(redirects);
        assert_eq!(
            difference(&elements(&before), &elements(&after)),
            "delete element inet podgate-services node-ports4 { 6 . 30443 : 169.254.1.2 . 30443 \
             }\nadd element inet podgate-services node-ports4 { 6 . 30444 : 169.254.1.2 . 30444 \
             }\n"
        );
        let mut elsewhere = elements(&before);
        for value in elsewhere.values_mut().filter(|value| value.ends_with(" 30080")) {
            *value = "169.254.1.2 . 7".to_owned();
        }
        assert_eq!(difference(&elements(&before), &elsewhere).lines().count(), 2);
    }
}
