//! The kernel's network configuration, as far as the switch needs it.
//!
//! ```text
//!   control loop ─ set(desired) ─▶ Programmer (thread) ─▶ HostNetwork ─▶ nft, netlink
//!                                   │ retries, verifies
//!   control loop ◀── Event::… ──────┘
//! ```
//!
//! - `operations`: the thread that performs operations on interfaces,
//! - `backoff`: retry timers,
//! - `interfaces`: the traits, replaced in tests, and the kernel behind them,
//! - `event`: what the kernel reports,
//! - `guard`: notices XDP programs that were removed,
//! - `programmer`: one part of the configuration, kept in the desired state by a thread of its own,
//! - `without_ports`: the same where nftables enforces,
//! - `next_hops`: the next hops towards other cluster nodes.

mod backoff;
mod event;
mod guard;
mod interfaces;
mod next_hops;
mod operations;
mod programmer;
mod without_ports;

pub(super) use backoff::Backoff;
pub use event::InterfaceEvent;
pub use interfaces::{HostNetwork, Interfaces, KernelInterfaces, Opened, OpenedUplink};
pub(super) use next_hops::NextHops;
pub(crate) use next_hops::{Destination, Hop};
pub(crate) use operations::{Completion, OpenError, Purpose};
pub(super) use operations::{InterfaceThread, Operation, Way};
pub(super) use programmer::{Programmer, Programming};
pub use without_ports::WithoutPorts;
