//! The commands that answer from files, without a running switch.
//!
//! - [`policy`]: `podgate policy …`, questions about policies,
//! - [`replay`]: `podgate replay`, a capture through the switch of one cluster node.

mod explain;
mod input;
pub mod policy;
pub mod replay;
