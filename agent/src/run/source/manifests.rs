//! The source of objects: a folder of manifests, read at start and whenever it changes.

use std::path::PathBuf;
use std::sync::Arc;

use control::Fault;
use control::manifests::{Changes, Loaded, Source, Watcher};
use parking_lot::Mutex;

use crate::run::error::StartError;

/// Manifests under watch.
pub(in crate::run) struct Manifests {
    source: Arc<Mutex<Numbered>>,
    watcher: Option<Watcher>,
}

/// A reading of the manifests. Readings are numbered: of one with everything, those before it are a
/// part, and are ignored where they arrive later.
pub(crate) struct Reading {
    pub(in crate::run) number: u64,
    pub(in crate::run) changes: Changes,
    /// Whether there are no other objects.
    pub(in crate::run) is_all: bool,
}

struct Numbered {
    source: Source,
    read: u64,
}

impl Manifests {
    /// Watches `paths`; `report` receives the changes of each reading.
    pub(in crate::run) fn watch(
        paths: &[PathBuf],
        report: impl Fn(Reading) + Send + 'static,
    ) -> Result<Self, StartError> {
        let source = Arc::new(Mutex::new(Numbered { source: Source::new(paths), read: 0 }));
        let watcher = if paths.is_empty() {
            None
        } else {
            let source = Arc::clone(&source);
            let changed = move || {
                let mut source = source.lock();
                source.read += 1;
                let (number, changes) = (source.read, source.source.changes());
                drop(source);
                report(Reading { number, changes, is_all: false });
            };
            let watcher = Watcher::new(paths, changed)
                .map_err(|error| StartError::Failed(format!("watch the manifests: {error}")))?;
            Some(watcher)
        };
        Ok(Self { source, watcher })
    }

    /// Returns whether no reading is in progress, and the watcher made progress since the last call.
    pub(in crate::run) fn responds(&self) -> bool {
        self.watcher.as_ref().is_none_or(Watcher::responds) && !self.source.is_locked()
    }

    /// Reads all manifests for the first time.
    ///
    /// A file that cannot be read or parsed at all has no earlier version to stay in force: the
    /// switch does not start. An object with faults is reported and evaluated as
    /// [`control::objects`] describes, which opens nothing.
    pub(in crate::run) fn first(&self) -> Result<Reading, StartError> {
        let mut source = self.source.lock();
        source.read += 1;
        let Loaded { objects, skipped, faults } = source.source.load();
        let hides = |fault: &&Fault| fault.object.is_none();
        let hiding: Vec<String> = faults.iter().filter(hides).map(Fault::to_string).collect();
        if !hiding.is_empty() {
            return Err(StartError::Input(hiding.join("\n")));
        }
        let changes = Changes { objects, removed: Vec::new(), skipped, faults };
        Ok(Reading { number: source.read, changes, is_all: true })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watcher_whose_thread_stands_still_shows() {
        let folder = testkit::TempDir::new("watched");
        let (sender, block) = std::sync::mpsc::channel::<()>();
        let report = move |_| block.recv().unwrap_or_default();
        let watched = Manifests::watch(&[folder.path().to_path_buf()], report);
        let manifests = watched.map_err(|_| "no watch").unwrap();
        let responds_again = || {
            (0..400).any(|_| {
                std::thread::sleep(std::time::Duration::from_millis(10));
                manifests.responds()
            })
        };
        assert!(responds_again() && responds_again(), "again and again");
        // The report does not return: the thread stands.
        std::fs::write(folder.path().join("a.yaml"), "").unwrap();
        std::thread::sleep(std::time::Duration::from_millis(300));
        manifests.responds();
        assert!(!responds_again(), "no sign of life while it stands");
        drop(sender);
        assert!(responds_again());
    }

    #[test]
    fn a_reading_that_is_under_way_shows() {
        let manifests = Manifests::watch(&[], |_| ()).map_err(|_| "no watch").unwrap();
        assert!(manifests.responds());
        let reading = manifests.source.lock();
        assert!(!manifests.responds());
        drop(reading);
        assert!(manifests.responds());
    }
}
