//! API objects to model: parsing is validating.
//!
//! [`read`] takes one object as it came from the API server or a manifest. An object with faults is
//! read part by part, evaluated as it stands, and fails closed: what could be a denial denies, what
//! could be a permission does not permit. Its earlier versions play no part.
//!
//! - A **NetworkPolicy** selects by the requirements that could be read (so no fewer pods than it
//!   says) and permits by the rules that could be read.
//! - Of a **ClusterNetworkPolicy**, an `Accept` rule that could not be read matches nothing, any
//!   other becomes deny-all. Without a readable tier, priority or subject, `Accept` rules match
//!   nothing and `Pass` rules deny, for the subject as far as it could be read. An
//!   **AdminNetworkPolicy** and a **BaselineAdminNetworkPolicy** likewise; their `Allow` is `Accept`.
//! - A **ClusterEgressFirewall** likewise; without a readable subject its `Allow` rules match
//!   nothing.
//! - A **ClusterHostFirewall** likewise, for the nodes as far as its selector could be read; its
//!   failsafe ports stay open.
//! - A **Pod** is closed, and so are the pods of a **Namespace** with faults: no table of theirs
//!   opens anything.
//! - A **Node** is covered by every denial of `nodes` and by no permission.
//! - Of **NodeAddresses**, the addresses that could be read count.
//! - Of a **Service** or **EndpointSlice**, the ports, addresses and endpoints that could be read
//!   are served.
//!
//! Each fault names its field.

mod cluster;
mod cluster_policy;
mod cluster_rules;
mod egress_firewall;
mod host_firewall;
mod interned;
mod pod;
mod policy;
mod policy_rule;
mod reader;
mod report;
mod selector;
mod service;
mod staging;

pub(crate) use interned::{shared_name, shared_ports, shared_set, shared_sets};
pub(crate) use pod::{
    CONFIG_HASH, CONFIG_MIRROR, ContainerFields, PodFields, PortFields, read_pod,
};

use std::sync::Arc;

use serde_json::Value;

use crate::FieldFault;
use crate::fault::plain;
use crate::model::{Kind, Object, ObjectRef};

/// The result of [`read`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "one object is read at a time")]
pub enum Read {
    /// An object and its faults.
    Object(Object, Vec<FieldFault>),
    /// An object of an irrelevant kind.
    OtherKind(String),
    /// No recognisable object.
    Nothing(FieldFault),
    /// An object with a readable name or kind, but otherwise unusable.
    Refused(FieldFault),
}

/// Reads one object (no lists).
pub fn read(value: Value) -> Read {
    let text = |field: &str| value.get(field).and_then(Value::as_str);
    let Some(kind) = text("kind") else {
        return Read::Nothing(FieldFault::new("kind", "missing, so this is no Kubernetes object"));
    };
    let Some(api_version) = text("apiVersion") else {
        return Read::Nothing(FieldFault::new("apiVersion", "missing or not text"));
    };
    let known = Kind::ALL
        .into_iter()
        .find(|known| known.name() == kind && known.api_version() == api_version);
    let Some(kind) = known else {
        return match refusal(api_version, kind) {
            Some(fault) => Read::Refused(fault),
            None => Read::OtherKind(plain(kind.to_owned())),
        };
    };
    match reader::reference(kind, &value) {
        Ok(reference) => {
            let (object, faults) = read_kind(reference, value);
            Read::Object(object, faults)
        }
        Err(fault) => Read::Refused(fault),
    }
}

/// Kinds that isolate pods but are not enforced, and mistyped kinds: ignoring them silently would
/// leave open what they close.
fn refusal(api_version: &str, kind: &str) -> Option<FieldFault> {
    let group = api_version.split_once('/').map_or("", |(group, _)| group);
    let is_in = |known: &Kind| known.api_version().split_once('/').map_or("", |it| it.0) == group;
    let is_close = |known: &&Kind| singular(known.name()) == singular(kind);
    if let Some(known) = Kind::ALL.iter().filter(|it| is_in(it)).find(is_close)
        && known.name() != kind
    {
        let problem = format!("{kind:?} is not known; {} may be meant", known.name());
        return Some(FieldFault::new("kind", problem));
    }
    let is_policy = Kind::ALL.iter().filter(|it| it.closes()).any(|it| is_close(&it));
    let closes = match group {
        // Any kind of these groups may deny connections.
        "policy.networking.k8s.io" | "podgate.io" => true,
        "networking.k8s.io" => is_policy || kind.to_ascii_lowercase().contains("polic"),
        "" | "extensions" => is_policy,
        _ => false,
    };
    closes.then(|| {
        FieldFault::new("apiVersion", format!("{api_version} {kind} is not enforced; not applied"))
    })
}

/// Normalises a kind: lower case, singular.
fn singular(kind: &str) -> String {
    let lower = kind.to_ascii_lowercase();
    match (lower.strip_suffix("ies"), lower.strip_suffix('s')) {
        (Some(stem), _) => format!("{stem}y"),
        (None, Some(stem)) => stem.to_owned(),
        (None, None) => lower,
    }
}

