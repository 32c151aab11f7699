//! One request to the API server that is answered by a JSON object.

use std::pin::pin;
use std::time::Duration;

use futures_util::AsyncReadExt;
use kube::Client;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Maximum length of an answer in bytes: a page of 500 objects has less, and so have all nodes of the largest clusters.
const LONGEST: u64 = 1 << 30;
/// Bytes of a message that are kept.
const LONGEST_MESSAGE: usize = 1024;

/// A request that failed, with its method and path, or with the object that it was about.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {cause}")]
pub struct RequestError {
    what: String,
    /// The cause.
    #[source]
    pub cause: Failure,
}

/// Cause of a failed request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The API server refuses.
    #[error("{code} {}", message.trim())]
    Refused {
        /// HTTP status code.
        code: u16,
        /// The API's reason, such as `NotFound`.
        reason: String,
        /// The beginning of its message.
        message: String,
    },
    /// No answer within this time.
    #[error("no answer within {0:?}")]
    Late(Duration),
    /// The object does not exist, or lacks a field that is needed.
    #[error("not found")]
    Absent,
    /// Another client changed the object.
    #[error("changed by another writer")]
    Changed,
    /// The answer has more than so many bytes.
    #[error("the answer is longer than {0} bytes")]
    TooLong(u64),
    /// The answer cannot be parsed.
    #[error("answer: {0}")]
    Unreadable(String),
    /// The request could not be sent, or its answer not be read.
    #[error("{0}")]
    Broken(String),
}

impl RequestError {
    /// The failure of a request, or one about an object.
    pub fn new(what: impl Into<String>, cause: impl Into<Failure>) -> Self {
        Self { what: what.into(), cause: cause.into() }
    }

    /// The status code of an API server that refuses.
    pub fn code(&self) -> Option<u16> {
        match self.cause {
            Failure::Refused { code, .. } => Some(code),
            _ => None,
        }
    }
}

impl From<kube::Error> for Failure {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::Refused {
                code: status.code,
                message: brief(&status.message).to_owned(),
                reason: status.reason,
            },
            error => Self::Broken(with_causes(&error)),
        }
    }
}

impl From<http::Error> for Failure {
    fn from(error: http::Error) -> Self {
        Self::Broken(error.to_string())
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Self {
        Self::Unreadable(error.to_string())
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::Broken(error.to_string())
    }
}

/// A request, or why it could not be built.
pub type Request = http::Result<http::Request<Vec<u8>>>;

/// Makes a request and waits for its answer. The body of a `PATCH` is a JSON merge patch (RFC 7396).
///
/// # Errors
/// Fails if the API server refuses, or does not answer in time.
pub async fn call(
    client: &Client,
    method: &str,
    path: &str,
    body: Option<&Value>,
    timeout: Duration,
) -> Result<Value, RequestError> {
    let content = match method {
        "PATCH" => "application/merge-patch+json",
        _ => "application/json",
    };
    let request = http::Request::builder()
        .method(method)
        .uri(path)
        .header(http::header::CONTENT_TYPE, content)
        .body(body.map(Value::to_string).unwrap_or_default().into_bytes());
    send(client, request, timeout).await
}

/// Sends a request and waits for its answer.
///
/// # Errors
/// As [`call`].
pub async fn send<T: DeserializeOwned>(
    client: &Client,
    request: Request,
    timeout: Duration,
) -> Result<T, RequestError> {
    let request = request.map_err(|error| RequestError::new("request", error))?;
    let what = format!("{} {}", request.method(), request.uri().path());
    match tokio::time::timeout(timeout, whole(client, request)).await {
        Ok(answer) => answer.map_err(|error| RequestError::new(what, error)),
        Err(_) => Err(RequestError::new(what, Failure::Late(timeout))),
    }
}

/// As [`call`]; `None` where the object does not exist, exists already or was changed in between.
///
/// # Errors
/// As [`call`].
pub async fn call_object(
    client: &Client,
    method: &str,
    path: &str,
    body: Option<&Value>,
    timeout: Duration,
) -> Result<Option<Value>, RequestError> {
    match call(client, method, path, body, timeout).await {
        Ok(value) => Ok(Some(value)),
        Err(error) if matches!(error.code(), Some(404 | 409)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads all of the answer.
async fn whole<T: DeserializeOwned>(
    client: &Client,
    request: http::Request<Vec<u8>>,
) -> Result<T, Failure> {
    let body = pin!(client.request_stream(request).await?);
    let mut read = Vec::new();
    if body.take(LONGEST).read_to_end(&mut read).await? as u64 == LONGEST {
        return Err(Failure::TooLong(LONGEST));
    }
    Ok(serde_json::from_slice(&read)?)
}

/// The beginning of a message, for a line of the log.
pub fn brief(message: &str) -> &str {
    &message[..message.floor_char_boundary(LONGEST_MESSAGE)]
}

/// An error with what caused it, as far as this says more.
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text += &format!(": {more}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_comes_with_its_causes() {
        #[derive(Debug)]
        struct Outer(std::io::Error);
        impl std::fmt::Display for Outer {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("cannot connect")
            }
        }
        impl std::error::Error for Outer {
            fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
                Some(&self.0)
            }
        }
        let refused = std::io::Error::from_raw_os_error(111);
        assert_eq!(
            with_causes(&Outer(refused)),
            "cannot connect: Connection refused (os error 111)"
        );
    }
}
