//! The command line of `podgate`.
//!
//! One file a command: its arguments, its help with an example, and `run`, which returns the exit
//! code ([`cli_runtime`] lists the codes). The commands that need no running switch are in [`policy_tools`].

pub mod admission;
pub mod bundle;
pub mod call;
pub mod capture;
pub mod check;
pub mod completion;
pub mod connectivity_test;
pub(crate) mod filters;
pub mod install_cni;
pub mod manual;
pub mod observe;
pub mod policy;
pub mod promote;
pub mod rotate_key;
pub mod run;
pub mod show;
pub mod staged;
pub mod status;
pub mod top;
pub mod trace;
pub mod uninstall;
mod view;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use konnectivity::commands as proxy;
use policy_tools::commands::replay;

/// The exit code of a command; of one that ends early, after its error is printed, as an error.
type Ended = Result<ExitCode, ExitCode>;

/// A userspace virtual switch for Kubernetes nodes.
#[derive(Debug, Parser)]
#[command(name = "podgate", version, max_term_width = 100)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub struct Cli {
    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the switch of this node
    Run(Box<run::Args>),
    /// Check whether this machine can run Podgate
    Check(check::Args),
    /// Show the state of the running switch
    Status(status::Args),
    /// Show live packet rates of the running switch
    Top(top::Args),
    /// Show verdicts of the running switch
    Observe(Box<observe::Args>),
    /// Capture packets at a port of the running switch
    Capture(capture::Args),
    /// Show one of the running switch's tables
    Show(show::Args),
    /// Trace packets through the running switch
    #[command(subcommand)]
    Trace(trace::Command),
    /// Rotate this node's key of encryption between nodes
    RotateKey(rotate_key::Args),
    /// Install the CNI plugin and its configuration
    InstallCni(install_cni::Args),
    /// Remove Podgate from this node
    Uninstall(uninstall::Args),
    /// Collect diagnostics for a bug report, without secrets
    Bundle(bundle::Args),
    /// Test connectivity and policies with temporary pods
    ConnectivityTest(connectivity_test::Args),
    /// Write manual pages of all commands
    #[command(hide = true)]
    Manual(manual::Args),
    /// Generate a shell completion script
    Completion(completion::Args),
    /// Replay a capture through the switch of a node
    Replay(replay::Args),
    /// Query, test and compare policies
    #[command(subcommand)]
    Policy(policy::Command),
    /// Serve a webhook that judges changes of policies before the API server takes them
    Admission(admission::Args),
    /// Run the server of the API server network proxy, or check what sends the API server to it
    KonnectivityServer(Box<proxy::server::Args>),
    /// Run the agent of the API server network proxy
    KonnectivityAgent(Box<proxy::agent::Args>),
}

impl Cli {
    /// Runs the command.
    pub fn run(self) -> ExitCode {
        let ended = match self.command {
            Command::Run(args) => run::run(&args),
            Command::Check(args) => check::run(&args),
            Command::Status(args) => status::run(&args),
            Command::Top(args) => top::run(&args),
            Command::Observe(args) => observe::run(&args),
            Command::Capture(args) => capture::run(&args),
            Command::Show(args) => show::run(&args),
            Command::Trace(command) => trace::run(&command),
            Command::RotateKey(args) => rotate_key::run(&args),
            Command::InstallCni(args) => install_cni::run(&args),
            Command::Uninstall(args) => uninstall::run(&args),
            Command::Bundle(args) => bundle::run(&args),
            Command::ConnectivityTest(args) => connectivity_test::run(&args),
            Command::Manual(args) => manual::run(&args),
            Command::Completion(args) => completion::run(&args),
            Command::Replay(args) => Ok(replay::run(&args)),
            Command::Policy(command) => policy::run(&command),
            Command::Admission(args) => admission::run(&args),
            Command::KonnectivityServer(args) => Ok(proxy::server::run(&args)),
            Command::KonnectivityAgent(args) => Ok(proxy::agent::run(&args)),
        };
        ended.unwrap_or_else(|code| code)
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_shows_an_example() {
        fn check(command: &mut clap::Command, path: &str) {
            let path = format!("{path} {}", command.get_name());
            let inner: Vec<_> =
                command.get_subcommands().map(|c| c.get_name().to_owned()).collect();
            if inner.is_empty() {
                let help = command.render_long_help().to_string();
                assert!(help.contains("Example"), "{path} --help shows no example:\n{help}");
                assert!(help.contains(path.trim()), "{path} --help: its example is another's");
            }
            for name in inner {
                check(command.find_subcommand_mut(&name).expect("just listed"), &path);
            }
        }
        check(&mut Cli::command(), "");
    }
}
