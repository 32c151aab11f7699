//! Names that many objects have, each once in memory.

use std::collections::HashSet;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use ahash::RandomState;

static NAMES: LazyLock<Mutex<HashSet<Arc<str>, RandomState>>> = LazyLock::new(Mutex::default);

/// The shared form of a name: of nodes every pod and every endpoint has one, of namespaces and ports many objects.
pub(crate) fn shared_name(name: &str) -> Arc<str> {
    shared(&mut NAMES.lock().unwrap_or_else(PoisonError::into_inner), name)
}

fn shared(names: &mut HashSet<Arc<str>, RandomState>, name: &str) -> Arc<str> {
    if let Some(known) = names.get(name) {
        return Arc::clone(known);
    }
    if names.len() == names.capacity() {
        names.retain(|name| Arc::strong_count(name) > 1);
    }
    let name = Arc::from(name);
    names.insert(Arc::clone(&name));
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_shared_while_they_are_used() {
        let mut names = HashSet::default();
        let kept = shared(&mut names, "kept");
        for n in 0..10_000 {
            shared(&mut names, &n.to_string());
            assert!(names.len() <= 64, "{}", names.len());
        }
        assert!(Arc::ptr_eq(&kept, &shared(&mut names, "kept")));
    }
}
