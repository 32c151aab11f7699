//! Input that several commands take, and what is said if it cannot be used.

use std::path::PathBuf;
use std::process::ExitCode;

use control::{Object, manifests};

use crate::probe::report;
use cli::UNUSABLE;

/// What the manifests hold; half-read policies give no verdicts.
pub(super) fn objects(paths: &[PathBuf]) -> Result<Vec<Object>, Vec<String>> {
    let loaded = manifests::load(paths);
    if !loaded.faults.is_empty() {
        return Err(loaded.faults.iter().map(ToString::to_string).collect());
    }
    if !loaded.skipped.is_empty() {
        let kinds = loaded.skipped.iter().map(|(kind, n)| format!("{n} {}", report::plain(kind)));
        let kinds: Vec<String> = kinds.collect();
        eprintln!("podgate: skipped objects of other kinds: {}", kinds.join(", "));
    }
    if loaded.objects.is_empty() {
        let nothing = |path: &PathBuf| format!("{}: holds no objects", path.display());
        return Err(paths.iter().map(nothing).collect());
    }
    Ok(loaded.objects)
}

/// Tells on stderr, one a line, why the command cannot do its work.
pub(super) fn refuse(faults: impl IntoIterator<Item = String>) -> ExitCode {
    for fault in faults {
        eprintln!("podgate: {}", report::plain(&fault));
    }
    ExitCode::from(UNUSABLE)
}
