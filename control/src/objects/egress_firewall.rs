//! ClusterEgressFirewall (podgate.io/v1alpha1), read part by part.
//!
//! Firewalls are independent: a connection opens only if every firewall that selects the pod
//! permits it. `Allow` means that this firewall does not object; every later policy still applies,
//! so a firewall never opens what others close.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::cluster_rules::{PortSchema, RuleSchema, deny_all, rules, spec, subject};
use super::selector::selector;
use super::{ObjectRef, report, staging};
use crate::FieldFault;
use crate::model::{ClusterEgressFirewall, Direction, RuleAction, Selector};

/// The rule schema of ClusterEgressFirewall.
const SCHEMA: RuleSchema = RuleSchema {
    kind: "ClusterEgressFirewall",
    // Skips the rest of this firewall; the next policy decides.
    actions: &[("Allow", RuleAction::Pass, true), ("Deny", RuleAction::Deny, false)],
    from: &[],
    to: &["namespaces", "pods", "nodes", "networks", "apiServer", "domainNames"],
    most: 100,
    most_networks: 100,
    ports: PortSchema::Protocols { named: true },
};

/// The firewall as far as it could be read, and what could not be.
pub(super) fn cluster_egress_firewall(
    reference: &ObjectRef,
    value: &Value,
) -> (ClusterEgressFirewall, Vec<FieldFault>) {
    let mut faults = Vec::new();
    let nothing = Map::new();
    let (spec, may_deny) = spec(value, &["subject", "egress"], &mut faults);
    let spec = spec.unwrap_or(&nothing);
    let is_empty = match spec.get("egress") {
        None | Some(Value::Null) => true,
        Some(value) => value.as_array().is_some_and(Vec::is_empty),
    };
    if is_empty {
        faults.push(FieldFault::new("spec.egress", "is required"));
    }
    let before = faults.len();
    let Subject { namespaces, pods, nodes } = match spec.get("subject") {
        None | Some(Value::Null) => Subject::default(),
        Some(value) => Subject::read(value, &mut faults),
    };
    let subject_is_fine = faults.len() == before;
    let mut egress = rules(spec, Direction::Egress, &reference.name, &SCHEMA, &mut faults);
    // Its subject is unknown: an exception could apply to the wrong pods.
    egress.retain(|rule| subject_is_fine || rule.verdict == RuleAction::Deny);
    if may_deny {
        egress.push(deny_all(egress.len(), Direction::Egress, &reference.name, &SCHEMA));
    }
    let (name, report) = (Arc::clone(&reference.name), report::read(value));
    let staging = staging::read(value, &mut faults);
    (ClusterEgressFirewall { name, namespaces, pods, nodes, egress, staging, report }, faults)
}

/// The pods that it is about; by default all of them.
#[derive(Default)]
struct Subject {
    namespaces: Selector,
    pods: Selector,
    nodes: Selector,
}

