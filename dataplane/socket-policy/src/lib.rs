//! Session rules at the sockets of pods: programs at a pod's cgroup deny `connect()` and `sendmsg()`.
//!
//! A denied call fails at once, with a reason in [`SocketPolicy::denied`], where a packet that the switch
//! drops ends in a time-out. It is a second wall: the switch decides about each packet all the same.

pub mod cgroups;
mod events;
mod kernel;
mod layout;
mod link;
mod render;

use std::io;

/// Folder of pins in a file system of type bpf.
pub const PINS: &str = "podgate-sockets";

pub use kernel::{Counters, Denied, Options, SocketPolicy, remove_pins};

/// An attempt that failed, and the kernel's answer.
#[derive(Debug, thiserror::Error)]
#[error("{attempt}: {cause}")]
pub struct Error {
    /// The attempt.
    pub attempt: String,
    /// The kernel's answer.
    #[source]
    pub cause: io::Error,
}

impl Error {
    pub(crate) fn new(attempt: impl Into<String>, cause: io::Error) -> Self {
        Self { attempt: attempt.into(), cause }
    }
}
