//! The switch's tables, for `podgate show`.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::Sender;
use std::time::SystemTime;

use acl::{Action, End, Origin, PortRange, Rule};
use dataplane::graph::{self, Node};
use dataplane::session::{Found, Tuples};
use dataplane::{AclBinding, PortKind, Snapshot};
use flow_offload::OffloadState;
use serde_json::Value;

use super::errors::errors;
use super::events::Event;
use super::memory::memory;
use super::shared_status::SharedStatus;
use super::table::{Selection, Table};
use super::{identities, session_rules, status};
use crate::config::Enforcer;
use local_api::{ApiError, ErrorKind, Show, Verdict};
use observe::time::utc;
use observe::verdicts::Protocol;

/// The tables and their descriptions.
pub const TABLES: [(&str, &str); 15] = [
    ("ports", "ports with their interfaces, modes, counters and frames"),
    ("runtime", "clock cycles and packets of each graph node"),
    ("errors", "packets by outcome, with its meaning"),
    ("sessions", "open connections"),
    ("names", "domain names of policies, with the addresses that DNS returned"),
    ("graph", "the packet graph, in the language of Graphviz"),
    ("tables", "the rules in force for each pod"),
    ("identities", "sets of addresses that every rule treats alike, with the rules"),
    ("addresses", "identities of ADDRESS, or of all addresses with a name"),
    ("peer-sets", "peer sets that contain ADDRESS, and the rules that use them"),
    ("policies", "stage, generation in force, connections decided by rules"),
    ("staged", "connections that staged policies would deny or allow"),
    ("session-rules", "session rules for an L4 proxy, of POD or of all pods"),
    ("memory", "packet buffers, sessions, ports: used, and how many fit"),
    ("config", "options and their values"),
];

/// Maximum of rows shown, unless the request sets another.
const MOST_ROWS: usize = 10_000;

/// Builds a table. Data of the control loop is requested from it through `events`.
///
/// # Errors
/// `not-found`, with the valid names; `bad-request` if the table takes no pod, or if a filter
/// cannot be used.
pub(crate) fn show(
    shared: &SharedStatus,
    events: &Sender<Event>,
    wanted: &Show,
) -> Result<Value, ApiError> {
    let Show { what, pod, filters, sort, limit, all } = wanted;
    let bad = |text: String| ApiError::new(ErrorKind::BadRequest, text);
    if pod.is_some() && !matches!(what.as_str(), "session-rules" | "addresses" | "peer-sets") {
        return Err(bad(format!("'{}' is not shown for one pod", what.escape_debug())));
    }
    if *all && what != "errors" {
        return Err(bad("all: goes with errors alone".to_owned()));
    }
    let limit = limit.map_or(MOST_ROWS, |limit| limit as usize);
    let selection = Selection::new(filters, sort.as_deref(), limit).map_err(bad)?;
    let table = match what.as_str() {
        "sessions" => sessions(shared, &selection).map_err(bad)?,
        "graph" => return Ok(Value::String(graph::draw())),
        "errors" => errors(shared, *all).select(&selection).map_err(bad)?,
        _ => whole(shared, events, what, pod.as_deref())?.select(&selection).map_err(bad)?,
    };
    serde_json::to_value(table)
        .map_err(|error| ApiError::new(ErrorKind::Internal, error.to_string()))
}

/// A table of which all rows are built.
fn whole(
    shared: &SharedStatus,
    events: &Sender<Event>,
    what: &str,
    pod: Option<&str>,
) -> Result<Table, ApiError> {
    Ok(match what {
        "session-rules" => session_rules::table(events, pod)?,
        "ports" => status::port_and_frames_table(&status::ports(shared)),
        "runtime" => runtime(shared),
        "names" => shared.names.show(&shared.state().snapshot),
        "tables" => tables_of(&shared.state().rules, None),
        "identities" => identities::identities(shared),
        "addresses" => identities::addresses(shared, address(pod)?),
        "peer-sets" => identities::peer_sets(shared, address(pod)?),
        "policies" => policies(shared),
        "staged" => staged(shared)?,
        "memory" => memory(shared),
        "config" => config(shared),
        other => {
            let names: Vec<&str> = TABLES.iter().map(|(name, _)| *name).collect();
            let other: String = other.chars().take(40).collect();
            let text =
                format!("no '{}' to show; there are {}", other.escape_debug(), names.join(", "));
            return Err(ApiError::new(ErrorKind::NotFound, text));
        }
    })
}

/// The address that a table is requested for.
fn address(text: Option<&str>) -> Result<Option<IpAddr>, ApiError> {
    let is_none = |text: &str| format!("'{}' is no IP address", text.escape_debug());
    let bad = |text| ApiError::new(ErrorKind::BadRequest, is_none(text));
    text.map(|text| text.parse().map_err(|_| bad(text))).transpose()
}

