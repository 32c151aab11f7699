//! Questions answered without a running switch, over the graph that forwards packets.
//!
//! ```text
//! manifests ─ control ─▶ view ─ renderer ─▶ snapshot ─┐
//! cases, captures ─────────────────────────▶ packets ─┴▶ the graph ─▶ verdicts
//! ```
//!
//! - [`admission`]: changes of policies, before the API server takes them,
//! - [`input`]: manifests as repositories and clusters have them,
//! - [`policy`]: tests of policies,
//! - [`probe`]: whether a connection may be opened,
//! - [`replay`]: the verdict about each packet of a capture,
//! - [`commands`]: their command lines,
//! - [`yaml`]: objects as they are printed.

#![deny(clippy::print_stdout, clippy::print_stderr, reason = "cli_runtime prints")]

pub mod admission;
pub mod commands;
pub mod input;
pub mod policy;
pub mod probe;
pub mod replay;
pub mod yaml;
