//! Programs of this workspace that a test of another package runs.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds the program `name`, which its package's integration test `test` runs, beside the test's own and returns
/// its path.
///
/// Cargo builds the programs of the package under test alone. `own` is one of those
/// (`env!("CARGO_BIN_EXE_…")`); the other one is built with the same profile into the same folder, for a test of the
/// whole workspace: after such a build there is nothing to do, since features are the same.
///
/// # Panics
/// If it cannot be built.
pub fn workspace_binary(own: &str, test: &str, name: &str) -> PathBuf {
    let folder = Path::new(own).parent().expect("a program stands in a folder");
    let target = folder.parent().expect("a profile's folder stands in the target folder");
    let mut cargo = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()));
    cargo.args(["test", "--no-run", "--quiet", "--workspace", "--test", test]);
    cargo.arg("--manifest-path").arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml"));
    cargo.arg("--target-dir").arg(target);
    if folder.file_name().is_some_and(|profile| profile == "release") {
        cargo.arg("--release");
    }
    let status = cargo.status().expect("cargo starts");
    assert!(status.success(), "{cargo:?}: {status}");
    folder.join(name)
}
