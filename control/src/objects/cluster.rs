//! Namespaces and nodes.

use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use k8s_openapi::api::core::v1 as api;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::Value;

use super::pod::created_s;
use super::reader::{self, elements, readable, readable_labels};
use super::{ObjectRef, staging};
use crate::FieldFault;
use crate::model::{DeniedReply, Namespace, Node, NodeAddresses, WireGuard};

type Faults = Vec<FieldFault>;

/// The namespace as far as it could be read, and what could not be.
pub(super) fn namespace(reference: &ObjectRef, value: &Value) -> (Namespace, Faults) {
    let (labels, mut faults) = match reader::typed::<api::Namespace>(value, "") {
        Ok(object) => (object.metadata.labels.into_iter().flatten().collect(), Vec::new()),
        Err(fault) => (readable_labels(value), vec![fault]),
    };
    let namespace = Namespace::new(Arc::clone(&reference.name), &labels);
    let namespace = Namespace { complete: faults.is_empty(), ..namespace };
    let denied_reply = denied_reply(value).unwrap_or_else(|fault| {
        faults.push(fault);
        // It opens nothing: its pods stay as they are.
        Some(DeniedReply::Drop)
    });
    let stage = staging::stage(value, &mut faults);
    (Namespace { denied_reply, stage, ..namespace }, faults)
}

fn denied_reply(value: &Value) -> Result<Option<DeniedReply>, FieldFault> {
    let field = || format!("metadata.annotations[{}]", DeniedReply::ANNOTATION);
    match &value["metadata"]["annotations"][DeniedReply::ANNOTATION] {
        Value::Null => Ok(None),
        Value::String(text) => {
            text.parse().map(Some).map_err(|problem: String| FieldFault::new(field(), problem))
        }
        // Annotations are texts: the object has a fault anyway.
        _ => Ok(Some(DeniedReply::Drop)),
    }
}

/// The node as far as it could be read, and what could not be.
pub(super) fn node(reference: &ObjectRef, value: &Value) -> (Node, Faults) {
    match whole_node(reference, value) {
        Ok(node) => (node, Vec::new()),
        Err(faults) => (readable_node(reference, value), faults),
    }
}

fn readable_node(reference: &ObjectRef, value: &Value) -> Node {
    let addresses = elements(&value["status"]["addresses"]).map(|entry| &entry["address"]);
    let cidrs = elements(&value["spec"]["podCIDRs"]);
    Node {
        name: Arc::clone(&reference.name),
        labels: Arc::new(readable_labels(value)),
        addresses: readable(addresses, |text| reader::address(text, String::new)),
        pod_cidrs: readable(cidrs, |text| reader::network(text, String::new)),
        ready: elements(&value["status"]["conditions"])
            .any(|it| it["type"] == "Ready" && it["status"] == "True"),
        created: {
            let created = reader::typed(&value["metadata"]["creationTimestamp"], "").ok();
            created_s(created.map(|Time(time)| time.as_second()))
        },
        complete: false,
    }
}

fn whole_node(reference: &ObjectRef, value: &Value) -> Result<Node, Faults> {
    let object: api::Node = reader::typed(value, "").map_err(|fault| vec![fault])?;
    let (spec, status) = (object.spec.unwrap_or_default(), object.status.unwrap_or_default());
    let (conditions, created) =
        (status.conditions.unwrap_or_default(), object.metadata.creation_timestamp);
    let mut faults = Vec::new();
    let mut addresses = Vec::new();
    for (index, entry) in status.addresses.into_iter().flatten().enumerate() {
        // The other types are names, not addresses.
        if !matches!(entry.type_.as_str(), "InternalIP" | "ExternalIP") {
            continue;
        }
        let field = || reader::at("status.addresses", index) + ".address";
        match reader::address(&entry.address, field) {
            Ok(address) if addresses.contains(&address) => {}
            Ok(address) => addresses.push(address),
            Err(fault) => faults.push(fault),
        }
    }
    let listed = spec.pod_cidrs.unwrap_or_default();
    let texts = match listed.is_empty() {
        true => spec.pod_cidr.into_iter().map(|text| ("spec.podCIDR".to_owned(), text)).collect(),
        false => Vec::from_iter(
            listed
                .into_iter()
                .enumerate()
                .map(|(index, text)| (reader::at("spec.podCIDRs", index), text)),
        ),
    };
    let mut pod_cidrs = Vec::new();
    for (field, text) in texts.into_iter().filter(|(_, text)| !text.is_empty()) {
        match reader::network(&text, || field) {
            Ok(net) => pod_cidrs.push(net),
            Err(fault) => faults.push(fault),
        }
    }
    match faults.is_empty() {
        true => Ok(Node {
            name: Arc::clone(&reference.name),
            labels: Arc::new(object.metadata.labels.into_iter().flatten().collect()),
            addresses,
            pod_cidrs,
            ready: conditions.iter().any(|it| it.type_ == "Ready" && it.status == "True"),
            created: created_s(created.map(|time| time.0.as_second())),
            complete: true,
        }),
        false => Err(faults),
    }
}

