//! Input that several commands take, and the messages where it cannot be used.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use observe::verdicts::Event;

use crate::input::{Manifests, name};
use crate::policy::flows;
use crate::probe::report;
use cli::UNUSABLE;

/// The objects that a command is about.
#[derive(Debug, clap::Args)]
pub(super) struct Input {
    /// File or folder of Kubernetes objects, REV:PATH of a git revision, - for stdin; may be repeated
    #[arg(long, value_name = "PATH", required_unless_present = "kubeconfig")]
    manifests: Vec<PathBuf>,
    /// Read the cluster of this kubeconfig; manifests replace its objects
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
}

impl Input {
    /// Reads the objects, with a warning about what is left out.
    pub(super) fn load(&self) -> Result<Manifests, Vec<String>> {
        load(&self.manifests, self.kubeconfig.as_deref())
    }
}

/// Reads manifests, on top of a live cluster where there is one.
pub(super) fn load(paths: &[PathBuf], cluster: Option<&Path>) -> Result<Manifests, Vec<String>> {
    let manifests = Manifests::load_over(paths, cluster)?;
    for note in &manifests.skipped {
        eprintln!("podgate: {}", report::plain(note));
    }
    Ok(manifests)
}

/// Reads verdicts of `podgate observe -o json`; `-` is standard input.
pub(super) fn observed(file: &Path) -> Result<Vec<Event>, Vec<String>> {
    let mut text = String::new();
    let read = match file.as_os_str() == "-" {
        true => io::stdin().lock().read_to_string(&mut text).map(drop),
        false => fs::read_to_string(file).map(|found| text = found),
    };
    read.map_err(|error| vec![format!("{}: cannot be read: {error}", name(file))])?;
    let named = |faults: Vec<String>| -> Vec<String> {
        faults.into_iter().map(|fault| format!("{}: {fault}", name(file))).collect()
    };
    flows::read(&text).map_err(named)
}

/// Prints on stderr, one a line, why the command cannot do its work.
pub(super) fn refuse(faults: impl IntoIterator<Item = String>) -> ExitCode {
    for fault in faults {
        eprintln!("podgate: {}", report::plain(&fault));
    }
    ExitCode::from(UNUSABLE)
}
