//! Errors of the kernel's interfaces.

use std::io;

/// An operation the kernel refused, with the object it was about.
///
/// Reads like `create veth pair pg12 and eth0: File exists (os error 17)`, followed by the kernel's
/// explanation where there is one.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {cause}{}", words.as_ref().map(|words| format!(": {words}")).unwrap_or_default())]
pub struct Error {
    what: String,
    cause: io::Error,
    words: Option<String>,
}

impl Error {
    pub(crate) fn new(what: impl Into<String>, cause: io::Error) -> Self {
        Self { what: what.into(), cause, words: None }
    }

    /// Adds the kernel's explanation.
    pub(super) fn with_words(self, words: Option<String>) -> Self {
        Self { words, ..self }
    }

    pub(crate) fn invalid(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self::new(what, io::Error::new(io::ErrorKind::InvalidData, why.into()))
    }

    /// All of several errors as one; `Ok` if there are none.
    pub(crate) fn all(what: &str, errors: &[Self]) -> Result<(), Self> {
        if errors.is_empty() {
            return Ok(());
        }
        let texts: Vec<String> = errors.iter().map(Self::to_string).collect();
        Err(Self::new(what, io::Error::other(texts.join("; "))))
    }

    /// The kernel's error number (`libc::E…`), if the kernel gave one.
    pub(crate) fn errno(&self) -> Option<i32> {
        self.cause.raw_os_error()
    }

    /// Returns whether the object does not exist (any more).
    pub fn is_not_found(&self) -> bool {
        use libc::{EADDRNOTAVAIL, ENODEV, ENOENT, ENXIO, ESRCH};
        matches!(self.errno(), Some(ENODEV | ENOENT | ENXIO | ESRCH | EADDRNOTAVAIL))
    }

    /// Returns whether an object of that name is there already.
    pub fn is_exists(&self) -> bool {
        self.errno() == Some(libc::EEXIST)
    }
}