fn runtime(shared: &SharedStatus) -> Table {
    let mut table = Table::new(&[
        "worker",
        "node",
        "vectors",
        "packets",
        "clocks",
        "packets_per_vector",
        "clocks_per_packet",
        "packets_per_second",
    ]);
    for (worker, counters) in shared.switch.counters().enumerate() {
        for node in Node::ALL {
            let counters = counters.node(node);
            let (vectors, packets, clocks) =
                (counters.vectors.value(), counters.packets.value(), counters.clocks.value());
            let ratio = |a: u64, b: u64| if b == 0 { 0.0 } else { a as f64 / b as f64 };
            table.add(vec![
                worker.into(),
                node.name().into(),
                vectors.into(),
                packets.into(),
                clocks.into(),
                tenths(ratio(packets, vectors)),
                tenths(ratio(clocks, packets)),
                Value::Null,
            ]);
        }
    }
    // Beside the workers: what programs in the kernel forwarded, and what they left to the switch.
    if let Some(offload) = shared.flow_offload().running() {
        let OffloadState { counters, per_second, .. } = offload.state();
        let mut row = |node: String, packets: u64, rate: u64| {
            let mut row = vec![Value::Null; table.columns.len()];
            let last = row.len() - 1;
            (row[1], row[3], row[last]) = (node.into(), packets.into(), rate.into());
            table.add(row);
        };
        row("flow-offload".to_owned(), counters.packets, per_second.packets);
        for (reason, packets) in counters.punted.iter().filter(|(_, packets)| *packets > 0) {
            row(format!("punt {}", reason.name()), *packets, per_second.of(*reason));
        }
    }
    table
}

/// The policies, and what is in force of them.
pub(crate) fn policies(shared: &SharedStatus) -> Table {
    let mut differences: BTreeMap<String, SystemTime> = BTreeMap::new();
    for count in shared.broker.staged_counts() {
        let last = differences.entry(count.policy.to_string()).or_insert(count.last);
        *last = count.last.max(*last);
    }
    shared.policies.table(&differences, &shared.broker.decisions())
}

/// Columns of the table `staged`.
pub const STAGED_COLUMNS: [&str; 9] =
    ["would", "from", "to", "protocol", "port", "connections", "first_seen", "last_seen", "by"];

/// Connections that staged policies decide otherwise about; times in RFC 3339.
pub(crate) fn staged(shared: &SharedStatus) -> Result<Table, ApiError> {
    if shared.config.enforcer == Enforcer::Nftables {
        let text = "what staged policies would change is not known with --enforcer nftables";
        return Err(ApiError::new(ErrorKind::BadRequest, text.to_owned()));
    }
    let mut table = Table::new(&STAGED_COLUMNS);
    let (rows, beyond) = shared.broker.staged();
    for (row, seen) in rows {
        let would = match row.staged.verdict {
            Verdict::Dropped => "deny",
            Verdict::Forwarded => "allow",
        };
        table.add(vec![
            would.into(),
            (*row.from).into(),
            (*row.to).into(),
            row.protocol.map_or_else(String::new, |it| it.to_string()).into(),
            row.port.into(),
            seen.connections.into(),
            utc(seen.first).into(),
            utc(seen.last).into(),
            Origin::list(&row.staged.by).into(),
        ]);
    }
    table.left_out = usize::try_from(beyond).unwrap_or(usize::MAX);
    Ok(table)
}

fn tenths(value: f64) -> Value {
    ((value * 10.0).round() / 10.0).into()
}

/// Columns of the sessions. The ends are those that policies decide about; seconds count from now, and
/// packets and bytes have values where they are counted.
const SESSION_COLUMNS: [&str; 19] = [
    "protocol",
    "from",
    "from_address",
    "from_port",
    "to",
    "to_address",
    "to_port",
    "state",
    "current",
    "service",
    "seen_from",
    "age_s",
    "idle_s",
    "expires_s",
    "packets",
    "bytes",
    "offloaded",
    "kernel_packets",
    "kernel_bytes",
];

