//! NetworkPolicy, read part by part so that one bad part does not hide the others.
//!
//! Meaning: <https://kubernetes.io/docs/concepts/services-networking/network-policies/> and
//! the field documentation of networking.k8s.io/v1.

use std::collections::HashSet;
use std::sync::Arc;

use acl::{Origin, PolicyRef};
use ahash::RandomState;
use serde_json::Value;

use super::policy_rule::{rule, unknown};
use super::selector::selector;
use super::{ObjectRef, reader, report, staging};
use crate::FieldFault;
use crate::model::{Direction, Key, NetworkPolicy, PolicyRule, PortSpec, Ports};

type Faults = Vec<FieldFault>;

/// Peer sets of one policy.
const MAX_PEER_SETS: usize = 1024;

/// The policy as far as it could be read, and what could not be.
pub(super) fn network_policy(reference: &ObjectRef, value: &Value) -> (NetworkPolicy, Faults) {
    let mut faults = Vec::new();
    let spec = value.get("spec").unwrap_or(&Value::Null);
    if !spec.is_object() {
        faults.push(FieldFault::new("spec", "missing or no object"));
    }
    let namespace = reference.namespace.clone().unwrap_or_else(|| "default".into());
    let selector =
        selector(spec.get("podSelector").unwrap_or(&Value::Null), "spec.podSelector", &mut faults);
    let known = ["podSelector", "policyTypes", "ingress", "egress"];
    let misspelt = unknown(spec, "spec", &known, "a policy");
    let [ingress_in_force, egress_in_force] = match directions(spec, &mut faults) {
        directions if misspelt.is_empty() => directions,
        // Any of them may have been meant.
        _ => [true, true],
    };
    faults.extend(misspelt);
    let name = &reference.name;
    let mut rules_of = |direction: Direction, in_force: bool| {
        let rules = rules(spec, direction, &namespace, name, &mut faults);
        in_force.then_some(rules)
    };
    let mut ingress = rules_of(Direction::Ingress, ingress_in_force);
    let mut egress = rules_of(Direction::Egress, egress_in_force);
    if let Some(fault) = too_many_sets(ingress.iter().chain(&egress).flatten()) {
        faults.push(fault);
        [&mut ingress, &mut egress].into_iter().flatten().for_each(Vec::clear);
    }
    let key = Key { namespace, name: Arc::clone(&reference.name) };
    let staging = staging::read(value, &mut faults);
    let report = report::read(value);
    (NetworkPolicy { key, selector, ingress, egress, staging, report }, faults)
}

/// Names the bound on peer sets if rules exceed it. Each different `from` or `to` is one, and so is
/// each port name of egress, whose pods are told apart by it. An address may be in all of them, so
/// that they cost their product.
fn too_many_sets<'a>(rules: impl Iterator<Item = &'a PolicyRule>) -> Option<FieldFault> {
    let mut peers: HashSet<_, RandomState> = HashSet::default();
    let mut names = 0;
    for rule in rules {
        peers.extend(rule.peers.as_ref());
        let is_name = |port: &&Ports| matches!(port.port, PortSpec::Name(_));
        let own: HashSet<&Ports, RandomState> =
            rule.ports.iter().flatten().filter(is_name).collect();
        names += own.len();
    }
    let count = peers.len() + names;
    let problem = || {
        format!(
            "rules with {} different lists of peers and {names} port names are more than {MAX_PEER_SETS} peer sets: they \
             permit nothing",
            peers.len()
        )
    };
    (count > MAX_PEER_SETS).then(|| FieldFault::new("spec", problem()))
}

/// Whether the policy is about ingress and egress. Without `policyTypes` it is about
/// ingress always, about egress if it has egress rules.
fn directions(spec: &Value, faults: &mut Faults) -> [bool; 2] {
    let field = "spec.policyTypes";
    let has_egress = match spec.get("egress") {
        None | Some(Value::Null) => false,
        Some(Value::Array(rules)) => !rules.is_empty(),
        // No list at all, which is a fault: closed.
        Some(_) => true,
    };
    let default = [true, has_egress];
    let types = match spec.get("policyTypes") {
        None | Some(Value::Null) => return default,
        Some(Value::Array(types)) if types.is_empty() => return default,
        Some(Value::Array(types)) => types,
        Some(other) => {
            faults.push(FieldFault::new(field, format!("{other} is no list")));
            return default;
        }
    };
    let mut directions = [false, false];
    let mut unknown = false;
    for (index, value) in types.iter().enumerate() {
        match value.as_str() {
            Some("Ingress") => directions[0] = true,
            Some("Egress") => directions[1] = true,
            _ => {
                unknown = true;
                faults.push(FieldFault::new(
                    reader::at(field, index),
                    format!("{value} is neither \"Ingress\" nor \"Egress\""),
                ));
            }
        }
    }
    // An unreadable type may have meant either direction.
    if unknown { [true, true] } else { directions }
}

