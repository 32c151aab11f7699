//! Decisions of nodes, in words for people and in fields for scripts.

use std::fmt::Write;
use std::net::SocketAddr;

use dataplane::graph::Node;
use dataplane::graph::trace::{AclResult, Evaluation, Exit, Finding, SessionInfo, Step};
use dataplane::wire::{Flow, Fragment, Headers, Kind, Role, parse_prefix, protocol};
use dataplane::{Outcome, PortKind, Verdict};
use serde_json::{Map, Value, json};

use crate::verdicts::{Protocol, TcpFlags};

type Fields = Map<String, Value>;

/// A step's decision.
pub(super) fn of(step: &Step) -> (String, Fields) {
    let mut fields = Fields::new();
    let mut says = match &step.finding {
        Finding::Nothing if step.node == Node::Hold => {
            "until its first fragment comes, two seconds at most".to_owned()
        }
        Finding::Dns { .. } if step.node == Node::Hold => {
            "until its addresses are in force, a second at most".to_owned()
        }
        Finding::Dns { held } => {
            fields.insert("held".into(), (*held).into());
            "read, since the pod follows domain names".to_owned()
        }
        Finding::Nothing => neighbour(step.outcome),
        Finding::Headers(None) | Finding::Tunnel { inside: None, .. } => {
            step.outcome.map_or("refused", Outcome::meaning).to_owned()
        }
        Finding::Headers(Some(found)) => headers(found, &mut fields),
        Finding::Port(kind) => security(*kind, step, &mut fields),
        Finding::Tunnel { peer, inside: Some(inside) } => {
            let peer = peer.as_deref().unwrap_or("an unknown node");
            fields.insert("peer".into(), peer.into());
            let inner = headers(inside, &mut fields);
            format!("out of the tunnel from {peer}: {inner}")
        }
        Finding::Session { seen, evaluation } => {
            let mut says = seen.as_ref().map_or_else(
                || "belongs to no connection".to_owned(),
                |seen| session(seen, &mut fields),
            );
            fields.insert("found".into(), seen.is_some().into());
            if let Some(evaluation) = evaluation {
                says += "; re-evaluated: ";
                says += &evaluation_words(evaluation, &mut fields);
            }
            says
        }
        Finding::Reassembly { first, session: seen } => {
            fields.insert("first".into(), first.is_some().into());
            match (first, seen) {
                (None, _) if step.next.is_some() => {
                    "its first fragment has not come yet".to_owned()
                }
                (None, _) => "its first fragment was refused".to_owned(),
                (Some(_), None) => "the connection of its first fragment has ended".to_owned(),
                (Some(first), Some(seen)) => {
                    let says = session(seen, &mut fields);
                    format!("its first fragment was {}; {says}", ends(first))
                }
            }
        }
        Finding::Service { asked, given } => {
            fields.insert("service".into(), end(asked, false).into());
            fields.insert("backend".into(), given.map(|given| end(&given, false)).into());
            match given {
                None => format!("{} has no backend", end(asked, false)),
                Some(given) => {
                    let mut says =
                        format!("service {} to backend {}", end(asked, false), end(given, false));
                    if (given.source, given.source_port) != (asked.source, asked.source_port) {
                        write!(says, ", seen from {}", end(given, true)).expect("a string grows");
                    }
                    says
                }
            }
        }
        Finding::Policy { exit, evaluation } => {
            let mut says = match exit {
                Some(exit) => format!("route to {}", exit_name(exit, &mut fields)),
                None => "no route that it may take".to_owned(),
            };
            if let Some(evaluation) = evaluation {
                says += "; ";
                says += &evaluation_words(evaluation, &mut fields);
            }
            says
        }
        Finding::Open { made: None } => {
            step.outcome.map_or("no session", Outcome::meaning).to_owned()
        }
        Finding::Open { made: Some(made) } => {
            let ends = ends(&made.tuples.responder);
            fields.insert("session".into(), ends.clone().into());
            match made.tuples.is_translated() {
                true => format!("a session; its responder sees {ends}"),
                false => "a session".to_owned(),
            }
        }
        Finding::Rewrite { to, ttl, exit } => rewrite(step, to.as_ref(), *ttl, exit, &mut fields),
        Finding::IcmpError { sent } => {
            fields.insert("sent".into(), (*sent).into());
            match sent {
                true => "its sender gets an ICMP error".to_owned(),
                false => "its sender gets no ICMP error: its rate is limited, or it has no address"
                    .to_owned(),
            }
        }
        Finding::Encapsulate { exit, to } => {
            let name = exit.as_ref().map(|exit| exit_name(exit, &mut fields)).unwrap_or_default();
            let to = to.map(|to| to.to_ip().to_string());
            fields.insert("tunnel_to".into(), to.clone().into());
            format!("into the tunnel to {} by {name}", to.as_deref().unwrap_or("nowhere"))
        }
    };
    if let Some(outcome) = step.outcome {
        fields.insert("outcome".into(), outcome.name().into());
        if outcome.verdict() == Verdict::Drop && !says.ends_with(outcome.meaning()) {
            write!(says, " = {}", outcome.name()).expect("a string grows");
        }
    }
    (says, fields)
}

