//! Why the objects of the aggregate do not add up.

use super::super::RequestError;
use crate::PodKey;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Damage {
    /// The pages were not read.
    #[error(transparent)]
    Unread(#[from] RequestError),
    #[error("there is no log")]
    NoLog,
    /// An object of the log that lies between others.
    #[error("log {0} is missing")]
    MissingLog(u64),
    /// Positions have no page.
    #[error("a page is missing")]
    MissingPage,
    #[error("a page has no prefix")]
    NoPrefix,
    #[error("{0} is not on its page")]
    Misplaced(PodKey),
    #[error("the log is too short for its pages")]
    TooShort,
    #[error("the log goes from {0} to {1}")]
    Gap(u64, u64),
    #[error("the log went back from {0} to {1}")]
    Back(u64, u64),
    /// Number and checksum of the pods, and those that the log says.
    #[error("{0} pods with checksum {1} where {2} with {3} are expected")]
    Sum(u64, String, u64, String),
    /// The beginning of a text that cannot be read.
    #[error("damaged text '{}'", .0.escape_debug())]
    Text(String),
}

impl Damage {
    /// A text that cannot be read.
    pub(super) fn text(text: &str) -> Self {
        Self::Text(text.chars().take(80).collect())
    }
}