fn read_kind(reference: ObjectRef, value: Value) -> (Object, Vec<FieldFault>) {
    fn with<T>(
        (it, faults): (T, Vec<FieldFault>),
        of: fn(Arc<T>) -> Object,
    ) -> (Object, Vec<FieldFault>) {
        (of(Arc::new(it)), faults)
    }
    let reference = &reference;
    match reference.kind {
        Kind::Namespace => with(cluster::namespace(reference, &value), Object::Namespace),
        Kind::Pod => with(pod::pod(reference, &value), Object::Pod),
        Kind::Node => with(cluster::node(reference, &value), Object::Node),
        Kind::NodeAddresses => {
            with(cluster::node_addresses(reference, &value), Object::NodeAddresses)
        }
        Kind::NetworkPolicy => {
            with(policy::network_policy(reference, &value), Object::NetworkPolicy)
        }
        Kind::ClusterNetworkPolicy
        | Kind::AdminNetworkPolicy
        | Kind::BaselineAdminNetworkPolicy => with(
            cluster_policy::cluster_network_policy(reference, &value),
            Object::ClusterNetworkPolicy,
        ),
        Kind::ClusterEgressFirewall => with(
            egress_firewall::cluster_egress_firewall(reference, &value),
            Object::ClusterEgressFirewall,
        ),
        Kind::ClusterHostFirewall => with(
            host_firewall::cluster_host_firewall(reference, &value),
            Object::ClusterHostFirewall,
        ),
        Kind::Service => with(service::service(reference, &value), Object::Service),
        Kind::EndpointSlice => {
            with(service::endpoint_slice(reference, &value), Object::EndpointSlice)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// An object without faults.
    pub(super) fn object(value: Value) -> Object {
        match read(value) {
            Read::Object(object, faults) => {
                assert_eq!(faults, []);
                object
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_policy_kind_that_is_not_enforced_is_never_skipped_in_silence() {
        for (api_version, kind) in [
            ("policy.networking.k8s.io/v1alpha2", "AdminNetworkPolicy"),
            ("policy.networking.k8s.io/v1alpha1", "ClusterNetworkPolicy"),
            ("policy.networking.k8s.io/v1alpha1", "NodeNetworkPolicy"),
        ] {
            let value = json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "a"}});
            assert!(matches!(read(value), Read::Refused(_)), "{api_version} {kind}");
        }
        let value = json!({"apiVersion": "apps/v1", "kind": "Deployment"});
        assert_eq!(read(value), Read::OtherKind("Deployment".into()));
    }

    #[test]
    fn a_mistyped_kind_is_never_skipped_in_silence() {
        for (api_version, kind) in [
            ("networking.k8s.io/v1", "NetworkPolicies"),
            ("networking.k8s.io/v1", "networkpolicy"),
            ("networking.k8s.io/v1", "NetworkPolicyy"),
            ("v1", "NetworkPolicies"),
            ("v1", "Pods"),
            ("v1", "namespace"),
            ("podgate.io/v1alpha1", "EgressFirewall"),
            ("policy.networking.k8s.io/v1alpha2", "ClusterNetworkPolicys"),
        ] {
            let value = json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "a"}});
            assert!(matches!(read(value), Read::Refused(_)), "{api_version} {kind}");
        }
        for (api_version, kind) in [
            ("v1", "Secret"),
            ("networking.k8s.io/v1", "Ingress"),
            ("cilium.io/v2", "CiliumNetworkPolicy"),
        ] {
            let value = json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "a"}});
            assert_eq!(read(value), Read::OtherKind(kind.into()));
        }
    }

    #[test]
    fn names_are_refused_as_kubernetes_does_and_forge_no_lines() {
        for (kind, namespace, name) in [
            ("Pod", "x", "a\nfault: none"),
            ("Pod", "x", "../../etc"),
            ("Pod", "x", "A"),
            ("Pod", "x/y", "a"),
            ("Pod", "x.y", "a"),
            ("Service", "x", "a.b"),
            ("Namespace", "", "a.b"),
            ("Node", "", "-a"),
        ] {
            let value = json!({"apiVersion": "v1", "kind": kind,
                "metadata": {"name": name, "namespace": namespace}});
            let Read::Refused(fault) = read(value) else { panic!("{kind} {namespace}/{name}") };
            assert!(!fault.to_string().contains('\n'), "{fault}");
        }
        let value = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a.b-1"}});
        assert!(matches!(read(value), Read::Object(..)));
        let value = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"name": "p"}, "spec": {"podSelector": {}, "x\ny": 1}});
        let Read::Object(_, faults) = read(value) else { panic!() };
        assert_eq!(faults[0].field, "spec.x\\ny");
        assert_eq!(
            read(json!({"apiVersion": "a/v1", "kind": "X\u{1b}[2J"})),
            Read::OtherKind("X\\u{1b}[2J".into())
        );
    }

    #[test]
    fn nonsense_is_a_fault() {
        for value in [json!(null), json!([1]), json!({"kind": 3}), json!({"kind": "Pod"})] {
            assert!(matches!(read(value), Read::Nothing(_)));
        }
        let nameless = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {}});
        assert!(matches!(read(nameless), Read::Refused(_)));
    }
}
