//! ClusterNetworkPolicy (policy.networking.k8s.io/v1alpha2), read part by part.
//!
//! Meaning: <https://network-policy-api.sigs.k8s.io/>. A rule that cannot be read fails
//! closed, as the API demands of peers of unknown kinds: an `Accept` matches nothing, a
//! `Deny` or `Pass` (or what may have been one) becomes deny-all.

use std::sync::Arc;

use acl::PortRange;
use serde_json::{Map, Value};

use super::policy::selector;
use super::{ObjectRef, reader};
use crate::FieldFault;
use crate::model::{
    ClusterNetworkPolicy, ClusterRule, Direction, Namespaces, Peer, PolicyRule, PortSpec, Ports,
    Protocol, Selector, Tier, Verdict,
};

type Faults = Vec<FieldFault>;

/// The most rules, peers, networks or protocols that the schema lets a list have.
const MOST: usize = 25;

/// The policy as far as it could be read, and what could not be.
pub(super) fn cluster_network_policy(
    reference: &ObjectRef,
    value: &Value,
) -> (ClusterNetworkPolicy, Faults) {
    let mut faults = Vec::new();
    let nothing = Map::new();
    let spec = value.get("spec").and_then(Value::as_object).unwrap_or(&nothing);
    if spec.is_empty() {
        faults.push(FieldFault::new("spec", "missing, empty or no object"));
    }
    let known = ["tier", "priority", "subject", "ingress", "egress"];
    let unknown = spec.keys().filter(|name| !known.contains(&name.as_str()));
    faults.extend(unknown.map(|name| FieldFault::new(format!("spec.{name}"), "unknown field")));
    let tier = match spec.get("tier").and_then(Value::as_str) {
        Some("Admin") => Some(Tier::Admin),
        Some("Baseline") => Some(Tier::Baseline),
        _ => {
            faults.push(FieldFault::new("spec.tier", "is neither \"Admin\" nor \"Baseline\""));
            None
        }
    };
    let priority = match spec.get("priority").and_then(Value::as_u64) {
        Some(priority @ 0..=1000) => Some(priority as u16),
        _ => {
            faults.push(FieldFault::new("spec.priority", "is no number from 0 to 1000"));
            None
        }
    };
    let before = faults.len();
    let (namespaces, pods) = subject(spec.get("subject"), &mut faults);
    let head_is_fine = faults.len() == before && tier.is_some() && priority.is_some();
    let mut rules_of = |direction| {
        let mut rules = rules(spec, direction, &reference.name, &mut faults);
        // To whom and when it applies is not known: a permission could be one too many.
        rules.retain(|rule| head_is_fine || rule.verdict == Verdict::Deny);
        rules
    };
    let (ingress, egress) = (rules_of(Direction::Ingress), rules_of(Direction::Egress));
    let policy = ClusterNetworkPolicy {
        name: Arc::clone(&reference.name),
        tier: tier.unwrap_or(Tier::Admin),
        priority: priority.unwrap_or(0),
        namespaces,
        pods,
        ingress,
        egress,
        complete: faults.is_empty(),
    };
    (policy, faults)
}

