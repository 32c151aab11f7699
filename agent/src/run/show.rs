//! The switch's tables, for `podgate show`.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::Sender;

use acl::{Action, End, PortRange, Rule};
use dataplane::graph::{self, Node};
use dataplane::{AclBinding, Outcome, PortKind, Snapshot};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::shared_status::SharedStatus;
use super::{Event, session_rules, status};
use local_api::{ApiError, ErrorKind};
use observe::verdicts::protocol_name;

/// A table of names and values, the answer to `show`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Table {
    /// Names of the columns.
    pub columns: Vec<String>,
    /// Rows with a value for each column.
    pub rows: Vec<Vec<Value>>,
}

/// The tables and their descriptions.
pub const TABLES: [(&str, &str); 8] = [
    ("ports", "ports with their interfaces, modes and counters"),
    ("runtime", "what each stage of the graph costs"),
    ("errors", "outcomes that packets had, with their meaning"),
    ("sessions", "connections that were allowed"),
    ("graph", "the graph, in Graphviz' language"),
    ("tables", "the rules in force for each pod"),
    ("session-rules", "verdicts for an L4 stack, of a POD or of all"),
    ("config", "options and their values"),
];

/// Maximum of sessions shown.
const MOST_SESSIONS: usize = 10_000;

/// Builds a table. Data of the control loop is requested from it through `events`.
///
/// # Errors
/// Of kind `not-found`, with the valid names; `bad-request` if the table takes no pod.
pub(crate) fn show(
    shared: &SharedStatus,
    events: &Sender<Event>,
    what: &str,
    pod: Option<&str>,
) -> Result<Value, ApiError> {
    if let (Some(_), true) = (pod, what != "session-rules") {
        let text = format!("'{}' is not shown for one pod", what.escape_debug());
        return Err(ApiError::new(ErrorKind::BadRequest, text));
    }
    let table = match what {
        "session-rules" => session_rules::table(events, pod)?,
        "ports" => status::port_table(&status::ports(shared)),
        "runtime" => runtime(shared),
        "errors" => errors(shared),
        "sessions" => sessions(shared),
        "graph" => return Ok(Value::String(graph::draw())),
        "tables" => tables(&shared.state().snapshot),
        "config" => config(shared),
        other => {
            let names: Vec<&str> = TABLES.iter().map(|(name, _)| *name).collect();
            let other: String = other.chars().take(40).collect();
            let text =
                format!("no '{}' to show; there are {}", other.escape_debug(), names.join(", "));
            return Err(ApiError::new(ErrorKind::NotFound, text));
        }
    };
    serde_json::to_value(table)
        .map_err(|error| ApiError::new(ErrorKind::Internal, error.to_string()))
}

fn runtime(shared: &SharedStatus) -> Table {
    let mut table = Table::new(&[
        "worker",
        "node",
        "vectors",
        "packets",
        "clocks",
        "packets/vector",
        "clocks/packet",
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
            ]);
        }
    }
    table
}

fn tenths(value: f64) -> Value {
    ((value * 10.0).round() / 10.0).into()
}

fn errors(shared: &SharedStatus) -> Table {
    let mut table = Table::new(&["verdict", "reason", "packets", "meaning"]);
    for outcome in Outcome::ALL {
        let count: u64 = shared.switch.counters().map(|worker| worker.of(*outcome)).sum();
        if count > 0 {
            table.add(vec![
                outcome.verdict().name().into(),
                outcome.name().into(),
                count.into(),
                outcome.meaning().into(),
            ]);
        }
    }
    table
}

fn sessions(shared: &SharedStatus) -> Table {
    let snapshot = &shared.state().snapshot;
    let names: HashMap<IpAddr, String> = snapshot
        .ports()
        .filter(|(_, port)| port.kind == PortKind::Pod)
        .flat_map(|(_, port)| {
            port.addresses.iter().map(|address| (address.to_ip(), port.name.to_string()))
        })
        .collect();
    let name = |address: IpAddr| names.get(&address).cloned().unwrap_or_default();
    let mut table = Table::new(&[
        "protocol",
        "from",
        "from-address",
        "from-port",
        "to",
        "to-address",
        "to-port",
        "state",
        "current",
        "service",
        "seen-from",
        "offloaded",
        "kernel-packets",
        "kernel-bytes",
    ]);
    let flow_offload = shared.flow_offload();
    let by_kernel = flow_offload.running().map(|it| it.of_sessions()).unwrap_or_default();
    for (found, tuples) in shared.switch.sessions().iter().take(MOST_SESSIONS) {
        let flow = tuples.policy_flow();
        let (initiator, responder) = (&tuples.initiator, &tuples.responder);
        let (source, destination) = (flow.source.to_ip(), flow.destination.to_ip());
        let is_tcp = flow.protocol == dataplane::wire::protocol::TCP;
        let state = match (is_tcp, found.state().is_established(), found.state().is_over()) {
            (false, ..) => "",
            (true, true, _) => "established",
            (true, _, true) => "over",
            _ => "transient",
        };
        let (packets, bytes) = by_kernel.get(&found.id).copied().unwrap_or_default();
        table.add(vec![
            protocol_name(flow.protocol).into(),
            name(source).into(),
            source.to_string().into(),
            flow.source_port.into(),
            name(destination).into(),
            destination.to_string().into(),
            flow.destination_port.into(),
            state.into(),
            found.is_of(snapshot.generation).into(),
            other_end(
                initiator.destination,
                initiator.destination_port,
                destination,
                flow.destination_port,
            )
            .into(),
            other_end(responder.source, responder.source_port, source, flow.source_port).into(),
            by_kernel.contains_key(&found.id).into(),
            packets.into(),
            bytes.into(),
        ]);
    }
    table
}

