//! Renders a rule list as the rules of a chain.
//!
//! Permitted and denied packets get given verdicts; the end of a chain permits nothing. Chains exist twice: for packets
//! of a connection's original direction, and for replies, with both ends exchanged.

use std::net::IpAddr;

use acl::{Action, End, PeerSetId, PortRange, Rule, TcpFlags};
use control::{Members, PeerSets};

use crate::ports::Grouped;

/// Direction of packets within a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Original,
    Reply,
}

/// Address families that pods of the node have: IPv4, IPv6.
pub(crate) type Families = [bool; 2];

/// The group of nfnetlink_log that denials are logged to, with the deciding policy as prefix.
pub const LOG_GROUP: u16 = 4790;
/// Bytes logged of a packet: its headers, which have 120 bytes at most without extensions.
pub const LOG_BYTES: u32 = 128;
/// Packets that one rule logs.
const LOG_RATE: &str = "limit rate 20/second burst 50 packets";

/// Longest comment that the kernel keeps with a rule, in bytes.
const COMMENT: usize = 120;

impl Way {
    pub(crate) const BOTH: [Self; 2] = [Self::Original, Self::Reply];

    /// Part of the names of chains and maps.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Original => "original",
            Self::Reply => "reply",
        }
    }

    /// The fields that hold the address of the end that opened the connection, of the other end,
    /// and the port at that end.
    pub(crate) fn fields(self) -> [&'static str; 3] {
        match self {
            Self::Original => ["saddr", "daddr", "dport"],
            Self::Reply => ["daddr", "saddr", "sport"],
        }
    }
}

/// Name of the set with one family of a peer set.
pub(crate) fn set_name(id: PeerSetId, v6: bool) -> String {
    format!("peers-{}-{}", id.0, if v6 { 6 } else { 4 })
}

/// Returns whether a peer set can hold addresses of a family.
pub(crate) fn has_family(members: &Members, v6: bool) -> bool {
    members.has_addresses() || has_blocks(members, v6)
}

/// Returns whether a peer set has networks of a family.
pub(crate) fn has_blocks(members: &Members, v6: bool) -> bool {
    members.ranges().iter().any(|(first, _)| first.is_ipv6() == v6)
}

/// The rules of the chain for a list.
pub(crate) fn chain(
    list: &Grouped<'_>,
    way: Way,
    sets: &PeerSets,
    families: Families,
    [permit, deny]: [&str; 2],
) -> Vec<String> {
    let mut texts = Vec::with_capacity(list.rules.len() + 1);
    for (rule, ports) in &list.rules {
        let verdicts = verdicts(rule, ports, way, [permit, deny]);
        for ends in ends(rule, way, sets, families) {
            texts.extend(verdicts.iter().map(|verdict| format!("{ends}{verdict}")));
        }
    }
    texts.push(deny.to_owned());
    texts
}

/// Returns the rules of a chain with the list's denials of connections whose other end, this node, has `address` beside
/// the one in the packet. All other packets, and all of the other family, go to the chain `next`.
pub(crate) fn denials_of(
    list: &Grouped<'_>,
    way: Way,
    sets: &PeerSets,
    address: IpAddr,
    [next, deny]: [&str; 2],
) -> Vec<String> {
    let next = format!("goto {next}");
    let family = if address.is_ipv4() { "ipv4" } else { "ipv6" };
    let mut texts = vec![format!("meta nfproto != {family} {next}")];
    for (rule, ports) in list.rules.iter().filter(|(rule, _)| !rule.is_default) {
        let is_in = |end: &End| match end {
            End::Any => true,
            End::Set(id) => sets.get(id).is_some_and(|members| members.contains(address)),
        };
        if is_in(&rule.source) && is_in(&rule.destination) {
            texts.extend(verdicts(rule, ports, way, [&next, deny]));
        }
    }
    texts.push(next);
    texts
}

