//! Lists and watches the log, and lists the pages.

use std::time::Duration;

use api_client::{RequestError, send};
use kube::Client;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::super::answer::{self, Framing, read_part};
use super::super::trouble::Trouble;
use super::super::{Pace, jittered};
use super::objects::{KIND, List, Log, Page, Stored, folder, list_path};

/// Requested duration of a watch; the API server ends it then.
const WATCH_SECONDS: u64 = 290;
/// Timeout until the head of an answer, and of a list.
const ANSWER: Duration = Duration::from_secs(10);
const LIST: Duration = Duration::from_secs(60);
/// Timeout of a watch without an event; the writer writes every few seconds.
const SILENCE: Duration = Duration::from_secs(60);

/// Media types of lists: of objects, and of their metadata alone.
const JSON: &str = "application/json";
const METADATA: &str =
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1, application/json";

/// An event of the log.
#[derive(Debug)]
pub(super) enum News {
    /// All of it, and the resource version of the list.
    Listed(Vec<Log>, String),
    /// The watch is answered.
    Answered,
    /// An object was written.
    Written(Box<Log>),
    /// A request failed; it is retried.
    Trouble(String),
}

/// Follows the log until the receiver is dropped.
pub(super) async fn follow(client: Client, pace: Pace, news: mpsc::Sender<News>) {
    let (mut version, mut failures) = (None, 0_u32);
    while !news.is_closed() {
        let failed = match &version {
            None => match list(&client, "log", None).await {
                Ok(list) => {
                    let log = list.items.into_iter().filter_map(|it| it.spec.log).collect();
                    version = Some(list.metadata.resource_version.clone());
                    failures = 0;
                    let _ = news.send(News::Listed(log, list.metadata.resource_version)).await;
                    continue;
                }
                Err(error) => Some(error.to_string()),
            },
            Some(from) => {
                let mut held = from.clone();
                let ended = watch(&client, &mut held, &news).await;
                if held != *from {
                    failures = 0;
                }
                version = Some(held);
                match ended {
                    Ok(()) => None,
                    Err(trouble @ (Trouble::Expired | Trouble::Undecodable(_))) => {
                        version = None;
                        Some(trouble.to_string()).filter(|_| trouble != Trouble::Expired)
                    }
                    Err(trouble) => Some(trouble.to_string()),
                }
            }
        };
        if let Some(error) = failed {
            let _ = news.send(News::Trouble(format!("{KIND}: {error}"))).await;
        }
        failures += 1;
        if failures > 1 {
            let wait = pace.first.saturating_mul(1 << (failures - 2).min(16)).min(pace.outage);
            sleep(jittered(wait)).await;
        }
    }
}

/// Lists all pages, as they are at this version of the log or later.
pub(super) async fn pages(client: &Client, version: &str) -> Result<Vec<Page>, RequestError> {
    let list = list(client, "page", Some(version)).await?;
    Ok(list.items.into_iter().filter_map(|it| it.spec.page).collect())
}

async fn list(client: &Client, part: &str, version: Option<&str>) -> Result<List, RequestError> {
    let at = version.map(|it| format!("&resourceVersion={it}&resourceVersionMatch=NotOlderThan"));
    fetch(client, &(list_path(part) + &at.unwrap_or_default()), JSON).await
}

/// All objects.
pub(super) async fn objects(client: &Client) -> Result<Vec<Stored>, RequestError> {
    Ok(fetch(client, &folder(), JSON).await?.items)
}

/// All objects; what they say may be missing.
pub(super) async fn versions(client: &Client) -> Result<Vec<Stored>, RequestError> {
    Ok(fetch(client, &folder(), METADATA).await?.items)
}

async fn fetch(client: &Client, path: &str, accept: &str) -> Result<List, RequestError> {
    let request = http::Request::get(path).header(http::header::ACCEPT, accept).body(Vec::new());
    send(client, request, LIST).await
}

/// An event of the watch.
#[derive(Deserialize)]
struct Event {
    r#type: String,
    object: Value,
}

async fn watch(
    client: &Client,
    version: &mut String,
    news: &mpsc::Sender<News>,
) -> Result<(), Trouble> {
    let path = format!(
        "{}&watch=1&allowWatchBookmarks=true&timeoutSeconds={WATCH_SECONDS}&resourceVersion={version}",
        list_path("log")
    );
    let answer = timeout(ANSWER, answer::get(client, &path, JSON)).await;
    let (_, body) = answer.map_err(|_| Trouble::Silent)??;
    let _ = news.send(News::Answered).await;
    let mut body = std::pin::pin!(body);
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = tokio::select! {
            read = timeout(SILENCE, read_part(&mut body, &mut line, Framing::Lines)) => read,
            () = news.closed() => return Ok(()),
        };
        read.map_err(|_| Trouble::Silent)?.map_err(|it| Trouble::Other(it.to_string()))?;
        if line.is_empty() {
            return Ok(());
        }
        let damaged = |error: serde_json::Error| Trouble::Undecodable(error.to_string());
        let Event { r#type, object } = serde_json::from_slice(&line).map_err(damaged)?;
        if r#type == "ERROR" {
            return Err(Trouble::of_status(&object, 0));
        }
        let Stored { metadata, spec } = serde_json::from_value(object).map_err(damaged)?;
        if !metadata.resource_version.is_empty() {
            *version = metadata.resource_version;
        }
        if let (Some(log), "ADDED" | "MODIFIED") = (spec.log, r#type.as_str()) {
            let _ = news.send(News::Written(Box::new(log))).await;
        }
    }
}
