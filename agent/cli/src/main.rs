//! The `podgate` binary.

use std::process::ExitCode;

use clap::Parser;
use cli::commands::Cli;
use cli::kubectl;

fn main() -> ExitCode {
    if kubectl::is_plugin(std::env::args_os().next().as_deref()) {
        return kubectl::Cli::parse().run();
    }
    Cli::parse_from(konnectivity::commands::arguments(std::env::args_os())).run()
}