/// Reads what a node publishes, and the faults of what cannot be read.
pub(super) fn node_addresses(reference: &ObjectRef, value: &Value) -> (NodeAddresses, Faults) {
    let (mut addresses, mut faults) = (Vec::new(), Vec::new());
    for (index, element) in elements(&value["spec"]["addresses"]).enumerate() {
        let field = || reader::at("spec.addresses", index);
        if index == NodeAddresses::MOST {
            let problem =
                format!("more than {} addresses; the others are ignored", NodeAddresses::MOST);
            faults.push(FieldFault::new("spec.addresses", problem));
            break;
        }
        match element.as_str().map(|text| reader::address(text, field)) {
            Some(Ok(address)) => addresses.push(address),
            Some(Err(fault)) => faults.push(fault),
            None => faults.push(FieldFault::new(field(), "is no text")),
        }
    }
    let wireguard = match &value["spec"]["wireguard"] {
        Value::Null => None,
        // Without it, nothing is sent to the node.
        published => wireguard(published).map_err(|fault| faults.push(fault)).ok(),
    };
    (NodeAddresses { node: Arc::clone(&reference.name), addresses, wireguard }, faults)
}

fn wireguard(value: &Value) -> Result<WireGuard, FieldFault> {
    let fault = |field, problem| FieldFault::new(format!("spec.wireguard.{field}"), problem);
    let key = |field| {
        let bytes = value[field].as_str().and_then(|it| BASE64_STANDARD.decode(it).ok());
        bytes
            .and_then(|it| it.try_into().ok())
            .ok_or_else(|| fault(field, "is no key: 32 bytes in base64"))
    };
    let public_key = key("publicKey")?;
    let next = match value["nextPublicKey"] {
        Value::Null => None,
        _ => Some(key("nextPublicKey")?),
    };
    let port = value["port"].as_u64().and_then(|it| u16::try_from(it).ok());
    let port = port.filter(|it| *it > 0).ok_or_else(|| fault("port", "is no port"))?;
    let host_network = match &value["hostNetwork"] {
        Value::Null => false,
        Value::Bool(it) => *it,
        _ => return Err(fault("hostNetwork", "is neither true nor false")),
    };
    Ok(WireGuard { public_key, port, next, host_network })
}

#[cfg(test)]
mod tests {
    use super::DeniedReply;
    use crate::Object;
    use crate::objects::tests::object;
    use crate::objects::{Read, read};
    use serde_json::json;

    #[test]
    fn a_node_has_addresses_not_names_and_one_or_many_ranges() {
        let Object::Node(node) = object(json!({"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": "n"}, "spec": {"podCIDR": "10.1.0.0/24"},
            "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"},
                                     {"type": "Hostname", "address": "n"}]}}))
        else {
            panic!()
        };
        assert_eq!(node.addresses.len(), 1);
        assert_eq!(node.pod_cidrs.len(), 1);
    }

    #[test]
    fn a_nodes_key_is_read_or_none() {
        let of = |wireguard: serde_json::Value| {
            let value = json!({"apiVersion": "podgate.io/v1alpha1", "kind": "NodeAddresses",
                "metadata": {"name": "n"}, "spec": {"addresses": ["192.0.2.1"], "wireguard": wireguard}});
            let Read::Object(Object::NodeAddresses(object), faults) = read(value) else { panic!() };
            assert_eq!(object.addresses.len(), 1);
            (
                object.wireguard.clone(),
                faults.into_iter().map(|it| it.to_string()).collect::<String>(),
            )
        };
        let key = "CQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQk=";
        let (read, faults) = of(json!({"publicKey": key, "port": 51871}));
        let read = read.map(|it| (it.public_key, it.port, it.next));
        assert_eq!(read, Some(([9; 32], 51871, None)), "{faults}");
        let more = json!({"publicKey": key, "port": 7, "nextPublicKey": key, "hostNetwork": true});
        let (read, faults) = of(more);
        assert_eq!(
            read.map(|it| (it.next, it.host_network)),
            Some((Some([9; 32]), true)),
            "{faults}"
        );
        assert_eq!(of(serde_json::Value::Null), (None, String::new()));
        let bad = [
            json!({"publicKey": "CQkJ", "port": 51871}),
            json!({"publicKey": key, "port": 0}),
            json!({"publicKey": key, "port": 65_536}),
            json!({"publicKey": key}),
            json!({"publicKey": key, "port": 7, "nextPublicKey": "CQkJ"}),
            json!({"publicKey": key, "port": 7, "hostNetwork": "yes"}),
            json!("a key"),
        ];
        for wireguard in bad {
            let (read, faults) = of(wireguard);
            assert!(read.is_none() && faults.contains("spec.wireguard."), "{faults}");
        }
    }

    #[test]
    fn a_namespaces_reply_to_denials_is_read_or_none() {
        let of = |reply: &str| {
            let value = json!({"apiVersion": "v1", "kind": "Namespace", "metadata":
                {"name": "a", "annotations": {"podgate.io/denied-reply": reply}}});
            let Read::Object(Object::Namespace(namespace), faults) = read(value) else { panic!() };
            assert!(namespace.complete, "its pods are not closed");
            (
                namespace.denied_reply,
                faults.into_iter().map(|it| it.to_string()).collect::<String>(),
            )
        };
        assert_eq!(of("reject"), (Some(DeniedReply::Reject), String::new()));
        assert_eq!(of("reject-all"), (Some(DeniedReply::RejectAll), String::new()));
        let fault = "metadata.annotations[podgate.io/denied-reply]: 'Reject' is none of drop, reject \
                     and reject-all";
        assert_eq!(of("Reject"), (Some(DeniedReply::Drop), fault.to_owned()));
    }

    #[test]
    fn a_namespace_always_carries_its_name_as_label() {
        let Object::Namespace(namespace) = object(json!({"apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": "a", "labels": {"kubernetes.io/metadata.name": "b"}}}))
        else {
            panic!()
        };
        assert_eq!(namespace.labels.value("kubernetes.io/metadata.name"), Some("a"));
    }
}
