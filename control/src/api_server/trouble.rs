//! Classifies failures of requests.

use std::fmt;

use api_client::brief;
use serde_json::Value;

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// The resource version has expired.
    Expired,
    /// Try again after so many seconds.
    Later(String, u64),
    /// The kind is not installed.
    Absent,
    /// The API server does not support streaming lists.
    NotStreaming(String),
    /// The API server does not answer in the requested encoding.
    NotAcceptable(String),
    /// The API server cannot be reached.
    Away(String),
    /// A line of the answer that is no event of the kind. What it was about is unknown.
    Undecodable(String),
    /// A timeout without data.
    Silent,
    /// Anything else.
    Other(String),
}

impl Trouble {
    /// Classifies a `Status`; `code` stands where it has none.
    pub(super) fn of_status(status: &Value, code: u16) -> Self {
        let number = |value: &Value| value.as_u64();
        let said = number(&status["code"]).and_then(|it| u16::try_from(it).ok());
        let wait = number(&status["details"]["retryAfterSeconds"]).unwrap_or(0).min(60) as u32;
        Self::status(said.unwrap_or(code), status["message"].as_str().unwrap_or(""), wait)
    }

    /// Classifies an HTTP status or an ERROR event.
    pub(super) fn status(code: u16, message: &str, retry_after: u32) -> Self {
        let seconds = u64::from(retry_after.min(60));
        let is_about_lists = message.contains("sendInitialEvents");
        let message = brief(message);
        match code {
            410 => Self::Expired,
            404 => Self::Absent,
            406 | 415 => Self::NotAcceptable(format!("{code} {message}")),
            400 | 422 if is_about_lists => Self::NotStreaming(message.to_owned()),
            429 | 500..=599 if seconds > 0 => Self::Later(format!("{code} {message}"), seconds),
            _ => Self::Other(format!("{code} {message}")),
        }
    }

    /// Returns whether a streaming list that ends with this failure may succeed as a list by pages: the
    /// API server answered, and asks for no patience. An etcd without RequestWatchProgress answers each
    /// streaming list with an error, for instance.
    pub(super) fn is_about_streaming(&self) -> bool {
        matches!(
            self,
            Self::NotStreaming(_) | Self::Undecodable(_) | Self::NotAcceptable(_) | Self::Other(_)
        )
    }

    /// Returns whether the failure is worth reporting.
    pub(super) fn is_news(&self) -> bool {
        !matches!(self, Self::Expired | Self::Absent | Self::NotStreaming(_))
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expired => f.write_str("the version held has expired"),
            Self::Absent => f.write_str("404: the API server does not have the kind"),
            Self::Silent => f.write_str("the connection fell silent"),
            Self::Later(text, _)
            | Self::NotStreaming(text)
            | Self::NotAcceptable(text)
            | Self::Away(text)
            | Self::Undecodable(text)
            | Self::Other(text) => f.write_str(text),
        }
    }
}
