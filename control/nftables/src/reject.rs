//! Chains that reply to denied packets. They exist while any pod's denials are replied to.
//!
//! | set | key | meaning |
//! |---|---|---|
//! | `clients-F` | address | pods of the cluster, which `reject` replies to (see [`clients`]) |
//! | `replied-F` | address | senders that had a reply, with their rates |
//! | `aborted-F` | address | senders whose connections were ended at the other end, with their rates |
//!
//! A TCP reset goes to the sender of each denied packet, any other reply only to the initiator. The kernel treats it as
//! a packet of the connection, so that after a translation it comes from the service's address.
//!
//! The other end of a live TCP connection gets a reset too, in the name of the sender. The kernel's `reject` answers
//! only the sender, and conntrack has no sequence numbers; so the headers of the denied packet are logged, and the
//! process that reads the log sends the reset by a raw socket.

use control::model::DeniedReply;

use crate::rules::{LOG_BYTES, LOG_GROUP, Way};
use crate::ruleset::{Chain, Family};

/// Replies to one sender, as the switch limits its own.
const RATE: &str = "limit rate 1000/second burst 50 packets";
/// Accepts resets of the node, among them those of these chains: conntrack may call one invalid, as its destination is
/// translated already. A reset carries nothing but the end of a connection.
pub(crate) const RESETS: &str = "tcp flags & (fin | syn | rst) == rst accept";
/// Prefix of logged packets whose connections are to be reset at the other end.
pub const ABORT: &str = "podgate abort";
/// Prefix of logged packets whose sender is to be reset. The kernel's own reset is not translated back if it leaves by
/// a bridge, so the client of a service would not recognize it.
pub const RESET: &str = "podgate reset";
/// Matches packets of connections that had a packet in either direction.
const LIVE: &str = "meta l4proto tcp ct state established";
const DROP: &str = "drop";

/// Returns the verdict for denied packets of a list.
pub(crate) fn verdict(reply: DeniedReply, way: Way) -> &'static str {
    match (reply, way) {
        (DeniedReply::Drop, _) => DROP,
        (DeniedReply::Reject, Way::Original) => "goto reject-original",
        (DeniedReply::Reject, Way::Reply) => "goto reject-reply",
        (DeniedReply::RejectAll, Way::Original) => "goto reject-all-original",
        (DeniedReply::RejectAll, Way::Reply) => "goto reject-all-reply",
    }
}

/// The chains, with their names.
pub(crate) fn chains() -> Vec<(Family, String, Chain)> {
    let chain = |name: &str, rules: &[String]| {
        (Family::Inet, name.to_owned(), Chain { properties: "", rules: rules.into() })
    };
    let text = |rule: &str| rule.to_owned();
    let tcp_alone = text("meta l4proto != tcp drop");
    let clients = ["ip saddr @clients-4 goto reply", "ip6 saddr @clients-6 goto reply", DROP];
    let clients = clients.map(text);
    // Beside pods, processes of this node.
    let others = ["ip daddr @clients-4", "ip6 daddr @clients-6", "fib daddr type local"];
    let others = others.map(|other| format!("{LIVE} {other} jump abort"));
    let in_cluster = |rules: &[String]| [&others[..], rules].concat();
    let to_clients = [std::slice::from_ref(&tcp_alone), &clients].concat();
    let everywhere = |rules: &[String]| [&[format!("{LIVE} jump abort")], rules].concat();
    let log = |prefix: &str| {
        format!("log prefix \"{prefix}\" group {LOG_GROUP} snaplen {LOG_BYTES} queue-threshold 1")
    };
    let aborts = [("ip", 4), ("ip6", 6)].map(|(family, v)| {
        format!("update @aborted-{v} {{ {family} saddr {RATE} }} {}", log(ABORT))
    });
    let translated = format!("{LIVE} ct direction original ct status dnat {}", log(RESET));
    let limited = [
        format!("update @replied-4 {{ ip saddr {RATE} }} goto reply-now"),
        format!("update @replied-6 {{ ip6 saddr {RATE} }} goto reply-now"),
        text(DROP),
    ];
    vec![
        chain("reject-original", &in_cluster(&clients)),
        chain("reject-reply", &in_cluster(&to_clients)),
        chain("reject-all-original", &everywhere(&[text("goto reply")])),
        chain("reject-all-reply", &everywhere(&[tcp_alone, text("goto reply")])),
        chain("abort", &aborts),
        chain("reply", &limited),
        chain(
            "reply-now",
            &[
                translated,
                text("meta l4proto tcp reject with tcp reset"),
                text("reject with icmpx admin-prohibited"),
            ],
        ),
    ]
}

/// The sets of the cluster's pods, as [`sets`].
pub(crate) fn clients() -> Vec<(Family, &'static str, String, &'static str)> {
    const CLIENTS: [(&str, &str); 2] = [
        ("clients-4", "type ipv4_addr; flags interval"),
        ("clients-6", "type ipv6_addr; flags interval"),
    ];
    let all = CLIENTS.into_iter();
    all.map(|(name, properties)| (Family::Inet, "set", name.to_owned(), properties)).collect()
}

/// The other sets: table, kind, name and properties.
pub(crate) fn sets() -> Vec<(Family, &'static str, String, &'static str)> {
    const V4: &str = "type ipv4_addr; size 65536; flags dynamic, timeout; timeout 10s";
    const V6: &str = "type ipv6_addr; size 65536; flags dynamic, timeout; timeout 10s";
    let all =
        [("replied-4", V4), ("replied-6", V6), ("aborted-4", V4), ("aborted-6", V6)].into_iter();
    all.map(|(name, properties)| (Family::Inet, "set", name.to_owned(), properties)).collect()
}
