//! Turns of changes that are judged: few at a time, and one of each namespace.

use std::collections::HashSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Changes that are judged at a time.
const MAX_RUNNING: usize = 2;

/// Namespaces whose changes are judged now; a cluster-wide change has none.
#[derive(Debug, Default)]
pub struct Turns {
    running: Mutex<HashSet<Option<Arc<str>>>>,
    ended: Condvar,
}

/// A turn, until it is dropped.
#[derive(Debug)]
pub struct Turn {
    turns: Arc<Turns>,
    namespace: Option<Arc<str>>,
}

impl Turns {
    /// Waits for the turn of a namespace's change until `deadline`; `None` if it did not come.
    /// Whatever the changes of one namespace take, those of others wait for one of them at most.
    pub fn take(self: &Arc<Self>, namespace: Option<Arc<str>>, deadline: Instant) -> Option<Turn> {
        let mut running = self.running();
        while running.len() >= MAX_RUNNING || running.contains(&namespace) {
            let left = deadline.checked_duration_since(Instant::now())?;
            let waited = self.ended.wait_timeout(running, left);
            running = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        running.insert(namespace.clone());
        Some(Turn { turns: Arc::clone(self), namespace })
    }

    fn running(&self) -> MutexGuard<'_, HashSet<Option<Arc<str>>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.turns.running().remove(&self.namespace);
        self.turns.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn one_namespace_has_one_turn_at_a_time() {
        let turns = Arc::<Turns>::default();
        let take = |name: &str, wait| {
            turns.take(Some(name.into()), Instant::now() + Duration::from_millis(wait))
        };
        let first = take("a", 0).unwrap();
        assert!(take("a", 5).is_none(), "its own");
        let other = take("b", 0).unwrap();
        assert!(take("c", 5).is_none(), "two at a time");
        drop(first);
        let third = take("c", 60_000).unwrap();
        drop((other, third));
        assert!(turns.take(None, Instant::now()).is_some());
    }
}
