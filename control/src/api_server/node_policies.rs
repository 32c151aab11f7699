//! The NodePolicies that each node publishes: the versions of cluster-wide ones that it has in
//! force, and what staged ones would change there.
//!
//! No switch watches these objects, so a write costs the other nodes nothing. The one writer of statuses lists them.

use std::collections::BTreeMap;
use std::time::Duration;

use api_client::{RequestError, call};
use kube::Client;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::node_addresses::{VERSION, publish};

/// The policies that a node publishes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodePolicies {
    /// When this was written, RFC 3339.
    pub renew_time: String,
    /// `metadata.generation` of each cluster-wide policy in force, by `KIND NAME`; of a staged one, of the version that
    /// is evaluated.
    pub in_force: BTreeMap<String, i64>,
    /// Connections that a staged policy would deny or allow, by `KIND NAME` or `KIND NS/NAME`.
    pub staged: BTreeMap<String, StagedSum>,
}

/// Connections about which a staged policy decides otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StagedSum {
    /// Those that it would deny.
    pub deny: u64,
    /// Those that it would allow.
    pub allow: u64,
    /// The first of them, RFC 3339.
    pub since: String,
}

/// The name in paths of the API.
const PLURAL: &str = "nodepolicies";
/// A list without an answer fails after this time.
const TIMEOUT: Duration = Duration::from_secs(15);

/// Writes what a node publishes. The object belongs to the Node and goes with it.
///
/// # Errors
/// When the API server refuses, does not answer, or has no such Node.
pub async fn publish_policies(
    client: &Client,
    node: &str,
    policies: &NodePolicies,
) -> Result<(), RequestError> {
    publish(client, "NodePolicies", PLURAL, node, &json!(policies)).await
}

/// Lists what all nodes publish, by node; from the API server's memory, which costs its storage nothing. What cannot be
/// read of an object is left out.
///
/// # Errors
/// When the API server refuses or does not answer.
pub async fn list_policies(
    client: &Client,
) -> Result<BTreeMap<String, NodePolicies>, RequestError> {
    let path = format!("/apis/{VERSION}/{PLURAL}?resourceVersion=0");
    let mut list = call(client, "GET", &path, None, TIMEOUT).await?;
    let items = list["items"].as_array_mut().map(std::mem::take).unwrap_or_default();
    let read = |mut item: Value| {
        let node = item["metadata"]["name"].as_str()?.to_owned();
        Some((node, serde_json::from_value(item["spec"].take()).unwrap_or_default()))
    };
    Ok(items.into_iter().filter_map(read).collect())
}
