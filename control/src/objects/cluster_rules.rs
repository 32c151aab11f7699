//! The rules of cluster policies, read part by part.
//!
//! The kinds of cluster policies spell subjects, peers and protocols alike; [`RuleSchema`] has the
//! differences: names of actions, kinds of peers, and the spelling of ports. A rule that cannot be
//! read fails closed: one that permits matches nothing, any other becomes deny-all.

use std::sync::Arc;

use acl::{Origin, PolicyRef, PortRange};
use serde_json::{Map, Value};

use super::reader;
use super::selector::selector;
use crate::FieldFault;
use crate::model::{
    ClusterRule, Direction, Namespaces, Peer, PolicyRule, PortSpec, Ports, Protocol, RuleAction,
    Selector,
};

type Faults = Vec<FieldFault>;

/// The rule schema of a kind of policy.
pub(super) struct RuleSchema {
    /// The kind.
    pub(super) kind: &'static str,
    /// Names of actions, their meaning, and whether they permit.
    pub(super) actions: &'static [(&'static str, RuleAction, bool)],
    /// Fields of a peer of ingress rules.
    pub(super) from: &'static [&'static str],
    /// Fields of a peer of egress rules.
    pub(super) to: &'static [&'static str],
    /// The most rules, peers or ports that a list may have.
    pub(super) most: usize,
    /// The most networks or domain names that a peer may have.
    pub(super) most_networks: usize,
    /// The spelling of ports.
    pub(super) ports: PortSchema,
}

/// The field of a rule that has its ports, and the form of its elements.
#[derive(Clone, Copy, Debug)]
pub(super) enum PortSchema {
    /// `protocols`: `tcp`, `udp`, `sctp` with `destinationPort`, or, if rules about pods alone may
    /// name ports, `destinationNamedPort`.
    Protocols { named: bool },
    /// `ports`: `portNumber`, `portRange` with a `protocol`, or `namedPort`.
    Ports,
}

impl PortSchema {
    fn field(self) -> &'static str {
        match self {
            Self::Protocols { .. } => "protocols",
            Self::Ports => "ports",
        }
    }
}

/// Namespace and pod selector of the subject, as far as they could be read.
pub(super) fn subject(value: Option<&Value>, faults: &mut Faults) -> (Selector, Selector) {
    let field = "spec.subject";
    match one_of(value.unwrap_or(&Value::Null), field, &["namespaces", "pods"]) {
        Ok(("namespaces", value)) => {
            (selector(value, "spec.subject.namespaces", faults), Selector::default())
        }
        Ok((_, value)) => pod_selectors(value, "spec.subject.pods", faults),
        Err(fault) => {
            faults.push(fault);
            (Selector::default(), Selector::default())
        }
    }
}

/// `namespaceSelector` and `podSelector`.
fn pod_selectors(value: &Value, field: &str, faults: &mut Faults) -> (Selector, Selector) {
    let mut part = |name: &str| {
        let value = value.get(name).unwrap_or(&Value::Null);
        selector(value, &format!("{field}.{name}"), faults)
    };
    let selectors = (part("namespaceSelector"), part("podSelector"));
    match value {
        Value::Object(fields) => {
            let known = ["namespaceSelector", "podSelector"];
            let unknown = fields.keys().filter(|name| !known.contains(&name.as_str()));
            faults.extend(
                unknown.map(|name| FieldFault::new(format!("{field}.{name}"), "unknown field")),
            );
        }
        _ => faults.push(FieldFault::new(field, "is no object")),
    }
    selectors
}

/// The one field of `value` that is set, which must be one of `known`.
pub(super) fn one_of<'v>(
    value: &'v Value,
    field: &str,
    known: &[&'static str],
) -> Result<(&'static str, &'v Value), FieldFault> {
    let set = value.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
    let set: Vec<(&String, &Value)> = set.collect();
    match set.as_slice() {
        [(name, value)] => match known.iter().find(|known| *known == name) {
            Some(name) => Ok((name, value)),
            None => Err(FieldFault::new(format!("{field}.{name}"), "is not known")),
        },
        _ => Err(FieldFault::new(field, format!("must have exactly one of {}", known.join(", ")))),
    }
}

