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
//! Two more rules concern what leaves the node:
//!
//! - What the switch sends to the kernel from its own address, on behalf of a client, leaves as the
//!   node's.
//! - A connection of a process whose source port is a service's at the node's address gets another
//!   one: its answers would be taken for requests to the service.
//!
//! One nftables table has five rules and six sets for each address family; changes of services
//! change elements of the sets. Entries of UDP flows that lead elsewhere by now are deleted from
//! conntrack.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};

use super::error::Error;
use super::{departed, nft};

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
    /// The switch's own addresses.
    pub switch: BTreeSet<IpAddr>,
}

impl Redirects {
    /// Protocol and port of everything at the node's addresses that is a service's, of one family.
    pub fn ports(&self, v6: bool) -> BTreeSet<(u8, u16)> {
        let of_family = self.node_ports.iter().filter(|(.., to)| to.is_ipv6() == v6);
        let at_node = self
            .addresses
            .keys()
            .filter(|(address, ..)| address.is_ipv6() == v6 && self.node.contains(address));
        let at_all = of_family.map(|(protocol, port, _)| (*protocol, *port));
        at_all.chain(at_node.map(|(_, protocol, port)| (*protocol, *port))).collect()
    }

    /// Whether datagrams for `address` are led elsewhere than to `to`.
    fn differ(&self, address: SocketAddr, to: SocketAddr) -> bool {
        const UDP: u8 = libc::IPPROTO_UDP as u8;
        let (ip, port) = (address.ip(), address.port());
        let at_node = || {
            let is_it = |it: &&(u8, u16, SocketAddr)| {
                (it.0, it.1, it.2.is_ipv6()) == (UDP, port, ip.is_ipv6())
            };
            let node = self.node.contains(&ip) && !ip.is_loopback();
            node.then(|| self.node_ports.iter().find(is_it).map(|(.., to)| *to)).flatten()
        };
        match self.addresses.get(&(ip, UDP, port)).copied().or_else(at_node) {
            Some(target) => target != to,
            None => address != to && self.switch.contains(&to.ip()),
        }
    }
}

/// The kernel's table, as written last.
#[derive(Debug)]
pub struct Redirector {
    table: nft::Table,
    /// Its elements; `None` if they are not known.
    elements: Option<Elements>,
    /// Whether conntrack may have entries that lead elsewhere.
    has_stale_flows: bool,
}

impl Default for Redirector {
    fn default() -> Self {
        Self { table: nft::Table::new(TABLE), elements: None, has_stale_flows: true }
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
    Switch,
    Ports,
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
        self.write(wanted)?;
        if std::mem::take(&mut self.has_stale_flows)
            && let Err(error) = departed::delete_flows(|address, to| wanted.differ(address, to))
        {
            // Without nf_conntrack_netlink, say.
            tracing::warn!("UDP flows of the node's processes stay where they are: {error}");
        }
        Ok(())
    }

    fn write(&mut self, wanted: &Redirects) -> Result<(), Error> {
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
            self.has_stale_flows = true;
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
            Some(_) => self.write(&Redirects::default()),
        }
    }
}

impl Set {
    fn all() -> impl Iterator<Item = Self> {
        let kinds =
            [Kind::Bypass, Kind::Node, Kind::NodePorts, Kind::Addresses, Kind::Switch, Kind::Ports];
        [false, true].into_iter().flat_map(move |v6| kinds.map(|kind| Self { kind, v6 }))
    }

    fn name(self) -> String {
        let kind = match self.kind {
            Kind::Bypass => "bypass",
            Kind::Node => "node",
            Kind::NodePorts => "node-ports",
            Kind::Addresses => "addresses",
            Kind::Switch => "switch",
            Kind::Ports => "ports",
        };
        format!("{kind}{}", if self.v6 { 6 } else { 4 })
    }

