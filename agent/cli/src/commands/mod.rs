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
pub mod log_level;
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
pub mod version;
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
    /// Set the level of the running switch's log
    LogLevel(log_level::Args),
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
    /// Print the versions of this program and of the running switch
    Version(version::Args),
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
            Command::LogLevel(args) => log_level::run(&args),
            Command::InstallCni(args) => install_cni::run(&args),
            Command::Uninstall(args) => uninstall::run(&args),
            Command::Bundle(args) => bundle::run(&args),
            Command::ConnectivityTest(args) => connectivity_test::run(&args),
            Command::Manual(args) => manual::run(&args),
            Command::Version(args) => version::run(&args),
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

    /// The parts of `-o`, `-f` and `-w`, each with the option that it is short for in every command.
    const LETTERS: [(char, &[&str]); 3] =
        [('o', &["output"]), ('f', &["follow"]), ('w', &["write"])];

    /// Calls `check` with every command without subcommands, and with its path.
    fn each(command: &clap::Command, path: &str, check: &mut impl FnMut(&clap::Command, &str)) {
        let path = format!("{path} {}", command.get_name());
        if !command.has_subcommands() {
            check(command, path.trim());
        }
        command.get_subcommands().for_each(|inner| each(inner, &path, check));
    }

    #[test]
    fn help_is_wrapped_once_at_80_columns() {
        let mut wrong = Vec::new();
        each(&Cli::command(), "", &mut |command, path| {
            let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            // An indented line is a row: the terminal must not wrap it again. Commands and samples of YAML cannot break.
            let rows = after.split("Example").next().unwrap_or_default().lines();
            let rows = rows.filter(|it| it.starts_with(' ') && !it.trim_start().starts_with('-'));
            let long = rows.filter(|line| line.chars().count() > 80);
            wrong.extend(long.map(|line| format!("{path}: {line}")));
        });
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn one_letter_means_one_thing() {
        each(&Cli::command(), "", &mut |command, path| {
            for (letter, meanings) in LETTERS {
                let mut arguments = command.get_arguments();
                let with = arguments.find(|it| it.get_short() == Some(letter));
                let long = with.and_then(clap::Arg::get_long).unwrap_or(meanings[0]);
                assert!(meanings.contains(&long), "{path}: -{letter} is --{long}");
            }
        });
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
