//! Turns of the calls for one container: a locked file beside the agent's socket. The specification forbids two calls
//! at once, but a runtime that gives up an ADD may call DEL while it still runs: DEL would remove what is there, and
//! the rest of ADD would stay.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::config::Config;
use local_api::Attachment;

/// Longest wait for the end of another call.
const LONGEST: Duration = Duration::from_secs(10);

/// A call's turn, until it is dropped or the process ends.
pub(super) struct Turn {
    path: PathBuf,
    _locked: File,
}

impl Turn {
    /// Waits for the end of another call for the container, [`LONGEST`] at most. After that, and where no file can
    /// be locked, the call goes on without a turn and says so on standard error. Without the agent's folder nothing
    /// can be attached, and a call needs no turn.
    pub(super) fn wait(config: &Config, attachment: &Attachment) -> Option<Self> {
        let path = config.socket.with_file_name(format!("{}.lock", attachment.container_id));
        if !config.socket.parent().is_some_and(Path::is_dir) {
            return None;
        }
        let turn = take(&path, config.timeout.min(LONGEST));
        turn.inspect_err(|error| {
            // Standard error may be closed.
            let _lost = writeln!(io::stderr(), "podgate-cni: lock {}: {error}", path.display());
        })
        .ok()
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // If this fails, the next call takes over the file.
        let _ = fs::remove_file(&self.path);
    }
}

fn take(path: &Path, timeout: Duration) -> io::Result<Turn> {
    let deadline = Instant::now() + timeout;
    loop {
        let file = lock(open(path)?, deadline.saturating_duration_since(Instant::now()))?;
        if is_at(&file, path)? {
            return Ok(Turn { path: path.to_owned(), _locked: file });
        }
        // The former call has removed it.
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)
}

fn lock(file: File, timeout: Duration) -> io::Result<File> {
    match file.try_lock() {
        Ok(()) => return Ok(file),
        Err(TryLockError::WouldBlock) => {}
        Err(TryLockError::Error(error)) => return Err(error),
    }
    // The kernel has no lock with a timeout. A thread that still waits after it ends with the process, which is
    // short-lived.
    let (sender, locked) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let result = file.lock().map(|()| file);
        let _late = sender.send(result);
    });
    locked.recv_timeout(timeout).map_err(|_| {
        let text = "another call has not ended; this one goes on beside it";
        io::Error::new(io::ErrorKind::TimedOut, text)
    })?
}

/// Returns whether this file is the one at the path.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let own = file.metadata()?;
    match fs::metadata(path) {
        Ok(there) => Ok((own.dev(), own.ino()) == (there.dev(), there.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn one_call_at_a_time_has_the_turn_and_no_file_is_left() {
        let folder = testkit::TempDir::new("turns");
        let path = folder.path().join("c1.lock");
        let (inside, turns) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        let _turn = take(&path, Duration::from_secs(60)).unwrap();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        std::thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                        turns.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert_eq!(turns.into_inner(), 160);
        assert!(!path.exists());
    }

    #[test]
    fn the_wait_has_an_end_and_a_file_that_was_left_is_no_turn() {
        let folder = testkit::TempDir::new("turns");
        let path = folder.path().join("c1.lock");
        fs::write(&path, "").unwrap();
        let turn = take(&path, Duration::ZERO).unwrap();
        let late = take(&path, Duration::from_millis(20)).err().unwrap();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut, "{late}");
        assert!(path.exists(), "the turn is still the first one's");
        drop(turn);
        drop(take(&path, Duration::ZERO).unwrap());
    }
}