/// The headers of a packet of `length` bytes, of which `bytes` are the first.
pub fn headers_in_words(bytes: &[u8], length: usize) -> String {
    match parse_prefix(bytes, length) {
        Ok(found) => without_role(&found, &mut Fields::new()),
        Err(outcome) => format!("no valid packet ({outcome})"),
    }
}

fn neighbour(outcome: Option<Outcome>) -> String {
    match outcome.map(Outcome::verdict) {
        Some(Verdict::Consume) => outcome.map_or("", Outcome::meaning).to_owned(),
        _ => "a packet between neighbours".to_owned(),
    }
}

/// The headers, and what the packet may do to connections.
fn headers(headers: &Headers, fields: &mut Fields) -> String {
    let mut says = without_role(headers, fields);
    if !matches!(headers.kind, Kind::Ipv4 | Kind::Ipv6) {
        return says;
    }
    let role = match headers.role {
        Role::Opens => "opens",
        Role::Follows => "follows",
        Role::Quotes => "quotes",
    };
    fields.insert("role".into(), role.into());
    let mut add = |text: &str| write!(says, ", {text}").expect("a string grows");
    match headers.role {
        _ if matches!(headers.fragment, Fragment::Later(_)) => {}
        Role::Opens => add("may open a connection"),
        Role::Follows => add("only makes sense inside a connection"),
        Role::Quotes => add("reports an error about the packet it quotes"),
    }
    says
}

fn without_role(headers: &Headers, fields: &mut Fields) -> String {
    let kind = match headers.kind {
        Kind::Ipv4 => "IPv4",
        Kind::Ipv6 => "IPv6",
        Kind::Arp => "ARP",
        Kind::NeighbourDiscovery => "neighbour discovery",
    };
    fields.insert("kind".into(), kind.into());
    if headers.vlan_tags > 0 {
        fields.insert("vlan_tags".into(), headers.vlan_tags.into());
    }
    if !matches!(headers.kind, Kind::Ipv4 | Kind::Ipv6) {
        return kind.to_owned();
    }
    let flow = &headers.flow;
    fields.insert("source".into(), flow.source.to_ip().to_string().into());
    fields.insert("destination".into(), flow.destination.to_ip().to_string().into());
    fields.insert("protocol".into(), Protocol(flow.protocol).to_string().into());
    fields.insert("ttl".into(), headers.ttl.into());
    let mut says = format!("{}, ttl {}", ends(flow), headers.ttl);
    if has_ports(flow) && !matches!(headers.fragment, Fragment::Later(_)) {
        fields.insert("source_port".into(), flow.source_port.into());
        fields.insert("destination_port".into(), flow.destination_port.into());
    }
    let mut add = |text: String| write!(says, ", {text}").expect("a string grows");
    if flow.protocol == protocol::TCP && headers.tcp_flags != 0 {
        let flags = TcpFlags(headers.tcp_flags).to_string();
        fields.insert("tcp_flags".into(), flags.clone().into());
        add(flags);
    }
    match headers.fragment {
        Fragment::Whole => {}
        Fragment::First(id) => {
            fields.insert("fragment".into(), json!({"id": id, "first": true}));
            add(format!("first fragment of {id}"));
        }
        Fragment::Later(id) => {
            fields.insert("fragment".into(), json!({"id": id, "first": false}));
            add(format!("later fragment of {id}"));
        }
    }
    says
}

fn security(kind: Option<PortKind>, step: &Step, fields: &mut Fields) -> String {
    let Some(kind) = kind else { return "the port is gone".to_owned() };
    fields.insert("port".into(), kind.name().into());
    let is_refused = step.next.is_none();
    match (is_refused, kind) {
        (true, _) => {
            format!("the source address or MAC is not the port's (a {} port)", kind.name())
        }
        (false, PortKind::Pod) => "a pod port; the sender uses the pod's own addresses".to_owned(),
        (false, _) => format!("the {} port; the source is admissible", kind.name()),
    }
}