fn sessions(shared: &SharedStatus, selection: &Selection) -> Result<Table, String> {
    let snapshot = &shared.state().snapshot;
    let names: HashMap<IpAddr, String> = snapshot
        .ports()
        .filter(|(_, port)| port.kind == PortKind::Pod)
        .flat_map(|(_, port)| {
            port.addresses.iter().map(|address| (address.to_ip(), port.name.to_string()))
        })
        .collect();
    // Those of other nodes are named as verdicts name them.
    let directory = shared.broker.directory();
    let name = |address: IpAddr| {
        let elsewhere = || directory.pod_at(address).map(|pod| pod.to_string());
        names.get(&address).cloned().or_else(elsewhere).unwrap_or_default()
    };
    let (sessions, now_s) = (shared.switch.sessions(), shared.switch.now().seconds());
    let counts = sessions.counts_packets();
    let flow_offload = shared.flow_offload();
    let by_kernel = flow_offload.running().map(|it| it.of_sessions()).unwrap_or_default();
    let row = |(found, tuples): (Found, Tuples)| -> Vec<Value> {
        let flow = tuples.policy_flow();
        let (initiator, responder) = (&tuples.initiator, &tuples.responder);
        let (source, destination) = (flow.source.to_ip(), flow.destination.to_ip());
        let usage = sessions.usage(&found);
        let (kernel_packets, kernel_bytes) = by_kernel.get(&found.id).copied().unwrap_or_default();
        let service = other_end(
            initiator.destination,
            initiator.destination_port,
            destination,
            flow.destination_port,
        );
        vec![
            Protocol(flow.protocol).to_string().into(),
            name(source).into(),
            source.to_string().into(),
            flow.source_port.into(),
            name(destination).into(),
            destination.to_string().into(),
            flow.destination_port.into(),
            found.state().name(flow.protocol).into(),
            found.is_of(snapshot.generation).into(),
            service.into(),
            other_end(responder.source, responder.source_port, source, flow.source_port).into(),
            usage.created_s.map(|created| now_s.saturating_sub(created)).into(),
            now_s.saturating_sub(found.last_seen()).into(),
            sessions.expires_in_s(&found, now_s).into(),
            counts.then_some(usage.packets).into(),
            counts.then_some(usage.bytes).into(),
            by_kernel.contains_key(&found.id).into(),
            kernel_packets.into(),
            kernel_bytes.into(),
        ]
    };
    selection.of(&SESSION_COLUMNS, sessions.iter().map(row))
}

/// Formats an end as `address:port` if it differs from the one already shown.
fn other_end(address: acl::Address, port: u16, shown: IpAddr, shown_port: u16) -> String {
    match (address.to_ip(), port) == (shown, shown_port) {
        true => String::new(),
        false => SocketAddr::new(address.to_ip(), port).to_string(),
    }
}

/// The rules in force for all pods, or for one.
pub(crate) fn tables_of(snapshot: &Snapshot, pod: Option<&str>) -> Table {
    let mut table = Table::new(&["pod", "direction", "rule", "action", "match", "by"]);
    let pods = snapshot.ports().filter(|(_, port)| port.kind == PortKind::Pod);
    for (_, port) in pods.filter(|(_, port)| pod.is_none_or(|pod| *port.name == *pod)) {
        // Named as in Kubernetes: what goes to the pod is its ingress.
        for (direction, binding) in [("ingress", &port.to_pod), ("egress", &port.from_pod)] {
            let mut row = |rule: Value, action: &str, matching: String, by: &dyn Display| {
                table.add(vec![
                    (*port.name).into(),
                    direction.into(),
                    rule,
                    action.into(),
                    matching.into(),
                    by.to_string().into(),
                ]);
            };
            match binding {
                AclBinding::Closed => row(Value::Null, "deny", "everything".into(), &"closed"),
                AclBinding::Open => {
                    row(Value::Null, "allow", "everything".into(), &Origin::DefaultAllow);
                }
                AclBinding::Table(rules) => {
                    for (n, rule) in rules.rules().iter().enumerate() {
                        let action = match rule.action {
                            Action::Permit => "allow",
                            Action::Deny => "deny",
                            Action::Pass => "pass",
                        };
                        row(n.into(), action, in_words(rule, snapshot), &rule.origin);
                    }
                }
            }
        }
    }
    table
}

/// Formats the match of a rule. Peer sets have numbers; the local pods in them are named.
fn in_words(rule: &Rule, snapshot: &Snapshot) -> String {
    let end = |what: &str, end: End| match end {
        End::Any => None,
        End::Set(set) => {
            let map = snapshot.address_map();
            let members: Vec<&str> = snapshot
                .ports()
                .filter(|(_, port)| {
                    port.addresses.iter().any(|it| map.is_member(map.lookup(*it), set))
                })
                .map(|(_, port)| &*port.name)
                .collect();
            Some(format!("{what} set {} ({})", set.0, members.join(" ")))
        }
    };
    let range = |what: &str, range: PortRange| match range {
        PortRange::ANY => None,
        PortRange { first, last } if first == last => Some(format!("{what} {first}")),
        PortRange { first, last } => Some(format!("{what} {first}-{last}")),
    };
    let icmp = matches!(rule.protocol, Some(1 | 58));
    let (source, destination) = if icmp { ("type", "code") } else { ("source-port", "port") };
    let parts = [
        end("from", rule.source),
        end("to", rule.destination),
        rule.protocol.map(|it| Protocol(it).to_string()),
        range(source, rule.source_ports),
        range(destination, rule.destination_ports),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    if parts.is_empty() { "everything".to_owned() } else { parts.join(" ") }
}

fn config(shared: &SharedStatus) -> Table {
    let mut table = Table::new(&["option", "value"]);
    for (name, value) in shared.config.describe() {
        // Numbers are numbers; `on` and `1d` are text.
        let value = value.parse::<u64>().map_or_else(|_| value.into(), Value::from);
        table.add(vec![name.into(), value]);
    }
    table
}
