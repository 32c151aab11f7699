//! The `podgate` binary.

use std::process::ExitCode;

use agent::commands::Cli;
use clap::Parser;

fn main() -> ExitCode {
    Cli::parse_from(konnectivity::commands::arguments(std::env::args_os())).run()
}
