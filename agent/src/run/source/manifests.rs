//! The source of objects: a folder of manifests, read at start and whenever it changes.

use std::path::PathBuf;
use std::sync::Arc;

use control::Fault;
use control::manifests::{Loaded, Source, Watcher};
use parking_lot::Mutex;

use crate::run::error::StartError;

/// Manifests under watch.
pub(in crate::run) struct Manifests {
    source: Arc<Mutex<Numbered>>,
    _watcher: Option<Watcher>,
}

/// The content of the manifests at one moment. Readings are numbered, so that an older one that
/// arrives late is ignored.
pub(crate) struct Reading {
    pub(in crate::run) number: u64,
    pub(in crate::run) loaded: Loaded,
}

struct Numbered {
    source: Source,
    read: u64,
}

impl Manifests {
    /// Watches `paths`; `report` receives a complete reading after each change.
    pub(in crate::run) fn watch(
        paths: &[PathBuf],
        report: impl Fn(Reading) + Send + 'static,
    ) -> Result<Self, StartError> {
        let source = Arc::new(Mutex::new(Numbered { source: Source::new(paths), read: 0 }));
        let watcher = if paths.is_empty() {
            None
        } else {
            let source = Arc::clone(&source);
            let changed = move || report(load(&source));
            let watcher = Watcher::new(paths, changed)
                .map_err(|error| StartError::Failed(format!("watch the manifests: {error}")))?;
            Some(watcher)
        };
        Ok(Self { source, _watcher: watcher })
    }

    /// Returns whether no reading is in progress.
    pub(in crate::run) fn responds(&self) -> bool {
        !self.source.is_locked()
    }

    /// Reads all manifests for the first time.
    ///
    /// A file that cannot be read or parsed at all has no earlier version to stay in force: the
    /// switch does not start. An object with faults is reported and evaluated as
    /// [`control::objects`] describes, which opens nothing.
    pub(in crate::run) fn first(&self) -> Result<Reading, StartError> {
        let reading = load(&self.source);
        let hides = |fault: &&Fault| fault.object.is_none();
        let hiding: Vec<String> =
            reading.loaded.faults.iter().filter(hides).map(Fault::to_string).collect();
        if hiding.is_empty() { Ok(reading) } else { Err(StartError::Input(hiding.join("\n"))) }
    }
}

fn load(source: &Mutex<Numbered>) -> Reading {
    let mut source = source.lock();
    source.read += 1;
    Reading { number: source.read, loaded: source.source.load() }
}

#[cfg(test)]
mod tests {
    use super::*;

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
