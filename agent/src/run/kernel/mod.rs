//! The kernel's network configuration, as far as the switch needs it.
//!
//! ```text
//!   control loop ─ set(desired) ─▶ Programmer (thread) ─▶ HostNetwork ─▶ nft, netlink
//!                                   │ retries, verifies
//!   control loop ◀── Event::… ──────┘
//! ```
//!
//! - `operation`: operations on interfaces and their completions; `operations`: the thread that performs them,
//! - `backoff`: retry timers, `error`: why an operation failed,
//! - `interfaces`: operations on interfaces, a trait replaced in tests; `kernel_interfaces`: the real ones,
//! - `host_network`: the node's own network, a trait and the kernel behind it,
//! - `event`: what the kernel reports,
//! - `guard`: notices XDP programs that were removed,
//! - `programmer`: one part of the configuration, kept in the desired state by a thread of its own,
//! - `without_ports`: the same where nftables enforces,
//! - `next_hops`: the next hops towards other nodes.

mod backoff;
mod error;
mod event;
mod guard;
mod host_network;
mod interfaces;
mod kernel_interfaces;
mod next_hops;
mod operation;
mod operations;
mod programmer;
mod without_ports;

pub(super) use backoff::Backoff;
pub use error::KernelError;
pub use event::InterfaceEvent;
pub use host_network::{HostEnd, HostNetwork};
pub use interfaces::{Interfaces, Opened, OpenedUplink, Undo};
pub use kernel_interfaces::KernelInterfaces;
pub(super) use next_hops::NextHops;
pub(crate) use next_hops::{Destination, Hop};
pub(super) use operation::{BringUpFor, Operation, Program, Way};
pub(crate) use operation::{Completion, OpenError, Purpose};
pub(super) use operations::InterfaceThread;
pub(super) use programmer::{Programmer, Programming, Programs};
pub use without_ports::WithoutPorts;