/// Formats an end as `address:port` if it differs from the one already shown.
fn other_end(address: acl::Address, port: u16, shown: IpAddr, shown_port: u16) -> String {
    match (address.to_ip(), port) == (shown, shown_port) {
        true => String::new(),
        false => SocketAddr::new(address.to_ip(), port).to_string(),
    }
}

fn tables(snapshot: &Snapshot) -> Table {
    let mut table = Table::new(&["pod", "direction", "rule", "action", "match", "by"]);
    for (_, port) in snapshot.ports().filter(|(_, port)| port.kind == PortKind::Pod) {
        // Named as in Kubernetes: what goes to the pod is its ingress.
        for (direction, binding) in [("ingress", &port.to_pod), ("egress", &port.from_pod)] {
            let mut row = |rule: Value, action: &str, matching: String, by: &str| {
                table.add(vec![
                    (*port.name).into(),
                    direction.into(),
                    rule,
                    action.into(),
                    matching.into(),
                    by.into(),
                ]);
            };
            match binding {
                AclBinding::Closed => row(Value::Null, "deny", "everything".into(), "closed"),
                AclBinding::Open => {
                    row(Value::Null, "permit", "everything".into(), "default-allow")
                }
                AclBinding::Table(rules) => {
                    for (n, rule) in rules.rules().iter().enumerate() {
                        let action = match rule.action {
                            Action::Permit => "permit",
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
        End::Net(net) => Some(format!("{what} {net}")),
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
        rule.protocol.map(protocol_name),
        range(source, rule.source_ports),
        range(destination, rule.destination_ports),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    if parts.is_empty() { "everything".to_owned() } else { parts.join(" ") }
}

fn config(shared: &SharedStatus) -> Table {
    let mut table = Table::new(&["option", "value"]);
    for (name, value) in shared.config.describe() {
        table.add(vec![name.into(), value.into()]);
    }
    table
}

impl Table {
    pub(super) fn new(columns: &[&str]) -> Self {
        Self { columns: columns.iter().map(|name| (*name).to_owned()).collect(), rows: Vec::new() }
    }

    pub(super) fn add(&mut self, row: Vec<Value>) {
        debug_assert_eq!(row.len(), self.columns.len());
        self.rows.push(row);
    }

    /// The rows as objects, one a line.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        self.rows.iter().map(|row| {
            let fields: Vec<String> = self
                .columns
                .iter()
                .zip(row)
                .map(|(name, value)| format!("{}:{value}", Value::String(name.clone())))
                .collect();
            format!("{{{}}}", fields.join(","))
        })
    }
}

impl fmt::Display for Table {
    /// Aligned columns, their names in capitals.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |value: &Value| match value {
            Value::Null => "-".to_owned(),
            Value::String(text) if text.is_empty() => "-".to_owned(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let head: Vec<String> = self.columns.iter().map(|name| name.to_uppercase()).collect();
        let rows: Vec<Vec<String>> =
            self.rows.iter().map(|row| row.iter().map(text).collect()).collect();
        let lines = || std::iter::once(&head).chain(&rows);
        let mut widths = vec![0; head.len()];
        for line in lines() {
            for (width, cell) in widths.iter_mut().zip(line) {
                *width = (*width).max(cell.chars().count());
            }
        }
        for line in lines() {
            let cells: Vec<String> =
                line.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
            writeln!(f, "{}", cells.join("  ").trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_for_people_and_for_scripts() {
        let mut table = Table::new(&["name", "n"]);
        table.add(vec!["a \"b\"".into(), 1.into()]);
        table.add(vec![Value::Null, 10.into()]);
        assert_eq!(table.to_string(), "NAME   N\na \"b\"  1\n-      10\n");
        let lines: Vec<String> = table.lines().collect();
        assert_eq!(lines, [r#"{"name":"a \"b\"","n":1}"#, r#"{"name":null,"n":10}"#]);
    }
}
