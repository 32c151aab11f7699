//! The `podgate` command.
//!
//! - [`commands`]: its subcommands,
//! - [`kubectl`]: `kubectl podgate`.

pub mod commands;
pub mod kubectl;
