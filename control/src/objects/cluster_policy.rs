//! ClusterNetworkPolicy (policy.networking.k8s.io/v1alpha2), read part by part.
//!
//! Meaning: <https://network-policy-api.sigs.k8s.io/>. A rule that cannot be read fails
//! closed, as the API demands of peers of unknown kinds: an `Accept` matches nothing, a
//! `Deny` or `Pass` (or what may have been one) becomes deny-all.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::cluster_rules::{RuleSchema, deny_all, rules, spec, subject};
use super::{ObjectRef, report, staging};
use crate::FieldFault;
use crate::model::{ClusterNetworkPolicy, Direction, Tier, Verdict};

type Faults = Vec<FieldFault>;

/// The rule schema of ClusterNetworkPolicy.
const SCHEMA: RuleSchema = RuleSchema {
    kind: "ClusterNetworkPolicy",
    actions: &[
        ("Accept", Verdict::Accept, true),
        ("Deny", Verdict::Deny, false),
        ("Pass", Verdict::Pass, false),
    ],
    from: &["namespaces", "pods"],
    to: &["namespaces", "pods", "nodes", "networks", "domainNames"],
    most: 25,
    named_ports: true,
};

/// The policy as far as it could be read, and what could not be.
pub(super) fn cluster_network_policy(
    reference: &ObjectRef,
    value: &Value,
) -> (ClusterNetworkPolicy, Faults) {
    let mut faults = Vec::new();
    let nothing = Map::new();
    let known = ["tier", "priority", "subject", "ingress", "egress"];
    let (spec, may_deny) = spec(value, &known, &mut faults);
    let spec = spec.unwrap_or(&nothing);
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
        let mut rules = rules(spec, direction, &reference.name, &SCHEMA, &mut faults);
        if !head_is_fine {
            // Its subject or order is unknown: a permission could apply to the wrong pods, and a
            // passed connection could be permitted by a policy of lower priority.
            rules.retain(|rule| rule.verdict != Verdict::Accept);
            rules.iter_mut().for_each(|rule| rule.verdict = Verdict::Deny);
        }
        if may_deny {
            rules.push(deny_all(rules.len(), direction, &reference.name, &SCHEMA));
        }
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
        staging: staging::read(value, &mut faults),
        report: report::read(value),
    };
    (policy, faults)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Object;
    use crate::model::Peer;
    use crate::objects::{Read, read};
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
        assert!(policy.tier == Tier::Baseline && policy.priority == 1000);
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
    fn a_misspelt_field_denies_both_directions() {
        let rules = json!([{"action": "Deny", "from": [{"namespaces": {}}]}]);
        let (policy, faults) = parse(json!({"tier": "Admin", "priority": 1,
            "subject": {"namespaces": {}}, "ingres": rules}));
        assert_eq!(faults, ["spec.ingres"]);
        for rules in [&policy.ingress, &policy.egress] {
            assert_eq!(
                (rules.len(), rules[0].verdict, &rules[0].rule.peers),
                (1, Verdict::Deny, &None)
            );
        }
    }

    #[test]
    fn domain_names_are_for_rules_that_accept() {
        let to = json!([{"domainNames": ["example.org", "*.Example.net."]}]);
        let (policy, faults) = with_egress(json!({"action": "Accept", "to": to}));
        assert_eq!(faults.len(), 0);
        let peers: Vec<_> = policy.egress[0].rule.peers.iter().flatten().collect();
        let is_name =
            |peer: &Peer, name: &str| matches!(peer, Peer::Name(it) if it.to_string() == name);
        assert!(is_name(peers[0], "example.org") && is_name(peers[1], "*.example.net"));
        for action in ["Deny", "Pass"] {
            let (policy, faults) = with_egress(json!({"action": action, "to": to}));
            assert_eq!((policy.egress[0].verdict, faults.len()), (Verdict::Deny, 1), "deny-all");
        }
        for bad in [json!([]), json!(["org"]), json!(["*"]), json!([7]), json!("example.org")] {
            let rule = json!({"action": "Accept", "to": [{"domainNames": bad}]});
            let (policy, faults) = with_egress(rule);
            assert_eq!((policy.egress.len(), faults.len()), (0, 1), "{bad}");
        }
        let ports = json!([{"destinationNamedPort": "http"}]);
        let (policy, faults) =
            with_egress(json!({"action": "Accept", "to": to, "protocols": ports}));
        assert_eq!((policy.egress.len(), faults.len()), (0, 1));
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
            assert!(!faults.is_empty(), "{rule}");
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
            let left: Vec<_> =
                policy.ingress.iter().map(|it| (it.rule.index, it.verdict)).collect();
            assert_eq!(left, [(1, Verdict::Deny), (2, Verdict::Deny)]);
        }
    }
}
