//! `podgate uninstall`: takes everything off this node that Podgate put there.

use std::path::PathBuf;
use std::process::ExitCode;

use super::Ended;
use super::install_cni::Folders;
use agent::config::Options;
use cli_runtime::{NO, Output, fail, print};
use serde_json::json;
use setup::install::{Places, Removal, uninstall};

/// Arguments of `podgate uninstall`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Removes configurations that call podgate-cni, the addresses that host-local reserved \
for them, the plugin, programs on interfaces, interfaces of pods and the host port with their routes \
and addresses, nftables tables, programs at cgroups, the state folder and the journal, and prints each. Only objects with Podgate's \
names are removed. Attached pods lose their interface: recreate them with another plugin.

Packages, images and the API server's objects are not touched, and net.ipv4.conf.all.forwarding and \
its IPv6 counterpart stay on. A running switch that uses the state folder is an error.

Exit code: 0 if nothing is left, 1 if something could not be removed.

Example:
  podgate uninstall --dry-run
  podgate uninstall"
)]
pub struct Args {
    /// Print what would be removed, and change nothing
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    folders: Folders,

    /// host-local's folder of reserved addresses
    #[arg(long, value_name = "PATH", default_value = "/var/lib/cni/networks")]
    reservation_folder: PathBuf,

    /// The switch's state folder
    #[arg(long, env = "PODGATE_STATE_DIR", value_name = "PATH", default_value_os_t = Options::default().state_dir())]
    state_dir: PathBuf,

    /// The journal's folder
    #[arg(long, env = "PODGATE_JOURNAL_DIR", value_name = "PATH", default_value = observe::journal::FOLDER)]
    journal_dir: PathBuf,

    /// The file system of type bpf, where programs at cgroups are pinned
    #[arg(long, env = "PODGATE_BPF_FS", value_name = "PATH", default_value_os_t = Options::default().bpf_fs())]
    bpf_fs: PathBuf,

    /// Output format; json: one line an object
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// Removes, and writes what it was to stdout.
pub(super) fn run(args: &Args) -> Ended {
    let places = Places {
        configurations: args.folders.configuration_folder.clone(),
        plugins: args.folders.plugin_folder.clone(),
        reservations: args.reservation_folder.clone(),
        state: args.state_dir.clone(),
        journal: args.journal_dir.clone(),
        bpf_fs: args.bpf_fs.clone(),
    };
    let removed = uninstall(&places, args.dry_run).map_err(|error| fail(NO, error))?;
    let lines: Vec<String> = removed.iter().map(|one| line(one, args)).collect();
    let text = match (lines.is_empty(), args.output) {
        (true, Output::Text) => "nothing of Podgate is here\n".to_owned(),
        _ => lines.concat(),
    };
    let written = print(&text);
    let failed = removed.iter().any(|one| one.error.is_some());
    Ok(if failed { ExitCode::from(NO) } else { written })
}

fn line(removal: &Removal, args: &Args) -> String {
    let Removal { kind, name, error } = removal;
    match (args.output, error) {
        (Output::Json, _) => json!(removal).to_string() + "\n",
        (Output::Text, Some(error)) => format!("not removed: {kind} {name}: {error}\n"),
        (Output::Text, None) if args.dry_run => format!("would remove: {kind} {name}\n"),
        (Output::Text, None) => format!("removed: {kind} {name}\n"),
    }
}
