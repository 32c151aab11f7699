//! The switches of all nodes, reached through the API server with the caller's own rights.
//!
//! ```text
//! caller ──TLS, own credentials──▶ API server ──TLS, token for the switch──▶ switch
//!           pods/proxy, a token of                    reviewed by the API server
//!           the account podgate-viewer
//! ```
//!
//! The API server keeps the caller's credentials to itself. The caller requests a token of a service
//! account instead, for the switches alone, and sends it beside them.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use api_client::{Failure, Request, RequestError, call};
use futures_util::io::{AsyncBufRead, AsyncReadExt};
use kube::Client;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::Connection;
use super::answer::{Framing, read_part};
use super::warning::path;
use super::watch::escaped;
use crate::ObjectRef;

/// Where switches are deployed, and how they are recognized.
#[derive(Clone, Debug)]
pub struct Deployment {
    /// Namespace of their pods.
    pub namespace: String,
    /// Label selector of their pods.
    pub selector: String,
    /// Service account whose token they take.
    pub account: String,
    /// Audience of the token for the switch of a node: a switch is shown no token that others take.
    pub audience: fn(node: &str) -> String,
    /// Header of the token.
    pub header: &'static str,
    /// Name of the container port that answers.
    pub port_name: String,
    /// The port where none has this name.
    pub port: u16,
}

/// The switch of a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SwitchPod {
    /// Name of the node.
    pub node: String,
    /// Name of the pod that the switch runs in.
    pub pod: String,
    port: u16,
}

/// The switches of a cluster.
#[derive(Clone)]
pub struct Switches {
    client: Client,
    deployment: Arc<Deployment>,
    /// Tokens by node.
    tokens: Arc<Mutex<HashMap<String, Arc<str>>>>,
    all: Vec<SwitchPod>,
}

/// Requests at a time.
const AT_ONCE: usize = 32;
/// Timeout of one.
const TIMEOUT: Duration = Duration::from_secs(15);
/// Bytes of a page at most.
const LONGEST_PAGE: u64 = 64 << 20;
/// Seconds that a token is valid; the least that API servers grant.
const TOKEN_SECONDS: u32 = 600;

impl Switches {
    /// Finds the switches, and requests a token for the first of them; `nodes` are the nodes that
    /// count, or all.
    ///
    /// # Errors
    /// When the API server refuses; names the right that is missing.
    pub async fn find(
        connection: &Connection,
        deployment: Deployment,
        nodes: Option<&[String]>,
    ) -> Result<Self, RequestError> {
        let client = connection.client.clone();
        let namespace = &deployment.namespace;
        let selector = escaped(&deployment.selector);
        let path = format!("/api/v1/namespaces/{namespace}/pods?labelSelector={selector}");
        let list = request(&client, "GET", &path, None).await?;
        let mut all = Vec::new();
        for pod in list["items"].as_array().into_iter().flatten() {
            let (Some(node), Some(name)) =
                (pod["spec"]["nodeName"].as_str(), pod["metadata"]["name"].as_str())
            else {
                continue;
            };
            let is_over = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
            if is_over || nodes.is_some_and(|nodes| !nodes.iter().any(|it| it == node)) {
                continue;
            }
            let port = port_of(pod, &deployment.port_name).unwrap_or(deployment.port);
            all.push(SwitchPod { node: node.to_owned(), pod: name.to_owned(), port });
        }
        all.sort();
        let this = Self { client, deployment: Arc::new(deployment), tokens: Arc::default(), all };
        if let Some(first) = this.all.first() {
            this.token(&first.node).await?;
        }
        Ok(this)
    }

    /// The token for the switch of a node.
    async fn token(&self, node: &str) -> Result<Arc<str>, RequestError> {
        if let Some(token) = self.tokens.lock().get(node) {
            return Ok(Arc::clone(token));
        }
        let Deployment { namespace, account, audience, .. } = &*self.deployment;
        let body = json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"audiences": [audience(node)], "expirationSeconds": TOKEN_SECONDS},
        });
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
        let answer = request(&self.client, "POST", &path, Some(&body)).await?;
        let token = answer["status"]["token"].as_str();
        let absent = || RequestError::new(path, Failure::Unreadable("no token".to_owned()));
        let token: Arc<str> = token.ok_or_else(absent)?.into();
        self.tokens.lock().insert(node.to_owned(), Arc::clone(&token));
        Ok(token)
    }

    /// All of them, by node.
    pub fn all(&self) -> &[SwitchPod] {
        &self.all
    }

    /// The page at `path` of each switch in `of`, in their order.
    pub async fn pages<T: DeserializeOwned + Send + 'static>(
        &self,
        of: &[SwitchPod],
        path: &str,
    ) -> Vec<Result<T, Failure>> {
        let permits = Arc::new(Semaphore::new(AT_ONCE));
        let mut tasks = JoinSet::new();
        for (number, switch) in of.iter().cloned().enumerate() {
            let (this, path, permits) = (self.clone(), path.to_owned(), Arc::clone(&permits));
            tasks.spawn(async move {
                let _permit = permits.acquire().await;
                (number, this.page(&switch, &path).await)
            });
        }
        let lost = |_| Err(Failure::Broken("the request was lost".to_owned()));
        let mut pages: Vec<_> = of.iter().map(lost).collect();
        while let Some(done) = tasks.join_next().await {
            if let Ok((number, page)) = done {
                pages[number] = page;
            }
        }
        pages
    }

    async fn page<T: DeserializeOwned>(
        &self,
        switch: &SwitchPod,
        path: &str,
    ) -> Result<T, Failure> {
        let read = async {
            let mut page = Vec::new();
            let answer = self.answer(switch, path).await?.take(LONGEST_PAGE + 1);
            std::pin::pin!(answer).read_to_end(&mut page).await?;
            match page.len() as u64 > LONGEST_PAGE {
                true => Err(Failure::TooLong(LONGEST_PAGE)),
                false => Ok(serde_json::from_slice(&page)?),
            }
        };
        tokio::time::timeout(TIMEOUT, read).await.unwrap_or(Err(Failure::Late(TIMEOUT)))
    }

    /// The lines at `path` of a switch.
    ///
    /// # Errors
    /// Why there are none.
    pub async fn lines(&self, switch: &SwitchPod, path: &str) -> Result<Lines, Failure> {
        let answer = tokio::time::timeout(TIMEOUT, self.answer(switch, path)).await;
        let answer = answer.unwrap_or(Err(Failure::Late(TIMEOUT)))?;
        Ok(Lines { answer, line: Vec::new() })
    }

    async fn answer(&self, switch: &SwitchPod, path: &str) -> Result<Answer, Failure> {
        let token = self.token(&switch.node).await;
        let token = token.map_err(|error| Failure::Broken(error.to_string()))?;
        let request = self.request(switch, path, &token)?;
        Ok(Box::pin(self.client.request_stream(request).await?))
    }

    fn request(&self, switch: &SwitchPod, path: &str, token: &str) -> Request {
        let (namespace, SwitchPod { pod, port, .. }) = (&self.deployment.namespace, switch);
        let path = format!("/api/v1/namespaces/{namespace}/pods/https:{pod}:{port}/proxy{path}");
        http::Request::get(path)
            .header(self.deployment.header, format!("Bearer {token}"))
            .body(Vec::new())
    }
}

