//! The `podgate` command.
//!
//! - [`commands`]: its subcommands,
//! - [`kubectl`]: `kubectl podgate`.

#![deny(clippy::print_stdout, clippy::print_stderr, reason = "cli_runtime prints")]

pub mod commands;
pub mod kubectl;
