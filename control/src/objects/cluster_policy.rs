//! ClusterNetworkPolicy (policy.networking.k8s.io/v1alpha2) and its forerunners AdminNetworkPolicy and
//! BaselineAdminNetworkPolicy (v1alpha1), read part by part.
//!
//! Meaning: <https://network-policy-api.sigs.k8s.io/>. The forerunners have the tier in the kind, and
//! spell `Accept` and the ports of rules differently; they are read as the ClusterNetworkPolicy that
//! says the same. A rule that cannot be read fails
//! closed, as the API demands of peers of unknown kinds: an `Accept` matches nothing, a
//! `Deny` or `Pass` (or what may have been one) becomes deny-all.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::cluster_rules::{PortSchema, RuleSchema, deny_all, rules, spec, subject};
use super::{Kind, ObjectRef, report, staging};
use crate::FieldFault;
use crate::model::{ClusterNetworkPolicy, Direction, RuleAction, Tier};

type Faults = Vec<FieldFault>;

/// The rule schema of ClusterNetworkPolicy.
const SCHEMA: RuleSchema = RuleSchema {
    kind: "ClusterNetworkPolicy",
    actions: &[
        ("Accept", RuleAction::Accept, true),
        ("Deny", RuleAction::Deny, false),
        ("Pass", RuleAction::Pass, false),
    ],
    from: &["namespaces", "pods"],
    to: &["namespaces", "pods", "nodes", "networks", "domainNames"],
    most: 25,
    most_networks: 25,
    ports: PortSchema::Protocols { named: true },
};

/// The rule schema of AdminNetworkPolicy.
const ADMIN_SCHEMA: RuleSchema = RuleSchema {
    kind: "AdminNetworkPolicy",
    actions: &[
        ("Allow", RuleAction::Accept, true),
        ("Deny", RuleAction::Deny, false),
        ("Pass", RuleAction::Pass, false),
    ],
    most: 100,
    ports: PortSchema::Ports,
    ..SCHEMA
};

/// The rule schema of BaselineAdminNetworkPolicy.
const BASELINE_SCHEMA: RuleSchema = RuleSchema {
    kind: "BaselineAdminNetworkPolicy",
    actions: &[("Allow", RuleAction::Accept, true), ("Deny", RuleAction::Deny, false)],
    to: &["namespaces", "pods", "nodes", "networks"],
    ..ADMIN_SCHEMA
};

/// The only name of a BaselineAdminNetworkPolicy.
const BASELINE: &str = "default";

