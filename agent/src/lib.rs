//! The node agent: what `podgate` and `podgate-cni` are made of.
//!
//! ```text
//!   container runtime ──ADD/DEL──▶ cni ──attach-pod──▶ api ──▶ the running switch
//!                                   │                             │
//!                                   └──────────▶ linux ◀──────────┘
//!                           veth pairs, addresses, routes, offloads
//! ```
//!
//! - [`linux`]: the one door to the kernel's network configuration,
//! - [`node`]: what the control side published, as a snapshot for the dataplane,
//! - [`api`]: what travels over the agent's unix socket,
//! - [`probe`]: asks the compiled tables whether a connection may be opened,
//! - [`commands`]: the command line of `podgate`.

pub mod api;
pub mod commands;
pub mod linux;
mod mac;
pub mod node;
pub mod probe;

pub use mac::{MacAddress, ParseMacError};
