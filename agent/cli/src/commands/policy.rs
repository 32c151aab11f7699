//! `podgate policy`: questions about policies, to manifests and to the running switch.

use super::{Ended, promote, staged};
use policy_tools::commands::policy;

/// The commands of `podgate policy`.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Those that need no running switch.
    #[command(flatten)]
    Offline(policy::Command),
    /// List the connections that staged policies would deny or allow
    Staged(staged::Args),
    /// Print the manifest of a staged policy without its annotation, if it changed nothing
    Promote(promote::Args),
}

/// Runs the command.
pub(super) fn run(command: &Command) -> Ended {
    match command {
        Command::Offline(command) => Ok(policy::run(command)),
        Command::Staged(args) => staged::run(args),
        Command::Promote(args) => promote::run(args),
    }
}
