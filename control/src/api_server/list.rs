//! Lists all objects of a kind once.

use api_client::{RequestError, call};

use std::time::Duration;

use serde_json::Value;

use super::Connection;
use super::discovery::{self, Served};
use crate::Kind;

/// Objects in one answer.
const PAGE: usize = 500;
/// Timeout of a page.
const TIMEOUT: Duration = Duration::from_secs(60);

/// All objects of a kind as the API server has them, in whatever version it serves them; none where
/// the kind is not installed.
///
/// # Errors
/// When the API server refuses or does not answer.
pub async fn list(connection: &Connection, kind: Kind) -> Result<Vec<Value>, RequestError> {
    let mut version = kind.api_version().to_owned();
    let root = if version.contains('/') { "apis" } else { "api" };
    let (mut objects, mut next) = (Vec::new(), String::new());
    loop {
        let page = if next.is_empty() { String::new() } else { format!("&continue={next}") };
        let path = format!("/{root}/{version}/{}?limit={PAGE}{page}", kind.plural());
        let answer = call(&connection.client, "GET", &path, None, TIMEOUT).await;
        let mut answer = match answer {
            Ok(answer) => answer,
            Err(error) if error.code() == Some(404) && kind.may_be_absent() => {
                match discovery::served(&connection.client, kind).await {
                    Served::Nowhere => return Ok(objects),
                    Served::In(other) if other != version => {
                        (version, next) = (other, String::new());
                        objects.clear();
                        continue;
                    }
                    Served::In(_) | Served::Unknown => return Err(error),
                }
            }
            Err(error) => return Err(error),
        };
        if let Value::Array(items) = answer["items"].take() {
            objects.extend(items.into_iter().map(|mut item| {
                // Items of a list do not say what they are.
                item["apiVersion"] = kind.api_version().into();
                item["kind"] = kind.name().into();
                item
            }));
        }
        match answer["metadata"]["continue"].as_str() {
            Some(more) if !more.is_empty() => next = super::watch::escaped(more),
            _ => return Ok(objects),
        }
    }
}
