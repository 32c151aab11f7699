//! Questions answered without a running switch, over the graph that forwards packets.
//!
//! ```text
//! manifests ─ control ─▶ view ─ renderer ─▶ snapshot ─┐
//! cases, captures ─────────────────────────▶ packets ─┴▶ the graph ─▶ verdicts
//! ```
//!
//! - [`probe`]: whether a connection may be opened,
//! - [`replay`]: what becomes of a capture's packets,
//! - [`commands`]: the command line of both, and of explain and walkthrough.

pub mod commands;
pub mod probe;
pub mod replay;
