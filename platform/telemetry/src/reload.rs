//! Values that come from files and are read again when a file changes.

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;

/// A value that follows its files.
pub struct Reloaded<T> {
    what: &'static str,
    files: Vec<PathBuf>,
    load: Box<Load<T>>,
    state: Mutex<State<T>>,
    generation: AtomicU64,
}

type Load<T> = dyn Fn() -> Result<T, String> + Send + Sync;

struct State<T> {
    value: Arc<T>,
    stamps: Vec<Option<Stamp>>,
    /// Time of the last comparison.
    compared: Instant,
    /// Error of the last load, if it failed.
    fault: Option<String>,
}

/// The difference between two versions of a file: modification time, inode (a secret's volume
/// replaces a link), length.
type Stamp = (SystemTime, u64, u64);

/// Interval of comparisons.
const INTERVAL: Duration = Duration::from_secs(1);

impl<T> Reloaded<T> {
    /// Loads the value; `what` names it in the log.
    ///
    /// # Errors
    /// The result of `load`.
    pub fn new(
        what: &'static str,
        files: impl IntoIterator<Item = PathBuf>,
        load: impl Fn() -> Result<T, String> + Send + Sync + 'static,
    ) -> Result<Self, String> {
        let files: Vec<_> = files.into_iter().collect();
        // Before the files are read: a change in between is found at the next comparison.
        let stamps = stamps(&files);
        let value = Arc::new(load()?);
        let state = Mutex::new(State { value, stamps, compared: Instant::now(), fault: None });
        Ok(Self { what, files, load: Box::new(load), state, generation: AtomicU64::new(0) })
    }

    /// The value, loaded anew if a file has changed. A fault changes nothing, and is logged once; the files
    /// are tried again each second, since the fault may not be theirs.
    pub fn current(&self) -> Arc<T> {
        let mut state = self.state.lock();
        if state.compared.elapsed() >= INTERVAL {
            state.compared = Instant::now();
            let stamps = stamps(&self.files);
            if stamps != state.stamps {
                match (self.load)() {
                    Ok(value) => {
                        (state.value, state.stamps, state.fault) = (Arc::new(value), stamps, None);
                        self.generation.fetch_add(1, Ordering::Relaxed);
                        tracing::info!("{}: the files have changed and are in force", self.what);
                    }
                    Err(error) if state.fault.as_ref() == Some(&error) => {}
                    Err(error) => {
                        tracing::error!("{}: {error}; the former stay in force", self.what);
                        state.fault = Some(error);
                    }
                }
            }
        }
        Arc::clone(&state.value)
    }

    /// Grows with each change that was loaded.
    pub fn generation(&self) -> u64 {
        self.current();
        self.generation.load(Ordering::Relaxed)
    }
}

impl<T> fmt::Debug for Reloaded<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reloaded").field("what", &self.what).finish_non_exhaustive()
    }
}

fn stamps(files: &[PathBuf]) -> Vec<Option<Stamp>> {
    let stamp = |file: &PathBuf| {
        let metadata = std::fs::metadata(file).ok()?;
        Some((metadata.modified().ok()?, metadata.ino(), metadata.len()))
    };
    files.iter().map(stamp).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    /// Such a fault may be that of another file, or that there is no descriptor left.
    #[test]
    fn what_could_not_be_loaded_is_tried_again_although_no_file_changes() {
        let folder = testkit::TempDir::new("reload");
        let file = folder.path().join("file");
        std::fs::write(&file, "first").unwrap();
        let tries = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&tries);
        let read = file.clone();
        let reloaded = Reloaded::new("a file", [file.clone()], move || {
            match count.fetch_add(1, Ordering::Relaxed) {
                1 => Err("too many open files".to_owned()),
                _ => std::fs::read_to_string(&read).map_err(|error| error.to_string()),
            }
        });
        let reloaded = reloaded.unwrap();
        std::fs::write(&file, "the second").unwrap();
        testkit::eventually("the second", || (*reloaded.current() == "the second").then_some(()));
        assert_eq!((tries.load(Ordering::Relaxed), reloaded.generation()), (3, 1));
    }
}
