//! Writes conditions into the status of cluster policies.
//!
//! Written by server-side apply to the status subresource
//! (<https://kubernetes.io/docs/reference/using-api/server-side-apply/>): of the list of
//! conditions only ours is touched, and a condition that is there already changes nothing.

use kube::Client;
use serde_json::{Value, json};

use crate::model::Condition;
use crate::{Kind, ObjectRef};

/// The field manager of our fields.
const MANAGER: &str = "podgate";

/// Writes a condition into the status of an object that is in no namespace.
///
/// # Errors
/// When the API server refuses or cannot be reached; a deleted object is no error.
pub async fn report(
    client: &Client,
    object: &ObjectRef,
    condition: &Condition,
) -> Result<(), String> {
    let mut written = json!({
        "type": Condition::TYPE,
        "status": if condition.accepted { "True" } else { "False" },
        "reason": condition.reason,
        "message": condition.message,
        "lastTransitionTime": condition.last_transition_time,
    });
    if let Some(generation) = condition.observed_generation {
        written["observedGeneration"] = generation.into();
    }
    let (kind, name) = (object.kind, &object.name);
    let fields = json!({"metadata": {"name": name}, "status": {"conditions": [written]}});
    let request = apply_request(kind, name, "/status", fields)?;
    match client.request_text(request).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(kube::Error::Api(status)) => Err(format!("{} {}", status.code, status.message)),
        Err(error) => Err(error.to_string()),
    }
}

/// The request that applies these fields to an object that is in no namespace, or to its `part`.
pub(super) fn apply_request(
    kind: Kind,
    name: &str,
    part: &str,
    mut fields: Value,
) -> Result<http::Request<Vec<u8>>, String> {
    fields["apiVersion"] = kind.api_version().into();
    fields["kind"] = kind.name().into();
    let (version, plural) = (kind.api_version(), kind.plural());
    let path = format!("/apis/{version}/{plural}/{name}{part}?fieldManager={MANAGER}&force=true");
    http::Request::patch(path)
        .header(http::header::CONTENT_TYPE, "application/apply-patch+yaml")
        .body(fields.to_string().into_bytes())
        .map_err(|error| error.to_string())
}
