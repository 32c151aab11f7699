//! Tells the API server that a node can take pods: its condition NetworkUnavailable, and the taint that kept pods
//! away before the switch was ready.
//!
//! The taint is what other controllers wait for too
//! (<https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/>): whoever makes the node adds
//! it, by kubelet's `--register-with-taints`. The condition is of the Node's status
//! (<https://kubernetes.io/docs/reference/node/node-status/#condition>).

use std::time::Duration;

use api_client::{Failure, Request, RequestError, call, send};
use kube::Client;
use serde_json::{Value, json};

/// Key of the taint.
pub const TAINT: &str = "podgate.io/not-ready";

/// Type of the condition.
const CONDITION: &str = "NetworkUnavailable";
const REASON: &str = "PodgateIsReady";
/// Requests without an answer fail after this time.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Writes the condition of a node whose switch is ready, and removes the taint. Nothing is written if that is
/// how the node is.
///
/// # Errors
/// When the API server refuses or does not answer, when the Node changes at the same time, or when there is none.
pub async fn report_ready(client: &Client, node: &str) -> Result<(), RequestError> {
    let path = format!("/api/v1/nodes?fieldSelector=metadata.name%3D{node}");
    let list = call(client, "GET", &path, None, TIMEOUT).await?;
    let mut items = list["items"].as_array().into_iter().flatten();
    let object = items.find(|it| it["metadata"]["name"] == node);
    let absent = || RequestError::new(format!("Node {node}"), Failure::Absent);
    let object = object.ok_or_else(absent)?;
    let object = match is_available(object) {
        true => object.clone(),
        false => send(client, available(node), TIMEOUT).await?,
    };
    if let Some(taints) = without_taint(&object) {
        // A change by others since then is a conflict.
        let version = &object["metadata"]["resourceVersion"];
        let patch = json!({"metadata": {"resourceVersion": version}, "spec": {"taints": taints}});
        let path = format!("/api/v1/nodes/{node}");
        call(client, "PATCH", &path, Some(&patch), TIMEOUT).await?;
    }
    Ok(())
}

fn is_available(node: &Value) -> bool {
    let mut conditions = node["status"]["conditions"].as_array().into_iter().flatten();
    conditions.any(|it| it["type"] == CONDITION && it["status"] == "False")
}

/// The request that writes the condition; it merges conditions by their type.
fn available(node: &str) -> Request {
    let now = format!("{:.0}", jiff::Timestamp::now());
    let condition = json!({"type": CONDITION, "status": "False", "reason": REASON,
        "message": "the switch forwards packets of this node's pods",
        "lastHeartbeatTime": now, "lastTransitionTime": now});
    http::Request::patch(format!("/api/v1/nodes/{node}/status"))
        .header(http::header::CONTENT_TYPE, "application/strategic-merge-patch+json")
        .body(json!({"status": {"conditions": [condition]}}).to_string().into_bytes())
}

/// The taints that are left without ours, whatever its effect; `None` if it is not there.
fn without_taint(node: &Value) -> Option<Vec<&Value>> {
    let taints = node["spec"]["taints"].as_array()?;
    let left: Vec<&Value> = taints.iter().filter(|taint| taint["key"] != TAINT).collect();
    (left.len() < taints.len()).then_some(left)
}
