//! Lists all objects of a kind once.

use serde_json::Value;

use super::Connection;
use super::answer::whole;
use super::call::with_causes;
use super::discovery::{self, Served};
use crate::Kind;

/// Objects in one answer.
const PAGE: usize = 500;

/// All objects of a kind as the API server has them, in whatever version it serves them; none where
/// the kind is not installed.
///
/// # Errors
/// Why the API server gave no list, with all causes.
pub async fn list(connection: &Connection, kind: Kind) -> Result<Vec<Value>, String> {
    let mut version = kind.api_version().to_owned();
    let root = if version.contains('/') { "apis" } else { "api" };
    let (mut objects, mut next) = (Vec::new(), String::new());
    loop {
        let page = if next.is_empty() { String::new() } else { format!("&continue={next}") };
        let path = format!("/{root}/{version}/{}?limit={PAGE}{page}", kind.plural());
        let request = http::Request::get(path).body(Vec::new());
        let request = request.map_err(|error| error.to_string())?;
        let answer = whole::<Value>(&connection.client, request).await;
        let mut answer = match answer {
            Ok(answer) => answer,
            Err(kube::Error::Api(status)) if status.code == 404 && kind.may_be_absent() => {
                match discovery::served(&connection.client, kind).await {
                    Served::Nowhere => return Ok(objects),
                    Served::In(other) if other != version => {
                        (version, next) = (other, String::new());
                        objects.clear();
                        continue;
                    }
                    Served::In(_) | Served::Unknown => return Err(status.to_string()),
                }
            }
            Err(error) => return Err(with_causes(&error)),
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
