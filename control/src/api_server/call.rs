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

impl From<kube::Error> for Failure {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::Refused(status.code, status.message.clone()),
            error => Self::Broken(with_causes(&error)),
        }
    }
}

/// Makes a request and waits for its answer. The body of a `PATCH` is a JSON merge patch (RFC 7396).
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
    send(client, request, timeout).await
}

/// Sends a request and waits for its answer.
pub(super) async fn send(
    client: &Client,
    request: http::Request<Vec<u8>>,
    timeout: Duration,
) -> Result<Value, Failure> {
    match tokio::time::timeout(timeout, client.request(request)).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(Failure::Late(timeout)),
    }
}
