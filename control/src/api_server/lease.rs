//! Leases (coordination.k8s.io/v1), which elect the writer of the status of cluster policies, and that of aggregated pods.
//!
//! The first node with something to write acquires it and renews it while it runs. The
//! others read it only when a status differs from theirs, so a cluster in which all agree causes one
//! request for each renewal. A lease counts as expired when it was unchanged for its duration by the
//! clock of its reader: clocks of nodes need not agree.

use std::time::Duration;

use api_client::{RequestError, call_object};
use kube::Client;
use serde_json::{Value, json};
use tokio::time::Instant;

/// Name of the lease of the writer of statuses.
const NAME: &str = "podgate-status";
/// Its namespace.
const NAMESPACE: &str = "kube-system";
/// Requests for a lease without an answer fail after this time.
const TIMEOUT: Duration = Duration::from_secs(5);

/// One candidate.
pub struct Election {
    client: Client,
    name: &'static str,
    identity: String,
    duration: Duration,
    /// When this candidate last wrote the lease.
    held: Option<Instant>,
    /// The version read last, when it was first read, and when it was last read.
    seen: Option<(String, Instant, Instant)>,
}

impl Election {
    /// A candidate of this name, which must be unique, for the writer of statuses. `duration` is that of the lease.
    pub fn new(client: Client, identity: &str, duration: Duration) -> Self {
        Self::of(client, NAME, identity, duration)
    }

    /// The same for the lease of this name.
    pub(super) fn of(
        client: Client,
        name: &'static str,
        identity: &str,
        duration: Duration,
    ) -> Self {
        Self { client, name, identity: identity.to_owned(), duration, held: None, seen: None }
    }

    /// Another candidate that holds the lease; `None` if there is none.
    ///
    /// # Errors
    /// When the API server refuses or does not answer.
    pub(super) async fn holder(&mut self) -> Result<Option<String>, RequestError> {
        let Some(lease) = self.request("GET", &self.path(), None).await? else { return Ok(None) };
        let holder = lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned();
        let is_held = !holder.is_empty() && holder != self.identity && !self.has_expired(&lease);
        Ok(is_held.then_some(holder))
    }

    /// Returns whether this candidate holds the lease; acquires it if it is free or expired.
    ///
    /// # Errors
    /// When the API server refuses or does not answer.
    pub async fn is_elected(&mut self) -> Result<bool, RequestError> {
        let third = self.duration / 3;
        if self.held.is_some_and(|at| at.elapsed() < 2 * third) {
            return Ok(true);
        }
        if self.held.is_none() && self.seen.as_ref().is_some_and(|(.., at)| at.elapsed() < third) {
            return Ok(false);
        }
        self.campaign().await
    }

    /// Renews the lease if this candidate holds it.
    ///
    /// # Errors
    /// When the API server refuses or does not answer.
    pub async fn renew(&mut self) -> Result<(), RequestError> {
        match self.held.is_some_and(|at| at.elapsed() >= self.duration / 3) {
            true => self.campaign().await.map(drop),
            false => Ok(()),
        }
    }

    fn path(&self) -> String {
        let name = self.name;
        format!("/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{name}")
    }

    async fn campaign(&mut self) -> Result<bool, RequestError> {
        let path = self.path();
        let now = jiff::Timestamp::now();
        let now = format!("{now:.6}");
        let Some(mut lease) = self.request("GET", &path, None).await? else {
            let lease = json!({
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": self.name, "namespace": NAMESPACE},
                "spec": {
                    "holderIdentity": self.identity,
                    "leaseDurationSeconds": self.duration.as_secs().max(1),
                    "acquireTime": now,
                    "renewTime": now,
                    "leaseTransitions": 0,
                },
            });
            // A request that creates by PUT has the name, to which the right is limited.
            return self.write("PUT", &path, &lease).await;
        };
        let spec = &mut lease["spec"];
        if spec["holderIdentity"] != *self.identity {
            self.held = None;
            if !is_free(spec) && !self.has_expired(&lease) {
                return Ok(false);
            }
            let spec = &mut lease["spec"];
            spec["holderIdentity"] = json!(self.identity);
            spec["acquireTime"] = json!(now);
            let transitions = spec["leaseTransitions"].as_u64().unwrap_or(0);
            spec["leaseTransitions"] = json!(transitions + 1);
        }
        lease["spec"]["leaseDurationSeconds"] = json!(self.duration.as_secs().max(1));
        lease["spec"]["renewTime"] = json!(now);
        self.write("PUT", &path, &lease).await
    }

    /// Records the version of another candidate's lease; returns whether it is expired.
    fn has_expired(&mut self, lease: &Value) -> bool {
        let now = Instant::now();
        let version = lease["metadata"]["resourceVersion"].as_str().unwrap_or_default();
        let seconds = lease["spec"]["leaseDurationSeconds"].as_u64().unwrap_or(0);
        let since = match &self.seen {
            Some((known, since, _)) if known == version => *since,
            _ => now,
        };
        self.seen = Some((version.to_owned(), since, now));
        now - since >= Duration::from_secs(seconds)
    }

    /// Writes the lease; `false` if another candidate wrote it in between.
    async fn write(
        &mut self,
        method: &str,
        path: &str,
        lease: &Value,
    ) -> Result<bool, RequestError> {
        let began = Instant::now();
        let written = self.request(method, path, Some(lease)).await?.is_some();
        self.held = written.then_some(began);
        Ok(written)
    }

    /// Sends a request; `None` if the lease does not exist, or was changed in between.
    async fn request(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Option<Value>, RequestError> {
        match call_object(&self.client, method, path, body, TIMEOUT).await {
            // Another candidate has created it: an update names the version.
            Err(error) if method == "PUT" && error.code() == Some(422) => Ok(None),
            done => done,
        }
    }
}

fn is_free(spec: &Value) -> bool {
    spec["holderIdentity"].as_str().unwrap_or_default().is_empty()
}
