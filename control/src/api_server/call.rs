//! One request to the API server that is answered by a JSON object.

use std::fmt;
use std::time::Duration;

use kube::Client;
use serde_json::Value;

use super::answer::whole;
use super::trouble::brief;

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
            kube::Error::Api(status) => {
                Self::Refused(status.code, brief(&status.message).to_owned())
            }
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
    match tokio::time::timeout(timeout, whole(client, request)).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(Failure::Late(timeout)),
    }
}

/// As [`call`]; `None` where the object does not exist, exists already or was changed in between.
pub(super) async fn call_object(
    client: &Client,
    method: &str,
    path: &str,
    body: Option<&Value>,
    timeout: Duration,
) -> Result<Option<Value>, Failure> {
    match call(client, method, path, body, timeout).await {
        Ok(value) => Ok(Some(value)),
        Err(Failure::Refused(404 | 409, _)) => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// An error with what caused it, as far as this says more.
pub(super) fn with_causes(error: &dyn std::error::Error) -> String {
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
