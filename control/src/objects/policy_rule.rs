//! A rule of a NetworkPolicy: its peers and ports.

use std::collections::BTreeSet;
use std::sync::Arc;

use acl::PortRange;
use ipnet::IpNet;
use k8s_openapi::api::networking::v1 as api;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::Value;

use super::reader;
use super::selector::selector;
use crate::FieldFault;
use crate::model::{Direction, Namespaces, Peer, PortSpec, Ports};

type Faults = Vec<FieldFault>;
/// `None` is any peer, or every port.
type PeersAndPorts = (Option<Vec<Peer>>, Option<Vec<Ports>>);

/// One rule; a rule with any fault permits nothing.
pub(super) fn rule(
    value: &Value,
    direction: Direction,
    field: &str,
    namespace: &Arc<str>,
) -> Result<PeersAndPorts, Faults> {
    let from_or_to = match direction {
        Direction::Ingress => "from",
        Direction::Egress => "to",
    };
    let mut faults = Vec::new();
    match value {
        // A misspelt `from` would otherwise permit any peer.
        Value::Object(_) => {
            faults.extend(unknown(value, field, &[from_or_to, "ports"], "a rule"));
        }
        Value::Null => {}
        other => faults.push(FieldFault::new(field, format!("{other} is no object"))),
    }
    let mut list = |name: &str| -> Vec<(String, Value)> {
        let field = format!("{field}.{name}");
        match value.get(name) {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::Array(list)) => {
                let named =
                    |(index, value): (usize, &Value)| (reader::at(&field, index), value.clone());
                list.iter().enumerate().map(named).collect()
            }
            Some(other) => {
                faults.push(FieldFault::new(field, format!("{other} is no list")));
                Vec::new()
            }
        }
    };
    let (peer_values, port_values) = (list(from_or_to), list("ports"));
    let (any_peer, any_port) = (peer_values.is_empty(), port_values.is_empty());
    let mut peers = Vec::new();
    for (field, value) in peer_values {
        peers.extend(peer(&value, &field, namespace, &mut faults));
    }
    let mut ports = Vec::new();
    for (field, value) in port_values {
        match port(value, &field) {
            Ok(port) => ports.push(port),
            Err(fault) => faults.push(fault),
        }
    }
    match faults.is_empty() {
        true => Ok(((!any_peer).then_some(peers), (!any_port).then_some(ports))),
        false => Err(faults),
    }
}

fn peer(value: &Value, field: &str, namespace: &Arc<str>, faults: &mut Faults) -> Option<Peer> {
    let Value::Object(fields) = value else {
        faults.push(FieldFault::new(field, format!("{value} is no peer")));
        return None;
    };
    let known = ["podSelector", "namespaceSelector", "ipBlock"];
    faults.extend(unknown(value, field, &known, "a peer"));
    let part = |name: &str| fields.get(name).filter(|value| !value.is_null());
    let mut select =
        |name: &str| part(name).map(|value| selector(value, &format!("{field}.{name}"), faults));
    let (pods, namespaces) = (select("podSelector"), select("namespaceSelector"));
    match (pods, namespaces, part("ipBlock")) {
        (None, None, Some(value)) => match ip_block(value.clone(), &format!("{field}.ipBlock")) {
            Ok((net, except)) => Some(Peer::Block(net, except)),
            Err(found) => {
                faults.extend(found);
                None
            }
        },
        (None, None, None) => {
            faults.push(FieldFault::new(
                field,
                "has none of podSelector, namespaceSelector and ipBlock",
            ));
            None
        }
        (_, _, Some(_)) => {
            faults.push(FieldFault::new(field, "has ipBlock together with a selector"));
            None
        }
        (pods, None, None) => Some(Peer::Pods {
            namespaces: Namespaces::Own(Arc::clone(namespace)),
            pods: pods.unwrap_or_default(),
        }),
        (pods, Some(namespaces), None) => Some(Peer::Pods {
            namespaces: Namespaces::Selected(namespaces),
            pods: pods.unwrap_or_default(),
        }),
    }
}

/// The fields of an object that are not among those `known`.
pub(super) fn unknown(value: &Value, field: &str, known: &[&str], of: &str) -> Faults {
    let names = value.as_object().into_iter().flat_map(|fields| fields.keys());
    names
        .filter(|name| !known.contains(&name.as_str()))
        .map(|name| FieldFault::new(format!("{field}.{name}"), format!("unknown field of {of}")))
        .collect()
}

/// A network and its exceptions, sorted. An exception that is not inside the network, or is all of
/// it, is a fault.
fn ip_block(value: Value, field: &str) -> Result<(IpNet, Vec<IpNet>), Faults> {
    // A misspelt `except` would otherwise permit what it excepts.
    let misspelt = unknown(&value, field, &["cidr", "except"], "an ipBlock");
    if !misspelt.is_empty() {
        return Err(misspelt);
    }
    let block: api::IPBlock = reader::typed(&value, field).map_err(|fault| vec![fault])?;
    let net =
        reader::network(&block.cidr, || format!("{field}.cidr")).map_err(|fault| vec![fault])?;
    let mut faults = Vec::new();
    let mut except = BTreeSet::new();
    for (index, text) in block.except.iter().flatten().enumerate() {
        let field = || format!("{field}.except[{index}]");
        match reader::network(text, field) {
            Ok(inner) if inner == net => {
                faults.push(FieldFault::new(field(), format!("{inner} is all of the network")));
            }
            Ok(inner) if net.contains(&inner) => {
                except.insert(inner);
            }
            Ok(inner) => {
                faults.push(FieldFault::new(field(), format!("{inner} is not inside {net}")));
            }
            Err(fault) => faults.push(fault),
        }
    }
    if faults.is_empty() { Ok((net, except.into_iter().collect())) } else { Err(faults) }
}

fn port(value: Value, field: &str) -> Result<Ports, FieldFault> {
    // A misspelt `port` would otherwise permit every port.
    let misspelt = unknown(&value, field, &["protocol", "port", "endPort"], "a port");
    if let Some(fault) = misspelt.into_iter().next() {
        return Err(fault);
    }
    let port: api::NetworkPolicyPort = reader::typed(&value, field)?;
    let protocol = reader::protocol(port.protocol.as_deref(), || format!("{field}.protocol"))?;
    let end = |first: u16| -> Result<u16, FieldFault> {
        let Some(end) = port.end_port else { return Ok(first) };
        let end_field = || format!("{field}.endPort");
        let last = reader::port(end, end_field)?;
        match last >= first {
            true => Ok(last),
            false => Err(FieldFault::new(end_field(), format!("{last} is below port {first}"))),
        }
    };
    let port = match &port.port {
        Some(IntOrString::Int(number)) => {
            let first = reader::port(*number, || format!("{field}.port"))?;
            PortSpec::Range(PortRange { first, last: end(first)? })
        }
        _ if port.end_port.is_some() => {
            return Err(FieldFault::new(format!("{field}.endPort"), "needs a port number"));
        }
        Some(IntOrString::String(name)) => {
            PortSpec::Name(reader::port_name(name, || format!("{field}.port"))?)
        }
        None => PortSpec::All,
    };
    Ok(Ports { protocol, port })
}
