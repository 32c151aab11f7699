//! Answers of the running switch.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One line of answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// `{"result":…}`; its shape belongs to the method.
    Result(Value),
    /// `{"error":{"kind":…,"message":…}}`
    Error(ApiError),
}

/// Error of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// For programs.
    pub kind: ErrorKind,
    /// For people: names the pod, field or file.
    pub message: String,
}

/// The kinds of refusal a program may act on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorKind {
    /// The request cannot be parsed, or a field is invalid.
    BadRequest,
    /// There is no such method.
    UnknownMethod,
    /// The named object does not exist.
    NotFound,
    /// It exists already, with other content.
    Conflict,
    /// It cannot be done yet; a retry may succeed.
    NotReady,
    /// It did not complete in time and was undone.
    Timeout,
    /// The switch's own fault.
    Internal,
    /// A kind of a later version.
    #[serde(other)]
    Unknown,
}

/// The result of `attach-pod`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachedPod {
    /// The snapshot with the pod's tables; every worker uses it or a later one.
    pub generation: u64,
    /// True if other kernels get the pod's packets without the switch, so that it may leave
    /// checksums and segments to them.
    #[serde(default)]
    pub flow_offload: bool,
}

impl ApiError {
    /// An error of a kind with its text.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }
}

impl Answer {
    /// A result from anything that can be written as JSON; an internal error if it cannot.
    pub fn result(value: &impl Serialize) -> Self {
        match serde_json::to_value(value) {
            Ok(value) => Self::Result(value),
            Err(error) => Self::Error(ApiError::new(
                ErrorKind::Internal,
                format!("write the result: {error}"),
            )),
        }
    }
}

impl From<ApiError> for Answer {
    fn from(error: ApiError) -> Self {
        Self::Error(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_on_the_wire() {
        let result = Answer::result(&AttachedPod { generation: 7, flow_offload: true });
        assert_eq!(
            serde_json::to_string(&result).unwrap(),
            r#"{"result":{"flow_offload":true,"generation":7}}"#
        );
        let error = Answer::from(ApiError::new(ErrorKind::NotFound, "no pod"));
        assert_eq!(
            serde_json::to_string(&error).unwrap(),
            r#"{"error":{"kind":"not-found","message":"no pod"}}"#
        );
    }

    #[test]
    fn a_kind_of_a_later_version_is_still_an_error() {
        let line = r#"{"error":{"kind":"on-holiday","message":"back on Monday"}}"#;
        let Answer::Error(error) = serde_json::from_str(line).unwrap() else { panic!("{line}") };
        assert_eq!(error.kind, ErrorKind::Unknown);
        assert_eq!(error.to_string(), "back on Monday");
    }
}
