//! The identity of a cluster: the UID of its namespace kube-system, which lives as long as it does.

use std::time::Duration;

use api_client::{RequestError, call};
use kube::Client;
use serde_json::Value;

/// The namespace that every cluster has.
const NAMESPACE: &str = "kube-system";
/// Timeout of the request.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Requests the UID of the namespace kube-system; `None` if the API server answers without one.
///
/// Lists with a field selector instead of a plain read: no further permission is needed.
///
/// # Errors
/// When the API server does not answer, or not now.
pub async fn cluster_uid(client: &Client) -> Result<Option<String>, RequestError> {
    let path = format!("/api/v1/namespaces?fieldSelector=metadata.name%3D{NAMESPACE}");
    match call(client, "GET", &path, None, TIMEOUT).await {
        Ok(list) => Ok(uid(&list)),
        Err(error) if error.code().is_some_and(|code| code < 500 && code != 429) => Ok(None),
        Err(error) => Err(error),
    }
}

fn uid(list: &Value) -> Option<String> {
    let metadata = list["items"].as_array()?.iter().map(|item| &item["metadata"]);
    let uid = metadata.filter(|it| it["name"] == NAMESPACE).find_map(|it| it["uid"].as_str())?;
    // UIDs are UUIDs so far, and opaque.
    let is_plain =
        !uid.is_empty() && uid.len() <= 128 && uid.bytes().all(|it| it.is_ascii_graphic());
    is_plain.then(|| uid.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_uid_is_that_of_kube_system_alone() {
        let namespace = |name: &str, uid: Value| json!({"metadata": {"name": name, "uid": uid}});
        let of = |items: Vec<Value>| uid(&json!({ "items": items }));
        let both = vec![namespace("default", json!("a-1")), namespace("kube-system", json!("b-2"))];
        assert_eq!(of(both).as_deref(), Some("b-2"));
        for bad in [json!(null), json!(""), json!("two words"), json!("x".repeat(129))] {
            assert_eq!(of(vec![namespace("kube-system", bad)]), None);
        }
        assert_eq!(uid(&json!({"kind": "Status"})), None);
    }
}
