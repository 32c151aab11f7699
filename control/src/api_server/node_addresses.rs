//! Publishes a node's addresses as its NodeAddresses, by server-side apply.

use std::net::IpAddr;
use std::time::Duration;

use api_client::{Failure, RequestError, call, send};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use kube::Client;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::report::{MANAGER, apply};
use crate::model::WireGuard;

/// `apiVersion` of the kinds that nodes publish.
pub(super) const VERSION: &str = "podgate.io/v1alpha1";
/// Requests without an answer fail after this time.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Writes what a node publishes: addresses, and the key that encrypts what is sent to it. The object belongs to the Node and goes with it.
///
/// # Errors
/// When the API server refuses, does not answer, or has no such Node.
pub async fn publish_addresses(
    client: &Client,
    node: &str,
    addresses: &[IpAddr],
    wireguard: Option<&WireGuard>,
) -> Result<(), RequestError> {
    let mut spec = json!({"addresses": addresses});
    if let Some(WireGuard { public_key, port, next, host_network }) = wireguard {
        spec["wireguard"] = json!({"publicKey": BASE64_STANDARD.encode(public_key), "port": port});
        if let Some(next) = next {
            spec["wireguard"]["nextPublicKey"] = BASE64_STANDARD.encode(next).into();
        }
        if *host_network {
            spec["wireguard"]["hostNetwork"] = true.into();
        }
    }
    publish(client, "NodeAddresses", "nodeaddresses", node, &spec).await
}

/// Writes the object of a kind of ours that has the name of a node, belongs to the Node, and goes with it.
///
/// # Errors
/// When the API server refuses, does not answer, or has no such Node.
pub(super) async fn publish(
    client: &Client,
    kind: &str,
    plural: &str,
    node: &str,
    spec: &Value,
) -> Result<(), RequestError> {
    let path = format!("/api/v1/nodes?fieldSelector=metadata.name%3D{node}");
    let list = call(client, "GET", &path, None, TIMEOUT).await?;
    let mut items = list["items"].as_array().into_iter().flatten();
    let owner = items.find(|it| it["metadata"]["name"] == node);
    let owner = owner.ok_or_else(|| RequestError::new(format!("Node {node}"), Failure::Absent))?;
    let mut metadata = json!({"name": node});
    if let Some(uid) = owner["metadata"]["uid"].as_str() {
        let owner = json!({"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid});
        metadata["ownerReferences"] = json!([owner]);
    }
    let object = json!({"apiVersion": VERSION, "kind": kind, "metadata": metadata, "spec": spec});
    let request = apply(&format!("/apis/{VERSION}/{plural}/{node}"), MANAGER, &object);
    send::<IgnoredAny>(client, request, TIMEOUT).await.map(drop)
}