/// The addresses a rule matches: one text for each family, or an empty one for every address.
fn ends(rule: &Rule, way: Way, sets: &PeerSets, families: Families) -> Vec<String> {
    let [source, destination, _] = way.fields();
    if (rule.source, rule.destination) == (End::Any, End::Any) {
        return vec![String::new()];
    }
    let end = |end: &End, field: &str, v6: bool| {
        let family = if v6 { "ip6" } else { "ip" };
        match end {
            End::Any => Some(String::new()),
            End::Set(id) => {
                let has_it = sets.get(id).is_some_and(|members| has_family(members, v6));
                has_it.then(|| format!("{family} {field} @{} ", set_name(*id, v6)))
            }
        }
    };
    let of_family = |v6: bool| {
        let source = end(&rule.source, source, v6)?;
        Some(source + &end(&rule.destination, destination, v6)?)
    };
    let wanted = [false, true].into_iter().filter(|v6| families[usize::from(*v6)]);
    wanted.filter_map(of_family).collect()
}

/// Protocol, these ports and verdict; before a denial the same with a log. A condition that cannot
/// be expressed here leaves a permission out, and widens a denial.
fn verdicts(rule: &Rule, ports: &str, way: Way, [permit, deny]: [&str; 2]) -> Vec<String> {
    let has_ports = matches!(rule.protocol, Some(6 | 17 | 33 | 132 | 136));
    let is_plain = rule.source_ports == PortRange::ANY
        && rule.tcp_flags == TcpFlags::ANY
        && (has_ports || rule.destination_ports == PortRange::ANY);
    let is_permit = rule.action == Action::Permit;
    if is_permit && !is_plain {
        return Vec::new();
    }
    let mut text = String::new();
    if let Some(protocol) = rule.protocol {
        text += &format!("meta l4proto {protocol} ");
    }
    if has_ports && rule.destination_ports != PortRange::ANY {
        let [_, _, port] = way.fields();
        text += &format!("th {port} {ports} ");
    }
    let origin = plain(&rule.origin.to_string());
    let comment = if origin.is_empty() { String::new() } else { format!(" comment \"{origin}\"") };
    if is_permit {
        return vec![format!("{text}{permit}{comment}")];
    }
    let log =
        format!("{text}{LOG_RATE} log prefix \"{origin}\" group {LOG_GROUP} snaplen {LOG_BYTES}");
    let denial = format!("{text}{deny}{comment}");
    if origin.is_empty() { vec![denial] } else { vec![log, denial] }
}

