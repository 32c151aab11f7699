//! What the switch needs from the kernel's network configuration.
//!
//! ```text
//!   control loop ─ set(desired) ─▶ Programmer (thread) ─▶ HostNetwork ─▶ nft, netlink
//!                                   │ retries, verifies
//!   control loop ◀── Event::… ──────┘
//! ```
//!
//! - `interfaces`: the traits, replaced in tests, and the kernel behind them,
//! - `guard`: notices XDP programs that were removed,
//! - `programmer`: one part of the configuration, kept in the desired state by a thread of its own,
//! - `without_ports`: the same where nftables enforces,
//! - `next_hops`: the next hops towards other cluster nodes.

mod guard;
mod interfaces;
mod next_hops;
mod programmer;
mod without_ports;

pub use interfaces::{
    HostNetwork, InterfaceEvent, Interfaces, KernelInterfaces, Opened, OpenedUplink,
};
pub(super) use next_hops::NextHops;
pub(crate) use next_hops::{Destination, Hop};
pub(super) use programmer::{Programmer, Programming};
pub use without_ports::WithoutPorts;
