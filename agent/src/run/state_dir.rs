//! The folder of the switch's state.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::error::StartError;

/// Creates the folder if needed and locks it against a second switch, until the file is dropped.
///
/// # Errors
/// Names the path, or says that another switch uses the folder.
pub(super) fn lock_folder(folder: &Path) -> Result<fs::File, StartError> {
    try_lock(folder)?.ok_or_else(|| {
        let folder = folder.display();
        StartError::Failed(format!(
            "state-dir: {folder}: another podgate is running with this folder"
        ))
    })
}

/// Interval of looking for the end of another switch.
const INTERVAL: Duration = Duration::from_millis(2);

/// Waits until no switch uses the folder, `timeout` at most. Returns false if `is_cancelled` did first.
/// While another one uses it, `prepare` is called first.
///
/// # Errors
/// Names the path, or says that another switch still uses the folder. Those of `prepare`.
pub fn await_end_of_another(
    folder: &Path,
    timeout: Duration,
    prepare: impl FnOnce() -> Result<(), StartError>,
    mut is_cancelled: impl FnMut() -> bool,
) -> Result<bool, StartError> {
    let began = Instant::now();
    if try_lock(folder)?.is_some() {
        return Ok(true);
    }
    prepare()?;
    tracing::info!("another podgate runs with {}: waiting for its end", folder.display());
    while began.elapsed() < timeout {
        if is_cancelled() {
            return Ok(false);
        }
        std::thread::sleep(INTERVAL);
        if try_lock(folder)?.is_some() {
            return Ok(true);
        }
    }
    lock_folder(folder).map(|_| true)
}

/// The locked file, unless another switch has locked it.
fn try_lock(folder: &Path) -> Result<Option<fs::File>, StartError> {
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
        Ok(()) => Ok(Some(file)),
        Err(fs::TryLockError::WouldBlock) => Ok(None),
        Err(fs::TryLockError::Error(error)) => Err(failed(&path, error)),
    }
}

/// Creates a folder that only its owner may enter, unless it exists.
pub fn make_folder(folder: &Path) -> std::io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_another_switch_is_awaited() {
        let folder = testkit::TempDir::new("takeover");
        let path = folder.path();
        let prepared = std::sync::atomic::AtomicUsize::new(0);
        let count = || prepared.load(std::sync::atomic::Ordering::Relaxed);
        let wait = |timeout, is_cancelled| {
            let prepare = || {
                prepared.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                Ok(())
            };
            await_end_of_another(path, Duration::from_millis(timeout), prepare, || is_cancelled)
        };
        assert_eq!((wait(0, true), count()), (Ok(true), 0), "there is none");
        let other = lock_folder(path).unwrap();
        assert_eq!((wait(60_000, true), count()), (Ok(false), 1), "cancelled");
        let Err(StartError::Failed(error)) = wait(20, false) else { panic!("it went on") };
        assert!(error.contains("another podgate is running"), "{error}");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| wait(60_000, false));
            std::thread::sleep(Duration::from_millis(20));
            assert!(!waiting.is_finished());
            drop(other);
            assert_eq!(waiting.join().unwrap(), Ok(true));
        });
        drop(lock_folder(path).unwrap());
    }
}
