//! The running switch and the `podgate` command.
//!
//! ```text
//!   podgate-cni ──attach-pod──▶ api ──▶ run: control loop ──snapshots──▶ workers
//!   podgate status, observe, show … ──▶ api      │
//!   API server, manifests ───────────────────────┘
//! ```
//!
//! - [`commands`]: the command line,
//! - [`config`]: options from flags, environment and file,
//! - [`run`]: the running switch,
//! - `api`: the server side of the local API,
//! - `capture`: the server side of live captures,
//! - `http`: health and metrics.

mod api;
mod capture;
pub mod commands;
pub mod config;
mod http;
pub mod run;

pub use api::Server;