impl Subject {
    /// `namespaces` or `pods`, `nodes`, or both.
    fn read(value: &Value, faults: &mut Vec<FieldFault>) -> Self {
        let mut rest = value.clone();
        let nodes = rest.as_object_mut().and_then(|fields| fields.remove("nodes"));
        let Some(nodes) = nodes.filter(|nodes| !nodes.is_null()) else {
            let (namespaces, pods) = subject(Some(&rest), faults);
            return Self { namespaces, pods, nodes: Selector::default() };
        };
        let nodes = selector(&nodes, "spec.subject.nodes", faults);
        let has_others = rest.as_object().is_some_and(|it| it.values().any(|it| !it.is_null()));
        let (namespaces, pods) = match has_others {
            true => subject(Some(&rest), faults),
            false => Default::default(),
        };
        Self { namespaces, pods, nodes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Object;
    use crate::model::Peer;
    use crate::objects::{Read, read};
    use serde_json::json;

    fn parse(spec: Value) -> (ClusterEgressFirewall, Vec<String>) {
        match read(json!({"apiVersion": "podgate.io/v1alpha1", "kind": "ClusterEgressFirewall",
            "metadata": {"name": "f"}, "spec": spec}))
        {
            Read::Object(Object::ClusterEgressFirewall(firewall), faults) => (
                Arc::unwrap_or_clone(firewall),
                faults.into_iter().map(|fault| fault.field).collect(),
            ),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_form_is_read() {
        let (firewall, faults) = parse(json!({
            "subject": {"pods": {"namespaceSelector": {}, "podSelector": {"matchLabels": {"a": "b"}}}},
            "egress": [
                {"name": "dns", "action": "Allow", "to": [{"nodes": {}}],
                 "protocols": [{"udp": {"destinationPort": {"number": 53}}}]},
                {"action": "Deny", "to": [{"nodes": {}}, {"apiServer": {}},
                    {"networks": ["169.254.169.254/32", "fd00::/8"]}, {"namespaces": {}}]}]}));
        assert_eq!(faults, Vec::<String>::new());
        assert_eq!(firewall.egress[0].verdict, RuleAction::Pass);
        let peers = firewall.egress[1].rule.peers.as_ref().unwrap();
        assert_eq!(peers.len(), 5);
        assert!(peers.contains(&Peer::ApiServer));
        let origin = firewall.egress[1].rule.origin.to_string();
        assert_eq!(origin, "ClusterEgressFirewall f egress[1]");
    }

    #[test]
    fn without_a_subject_it_is_about_every_pod() {
        let (firewall, faults) =
            parse(json!({"egress": [{"action": "Deny", "to": [{"apiServer": {}}]}]}));
        assert!(faults.is_empty());
        assert!(firewall.namespaces.is_everything() && firewall.pods.is_everything());
    }

    #[test]
    fn nodes_stand_alone_or_beside_others_in_a_subject() {
        let deny = json!([{"action": "Deny", "to": [{"apiServer": {}}]}]);
        let of = |subject: Value| parse(json!({"subject": subject, "egress": deny}));
        let nodes = json!({"matchLabels": {"pool": "edge"}});
        let (firewall, faults) = of(json!({"nodes": nodes}));
        assert_eq!(faults, Vec::<String>::new());
        assert!(firewall.namespaces.is_everything() && firewall.pods.is_everything());
        assert!(!firewall.nodes.is_everything());
        let (firewall, faults) =
            of(json!({"nodes": nodes, "namespaces": {"matchLabels": {"a": "b"}}}));
        assert_eq!(faults, Vec::<String>::new());
        assert!(!firewall.namespaces.is_everything() && !firewall.nodes.is_everything());
        assert_eq!(of(json!({"nodes": {"labels": {}}})).1, ["spec.subject.nodes.labels"]);
        assert_eq!(of(json!({})).1, ["spec.subject"]);
        let both = of(json!({"nodes": nodes, "namespaces": {}, "pods": {}}));
        assert_eq!(both.1, ["spec.subject"]);
    }

    #[test]
    fn what_cannot_be_read_never_opens() {
        let deny = json!({"action": "Deny", "to": [{"networks": ["0.0.0.0/0"]}]});
        for (allow, field) in [
            (
                json!({"action": "Allow", "to": [{"domainNames": ["example"]}]}),
                "spec.egress[0].to[0].domainNames[0]",
            ),
            (
                json!({"action": "Allow", "to": [{"apiServer": {"x": 1}}]}),
                "spec.egress[0].to[0].apiServer",
            ),
            (json!({"action": "Allow"}), "spec.egress[0].to"),
            (
                json!({"action": "Allow", "to": [{"networks": ["nowhere"]}]}),
                "spec.egress[0].to[0].networks[0]",
            ),
        ] {
            let (firewall, faults) = parse(json!({"egress": [allow, deny]}));
            assert_eq!(faults, [field]);
            assert_eq!(firewall.egress.len(), 1, "the exception is gone");
        }
        let (firewall, faults) =
            parse(json!({"egress": [{"action": "Deny", "to": [{"domainNames": ["a.example"]}]}]}));
        assert_eq!(faults, ["spec.egress[0].to[0].domainNames"]);
        assert_eq!(firewall.egress[0].rule.peers, None, "deny-all");
        let (firewall, faults) = parse(json!({"egress": [{"action": "Accept", "to": []}]}));
        assert_eq!(faults.len(), 2);
        assert_eq!(firewall.egress[0].rule.peers, None, "deny-all");
        assert_eq!(parse(json!({})).1, ["spec.egress"]);
        assert_eq!(parse(json!({"egress": [deny], "ingress": []})).1, ["spec.ingress"]);
        let (firewall, faults) = parse(json!({"subject": {"pod": {}}, "egress":
            [{"action": "Allow", "to": [{"nodes": {}}]}, deny]}));
        assert_eq!(faults, ["spec.subject.pod"]);
        assert_eq!(firewall.egress.len(), 1, "to whom the exception applies is not known");
    }
}
