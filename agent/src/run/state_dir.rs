//! The folder of the switch's state.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::error::StartError;

/// Creates the folder if needed and locks it against a second switch, until the file is dropped.
///
/// # Errors
/// Names the path, or says that another switch uses the folder.
pub(super) fn lock_folder(folder: &Path) -> Result<fs::File, StartError> {
    let failed = |path: &Path, error: std::io::Error| {
        StartError::Failed(format!("state-dir: {}: {error}", path.display()))
    };
    make_folder(folder).map_err(|error| failed(folder, error))?;
    // Closes a folder that other users may enter: a user with access could hold the lock.
    let mode = fs::Permissions::from_mode(0o700);
    fs::set_permissions(folder, mode).map_err(|error| failed(folder, error))?;
    let path: PathBuf = folder.join("lock");
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let file = options.open(&path).map_err(|error| failed(&path, error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => Err(StartError::Failed(format!(
            "state-dir: {}: another podgate is running with this folder",
            folder.display()
        ))),
        Err(fs::TryLockError::Error(error)) => Err(failed(&path, error)),
    }
}

/// Creates a folder that only its owner may enter, unless it exists.
pub(crate) fn make_folder(folder: &Path) -> std::io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}