/// A body as it comes.
type Answer = Pin<Box<dyn AsyncBufRead + Send>>;

/// The lines of an answer, each a JSON value. A line of more than 32 MiB is an error: the node of the switch may
/// be somebody else's by now.
pub struct Lines {
    answer: Answer,
    line: Vec<u8>,
}

impl Lines {
    /// The next line; `None` at the end.
    ///
    /// # Errors
    /// Why there are no more.
    pub async fn next(&mut self) -> Result<Option<Value>, Failure> {
        self.line.clear();
        read_part(&mut self.answer, &mut self.line, Framing::Lines).await?;
        if self.line.is_empty() {
            return Ok(None);
        }
        Ok(Some(serde_json::from_slice(&self.line)?))
    }
}

/// Names of the nodes with these labels.
///
/// # Errors
/// When the API server refuses.
pub async fn nodes_with(
    connection: &Connection,
    selector: &str,
) -> Result<Vec<String>, RequestError> {
    let path = format!("/api/v1/nodes?labelSelector={}", escaped(selector));
    let list = request(&connection.client, "GET", &path, None).await?;
    let names = list["items"].as_array().into_iter().flatten();
    Ok(names.filter_map(|it| it["metadata"]["name"].as_str().map(str::to_owned)).collect())
}

/// Pods in a namespace, or in all, with these labels: `NS/NAME` and node.
///
/// # Errors
/// When the API server refuses.
pub async fn pods_with(
    connection: &Connection,
    namespace: Option<&str>,
    selector: &str,
) -> Result<Vec<(String, String)>, RequestError> {
    let folder = namespace.map_or(String::new(), |it| format!("namespaces/{it}/"));
    let path = format!("/api/v1/{folder}pods?labelSelector={}", escaped(selector));
    let list = request(&connection.client, "GET", &path, None).await?;
    let pods = list["items"].as_array().into_iter().flatten();
    Ok(pods.filter_map(name_and_node).collect())
}

/// `metadata.generation` of an object; `None` if it has none.
///
/// # Errors
/// When there is no such object, or the API server refuses.
pub async fn generation(
    connection: &Connection,
    object: &ObjectRef,
) -> Result<Option<i64>, RequestError> {
    let answer = request(&connection.client, "GET", &path(object), None).await?;
    Ok(answer["metadata"]["generation"].as_i64())
}

/// The node of a pod.
///
/// # Errors
/// When there is no such pod, or the API server refuses.
pub async fn node_of(
    connection: &Connection,
    namespace: &str,
    pod: &str,
) -> Result<String, RequestError> {
    let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}");
    let object = request(&connection.client, "GET", &path, None).await?;
    let unplaced = || Failure::Broken("the pod is on no node yet".to_owned());
    let named = name_and_node(&object);
    Ok(named.ok_or_else(|| RequestError::new(format!("{namespace}/{pod}"), unplaced()))?.1)
}

fn name_and_node(pod: &Value) -> Option<(String, String)> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let metadata = &pod["metadata"];
    let name = format!("{}/{}", text(&metadata["namespace"])?, text(&metadata["name"])?);
    Some((name, text(&pod["spec"]["nodeName"])?))
}

fn port_of(pod: &Value, name: &str) -> Option<u16> {
    let containers = pod["spec"]["containers"].as_array()?.iter();
    let mut ports = containers.flat_map(|it| it["ports"].as_array().into_iter().flatten());
    let port = ports.find(|port| port["name"] == name)?["containerPort"].as_u64()?;
    u16::try_from(port).ok()
}

async fn request(
    client: &Client,
    method: &str,
    path: &str,
    body: Option<&Value>,
) -> Result<Value, RequestError> {
    call(client, method, path, body, TIMEOUT).await
}