/// Returns the deciding policy as written to the kernel's tables and log.
fn plain(origin: &str) -> String {
    let safe = |c: char| c.is_ascii_graphic() && !matches!(c, '"' | '\\' | '$');
    let mut text: String = origin.chars().map(|c| if safe(c) { c } else { ' ' }).collect();
    text.truncate(COMMENT);
    text.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use super::*;

    fn sets() -> PeerSets {
        let pods = Members::of_addresses(["10.0.0.1".parse().unwrap()]);
        let block = Members::of_blocks(&[("192.0.2.0/24".parse().unwrap(), Vec::new())]);
        BTreeMap::from([(PeerSetId(1), Arc::new(pods)), (PeerSetId(2), Arc::new(block))])
    }

    const SETS: [End; 2] = [End::Set(PeerSetId(1)), End::Set(PeerSetId(2))];

    #[test]
    fn both_directions_of_a_connection() {
        let web = PortRange { first: 80, last: 90 };
        let list = [
            Rule::new(Action::Permit, "a").source(SETS[0]).protocol(6).destination_ports(web),
            Rule::new(Action::Deny, "b \" c")
                .source(SETS[1])
                .protocol(17)
                .destination_ports(PortRange::one(53)),
            Rule::new(Action::Permit, ""),
        ];
        let grouped = Grouped::new(&list, "0");
        let text = |way, families| {
            chain(&grouped, way, &sets(), families, ["goto next", "drop"]).join("\n")
        };
        assert_eq!(
            text(Way::Original, [true, true]),
            "ip saddr @peers-1-4 meta l4proto 6 th dport 80-90 goto next comment \"a\"\n\
             ip6 saddr @peers-1-6 meta l4proto 6 th dport 80-90 goto next comment \"a\"\n\
             ip saddr @peers-2-4 meta l4proto 17 th dport 53 limit rate 20/second burst 50 packets log prefix \"b   c\" group 4790 snaplen 128\n\
             ip saddr @peers-2-4 meta l4proto 17 th dport 53 drop comment \"b   c\"\n\
             goto next\n\
             drop"
        );
        assert_eq!(
            text(Way::Reply, [true, false]),
            "ip daddr @peers-1-4 meta l4proto 6 th sport 80-90 goto next comment \"a\"\n\
             ip daddr @peers-2-4 meta l4proto 17 th sport 53 limit rate 20/second burst 50 packets log prefix \"b   c\" group 4790 snaplen 128\n\
             ip daddr @peers-2-4 meta l4proto 17 th sport 53 drop comment \"b   c\"\n\
             goto next\n\
             drop"
        );
    }

    #[test]
    fn the_chain_of_one_address_holds_what_is_about_it() {
        let permit = |set: End, port: u16| {
            let tcp = Rule::new(Action::Permit, "").destination(set).protocol(6);
            tcp.destination_ports(PortRange::one(port))
        };
        let list = [permit(SETS[0], 80), permit(SETS[1], 81), Rule::new(Action::Deny, "")];
        let address = "192.0.2.7".parse().unwrap();
        let text = denials_of(
            &Grouped::new(&list, "0"),
            Way::Original,
            &sets(),
            address,
            ["next", "drop"],
        )
        .join("\n");
        assert_eq!(
            text,
            "meta nfproto != ipv4 goto next\nmeta l4proto 6 th dport 81 goto next\ndrop\ngoto next"
        );
        let list: Vec<Rule> = list.into_iter().map(Rule::as_default).collect();
        let text = denials_of(
            &Grouped::new(&list, "0"),
            Way::Original,
            &sets(),
            address,
            ["next", "drop"],
        )
        .join("\n");
        assert_eq!(text, "meta nfproto != ipv4 goto next\ngoto next");
    }

    #[test]
    fn ports_of_one_rule_are_one_rule() {
        let permit = |port: u16, protocol: u8| {
            let rule = Rule::new(Action::Permit, "a").source(SETS[0]).protocol(protocol);
            rule.destination_ports(PortRange::one(port))
        };
        let few = [permit(80, 6), permit(443, 6), permit(53, 17)];
        let text = |grouped: &Grouped<'_>| {
            chain(grouped, Way::Original, &sets(), [true, false], ["accept", "drop"]).join("\n")
        };
        assert_eq!(
            text(&Grouped::new(&few, "0")),
            "ip saddr @peers-1-4 meta l4proto 6 th dport { 80, 443 } accept comment \"a\"\n\
             ip saddr @peers-1-4 meta l4proto 17 th dport 53 accept comment \"a\"\n\
             drop"
        );
        let many: Vec<Rule> = (0..10_000).map(|n| permit(2 * n, 6)).collect();
        let grouped = Grouped::new(&many, "0");
        assert_eq!(
            text(&grouped),
            "ip saddr @peers-1-4 meta l4proto 6 th dport @ports-0-0 accept comment \"a\"\ndrop"
        );
        let sets = grouped.into_sets();
        assert_eq!(sets.iter().map(|(_, ports)| ports.len()).collect::<Vec<_>>(), [10_000]);
    }

    #[test]
    fn what_cannot_be_expressed_closes() {
        let flags = TcpFlags { mask: 2, value: 2 };
        let list = [
            Rule::new(Action::Permit, "").tcp_flags(flags),
            Rule::new(Action::Permit, "").destination_ports(PortRange::one(80)),
            Rule::new(Action::Deny, "").protocol(6).source_ports(PortRange::one(1)),
            Rule::new(Action::Pass, "").protocol(17),
        ];
        let text = chain(
            &Grouped::new(&list, "0"),
            Way::Original,
            &sets(),
            [true, true],
            ["accept", "drop"],
        )
        .join("\n");
        assert_eq!(text, "meta l4proto 6 drop\nmeta l4proto 17 drop\ndrop");
    }
}
