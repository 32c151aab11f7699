//! One request to the API server that is answered by a JSON object.

use std::fmt;
use std::time::Duration;

use kube::Client;
use serde_json::Value;

use super::list::with_causes;

/// Why a request failed.
pub(super) enum Failure {
    /// The status code and message of the API server.
    Refused(u16, String),
    /// No answer within this time.
    Late(Duration),
    /// The request could not be sent, or its answer not be read.
    Broken(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(code, message) => write!(f, "{code} {}", message.trim()),
            Self::Late(timeout) => write!(f, "no answer within {timeout:?}"),
            Self::Broken(why) => f.write_str(why),
        }
    }
}

/// Sends a request and waits for its answer. The body of a `PATCH` is a JSON merge patch (RFC 7396).
pub(super) async fn call(
    client: &Client,
    method: &str,
    path: &str,
    body: Option<&Value>,
    timeout: Duration,
) -> Result<Value, Failure> {
    let content = match method {
        "PATCH" => "application/merge-patch+json",
        _ => "application/json",
    };
    let request = http::Request::builder()
        .method(method)
        .uri(path)
        .header(http::header::CONTENT_TYPE, content)
        .body(body.map(Value::to_string).unwrap_or_default().into_bytes())
        .map_err(|error| Failure::Broken(error.to_string()))?;
    match tokio::time::timeout(timeout, client.request::<Value>(request)).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(kube::Error::Api(status))) => {
            Err(Failure::Refused(status.code, status.message.clone()))
        }
        Ok(Err(error)) => Err(Failure::Broken(with_causes(&error))),
        Err(_) => Err(Failure::Late(timeout)),
    }
}
