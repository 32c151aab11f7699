//! Errors as a container runtime reads them.

use serde_json::{Value, json};

use super::version::Version;
use local_api::{ClientError, ErrorKind};

/// An error of the plugin: a number for the runtime, a text for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CniError {
    pub code: u32,
    pub message: String,
}

/// The numbers the CNI specification gives a meaning (section 5, "Error"), and
/// from 100 on our own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Code {
    /// The configuration's version is not one of ours.
    Version = 1,
    /// The container is unknown; nothing was made, nothing has to be deleted.
    UnknownContainer = 3,
    /// A variable is missing or has an invalid value.
    Environment = 4,
    /// A file or stream failed.
    Io = 5,
    /// Text that should be JSON is not.
    Decode = 6,
    /// The configuration is invalid.
    Config = 7,
    /// A retry may succeed.
    TryLater = 11,
    /// No pod can be attached now.
    Unavailable = 50,
    /// As above, and attached pods may be without network.
    UnavailableAndLimited = 51,
    /// The kernel refused a step.
    Kernel = 100,
    /// The agent refused.
    Agent = 101,
    /// The attachment exists already.
    Attached = 102,
    /// CHECK found something missing or changed.
    Differs = 103,
}

impl CniError {
    pub(super) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code: code as u32, message: message.into() }
    }

    /// Adds context to the error.
    pub(super) fn during(self, what: &str) -> Self {
        Self { message: format!("{what}: {}", self.message), ..self }
    }

    pub(super) fn to_json(&self, version: Version) -> Value {
        json!({ "cniVersion": version.as_str(), "code": self.code, "msg": self.message })
    }
}

impl From<linux_net::Error> for CniError {
    fn from(error: linux_net::Error) -> Self {
        Self::new(Code::Kernel, error.to_string())
    }
}

impl From<ClientError> for CniError {
    fn from(error: ClientError) -> Self {
        let code = match &error {
            ClientError::Refused(refusal) => match refusal.kind {
                ErrorKind::NotReady | ErrorKind::Timeout => Code::TryLater,
                _ => Code::Agent,
            },
            _ => Code::TryLater,
        };
        let hint = match &error {
            // The switch answers by then, if only with the event that it waits for.
            ClientError::Timeout { .. } => {
                "; `timeout` in this plugin's configuration must exceed the switch's attach-timeout"
            }
            _ => "",
        };
        Self::new(code, format!("{error}{hint}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use local_api::ApiError;

    #[test]
    fn what_a_runtime_may_try_again() {
        let refused = |kind| ClientError::from(ApiError::new(kind, "no"));
        let away = ClientError::NotRunning { socket: "/run/x".into() };
        let cases = [
            (away, Code::TryLater),
            (refused(ErrorKind::NotReady), Code::TryLater),
            (refused(ErrorKind::Timeout), Code::TryLater),
            (refused(ErrorKind::Conflict), Code::Agent),
            (refused(ErrorKind::Internal), Code::Agent),
        ];
        for (error, code) in cases {
            assert_eq!(CniError::from(error).code, code as u32);
        }
        let late = ClientError::Timeout {
            socket: "/run/x".into(),
            timeout: std::time::Duration::from_secs(5),
        };
        let message = CniError::from(late).message;
        assert!(message.contains("must exceed the switch's attach-timeout"), "{message}");
    }

    #[test]
    fn the_specifications_form() {
        let error = CniError::new(Code::TryLater, "not now").during("attach pod a/b");
        let expected = json!({"cniVersion": "1.0.0", "code": 11, "msg": "attach pod a/b: not now"});
        assert_eq!(error.to_json(Version::V1_0_0), expected);
    }
}
