//! Input that several commands take, and the messages where it cannot be used.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::input::Manifests;
use crate::probe::report;
use cli::UNUSABLE;

/// Reads manifests, with a warning about what is left out.
pub(super) fn manifests(paths: &[PathBuf]) -> Result<Manifests, Vec<String>> {
    let manifests = Manifests::load(paths)?;
    for note in &manifests.skipped {
        eprintln!("podgate: {}", report::plain(note));
    }
    Ok(manifests)
}

/// Prints on stderr, one a line, why the command cannot do its work.
pub(super) fn refuse(faults: impl IntoIterator<Item = String>) -> ExitCode {
    for fault in faults {
        eprintln!("podgate: {}", report::plain(&fault));
    }
    ExitCode::from(UNUSABLE)
}