/// Returns the spec of a policy, and whether its denials are uncertain: it is no object, or has
/// fields that are not `known`, any of which may be misspelt rules.
pub(super) fn spec<'v>(
    value: &'v Value,
    known: &[&str],
    faults: &mut Faults,
) -> (Option<&'v Map<String, Value>>, bool) {
    match value.get("spec") {
        Some(Value::Object(spec)) => {
            let unknown = spec.keys().filter(|name| !known.contains(&name.as_str()));
            let before = faults.len();
            faults.extend(
                unknown.map(|name| FieldFault::new(format!("spec.{name}"), "unknown field")),
            );
            (Some(spec), faults.len() > before)
        }
        other => {
            faults.push(FieldFault::new("spec", "missing or no object"));
            (None, other.is_some_and(|value| !value.is_null()))
        }
    }
}

/// The deny-all rule that replaces a possible denial.
pub(super) fn deny_all(
    index: usize,
    direction: Direction,
    name: &str,
    schema: &RuleSchema,
) -> ClusterRule {
    let policy = Arc::new(PolicyRef::new(schema.kind, None, name));
    let origin = Origin::Rule(policy, direction, index as u32);
    ClusterRule {
        verdict: RuleAction::Deny,
        rule: PolicyRule { index, origin, peers: None, ports: None },
    }
}

/// The rules of one direction.
pub(super) fn rules(
    spec: &Map<String, Value>,
    direction: Direction,
    name: &str,
    schema: &RuleSchema,
    faults: &mut Faults,
) -> Vec<ClusterRule> {
    let field = format!("spec.{}", direction.field());
    let policy = Arc::new(PolicyRef::new(schema.kind, None, name));
    let origin = |index: usize| Origin::Rule(Arc::clone(&policy), direction, index as u32);
    let deny_all = |index| deny_all(index, direction, name, schema);
    let list = match spec.get(direction.field()) {
        None | Some(Value::Null) => return Vec::new(),
        Some(Value::Array(list)) => list,
        Some(_) => {
            faults.push(FieldFault::new(field, "is no list"));
            return vec![deny_all(0)];
        }
    };
    if list.len() > schema.most {
        faults.push(FieldFault::new(&field, format!("has more than {} rules", schema.most)));
    }
    let mut rules = Vec::new();
    for (index, value) in list.iter().enumerate() {
        let field = reader::at(&field, index);
        let action = value.get("action").and_then(Value::as_str);
        let known = schema.actions.iter().find(|(name, ..)| Some(*name) == action);
        let mut found = Vec::new();
        if known.is_none() {
            let names = schema.actions.iter().map(|(name, ..)| format!("{name:?}"));
            let names = names.collect::<Vec<_>>().join(", ");
            found.push(FieldFault::new(format!("{field}.action"), format!("is none of {names}")));
        }
        let permits = known.is_some_and(|(.., permits)| *permits);
        let (peers, ports) = rule(value, &field, direction, permits, schema, &mut found);
        match known {
            Some((_, verdict, _)) if found.is_empty() => {
                let rule = PolicyRule { index, origin: origin(index), peers: Some(peers), ports };
                rules.push(ClusterRule { verdict: *verdict, rule });
            }
            Some((.., true)) => {}
            _ => rules.push(deny_all(index)),
        }
        faults.extend(found);
    }
    rules
}

