//! Rules about connections: their direction, their state, and the dispatch to the lists of pods.

use super::Add;
use crate::reject;
use crate::rules::Way;
use crate::ruleset::Family;

/// Marks a connection that was not seen to open, by a label of conntrack.
pub(crate) const MARK: [&str; 2] = [
    "ct state new tcp flags & (fin | syn | rst | ack) != syn ct label set 112",
    // Its first chunk is no INIT.
    "ct state new meta l4proto 132 @th,96,8 != 1 ct label set 112",
];
/// Matches packets of such connections.
pub(crate) const UNSEEN: &str = "ct label 112";

/// Adds the chains of table `inet` for packets of pods.
pub(super) fn chains(rejects: bool, add: Add<'_>) {
    let inet = Family::Inet;
    add(inet, "errors", "", errors());
    add(inet, "forward-pod", "", forward());
    add(inet, "forward-to-pod", "", forward_to());
    for (chain, end) in [("replies", "from"), ("replies-to", "to"), ("replies-node", "node")] {
        add(inet, chain, "", vec![format!("jump {end}-reply"), "drop".to_owned()]);
    }
    let questions = vec!["jump node-original".to_owned(), "drop".to_owned()];
    add(inet, "questions-node", "", questions);
    for (base, properties, end, replies) in UNSEEN_FORWARDED {
        let chain = format!("{end}-unseen");
        add(inet, base, properties, vec![format!("{UNSEEN} goto {chain}")]);
        add(inet, &chain, "", unseen(end, replies));
    }
    add(inet, "input-pod", "", input());
    add(inet, "output-pod", "", output(rejects));
    for way in Way::BOTH {
        let [source, destination, _] = way.fields();
        add(inet, &format!("from-{}", way.name()), "", dispatch("from", way, source));
        add(inet, &format!("to-{}", way.name()), "", dispatch("to", way, destination));
        add(inet, &format!("node-{}", way.name()), "", dispatch("node", way, source));
    }
}

/// Rules for ICMP errors about connections. A pod forwards nothing, so its errors are about connections of its own:
/// others would hand data to a pod that it may not reach.
fn errors() -> Vec<String> {
    let mut rules = Vec::new();
    for (family, v) in [("ip", 4), ("ip6", 6)] {
        for way in ["original", "reply"] {
            rules.push(format!("{family} saddr . ct {way} {family} saddr @itself-{v} accept"));
        }
        rules.push(format!("{family} saddr @pods-{v} drop"));
        rules.push(format!("{family} saddr @networks-{v} drop"));
    }
    rules.push("accept".to_owned());
    rules
}

/// Rules about conntrack's state, which come first; `errors` is the one about ICMP errors. Of ICMP only echo requests
/// open a connection.
fn tracked(errors: &str) -> Vec<String> {
    let mut rules = ["ct state invalid drop", "ct state untracked goto link", errors]
        .map(str::to_owned)
        .to_vec();
    rules.extend(MARK.map(str::to_owned));
    rules
}

/// Checks the sender of an ICMP error.
const ERRORS: &str = "ct state related meta l4proto { 1, 58 } goto errors";

/// Accepts ICMP errors about connections.
pub(crate) const RELATED: &str = "ct state related meta l4proto { 1, 58 } accept";

const ECHO: [&str; 2] = [
    "ct state new meta l4proto 1 icmp type != echo-request drop",
    "ct state new meta l4proto 58 icmpv6 type != echo-request drop",
];

fn forward() -> Vec<String> {
    let mut rules = tracked(ERRORS);
    rules.extend(ITSELF.map(str::to_owned));
    rules.push("ct direction reply goto replies".to_owned());
    rules.extend(ECHO.map(str::to_owned));
    // Only this node has its addresses, and it does not forward its own packets.
    rules.push("fib saddr type local drop".to_owned());
    rules.push("jump from-original".to_owned());
    rules.push("drop".to_owned());
    rules
}

/// A pod always talks to itself, through a service too.
const ITSELF: [&str; 2] =
    ["ip saddr . ip daddr @itself-4 accept", "ip6 saddr . ip6 daddr @itself-6 accept"];

/// Rules for the other end of packets that the first chain of the hook accepted.
fn forward_to() -> Vec<String> {
    let mut rules = vec!["ct state untracked goto link".to_owned(), RELATED.to_owned()];
    rules.extend(ITSELF.map(str::to_owned));
    rules.push("ct direction reply goto replies-to".to_owned());
    rules.push("jump to-original".to_owned());
    rules.push("drop".to_owned());
    rules
}

/// Base chain and its properties, the end whose list it evaluates, and the chain for replies.
const UNSEEN_FORWARDED: [(&str, &str, &str, &str); 2] = [
    ("forward-unseen", "type filter hook forward priority 2", "from", "replies"),
    ("forward-to-unseen", "type filter hook forward priority 3", "to", "replies-to"),
];

/// Evaluates the list for the other direction of the connection.
fn unseen(end: &str, replies: &str) -> Vec<String> {
    let mut rules = vec![RELATED.to_owned()];
    rules.extend(ITSELF.map(str::to_owned));
    rules.push(format!("ct direction original goto {replies}"));
    rules.push(format!("jump {end}-original"));
    rules.push("drop".to_owned());
    rules
}

fn input() -> Vec<String> {
    let mut rules = tracked(ERRORS);
    // The node always talks to its own pods.
    rules.push(format!("{UNSEEN} goto questions-node"));
    rules.push("ct direction reply accept".to_owned());
    rules.extend(ECHO.map(str::to_owned));
    rules.push("goto questions-node".to_owned());
    rules
}

fn output(rejects: bool) -> Vec<String> {
    // The node's own errors come from its address on a pod's interface, which may be one of the pods' networks.
    let mut rules: Vec<String> = rejects.then(|| reject::RESETS.to_owned()).into_iter().collect();
    rules.extend(tracked(RELATED));
    rules.push(format!("{UNSEEN} goto replies-node"));
    rules.push("ct direction original accept".to_owned());
    rules.push("goto replies-node".to_owned());
    rules
}

/// Dispatches by a pod's address to its chain. The rest of pods' networks is closed; other addresses pass.
fn dispatch(map: &str, way: Way, field: &str) -> Vec<String> {
    let name = way.name();
    let mut rules = Vec::new();
    for (family, v) in [("ip", 4), ("ip6", 6)] {
        rules.push(format!("{family} {field} vmap @{map}-{name}-{v}"));
        rules.push(format!("{family} {field} @pods-{v} drop"));
        rules.push(format!("{family} {field} @networks-{v} drop"));
    }
    rules.push(PERMIT.to_owned());
    rules
}

/// Verdict of a map's chain on a packet that it permits.
pub(crate) const PERMIT: &str = "accept";
