//! The connected agents, and the choice of one for a dial.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::backend::Backend;
use super::options::Strategy;
use crate::identifiers::same_spelling;

/// All agents' connections.
#[derive(Debug)]
pub(crate) struct Backends {
    list: Mutex<Vec<Arc<Backend>>>,
    strategies: Vec<Strategy>,
    next: AtomicUsize,
}

impl Backends {
    pub(crate) fn new(strategies: Vec<Strategy>) -> Self {
        Self { list: Mutex::default(), strategies, next: AtomicUsize::new(0) }
    }

    pub(crate) fn add(&self, backend: &Arc<Backend>) {
        self.lock().push(Arc::clone(backend));
    }

    pub(crate) fn remove(&self, backend: &Arc<Backend>) {
        self.lock().retain(|it| !Arc::ptr_eq(it, backend));
    }

    pub(crate) fn all(&self) -> Vec<Arc<Backend>> {
        self.lock().clone()
    }

    pub(crate) fn count(&self) -> usize {
        self.lock().len()
    }

    /// Returns whether the first strategy has an agent to choose.
    pub(crate) fn is_ready(&self) -> bool {
        let first = self.strategies.first().copied().unwrap_or(Strategy::Default);
        self.candidates(first) > 0
    }

    /// Agents each strategy may choose from. Several streams of one agent count once.
    pub(crate) fn ready(&self) -> Vec<(&'static str, usize)> {
        self.strategies.iter().map(|it| (it.name(), self.candidates(*it))).collect()
    }

    /// Agents that are connected. Several streams of one agent count once.
    pub(crate) fn agents(&self) -> usize {
        self.candidates(Strategy::Default)
    }

    fn candidates(&self, strategy: Strategy) -> usize {
        let list = self.lock();
        let fitting = list.iter().filter(|it| may_ever_serve(it, strategy));
        fitting.map(|it| it.stream.agent.as_str()).collect::<HashSet<_>>().len()
    }

    /// The agent for a target: the strategies in order; within one, an agent that answers before
    /// one that drains before one that is silent, and among equals each in turn.
    pub(crate) fn choose(&self, target: &str) -> Option<Arc<Backend>> {
        let host = same_spelling(host_of(target));
        let list = self.lock();
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        self.strategies.iter().find_map(|strategy| {
            let fits = |it: &&Arc<Backend>| match strategy {
                Strategy::DestHost => it.identifiers.hosts.contains(&host),
                _ => may_ever_serve(it, *strategy),
            };
            let mut fitting: Vec<&Arc<Backend>> =
                list.iter().filter(fits).filter(|it| !it.is_gone()).collect();
            let best = fitting.iter().map(|it| it.preference()).min()?;
            if best == Backend::SILENT {
                return None;
            }
            fitting.retain(|it| it.preference() == best);
            fitting.get(turn % fitting.len()).map(|it| Arc::clone(it))
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Backend>>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn may_ever_serve(backend: &Backend, strategy: Strategy) -> bool {
    match strategy {
        Strategy::Default => true,
        Strategy::DestHost => !backend.identifiers.hosts.is_empty(),
        Strategy::DefaultRoute => backend.identifiers.default_route,
    }
}

/// The host in `host:port`, `[v6]:port`, or without a port.
fn host_of(target: &str) -> &str {
    if let Some(rest) = target.strip_prefix('[') {
        return rest.split(']').next().unwrap_or_default();
    }
    match target.rsplit_once(':') {
        Some((host, _)) if !host.contains(':') => host,
        _ => target,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_targets() {
        for (target, host) in [
            ("10.0.0.1:443", "10.0.0.1"),
            ("node1:10250", "node1"),
            ("[2001:db8::1]:443", "2001:db8::1"),
            ("2001:db8::1", "2001:db8::1"),
            ("node1", "node1"),
            ("", ""),
        ] {
            assert_eq!(host_of(target), host);
        }
    }
}
