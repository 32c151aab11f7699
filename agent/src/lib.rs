//! The running switch and the `podgate` command.
//!
//! ```text
//!   podgate-cni ──attach-pod──▶ local API ──▶ control loop ──snapshots──▶ workers
//!   podgate status, observe, show … ──▶ api      │
//!   API server, manifests ───────────────────────┘
//! ```
//!
//! - [`commands`]: the command line,
//! - [`config`]: options from flags, environment and file,
//! - [`run`]: the running switch, its local API, health, metrics and pages for clients elsewhere,
//! - [`kubectl`]: `kubectl podgate`.

pub mod commands;
pub mod config;
pub mod kubectl;
pub mod run;
