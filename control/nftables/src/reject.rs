//! Chains that reply to what rule lists deny. They are there while a pod's denials are replied to.
//!
//! | set | key | meaning |
//! |---|---|---|
//! | `clients-F` | address | pods of the cluster, which `reject` replies to (see [`clients`]) |
//! | `replied-F` | address | senders that had a reply, with their rates |
//!
//! A TCP reset goes to the sender of each denied packet, any other reply to the initiator alone. The
//! kernel takes it for a packet of the connection, so that it comes from the address that the initiator
//! dialed where a service was translated, and passes the hook `output` as `related`.

use control::model::DeniedReply;

use crate::rules::Way;
use crate::ruleset::{Chain, Family};

/// Replies to one sender, as the switch limits its own.
const RATE: &str = "limit rate 1000/second burst 50 packets";
/// Accepts the resets that these chains generate.
pub(crate) const RESETS: &str = "ct state related tcp flags & rst == rst accept";
const DROP: &str = "drop";

/// The verdict on what a list denies.
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
    let to_clients = [std::slice::from_ref(&tcp_alone), &clients].concat();
    let limited = [
        format!("update @replied-4 {{ ip saddr {RATE} }} goto reply-now"),
        format!("update @replied-6 {{ ip6 saddr {RATE} }} goto reply-now"),
        text(DROP),
    ];
    vec![
        chain("reject-original", &clients),
        chain("reject-reply", &to_clients),
        chain("reject-all-original", &[text("goto reply")]),
        chain("reject-all-reply", &[tcp_alone, text("goto reply")]),
        chain("reply", &limited),
        chain(
            "reply-now",
            &["meta l4proto tcp reject with tcp reset", "reject with icmpx admin-prohibited"]
                .map(text),
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
    const REPLIED: [(&str, &str); 2] = [
        ("replied-4", "type ipv4_addr; size 65536; flags dynamic, timeout; timeout 10s"),
        ("replied-6", "type ipv6_addr; size 65536; flags dynamic, timeout; timeout 10s"),
    ];
    let all = REPLIED.into_iter();
    all.map(|(name, properties)| (Family::Inet, "set", name.to_owned(), properties)).collect()
}
