//! ClusterHostFirewall (podgate.io/v1alpha1), read part by part.
//!
//! Firewalls are independent: a connection of a node opens only if every firewall that
//! selects the node permits it. Within one, the first rule that matches counts, and what no rule
//! matches is permitted.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::cluster_rules::{PortSchema, RuleSchema, deny_all, rules, spec};
use super::selector::selector;
use super::{ObjectRef, report, staging};
use crate::FieldFault;
use crate::model::{ClusterHostFirewall, Direction, RuleAction, Selector};

/// The rule schema of ClusterHostFirewall.
const SCHEMA: RuleSchema = RuleSchema {
    kind: "ClusterHostFirewall",
    actions: &[("Allow", RuleAction::Accept, true), ("Deny", RuleAction::Deny, false)],
    from: &["namespaces", "pods", "nodes", "networks"],
    to: &["namespaces", "pods", "nodes", "networks", "apiServer"],
    most: 100,
    most_networks: 100,
    ports: PortSchema::Protocols { named: false },
};

/// The firewall as far as it could be read, and what could not be.
pub(super) fn cluster_host_firewall(
    reference: &ObjectRef,
    value: &Value,
) -> (ClusterHostFirewall, Vec<FieldFault>) {
    let mut faults = Vec::new();
    let nothing = Map::new();
    let known = ["nodes", "failsafePorts", "ingress", "egress"];
    let (spec, may_deny) = spec(value, &known, &mut faults);
    let spec = spec.unwrap_or(&nothing);
    let before = faults.len();
    let nodes = match spec.get("nodes") {
        None | Some(Value::Null) => Selector::default(),
        Some(value) => selector(value, "spec.nodes", &mut faults),
    };
    let nodes_are_fine = faults.len() == before;
    // Ports that a mistake must not close stay open unless the object says so in full.
    let failsafe = match spec.get("failsafePorts") {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) if text == "Open" => true,
        Some(Value::String(text)) if text == "Closed" => false,
        Some(_) => {
            faults.push(FieldFault::new("spec.failsafePorts", "is none of \"Open\", \"Closed\""));
            true
        }
    };
    let is_empty = |field: &str| match spec.get(field) {
        None | Some(Value::Null) => true,
        Some(value) => value.as_array().is_some_and(Vec::is_empty),
    };
    if is_empty("ingress") && is_empty("egress") {
        faults.push(FieldFault::new("spec", "has neither ingress nor egress"));
    }
    let [ingress, egress] = Direction::BOTH.map(|direction| {
        let mut rules = rules(spec, direction, &reference.name, &SCHEMA, &mut faults);
        // Its nodes are unknown: an exception could apply to the wrong ones.
        rules.retain(|rule| nodes_are_fine || rule.verdict == RuleAction::Deny);
        if may_deny {
            rules.push(deny_all(rules.len(), direction, &reference.name, &SCHEMA));
        }
        rules
    });
    let (name, report) = (Arc::clone(&reference.name), report::read(value));
    let staging = staging::read(value, &mut faults);
    (ClusterHostFirewall { name, nodes, failsafe, ingress, egress, staging, report }, faults)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Object;
    use crate::objects::{Read, read};
    use serde_json::json;

    fn parse(spec: Value) -> (ClusterHostFirewall, Vec<String>) {
        match read(json!({"apiVersion": "podgate.io/v1alpha1", "kind": "ClusterHostFirewall",
            "metadata": {"name": "f"}, "spec": spec}))
        {
            Read::Object(Object::ClusterHostFirewall(firewall), faults) => (
                Arc::unwrap_or_clone(firewall),
                faults.into_iter().map(|fault| fault.field).collect(),
            ),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_form_is_read() {
        let (firewall, faults) = parse(json!({
            "nodes": {"matchLabels": {"role": "edge"}},
            "failsafePorts": "Closed",
            "ingress": [
                {"action": "Allow", "from": [{"networks": ["192.0.2.0/24"]}, {"nodes": {}}],
                 "protocols": [{"tcp": {"destinationPort": {"number": 22}}}]},
                {"action": "Deny", "from": [{"networks": ["0.0.0.0/0", "::/0"]}]}],
            "egress": [{"action": "Deny", "to": [{"namespaces": {}}, {"apiServer": {}}]}]}));
        assert_eq!(faults, Vec::<String>::new());
        assert!(!firewall.failsafe && !firewall.nodes.is_everything());
        assert_eq!((firewall.ingress.len(), firewall.egress.len()), (2, 1));
        assert_eq!(firewall.ingress[1].rule.origin.to_string(), "ClusterHostFirewall f ingress[1]");
    }

    #[test]
    fn what_cannot_be_read_never_opens_and_keeps_the_failsafe_ports() {
        let deny = json!({"action": "Deny", "from": [{"networks": ["0.0.0.0/0"]}]});
        let allow = |from: Value| json!({"action": "Allow", "from": [from]});
        for (rule, field) in [
            (allow(json!({"networks": ["nowhere"]})), "spec.ingress[0].from[0].networks[0]"),
            (allow(json!({"apiServer": {}})), "spec.ingress[0].from[0].apiServer"),
            (json!({"action": "Allow"}), "spec.ingress[0].from"),
            (
                json!({"action": "Allow", "from": [{"namespaces": {}}],
                    "protocols": [{"destinationNamedPort": "http"}]}),
                "spec.ingress[0].protocols[0].destinationNamedPort",
            ),
        ] {
            let (firewall, faults) = parse(json!({"ingress": [rule, deny]}));
            assert_eq!(faults, [field]);
            assert_eq!(firewall.ingress.len(), 1, "the exception is gone");
        }
        let (firewall, faults) = parse(json!({"ingress": [deny], "failsafePorts": "closed"}));
        assert_eq!((faults, firewall.failsafe), (vec!["spec.failsafePorts".to_owned()], true));
        let (firewall, faults) = parse(json!({"nodes": {"x": 1}, "ingress":
            [allow(json!({"networks": ["192.0.2.0/24"]})), deny]}));
        assert_eq!((faults.len(), firewall.ingress.len()), (1, 1));
        let (firewall, faults) = parse(json!({"ingress": [deny], "ingres": []}));
        assert_eq!(faults, ["spec.ingres"]);
        assert_eq!(firewall.egress[0].rule.peers, None, "deny-all");
        assert_eq!(parse(json!({})).1, ["spec"]);
    }
}