    fn declaration(self) -> String {
        let (name, address) = (self.name(), if self.v6 { "ipv6_addr" } else { "ipv4_addr" });
        let target = format!("{address} . inet_service");
        match self.kind {
            Kind::Bypass => format!("set {name} {{ type {target}; }}"),
            Kind::Node | Kind::Switch => format!("set {name} {{ type {address}; }}"),
            Kind::Ports => format!("set {name} {{ type inet_proto . inet_service; }}"),
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
    for address in &redirects.switch {
        add(Kind::Switch, address.is_ipv6(), address.to_string(), String::new());
    }
    for v6 in [false, true] {
        for (protocol, port) in redirects.ports(v6) {
            add(Kind::Ports, v6, format!("{protocol} . {port}"), String::new());
        }
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
    for set in Set::all() {
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
    // In front of the masquerading of pods.
    content += "  }\n  chain postrouting {\n    type nat hook postrouting priority 99; policy \
                accept;\n    oifname \"podgate-host\" accept\n";
    for (family, n) in [("ip", 4), ("ip6", 6)] {
        content += &format!(
            "    {family} saddr @switch{n} masquerade\n    \
             {family} saddr @node{n} {OTHER_PORT_IF} @ports{n} {OTHER_PORT}\n"
        );
    }
    nft::replaced(TABLE, &(content + "  }\n")) + &difference(&Elements::new(), wanted)
}

/// Matches source ports in the set that follows.
pub(crate) const OTHER_PORT_IF: &str = "meta l4proto { tcp, udp, sctp } meta l4proto . th sport";
/// Gives the node's address and another source port: of the range that Linux itself uses, and
/// `--translation-ports` does not.
pub(crate) const OTHER_PORT: &str = "masquerade to :32768-60999 random";

fn difference(known: &Elements, wanted: &Elements) -> String {
    let less = |these: &Elements, those: &Elements| -> Elements {
        let new = these.iter().filter(|(key, value)| those.get(key) != Some(value));
        new.map(|(key, value)| (key.clone(), value.clone())).collect()
    };
    change("delete", &less(known, wanted)) + &change("add", &less(wanted, known))
}

fn change(verb: &str, elements: &Elements) -> String {
    let mut script = String::new();
    for set in Set::all() {
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
            switch: ["169.254.1.2".parse().unwrap()].into(),
        }
    }

    #[test]
    fn a_flow_is_stale_if_it_leads_elsewhere_than_the_redirects() {
        let mut redirects = redirects(&[30080]);
        let udp = (17, 8125, SocketAddr::from(([169, 254, 1, 2], 8125)));
        redirects.node_ports.insert(udp);
        for (address, to, is_stale) in [
            ("192.0.2.1:8125", "169.254.1.2:8125", false),
            ("192.0.2.1:8125", "192.0.2.1:8125", true),
            ("192.0.2.1:8125", "169.254.1.2:7", true),
            ("192.0.2.9:8125", "192.0.2.9:8125", false),
            // One of TCP alone.
            ("192.0.2.1:30080", "192.0.2.1:30080", false),
            ("192.0.2.1:30080", "169.254.1.2:30080", true),
            // The process itself has asked the switch.
            ("169.254.1.2:9", "169.254.1.2:9", false),
            ("[2001:db8::7]:53", "[fd70::1]:9", false),
            ("[2001:db8::7]:53", "[2001:db8::7]:53", true),
        ] {
            let ends = [address, to].map(|it| it.parse().unwrap());
            assert_eq!(redirects.differ(ends[0], ends[1]), is_stale, "{address} {to}");
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
            "add element inet podgate-services ports4 { 6 . 30080, 6 . 30443 }",
            "    ip saddr @switch4 masquerade",
            "    ip saddr @node4 meta l4proto { tcp, udp, sctp } meta l4proto . th sport @ports4 \
             masquerade to :32768-60999 random",
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
             }\ndelete element inet podgate-services ports4 { 6 . 30443 }\nadd element inet \
             podgate-services node-ports4 { 6 . 30444 : 169.254.1.2 . 30444 }\nadd element inet \
             podgate-services ports4 { 6 . 30444 }\n"
        );
        let mut elsewhere = elements(&before);
        for value in elsewhere.values_mut().filter(|value| value.ends_with(" 30080")) {
            *value = "169.254.1.2 . 7".to_owned();
        }
        assert_eq!(difference(&elements(&before), &elsewhere).lines().count(), 2);
    }
}
