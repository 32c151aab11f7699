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
//! - `replay`: captures through the switch of a cluster node,
//! - [`api`]: what travels over the agent's unix socket,
//! - [`cni`]: the plugin a container runtime calls for every pod,
//! - [`probe`]: asks the compiled tables whether a connection may be opened,
//! - [`run`]: the running switch, told by [`config`],
//! - [`verdicts`]: the stream of what it decided,
//! - [`trace`]: packets followed from node to node,
//! - [`commands`]: the command line of `podgate`.

pub mod api;
pub mod cni;
pub mod commands;
pub mod config;
mod http;
pub mod linux;
pub mod logger;
mod mac;
pub mod node;
pub mod probe;
mod replay;
pub mod run;
pub mod time;
pub mod trace;
pub mod verdicts;

pub use mac::{MacAddress, ParseMacError};