/// The policy as far as it could be read, and what could not be.
pub(super) fn cluster_network_policy(
    reference: &ObjectRef,
    value: &Value,
) -> (ClusterNetworkPolicy, Faults) {
    let mut faults = Vec::new();
    let nothing = Map::new();
    let kind = reference.kind;
    let (schema, known): (_, &[&str]) = match kind {
        Kind::AdminNetworkPolicy => (&ADMIN_SCHEMA, &["priority", "subject", "ingress", "egress"]),
        Kind::BaselineAdminNetworkPolicy => (&BASELINE_SCHEMA, &["subject", "ingress", "egress"]),
        _ => (&SCHEMA, &["tier", "priority", "subject", "ingress", "egress"]),
    };
    let (spec, may_deny) = spec(value, known, &mut faults);
    let spec = spec.unwrap_or(&nothing);
    let before = faults.len();
    let tier = match (kind, spec.get("tier").and_then(Value::as_str)) {
        (Kind::AdminNetworkPolicy, _) | (_, Some("Admin")) => Tier::Admin,
        (Kind::BaselineAdminNetworkPolicy, _) | (_, Some("Baseline")) => Tier::Baseline,
        _ => {
            faults.push(FieldFault::new("spec.tier", "is neither \"Admin\" nor \"Baseline\""));
            Tier::Admin
        }
    };
    let priority = match (kind, spec.get("priority").and_then(Value::as_u64)) {
        (Kind::BaselineAdminNetworkPolicy, _) => ClusterNetworkPolicy::LAST,
        (_, Some(priority @ 0..=1000)) => priority as u16,
        _ => {
            faults.push(FieldFault::new("spec.priority", "is no number from 0 to 1000"));
            0
        }
    };
    if kind == Kind::BaselineAdminNetworkPolicy && *reference.name != *BASELINE {
        faults.push(FieldFault::new("metadata.name", format!("is not {BASELINE:?}")));
    }
    let (namespaces, pods) = subject(spec.get("subject"), &mut faults);
    let head_is_fine = faults.len() == before;
    let mut rules_of = |direction| {
        let mut rules = rules(spec, direction, &reference.name, schema, &mut faults);
        if !head_is_fine {
            // Its subject or order is unknown: a permission could apply to the wrong pods, and a
            // passed connection could be permitted by a policy of lower priority.
            rules.retain(|rule| rule.verdict != RuleAction::Accept);
            rules.iter_mut().for_each(|rule| rule.verdict = RuleAction::Deny);
        }
        if may_deny {
            rules.push(deny_all(rules.len(), direction, &reference.name, schema));
        }
        rules
    };
    let (ingress, egress) = (rules_of(Direction::Ingress), rules_of(Direction::Egress));
    let policy = ClusterNetworkPolicy {
        kind,
        name: Arc::clone(&reference.name),
        tier,
        priority,
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
        parse_kind(Kind::ClusterNetworkPolicy, "c", spec)
    }

    fn parse_kind(kind: Kind, name: &str, spec: Value) -> (ClusterNetworkPolicy, Vec<String>) {
        match read(json!({"apiVersion": kind.api_version(), "kind": kind.name(),
            "metadata": {"name": name}, "spec": spec}))
        {
            Read::Object(Object::ClusterNetworkPolicy(policy), faults) => (
                Arc::unwrap_or_clone(policy),
                faults.into_iter().map(|fault| fault.field).collect(),
            ),
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

    const ADMIN: Kind = Kind::AdminNetworkPolicy;
    const BASE: Kind = Kind::BaselineAdminNetworkPolicy;

    /// A policy without origins, which name its kind.
    fn meaning(mut policy: ClusterNetworkPolicy) -> ClusterNetworkPolicy {
        for rule in policy.ingress.iter_mut().chain(&mut policy.egress) {
            rule.rule.origin = "".into();
        }
        (policy.kind, policy.name) = (Kind::ClusterNetworkPolicy, "".into());
        policy
    }

    #[test]
    fn the_kinds_of_v1alpha1_mean_what_a_cluster_network_policy_says() {
        let subject = json!({"pods": {"namespaceSelector": {"matchLabels": {"a": "b"}},
            "podSelector": {"matchExpressions": [{"key": "k", "operator": "Exists"}]}}});
        let peers =
            json!([{"namespaces": {}}, {"pods": {"namespaceSelector": {}, "podSelector": {}}}]);
        let around = json!([{"nodes": {}}, {"networks": ["10.0.0.0/8", "fd00::/8"]},
            {"namespaces": {"matchLabels": {"x": "y"}}}]);
        let ports = json!([{"portNumber": {"protocol": "UDP", "port": 53}}, {"portNumber": {"port": 80}},
            {"portRange": {"start": 8080, "end": 8090}},
            {"portRange": {"protocol": "SCTP", "start": 1, "end": 65535}}]);
        let protocols = json!([{"udp": {"destinationPort": {"number": 53}}},
            {"tcp": {"destinationPort": {"number": 80}}},
            {"tcp": {"destinationPort": {"range": {"start": 8080, "end": 8090}}}},
            {"sctp": {"destinationPort": {"range": {"start": 1, "end": 65535}}}}]);
        let old = |more: Value| {
            let mut spec = json!({"subject": subject, "ingress": [
                    {"name": "in", "action": "Allow", "from": peers, "ports": ports},
                    {"action": "Deny", "from": peers, "ports": [{"namedPort": "http"}]}],
                "egress": [{"action": "Deny", "to": around, "ports": ports}]});
            spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            spec
        };
        let new = |tier: &str, priority: u16| {
            json!({"tier": tier, "priority": priority, "subject": subject, "ingress": [
                    {"action": "Accept", "from": peers, "protocols": protocols},
                    {"action": "Deny", "from": peers, "protocols": [{"destinationNamedPort": "http"}]}],
                "egress": [{"action": "Deny", "to": around, "protocols": protocols}]})
        };
        let (admin, faults) = parse_kind(ADMIN, "a", old(json!({"priority": 7})));
        assert_eq!((admin.kind, faults), (ADMIN, vec![]));
        assert_eq!(admin.ingress[1].rule.origin.to_string(), "AdminNetworkPolicy a ingress[1]");
        assert_eq!(meaning(admin), meaning(parse(new("Admin", 7)).0));
        let (base, faults) = parse_kind(BASE, "default", old(json!({})));
        assert_eq!((base.kind, faults), (BASE, vec![]));
        assert_eq!(
            base.egress[0].rule.origin.to_string(),
            "BaselineAdminNetworkPolicy default egress[0]"
        );
        let mut last = parse(new("Baseline", 1000)).0;
        last.priority = 1001;
        assert_eq!(meaning(base), meaning(last));
        let names = json!([{"domainNames": ["example.org"]}]);
        let rules = json!([{"action": "Pass", "to": peers}, {"action": "Allow", "to": names}]);
        let (admin, faults) = parse_kind(
            ADMIN,
            "a",
            json!({"priority": 0, "subject": {"namespaces": {}}, "egress": rules}),
        );
        let rules = json!([{"action": "Pass", "to": peers}, {"action": "Accept", "to": names}]);
        let (wanted, _) = parse(json!({"tier": "Admin", "priority": 0,
            "subject": {"namespaces": {}}, "egress": rules}));
        assert_eq!((meaning(admin), faults), (meaning(wanted), vec![]));
    }

    #[test]
    fn rules_that_v1alpha1_forbids_are_faults_and_close() {
        let to = json!([{"namespaces": {}}]);
        let number = |value: Value| json!({"action": "Deny", "to": to, "ports": [value]});
        for (kind, rule, field) in [
            (ADMIN, json!({"action": "Accept", "to": to}), "action"),
            (BASE, json!({"action": "Pass", "to": to}), "action"),
            (ADMIN, json!({"action": "Deny", "to": to, "protocols": [{"tcp": {}}]}), "protocols"),
            (ADMIN, json!({"action": "Deny"}), "to"),
            (ADMIN, json!({"action": "Deny", "to": to, "from": to}), "from"),
            (ADMIN, json!({"action": "Deny", "to": to, "ports": []}), "ports"),
            (ADMIN, number(json!({})), "ports[0]"),
            (ADMIN, number(json!({"port": 80})), "ports[0].port"),
            (ADMIN, number(json!({"portNumber": 80})), "ports[0].portNumber"),
            (ADMIN, number(json!({"portNumber": {}})), "ports[0].portNumber.port"),
            (ADMIN, number(json!({"portNumber": {"port": 0}})), "ports[0].portNumber.port"),
            (ADMIN, number(json!({"portNumber": {"port": "80"}})), "ports[0].portNumber.port"),
            (
                ADMIN,
                number(json!({"portNumber": {"port": 80, "protocol": "ICMP"}})),
                "ports[0].portNumber.protocol",
            ),
            (
                ADMIN,
                number(json!({"portNumber": {"port": 80, "protocol": 6}})),
                "ports[0].portNumber.protocol",
            ),
            (
                ADMIN,
                number(json!({"portNumber": {"port": 80, "endPort": 90}})),
                "ports[0].portNumber.endPort",
            ),
            (ADMIN, number(json!({"portRange": {"start": 9, "end": 1}})), "ports[0].portRange.end"),
            (ADMIN, number(json!({"portRange": {"start": 9}})), "ports[0].portRange.end"),
            (ADMIN, number(json!({"namedPort": "80"})), "ports[0].namedPort"),
            (
                ADMIN,
                json!({"action": "Deny", "to": [{"nodes": {}}], "ports": [{"namedPort": "http"}]}),
                "ports[0].namedPort",
            ),
            (
                ADMIN,
                json!({"action": "Deny", "to": [{"networks": vec!["10.0.0.0/8"; 26]}]}),
                "to[0].networks",
            ),
            // The peers of its first versions.
            (
                ADMIN,
                json!({"action": "Deny", "to": [{"namespaces": {"namespaceSelector": {}}}]}),
                "to[0].namespaces.namespaceSelector",
            ),
            (
                ADMIN,
                json!({"action": "Deny", "to": [{"domainNames": ["example.org"]}]}),
                "to[0].domainNames",
            ),
            (
                BASE,
                json!({"action": "Deny", "to": [{"domainNames": ["example.org"]}]}),
                "to[0].domainNames",
            ),
        ] {
            let mut spec = json!({"subject": {"namespaces": {}}, "egress": [rule]});
            if kind == ADMIN {
                spec["priority"] = json!(1);
            }
            let (policy, faults) = parse_kind(kind, "default", spec.clone());
            assert_eq!(faults, [format!("spec.egress[0].{field}")], "{rule}");
            let closed = &policy.egress[0];
            assert_eq!((closed.verdict, &closed.rule.peers), (RuleAction::Deny, &None), "{rule}");
            // One that permits matches nothing; in an AdminNetworkPolicy it may have names.
            if rule["action"] == "Deny" && (kind, field) != (ADMIN, "to[0].domainNames") {
                spec["egress"][0]["action"] = json!("Allow");
                let (policy, _) = parse_kind(kind, "default", spec);
                assert_eq!(policy.egress, [], "{rule}");
            }
        }
    }

    #[test]
    fn without_a_readable_head_the_kinds_of_v1alpha1_permit_nothing() {
        let everywhere = json!({"namespaces": {}});
        for (kind, name, head, field) in [
            (ADMIN, "a", json!({"subject": everywhere}), "spec.priority"),
            (ADMIN, "a", json!({"priority": 1001, "subject": everywhere}), "spec.priority"),
            (ADMIN, "a", json!({"priority": 1}), "spec.subject"),
            (BASE, "default", json!({}), "spec.subject"),
            (BASE, "other", json!({"subject": everywhere}), "metadata.name"),
        ] {
            let mut spec = head.clone();
            spec["ingress"] = json!([{"action": "Allow", "from": [{"namespaces": {}}]},
                {"action": "Deny", "from": [{"namespaces": {}}]}]);
            let (policy, faults) = parse_kind(kind, name, spec);
            assert_eq!(faults, [field], "{head}");
            let left: Vec<_> =
                policy.ingress.iter().map(|it| (it.rule.index, it.verdict)).collect();
            assert_eq!(left, [(1, RuleAction::Deny)], "{head}");
        }
        // Fields of the other kinds may be misspelt rules here.
        for (kind, more) in
            [(ADMIN, "tier"), (BASE, "priority"), (Kind::ClusterNetworkPolicy, "ports")]
        {
            let mut spec = json!({"subject": everywhere, more: 1});
            match kind {
                BASE => {}
                ADMIN => spec["priority"] = json!(1),
                _ => (spec["priority"], spec["tier"]) = (json!(1), json!("Admin")),
            }
            let (policy, faults) = parse_kind(kind, "default", spec);
            assert_eq!(faults, [format!("spec.{more}")]);
            assert!(
                policy.ingress[0].rule.peers.is_none() && policy.egress[0].rule.peers.is_none()
            );
        }
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
            assert_eq!(policy.egress[0].verdict, RuleAction::Deny);
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
                (1, RuleAction::Deny, &None)
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
            assert_eq!((policy.egress[0].verdict, faults.len()), (RuleAction::Deny, 1), "deny-all");
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
            assert_eq!(left, [(1, RuleAction::Deny), (2, RuleAction::Deny)]);
        }
    }
}
