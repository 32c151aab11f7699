//! Flow offload: established connections take the kernel's fast way.
//!
//! The switch decides about every connection. What it has allowed, and what has shown that it
//! lives, it hands to programs in the kernel (`bpf/flow.bpf.c`), which forward its packets from pod
//! to pod until something about it changes. Everything else reaches the switch by the punt link:
//!
//! ```text
//!   pod ── veth ──▶ from_pod ─┬─ entry ────────▶ into the other pod
//!                             └─ else ─▶ punt link ─▶ AF_XDP ─▶ the switch
//!   the switch ─▶ AF_XDP ─▶ punt link ─▶ from_switch ─▶ into the pod
//! ```
//!
//! An entry counts only while
//!
//! - the generations of both pods (and of services, for a translated connection) are what they were
//!   when the switch allowed the connection, and
//! - the switch's heartbeat is not too old.
//!
//! - [`Offload`]: hands connections to the programs and takes them back,
//! - [`entries`]: the entries that follow from a connection,
//! - [`layout`]: keys and entries, shared with the programs,
//! - [`Kernel`]: the loaded programs, their maps and where they are attached,
//! - [`support`]: what the running kernel lacks.

mod barrier;
mod connections;
mod engine;
mod entries;
mod follow;
mod kernel;
pub mod layout;
mod map;
mod object;
mod progress;
mod published;
pub mod support;
mod tcx;

use std::io;

pub use connections::PortUsage;
pub use engine::{Offload, Options, State};
pub use entries::{Entries, entries};
pub use follow::{Connection, Followed};
pub use kernel::{Counters, Kernel, Outcome, interfaces, recognize_programs};

/// What was tried, and what the kernel says.
#[derive(Debug, thiserror::Error)]
#[error("{attempt}: {cause}")]
pub struct Error {
    /// What was tried.
    pub attempt: String,
    /// What the kernel says.
    #[source]
    pub cause: io::Error,
}

impl Error {
    pub(crate) fn new(attempt: impl Into<String>, cause: io::Error) -> Self {
        Self { attempt: attempt.into(), cause }
    }
}
