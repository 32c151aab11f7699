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
//! - [`api`]: what travels over the agent's unix socket.

pub mod api;
pub mod linux;
mod mac;

pub use mac::{MacAddress, ParseMacError};
