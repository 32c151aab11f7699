//! The source of objects: a folder of manifests, read at start and whenever it changes.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use control::Fault;
use control::manifests::{Loaded, Source, Watcher};

use crate::run::StartError;

/// Manifests under watch.
pub(in crate::run) struct Manifests {
    source: Arc<Mutex<Numbered>>,
    _watcher: Option<Watcher>,
}

/// What the manifests said at one moment. A later reading has a higher number, so that one
/// that was overtaken on its way does not undo it.
pub(crate) struct Reading {
    pub(in crate::run) number: u64,
    pub(in crate::run) loaded: Loaded,
}

struct Numbered {
    source: Source,
    read: u64,
}

impl Manifests {
    /// Watches `paths` from now on; `tell` gets everything that is in them after each change.
    pub(in crate::run) fn watch(
        paths: &[PathBuf],
        tell: impl Fn(Reading) + Send + 'static,
    ) -> Result<Self, StartError> {
        let source = Arc::new(Mutex::new(Numbered { source: Source::new(paths), read: 0 }));
        let watcher = if paths.is_empty() {
            None
        } else {
            let source = Arc::clone(&source);
            let changed = move || tell(load(&source));
            let watcher = Watcher::new(paths, changed)
                .map_err(|error| StartError::Failed(format!("watch the manifests: {error}")))?;
            Some(watcher)
        };
        Ok(Self { source, _watcher: watcher })
    }

    /// Whether no reading is under way.
    pub(in crate::run) fn responds(&self) -> bool {
        !matches!(self.source.try_lock(), Err(std::sync::TryLockError::WouldBlock))
    }

    /// Reads everything for the first time.
    ///
    /// What cannot be read at all has no last version that could stay in force, and nobody can
    /// tell what it would deny: with such a fault the switch does not start. An object that is
    /// there but wrong is told and treated as [`control::objects`] says, which opens nothing.
    pub(in crate::run) fn first(&self) -> Result<Reading, StartError> {
        let reading = load(&self.source);
        let hides = |fault: &&Fault| fault.object.is_none();
        let hiding: Vec<String> =
            reading.loaded.faults.iter().filter(hides).map(Fault::to_string).collect();
        if hiding.is_empty() { Ok(reading) } else { Err(StartError::Input(hiding.join("\n"))) }
    }
}

fn load(source: &Mutex<Numbered>) -> Reading {
    let mut source = source.lock().unwrap_or_else(PoisonError::into_inner);
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
        let reading = manifests.source.lock().unwrap();
        assert!(!manifests.responds());
        drop(reading);
        assert!(manifests.responds());
    }
}
