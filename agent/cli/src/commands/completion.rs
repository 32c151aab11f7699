//! `podgate completion`: writes completion scripts for shells.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;

use super::{Cli, Ended};

/// Arguments of `podgate completion`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  podgate completion bash > /etc/bash_completion.d/podgate")]
pub struct Args {
    /// The shell
    shell: Shell,
}

/// Writes the script to stdout.
pub(super) fn run(args: &Args) -> Ended {
    let unwritten =
        |error| cli_runtime::fail(cli_runtime::NO, format_args!("write to stdout: {error}"));
    io::stdout().write_all(&script(args.shell)).map_err(unwritten)?;
    Ok(ExitCode::SUCCESS)
}

fn script(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "podgate", &mut script);
    script
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_know_the_commands() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = String::from_utf8(script(shell)).unwrap();
            assert!(script.contains("completion"), "{shell}");
        }
    }
}
