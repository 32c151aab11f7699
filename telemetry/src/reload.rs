//! Values that come from files and are read again when a file changes.

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;

/// A value that is as new as its files.
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
    /// When the files were compared last.
    compared: Instant,
}

/// The difference between two versions of a file: modification time, inode (a secret's volume
/// replaces a link), length.
type Stamp = (SystemTime, u64, u64);

/// Between two comparisons.
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
        let state = Mutex::new(State { value, stamps, compared: Instant::now() });
        Ok(Self { what, files, load: Box::new(load), state, generation: AtomicU64::new(0) })
    }

    /// The value, loaded anew if a file has changed. A fault changes nothing and is logged.
    pub fn current(&self) -> Arc<T> {
        let mut state = self.state.lock();
        if state.compared.elapsed() >= INTERVAL {
            state.compared = Instant::now();
            let stamps = stamps(&self.files);
            if stamps != state.stamps {
                state.stamps = stamps;
                match (self.load)() {
                    Ok(value) => {
                        state.value = Arc::new(value);
                        self.generation.fetch_add(1, Ordering::Relaxed);
                        tracing::info!("{}: the files have changed and are in force", self.what);
                    }
                    Err(error) => {
                        tracing::error!("{}: {error}; the former stay in force", self.what);
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
