//! The `podgate-policy` binary: the commands of `podgate policy` that need no running switch.

use std::process::ExitCode;

use clap::Parser;
use policy_tools::commands::policy::{Command, run};

/// Test, prove, compare and check Kubernetes network policies, without a cluster and without root
#[derive(Debug, Parser)]
#[command(name = "podgate-policy", version, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    run(&Cli::parse().command)
}
