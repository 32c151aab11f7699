//! Files by their identity.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

/// Device and inode of a file.
pub(crate) fn identity(of: &Metadata) -> (u64, u64) {
    (of.dev(), of.ino())
}
