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

/// Manifests that were read and are not watched yet: a successor reads them beside the running switch.
pub struct ReadManifests {
    source: Source,
    reading: Reading,
}

impl ReadManifests {
    /// Reads all manifests for the first time.
    ///
    /// A file that cannot be read or parsed at all has no earlier version to stay in force: the
    /// switch does not start. An object with faults is reported and evaluated as
    /// [`control::objects`] describes, which opens nothing.
    ///
    /// # Errors
    /// [`StartError::Input`] names these files.
    pub fn read(paths: &[PathBuf]) -> Result<Self, StartError> {
        let mut source = Source::new(paths);
        let Loaded { objects, skipped, faults } = source.load();
        let hides = |fault: &&Fault| fault.object.is_none();
        let hiding: Vec<String> = faults.iter().filter(hides).map(Fault::to_string).collect();
        if !hiding.is_empty() {
            return Err(StartError::Input(hiding.join("\n")));
        }
        let changes = Changes { objects, removed: Vec::new(), skipped, faults };
        Ok(Self { source, reading: Reading { number: 1, changes, is_all: true } })
    }
}

impl Manifests {
    /// Watches manifests at these paths; `report` receives the changes of each reading. Also returns the readings so
    /// far: the first one, and what has changed since.
    pub(in crate::run) fn watch(
        read: ReadManifests,
        paths: &[PathBuf],
        report: impl Fn(Reading) + Send + 'static,
    ) -> Result<(Self, [Reading; 2]), StartError> {
        let ReadManifests { source, reading } = read;
        let source = Arc::new(Mutex::new(Numbered { source, read: reading.number }));
        let watcher = if paths.is_empty() {
            None
        } else {
            let source = Arc::clone(&source);
            let changed = move || {
                let changes = source.lock().changes();
                report(changes);
            };
            let watcher = Watcher::new(paths, changed)
                .map_err(|error| StartError::Failed(format!("watch the manifests: {error}")))?;
            Some(watcher)
        };
        let changes = source.lock().changes();
        Ok((Self { source, watcher }, [reading, changes]))
    }

    /// Returns whether no reading is in progress, and the watcher made progress since the last call.
    pub(in crate::run) fn responds(&self) -> bool {
        self.watcher.as_ref().is_none_or(Watcher::responds) && !self.source.is_locked()
    }
}

impl Numbered {
    /// Reads what has changed since the last reading.
    fn changes(&mut self) -> Reading {
        self.read += 1;
        Reading { number: self.read, changes: self.source.changes(), is_all: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch(paths: &[PathBuf], report: impl Fn(Reading) + Send + 'static) -> Manifests {
        let read = ReadManifests::read(paths).unwrap();
        Manifests::watch(read, paths, report).map_err(|_| "no watch").unwrap().0
    }

    #[test]
    fn what_changes_before_the_watch_is_not_missed() {
        let folder = testkit::TempDir::new("early");
        let paths = [folder.path().to_path_buf()];
        let pod = |name: &str| {
            let text = format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}}}\n");
            std::fs::write(folder.path().join(format!("{name}.yaml")), text).unwrap();
        };
        pod("a");
        let read = ReadManifests::read(&paths).unwrap();
        pod("b");
        std::fs::remove_file(folder.path().join("a.yaml")).unwrap();
        let watched = Manifests::watch(read, &paths, |_| ()).map_err(|_| "no watch").unwrap();
        let (_manifests, [first, changes]) = watched;
        let names = |reading: &Reading| -> Vec<String> {
            reading.changes.objects.iter().map(|it| it.reference().name.to_string()).collect()
        };
        assert_eq!((names(&first), first.is_all), (vec!["a".to_owned()], true));
        assert_eq!((names(&changes), changes.is_all), (vec!["b".to_owned()], false));
        assert_eq!(changes.changes.removed.len(), 1);
        assert!(changes.number > first.number);
    }

    #[test]
    fn a_watcher_whose_thread_stands_still_shows() {
        let folder = testkit::TempDir::new("watched");
        let (sender, block) = std::sync::mpsc::channel::<()>();
        let report = move |_| block.recv().unwrap_or_default();
        let manifests = watch(&[folder.path().to_path_buf()], report);
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
        let manifests = watch(&[], |_| ());
        assert!(manifests.responds());
        let reading = manifests.source.lock();
        assert!(!manifests.responds());
        drop(reading);
        assert!(manifests.responds());
    }
}
