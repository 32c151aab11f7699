//! Kubernetes Events about policies.
//!
//! An Event's name follows from its object and reason, and of a fault from its message, so every writer names it
//! alike: a second writer repeats the Event instead of adding another one. It is a core/v1 Event, as
//! `kubectl describe` and `kubectl get events` show it
//! (<https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/event-v1/>).

use std::collections::HashMap;
use std::time::{Duration, Instant};

use api_client::{RequestError, call_object};
use kube::Client;
use serde_json::{Value, json};

use crate::ObjectRef;

/// An Event to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// Its type.
    pub severity: Severity,
    /// The object.
    pub object: ObjectRef,
    /// A word in CamelCase.
    pub reason: &'static str,
    /// At most [`Warning::LONGEST`] bytes.
    pub message: String,
}

/// The type of an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// News about an object: it takes the place of the last with the same reason.
    Normal,
    /// A fault of an object: another message is another Event.
    Warning,
}

impl Severity {
    /// `type`.
    const fn name(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

impl Warning {
    /// Longest message that the API server takes, in bytes.
    pub const LONGEST: usize = 1024;
}

/// Writes warnings; repeats none within [`Warnings::REST`].
pub struct Warnings {
    client: Client,
    node: String,
    /// Events by name: when written last, and how often.
    written: HashMap<String, (Instant, u64)>,
}

/// The namespace of Events about objects without one.
const DEFAULT_NAMESPACE: &str = "default";
/// The component in an Event.
const COMPONENT: &str = "podgate";
/// Longest part of an object's name in the name of an Event, in bytes.
const NAME: usize = 200;
/// Timeout of a request.
const TIMEOUT: Duration = Duration::from_secs(5);

impl Warnings {
    /// An Event is not repeated before this time.
    pub const REST: Duration = Duration::from_secs(20 * 60);

    /// A writer on node `node`.
    pub fn new(client: Client, node: &str) -> Self {
        Self { client, node: node.to_owned(), written: HashMap::new() }
    }

    /// Writes an Event, or repeats the one that says the same.
    ///
    /// # Errors
    /// When the API server refuses or does not answer; a deleted object is no error.
    pub async fn write(&mut self, warning: &Warning) -> Result<(), RequestError> {
        let object = &warning.object;
        let name = name(warning);
        self.written.retain(|_, (at, _)| at.elapsed() < 4 * Self::REST);
        if self.written.get(&name).is_some_and(|(at, _)| at.elapsed() < Self::REST) {
            return Ok(());
        }
        let Some(current) = self.request("GET", &path(object), None).await? else {
            return Ok(());
        };
        let count = self.written.get(&name).map_or(1, |(_, count)| count + 1);
        let namespace = object.namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE);
        let events = format!("/api/v1/namespaces/{namespace}/events");
        let now = format!("{:.0}", jiff::Timestamp::now());
        let event = json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "type": warning.severity.name(),
            "reason": warning.reason,
            "message": warning.message,
            "involvedObject": {
                "apiVersion": object.kind.api_version(),
                "kind": object.kind.name(),
                "namespace": object.namespace,
                "name": object.name,
                "uid": current["metadata"]["uid"],
                "resourceVersion": current["metadata"]["resourceVersion"],
            },
            "source": {"component": COMPONENT, "host": self.node},
            "reportingComponent": COMPONENT,
            "reportingInstance": self.node,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        });
        if self.request("POST", &events, Some(&event)).await?.is_none() {
            let mut repeated = json!({"lastTimestamp": now, "message": warning.message});
            if count > 1 {
                repeated["count"] = count.into();
            }
            self.request("PATCH", &format!("{events}/{name}"), Some(&repeated)).await?;
        }
        self.written.insert(name, (Instant::now(), count));
        Ok(())
    }

    /// Sends a request; `None` if the object does not exist, or exists already.
    async fn request(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Option<Value>, RequestError> {
        call_object(&self.client, method, path, body, TIMEOUT).await
    }
}

/// The path of an object.
pub(super) fn path(object: &ObjectRef) -> String {
    let version = object.kind.api_version();
    let root = if version.contains('/') { "apis" } else { "api" };
    let namespace = object.namespace.iter().map(|it| format!("namespaces/{it}/"));
    let namespace: String = namespace.collect();
    format!("/{root}/{version}/{namespace}{}/{}", object.kind.plural(), object.name)
}

/// The name of an Event: `OBJECT.HASH`.
fn name(warning: &Warning) -> String {
    let object = &warning.object.name;
    let end = (0..=object.len().min(NAME)).rev().find(|at| object.is_char_boundary(*at));
    let short = object[..end.unwrap_or(0)].trim_end_matches(['.', '-']);
    let message = match warning.severity {
        Severity::Normal => "",
        Severity::Warning => &warning.message,
    };
    let text = format!("{} {} {message}", warning.object, warning.reason);
    format!("{short}.{:016x}", crate::state::checksum(text.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;

    fn warning(name: &str, message: &str) -> Warning {
        let namespace = Some("shop".into());
        let object = ObjectRef { kind: Kind::NetworkPolicy, namespace, name: name.into() };
        let (severity, reason) = (Severity::Warning, "InvalidPolicy");
        Warning { severity, object, reason, message: message.into() }
    }

    #[test]
    fn names_are_those_of_objects_and_tell_messages_apart() {
        let one = name(&warning("db", "a"));
        assert_eq!(one, name(&warning("db", "a")));
        assert_ne!(one, name(&warning("db", "b")));
        assert!(one.starts_with("db."), "{one}");
        let news = |message| Warning { severity: Severity::Normal, ..warning("db", message) };
        assert_eq!(name(&news("a")), name(&news("b")), "what is newer replaces what was said");
        // At most 253 characters, and no label ends with a hyphen (RFC 1123).
        let long = name(&warning(&format!("{}-{}", "a".repeat(199), "b".repeat(50)), "a"));
        assert!(long.len() <= 253 && long.starts_with(&format!("{}.", "a".repeat(199))), "{long}");
    }

    #[test]
    fn paths_of_objects() {
        let mut object = warning("db", "").object;
        let folder = "/apis/networking.k8s.io/v1/namespaces/shop/networkpolicies";
        assert_eq!(path(&object), format!("{folder}/db"));
        object = ObjectRef { kind: Kind::ClusterEgressFirewall, namespace: None, ..object };
        assert_eq!(path(&object), "/apis/podgate.io/v1alpha1/clusteregressfirewalls/db");
    }
}
