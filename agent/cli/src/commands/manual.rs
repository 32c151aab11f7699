//! `podgate manual`: manual pages of all commands, for packages.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::CommandFactory;
use cli_runtime::{NO, fail};

use super::{Cli, Ended};

/// Arguments of `podgate manual`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  podgate manual /usr/share/man/man1")]
pub struct Args {
    /// Folder that the pages are written to
    folder: PathBuf,
}

/// Writes a page for each command, `podgate-policy-probe.1`.
pub(super) fn run(args: &Args) -> Ended {
    std::fs::create_dir_all(&args.folder)
        .and_then(|()| clap_mangen::generate_to(Cli::command(), &args.folder))
        .map_err(|error| fail(NO, format_args!("{}: {error}", args.folder.display())))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page() {
        let folder = testkit::TempDir::new("manual");
        assert_eq!(run(&Args { folder: folder.path().to_owned() }), Ok(ExitCode::SUCCESS));
        fn check(command: &clap::Command, name: &str, folder: &std::path::Path) -> usize {
            let path = folder.join(format!("{name}.1"));
            let page = std::fs::read_to_string(&path);
            let page = page.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            assert!(page.contains(".SH NAME") && page.contains(".SH SYNOPSIS"), "{name}");
            if command.get_subcommands().next().is_none() {
                assert!(page.contains("Example"), "{name} shows no example");
            }
            let inner = command.get_subcommands().filter(|it| !it.is_hide_set());
            let inner = inner.map(|it| check(it, &format!("{name}-{}", it.get_name()), folder));
            1 + inner.sum::<usize>()
        }
        let mut command = Cli::command();
        command.build();
        let command = command.disable_help_subcommand(true);
        fn without_help(command: clap::Command) -> clap::Command {
            command.mut_subcommands(|inner| {
                let is_hidden = inner.is_hide_set() || inner.get_name() == "help";
                without_help(inner).hide(is_hidden)
            })
        }
        assert!(check(&without_help(command), "podgate", folder.path()) > 20);
    }
}
