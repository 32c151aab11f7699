//! Writes conditions into the status of cluster policies.
//!
//! Written by server-side apply to the status subresource
//! (<https://kubernetes.io/docs/reference/using-api/server-side-apply/>): of the list of
//! conditions only ours is touched, and a condition that is there already changes nothing.

use kube::Client;
use serde_json::json;

use crate::ObjectRef;
use crate::model::Condition;

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
    let (kind, name) = (object.kind, &object.name);
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
    let patch = json!({
        "apiVersion": kind.api_version(),
        "kind": kind.name(),
        "metadata": {"name": name},
        "status": {"conditions": [written]},
    });
    let path = format!(
        "/apis/{}/{}/{name}/status?fieldManager={MANAGER}&force=true",
        kind.api_version(),
        kind.plural()
    );
    let request = http::Request::patch(path)
        .header(http::header::CONTENT_TYPE, "application/apply-patch+yaml")
        .body(patch.to_string().into_bytes())
        .map_err(|error| error.to_string())?;
    match client.request_text(request).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(kube::Error::Api(status)) => Err(format!("{} {}", status.code, status.message)),
        Err(error) => Err(error.to_string()),
    }
}
