//! Past events, shared among the ports they came from.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use super::Event;

/// Past events kept.
pub(super) const HISTORY: usize = 4096;

/// The last events. A new one displaces the oldest of the port with the most, so that one pod's denials do not displace
/// another's.
#[derive(Default)]
pub(super) struct History {
    /// By the order in which they came.
    events: BTreeMap<u64, Arc<Event>>,
    /// The places in that order of each port's events, oldest first.
    ports: HashMap<Option<Arc<str>>, VecDeque<u64>>,
    next: u64,
}

impl History {
    pub(super) fn push(&mut self, event: Arc<Event>) {
        if self.events.len() == HISTORY {
            self.make_room(&event.in_port);
        }
        self.ports.entry(event.in_port.clone()).or_default().push_back(self.next);
        self.events.insert(self.next, event);
        self.next += 1;
    }

    pub(super) fn newest_first(&self) -> impl Iterator<Item = &Arc<Event>> {
        self.events.values().rev()
    }

    /// Events kept now.
    pub(super) fn len(&self) -> usize {
        self.events.len()
    }

    /// Events pushed so far.
    pub(super) fn pushed(&self) -> u64 {
        self.next
    }

    fn make_room(&mut self, newcomer: &Option<Arc<str>>) {
        // A port with its share or more gives one of its own, without a search.
        let own = self.ports.get(newcomer).map_or(0, VecDeque::len);
        let from = match own * self.ports.len() > HISTORY {
            true => newcomer.clone(),
            false => {
                let most = self.ports.iter().max_by_key(|(_, places)| places.len());
                most.and_then(|(port, _)| port.clone())
            }
        };
        let Some(places) = self.ports.get_mut(&from) else { return };
        if let Some(oldest) = places.pop_front() {
            self.events.remove(&oldest);
        }
        if places.is_empty() {
            self.ports.remove(&from);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::verdicts::event::tests::denied;

    fn at(n: usize) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(n as u64)
    }

    fn of(port: &str, n: usize) -> Arc<Event> {
        Arc::new(Event { in_port: Some(port.into()), time: at(n), ..denied() })
    }

    #[test]
    fn a_flood_pushes_out_its_own_events() {
        let mut history = History::default();
        (0..20).for_each(|n| history.push(of("default/quiet", n)));
        (0..3 * HISTORY).for_each(|n| history.push(of("default/loud", n)));
        (0..20).for_each(|n| history.push(of("default/late", n)));
        let count = |port: &str| {
            history.newest_first().filter(|it| it.in_port.as_deref() == Some(port)).count()
        };
        assert_eq!((count("default/quiet"), count("default/late")), (20, 20));
        assert_eq!(count("default/loud"), HISTORY - 40);
        let newest =
            history.newest_first().find(|it| it.in_port.as_deref() == Some("default/loud"));
        assert_eq!(newest.unwrap().time, at(3 * HISTORY - 1));
        assert_eq!(history.newest_first().count(), HISTORY);
    }
}
