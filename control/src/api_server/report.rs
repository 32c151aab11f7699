//! Writes conditions into the status of cluster policies.
//!
//! Written by server-side apply to the status subresource
//! (<https://kubernetes.io/docs/reference/using-api/server-side-apply/>): of the list of
//! conditions only ours is touched, and a condition that is there already changes nothing.

use std::time::Duration;

use api_client::{Request, RequestError, send};
use kube::Client;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::warning::path;
use crate::ObjectRef;
use crate::model::{Condition, ConditionKind};

/// The field manager of our fields.
pub(super) const MANAGER: &str = "podgate";
/// Timeout of a request.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Writes a condition into the status of an object that is in no namespace. Each type has a field manager of its own,
/// so that writing one leaves the others.
///
/// # Errors
/// When the API server refuses or cannot be reached; a deleted object is no error.
pub async fn report(
    client: &Client,
    object: &ObjectRef,
    condition: &Condition,
) -> Result<(), RequestError> {
    let mut written = json!({
        "type": condition.kind.name(),
        "status": if condition.holds { "True" } else { "False" },
        "reason": condition.reason,
        "message": condition.message,
        "lastTransitionTime": condition.last_transition_time,
    });
    if let Some(generation) = condition.observed_generation {
        written["observedGeneration"] = generation.into();
    }
    let manager = match condition.kind {
        ConditionKind::Accepted => MANAGER,
        ConditionKind::InForce => "podgate-in-force",
        ConditionKind::Staged => "podgate-staged",
        ConditionKind::Resolved => "podgate-resolved",
    };
    let fields = json!({
        "apiVersion": object.kind.api_version(),
        "kind": object.kind.name(),
        "metadata": {"name": object.name},
        "status": {"conditions": [written]},
    });
    let request = apply(&(path(object) + "/status"), manager, &fields);
    match send::<IgnoredAny>(client, request, TIMEOUT).await {
        Err(error) if error.code() != Some(404) => Err(error),
        _ => Ok(()),
    }
}

/// The request that applies these fields to the object at `path`, or to its status there.
pub(super) fn apply(path: &str, manager: &str, fields: &Value) -> Request {
    http::Request::patch(format!("{path}?fieldManager={manager}&force=true"))
        .header(http::header::CONTENT_TYPE, "application/apply-patch+yaml")
        .body(fields.to_string().into_bytes())
}
