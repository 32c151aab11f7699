//! Parts of an object that the enforcer does not enforce.

use control::model::{ClusterRule, Peer, Stage, Staging};
use control::{Fault, FieldFault, Object};

use crate::config::Enforcer;

/// A fault for each rule with domain names and each annotation that stages policies, where the enforcer
/// knows neither.
pub(super) fn unenforced(enforcer: Enforcer, object: &Object) -> Vec<Fault> {
    if enforcer == Enforcer::AfXdp {
        return Vec::new();
    }
    let mut faults = Vec::new();
    let mut add = |field: String, problem: &str| {
        faults.push(FieldFault { field, problem: problem.into() }.of(object.reference()));
    };
    if let Some(annotation) = stages(object) {
        let problem = "nftables evaluates no staged policy; it is not enforced, and what it would change is not known";
        add(format!("metadata.annotations[{annotation}]"), problem);
    }
    let rules: &[ClusterRule] = match object {
        Object::ClusterNetworkPolicy(policy) => &policy.egress,
        Object::ClusterEgressFirewall(firewall) => &firewall.egress,
        _ => &[],
    };
    for ClusterRule { rule, .. } in rules {
        let is_name = |peer: &Peer| matches!(peer, Peer::Name(_));
        if rule.peers.iter().flatten().any(is_name) {
            let field = format!("spec.egress[{}].domainNames", rule.index);
            add(field, "names are not enforced by nftables; they match nothing");
        }
    }
    faults
}

/// The annotation that stages policies, if the object has one.
fn stages(object: &Object) -> Option<&'static str> {
    let staging = match object {
        Object::Namespace(namespace) => {
            return (namespace.stage == Some(Stage::Staged)).then_some(Stage::ANNOTATION);
        }
        Object::NetworkPolicy(policy) => &policy.staging,
        Object::ClusterNetworkPolicy(policy) => &policy.staging,
        Object::ClusterEgressFirewall(firewall) => &firewall.staging,
        Object::ClusterHostFirewall(firewall) => &firewall.staging,
        _ => return None,
    };
    match staging {
        Staging { replaces: Some(_), .. } => Some(Staging::REPLACES),
        Staging { stage: Some(Stage::Staged), .. } => Some(Stage::ANNOTATION),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use control::objects::{Read, read};
    use serde_json::{Value, json};

    use super::*;

    fn fields(enforcer: Enforcer, kind: &str, version: &str, annotations: Value) -> Vec<String> {
        let spec = match kind {
            "NetworkPolicy" => json!({"podSelector": {}}),
            "ClusterNetworkPolicy" => json!({"tier": "Admin", "priority": 1,
                "subject": {"namespaces": {}}}),
            _ => json!({}),
        };
        let metadata = json!({"name": "x", "annotations": annotations});
        let object =
            json!({"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec});
        let Read::Object(object, faults) = read(object) else { panic!("no object") };
        assert_eq!(faults, []);
        unenforced(enforcer, &object).into_iter().map(|it| it.fault.field).collect()
    }

    #[test]
    fn policies_that_nftables_does_not_evaluate_are_named() {
        let staged = || json!({"podgate.io/stage": "staged"});
        let policy = ("NetworkPolicy", "networking.k8s.io/v1");
        let cluster = ("ClusterNetworkPolicy", "policy.networking.k8s.io/v1alpha2");
        for (kind, version) in [policy, cluster, ("Namespace", "v1")] {
            let of = |annotations| fields(Enforcer::Nftables, kind, version, annotations);
            assert_eq!(of(staged()), ["metadata.annotations[podgate.io/stage]"], "{kind}");
            assert_eq!(of(json!({"podgate.io/stage": "enforced"})), [""; 0]);
            assert_eq!(of(json!({})), [""; 0]);
            assert_eq!(fields(Enforcer::AfXdp, kind, version, staged()), [""; 0]);
        }
        let next = json!({"podgate.io/stages": "db"});
        let found = fields(Enforcer::Nftables, policy.0, policy.1, next);
        assert_eq!(found, ["metadata.annotations[podgate.io/stages]"]);
    }
}