/// Peers and ports of a rule.
fn rule(
    value: &Value,
    field: &str,
    direction: Direction,
    permits: bool,
    schema: &RuleSchema,
    faults: &mut Faults,
) -> (Vec<Peer>, Option<Vec<Ports>>) {
    let (from_or_to, other) = match direction {
        Direction::Ingress => ("from", "to"),
        Direction::Egress => ("to", "from"),
    };
    let known = ["name", "action", from_or_to, schema.ports.field()];
    for name in value.as_object().into_iter().flat_map(Map::keys) {
        if !known.contains(&name.as_str()) {
            let problem =
                if name == other { "is for the other direction" } else { "unknown field" };
            faults.push(FieldFault::new(format!("{field}.{name}"), problem));
        }
    }
    let mut peers = Vec::new();
    let mut only_pods = !matches!(schema.ports, PortSchema::Protocols { named: false });
    match list(value, field, from_or_to, schema.most, faults) {
        Some(list) => {
            for (field, value) in list {
                only_pods &= peer(value, &field, direction, permits, schema, &mut peers, faults);
            }
        }
        None => faults.push(FieldFault::new(format!("{field}.{from_or_to}"), "is required")),
    }
    let ports = list(value, field, schema.ports.field(), schema.most, faults).map(|list| {
        let mut ports = Vec::new();
        for (field, value) in list {
            let read = match schema.ports {
                PortSchema::Protocols { .. } => protocol(value, &field, only_pods, &mut ports),
                PortSchema::Ports => port(value, &field, only_pods, &mut ports),
            };
            faults.extend(read.err());
        }
        ports
    });
    (peers, ports)
}

/// The elements of a list of 1 to `most` with the fields they stand at; `None` if it is absent.
fn list<'v>(
    value: &'v Value,
    field: &str,
    name: &str,
    most: usize,
    faults: &mut Faults,
) -> Option<Vec<(String, &'v Value)>> {
    let field = format!("{field}.{name}");
    match value.get(name) {
        None | Some(Value::Null) => None,
        Some(Value::Array(list)) if (1..=most).contains(&list.len()) => {
            let named = |(index, value)| (reader::at(&field, index), value);
            Some(list.iter().enumerate().map(named).collect())
        }
        Some(_) => {
            faults.push(FieldFault::new(field, format!("is no list of 1 to {most}")));
            Some(Vec::new())
        }
    }
}

/// Adds the peers of an element; returns whether it selects pods.
fn peer(
    value: &Value,
    field: &str,
    direction: Direction,
    permits: bool,
    schema: &RuleSchema,
    peers: &mut Vec<Peer>,
    faults: &mut Faults,
) -> bool {
    let known = match direction {
        Direction::Ingress => schema.from,
        Direction::Egress => schema.to,
    };
    match one_of(value, field, known) {
        Ok(("namespaces", value)) => {
            let namespaces = selector(value, &format!("{field}.namespaces"), faults);
            let namespaces = Namespaces::Selected(namespaces);
            peers.push(Peer::Pods { namespaces, pods: Selector::default() });
            return true;
        }
        Ok(("pods", value)) => {
            let (namespaces, pods) = pod_selectors(value, &format!("{field}.pods"), faults);
            peers.push(Peer::Pods { namespaces: Namespaces::Selected(namespaces), pods });
            return true;
        }
        Ok(("nodes", value)) => {
            peers.push(Peer::Nodes(selector(value, &format!("{field}.nodes"), faults)));
        }
        Ok(("networks", _)) => {
            for (field, value) in
                list(value, field, "networks", schema.most_networks, faults).into_iter().flatten()
            {
                match reader::network(value.as_str().unwrap_or_default(), || field) {
                    Ok(net) => peers.push(Peer::Block(net, Vec::new())),
                    Err(fault) => faults.push(fault),
                }
            }
        }
        Ok(("apiServer", Value::Object(fields))) if fields.is_empty() => {
            peers.push(Peer::ApiServer);
        }
        Ok(("apiServer", _)) => {
            faults.push(FieldFault::new(format!("{field}.apiServer"), "is no empty object"));
        }
        Ok(_) if !permits => {
            let problem = "only a rule that permits may have names";
            faults.push(FieldFault::new(format!("{field}.domainNames"), problem));
        }
        Ok(_) => {
            for (field, value) in list(value, field, "domainNames", schema.most_networks, faults)
                .into_iter()
                .flatten()
            {
                match value.as_str().unwrap_or_default().parse() {
                    Ok(name) => peers.push(Peer::Name(name)),
                    Err(problem) => faults.push(FieldFault::new(field, problem.to_string())),
                }
            }
        }
        Err(fault) => faults.push(fault),
    }
    false
}

