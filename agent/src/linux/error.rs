//! What goes wrong between us and the kernel.

use std::io;

/// An operation the kernel refused, with the object it was about.
///
/// Reads like `create veth pair pg12 and eth0: File exists (os error 17)`.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {cause}")]
pub struct Error {
    what: String,
    cause: io::Error,
}

impl Error {
    pub(crate) fn new(what: impl Into<String>, cause: io::Error) -> Self {
        Self { what: what.into(), cause }
    }

    pub(crate) fn invalid(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self::new(what, io::Error::new(io::ErrorKind::InvalidData, why.into()))
    }

    /// The kernel's error number (`libc::E…`), if the kernel gave one.
    pub fn errno(&self) -> Option<i32> {
        self.cause.raw_os_error()
    }

    /// Whether the object does not exist (any more).
    pub fn is_not_found(&self) -> bool {
        matches!(self.errno(), Some(libc::ENODEV | libc::ENOENT | libc::ENXIO | libc::ESRCH))
    }

    /// Whether an object of that name is there already.
    pub fn is_exists(&self) -> bool {
        self.errno() == Some(libc::EEXIST)
    }
}
