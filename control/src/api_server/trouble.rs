//! Classifies failures of requests.

use std::fmt;

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
    /// Classifies an HTTP status or an ERROR event.
    pub(super) fn status(code: u16, message: &str, retry_after: u32) -> Self {
        let seconds = u64::from(retry_after.min(60));
        match code {
            410 => Self::Expired,
            404 => Self::Absent,
            400 | 422 if message.contains("sendInitialEvents") => {
                Self::NotStreaming(message.to_owned())
            }
            429 | 500..=599 if seconds > 0 => Self::Later(format!("{code} {message}"), seconds),
            _ => Self::Other(format!("{code} {message}")),
        }
    }

    /// Returns whether a streaming list that ends with this failure may succeed as a list by pages: the
    /// API server answered, and asks for no patience. An etcd without RequestWatchProgress answers each
    /// streaming list with an error, for instance.
    pub(super) fn is_about_streaming(&self) -> bool {
        matches!(self, Self::NotStreaming(_) | Self::Undecodable(_) | Self::Other(_))
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
            | Self::Away(text)
            | Self::Undecodable(text)
            | Self::Other(text) => f.write_str(text),
        }
    }
}