fn protocol(
    value: &Value,
    field: &str,
    only_pods: bool,
    ports: &mut Vec<Ports>,
) -> Result<(), FieldFault> {
    let known = ["tcp", "udp", "sctp", "destinationNamedPort"];
    let (name, value) = one_of(value, field, &known)?;
    let field = format!("{field}.{name}");
    let protocol = match name {
        "tcp" => Protocol::Tcp,
        "udp" => Protocol::Udp,
        "sctp" => Protocol::Sctp,
        _ => return named_port(value, field, only_pods, ports),
    };
    let fields = fields(value, &field, &["destinationPort"])?;
    let port = match fields.get("destinationPort").filter(|value| !value.is_null()) {
        None => PortSpec::All,
        Some(value) => PortSpec::Range(destination_port(value, &(field + ".destinationPort"))?),
    };
    ports.push(Ports { protocol, port });
    Ok(())
}

/// An element of `ports`.
fn port(
    value: &Value,
    field: &str,
    only_pods: bool,
    ports: &mut Vec<Ports>,
) -> Result<(), FieldFault> {
    let (name, value) = one_of(value, field, &["portNumber", "portRange", "namedPort"])?;
    let field = format!("{field}.{name}");
    let (known, range): (&[&str], _) = match name {
        "portNumber" => (&["protocol", "port"], false),
        "portRange" => (&["protocol", "start", "end"], true),
        _ => return named_port(value, field, only_pods, ports),
    };
    let fields = fields(value, &field, known)?;
    let protocol = fields.get("protocol").filter(|value| !value.is_null());
    let protocol = protocol.map(|value| value.as_str().unwrap_or_default());
    let protocol = reader::protocol(protocol, || format!("{field}.protocol"))?;
    let port = match range {
        true => port_range(value, &field)?,
        false => PortRange::one(number(fields.get("port"), format!("{field}.port"))?),
    };
    ports.push(Ports { protocol, port: PortSpec::Range(port) });
    Ok(())
}

/// The name of a port, of any protocol.
fn named_port(
    value: &Value,
    field: String,
    only_pods: bool,
    ports: &mut Vec<Ports>,
) -> Result<(), FieldFault> {
    let name = reader::port_name(value.as_str().unwrap_or_default(), || field.clone())?;
    if !only_pods {
        return Err(FieldFault::new(field, "goes with namespaces and pods only"));
    }
    let named = |protocol| Ports { protocol, port: PortSpec::Name(Arc::clone(&name)) };
    ports.extend(Protocol::ALL.map(named));
    Ok(())
}

/// The fields of an object, which must be `known`.
fn fields<'v>(
    value: &'v Value,
    field: &str,
    known: &[&str],
) -> Result<&'v Map<String, Value>, FieldFault> {
    let Value::Object(fields) = value else {
        return Err(FieldFault::new(field, "is no object"));
    };
    match fields.keys().find(|name| !known.contains(&name.as_str())) {
        Some(unknown) => Err(FieldFault::new(format!("{field}.{unknown}"), "unknown field")),
        None => Ok(fields),
    }
}

/// A number or a range.
fn destination_port(value: &Value, field: &str) -> Result<PortRange, FieldFault> {
    let (name, value) = one_of(value, field, &["number", "range"])?;
    let field = format!("{field}.{name}");
    match name {
        "number" => number(Some(value), field).map(PortRange::one),
        _ => port_range(value, &field),
    }
}

/// `start` to `end`.
fn port_range(value: &Value, field: &str) -> Result<PortRange, FieldFault> {
    let first = number(value.get("start"), format!("{field}.start"))?;
    let last = number(value.get("end"), format!("{field}.end"))?;
    match first <= last {
        true => Ok(PortRange { first, last }),
        false => Err(FieldFault::new(format!("{field}.end"), format!("is below {first}"))),
    }
}

fn number(value: Option<&Value>, field: String) -> Result<u16, FieldFault> {
    let number = value.and_then(Value::as_i64).and_then(|it| i32::try_from(it).ok());
    reader::port(number.unwrap_or(-1), || field)
}
