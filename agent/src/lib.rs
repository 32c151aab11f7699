//! The running switch.
//!
//! ```text
//!   podgate-cni ──attach-pod──▶ local API ──▶ control loop ──snapshots──▶ workers
//!   podgate status, observe, show … ──▶ api      │
//!   API server, manifests ───────────────────────┘
//! ```
//!
//! - [`config`]: options from flags, environment and file,
//! - [`run`]: the switch, its local API, health, metrics and pages for clients elsewhere.

pub mod config;
pub mod run;
