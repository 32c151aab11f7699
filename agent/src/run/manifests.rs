//! The source of objects: a folder of manifests, read at start and whenever it changes.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use control::manifests::{Loaded, Source, Watcher};
use control::{Fault, Object};

use super::StartError;

/// Manifests under watch.
pub(super) struct Manifests {
    source: Arc<Mutex<Source>>,
    _watcher: Option<Watcher>,
}

impl Manifests {
    /// Watches `paths` from now on; `tell` gets everything that is in them after each change.
    pub(super) fn watch(
        paths: &[PathBuf],
        tell: impl Fn(Loaded) + Send + 'static,
    ) -> Result<Self, StartError> {
        let source = Arc::new(Mutex::new(Source::new(paths)));
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

    /// Reads everything for the first time.
    ///
    /// What cannot be read at all has no last version that could stay in force, and nobody can
    /// tell what it would deny: with such a fault the switch does not start. An object that is
    /// there but wrong is told and treated as [`control::objects`] says, which opens nothing.
    pub(super) fn first(&self) -> Result<Loaded, StartError> {
        let loaded = load(&self.source);
        let hides = |fault: &&Fault| fault.object.is_none();
        let hiding: Vec<String> =
            loaded.faults.iter().filter(hides).map(Fault::to_string).collect();
        if hiding.is_empty() { Ok(loaded) } else { Err(StartError::Input(hiding.join("\n"))) }
    }
}

fn load(source: &Mutex<Source>) -> Loaded {
    source.lock().unwrap_or_else(PoisonError::into_inner).load()
}

/// How many objects of each kind there are.
pub(super) fn counts(objects: &[Object]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for object in objects {
        *counts.entry(object.reference().kind.name().to_owned()).or_default() += 1;
    }
    counts
}

/// The pods of all cluster nodes by address.
pub(super) fn pod_names(objects: &[Object]) -> Vec<(IpAddr, Arc<str>)> {
    let mut names = Vec::new();
    for object in objects {
        if let Object::Pod(pod) = object
            && pod.is_on_pod_network()
        {
            let name: Arc<str> = pod.key.to_string().into();
            names.extend(pod.addresses.iter().map(|address| (*address, Arc::clone(&name))));
        }
    }
    names
}