fn rules(
    spec: &Value,
    direction: Direction,
    namespace: &Arc<str>,
    name: &str,
    faults: &mut Faults,
) -> Vec<PolicyRule> {
    let field = format!("spec.{}", direction.field());
    let list = match spec.get(direction.field()) {
        None | Some(Value::Null) => return Vec::new(),
        Some(Value::Array(list)) => list,
        Some(other) => {
            faults.push(FieldFault::new(field, format!("{other} is no list")));
            return Vec::new();
        }
    };
    let policy = Arc::new(PolicyRef::new("NetworkPolicy", Some(namespace), name));
    let mut rules = Vec::new();
    for (index, value) in list.iter().enumerate() {
        match rule(value, direction, &reader::at(&field, index), namespace) {
            Ok((peers, ports)) => {
                let origin = Origin::Rule(Arc::clone(&policy), direction, index as u32);
                rules.push(PolicyRule { index, origin, peers, ports });
            }
            Err(found) => faults.extend(found),
        }
    }
    rules
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Namespaces, Peer};
    use crate::objects::{Read, read};
    use crate::{Kind, Object};
    use serde_json::json;

    fn parse(spec: Value) -> (NetworkPolicy, Faults) {
        match read(json!({"apiVersion": Kind::NetworkPolicy.api_version(), "kind": "NetworkPolicy",
            "metadata": {"name": "p"}, "spec": spec}))
        {
            Read::Object(Object::NetworkPolicy(policy), faults) => {
                (Arc::unwrap_or_clone(policy), faults)
            }
            other => panic!("{other:?}"),
        }
    }

    fn fields(faults: &Faults) -> Vec<&str> {
        faults.iter().map(|fault| fault.field.as_str()).collect()
    }

    #[test]
    fn policy_types_default_to_ingress_and_to_egress_only_with_rules() {
        let (policy, _) = parse(json!({"podSelector": {}}));
        assert!(policy.ingress.is_some() && policy.egress.is_none());
        let (policy, _) = parse(json!({"podSelector": {}, "egress": []}));
        assert!(policy.ingress.is_some() && policy.egress.is_none());
        let (policy, _) = parse(json!({"podSelector": {}, "egress": [{}], "policyTypes": []}));
        assert!(policy.ingress.is_some() && policy.egress.is_some());
        let (policy, _) =
            parse(json!({"podSelector": {}, "ingress": [{}], "policyTypes": ["Egress"]}));
        assert!(policy.ingress.is_none() && policy.egress == Some(vec![]));
    }

    #[test]
    fn an_empty_list_is_anybody_and_every_port() {
        for rule in [json!({}), json!({"from": [], "ports": []}), json!({"from": null})] {
            let (policy, faults) = parse(json!({"podSelector": {}, "ingress": [rule]}));
            assert_eq!(faults, []);
            let ingress = policy.ingress.unwrap();
            assert_eq!((&ingress[0].peers, &ingress[0].ports), (&None, &None));
        }
    }

    #[test]
    fn pod_and_namespace_selector_stay_together() {
        let (policy, faults) = parse(json!({"podSelector": {}, "ingress": [{"from": [
            {"podSelector": {"matchLabels": {"a": "b"}}, "namespaceSelector": {}}]}]}));
        assert_eq!(faults, []);
        let ingress = policy.ingress.unwrap();
        let [Peer::Pods { namespaces: Namespaces::Selected(namespaces), pods }] =
            ingress[0].peers.as_deref().unwrap()
        else {
            panic!()
        };
        assert!(namespaces.is_everything() && !pods.is_everything());
    }

    #[test]
    fn a_bad_rule_permits_nothing_and_the_others_stay() {
        let (policy, faults) = parse(json!({"podSelector": {}, "ingress": [
            {"from": [{"ipBlock": {"cidr": "10.0.0.0/40"}}]},
            {"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["11.0.0.0/16"]}}]},
            {"ports": [{"port": 90, "endPort": 80}]},
            {"ports": [{"port": "http", "endPort": 80}]},
            {"ports": [{"port": 0}]},
            {"ports": [{"port": 1, "protocol": "ICMP"}]},
            {"from": [{}]},
            {"form": [{"podSelector": {}}]},
            {"ports": [{"prot": 80}]},
            {"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "exept": ["10.1.0.0/16"]}}]},
            {"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.2.3/8"]}}]},
            {"ports": [{"port": 443}]}]}));
        assert_eq!(policy.ingress.unwrap().iter().map(|rule| rule.index).collect::<Vec<_>>(), [11]);
        assert_eq!(
            fields(&faults),
            [
                "spec.ingress[0].from[0].ipBlock.cidr",
                "spec.ingress[1].from[0].ipBlock.except[0]",
                "spec.ingress[2].ports[0].endPort",
                "spec.ingress[3].ports[0].endPort",
                "spec.ingress[4].ports[0].port",
                "spec.ingress[5].ports[0].protocol",
                "spec.ingress[6].from[0]",
                "spec.ingress[7].form",
                "spec.ingress[8].ports[0].prot",
                "spec.ingress[9].from[0].ipBlock.exept",
                "spec.ingress[10].from[0].ipBlock.except[0]",
            ]
        );
    }

    #[test]
    fn a_selector_that_cannot_be_read_selects_by_what_could_be() {
        let (policy, faults) = parse(json!({"podSelector": {"matchLabels": {"app": "db"},
            "matchExpressions": [{"key": "x", "operator": "Like", "values": ["y"]}]}}));
        assert_eq!(fields(&faults), ["spec.podSelector.matchExpressions[0].operator"]);
        assert!(policy.selector.matches(&[("app", "db")].into_iter().collect()));
        assert!(!policy.selector.matches(&[("app", "web")].into_iter().collect()));
        assert_eq!(policy.ingress, Some(vec![]));
    }

    #[test]
    fn a_misspelt_field_closes_both_directions() {
        for name in ["egres", "policytypes", "podselector"] {
            let (policy, faults) = parse(json!({"podSelector": {}, name: ["Egress"]}));
            assert_eq!(fields(&faults), [format!("spec.{name}")]);
            assert!(policy.ingress.is_some() && policy.egress.is_some());
        }
    }

    #[test]
    fn an_unknown_policy_type_closes_both_directions() {
        let (policy, faults) = parse(json!({"podSelector": {}, "policyTypes": ["Sideways"]}));
        assert_eq!(fields(&faults), ["spec.policyTypes[0]"]);
        assert!(policy.ingress.is_some() && policy.egress.is_some());
    }
}
