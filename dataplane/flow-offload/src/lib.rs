//! Flow offload: programs in the kernel forward established connections.
//!
//! The switch decides about every connection. What it has allowed, and what has shown that it
//! lives, it hands to programs in the kernel (`bpf/flow.bpf.c`), which forward its packets between pods
//! and the uplink until something about it changes. Everything else reaches the switch by a veth pair:
//!
//! ```text
//!   pod ── veth ──▶ from_pod ─┬─ entry ────────▶ into the other pod, or out of the uplink
//!                             └─ else ─▶ punt link ─▶ AF_XDP ─▶ the switch
//!   the switch ─▶ AF_XDP ─▶ punt link ─▶ from_switch ─▶ into the pod
//!
//!   uplink ──▶ from_uplink ─┬─ entry ────────▶ into the pod
//!                           ├─ the switch's ─▶ uplink's link ─▶ AF_XDP ─▶ the switch
//!                           └─ else ─▶ the kernel
//!   the switch ─▶ AF_XDP ─▶ uplink's link ─▶ to_uplink ─▶ uplink
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
//! - [`Kernel`]: the loaded programs, their maps and where they are attached.

mod barrier;
mod connection;
mod connections;
mod context;
mod engine;
mod entries;
mod follow;
mod handshake;
mod ingress;
mod installed;
mod kernel;
pub mod layout;
mod locks;
mod offload;
mod openings;
mod pace;
mod places;
mod programs;
mod progress;
mod published;
mod queues;
mod reports;
mod run;
mod self_test;
mod shares;
mod tcx;
mod templates;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use connection::Connection;
pub use context::Options;
pub use entries::{Entries, NodeContext, entries};
pub use follow::Followed;
pub use installed::PortUsage;
pub use kernel::{Counters, Kernel, recognize_programs};
pub use offload::{Offload, OffloadState};
pub use programs::Programs;
pub use run::{Hook, Outcome};

pub use dataplane::bpf::Error;

/// Nothing that can fail half-way runs under these locks.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
