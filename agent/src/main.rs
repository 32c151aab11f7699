//! The `podgate` binary.

use std::process::ExitCode;

use agent::commands::Cli;
use clap::Parser;

fn main() -> ExitCode {
    Cli::parse().run()
}