fn session(seen: &SessionInfo, fields: &mut Fields) -> String {
    let is_tcp = seen.tuples.initiator.protocol == protocol::TCP;
    let state = seen.state.name(seen.tuples.initiator.protocol);
    let side = if seen.forward { "initiator" } else { "responder" };
    fields.insert("sent_by".into(), side.into());
    fields.insert("state".into(), state.into());
    fields.insert("current".into(), seen.current.into());
    // Whether the responder has answered says nothing about a datagram.
    let state = if is_tcp { format!("{state} ") } else { String::new() };
    let mut says = format!("{state}connection, sent by its {side}");
    if seen.tuples.is_translated() {
        let (initiator, responder) = (ends(&seen.tuples.initiator), ends(&seen.tuples.responder));
        fields.insert("initiator".into(), initiator.clone().into());
        fields.insert("responder".into(), responder.clone().into());
        write!(says, ", translated: {initiator} at the initiator, {responder} at the responder")
            .expect("a string grows");
    }
    says += match seen.current {
        true => ", allowed by this snapshot",
        false => ", allowed by an older snapshot",
    };
    says
}

fn evaluation_words(evaluation: &Evaluation, fields: &mut Fields) -> String {
    let mut says = Vec::new();
    // Named as in Kubernetes: what goes to the pod is its ingress.
    for (result, direction) in [(&evaluation.from_pod, "egress"), (&evaluation.to_pod, "ingress")] {
        let Some(result) = result else { continue };
        fields.insert(direction.into(), acl_result(result));
        let verb = if result.permits { "permits" } else { "denies" };
        let why = match &result.rule {
            Some((number, origin)) => format!("rule {number} {verb}, {origin}"),
            None => format!("{} ACL {verb}", result.binding.name()),
        };
        says.push(format!("{} {direction}: {why}", result.pod));
    }
    fields.insert("evaluated".into(), ends(&evaluation.flow).into());
    fields.insert("by".into(), json!(evaluation.by));
    if says.is_empty() {
        says.push(evaluation.outcome.meaning().trim_end_matches('.').to_owned());
    }
    says.join("; ")
}

fn acl_result(result: &AclResult) -> Value {
    let (number, origin) = result.rule.clone().unzip();
    json!({
        "pod": &*result.pod,
        "binding": result.binding.name(),
        "permits": result.permits,
        "rule": number,
        "by": origin,
    })
}

fn rewrite(
    step: &Step,
    to: Option<&Flow>,
    ttl: u8,
    exit: &Option<Exit>,
    fields: &mut Fields,
) -> String {
    let name = exit.as_ref().map(|exit| exit_name(exit, fields)).unwrap_or_default();
    if step.outcome.is_some_and(|outcome| outcome.verdict() == Verdict::Drop) {
        return format!("cannot leave by {name}");
    }
    fields.insert("ttl".into(), ttl.into());
    match to {
        None => format!("as it is, ttl {ttl}, out by {name}"),
        Some(to) => {
            fields.insert("to".into(), ends(to).into());
            format!("into {}, ttl {ttl}, out by {name}", ends(to))
        }
    }
}

fn exit_name(exit: &Exit, fields: &mut Fields) -> String {
    let port = exit.port.as_deref().unwrap_or("a port that is gone");
    fields.insert("out".into(), port.into());
    match exit.peer.as_deref() {
        None => port.to_owned(),
        Some(peer) => {
            fields.insert("peer".into(), peer.into());
            format!("{port} towards {peer}")
        }
    }
}

fn has_ports(flow: &Flow) -> bool {
    matches!(flow.protocol, protocol::TCP | protocol::UDP | protocol::SCTP)
}

/// One end of a flow, with its port if it has one.
fn end(flow: &Flow, source: bool) -> String {
    let (address, port) = match source {
        true => (flow.source, flow.source_port),
        false => (flow.destination, flow.destination_port),
    };
    match has_ports(flow) && (flow.source_port, flow.destination_port) != (0, 0) {
        true => SocketAddr::new(address.to_ip(), port).to_string(),
        false => address.to_ip().to_string(),
    }
}

fn ends(flow: &Flow) -> String {
    format!("{} {} > {}", Protocol(flow.protocol), end(flow, true), end(flow, false))
}