/// Namespace and pod selector of the subject, as far as they could be read.
fn subject(value: Option<&Value>, faults: &mut Faults) -> (Selector, Selector) {
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
fn one_of<'v>(
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

fn rules(
    spec: &Map<String, Value>,
    direction: Direction,
    name: &str,
    faults: &mut Faults,
) -> Vec<ClusterRule> {
    let field = format!("spec.{}", direction.field());
    let origin = |index: usize| -> Arc<str> {
        format!("ClusterNetworkPolicy {name} {}[{index}]", direction.field()).into()
    };
    let deny_all = |index| ClusterRule {
        verdict: Verdict::Deny,
        rule: PolicyRule { index, origin: origin(index), peers: None, ports: None },
    };
    let list = match spec.get(direction.field()) {
        None | Some(Value::Null) => return Vec::new(),
        Some(Value::Array(list)) => list,
        Some(_) => {
            faults.push(FieldFault::new(field, "is no list"));
            return vec![deny_all(0)];
        }
    };
    if list.len() > MOST {
        faults.push(FieldFault::new(&field, format!("has more than {MOST} rules")));
    }
    let mut rules = Vec::new();
    for (index, value) in list.iter().enumerate() {
        let field = reader::at(&field, index);
        let verdict = match value.get("action").and_then(Value::as_str) {
            Some("Accept") => Ok(Verdict::Accept),
            Some("Deny") => Ok(Verdict::Deny),
            Some("Pass") => Ok(Verdict::Pass),
            _ => Err(FieldFault::new(
                format!("{field}.action"),
                "is none of \"Accept\", \"Deny\" and \"Pass\"",
            )),
        };
        let accepts = verdict == Ok(Verdict::Accept);
        let mut found = Vec::from_iter(verdict.as_ref().err().cloned());
        let (peers, ports) = rule(value, &field, direction, accepts, &mut found);
        match verdict {
            Ok(verdict) if found.is_empty() => {
                let rule = PolicyRule { index, origin: origin(index), peers: Some(peers), ports };
                rules.push(ClusterRule { verdict, rule });
            }
            Ok(Verdict::Accept) => {}
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
    accepts: bool,
    faults: &mut Faults,
) -> (Vec<Peer>, Option<Vec<Ports>>) {
    let (from_or_to, other) = match direction {
        Direction::Ingress => ("from", "to"),
        Direction::Egress => ("to", "from"),
    };
    let known = ["name", "action", from_or_to, "protocols"];
    for name in value.as_object().into_iter().flat_map(Map::keys) {
        if !known.contains(&name.as_str()) {
            let problem =
                if name == other { "is for the other direction" } else { "unknown field" };
            faults.push(FieldFault::new(format!("{field}.{name}"), problem));
        }
    }
    let mut peers = Vec::new();
    let mut only_pods = true;
    match list(value, field, from_or_to, faults) {
        Some(list) => {
            for (field, value) in list {
                only_pods &= peer(value, &field, direction, accepts, &mut peers, faults);
            }
        }
        None => faults.push(FieldFault::new(format!("{field}.{from_or_to}"), "is required")),
    }
    let ports = list(value, field, "protocols", faults).map(|list| {
        let mut ports = Vec::new();
        for (field, value) in list {
            if let Err(fault) = protocol(value, &field, only_pods, &mut ports) {
                faults.push(fault);
            }
        }
        ports
    });
    (peers, ports)
}

/// The elements of a list of 1 to 25 with the fields they stand at; `None` if it is absent.
fn list<'v>(
    value: &'v Value,
    field: &str,
    name: &str,
    faults: &mut Faults,
) -> Option<Vec<(String, &'v Value)>> {
    let field = format!("{field}.{name}");
    match value.get(name) {
        None | Some(Value::Null) => None,
        Some(Value::Array(list)) if (1..=MOST).contains(&list.len()) => {
            let named = |(index, value)| (reader::at(&field, index), value);
            Some(list.iter().enumerate().map(named).collect())
        }
        Some(_) => {
            faults.push(FieldFault::new(field, format!("is no list of 1 to {MOST}")));
            Some(Vec::new())
        }
    }
}

/// Adds what a peer means; whether it means pods.
fn peer(
    value: &Value,
    field: &str,
    direction: Direction,
    accepts: bool,
    peers: &mut Vec<Peer>,
    faults: &mut Faults,
) -> bool {
    let known: &[&str] = match direction {
        Direction::Ingress => &["namespaces", "pods"],
        Direction::Egress => &["namespaces", "pods", "nodes", "networks", "domainNames"],
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
            for (field, value) in list(value, field, "networks", faults).into_iter().flatten() {
                match reader::network(value.as_str().unwrap_or_default(), || field) {
                    Ok(net) => peers.push(Peer::Block(net, Vec::new())),
                    Err(fault) => faults.push(fault),
                }
            }
        }
        Ok(_) => {
            let problem = match accepts {
                true => "names are not supported; the rule matches nothing",
                false => "only an Accept rule may have names",
            };
            faults.push(FieldFault::new(format!("{field}.domainNames"), problem));
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
        _ => {
            let name = reader::port_name(value.as_str().unwrap_or_default(), || field.clone())?;
            if !only_pods {
                return Err(FieldFault::new(field, "goes with namespaces and pods only"));
            }
            let named = |protocol| Ports { protocol, port: PortSpec::Name(Arc::clone(&name)) };
            ports.extend(Protocol::ALL.map(named));
            return Ok(());
        }
    };
    let Value::Object(fields) = value else {
        return Err(FieldFault::new(field, "is no object"));
    };
    if let Some(unknown) = fields.keys().find(|name| *name != "destinationPort") {
        return Err(FieldFault::new(format!("{field}.{unknown}"), "unknown field"));
    }
    let port = match fields.get("destinationPort").filter(|value| !value.is_null()) {
        None => PortSpec::All,
        Some(value) => PortSpec::Range(destination_port(value, &(field + ".destinationPort"))?),
    };
    ports.push(Ports { protocol, port });
    Ok(())
}

/// A number or a range.
fn destination_port(value: &Value, field: &str) -> Result<PortRange, FieldFault> {
    let number = |value: Option<&Value>, field: String| {
        let number = value.and_then(Value::as_i64).and_then(|it| i32::try_from(it).ok());
        reader::port(number.unwrap_or(-1), || field)
    };
    let (name, value) = one_of(value, field, &["number", "range"])?;
    if name == "number" {
        return number(Some(value), format!("{field}.number")).map(PortRange::one);
    }
    let first = number(value.get("start"), format!("{field}.range.start"))?;
    let last = number(value.get("end"), format!("{field}.range.end"))?;
    match first <= last {
        true => Ok(PortRange { first, last }),
        false => Err(FieldFault::new(format!("{field}.range.end"), format!("is below {first}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::{Object, Read, read};
    use serde_json::json;

    fn parse(spec: Value) -> (ClusterNetworkPolicy, Vec<String>) {
        match read(json!({"apiVersion": "policy.networking.k8s.io/v1alpha2",
            "kind": "ClusterNetworkPolicy", "metadata": {"name": "c"}, "spec": spec}))
        {
            Read::Object(Object::ClusterNetworkPolicy(policy), faults) => {
                (policy, faults.into_iter().map(|fault| fault.field).collect())
            }
            other => panic!("{other:?}"),
        }
    }

    fn with_egress(rule: Value) -> (ClusterNetworkPolicy, Vec<String>) {
        parse(json!({"tier": "Admin", "priority": 10, "subject": {"namespaces": {}},
            "egress": [rule]}))
    }

    #[test]
    fn every_form_of_the_schema_is_read() {
        let (policy, faults) = parse(json!({"tier": "Baseline", "priority": 1000,
            "subject": {"pods": {"namespaceSelector": {}, "podSelector": {"matchLabels": {"a": "b"}}}},
            "ingress": [{"name": "in", "action": "Pass", "from": [{"namespaces": {}},
                {"pods": {"namespaceSelector": {}, "podSelector": {}}}],
                "protocols": [{"destinationNamedPort": "http"}]}],
            "egress": [{"action": "Deny", "to": [{"networks": ["10.0.0.0/8", "fd00::/8"]},
                {"nodes": {}}], "protocols": [{"tcp": {}}, {"udp": {"destinationPort": {"number": 53}}},
                {"sctp": {"destinationPort": {"range": {"start": 1, "end": 9}}}}]}]}));
        assert_eq!(faults, Vec::<String>::new());
        assert!(policy.complete && policy.tier == Tier::Baseline && policy.priority == 1000);
        assert_eq!(policy.egress[0].rule.peers.as_ref().map(Vec::len), Some(3));
        assert_eq!(policy.egress[0].rule.ports.as_ref().map(Vec::len), Some(3));
        assert_eq!(policy.ingress[0].rule.ports.as_ref().map(Vec::len), Some(3));
    }

    #[test]
    fn a_peer_of_an_unknown_kind_fails_closed() {
        let unknown = |action: &str| {
            with_egress(json!({"action": action, "to": [{"namespaces": {}}, {"planets": {}}]}))
        };
        let (policy, faults) = unknown("Accept");
        assert_eq!((policy.egress.len(), faults), (0, vec!["spec.egress[0].to[1].planets".into()]));
        for action in ["Deny", "Pass", "Perhaps"] {
            let (policy, _) = unknown(action);
            assert_eq!(policy.egress[0].verdict, Verdict::Deny);
            assert_eq!(
                (&policy.egress[0].rule.peers, &policy.egress[0].rule.ports),
                (&None, &None)
            );
        }
    }

    #[test]
    fn domain_names_are_refused_and_match_nothing() {
        let (policy, faults) =
            with_egress(json!({"action": "Accept", "to": [{"domainNames": ["example.org"]}]}));
        assert_eq!((policy.egress.len(), faults.len(), policy.complete), (0, 1, false));
    }

    #[test]
    fn what_the_schema_forbids_is_a_fault() {
        for rule in [
            json!({"action": "Deny"}),
            json!({"action": "Deny", "to": []}),
            json!({"action": "Deny", "to": [{"networks": ["10.0.0.0/99"]}]}),
            json!({"action": "Deny", "to": [{"namespaces": {}, "nodes": {}}]}),
            json!({"action": "Deny", "to": [{"nodes": {}}],
                "protocols": [{"destinationNamedPort": "http"}]}),
            json!({"action": "Deny", "to": [{"nodes": {}}], "protocols": [{"tcp": {}, "udp": {}}]}),
            json!({"action": "Deny", "to": [{"nodes": {}}], "protocols": [
                {"tcp": {"destinationPort": {"range": {"start": 9, "end": 1}}}}]}),
            json!({"action": "Deny", "to": [{"nodes": {}}], "ports": []}),
            json!({"action": "Deny", "from": [{"namespaces": {}}]}),
        ] {
            let (policy, faults) = with_egress(rule.clone());
            assert!(!faults.is_empty() && !policy.complete, "{rule}");
            assert_eq!(policy.egress[0].rule.peers, None, "deny-all: {rule}");
        }
    }

    #[test]
    fn without_a_readable_head_only_denials_are_left() {
        for (tier, priority, subject) in [
            (json!("Middle"), json!(1), json!({"namespaces": {}})),
            (json!("Admin"), json!(1001), json!({"namespaces": {}})),
            (json!("Admin"), json!(1), json!({})),
        ] {
            let rule = |action: &str| json!({"action": action, "from": [{"namespaces": {}}]});
            let (policy, faults) = parse(json!({"tier": tier, "priority": priority,
                "subject": subject, "ingress": [rule("Accept"), rule("Deny"), rule("Pass")]}));
            assert_eq!(faults.len(), 1);
            assert_eq!(policy.ingress.len(), 1);
            assert_eq!(policy.ingress[0].verdict, Verdict::Deny);
        }
    }
}
